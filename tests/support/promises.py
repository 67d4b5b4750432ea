"""What a log promised before a power cut, and whether the recovered one keeps it.

A workload runs the real engine on a recording disk and notes each promise as it is made. After a cut,
`check_promises` opens what is left with the real engine and holds it to them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import cordwood
from cordwood import Log, Topic
from cordwood.storage.files import Files, join
from cordwood.storage.partition_log import PartitionLog
from support.crashes import CrashImage
from support.disks import RecordingFiles

DATA = "/data"
TOPIC = "t"


class StoppedClock:
    """A clock that moves only when told to."""

    def __init__(self) -> None:
        self.ms = 1_000

    def now_ms(self) -> int:
        """Return the time that was set."""
        return self.ms

    def monotonic_ns(self) -> int:
        """Return the same time in nanoseconds."""
        return self.ms * 1_000_000


@dataclass(frozen=True)
class Created:
    """The topic exists from here on."""


@dataclass(frozen=True)
class Stored:
    """The records [base, base + len(values)) were acknowledged as durable."""

    base: int
    values: tuple[bytes, ...]


@dataclass(frozen=True)
class Seen:
    """A reader was shown everything below this offset."""

    high_watermark: int


@dataclass(frozen=True)
class Truncating:
    """From here on records at or above the offset may be gone."""

    end_offset: int


@dataclass(frozen=True)
class Truncated:
    """Records at or above the offset, as they were, are gone for good."""

    end_offset: int


@dataclass(frozen=True)
class MovingStart:
    """From here on records below the offset may be gone."""

    offset: int


@dataclass(frozen=True)
class MovedStart:
    """Records below the offset are not served any more."""

    offset: int


class Workload:
    """The engine on a recording disk, each promise noted when it is made."""

    def __init__(self, files: RecordingFiles, config: Mapping[str, str], disk: Files | None = None) -> None:
        self.files = files
        self.disk: Files = disk or files
        self.clock = StoppedClock()
        self.config = config
        self.log = self._open()
        self.topic = self.log.topic(TOPIC, config=self.config)
        files.acknowledge(Created())
        self.written = 0

    def _open(self) -> Log:
        return cordwood.open(DATA, files=self.disk, clock=self.clock)

    @property
    def partition(self) -> PartitionLog:
        """The one partition there is."""
        return self.log._writable().partition(TOPIC, 0)

    def write(self, *sizes: int) -> int:
        """Append a frame with a record of each size, not durable yet; return the offset after it."""
        values = []
        for size in sizes or (10,):
            self.written += 1
            values.append(b"%06d" % self.written + b"." * size)
        self._unacknowledged = Stored(self.partition.log_end_offset, tuple(values))
        # Said before the first byte goes out: from there on a cut may leave them.
        self.files.acknowledge(Written(self._unacknowledged))
        appended = self.partition.append([(None, value) for value in values])
        self.files.acknowledge(Seen(self.partition.high_watermark))
        return appended.next_offset

    def append(self, *sizes: int) -> None:
        """Append a frame and have it acknowledged."""
        self.partition.commit(self.write(*sizes))
        self.files.acknowledge(self._unacknowledged)
        self.files.acknowledge(Seen(self.partition.high_watermark))

    def commit(self) -> None:
        """Have everything acknowledged that was written."""
        self.partition.commit()
        self.files.acknowledge(AllStored())
        self.files.acknowledge(Seen(self.partition.high_watermark))

    def truncate(self, end_offset: int) -> None:
        """Drop records, before and after saying so."""
        self.files.acknowledge(Truncating(end_offset))
        self.topic.truncate(0, end_offset)
        self.files.acknowledge(Truncated(end_offset))

    def advance(self, offset: int) -> None:
        """Move the log start, before and after saying so."""
        self.files.acknowledge(MovingStart(offset))
        self.topic.advance_log_start(0, offset)
        self.files.acknowledge(MovedStart(offset))

    def close(self) -> None:
        """Close the log; everything written counts as acknowledged."""
        self.log.close()
        self.files.acknowledge(AllStored())

    def kill(self) -> None:
        """End the writer as kill -9 does, its unsynced bytes still in the cache, and open again."""
        directory = self.log._writable()
        directory._lock.release()
        self.log = self._open()
        self.topic = self.log.topic(TOPIC)
        self.files.acknowledge(Seen(self.partition.high_watermark))

    def reopen(self) -> None:
        """Close and open again."""
        self.close()
        self.log = self._open()
        self.topic = self.log.topic(TOPIC)


@dataclass(frozen=True)
class Written:
    """These records were appended and may survive."""

    stored: Stored


@dataclass(frozen=True)
class AllStored:
    """Everything written so far was acknowledged as durable."""


@dataclass
class Promise:
    """What must, and what may, be there: the sum of the acknowledgements before a cut."""

    exists: bool = False
    possible: dict[int, set[bytes]] = field(default_factory=lambda: defaultdict(set))
    certain: dict[int, bytes] = field(default_factory=dict)
    latest: dict[int, bytes] = field(default_factory=dict)
    start_low: int = 0
    start_high: int = 0
    seen: int = 0

    @classmethod
    def of(cls, acknowledged: tuple[object, ...]) -> Promise:
        """Add up *acknowledged*."""
        promise = cls()
        for what in acknowledged:
            promise.add(what)
        return promise

    def add(self, what: object) -> None:
        """Take one more acknowledgement into account."""
        match what:
            case Created():
                self.exists = True
            case Written(stored):
                for i, value in enumerate(stored.values):
                    self.possible[stored.base + i].add(value)
                    self.latest[stored.base + i] = value
            case Stored(base, values):
                self.certain |= {base + i: value for i, value in enumerate(values)}
            case AllStored():
                self.certain = dict(self.latest)
            case Seen(high_watermark):
                self.seen = max(self.seen, high_watermark)
                self.certain |= {o: v for o, v in self.latest.items() if o < high_watermark}
            case Truncating(end):
                self.certain = {o: v for o, v in self.certain.items() if o < end}
                self.seen = min(self.seen, end)
            case Truncated(end):
                self.latest = {o: v for o, v in self.latest.items() if o < end}
                for offset in [o for o in self.possible if o >= end]:
                    del self.possible[offset]
            case MovingStart(offset):
                self.start_high = max(self.start_high, offset)
            case MovedStart(offset):
                self.start_low = offset


def check_promises(image: CrashImage) -> None:
    """Open the image, read everything, append, open again: every promise made before the cut is kept."""
    check_directory(image.files, Promise.of(image.acknowledged))


def check_directory(files: Files, promise: Promise) -> None:
    """Hold the directory on *files* to *promise*; errors start with the invariant's name."""
    log, records = open_and_read(files, promise)
    check_records(log, records, promise)
    if not promise.exists and TOPIC not in log.topics:
        log.close()
        return
    # R3: what is appended now is there next time, with everything from before.
    topic = log.topic(TOPIC)
    placed = topic.append(b"after the cut", partition=0)
    expected = next_offset_after(records, topic)
    assert placed.offset == expected, f"O1: the next offset is {placed.offset}, not {expected}"
    log.close()
    again, found = open_and_read(files, promise)
    assert found == {**records, placed.offset: b"after the cut"}, "R3: recovering again changed the log"
    again.close()


