"""What a log promised before a power cut, and whether the recovered one keeps it.

A workload runs the real engine on a recording disk and notes each promise as it is made. After a cut,
`check_promises` opens what is left with the real engine and holds it to them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import cordwood
from cordwood import Log, Topic
from cordwood.disk.files import Files, join
from cordwood.errors import OutOfSequence
from cordwood.storage.log.partition_log import PartitionLog
from support.crashes import CrashImage
from support.disks import RecordingFiles
from support.producing import Sent, send, stored_batches

DATA = "/data"
TOPIC = "t"


class StoppedClock:
    """A clock that moves only when told to."""

    def __init__(self) -> None:
        self.ms = 1_000

    def now_ms(self) -> int:
        """Return the time that was set."""
        return self.ms

    def now_us(self) -> int:
        """Return the same time in microseconds."""
        return self.ms * 1_000

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
        # Chains have histories of their own.
        self.config = {"cordwood.chain": "false", **config}
        self.sent: set[Sent] = set()
        self.log = self._open()
        self.topic = self.log.topic(TOPIC, config=self.config)
        files.acknowledge(Created())
        self.written = 0

    def _open(self) -> Log:
        return cordwood.open(DATA, files=self.disk, clock=self.clock)

    @property
    def partition(self) -> PartitionLog:
        """The one partition there is."""
        return self.log.data_directory.partitions.own(TOPIC, 0)

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

    def send(self, sent: Sent) -> tuple[int, int]:
        """Have a producer send a batch, for the first time or again, not acknowledged yet."""
        if sent not in self.sent:
            self.files.acknowledge(Written(Stored(self.partition.log_end_offset, sent.values), sent))
            self.sent.add(sent)
        seen = self.partition.high_watermark
        base, next_offset = send(self.partition, sent)
        if self.partition.high_watermark > seen:
            self.files.acknowledge(Seen(self.partition.high_watermark))
        return base, next_offset

    def produce(self, *batches: Sent) -> None:
        """Have a producer send each batch, for the first time or again, and be answered."""
        for sent in batches:
            duplicate = sent in self.sent
            base, next_offset = self.send(sent)
            self.partition.commit(next_offset)
            self.files.acknowledge(Answered(sent, base, duplicate))

    def truncate(self, end_offset: int) -> None:
        """Drop records, before and after saying so."""
        self.files.acknowledge(Truncating(end_offset))
        self.topic.truncate(0, end_offset)
        self.files.acknowledge(Truncated(end_offset))
        self.sent = {sent for sent, _ in stored_batches(self.partition)}

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
        directory = self.log.data_directory
        directory.abandon()
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
    """These records were appended, by a producer if there is a batch of one, and may survive."""

    stored: Stored
    sent: Sent | None = None


@dataclass(frozen=True)
class AllStored:
    """Everything written so far was acknowledged as durable."""


@dataclass(frozen=True)
class Answered:
    """A producer was told that its batch is durable from this offset on; *duplicate* if it was there."""

    sent: Sent
    base: int
    duplicate: bool


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
    sent: dict[Sent, None] = field(default_factory=dict)
    answered: dict[Sent, int] = field(default_factory=dict)
    duplicates: dict[Sent, int] = field(default_factory=dict)
    highest: int = -1

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
            case Written(stored, sent):
                if sent is not None:
                    self.sent[sent] = None
                for i, value in enumerate(stored.values):
                    self.possible[stored.base + i].add(value)
                    self.latest[stored.base + i] = value
                self.highest = max(self.highest, *self.latest)
            case Stored(base, values):
                self.certain |= {base + i: value for i, value in enumerate(values)}
            case AllStored():
                self.certain = dict(self.latest)
            case Seen(high_watermark):
                self.seen = max(self.seen, high_watermark)
                self.certain |= {o: v for o, v in self.latest.items() if o < high_watermark}
            case Answered(sent, base, duplicate):
                self.answered[sent] = base
                if duplicate:
                    self.duplicates[sent] = base
                self.certain |= {base + i: value for i, value in enumerate(sent.values)}
            case Truncating(end):
                self.certain = {o: v for o, v in self.certain.items() if o < end}
                self.seen = min(self.seen, end)
                self.answered = {sent: base for sent, base in self.answered.items() if base < end}
                self.duplicates = {sent: base for sent, base in self.duplicates.items() if base < end}
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
    check_opened(files, open_log(files), promise)


def check_opened(files: Files, log: Log, promise: Promise) -> None:
    """Hold a log that was just opened to *promise*."""
    records = read_all(log, promise)
    check_records(log, records, promise)
    if not promise.exists and TOPIC not in log.topics:
        log.close()
        return
    # R3: what is appended now is there next time, with everything from before.
    topic = log.topic(TOPIC)
    if promise.sent:
        check_producers(files, log, records, promise)
        return
    placed = topic.append(b"after the cut", partition=0)
    expected = next_offset_after(records, topic)
    assert placed.offset == expected, f"O1: the next offset is {placed.offset}, not {expected}"
    log.close()
    again, found = open_and_read(files, promise)
    assert found == {**records, placed.offset: b"after the cut"}, "R3: recovering again changed the log"
    again.close()


def check_producers(files: Files, log: Log, records: dict[int, bytes], promise: Promise) -> None:
    """Let others append, kill the log, and have every producer send again from its first doubtful batch on.

    Then each batch is stored once, and every one that was acknowledged where it was said to be (O6).
    """
    topic = log.topic(TOPIC)
    # As many that every offset there ever was is taken: what speaks of lost records now seems to fit.
    end = next_offset_after(records, topic)
    others = dict.fromkeys(range(end, max(end, promise.highest) + 1), b"another's")
    partition = log.data_directory.partitions.own(TOPIC, 0)
    placed = partition.append([(None, value) for value in others.values()]).base_offset
    assert placed == end, f"O1: the next offset is {placed}, not {end}"
    partition.commit()
    log.data_directory.abandon()
    log, found = open_and_read(files, promise)
    assert found == {**records, **others}, "R3: recovering again changed the log"
    partition = log.data_directory.partitions.own(TOPIC, 0)
    again = batches_to_repeat(promise)
    told = {sent: sent_again(partition, sent) for sent in again}
    partition.commit()
    check_stored_once(partition, promise, told)
    log.close()
    log, before = open_and_read(files, promise)
    partition = log.data_directory.partitions.own(TOPIC, 0)
    newest = {sent.producer: sent for sent in again}
    for sent in newest.values():
        assert sent_again(partition, sent) == told[sent], f"O6: {sent} was answered in two ways"
    assert partition.log_end_offset == max(before) + 1, "O6: a batch was stored again after a clean close"
    log.close()


def batches_to_repeat(promise: Promise) -> list[Sent]:
    """Return what producers would send again after a crash, in order.

    Everything from the first batch on that was not acknowledged, and the one before it, whose
    acknowledgement may have got lost.
    """
    found: list[Sent] = []
    for producer in dict.fromkeys(sent.producer for sent in promise.sent):
        mine = [sent for sent in promise.sent if sent.producer == producer]
        doubtful = [i for i, sent in enumerate(mine) if sent not in promise.answered]
        found += mine[max(0, min(doubtful, default=len(mine)) - 1) :]
    return found


def sent_again(partition: PartitionLog, sent: Sent) -> int:
    """Send a batch that is due or stored; return the offset that the producer is told."""
    try:
        return send(partition, sent)[0]
    except OutOfSequence as error:
        raise AssertionError(f"O6: {sent} is stored or next, but was refused: {error}") from error


def check_stored_once(partition: PartitionLog, promise: Promise, told: dict[Sent, int]) -> None:
    """Hold what is stored to what the producers were told, before the crash and after it."""
    stored = stored_batches(partition)
    counts = Counter(record for sent, _ in stored for record in sent.records())
    for sent in promise.sent:
        for record in sent.records():
            assert counts[record] == 1, f"O6: {record} is stored {counts[record]} times"
    places = dict(stored)
    for sent, base in {**promise.answered, **told}.items():
        assert places[sent] == base, f"O6: {sent} is at {places[sent]}, not at {base} as was said"


def open_and_read(files: Files, promise: Promise) -> tuple[Log, dict[int, bytes]]:
    """Open the directory and read the partition whole."""
    log = open_log(files)
    return log, read_all(log, promise)


def open_log(files: Files) -> Log:
    """Open the directory with the engine."""
    return cordwood.open(DATA, files=files, clock=StoppedClock())


def read_all(log: Log, promise: Promise) -> dict[int, bytes]:
    """Read the partition whole: value by offset."""
    if TOPIC not in log.topics:
        assert not promise.exists, "D1: the topic is gone"
        return {}
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
    return records


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
    for sent, base in promise.duplicates.items():
        there = all(records.get(base + i) == value for i, value in enumerate(sent.values))
        assert there, f"D4: a duplicate was acknowledged, but its original at {base} is gone"
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
    directory = log.data_directory
    partition = directory.partitions.own(TOPIC, 0)
    for info in partition.state.sealed:
        path = join(partition.directory, "segments", f"{info.base:020d}.log")
        size = partition.context.files.open(path, "read").size()
        assert size == info.size, f"D2: sealed {path} has {size} bytes, not {info.size}"


# --- Topics that come and go --------------------------------------------------------------------------


@dataclass(frozen=True)
class Creating:
    """From here on there may be a topic with this id."""

    id: str


@dataclass(frozen=True)
class Deleting:
    """From here on there may be no topic."""


@dataclass(frozen=True)
class Deleted:
    """There is no topic, nor ever again the one that there was."""


class ReplacedTopic(Workload):
    """A topic that is deleted and created again under the same name."""

    def __init__(self, files: RecordingFiles, config: Mapping[str, str]) -> None:
        self.files = files
        self.disk = files
        self.clock = StoppedClock()
        # Chains have histories of their own.
        self.config = {"cordwood.chain": "false", **config}
        self.written = 0
        self.sent = set()
        self.log = self._open()

    def create(self, topic_id: str, partitions: int = 1) -> None:
        """Create the topic, before and after saying so."""
        self.files.acknowledge(Creating(topic_id))
        self.log.data_directory.topics.create(TOPIC, topic_id, partitions, self.config)
        self.files.acknowledge(Created())
        self.topic = self.log.topic(TOPIC)

    def delete(self) -> None:
        """Delete the topic, before and after saying so."""
        self.files.acknowledge(Deleting())
        self.log.data_directory.topics.delete(TOPIC)
        self.files.acknowledge(Deleted())
        self.sent.clear()

    def kill(self) -> None:
        """End the writer as kill -9 does, and open again."""
        self.log.data_directory.abandon()
        self.log = self._open()


@dataclass
class TopicPromise:
    """Which topic there may be, by id, and what each of them promised. None stands for no topic."""

    may_be: set[str | None] = field(default_factory=lambda: {None})
    promises: dict[str, Promise] = field(default_factory=dict)
    newest: str = ""

    @classmethod
    def of(cls, acknowledged: tuple[object, ...]) -> TopicPromise:
        """Add up *acknowledged*."""
        found = cls()
        for what in acknowledged:
            match what:
                case Creating(topic_id):
                    found.newest = topic_id
                    found.promises[topic_id] = Promise()
                    found.may_be.add(topic_id)
                case Created():
                    found.may_be = {found.newest}
                case Deleting():
                    found.may_be.add(None)
                case Deleted():
                    found.may_be = {None}
                case _:
                    found.promises[found.newest].add(what)
        return found


def check_replaced_topic(image: CrashImage) -> None:
    """Open the image: the topic is one that may be there, whole, and its name can be used."""
    files, promise = image.files, TopicPromise.of(image.acknowledged)
    log = open_log(files)
    entry = log.data_directory.topics.get(TOPIC)
    found = None if entry is None else entry.id
    if found not in promise.may_be:
        assert found is not None, "D1: the topic is gone"
        raise AssertionError(f"D1: topic {found} came back after it was deleted")
    check_leftovers(files, found)
    if entry is None:
        log.data_directory.topics.create(TOPIC, "id-after", 1, {})
        partition = log.data_directory.partitions.own(TOPIC, 0)
        partition.commit(partition.append([(None, b"after the cut")]).next_offset)
        log.data_directory.abandon()
        log, records = open_and_read(files, Promise(exists=True))
        assert records == {0: b"after the cut"}, "R2: a new topic has records of another one"
        log.close()
        return
    check_opened(files, log, promise.promises[entry.id])


def check_leftovers(files: Files, topic_id: str | None) -> None:
    """Recovery finishes what was begun: of a deleted topic nothing is left once the directory is open."""
    away = join(DATA, "tmp")
    moved = files.list(away) if files.exists(away) else []
    assert not moved, f"R1: {moved} was not removed"
    there = files.exists(join(DATA, "topics", TOPIC))
    assert topic_id is not None or not there, "R1: the directory of a deleted topic is still there"


Run = Callable[[RecordingFiles], Any]
