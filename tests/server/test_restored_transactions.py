"""D1, X1, X4: a restore brings back producers as they were at different moments, and confuses none of them.

A backup beside a server has `__transaction_state` and the catalogue of an earlier moment than the partitions.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.producing import Sent, encode
from support.serving import RawClient
from support.transactional import RawTransactional, create_topic, visible

import cordwood
from cordwood import Broker
from cordwood.broker.node import Node
from cordwood.broker.transactions.state_topic import NAME
from cordwood.config import load_broker_config
from cordwood.disk.posix import PosixFiles
from cordwood.errors import DiskFull, StorageError
from cordwood.formats import Marker
from cordwood.formats.batch import encode_records
from cordwood.protocol.apis import ApiKey
from cordwood.protocol.error_codes import ErrorCode
from cordwood.protocol.messages.produce import ProducePartition, ProduceRequest, ProduceTopic
from cordwood.protocol.messages.producers import InitProducerIdRequest
from cordwood.protocol.wire import NULL_ID
from cordwood.storage.backup.record import read_record
from cordwood.storage.backup.transfer import DirectoryTransfer
from cordwood.storage.directory import DataDirectory, Opening
from cordwood.storage.meta import SHARED_TOPIC, TopicEntry, was_closed_cleanly

A, B = ("orders", 0), ("ledger", 0)
STORAGE = {"own": {}, "shared": {"cordwood.storage": "shared"}}


@contextlib.contextmanager
def before_the_copy_of(topic: str, act: Callable[[], None]) -> Iterator[None]:
    """Have a backup stop for *act* before it copies *topic*."""
    copy_one = DirectoryTransfer._bring

    def bring(self: DirectoryTransfer, entry: TopicEntry, partition: int) -> Any:
        if entry.name == topic:
            act()
        return copy_one(self, entry, partition)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(DirectoryTransfer, "_bring", bring)
        yield


def copied_topic(config: dict[str, str]) -> str:
    return SHARED_TOPIC if config else "orders"


def run(client: RawClient, value: bytes) -> None:
    """Run a job from its beginning to its end: one transaction."""
    RawTransactional(client, "job").init().write([A], value).commit()


@pytest.mark.parametrize("config", STORAGE.values(), ids=STORAGE)
def test_a_commit_after_a_restore_is_not_taken_for_one_that_the_partition_has(
    tmp_path: Path, config: dict[str, str]
) -> None:
    """The job ran once more between the copy of its state and that of its partition."""
    with (
        Broker(tmp_path / "data", config=config) as broker,
        RawClient(broker.bootstrap) as client,
    ):
        create_topic(client, "orders")
        run(client, b"run 1")
        with before_the_copy_of(copied_topic(config), lambda: run(client, b"run 2")):
            cordwood.backup(tmp_path / "data", tmp_path / "saved")
    cordwood.restore(tmp_path / "saved", tmp_path / "new")
    with Broker(tmp_path / "new", config=config) as broker, RawClient(broker.bootstrap) as client:
        assert visible(broker, *A) == [b"run 1", b"run 2"]
        run(client, b"run 3")
        assert visible(broker, *A) == [b"run 1", b"run 2", b"run 3"]
    assert was_closed_cleanly(PosixFiles(), str(tmp_path / "new"))


def restored_states(path: Path, end: int) -> Path:
    """Restore the states to an earlier offset than the partitions."""
    cordwood.restore(path, path.parent / "new", to_offsets={(NAME, 0): end})
    return path.parent / "new"


def truncated_states(path: Path, end: int) -> Path:
    """Truncate the states while no server runs."""
    settings = load_broker_config(environment={})[0]
    opening = Opening(PosixFiles(), str(path), settings, create=False, mapped=False)
    with contextlib.closing(DataDirectory(opening)) as directory:
        directory.cutting.truncate(NAME, 0, end)
    return path


@pytest.mark.parametrize("lose", [restored_states, truncated_states])
def test_a_commit_after_states_were_lost_is_not_taken_for_one_that_the_partition_has(
    tmp_path: Path, lose: Callable[[Path, int], Path]
) -> None:
    with Broker(tmp_path / "data") as broker, RawClient(broker.bootstrap) as client:
        create_topic(client, "orders")
        run(client, b"run 1")
        end = broker._node.directory.partitions.readable(NAME, 0).log_end_offset
        run(client, b"run 2")
    with Broker(lose(tmp_path / "data", end)) as broker, RawClient(broker.bootstrap) as client:
        run(client, b"run 3")
        assert visible(broker, *A) == [b"run 1", b"run 2", b"run 3"]


def test_a_transaction_that_is_open_under_a_later_epoch_than_the_stored_one_is_ended(tmp_path: Path) -> None:
    """X4: the state is that of run 1, and the partition is in run 3."""
    with Broker(tmp_path / "data") as broker, RawClient(broker.bootstrap) as client:
        create_topic(client, "orders")
        RawTransactional(client, "job").init().write([A], b"run 1")

        def begin_again() -> None:
            for value in (b"run 2", b"run 3"):
                RawTransactional(client, "job").init().write([A], value)

        with before_the_copy_of("orders", begin_again):
            cordwood.backup(tmp_path / "data", tmp_path / "saved")
    cordwood.restore(tmp_path / "saved", tmp_path / "new")
    with Broker(tmp_path / "new") as broker, RawClient(broker.bootstrap) as client:
        again = RawTransactional(client, "job").init()
        log = broker._node.directory.partitions.readable(*A)
        assert log.open_transactions() == []
        assert log.last_stable_offset == log.high_watermark
        again.write([A], b"run 4").commit()
        RawTransactional(client, "other").init().write([A], b"other").commit()
        assert visible(broker, *A) == [b"run 4", b"other"]


def test_a_producer_that_was_ongoing_in_an_older_state_never_commits(tmp_path: Path) -> None:
    """X3: it was fenced before the partition was copied, and asks the restored server to commit."""
    with Broker(tmp_path / "data") as broker, RawClient(broker.bootstrap) as client:
        create_topic(client, "orders")
        fenced = RawTransactional(client, "job").init().write([A], b"fenced")
        with before_the_copy_of("orders", lambda: run(client, b"later")):
            cordwood.backup(tmp_path / "data", tmp_path / "saved")
    cordwood.restore(tmp_path / "saved", tmp_path / "new")
    with Broker(tmp_path / "new") as broker, RawClient(broker.bootstrap) as client:
        RawTransactional(client, "later").init()
        fenced.client = client
        assert fenced.try_end(committed=True) is not ErrorCode.NONE
        assert visible(broker, *A) == [b"later"]


def test_a_decision_that_is_carried_out_late_raises_the_epoch_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state says prepared, one partition has a later run, and the other one takes no marker at first."""
    append_marker, full = Node.append_marker, True

    def fail(node: Node, topic: str, partition: int, marker: Marker) -> Any:
        if topic == "ledger" and full:
            raise DiskFull("full")
        return append_marker(node, topic, partition, marker)

    with Broker(tmp_path / "data") as broker, RawClient(broker.bootstrap) as client:
        create_topic(client, "orders")
        create_topic(client, "ledger")
        job = RawTransactional(client, "job").init().write([A, B], b"run 1")
        with monkeypatch.context() as patched:
            patched.setattr("cordwood.server.transactions.serving.RETRY_SECONDS", 0.01)
            patched.setattr(Node, "append_marker", fail)
            assert job.try_end(committed=True) is ErrorCode.NONE
            # The ledger is copied before its marker is written, orders after it and after the next run.
            saved: list[Path] = []

            def finish() -> None:
                nonlocal full
                full = False
                job.wait_for("CompleteCommit")
                run(client, b"run 2")
                saved.append(tmp_path)

            copy_one = DirectoryTransfer.copy_all

            def copy_all(self: DirectoryTransfer) -> Any:
                self._topics = dict(sorted(self._topics.items(), key=lambda each: each[1].name))
                return copy_one(self)

            patched.setattr(DirectoryTransfer, "copy_all", copy_all)
            with before_the_copy_of("orders", finish):
                cordwood.backup(tmp_path / "data", tmp_path / "saved")
            assert saved
    cordwood.restore(tmp_path / "saved", tmp_path / "new")
    full = True
    monkeypatch.setattr("cordwood.server.transactions.serving.RETRY_SECONDS", 0.01)
    monkeypatch.setattr(Node, "append_marker", fail)
    with Broker(tmp_path / "new") as broker:
        assert broker._node.directory.partitions.readable(*B).open_transactions()
    assert not was_closed_cleanly(PosixFiles(), str(tmp_path / "new"))
    with Broker(tmp_path / "new") as broker, RawClient(broker.bootstrap) as client:
        full = False
        run(client, b"run 3")
        assert visible(broker, *A) == [b"run 1", b"run 2", b"run 3"]
        assert visible(broker, *B) == [b"run 1"]


