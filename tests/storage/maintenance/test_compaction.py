"""Compaction: the last record of each key stays, at its offset, whatever happens beside it."""

from __future__ import annotations

import contextlib
import errno
import itertools
import random
from typing import Any

import pytest
from support.clocks import HookedFiles, ManualClock
from support.disks import FaultPlan, FaultyFiles, image
from support.logs import disk_of
from support.seeds import seeds_from
from support.sweeps import every

import cordwood
from cordwood.config.loading import TopicConfig, load_broker_config
from cordwood.disk.files import Files, read_file, write_all
from cordwood.disk.memory import MemoryFiles
from cordwood.embedded import Log, Topic
from cordwood.errors import CordwoodError, CorruptRange, OutOfSequence, RecordRefused
from cordwood.formats.batch import BatchOptions, encode_records
from cordwood.formats.native import BatchFormat
from cordwood.formats.receiving import BatchTerms
from cordwood.records import Record
from cordwood.storage.directory.data_directory import DataDirectory, Opening
from cordwood.storage.log.partition_log import PartitionLog
from cordwood.storage.log.state import SealedInfo
from cordwood.storage.maintenance.compaction_plan import group_segments, plan_compaction
from cordwood.verify import verify_directory

COMPACT = {"cleanup.policy": "compact", "segment.bytes": "600", "min.cleanable.dirty.ratio": "0"}
HOUR = 3_600_000
DATA = "/data"


@pytest.fixture
def disk() -> MemoryFiles:
    return MemoryFiles()


def fill(topic: Topic, rows: list[tuple[bytes, bytes | None]], batch: int = 3) -> None:
    for start in range(0, len(rows), batch):
        topic.append_many(rows[start : start + batch], partition=0)


def rows_of(count: int, keys: int, seed: int = 1) -> list[tuple[bytes, bytes | None]]:
    dice = random.Random(seed)
    return [(b"k%d" % dice.randrange(keys), b"value %d" % number) for number in range(count)]


def survivors(before: list[Record], sealed_end: int) -> list[Record]:
    """Return what compaction of everything below *sealed_end* leaves of *before*."""
    last = {record.key: record.offset for record in before if record.offset < sealed_end}
    return [r for r in before if r.offset >= sealed_end or r.key is None or last[r.key] == r.offset]


def read(topic: Topic, start: int = 0) -> list[Record]:
    return list(topic.read(0, start))


def sealed_end(log: Log, topic: str = "t") -> int:
    return log.data_directory.partitions.own(topic, 0).state.active_base


def segment_files(files: Files) -> list[str]:
    directory = f"{DATA}/topics/t/0/segments"
    return [f"{directory}/{name}" for name in sorted(files.list(directory)) if name.endswith(".log")]


def flip_bit(files: Files, path: str, position: int) -> None:
    with contextlib.closing(files.open(path, "write")) as file:
        (byte,) = file.read_at(position, 1)
        write_all(file, position, bytes([byte ^ 1]))


def check_sound(files: Files) -> None:
    report = verify_directory(files, DATA)
    assert report.sound, report.findings


def test_the_last_record_of_each_key_stays_at_its_offset(disk: MemoryFiles) -> None:
    with cordwood.open(DATA, files=disk) as log:
        topic = log.topic("t", config=COMPACT)
        fill(topic, rows_of(200, 20))
        topic.roll()
        fill(topic, rows_of(10, 20, seed=2))
        before = read(topic)
        (report,) = log.maintain().compacted
        after = read(topic)
        assert after == survivors(before, sealed_end(log))
        assert report.records_dropped == len(before) - len(after)
        assert report.bytes_after < report.bytes_before
        assert topic.high_watermark(0) == 210
        for offset in range(211):
            assert read(topic, offset) == [record for record in after if record.offset >= offset]
    check_sound(disk)
    with cordwood.open(DATA, files=disk) as log:
        assert read(log.topic("t")) == after
    with cordwood.open(DATA, files=disk, read_only=True) as log:
        assert read(log.topic("t")) == after


