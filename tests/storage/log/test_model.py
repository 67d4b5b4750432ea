"""The engine beside a Python list: whatever is done to both, they hold the same records."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from support.clocks import ManualClock
from support.disks import image

import cordwood
from cordwood.broker.partitioner import partition_for_key
from cordwood.disk.files import Files, parent
from cordwood.disk.memory import MemoryFiles
from cordwood.disk.posix import PosixFiles
from cordwood.errors import OffsetOutOfRange, UnexpectedOffset

PARTITIONS = 2
TOPIC = "orders"
START_MS = 1_700_000_000_000

partitions = st.integers(0, PARTITIONS - 1)
payloads = st.none() | st.just(b"") | st.binary(max_size=20) | st.binary(min_size=100, max_size=260)
header_lists = st.lists(st.tuples(st.text("abé", max_size=3), st.none() | st.binary(max_size=6)), max_size=2)
# Never ahead of the clock, so that a record without a timestamp gets exactly the clock's.
timestamps = st.none() | st.integers(0, START_MS) | st.integers(START_MS - 50, START_MS)
rows = st.tuples(payloads, payloads, header_lists, timestamps)
fractions = st.floats(0, 1)


@dataclass
class Modelled:
    """What one partition is to hold. ``records[i]`` has the offset ``base + i``."""

    base: int
    start: int
    records: list[cordwood.Record] = field(default_factory=list)

    @property
    def end(self) -> int:
        return self.base + len(self.records)

    def between(self, start: int, stop: int) -> list[cordwood.Record]:
        start, stop = max(start, self.start), min(stop, self.end)
        return self.records[start - self.base : max(stop, start) - self.base]

    def first_at(self, timestamp: int, end: int) -> int | None:
        """The first readable offset before *end* with this timestamp or a later one."""
        readable = self.between(self.start, end)
        return next((record.offset for record in readable if record.timestamp >= timestamp), None)

    def somewhere(self, fraction: float) -> int:
        """An offset from the log start to the log end, both included."""
        return self.start + round(fraction * (self.end - self.start))


class Engine(RuleBasedStateMachine):
    """The state machine; where the bytes are is its subclasses' matter."""

    files: Files
    path: str

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock(START_MS)

    def disk(self) -> tuple[Files, str]:
        """Return an empty disk and where on it the log is to be."""
        raise NotImplementedError

    def copy(self) -> tuple[Files, str]:
        """Return a copy of the disk, byte for byte: what a killed process leaves."""
        raise NotImplementedError

    @initialize(
        sync=st.sampled_from(["each", "every:3", "never"]),
        initial=st.sampled_from([0, 0, 1_000]),
        segment_bytes=st.sampled_from(["500", "1200", "1000000"]),
        interval=st.sampled_from(["0", "150", "4096"]),
        timestamp_type=st.sampled_from(["CreateTime", "CreateTime", "LogAppendTime"]),
    )
    def begin(self, sync: str, initial: int, segment_bytes: str, interval: str, timestamp_type: str) -> None:
        self.files, self.path = self.disk()
        self.sync, self.timestamp_type = sync, timestamp_type
        self.model = [Modelled(initial, initial) for _ in range(PARTITIONS)]
        config = {
            "segment.bytes": segment_bytes,
            "index.interval.bytes": interval,
            "cordwood.initial.offset": str(initial),
            "message.timestamp.type": timestamp_type,
        }
        self.open()
        self.topic = self.log.topic(TOPIC, PARTITIONS, config)

    def open(self) -> None:
        self.log = cordwood.open(self.path, files=self.files, clock=self.clock, sync=self.sync)
        if TOPIC in self.log.topics:
            self.topic = self.log.topic(TOPIC)

    # --- what may be done ---

    def expect(self, partition: int, row: Any) -> None:
        """Add to the model what appending *row* adds to the log."""
        key, value, headers, timestamp = row
        if timestamp is None or self.timestamp_type == "LogAppendTime":
            timestamp = self.clock.now_ms()
        model = self.model[partition]
        model.records.append(cordwood.Record(model.end, timestamp, key, value, tuple(headers)))

    @rule(partition=partitions, row=rows)
    def append(self, partition: int, row: Any) -> None:
        key, value, headers, timestamp = row
        next_offset = self.model[partition].end
        placed = self.topic.append(value, key=key, headers=headers, partition=partition, timestamp=timestamp)
        assert placed == (partition, next_offset)
        self.expect(partition, row)

    @rule(partition=partitions, batch=st.lists(rows, min_size=1, max_size=8))
    def append_many(self, partition: int, batch: list[Any]) -> None:
        first = self.model[partition].end
        placed = self.topic.append_many(batch, partition=partition)
        assert placed == [(partition, first + i) for i in range(len(batch))]
        for row in batch:
            self.expect(partition, row)

    @rule(batch=st.lists(rows.filter(lambda row: row[0] is not None), min_size=1, max_size=8))
    def append_many_by_key(self, batch: list[Any]) -> None:
        expected = []
        for row in batch:
            partition = partition_for_key(row[0], PARTITIONS)
            expected.append((partition, self.model[partition].end))
            self.expect(partition, row)
        assert self.topic.append_many(batch) == expected

    @rule(partition=partitions, away=st.sampled_from([-1, 1, 7]))
    def append_elsewhere_is_refused(self, partition: int, away: int) -> None:
        next_offset = self.model[partition].end
        with pytest.raises(UnexpectedOffset):
            self.topic.append(b"never", partition=partition, expected_offset=next_offset + away)

    @rule(partition=partitions)
    def roll(self, partition: int) -> None:
        self.topic.roll(partition)

    @rule(partition=partitions, fraction=fractions)
    def truncate(self, partition: int, fraction: float) -> None:
        model = self.model[partition]
        end = model.somewhere(fraction)
        report = self.topic.truncate(partition, end)
        assert (report.end_offset, report.removed_offsets) == (end, model.end - end)
        del model.records[end - model.base :]

    @rule(partition=partitions, fraction=fractions)
    def advance_log_start(self, partition: int, fraction: float) -> None:
        offset = self.model[partition].somewhere(fraction)
        self.topic.advance_log_start(partition, offset)
        self.model[partition].start = offset

    @rule()
    def maintain(self) -> None:
        self.log.maintain()

    @rule(milliseconds=st.sampled_from([1, 500, 1_500, 3_600_000]))
    def wait(self, milliseconds: int) -> None:
        self.clock.advance(milliseconds)

    @rule()
    def close_and_reopen(self) -> None:
        self.log.close()
        self.open()

    @rule()
    def kill_and_reopen(self) -> None:
        """What the operating system has taken outlives the process, synced or not."""
        self.files, self.path = self.copy()
        self.open()

    # --- what must hold ---

    @rule(partition=partitions, first=fractions, last=fractions)
    def read_a_range(self, partition: int, first: float, last: float) -> None:
        model = self.model[partition]
        start, stop = model.somewhere(first), model.somewhere(last)
        assert list(self.topic.read(partition, start, stop)) == model.between(start, stop)

    @rule(partition=partitions, where=st.integers(0, START_MS + 10_000) | st.just(START_MS))
    def look_up_a_time(self, partition: int, where: int) -> None:
        model = self.model[partition]
        times = sorted({record.timestamp for record in model.records})
        for timestamp in (where, *times[:2], *times[-2:]):
            assert self.topic.offset_at(timestamp, partition) == model.first_at(timestamp, model.end)

    @rule()
    def a_reader_beside_the_writer_sees_the_same_up_to_the_mark(self) -> None:
        with cordwood.open(self.path, files=self.files, read_only=True) as beside:
            topic = beside.topic(TOPIC)
            for partition, model in enumerate(self.model):
                end = topic.high_watermark(partition)
                assert end == model.end if self.sync == "each" else end <= model.end
                assert topic.log_start_offset(partition) == model.start
                assert list(topic.read(partition, model.start)) == model.between(model.start, end)
                assert topic.offset_at(START_MS, partition) == model.first_at(START_MS, end)

    @invariant()
    def the_log_is_the_list(self) -> None:
        for partition, model in enumerate(self.model):
            topic = self.topic
            bounds = topic.log_start_offset(partition), topic.high_watermark(partition)
            assert bounds == (model.start, model.end)
            assert topic.log_end_offset(partition) == model.end
            assert list(topic.read(partition, model.start)) == model.between(model.start, model.end)
            for outside in (model.start - 1, model.end + 1):
                with pytest.raises(OffsetOutOfRange):
                    topic.read(partition, outside)

    def teardown(self) -> None:
        if hasattr(self, "log"):
            self.log.close()


