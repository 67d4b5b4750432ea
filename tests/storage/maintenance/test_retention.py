"""Retention: what goes, why, and what never does."""

from __future__ import annotations

import json
from typing import get_args

import pytest
from msgspec.structs import replace
from support.clocks import ManualClock
from support.disks import image
from support.logs import disk_of

import cordwood
from cordwood.cli.backends.files import FilesBackend
from cordwood.config.loading import TopicConfig
from cordwood.config.topic import RecordFormat
from cordwood.disk.files import read_file, write_atomically
from cordwood.disk.mark import Mark, decode_slots, encode_slot
from cordwood.disk.memory import MemoryFiles
from cordwood.embedded import Log
from cordwood.errors import InvalidSetting
from cordwood.storage.chain.chains import kept_chain
from cordwood.storage.log.active_segment import must_seal
from cordwood.storage.log.state import SealedInfo, read_state, write_state
from cordwood.storage.maintenance.checkpoint import checkpoint_path
from cordwood.storage.maintenance.retention import Expiry, expired_segments
from cordwood.telemetry import CHECKPOINT_CORRUPTIONS
from cordwood.verify import verify_directory

DATA = "/data"
FORMATS = get_args(RecordFormat)
SEGMENT = 100


def sealed(*times: int) -> list[SealedInfo]:
    """Segments of ten offsets and a hundred bytes with these times of their last append."""
    return [
        SealedInfo(10 * n, SEGMENT, 10 * n + 10, max_timestamp=0, sealed_ms=10**9, appended_ms=time)
        for n, time in enumerate(times)
    ]


def stamped(max_timestamp: int, sealed_ms: int, appended_ms: int = -1) -> list[SealedInfo]:
    """One segment with these times."""
    return [
        SealedInfo(0, SEGMENT, 10, max_timestamp=max_timestamp, sealed_ms=sealed_ms, appended_ms=appended_ms)
    ]


def expired(
    segments: list[SealedInfo],
    config: TopicConfig,
    *,
    now_ms: int,
    active_bytes: int = 0,
    high_watermark: int = 10**6,
    needed_from: int | None = None,
) -> list[int]:
    found = expired_segments(
        segments,
        config,
        active_bytes=active_bytes,
        high_watermark=high_watermark,
        now_ms=now_ms,
        needed_from=needed_from,
    )
    assert all(expiry.reason for expiry in found)
    return [expiry.base for expiry in found]


def test_segments_older_than_retention_ms_go_and_younger_ones_stay() -> None:
    """C1, to the millisecond."""
    config = TopicConfig(retention_ms=1000)
    assert expired(sealed(100, 200, 300), config, now_ms=1200) == [0]
    assert expired(sealed(100, 200, 300), config, now_ms=1201) == [0, 10]
    assert expired(sealed(100, 200, 300), config, now_ms=1100) == []


def test_a_segment_that_stays_keeps_those_after_it() -> None:
    """However old they say they are: a log has no holes."""
    config = TopicConfig(retention_ms=1000)
    assert expired(sealed(100, 5000, 100), config, now_ms=2000) == [0]


def test_timestamps_of_producers_change_nothing_about_the_age_of_a_segment() -> None:
    config = TopicConfig(retention_ms=1000)
    for timestamp in (-1, 0, 10**15):
        assert expired(stamped(timestamp, 700, 500), config, now_ms=1500) == []
        assert expired(stamped(timestamp, 700, 500), config, now_ms=1501) == [0]


def test_a_segment_of_version_0_1_0_ages_from_its_sealing() -> None:
    config = TopicConfig(retention_ms=1000)
    assert expired(stamped(0, 500), config, now_ms=1500) == []
    assert expired(stamped(0, 500), config, now_ms=1501) == [0]


def test_by_the_clock_of_timestamps_the_largest_one_counts_and_at_the_latest_the_sealing() -> None:
    """Kafka's way: without a limit, a timestamp from the future would keep a segment for ever."""
    config = TopicConfig(retention_ms=1000, retention_clock="timestamp")
    assert expired(stamped(100, 700, 500), config, now_ms=1100) == []
    assert expired(stamped(100, 700, 500), config, now_ms=1101) == [0]
    assert expired(stamped(10**15, 700, 500), config, now_ms=1700) == []
    assert expired(stamped(10**15, 700, 500), config, now_ms=1701) == [0]
    assert expired(stamped(-1, 700, 500), config, now_ms=1701) == [0]