def open_and_read(files: Files, promise: Promise) -> tuple[Log, dict[int, bytes]]:
    """Open the directory and read the partition whole."""
    log = cordwood.open(DATA, files=files, clock=StoppedClock())
    if TOPIC not in log.topics:
        assert not promise.exists, "D1: the topic is gone"
        return log, {}
    topic = log.topic(TOPIC)
    start = topic.log_start_offset(0)
    try:
        records = {r.offset: r.value or b"" for r in topic.read(0, start)}
        for offset in list(records)[-2:]:
            # By itself, through the index, and not only in passing.
            (record,) = topic.read(0, offset, offset + 1)
            assert record.value == records[offset], f"O3: offset {offset} reads differently by itself"
    except cordwood.errors.CorruptRange as error:
        raise AssertionError(f"R2: what no crash can damage is called corrupt: {error}") from error
    return log, records


def next_offset_after(records: dict[int, bytes], topic: Topic) -> int:
    """Return the offset that follows what was read."""
    return max(records, default=topic.log_start_offset(0) - 1) + 1


def check_records(log: Log, records: dict[int, bytes], promise: Promise) -> None:
    """Hold what was read to the promise."""
    if TOPIC not in log.topics:
        return
    topic = log.topic(TOPIC)
    start, end = topic.log_start_offset(0), topic.high_watermark(0)
    assert sorted(records) == list(range(start, end)), "R2: the offsets have gaps"
    assert promise.start_low <= start <= max(promise.start_high, promise.start_low), "O4: the log start moved"
    for offset, value in promise.certain.items():
        assert offset < start or offset in records, f"D1: acknowledged record {offset} is gone"
        assert offset < start or records[offset] == value, f"O3: offset {offset} has another record"
    for offset, value in records.items():
        assert value in promise.possible.get(offset, ()), f"R2: offset {offset} was never appended"
    assert end >= promise.seen, f"O4: the high watermark was {promise.seen} and is {end}"
    check_sealed_files(log)


def check_sealed_files(log: Log) -> None:
    """A sealed file is exactly as long as recorded: Kafka's tools refuse a tail of zeros."""
    directory = log._writable()
    partition = directory.partition(TOPIC, 0)
    for info in partition.state.sealed:
        path = join(partition.directory, "segments", f"{info.base:020d}.log")
        size = partition._around.files.open(path, "read").size()
        assert size == info.size, f"D2: sealed {path} has {size} bytes, not {info.size}"


Run = Callable[[RecordingFiles], Any]
