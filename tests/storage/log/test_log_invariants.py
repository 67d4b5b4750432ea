"""Invariants of the classes of a partition log: each planted fault is seen by the next ordinary call."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from support.logs import open_log

from cordwood.disk.memory import MemoryFiles
from cordwood.formats import ProducerStamp
from cordwood.storage.log import PartitionLog, Producers
from cordwood.storage.log.append_meter import REPORT_EVERY, AppendMeter
from cordwood.storage.log.file_cache import CheckedRanges, LoadedIndexes, OpenFiles
from cordwood.storage.log.group_commit import GroupCommit
from cordwood.storage.log.producers import ProducerKeeper
from cordwood.telemetry import Telemetry

Plant = Callable[[PartitionLog], None]


@pytest.fixture
def log() -> PartitionLog:
    """A partition with two sealed segments and records in the active one."""
    opened = open_log(MemoryFiles())
    topic = opened.topic("t")
    for number in range(6):
        topic.append(b"%d" % number)
        if number % 2:
            topic.roll()
    topic.append(b"last")
    # Not closed: the planted state would fail that too.
    return opened.data_directory.partitions.own("t", 0)


def append(log: PartitionLog) -> None:
    log.append([(None, b"more")])


def readers_see_more_than_was_written(log: PartitionLog) -> None:
    log.view = log.view._replace(high_watermark=log.end.next_offset + 5)


def readers_see_bytes_that_were_not_written(log: PartitionLog) -> None:
    log.view = log.view._replace(position=log.end.position + 1000)


def readers_miss_a_segment(log: PartitionLog) -> None:
    log.view = log.view._replace(segments=log.view.segments[1:])


def readers_see_another_active_segment(log: PartitionLog) -> None:
    segments = log.view.segments
    log.view = log.view._replace(segments=(*segments[:-1], segments[0]))


def more_is_synced_than_was_written(log: PartitionLog) -> None:
    log.syncs.synced_offset += 100


ENDS: list[Plant] = [
    readers_see_more_than_was_written,
    readers_see_bytes_that_were_not_written,
    more_is_synced_than_was_written,
]


@pytest.mark.parametrize("plant", ENDS)
def test_a_log_whose_parts_disagree_is_caught_by_its_next_append(log: PartitionLog, plant: Plant) -> None:
    append(log)
    plant(log)
    with pytest.raises(AssertionError):
        append(log)


@pytest.mark.parametrize("plant", [*ENDS, readers_miss_a_segment, readers_see_another_active_segment])
def test_a_log_whose_parts_disagree_is_caught_by_its_next_change(log: PartitionLog, plant: Plant) -> None:
    """The shape of all changes checks the whole log, so one change stands for all."""
    noted = msgspec.structs.replace(log.state.sealed[0], tombstones_since_ms=7)
    plant(log)
    with pytest.raises(AssertionError):
        log.note_sealed({noted.base: noted})


def test_a_note_about_a_segment_that_was_replaced_meanwhile_is_ignored(log: PartitionLog) -> None:
    """Compaction looks at a segment, a truncation and appends put another one in its place, then it notes."""
    first = log.state.sealed[1]
    stale = msgspec.structs.replace(first, tombstones_since_ms=7)
    log.truncate(first.base + 1)
    log.roll()
    before = log.state
    assert before.sealed[1].base == first.base
    log.note_sealed({first.base: stale})
    assert log.state is before
    fresh = msgspec.structs.replace(before.sealed[1], tombstones_since_ms=7)
    log.note_sealed({fresh.base: fresh})
    assert log.state.sealed[1] == log.view.segments[1].info == fresh


def test_an_active_segment_with_bytes_and_no_offsets_is_caught(log: PartitionLog) -> None:
    log.active.next_offset = log.active.base
    with pytest.raises(AssertionError, match="offsets"):
        log.active.check_invariants()


def test_a_mark_beyond_the_last_byte_is_caught_before_it_is_written(log: PartitionLog) -> None:
    with pytest.raises(AssertionError, match="beyond the last byte"):
        log.move_mark(log.end._replace(position=log.active.store.end + 1))


def test_a_right_to_sync_that_is_given_back_twice_is_caught() -> None:
    commit = GroupCommit(0)
    with pytest.raises(AssertionError, match="twice"), commit.exclusively():
        commit._let_go()


def test_a_wrong_count_of_waiting_threads_is_caught() -> None:
    commit = GroupCommit(0)
    commit._waiting = -1
    with pytest.raises(AssertionError, match="stopped waiting"), commit.exclusively():
        pass


def test_a_wrong_count_of_followers_is_caught(log: PartitionLog) -> None:
    log.followers = -1
    with pytest.raises(AssertionError, match="stopped waiting"):
        log.wait_beyond(0)


def test_checked_ranges_that_touch_or_have_no_end_are_caught() -> None:
    ranges = CheckedRanges()
    ranges.add(0, 10)
    ranges.add(20, 30)
    ranges._ends.pop()
    with pytest.raises(AssertionError, match="no end"):
        ranges.add(12, 15)
    ranges._ends.append(20)
    ranges.check_invariants(1)
    ranges._ends[1] = 20
    with pytest.raises(AssertionError, match="touch"):
        ranges.check_invariants(1)


class Held:
    """A holder of indexes that keeps them."""

    def forget_indexes(self) -> None:
        """Do nothing."""


def test_more_indexes_than_allowed_are_caught() -> None:
    loaded = LoadedIndexes(2)
    for number in range(5):
        loaded._loaded[number] = Held()
    with pytest.raises(AssertionError, match="too many indexes"):
        loaded.forget(0)


def test_more_open_files_than_allowed_are_caught(log: PartitionLog) -> None:
    files = OpenFiles(MemoryFiles(), mapped=False, limit=1)
    for number in range(2):
        files._open[number] = memoryview(b"")
    with pytest.raises(AssertionError, match="too many files"):
        files.check_invariants()


def test_a_producer_under_another_id_is_caught() -> None:
    producers = Producers()
    producers.note(ProducerStamp(7, 0, 0, 0), 0, 1, 0)
    producers._known[8] = producers._known[7]
    with pytest.raises(AssertionError, match="another id"):
        producers.check_invariants(8)


def test_too_many_batches_of_a_producer_are_caught() -> None:
    producers = Producers()
    for number in range(5):
        producers.note(ProducerStamp(7, 0, number, number), number, number + 1, 0)
    known = producers._known[7]
    producers._known[7] = type(known)(known.id, known.epoch, known.batches * 2, known.seen_ms)
    with pytest.raises(AssertionError, match="too many"):
        producers.check_invariants(7)


def test_a_snapshot_of_producers_beyond_the_log_end_is_caught(log: PartitionLog) -> None:
    keeper: ProducerKeeper = log.known_producers
    keeper._opened_offset = log.end.next_offset + 1
    with pytest.raises(AssertionError, match="beyond the log end"):
        keeper.check_invariants(log.end.next_offset)


def test_appends_that_are_not_passed_on_are_caught() -> None:
    meter = AppendMeter(Telemetry())
    meter.report = lambda: None  # type: ignore[method-assign]
    for _ in range(REPORT_EVERY - 1):
        meter.note(1, 1, 1)
    with pytest.raises(AssertionError, match="not passed on"):
        meter.note(1, 1, 1)