def test_a_segment_without_any_time_is_not_deleted_by_age() -> None:
    assert expired(stamped(100, -1), TopicConfig(retention_ms=1000), now_ms=10**12) == []
    by_timestamp = TopicConfig(retention_ms=1000, retention_clock="timestamp")
    assert expired(stamped(-1, -1), by_timestamp, now_ms=10**12) == []


def test_the_oldest_go_while_the_others_hold_at_least_retention_bytes() -> None:
    config = TopicConfig(retention_bytes=250)
    assert expired(sealed(1, 1, 1), config, now_ms=5, active_bytes=150) == [0, 10]
    assert expired(sealed(1, 1, 1), config, now_ms=5, active_bytes=49) == []
    assert expired(sealed(1, 1, 1), TopicConfig(retention_bytes=0), now_ms=5) == [0, 10, 20]


def test_both_limits_hold_and_neither_means_for_ever() -> None:
    both = TopicConfig(retention_bytes=250, retention_ms=1000)
    assert expired(sealed(1, 5000, 5000), both, now_ms=5000) == [0]
    assert expired(sealed(1, 1, 1), TopicConfig(), now_ms=10**14) == []
    assert (
        expired(sealed(1, 1, 1), TopicConfig(cleanup_policy="compact", retention_ms=1), now_ms=10**14) == []
    )


def test_nothing_goes_beyond_the_high_watermark_or_what_somebody_has_not_read() -> None:
    config = TopicConfig(retention_bytes=0)
    assert expired(sealed(1, 1, 1), config, now_ms=5, high_watermark=25) == [0, 10]
    assert expired(sealed(1, 1, 1), config, now_ms=5, needed_from=19) == [0]
    assert expired(sealed(1, 1, 1), config, now_ms=5, needed_from=20) == [0, 10]
    assert expired(sealed(1, 1, 1), config, now_ms=5, needed_from=0) == []


def test_an_idle_active_segment_is_sealed_when_its_records_are_due() -> None:
    config = TopicConfig(retention_ms=1000, segment_ms=10**6)
    assert not must_seal(0, 500, config, 1500)
    assert must_seal(0, 500, config, 1501)
    assert must_seal(0, -1, config, 1001), "records without a time age from the first append"
    assert not must_seal(0, 500, TopicConfig(segment_ms=10**6), 10**6 - 1)
    assert must_seal(0, 500, TopicConfig(segment_ms=10**6), 10**6)
    compacted = TopicConfig(cleanup_policy="compact", segment_ms=10**6, max_compaction_lag_ms=50)
    assert must_seal(0, 500, compacted, 51)


# --- on a log -------------------------------------------------------------------------------------


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def disk() -> MemoryFiles:
    return MemoryFiles()


def opened(disk: MemoryFiles, clock: ManualClock) -> Log:
    return cordwood.open(DATA, files=disk, clock=clock)


def planned_expiries(disk: MemoryFiles, clock: ManualClock) -> tuple[Expiry, ...]:
    """What `maintain --dry-run` says about topic t."""
    with cordwood.open(DATA, files=disk, clock=clock, read_only=True) as log:
        (planned,) = log.plan_maintenance()
        return planned.expired


YEAR_MS = 365 * 24 * 3_600_000


@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.parametrize("shift", [-20 * YEAR_MS, 0, 20 * YEAR_MS])
def test_whatever_a_producer_stamped_a_record_expires_by_its_append(
    disk: MemoryFiles, clock: ManualClock, format_: str, shift: int
) -> None:
    """D20 and C1: neither years early nor years late. Restarts in between change nothing."""
    settings = {
        "retention.ms": "1000",
        "segment.ms": "100000000",
        "message.timestamp.after.max.ms": str(30 * YEAR_MS),
        "cordwood.format": format_,
    }
    with opened(disk, clock) as log:
        log.topic("t", config=settings).append(b"stamped", timestamp=clock.now_ms() + shift)
    clock.advance(600)
    with opened(disk, clock) as log:
        assert log.maintain().expired == ()
        clock.advance(400)
        assert log.maintain().expired == (), "exactly as old as retention.ms"
    clock.advance(1)
    with opened(disk, clock) as log:
        log.topic("t").roll()
        planned = planned_expiries(disk, clock)
        assert [expiry.next_offset for expiry in planned] == [1]
        (gone,) = log.maintain().expired
        assert (gone.records, gone.segments) == (1, planned)


