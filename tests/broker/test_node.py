"""A broker without its sockets: appending, looking without reading, ids for producers."""

from __future__ import annotations

import errno
import threading

import pytest
from broker.nodes import BreakableFiles, batch_of, node_on, open_on, values_of
from support.clocks import ManualClock
from support.disks import image
from support.logs import disk_of

from cordwood.broker.fetching import PartitionFetch
from cordwood.broker.node import PRODUCER_ID_BLOCK, Node
from cordwood.disk.memory import MemoryFiles
from cordwood.errors import (
    ChecksumMismatch,
    DirectoryLocked,
    DiskFull,
    FrameTooLarge,
    InvalidBatch,
    LogClosed,
    OutOfSequence,
    ProducerFenced,
    UnknownTopic,
)


@pytest.fixture
def files() -> BreakableFiles:
    return BreakableFiles()


@pytest.fixture
def node(files: BreakableFiles) -> Node:
    node = node_on(files, clock=ManualClock())
    node.topics.create("orders", 2)
    return node


# --- Appending -------------------------------------------------------------------------------------


def test_an_append_is_placed_behind_the_last_and_visible_once_committed(node: Node) -> None:
    first = node.append("orders", 0, batch_of(b"a", b"b"))
    second = node.append("orders", 0, batch_of(b"c"))
    assert (first.base_offset, first.next_offset, second.base_offset) == (0, 2, 2)
    assert first.append_timestamp == -1
    assert values_of(node, "orders") == []
    second.log.commit()
    assert values_of(node, "orders") == [b"a", b"b", b"c"]
    assert node.append("orders", 1, batch_of(b"d")).base_offset == 0


def test_where_the_broker_stamps_records_the_client_is_told_the_time() -> None:
    clock = ManualClock(now_ms=5_000)
    with open_on(MemoryFiles(), clock=clock) as node:
        node.topics.create("orders", 1, {"message.timestamp.type": "LogAppendTime"})
        assert node.append("orders", 0, batch_of(b"a", timestamp=1)).append_timestamp == 5_000


@pytest.mark.parametrize(("topic", "partition"), [("nothing", 0), ("orders", 2), ("orders", -1), ("..", 0)])
def test_there_is_nothing_to_append_to_that_was_not_created(node: Node, topic: str, partition: int) -> None:
    with pytest.raises(UnknownTopic):
        node.append(topic, partition, batch_of(b"value"))


def test_a_batch_that_is_not_one_is_refused_and_the_next_is_taken(node: Node) -> None:
    wrong = batch_of(b"value")
    wrong[-1] ^= 0xFF
    with pytest.raises(ChecksumMismatch):
        node.append("orders", 0, wrong)
    with pytest.raises(InvalidBatch):
        node.append("orders", 0, memoryview(bytearray(b"".join([batch_of(b"one"), batch_of(b"two")]))))
    node.topics.create("short", 1, {"max.message.bytes": "100"})
    with pytest.raises(FrameTooLarge):
        node.append("short", 0, batch_of(b"x" * 100))
    assert node.append("orders", 0, batch_of(b"value")).base_offset == 0


def test_a_repeated_batch_of_a_producer_has_the_place_of_the_original(node: Node) -> None:
    first = node.append("orders", 0, batch_of(b"a", b"b", producer=(7, 0, 0)))
    again = node.append("orders", 0, batch_of(b"a", b"b", producer=(7, 0, 0)))
    assert again == first
    with pytest.raises(OutOfSequence):
        node.append("orders", 0, batch_of(b"d", producer=(7, 0, 3)))
    node.append("orders", 0, batch_of(b"e", producer=(7, 1, 0)))
    with pytest.raises(ProducerFenced):
        node.append("orders", 0, batch_of(b"c", producer=(7, 0, 2)))
    first.log.commit()
    assert values_of(node, "orders") == [b"a", b"b", b"e"]


def test_a_full_disk_refuses_an_append_whole_and_takes_it_again_later(
    node: Node, files: BreakableFiles
) -> None:
    node.append("orders", 0, batch_of(b"before"))
    files.fail("write", code=errno.ENOSPC)
    with pytest.raises(DiskFull):
        node.append("orders", 0, batch_of(b"refused"))
    files.heal()
    node.append("orders", 0, batch_of(b"after")).log.commit()
    assert values_of(node, "orders") == [b"before", b"after"]