def test_an_aborted_transaction_is_not_committed_by_a_later_one_whose_records_are_gone(
    tmp_path: Path,
) -> None:
    """X1: a partition was restored to before the end of a transaction, and the states to the next one."""
    with Broker(tmp_path / "data") as broker, RawClient(broker.bootstrap) as client:
        create_topic(client, "orders")
        create_topic(client, "ledger")
        RawTransactional(client, "job").init().write([A, B], b"aborted").abort()
        again = RawTransactional(client, "job").init().write([A, B], b"committed")
        with pytest.MonkeyPatch.context() as patched:

            def fail(*arguments: object) -> Any:
                raise StorageError("not now")

            patched.setattr(Node, "append_marker", fail)
            assert again.try_end(committed=True) is ErrorCode.NONE
            cordwood.backup(tmp_path / "data", tmp_path / "saved")
    cordwood.restore(tmp_path / "saved", tmp_path / "new", to_offsets={A: 1})
    with Broker(tmp_path / "new") as broker, RawClient(broker.bootstrap) as client:
        RawTransactional(client, "later").init()
        assert visible(broker, *B) == [b"committed"]
        assert visible(broker, *A) == []


# --- producer ids -----------------------------------------------------------------------------------------


def send_once(client: RawClient, value: bytes) -> None:
    """Begin as an idempotent producer without transactions, and send one record."""
    begun = client.ask(ApiKey.INIT_PRODUCER_ID, InitProducerIdRequest(transactional_id=None))
    assert begun.error_code == 0
    produce(client, encode(Sent(begun.producer_id, begun.producer_epoch, 0, (value,))))