def test_by_the_clock_of_timestamps_a_record_stamped_years_back_expires_at_once(
    disk: MemoryFiles, clock: ManualClock
) -> None:
    config = {"retention.ms": "1000", "cordwood.retention.clock": "timestamp"}
    with opened(disk, clock) as log:
        log.topic("t", config=config).append(b"old", timestamp=clock.now_ms() - YEAR_MS)
        (gone,) = log.maintain().expired
        assert gone.records == 1


def test_records_that_a_crash_left_past_the_mark_age_from_the_recovery(
    disk: MemoryFiles, clock: ManualClock
) -> None:
    """The mark does not say when they were appended, so they are kept too long rather than too short."""
    log = opened(disk, clock)
    topic = log.topic("t", config={"retention.ms": "1000", "cordwood.sync": "never"})
    topic.append(b"unsynced")
    left = disk_of(image(disk, DATA))
    clock.advance(900)
    with opened(left, clock) as again:
        assert [record.value for record in again.topic("t").read(0)] == [b"unsynced"]
        clock.advance(1000)
        assert again.maintain().expired == ()
        clock.advance(1)
        (gone,) = again.maintain().expired
        assert gone.records == 1


def test_a_mark_of_version_0_1_0_opens_and_its_records_age_from_then_on(
    disk: MemoryFiles, clock: ManualClock
) -> None:
    path = f"{DATA}/topics/t/0/mark"
    with opened(disk, clock) as log:
        log.topic("t", config={"retention.ms": "1000"}).append(b"x")
    data = bytearray(read_file(disk, path))
    for start in (0, 512):
        data[start + 68 : start + 80] = bytes(12)
    write_atomically(disk, path, bytes(data))
    clock.advance(5000)
    with opened(disk, clock) as log:
        assert log.maintain().expired == ()
        clock.advance(1001)
        (gone,) = log.maintain().expired
        assert gone.records == 1


def test_the_time_of_a_slot_is_not_taken_from_another_write() -> None:
    """A write that was torn after the slot leaves the time of an earlier one beside it: too early."""
    old = encode_slot(Mark(0, 1, 0, 10, 1, 0, 1, 1, 2, 3, 1000))
    new = encode_slot(Mark(0, 3, 0, 20, 2, 0, 1, 1, 2, 3, 2000))
    (mark,) = decode_slots(new)
    assert mark.appended_ms == 2000
    for kept in range(68, 80):
        (torn,) = decode_slots(new[:kept] + old[kept:])
        assert torn.position == 20
        assert torn.appended_ms in {2000, -1}
        assert torn.appended_ms == -1 or new[:kept] + old[kept:] == new
    (shorter,) = decode_slots(new[:68])
    assert shorter.appended_ms == -1


def test_a_segment_without_a_seal_time_begins_to_age_with_the_first_pass(
    disk: MemoryFiles, clock: ManualClock
) -> None:
    """Such a segment is not deleted unseen, and not kept for ever; the time is durable."""
    with opened(disk, clock) as log:
        topic = log.topic("t", config={"retention.ms": "1000"})
        topic.append(b"x", timestamp=clock.now_ms() - YEAR_MS)
        topic.roll()
    state = read_state(disk, f"{DATA}/topics/t/0")
    unknown = tuple(replace(info, sealed_ms=-1, appended_ms=-1) for info in state.sealed)
    write_state(disk, f"{DATA}/topics/t/0", replace(state, sealed=unknown))
    clock.advance(5000)
    with opened(disk, clock) as log:
        assert planned_expiries(disk, clock) == ()
        assert log.maintain().expired == ()
    clock.advance(1001)
    with opened(disk, clock) as log:
        (gone,) = log.maintain().expired
        assert gone.records == 1


def test_a_clock_that_was_set_back_does_not_stop_retention(disk: MemoryFiles, clock: ManualClock) -> None:
    with opened(disk, clock) as log:
        topic = log.topic("t", config={"retention.ms": "1000"})
        topic.append(b"x")
        clock.set_back(YEAR_MS)
        assert log.maintain().expired == ()
        clock.advance(1001)
        (gone,) = log.maintain().expired
        assert gone.records == 1


