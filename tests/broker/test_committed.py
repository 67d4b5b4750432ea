"""Committed offsets read from the log of the internal topic, with its transactions and their ends."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from broker.nodes import open_on
from support.log_transactions import LogTransactions

from cordwood.broker import CommittedOffsets
from cordwood.broker.groups import NAME, Committed, Coordinator, GroupLimits
from cordwood.broker.node import Node
from cordwood.disk.memory import MemoryFiles

GROUP = "g"
ORDERS, PAYMENTS = ("orders", 0), ("payments", 0)


@pytest.fixture
def files() -> MemoryFiles:
    return MemoryFiles()


@pytest.fixture
def node(files: MemoryFiles) -> Iterator[Node]:
    with open_on(files) as node:
        node.topics.ensure_internal()
        yield node


class OffsetsLog:
    """Appends commits of one group to the log of the internal topic."""

    def __init__(self, node: Node) -> None:
        self.log = LogTransactions(node.directory.partitions.writable(NAME, 0))
        self._coordinator = Coordinator(GroupLimits(), str)

    def commit(self, place: tuple[str, int], offset: int, producer_id: int | None = None) -> None:
        rows = self._coordinator.rows_to_commit(GROUP, {place: Committed(offset, -1, "", 0)})
        self.log.append_rows(rows, producer_id)

    def delete(self, place: tuple[str, int]) -> None:
        ((key, _),) = self._coordinator.rows_to_commit(GROUP, {place: Committed(0, -1, "", 0)})
        self.log.append_rows([(key, None)])


def loaded(node: Node) -> Coordinator:
    coordinator = Coordinator(GroupLimits(), str)
    assert coordinator.load_stored(node.read_offsets_topic(), 0) == 0
    return coordinator


def found(node: Node) -> dict[tuple[str, int], int]:
    return {place: each.offset for place, each in loaded(node).offsets(GROUP).items()}


def test_only_committed_transactions_change_offsets(node: Node) -> None:
    offsets = OffsetsLog(node)
    offsets.commit(ORDERS, 1)
    offsets.commit(ORDERS, 2, producer_id=7)
    offsets.commit(PAYMENTS, 3, producer_id=8)
    assert found(node) == {ORDERS: 1}
    offsets.log.commit(7)
    offsets.log.abort(8)
    assert found(node) == {ORDERS: 2}
    assert not loaded(node).is_pending(GROUP, PAYMENTS)


def test_commits_behind_an_open_transaction_count(node: Node) -> None:
    """Groups that have nothing to do with it must not start where they were before it began."""
    offsets = OffsetsLog(node)
    offsets.commit(ORDERS, 1, producer_id=7)
    offsets.commit(PAYMENTS, 2)
    coordinator = loaded(node)
    assert coordinator.is_pending(GROUP, ORDERS)
    assert {place: each.offset for place, each in coordinator.offsets(GROUP).items()} == {PAYMENTS: 2}


def test_a_tombstone_deletes_what_the_open_transaction_would_commit(node: Node) -> None:
    offsets = OffsetsLog(node)
    offsets.commit(ORDERS, 1, producer_id=7)
    offsets.delete(ORDERS)
    offsets.log.commit(7)
    assert found(node) == {}


def test_without_a_coordinator_retention_waits_for_committed_and_pending_offsets(node: Node) -> None:
    offsets = OffsetsLog(node)
    offsets.commit(ORDERS, 9)
    offsets.commit(ORDERS, 4, producer_id=7)
    offsets.commit(PAYMENTS, 2, producer_id=8)
    offsets.log.abort(8)
    committed = CommittedOffsets(node.read_offsets_topic)
    assert committed.needed_from(*ORDERS) == 4
    assert committed.needed_from(*PAYMENTS) is None