@pytest.mark.parametrize("seed", seeds_from(0, 6))
def test_any_run_of_appends_and_compactions_is_what_a_dictionary_says(disk: MemoryFiles, seed: int) -> None:
    """Batches of any size and compression cannot be had here; sizes, tombstones and restarts can."""
    dice = random.Random(seed)
    print(f"seed {seed}")
    clock = ManualClock()
    expected: dict[bytes, bytes | None] = {}
    log = cordwood.open(DATA, files=disk, clock=clock)
    topic = log.topic("t", config={**COMPACT, "delete.retention.ms": str(HOUR)})
    for _ in range(12):
        for _ in range(dice.randrange(1, 8)):
            rows: list[tuple[bytes, bytes | None]] = []
            for _ in range(dice.randrange(1, 9)):
                value = None if dice.random() < 0.2 else b"v%d" % dice.randrange(10**6)
                rows.append((b"k%d" % dice.randrange(12), value))
            topic.append_many(rows, partition=0)
            expected.update(rows)
        if dice.random() < 0.5:
            topic.roll()
        clock.advance(dice.randrange(HOUR))
        before = read(topic)
        report = log.maintain(force=True)
        assert report.failures == ()
        kept = read(topic)
        assert {r.offset for r in kept} <= {r.offset for r in before}
        state = {record.key: record.value for record in kept}
        assert {k: v for k, v in state.items() if v is not None} == {
            k: v for k, v in expected.items() if v is not None
        }
        if dice.random() < 0.4:
            log.close()
            check_sound(disk)
            log = cordwood.open(DATA, files=disk, clock=clock)
            topic = log.topic("t")
            assert read(topic) == kept
    log.close()
    check_sound(disk)


def test_a_tombstone_stays_for_delete_retention_and_then_goes(disk: MemoryFiles) -> None:
    clock = ManualClock()
    with cordwood.open(DATA, files=disk, clock=clock) as log:
        topic = log.topic("t", config={**COMPACT, "delete.retention.ms": str(HOUR)})
        topic.append(b"old", key=b"k")
        topic.append(None, key=b"k")
        topic.append(b"other", key=b"o")
        topic.roll()
        log.maintain()
        assert [(r.key, r.value) for r in read(topic)] == [(b"k", None), (b"o", b"other")]
        clock.advance(HOUR - 1)
        log.maintain()
        assert [r.key for r in read(topic)] == [b"k", b"o"]
        clock.advance(1)
        (report,) = log.maintain().compacted
        assert report.tombstones_dropped == 1
        assert [r.key for r in read(topic)] == [b"o"]
        assert log.maintain().compacted == ()


def test_a_log_whose_last_record_went_still_ends_where_it_ended(disk: MemoryFiles) -> None:
    """The shell of the last frame leads readers to the end."""
    clock = ManualClock()
    with cordwood.open(DATA, files=disk, clock=clock) as log:
        topic = log.topic("t", config={**COMPACT, "delete.retention.ms": "0"})
        topic.append(b"a", key=b"k")
        topic.append(None, key=b"k")
        topic.roll()
        log.maintain(force=True)
        clock.advance(1)
        log.maintain(force=True)
        assert read(topic) == []
        fetched = log.data_directory.partitions.own("t", 0).read(0, 1 << 20)
        assert fetched.next_offset == fetched.high_watermark == 2
        assert topic.append(b"b", key=b"k").offset == 2
        assert [r.value for r in read(topic)] == [b"b"]
    check_sound(disk)


def test_a_record_without_a_key_is_refused_and_one_that_is_there_survives(disk: MemoryFiles) -> None:
    with cordwood.open(DATA, files=disk) as log:
        topic = log.topic("t")
        topic.append_many([(None, b"plain"), (b"k", b"1"), (b"k", b"2")], partition=0)
        log.data_directory.topics.alter("t", config=COMPACT)
        with pytest.raises(RecordRefused, match="without a key"):
            topic.append(b"keyless")
        with pytest.raises(RecordRefused, match="without a key"):
            topic.append_many([(b"k", b"3"), (None, b"4")], partition=0)
        with pytest.raises(RecordRefused, match="without a key"):
            topic.append_stream([b"5"], partition=0)
        topic.roll()
        log.maintain()
        assert [r.value for r in read(topic)] == [b"plain", b"2"]