def test_compaction_keeps_the_append_time_of_what_it_rewrites(disk: MemoryFiles, clock: ManualClock) -> None:
    config = {"cleanup.policy": "compact,delete", "retention.ms": "1000"}
    with opened(disk, clock) as log:
        topic = log.topic("t", config=config)
        for _ in range(2):
            topic.append(b"v", key=b"k", timestamp=clock.now_ms() + 10)
            topic.roll()
            clock.advance(100)
        clock.advance(500)
        assert log.maintain(force=True).compacted
        clock.advance(400)
        assert log.maintain().expired == ()
        clock.advance(1)
        (gone,) = log.maintain().expired
        assert gone.log_start_offset == 2


def test_records_age_out_of_an_idle_topic_and_the_log_goes_on_where_it_was(
    disk: MemoryFiles, clock: ManualClock
) -> None:
    with opened(disk, clock) as log:
        topic = log.topic("t", config={"retention.ms": "1000"})
        for number in range(5):
            topic.append(b"%d" % number)
        clock.advance(1001)
        (gone,) = log.maintain().expired
        assert (gone.records, gone.log_start_offset, gone.bytes > 0) == (5, 5, True)
        assert "retention.ms is 1000" in gone.segments[0].reason
        assert list(topic.read(0, 5)) == []
        assert topic.append(b"next").offset == 5
        assert log.maintain().expired == ()
    with opened(disk, clock) as log:
        assert [record.value for record in log.topic("t").read(0, 5)] == [b"next"]
        assert log.topic("t").log_start_offset(0) == 5
    names = disk.list(f"{DATA}/topics/t/0/segments")
    assert sorted(names) == [f"{5:020d}.{suffix}" for suffix in ("idx", "log", "timeidx")]


def test_remove_expired_counts_the_records_that_went(disk: MemoryFiles, clock: ManualClock) -> None:
    with opened(disk, clock) as log:
        topic = log.topic("t", partitions=2, config={"retention.ms": "1000"})
        for number in range(6):
            topic.append(b"x", partition=number % 2)
        assert topic.remove_expired() == 0
        clock.advance(1001)
        topic.append(b"young", partition=1)
        assert topic.remove_expired() == 3
        assert topic.remove_expired() == 0


def test_the_cleaner_checkpoint_is_pretty_json_that_never_goes_back(
    disk: MemoryFiles, clock: ManualClock
) -> None:
    with opened(disk, clock) as log:
        topic = log.topic("t", config={"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"})
        path, cleaned = checkpoint_path(f"{DATA}/topics/t/0"), []
        for turn in range(3):
            topic.append_many([(b"k", b"1"), (b"k", b"2")], partition=0)
            topic.roll()
            log.maintain()
            text = read_file(disk, path).decode()
            found = json.loads(text)
            assert text.count("\n") >= len(found)
            assert found["compaction_state"] == "Idle"
            assert set(found) >= {"last_cleaned_offset", "retention_horizon_ms", "created_at"}
            cleaned.append(found["last_cleaned_offset"])
            assert cleaned[-1] == 2 * turn + 2
        before = read_file(disk, path)
        log.maintain()
        assert read_file(disk, path) == before, "there was nothing to do"


@pytest.mark.parametrize("content", [None, b"", b"{", b'{"last_cleaned_offset": "x"}', b"\xff" * 40])
def test_a_checkpoint_that_is_broken_or_missing_means_starting_over_and_is_counted(
    content: bytes | None, disk: MemoryFiles, clock: ManualClock
) -> None:
    config = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
    with opened(disk, clock) as log:
        topic = log.topic("t", config=config)
        topic.append_many([(b"k", b"1"), (b"k", b"2")], partition=0)
        topic.roll()
        log.maintain()
    path = checkpoint_path(f"{DATA}/topics/t/0")
    if content is None:
        disk.unlink(path)
    else:
        write_atomically(disk, path, content)
    with opened(disk, clock) as log:
        topic = log.topic("t")
        topic.append(b"3", key=b"k")
        topic.roll()
        log.maintain()
        assert [record.value for record in topic.read(0)] == [b"3"]
        assert json.loads(read_file(disk, path))["last_cleaned_offset"] == 3
        telemetry = log.data_directory.context.telemetry
        counted = {sample.metric: sample.value for sample in telemetry.collect()}
        assert counted[CHECKPOINT_CORRUPTIONS] == 1


