"""The numbers the engine keeps are those of what it did."""

from __future__ import annotations

import pytest

import cordwood
from cordwood import telemetry
from cordwood.disk.files import join
from cordwood.disk.memory import MemoryFiles
from cordwood.errors import CorruptRange
from cordwood.telemetry import Distribution, Metric

SEGMENTS = "/data/topics/t/0/segments"


def number(log: cordwood.Log, metric: Metric) -> float:
    """Return the value of a metric, for a histogram how many values it has."""
    samples = {sample.metric: sample.value for sample in log.data_directory.context.telemetry.collect()}
    value = samples[metric]
    return value.total if isinstance(value, Distribution) else value


def test_appends_syncs_and_segments_are_counted() -> None:
    log = cordwood.open("/data", files=MemoryFiles())
    topic = log.topic("t", config={"segment.bytes": "400"})
    for _ in range(40):
        topic.append_many([(None, b"v" * 30)] * 2, partition=0)
    segments = len(log.data_directory.partitions.own("t", 0).state.sealed) + 1
    assert segments > 3
    assert number(log, telemetry.SEGMENTS) == segments
    assert number(log, telemetry.SEGMENTS_ROLLED) == segments - 1
    assert number(log, telemetry.SYNC_SECONDS) >= 40 - segments
    log.close()
    assert number(log, telemetry.APPENDED_RECORDS) == 80
    assert number(log, telemetry.APPEND_SECONDS) == 40
    assert number(log, telemetry.SEGMENTS) == 0


def test_a_damaged_range_and_a_lost_index_are_counted_once() -> None:
    files = MemoryFiles()
    with cordwood.open("/data", files=files) as log:
        topic = log.topic("t")
        for i in range(4):
            topic.append(b"%d" % i)
            topic.roll()
    files.unlink(join(SEGMENTS, f"{0:020d}.idx"))
    broken = files.open(join(SEGMENTS, f"{2:020d}.log"), "write")
    broken.write_at(65, [b"\xff"])
    with cordwood.open("/data", files=files) as log:
        topic = log.topic("t")
        for _ in range(3):
            assert next(topic.read(0, 0)).value == b"0"
            with pytest.raises(CorruptRange):
                next(topic.read(0, 2))
        assert number(log, telemetry.INDEX_REBUILDS) == number(log, telemetry.INDEX_REBUILD_SECONDS) == 1
        assert number(log, telemetry.CORRUPT_RANGES) == 1


def test_a_torn_tail_is_counted_in_bytes() -> None:
    files = MemoryFiles()
    with cordwood.open("/data", files=files) as log:
        log.topic("t").append(b"whole")
    files.unlink("/data/meta/clean")
    store = files.open(join(SEGMENTS, f"{0:020d}.log"), "write")
    store.write_at(store.size(), [b"torn!"])
    with cordwood.open("/data", files=files) as log:
        assert number(log, telemetry.TORN_BYTES) == 5
        assert number(log, telemetry.RECOVERY_SECONDS) == 1
