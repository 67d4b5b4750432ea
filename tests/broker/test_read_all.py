"""Reading many partitions within one limit: whole batches, the first one always, damage only where it is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import cast

import pytest
from broker.nodes import EVERYTHING, batch_of, open_on, values_in

from cordwood.broker.fetching import FetchResult, Got, PartitionFetch, read_all
from cordwood.broker.node import Node
from cordwood.disk.files import join
from cordwood.disk.memory import MemoryFiles
from cordwood.errors import CorruptRange, LogFailed, OffsetOutOfRange, UnknownTopic
from cordwood.storage.log import ServedPartition
from cordwood.storage.log.reading import Fetched

BATCHES = 4
PARTITIONS = 3
VALUE = b"x" * 500
BATCH_BYTES = len(batch_of(VALUE))


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    """A node with partitions of equal batches, read and never written to."""
    with open_on(MemoryFiles()) as node:
        node.topics.create("orders", PARTITIONS + 1)
        for partition in range(PARTITIONS):
            for _ in range(BATCHES):
                placed = node.append("orders", partition, batch_of(VALUE))
            placed.log.commit()
        yield node


def wish(partition: int, offset: int = 0, max_bytes: int = EVERYTHING) -> PartitionFetch:
    return PartitionFetch("orders", partition, offset, max_bytes)


def counts(result: FetchResult) -> list[int]:
    """Return how many batches came of each wish."""
    assert result.size == sum(got.size for got in result.each)
    assert result.failed == any(got.error is not None for got in result.each)
    return [len(values_in(got.frames)) for got in result.each]


def test_everything_comes_in_the_order_of_the_wishes(node: Node) -> None:
    result = node.read([wish(2), wish(0, 1), wish(1, 3)], EVERYTHING)
    assert counts(result) == [4, 3, 1]
    assert all((got.high_watermark, got.log_start_offset) == (BATCHES, 0) for got in result.each)


@pytest.mark.parametrize("allowed", range(1, BATCHES * PARTITIONS + 2))
def test_the_limit_holds_over_all_partitions_and_the_first_take_it_up(node: Node, allowed: int) -> None:
    for slack in (0, BATCH_BYTES - 1):
        result = node.read(
            [wish(partition) for partition in range(PARTITIONS)], allowed * BATCH_BYTES + slack
        )
        expected = [max(min(allowed - before, BATCHES), 0) for before in (0, 4, 8)]
        assert counts(result) == expected
        # What is empty for lack of room still says where the partition stands.
        assert {(got.high_watermark, got.log_start_offset) for got in result.each} == {(BATCHES, 0)}


@pytest.mark.parametrize("limit", [0, 1, BATCH_BYTES - 1, -1])
def test_the_first_batch_comes_whole_however_small_the_limits(node: Node, limit: int) -> None:
    """A consumer would otherwise ask for it for ever."""
    assert counts(node.read([wish(0), wish(1)], limit)) == [1, 0]
    assert counts(node.read([wish(0, max_bytes=limit), wish(1, max_bytes=limit)], EVERYTHING)) == [1, 0]


def test_the_first_batch_there_is_may_be_of_a_later_partition(node: Node) -> None:
    """Partitions at their end, never used, or not readable do not use up the rule."""
    wishes = [wish(0, BATCHES), wish(PARTITIONS), wish(9), wish(0, 77), wish(2), wish(1)]
    assert counts(node.read(wishes, 1)) == [0, 0, 0, 0, 1, 0]


def test_the_limit_of_a_partition_holds_beside_that_of_all(node: Node) -> None:
    wishes = [wish(0, 0, 2 * BATCH_BYTES), wish(1, 0, 3 * BATCH_BYTES), wish(2)]
    assert counts(node.read(wishes, EVERYTHING)) == [2, 3, 4]
    assert counts(node.read(wishes, 4 * BATCH_BYTES)) == [2, 2, 0]


def test_an_offset_within_a_batch_returns_the_whole_batch() -> None:
    with open_on(MemoryFiles()) as node:
        node.topics.create("orders")
        node.append("orders", 0, batch_of(b"a", b"b", b"c")).log.commit()
        (got,) = node.read([wish(0, 2)], EVERYTHING).each
        assert values_in(got.frames) == [b"a", b"b", b"c"]


@pytest.mark.parametrize("offset", [-1, BATCHES + 1, 1 << 40])
def test_an_offset_outside_says_what_the_bounds_are(node: Node, offset: int) -> None:
    result = node.read([wish(0, offset), wish(1)], EVERYTHING)
    assert counts(result) == [0, 4]
    got = result.each[0]
    assert isinstance(got.error, OffsetOutOfRange)
    assert (got.log_start_offset, got.high_watermark) == (0, BATCHES)


def test_unknown_topics_and_partitions_do_not_hide_others(node: Node) -> None:
    result = node.read([PartitionFetch("nothing", 0, 0, 100), wish(PARTITIONS + 1), wish(0)], EVERYTHING)
    assert [type(got.error) for got in result.each] == [UnknownTopic, UnknownTopic, type(None)]
    assert counts(result) == [0, 0, 4]


def test_a_damaged_partition_is_refused_at_the_damage_and_served_around_it() -> None:
    files = MemoryFiles()
    with open_on(files) as node:
        node.topics.create("orders", 2)
        for partition in (0, 1):
            for number in range(BATCHES):
                placed = node.append("orders", partition, batch_of(b"%d" % number))
            placed.log.commit()
        size = placed.log.size() // BATCHES
        file = files.open(join(placed.log.directory, "segments", f"{0:020d}.log"), "write")
        file.write_at(2 * size - 1, [b"\xff"])
        # The damaged batch is the second of partition 1: offset 1.
        result = node.read([wish(1, 1), wish(0)], EVERYTHING)
        assert isinstance(result.each[0].error, CorruptRange)
        assert (result.each[0].high_watermark, result.each[0].log_start_offset) == (BATCHES, 0)
        assert counts(result) == [0, BATCHES]
        assert counts(node.read([wish(1, 0)], EVERYTHING)) == [1]
        assert counts(node.read([wish(1, 2)], EVERYTHING)) == [2]


# --- Partitions that misbehave ---------------------------------------------------------------------


@dataclass
class Scripted:
    """A partition that notes what it is asked for and answers as told."""

    error: Exception | None = None
    asked: list[tuple[int, int]] = field(default_factory=list)
    log_start_offset: int = 0
    high_watermark: int = 10
    last_stable_offset: int = 10
    standing: tuple[int, int, int] = (10, 0, 10)
    leader_epoch: int = 0

    def read(self, offset: int, max_bytes: int, *, committed: bool) -> Fetched:
        self.asked.append((offset, max_bytes))
        if self.error is not None:
            raise self.error
        raise AssertionError("not to be read")


def test_a_failed_log_says_where_it_stood_and_the_next_is_read(node: Node) -> None:
    failed = Scripted(error=LogFailed("sync failed"))

    def find(topic: str, partition: int) -> ServedPartition:
        return (
            cast("ServedPartition", failed) if partition == 9 else node.directory.readable(topic, partition)
        )

    result = read_all(find, [wish(9, 3), wish(0)], EVERYTHING)
    assert result.each[0] == Got((), 10, 0, failed.error, 10)
    assert counts(result) == [0, 4]


def test_a_partition_at_its_end_or_without_room_is_not_read_at_all(node: Node) -> None:
    """Most partitions of a long poll are at their end, and asking the disk about them would be most of it."""
    untouched = Scripted()

    def find(topic: str, partition: int) -> ServedPartition:
        return (
            cast("ServedPartition", untouched)
            if partition == 9
            else node.directory.readable(topic, partition)
        )

    at_its_end, no_room = read_all(find, [wish(9, 10), wish(0), wish(9, 3)], 1).each[::2]
    assert at_its_end == no_room == Got((), 10, 0, None, 10)
    assert untouched.asked == []
