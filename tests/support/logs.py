"""Whole logs for tests: a clock that ticks, disks made from images, and what a log must still say."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

import cordwood
from cordwood.disk.files import Files, join, parent
from cordwood.disk.memory import MemoryFiles
from cordwood.errors import CordwoodError, CorruptRange
from cordwood.records import Record

DATA = "/data"
#: Five frames of one small record a segment, and an index entry for every other one.
#: Without a chain: whoever wants one says so, and sees no file of it otherwise.
SMALL: Mapping[str, str] = {"segment.bytes": "400", "index.interval.bytes": "100", "cordwood.chain": "false"}

Image = Mapping[str, bytes | None]
Name = tuple[str, int]
HANGS = "the log hangs"


class TickingClock:
    """The same times in every run. Three readings make more than a second, so the mark is synced often."""

    def __init__(self, ticks: int = 0) -> None:
        self._ticks = ticks

    def now_ms(self) -> int:
        self._ticks += 1
        return 1_700_000_000_000 + self._ticks

    def now_us(self) -> int:
        return self.now_ms() * 1000

    def monotonic_ns(self) -> int:
        self._ticks += 1
        return self._ticks * 400_000_000


def open_log(files: Files, *, read_only: bool = False, sync: str | None = None) -> cordwood.Log:
    return cordwood.open(DATA, files=files, clock=TickingClock(), read_only=read_only, sync=sync)


def disk_of(image: Image, changed: Image | None = None, gone: Iterable[str] = ()) -> MemoryFiles:
    """Return a disk that holds *image*, but *changed* in place of what it says, and without *gone*."""
    files = MemoryFiles()
    gone, made = set(gone), set()
    for path, data in {**image, **(changed or {})}.items():
        if path in gone:
            continue
        directory = path if data is None else parent(path)
        if directory not in made:
            files.make_directories(directory)
            made.add(directory)
        if data is None:
            continue
        file = files.open(path, "create")
        if data:
            file.write_at(0, [data])
        file.close()
    return files


def partition_path(topic: str, partition: int, *names: str) -> str:
    return join(DATA, "topics", topic, str(partition), *names)


def segment_file(topic: str, partition: int, base: int, suffix: str = "log") -> str:
    return partition_path(topic, partition, "segments", f"{base:020d}.{suffix}")


def frames_of(data: bytes) -> list[tuple[int, int]]:
    """Return (start, end) of each batch in a sound segment, by the lengths alone."""
    found, start = [], 0
    while start < len(data):
        end = start + 12 + int.from_bytes(data[start + 8 : start + 12], "big")
        found.append((start, end))
        start = end
    return found


class Hung(BaseException):
    """Something that takes milliseconds has computed for seconds: it will not end."""


@contextmanager
def ends(cpu_seconds: float = 3) -> Iterator[None]:
    """Raise `Hung` in the block if it computes for so long: one endless case must not hide the others."""

    def give_up(number: int, frame: FrameType | None) -> None:
        raise Hung(f"still computing after {cpu_seconds} s")

    before = signal.signal(signal.SIGVTALRM, give_up)
    signal.setitimer(signal.ITIMER_VIRTUAL, cpu_seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


# --- What a log must still say ----------------------------------------------------------------------


@dataclass(frozen=True)
class Content:
    """What one partition holds: its bounds and its records, in order."""

    start: int
    end: int
    records: tuple[Record, ...]

    def offset_at(self, timestamp: int) -> int | None:
        return next((record.offset for record in self.records if record.timestamp >= timestamp), None)

    def probes(self) -> list[int]:
        """Timestamps worth asking for: before all, of every fourth record, the largest, after all."""
        times = [record.timestamp for record in self.records]
        return [0, *times[1::4], max(times), max(times) + 1] if times else [0]


Contents = dict[Name, Content]


def contents_of(files: Files) -> Contents:
    """Read everything a healthy log holds, changing nothing."""
    with open_log(files, read_only=True) as log:
        topics = [log.topic(name) for name in log.topics]
        return {
            (topic.name, partition): Content(
                topic.log_start_offset(partition),
                topic.high_watermark(partition),
                tuple(topic.read(partition, topic.log_start_offset(partition))),
            )
            for topic in topics
            for partition in range(topic.partitions)
        }


class Problems:
    """What went wrong over many cases: how often each, and an example of it."""

    def __init__(self) -> None:
        self.cases = 0
        self.counts: Counter[str] = Counter()
        self.examples: dict[str, str] = {}

    def add(self, case: str, found: Sequence[str]) -> None:
        self.cases += 1
        for problem in found:
            self.counts[problem] += 1
            self.examples.setdefault(problem, case)

    def __str__(self) -> str:
        return "\n".join(
            f"{count} of {self.cases}: {problem}; first: {self.examples[problem]}"
            for problem, count in self.counts.most_common(12)
        )


@dataclass
class Damage:
    """What was done to a disk: the paths an error may name, and whether any error is allowed at all.

    *derived* files decide nothing that cannot be found again, so without them everything is served.
    """

    paths: tuple[str, ...]
    derived: bool = False

    def refusal(self, what: str, error: Exception) -> list[str]:
        """Return what is wrong with *error* as the answer to a question about damaged bytes."""
        if not isinstance(error, CordwoodError):
            return [f"{what} raised {type(error).__name__}"]
        if self.derived:
            return [f"{what} was refused with {type(error).__name__} though only derived bytes are damaged"]
        if not any(path in str(error) for path in self.paths):
            return [f"{what} was refused with {type(error).__name__} that does not name the place"]
        return []

    def touches(self, name: Name) -> bool:
        mine = partition_path(*name) + "/"
        return any(path.startswith(mine) for path in self.paths)

    @property
    def local(self) -> bool:
        """Whether only files of partitions are damaged, so that the directory must open."""
        return all(path.startswith(join(DATA, "topics")) for path in self.paths)


def look(files: Files, original: Contents, damage: Damage, *, read_only: bool = False) -> list[str]:
    """Open, ask for everything, close; return every way in which the answer is neither right nor refused."""
    try:
        with ends():
            return _look(files, original, damage, read_only)
    except Hung:
        return [HANGS]


def _look(files: Files, original: Contents, damage: Damage, read_only: bool) -> list[str]:
    try:
        log = open_log(files, read_only=read_only)
    except Exception as error:
        found = damage.refusal("open", error)
        return found + (["one partition's file closes the whole directory"] if damage.local else [])
    found = []
    try:
        names = log.topics
        if names != sorted({topic for topic, _ in original}):
            found.append(f"the topics are {names}")
        for name in original:
            if name[0] in names:
                found += look_at(log, name, original[name], damage)
    except Exception as error:
        found += damage.refusal("listing topics", error)
    try:
        log.close()
    except Exception as error:
        found.append(f"close raised {type(error).__name__}")
    return found


def look_at(log: cordwood.Log, name: Name, content: Content, damage: Damage) -> list[str]:
    """Ask one partition for everything; another one's damage is no excuse."""
    if bystander := not damage.touches(name) and damage.local:
        damage = Damage((), derived=True)
    try:
        topic, partition = log.topic(name[0]), name[1]
        start, end = topic.log_start_offset(partition), topic.high_watermark(partition)
    except Exception as error:
        return damage.refusal("opening a partition", error)
    found = []
    if (start, end) != (content.start, content.end):
        found.append(f"offsets {_shift(start, content.start)} to {_shift(end, content.end)} of the original")
    if bystander:
        return found + _look_at_records(topic, partition, start, content, damage)
    found += _look_at_times(topic, partition, content, damage, "before reading")
    found += _look_at_records(topic, partition, start, content, damage)
    # Reading may have built indexes again, which answer for times too.
    found += _look_at_times(topic, partition, content, damage, "after reading")
    return found