def test_closing_makes_everything_durable_and_then_refuses(node: Node, files: BreakableFiles) -> None:
    node.append("orders", 0, batch_of(b"value"))
    assert node.directory.partitions.opened_logs()
    node.directory.close()
    with pytest.raises(LogClosed):
        node.append("orders", 0, batch_of(b"late"))
    with open_on(files) as again:
        assert values_of(again, "orders") == [b"value"]


def test_who_finds_the_directory_locked_is_told_what_its_holder_said_last(
    node: Node, files: BreakableFiles
) -> None:
    node.directory.describe("pid 7 on there, listening on here:9092")
    with pytest.raises(DirectoryLocked, match="pid 7 on there, listening on here:9092"):
        node_on(files)


# --- Looking without reading -----------------------------------------------------------------------


def wishes(*offsets: int) -> list[PartitionFetch]:
    return [PartitionFetch("orders", partition, offset, 100) for partition, offset in enumerate(offsets)]


def test_a_peek_finds_nothing_where_there_is_nothing_and_touches_no_disk(
    node: Node, files: BreakableFiles
) -> None:
    for partition in (0, 1):
        node.append("orders", partition, batch_of(b"value")).log.commit()
    calls = len(files.calls)
    nothing = node.peek(wishes(1, 1))
    assert nothing is not None
    assert (nothing.size, nothing.failed) == (0, False)
    assert [(got.high_watermark, got.log_start_offset) for got in nothing.each] == [(1, 0), (1, 0)]
    assert len(files.calls) == calls
    assert nothing == node.read(wishes(1, 1), 100)


@pytest.mark.parametrize("offsets", [(1, 0), (0, 1), (1, 2), (-1, 1)])
def test_a_peek_leaves_everything_else_to_a_reading(node: Node, offsets: tuple[int, ...]) -> None:
    for partition in (0, 1):
        node.append("orders", partition, batch_of(b"value")).log.commit()
    assert node.peek(wishes(*offsets)) is None


def test_a_partition_that_is_not_open_is_left_to_a_reading(node: Node) -> None:
    """Opening it may mean recovery, which belongs on no event loop."""
    assert node.peek(wishes(0)) is None
    assert node.peek([PartitionFetch("nothing", 0, 0, 100)]) is None


def test_what_is_not_durable_is_not_seen_by_a_peek(node: Node) -> None:
    placed = node.append("orders", 0, batch_of(b"value"))
    assert node.peek(wishes(0)) is not None
    placed.log.commit()
    assert node.peek(wishes(0)) is None


# --- Ids for producers -----------------------------------------------------------------------------


def test_ids_are_distinct_over_clean_and_unclean_ends() -> None:
    files = MemoryFiles()
    given: list[int] = []
    for crash in (False, True, False, True):
        node = node_on(files)
        given += [node.new_producer_id() for _ in range(PRODUCER_ID_BLOCK + 3)]
        if crash:
            # As after a kill: another process finds the directory as it is, and the lock gone.
            files = disk_of(image(files, "/"))
        else:
            node.directory.close()
    assert len(set(given)) == len(given) == 4 * (PRODUCER_ID_BLOCK + 3)
    assert min(given) >= 0


def test_ids_given_to_many_threads_are_distinct(node: Node) -> None:
    given: list[int] = []
    start = threading.Barrier(8)

    def take() -> None:
        start.wait()
        given.extend([node.new_producer_id() for _ in range(500)])

    threads = [threading.Thread(target=take) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(given)) == len(given) == 8 * 500


def test_a_block_of_ids_costs_one_sync(node: Node, files: BreakableFiles) -> None:
    node.new_producer_id()
    before = files.calls.count("sync")
    for _ in range(PRODUCER_ID_BLOCK - 1):
        node.new_producer_id()
    assert files.calls.count("sync") == before
    node.new_producer_id()
    assert files.calls.count("sync") == before + 1


def test_no_id_is_given_that_could_not_be_reserved(node: Node, files: BreakableFiles) -> None:
    files.fail("write", code=errno.ENOSPC)
    for _ in range(2):
        with pytest.raises(DiskFull):
            node.new_producer_id()
    files.heal()
    first = node.new_producer_id()
    assert node.new_producer_id() == first + 1