def test_keys_that_do_not_fit_the_map_take_several_passes(disk: MemoryFiles) -> None:
    """1,024 bytes are 32 slots, so 24 keys a pass."""
    rows = rows_of(400, 100)
    config, _ = load_broker_config({"log.cleaner.dedupe.buffer.size": "1024"}, environment={})
    log = Log(DataDirectory(Opening(disk, DATA, config)))
    topic = log.topic("t", config=COMPACT)
    fill(topic, rows)
    topic.roll()
    before = read(topic)
    (report,) = log.maintain().compacted
    assert report.passes > 3
    assert read(topic) == survivors(before, 400)
    log.close()
    check_sound(disk)


def test_damage_stops_compaction_before_anything_is_lost(disk: MemoryFiles) -> None:
    with cordwood.open(DATA, files=disk) as log:
        topic = log.topic("t", config=COMPACT)
        fill(topic, rows_of(60, 5))
        topic.roll()
    segments = segment_files(disk)
    flip_bit(disk, segments[1], 100)
    before = [read_file(disk, segment) for segment in segments]
    with cordwood.open(DATA, files=disk) as log:
        report = log.maintain()
        (failure,) = report.failures
        assert failure.startswith(f"partition 0 of topic t is not compacted: {segments[1]} at byte ")
        assert [read_file(disk, segment) for segment in segments] == before
        with pytest.raises(CorruptRange):
            read(log.topic("t"))


def test_a_reader_on_old_segments_sees_them_or_the_new_ones_and_each_survivor_once(disk: MemoryFiles) -> None:
    """C4: a reading that began before the compaction goes on through it, in order."""
    with cordwood.open(DATA, files=disk) as log:
        topic = log.topic("t", config=COMPACT)
        fill(topic, rows_of(300, 30))
        topic.roll()
        before = read(topic)
        kept = survivors(before, 300)
        for turn in (0, 1, 57, 150, 299):
            reading = topic.read(0, 0)
            beside = cordwood.open(DATA, files=disk, read_only=True)
            reading_beside = beside.topic("t").read(0, 0)
            seen = [next(reading) for _ in range(min(turn, 20))]
            seen_beside = [next(reading_beside) for _ in range(min(turn, 20))]
            log.maintain(force=True)
            for found, rest in ((seen, reading), (seen_beside, reading_beside)):
                found += rest
                offsets = [record.offset for record in found]
                assert offsets == sorted(set(offsets))
                assert {r.offset for r in kept} <= set(offsets)
            beside.close()


@pytest.mark.parametrize("later", [False, True])
def test_a_log_that_was_compacted_under_an_idempotent_producer_is_sound(
    disk: MemoryFiles, later: bool
) -> None:
    """What is known of a producer outlives its batches: compaction keeps the newest one only.

    *later*: batches that came after the snapshot made the one that it calls the newest dispensable too.
    """

    def send(log: PartitionLog, sequence: int) -> None:
        options = BatchOptions(producer_id=7, producer_epoch=0, base_sequence=sequence)
        log.append_received(
            BatchFormat().receive(
                memoryview(encode_records([(b"k%d" % (sequence % 2), b"v" * 150)], 1000, options)),
                BatchTerms(1 << 20),
            )
        )

    with cordwood.open(DATA, files=disk) as log:
        topic = log.topic("t", config=COMPACT)
        partition = log.data_directory.partitions.own("t", 0)
        for sequence in range(8):
            send(partition, sequence)
        topic.roll()
        topic.append(b"last", key=b"other")
    if later:
        saved = read_file(disk, f"{DATA}/topics/t/0/producers.json")
    with cordwood.open(DATA, files=disk) as log:
        partition = log.data_directory.partitions.own("t", 0)
        if later:
            for sequence in range(8, 12):
                send(partition, sequence)
            log.topic("t").roll()
        (report,) = log.maintain(force=True).compacted
        assert report.records_dropped
        assert partition.state.sealed[0].generation
    if later:
        disk.unlink(f"{DATA}/topics/t/0/producers.json")
        with contextlib.closing(disk.open(f"{DATA}/topics/t/0/producers.json", "create")) as file:
            write_all(file, 0, saved)
    assert b'"batches":[[3,3,3,4],[4,4,4,5],[5,5,5,6]' in read_file(disk, f"{DATA}/topics/t/0/producers.json")
    check_sound(disk)