def _shift(found: int, original: int) -> str:
    return "as in" if found == original else "below those" if found < original else "above those"


def _look_at_records(
    topic: cordwood.Topic, partition: int, start: int, content: Content, damage: Damage
) -> list[str]:
    found: list[str] = []
    wanted = {record.offset: record for record in content.records}
    read: dict[int, Record] = {}
    refused: list[range] = []
    at = start
    while True:
        try:
            for record in topic.read(partition, at):
                if record.offset < at:
                    found.append("a record came out of order")
                at = record.offset + 1
                read[record.offset] = record
            break
        except CorruptRange as error:
            found += damage.refusal("reading", error)
            refused.append(range(error.offset, error.resume_offset))
            if error.resume_offset <= at:
                return [*found, "a refusal does not lead on"]
            at = error.resume_offset
        except Exception as error:
            found += damage.refusal("reading", error)
            return found
    if any(wanted.get(offset) != record for offset, record in read.items()):
        found.append("a record is not what was written")
    missing = [offset for offset in wanted if offset not in read]
    if any(all(offset not in span for span in refused) for offset in missing):
        found.append("records are missing though no error covers them")
    return found


def _look_at_times(
    topic: cordwood.Topic, partition: int, content: Content, damage: Damage, when: str
) -> list[str]:
    found = []
    for timestamp in content.probes():
        try:
            answer = topic.offset_at(timestamp, partition)
        except Exception as error:
            found += damage.refusal(f"asking for a time {when}", error)
            continue
        if answer != content.offset_at(timestamp):
            found.append(f"a time lookup {when} gave another offset than the original")
    return list(dict.fromkeys(found))


def use(files: Files, original: Contents, damage: Damage) -> list[str]:
    """Append to every partition that lets us, close, and look again: nothing lost, no offset given twice."""
    try:
        with ends():
            extended, found = _append_everywhere(files, original, damage)
    except Hung:
        return ["appending hangs"]
    return found + [f"after appending: {problem}" for problem in look(files, extended, damage)]


def _append_everywhere(files: Files, original: Contents, damage: Damage) -> tuple[Contents, list[str]]:
    found: list[str] = []
    extended = dict(original)
    try:
        log = open_log(files)
    except Exception as error:
        return original, damage.refusal("open", error)
    for name, content in original.items():
        if name[0] not in log.topics:
            continue
        try:
            topic = log.topic(name[0])
            offset = topic.append(b"later", partition=name[1]).offset
            if offset != content.end:
                found.append("an offset was given twice" if offset < content.end else "offsets are not dense")
                continue
            extended[name] = Content(
                content.start, offset + 1, (*content.records, *topic.read(name[1], offset))
            )
        except Exception as error:
            found += damage.refusal("appending", error)
    try:
        log.close()
    except Exception as error:
        found.append(f"close after appending raised {type(error).__name__}")
    return extended, found