class InMemory(Engine):
    def disk(self) -> tuple[Files, str]:
        return MemoryFiles(), "/data"

    def copy(self) -> tuple[Files, str]:
        copied = MemoryFiles()
        for path, content in image(self.files, "/").items():
            if content is None:
                copied.make_directories(path)
            else:
                copied.make_directories(parent(path))
                copied.open(path, "create").write_at(0, [content])
        return copied, "/data"


class OnDisk(Engine):
    def __init__(self) -> None:
        super().__init__()
        self.temporary = tempfile.TemporaryDirectory()
        self.killed: list[cordwood.Log] = []

    def disk(self) -> tuple[Files, str]:
        return PosixFiles(), str(Path(self.temporary.name, "0"))

    def copy(self) -> tuple[Files, str]:
        self.killed.append(self.log)
        path = str(Path(self.temporary.name, str(len(self.killed))))
        shutil.copytree(self.path, path)
        return PosixFiles(), path

    def teardown(self) -> None:
        super().teardown()
        for log in self.killed:
            log.close()
        self.temporary.cleanup()


LIMITS: dict[str, Any] = {"deadline": None, "suppress_health_check": list(HealthCheck)}
LIMITS["report_multiple_bugs"] = False


def test_in_memory_the_engine_is_a_list_per_partition() -> None:
    run_state_machine_as_test(InMemory, settings=settings(max_examples=200, stateful_step_count=30, **LIMITS))


def test_on_disk_the_engine_is_a_list_per_partition() -> None:
    run_state_machine_as_test(OnDisk, settings=settings(max_examples=15, stateful_step_count=25, **LIMITS))