def test_an_idempotent_producer_goes_on_after_its_records_were_compacted_away(disk: MemoryFiles) -> None:
    """O6: without the shell of its last batch, whoever learns the producers anew would not know it."""

    def send(log: PartitionLog, sequence: int, count: int) -> tuple[int, int]:
        options = BatchOptions(producer_id=7, producer_epoch=0, base_sequence=sequence)
        sent = encode_records([(b"k%d" % n, b"early") for n in range(count)], 1000, options)
        return log.append_received(BatchFormat().receive(memoryview(sent), BatchTerms(1 << 20)))[:2]

    with cordwood.open(DATA, files=disk) as log:
        partition = log.data_directory
        log.topic("t", config=COMPACT)
        send(partition.partitions.own("t", 0), 0, 2)
        send(partition.partitions.own("t", 0), 2, 1)
        topic = log.topic("t")
        topic.append_many([(b"k0", b"later"), (b"k1", b"later")], partition=0)
        topic.roll()
        log.maintain()
        assert {record.value for record in topic.read(0)} == {b"later"}
    if disk.exists(f"{DATA}/topics/t/0/producers.json"):
        disk.unlink(f"{DATA}/topics/t/0/producers.json")
    with cordwood.open(DATA, files=disk) as log:
        again = log.data_directory.partitions.own("t", 0)
        assert send(again, 2, 1) == (2, 3), "answered with the offsets of the original"
        with pytest.raises(OutOfSequence):
            send(again, 9, 1)
        assert send(again, 3, 1)[0] == again.log_end_offset - 1
    check_sound(disk)


def info(base: int, end: int, size: int = 100, **more: Any) -> SealedInfo:
    return SealedInfo(base, size, end, **more)


def test_planning_waits_for_enough_to_compact_and_for_lags() -> None:
    config = TopicConfig(cleanup_policy="compact", min_cleanable_dirty_ratio=0.5)
    sealed = [info(0, 10), info(10, 20), info(20, 30)]
    assert plan_compaction(sealed, 30, config, 0) is None
    assert plan_compaction(sealed, 20, config, 0) is None, "a third is dirty"
    found = plan_compaction(sealed, 10, config, 0)
    assert found is not None
    assert (found.dirty_from, found.end) == (10, 30)
    assert plan_compaction(sealed, 20, config, 0, force=True) is not None
    assert plan_compaction([], 0, config, 0, force=True) is None
    lagging = TopicConfig(cleanup_policy="compact", min_compaction_lag_ms=50)
    timed = [info(0, 10, appended_ms=100), info(10, 20, appended_ms=200)]
    found = plan_compaction(timed, 0, lagging, 200)
    assert found is not None
    assert found.end == 10
    assert plan_compaction(timed, 0, lagging, 120) is None
    unknown = [info(0, 10, max_timestamp=100)]
    assert plan_compaction(unknown, 0, lagging, 10**12) is None, "when it was appended is not known"
    overdue = TopicConfig(cleanup_policy="compact", max_compaction_lag_ms=50)
    opened = [info(0, 10, size=1000), info(10, 20, size=1, opened_ms=100)]
    assert plan_compaction(opened, 10, overdue, 150) is None
    assert plan_compaction(opened, 10, overdue, 151) is not None


def test_groups_are_no_larger_than_a_segment_and_waiting_tombstones_stay_alone() -> None:
    config = TopicConfig(cleanup_policy="compact", segment_bytes=250, delete_retention_ms=10)
    sealed = [info(n, n + 1) for n in range(5)]
    plan = plan_compaction(sealed, 0, config, 100, force=True)
    assert plan is not None
    assert [[i.base for i in group] for group in group_segments(plan, 5, config, 100)] == [
        [0, 1],
        [2, 3],
        [4],
    ]
    assert [[i.base for i in group] for group in group_segments(plan, 3, config, 100)] == [[0, 1], [2]]
    sealed[1] = info(1, 2, tombstones_since_ms=95)
    plan = plan_compaction(sealed, 0, config, 100, force=True)
    assert plan is not None
    groups = [[i.base for i in group] for group in group_segments(plan, 5, config, 100)]
    assert groups == [[0], [1], [2, 3], [4]]
    assert [[i.base for i in g] for g in group_segments(plan, 5, config, 105)] == [[0, 1], [2, 3], [4]]