def test_what_a_truncation_cut_and_new_records_replaced_is_compacted_again(
    disk: MemoryFiles, clock: ManualClock
) -> None:
    """The checkpoint speaks of a log that is not there any more from the cut on."""
    with opened(disk, clock) as log:
        topic = log.topic("t", config={"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"})
        topic.append_many([(b"a", b"1"), (b"b", b"1"), (b"c", b"1"), (b"d", b"1")], partition=0)
        topic.roll()
        log.maintain()
        topic.truncate(0, 1)
        topic.append_many([(b"k", b"1"), (b"k", b"2"), (b"a", b"2")], partition=0)
        topic.roll()
        log.maintain()
        assert [(r.offset, r.key, r.value) for r in topic.read(0)] == [(2, b"k", b"2"), (3, b"a", b"2")]


def test_every_frame_has_a_leaf_before_retention_or_compaction_takes_it(
    disk: MemoryFiles, clock: ManualClock
) -> None:
    """I5: upkeep of a topic with a chain leaves no gap in it, whatever goes."""
    config = {"cordwood.chain": "true", "segment.bytes": "300", "min.cleanable.dirty.ratio": "0"}
    with opened(disk, clock) as log:
        expiring = log.topic("expiring", config={**config, "retention.bytes": "0"})
        compacted = log.topic("compacted", config={**config, "cleanup.policy": "compact"})
        for number in range(30):
            for topic in (expiring, compacted):
                topic.append(b"%d" % number, key=b"%d" % (number % 3))
            if number % 10 == 9:
                report = log.maintain(force=True)
                assert report.failures == ()
                assert report.records_removed > 5
        for name in ("expiring", "compacted"):
            with kept_chain(disk, f"{DATA}/topics/{name}/0") as chain:
                assert chain is not None
                entries = [chain.entry(leaf) for leaf in range(chain.head.size)]
                moved = sum(each.moved for each in chain.statements())
                frames = sum(entry.is_frame for entry in entries) - moved
                assert frames == 30, "a leaf for each frame, as first appended"
                assert chain.head.next_offset == 30
                kinds = {each.kind for each in chain.statements()}
                assert kinds == ({"removed"} if name == "expiring" else {"policy", "compacted"})


@pytest.mark.parametrize("format_", FORMATS)
def test_records_older_than_the_caller_says_go_whatever_the_topic_keeps(
    disk: MemoryFiles, clock: ManualClock, format_: str
) -> None:
    """Row 90. The chain gets its statement, so the log stays sound."""
    with opened(disk, clock) as log:
        topic = log.topic("t", config={"cordwood.format": format_})
        for _ in range(3):
            topic.append(b"a", timestamp=clock.now_ms() - YEAR_MS)
            topic.append(b"b", timestamp=clock.now_ms() + 1000)
            topic.roll()
            clock.advance(1000)
        topic.append(b"active")
        assert topic.remove_expired() == 0
        assert topic.remove_expired(3000) == 0, "the oldest are exactly that old"
        assert topic.remove_expired(1500) == 4
        assert topic.log_start_offset() == 4
        clock.advance(5000)
        assert topic.remove_expired(4999) == 3, "the active segment is sealed first"
        assert topic.append(b"next").offset == 7
        for wrong in (-1, -(10**9)):
            with pytest.raises(InvalidSetting):
                topic.remove_expired(wrong)
        log.topic("compacted", config={"cleanup.policy": "compact"}).append(b"v", key=b"k")
        with pytest.raises(InvalidSetting, match=r"cleanup\.policy"):
            log.topic("compacted").remove_expired(0)
    report = verify_directory(disk, DATA)
    assert report.sound, report.findings


def test_what_a_group_has_not_read_stays_however_old_it_is(disk: MemoryFiles, clock: ManualClock) -> None:
    with opened(disk, clock) as log:
        topic = log.topic("t", config={"cordwood.retention.wait.for.groups": "true"})
        for number in range(4):
            topic.append(b"%d" % number)
            topic.roll()
        backend = FilesBackend(log)
        backend.commit("billing", {("t", 0): 2})
        clock.advance(10_000)
        assert topic.remove_expired(1) == 2
        assert topic.log_start_offset() == 2


def test_records_of_a_topic_in_the_shared_log_are_removed_by_age_too(
    disk: MemoryFiles, clock: ManualClock
) -> None:
    with opened(disk, clock) as log:
        topic = log.topic("t", config={"cordwood.storage": "shared"})
        topic.append(b"old")
        topic.roll()
        clock.advance(1000)
        topic.append(b"young")
        assert topic.remove_expired(1000) == 0
        clock.advance(1)
        assert topic.remove_expired(1000) == 1
        assert [record.value for record in topic.read(0)] == [b"young"]