def produce(client: RawClient, batch: bytearray) -> None:
    """Send one batch."""
    data = memoryview(batch)
    topic = ProduceTopic("orders", NULL_ID, [ProducePartition(0, data)])
    answer = client.ask(ApiKey.PRODUCE, ProduceRequest(None, -1, 10_000, [topic]), 9)
    assert answer.topics[0].partitions[0].error_code == 0


def interrupt(*arguments: object) -> Any:
    raise StorageError("interrupted")


@pytest.mark.parametrize("is_interrupted", [False, True])
@pytest.mark.parametrize("config", STORAGE.values(), ids=STORAGE)
def test_a_producer_after_a_restore_has_no_id_that_a_partition_knows(
    tmp_path: Path, config: dict[str, str], is_interrupted: bool
) -> None:
    """D1, O6: its first batch would be taken for that of the producer that had the id before."""
    data, saved = tmp_path / "data", tmp_path / "saved"
    with Broker(data, config=config) as broker, RawClient(broker.bootstrap) as client:
        create_topic(client, "orders")
        produce(client, encode_records([(None, b"first")], 1_000))
        cordwood.backup(data, saved)
        # The first ids of this server are reserved after the catalogue was copied.
        with before_the_copy_of(copied_topic(config), lambda: send_once(client, b"before")):
            if is_interrupted:
                with pytest.MonkeyPatch.context() as patched:
                    patched.setattr(DirectoryTransfer, "_reserve_producer_ids", interrupt)
                    with pytest.raises(StorageError):
                        cordwood.backup(data, saved)
            else:
                cordwood.backup(data, saved)
    record = read_record(PosixFiles(), str(saved))
    assert record is not None
    assert record.complete is not is_interrupted
    cordwood.restore(saved, tmp_path / "new")
    with Broker(tmp_path / "new", config=config) as broker, RawClient(broker.bootstrap) as client:
        assert visible(broker, *A) == [b"first", b"before"]
        send_once(client, b"after")
        assert visible(broker, *A) == [b"first", b"before", b"after"]