@pytest.mark.parametrize("read_only", [False, True], ids=["by its writer", "beside it"])
def test_a_file_that_is_replaced_under_a_reading_never_makes_it_skip_a_survivor(read_only: bool) -> None:
    """C4. A compacted segment is compacted again just before a reader of the old one opens its file.

    Frames of the new file may lie exactly where the index of the old one leads, further on in the log.
    """
    swapped = 0
    for keys, start in itertools.product(range(2, 10), range(0, 40, 4)):
        disk = MemoryFiles()
        with cordwood.open(DATA, files=disk) as log:
            fill_twice(log, keys)
            expected = {r.offset for r in survivors(read(log.topic("t")), 50) if r.offset >= start}
        hooked = HookedFiles(disk)
        writer = cordwood.open(DATA, files=disk if read_only else hooked)
        reader = cordwood.open(DATA, files=hooked, read_only=True) if read_only else writer
        met: list[str] = []

        def compact(kind: str, path: str, writer: Log = writer, met: list[str] = met) -> None:
            if kind == "open" and path.endswith(f"{0:020d}.log") and not met:
                met.append(path)
                writer.maintain(force=True)

        topic = reader.topic("t")
        hooked.before = compact
        found = [record.offset for record in topic.read(0, start)]
        hooked.before = lambda kind, path: None
        swapped += len(met)
        assert found == sorted(set(found))
        assert expected <= set(found), f"{keys} keys, from offset {start}"
        writer.close()
        reader.close()
    print(f"{swapped} readings met a swap")
    assert swapped >= 70


def fill_twice(log: Log, keys: int) -> None:
    """One segment that was compacted, and one after it that supersedes some of what is left there.

    Frames have one size and all are indexed: whatever goes, the next ones move to where others were.
    """
    topic = log.topic("t", config={**COMPACT, "segment.bytes": "100000", "index.interval.bytes": "0"})
    for number in range(40):
        topic.append(b"%04d" % number, key=b"%02d" % (number % keys if number < 20 else number))
    topic.roll()
    log.maintain(force=True)
    for number in range(10):
        topic.append(b"late", key=b"%02d" % (20 + 2 * number))
    topic.roll()


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC], ids=["EIO", "ENOSPC"])
@pytest.mark.parametrize("forever", [False, True], ids=["once", "for ever"])
def test_whatever_call_fails_no_survivor_is_lost_and_the_next_opening_goes_on(
    error: int, forever: bool
) -> None:
    """Calls to the disk during upkeep fail, one after the other; only errors of ours come of it.

    Each way of failing meets other calls, so that all are met. With `CORDWOOD_SWEEP_FULL=1` each meets all.
    """
    made = MemoryFiles()
    with cordwood.open(DATA, files=made) as log:
        topic = log.topic("t", config={**COMPACT, "retention.bytes": "3000"})
        fill(topic, rows_of(40, 6))
        topic.roll()
        fill(topic, rows_of(3, 6, seed=9))
        expected = survivors(read(topic), 40)
    left, cases = image(made, DATA), 0
    for n in itertools.count(1 + (2 * forever + (error == errno.EIO)) % every(4), every(4)):
        disk = disk_of(left)
        faulty = FaultyFiles(disk)
        log = cordwood.open(DATA, files=faulty)
        topic = log.topic("t")
        read(topic)
        faulty.plan(FaultPlan(n, error=error, forever=forever))
        with contextlib.suppress(CordwoodError):
            log.maintain(force=True)
        failed = faulty.failures
        faulty.heal()
        with contextlib.suppress(CordwoodError):
            log.close()
        with cordwood.open(DATA, files=disk) as again:
            found = read(again.topic("t"))
            assert {r.offset for r in expected} <= {r.offset for r in found}, f"call {n}"
            assert again.maintain(force=True).failures == ()
            assert read(again.topic("t")) == expected, f"call {n}"
        check_sound(disk)
        if not failed:
            break
        cases += 1
    print(f"{cases} of {n - 1} calls failed")
    assert n > 40
