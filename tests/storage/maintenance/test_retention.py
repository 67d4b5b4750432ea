"""Retention: what goes, why, and what never does."""

from __future__ import annotations

import json

import pytest
from support.clocks import ManualClock

import cordwood
from cordwood.config.loading import TopicConfig
from cordwood.disk.files import read_file, write_atomically
from cordwood.disk.memory import MemoryFiles
from cordwood.embedded import Log
from cordwood.storage.chain.chains import kept_chain
from cordwood.storage.log.active_segment import must_seal
from cordwood.storage.log.state import SealedInfo
from cordwood.storage.maintenance.checkpoint import checkpoint_path
from cordwood.storage.maintenance.retention import expired_segments
from cordwood.telemetry import CHECKPOINT_CORRUPTIONS

DATA = "/data"
SEGMENT = 100


def sealed(*times: int, sealed_ms: int = 10**9) -> list[SealedInfo]:
    """Segments of ten offsets and a hundred bytes with these largest timestamps."""
    return [
        SealedInfo(10 * n, SEGMENT, 10 * n + 10, max_timestamp=time, sealed_ms=sealed_ms)
        for n, time in enumerate(times)
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


def test_a_timestamp_from_the_future_does_not_keep_a_segment_beyond_its_age() -> None:
    config = TopicConfig(retention_ms=1000)
    future = sealed(10**15, sealed_ms=500)
    assert expired(future, config, now_ms=1500) == []
    assert expired(future, config, now_ms=1501) == [0]


def test_a_segment_without_any_time_is_not_deleted_by_age() -> None:
    config = TopicConfig(retention_ms=1000)
    assert expired(sealed(-1, sealed_ms=-1), config, now_ms=10**12) == []
    assert expired(sealed(-1, sealed_ms=500), config, now_ms=1501) == [0]


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
