"""X4: no transaction stays open that no coordinator knows, however it came to be left alone."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.patience import until
from support.serving import RawClient
from support.transactional import RawTransactional, create_topic, visible

import cordwood
from cordwood import Broker
from cordwood.broker.node import Node
from cordwood.broker.transactions.state_topic import NAME
from cordwood.config import load_broker_config
from cordwood.disk.posix import PosixFiles
from cordwood.errors import DiskFull
from cordwood.formats import Marker
from cordwood.storage.directory import DataDirectory, Opening
from cordwood.storage.meta import was_closed_cleanly

A, B = ("orders", 0), ("ledger", 0)
STORAGE = {"own": {}, "shared": {"cordwood.storage": "shared"}}


def closed_cleanly(path: Path) -> bool:
    return was_closed_cleanly(PosixFiles(), str(path))


def fill(path: Path, config: dict[str, str]) -> None:
    """Write a committed, an aborted and an open transaction to two topics, and end the broker cleanly."""
    with Broker(path, config=config) as broker, RawClient(broker.bootstrap) as client:
        create_topic(client, "orders")
        create_topic(client, "ledger")
        RawTransactional(client, "done").init().write([A, B], b"committed").commit()
        RawTransactional(client, "undone").init().write([A, B], b"aborted").abort()
        RawTransactional(client, "gone").init().write([A, B], b"open")


def check_served(path: Path, expected: list[bytes], config: dict[str, str]) -> None:
    """Nothing is open, and what is committed later is visible."""
    with Broker(path, config=config) as broker, RawClient(broker.bootstrap) as client:
        producer = RawTransactional(client, "later").init()
        for place in (A, B):
            log = broker._node.directory.partitions.readable(*place)
            assert log.open_transactions() == []
            assert log.last_stable_offset == log.high_watermark
            assert visible(broker, *place) == expected
        producer.write([A, B], b"later").commit()
        assert visible(broker, *A) == visible(broker, *B) == [*expected, b"later"]
    assert closed_cleanly(path)


@pytest.mark.parametrize("config", STORAGE.values(), ids=STORAGE)
def test_a_restore_without_the_stored_states_leaves_nothing_open(
    tmp_path: Path, config: dict[str, str]
) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    fill(before, config)
    cordwood.restore(before, after, to_offsets={(NAME, 0): 0})
    check_served(after, [b"committed"], config)


def truncate_states(directory: DataDirectory) -> None:
    directory.cutting.truncate(NAME, 0, 0)


def delete_states(directory: DataDirectory) -> None:
    directory.topics.delete(NAME)


@pytest.mark.parametrize("lose", [truncate_states, delete_states])
@pytest.mark.parametrize("config", STORAGE.values(), ids=STORAGE)
def test_states_that_are_lost_offline_leave_nothing_open(
    tmp_path: Path, config: dict[str, str], lose: Callable[[DataDirectory], None]
) -> None:
    """Without a coordinator, which would abort what is open: the partitions are not even opened."""
    fill(tmp_path, config)
    settings = load_broker_config(environment={})[0]
    opening = Opening(PosixFiles(), str(tmp_path), settings, create=False, mapped=False)
    with contextlib.closing(DataDirectory(opening)) as directory:
        lose(directory)
    assert not closed_cleanly(tmp_path)
    check_served(tmp_path, [b"committed"], config)


def test_an_offline_truncation_of_markers_leaves_nothing_open(tmp_path: Path) -> None:
    """The states say that the transactions are complete, so nobody would write their markers again."""
    fill(tmp_path, {})
    with cordwood.open(tmp_path) as log:
        # Offsets: committed 0, its marker 1, aborted 2, its marker 3, open 4, the marker of this open 5.
        log.topic("orders").truncate(0, 3)
        log.topic("ledger").truncate(0, 3)
    assert not closed_cleanly(tmp_path)
    check_served(tmp_path, [b"committed"], {})


def test_an_offline_truncation_that_leaves_nothing_open_is_closed_cleanly(tmp_path: Path) -> None:
    """So the next start opens no partition that nobody asks for."""
    fill(tmp_path, {})
    with cordwood.open(tmp_path) as log:
        log.topic("orders").truncate(0, 2)
        log.topic("ledger").truncate(0, 2)
    assert closed_cleanly(tmp_path)
    with Broker(tmp_path) as broker:
        with RawClient(broker.bootstrap) as client:
            # The states are loaded once a producer gets its id.
            RawTransactional(client).init()
        assert broker._node.directory.partitions.opened(*A) is None


def test_an_orphan_that_cannot_be_ended_at_start_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a full disk, once at start and once after it."""
    before, after = tmp_path / "before", tmp_path / "after"
    fill(before, {})
    cordwood.restore(before, after, to_offsets={(NAME, 0): 0})
    monkeypatch.setattr("cordwood.server.transactions.serving.RETRY_SECONDS", 0.01)
    append_marker, failures = Node.append_marker, [DiskFull("full"), DiskFull("full")]

    def fail_first(node: Node, topic: str, partition: int, marker: Marker) -> Any:
        if topic == "orders" and failures:
            raise failures.pop()
        return append_marker(node, topic, partition, marker)

    monkeypatch.setattr(Node, "append_marker", fail_first)
    with Broker(after) as broker:
        partitions = broker._node.directory.partitions
        until(lambda: not partitions.readable(*A).open_transactions(), "the orphan to be ended")
        assert not failures
        assert partitions.readable(*B).open_transactions() == []
    assert closed_cleanly(after)
