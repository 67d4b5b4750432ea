"""Batches of queries for tests: staged as tasks do it, published, and held to E1, E2, E3 after a power cut.

What a workload does is one event after the other. At a power cut all but the newest are certain, and that one
is there whole, in every partition it goes to, or not at all.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias
from unittest.mock import patch

import cordwood
from cordwood.config.loading import load_broker_config
from cordwood.disk.files import Files, join, read_file
from cordwood.errors import CordwoodError, MetadataDamaged, UnknownTopic
from cordwood.formats import batch as batches
from cordwood.formats.native import BatchFormat
from cordwood.records import Record
from cordwood.storage.directory.data_directory import DataDirectory
from cordwood.storage.log import Partition
from cordwood.storage.readonly.directory import ReadOnlyDirectory
from cordwood.storage.sink import publishing, staging
from cordwood.storage.sink.journal import journal_path, read_journal
from cordwood.storage.sink.staging import Share, ShareWriter, StagedTarget, query_directory
from cordwood.verify import verify_directory
from support.clocks import ManualClock
from support.crashes import CrashImage
from support.disks import RecordingFiles

DATA = "/data"
SINK = join(DATA, "tmp", "sink")
JOURNALS = join(DATA, "meta", "sink")
QUERY = "orders → warehouse"
NOW_MS = 1_700_000_000_000
CONFIG = load_broker_config(environment={})[0]
FORMAT = BatchFormat()
#: A section is this large to get a file of its own: none is, some are, all are.
NEVER, MIXED, ALWAYS = 1 << 40, 160, 1

Name: TypeAlias = tuple[str, int]
Frames: TypeAlias = Sequence[Sequence[bytes]]
Plan: TypeAlias = Mapping[Name, Frames]
"""What one task has for each partition: frames of values."""
State: TypeAlias = dict[Name, list[bytes]]


@contextlib.contextmanager
def adopting(threshold: int) -> Iterator[None]:
    """Sections of so many bytes get files of their own, which become segments."""
    with (
        patch.object(staging, "ADOPT_BYTES", threshold),
        patch.object(publishing, "ADOPT_BYTES", threshold),
    ):
        yield


def open_log(files: Files, clock: ManualClock | None = None) -> cordwood.Log:
    """Open the directory with the engine."""
    return cordwood.open(DATA, files=files, clock=clock or ManualClock())


def frame_of(*values: bytes, key: bytes | None = b"k", timestamp: int = NOW_MS) -> bytearray:
    """Return one frame with a record of each value."""
    return batches.encode_records([(key, value) for value in values], timestamp)


def target_of(data: DataDirectory, topic: str, partition: int) -> StagedTarget:
    """Return the partition as a task knows it."""
    return StagedTarget(topic, data.topics[topic].id, partition)


def writer(
    files: Files, batch: int = 0, task: str = "0-a", *, query: str = QUERY, now_ms: int = NOW_MS
) -> ShareWriter:
    """Return what a task stages with."""
    return ShareWriter(files, DATA, query, batch, task, now_ms, FORMAT)


def stage(
    files: Files, data: DataDirectory, plan: Plan, batch: int = 0, task: str = "0-a", *, query: str = QUERY
) -> tuple[Share, ...]:
    """Stage what one task has: the first frame of every partition, then the second, and so on."""
    staged = writer(files, batch, task, query=query)
    for number in range(max(map(len, plan.values()), default=0)):
        for (topic, partition), frames in plan.items():
            if number < len(frames):
                staged.append(target_of(data, topic, partition), frame_of(*frames[number]))
    return staged.finish()


def records_of(log: Partition) -> list[Record]:
    """Return every record that can be read."""
    found: list[Record] = []
    offset = log.log_start_offset
    while offset < log.high_watermark:
        fetched = log.read(offset, 1 << 20)
        for run in fetched.runs:
            found += run.records()
        offset = fetched.next_offset
    return found


def values_of(data: DataDirectory | ReadOnlyDirectory, topic: str, partition: int) -> list[bytes]:
    """Return the value of every record; their offsets must be dense from 0 on."""
    records = records_of(data.readable(topic, partition))
    offsets = [record.offset for record in records]
    assert offsets == list(range(len(records))), f"O1: {topic}/{partition} has the offsets {offsets}"
    return [record.value or b"" for record in records]


def contents_of(data: DataDirectory | ReadOnlyDirectory) -> State:
    """Return the values of every partition there is."""
    return {
        (entry.name, partition): values_of(data, entry.name, partition)
        for entry in data.topics.values()
        for partition in range(entry.partitions)
    }


def staged_files(files: Files, path: str = SINK) -> list[str]:
    """Return the paths of all that is staged."""
    found: list[str] = []
    for name in files.list(path) if files.exists(path) else ():
        below = join(path, name)
        found += staged_files(files, below) if files.is_directory(below) else [below]
    return found


def kill(log: cordwood.Log) -> None:
    """End the writer as kill -9 does: whatever was not synced is in the cache only."""
    log.data_directory.abandon()


# --- A workload and its promises ----------------------------------------------------------------------


@dataclass(frozen=True)
class Begun:
    """From here on the event may be there: *values* behind what each partition has.

    One of a query may be published from its intent on; *shares* are what it publishes.
    """

    values: tuple[tuple[Name, tuple[bytes, ...]], ...]
    query: str = ""
    batch: int = -1
    shares: tuple[Share, ...] = ()


@dataclass(frozen=True)
class Certain:
    """The newest event is there, whatever happens."""


@dataclass(frozen=True)
class Topics:
    """These topics exist, as (name, partitions)."""

    names: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Staged:
    """These shares of a batch are durable."""

    query: str
    batch: int
    shares: tuple[Share, ...]


def promise_intents(files: RecordingFiles) -> None:
    """Let the disk itself tell when an intent is synced: from there on the batch is promised (E2)."""

    def sync_and_look(path: str) -> None:
        RecordingFiles.sync_directory(files, path)
        for name in files.inner.list(path) if path == JOURNALS else ():
            if name.endswith(".json"):
                body = json.loads(read_file(files.inner, join(path, name)))["body"]
                if body["intent"] is not None:
                    files.acknowledge(Certain())

    files.sync_directory = sync_and_look  # type: ignore[method-assign]


class Workload:
    """The engine on a recording disk; a topic of two partitions and one of one."""

    def __init__(self, files: RecordingFiles, config: Mapping[str, str], disk: Files | None = None) -> None:
        promise_intents(files)
        self.files = files
        self.disk: Files = disk or files
        self.clock = ManualClock()
        self.log = open_log(self.disk, self.clock)
        self.data.topics.create("orders", "id-orders", 2, dict(config))
        self.data.topics.create("other", "id-other", 1, dict(config))
        files.acknowledge(Topics((("orders", 2), ("other", 1))))

    @property
    def data(self) -> DataDirectory:
        """The directory."""
        return self.log.data_directory

    def append(self, name: Name, *values: bytes) -> None:
        """Append one frame beside the queries, acknowledged."""
        self.files.acknowledge(Begun(((name, values),)))
        partition = self.data.partitions.own(*name)
        partition.append([(None, value) for value in values])
        partition.commit()
        self.files.acknowledge(Certain())

    def stage(self, batch: int, *plans: Plan, query: str = QUERY) -> tuple[Share, ...]:
        """Stage a batch, one task after the other."""
        shares: tuple[Share, ...] = ()
        for number, plan in enumerate(plans):
            shares += stage(self.disk, self.data, plan, batch, f"{number}-a", query=query)
        self.files.acknowledge(Staged(query, batch, shares))
        return shares

    def publish(
        self, batch: int, shares: Sequence[Share], *plans: Plan, query: str = QUERY, remember: bool = True
    ) -> None:
        """Publish what was staged by *plans*."""
        self.files.acknowledge(Begun(_values_of(plans), query, batch, tuple(shares)))
        assert self.data.publisher.publish(query, batch, shares, remember=remember), (
            "E1: was published before"
        )
        self.files.acknowledge(Certain())

    def batch(self, batch: int, *plans: Plan, query: str = QUERY) -> None:
        """Stage a batch and publish it."""
        self.publish(batch, self.stage(batch, *plans, query=query), *plans, query=query)

    def reopen(self) -> None:
        """Close and open again."""
        self.log.close()
        self.log = open_log(self.disk, self.clock)

    def kill(self) -> None:
        """Die and open again, everything still in the cache."""
        kill(self.log)
        self.log = open_log(self.disk, self.clock)


def _values_of(plans: Sequence[Plan]) -> tuple[tuple[Name, tuple[bytes, ...]], ...]:
    found: dict[Name, list[bytes]] = {}
    for plan in plans:
        for name, frames in plan.items():
            found.setdefault(name, []).extend(value for frame in frames for value in frame)
    return tuple((name, tuple(values)) for name, values in found.items())


@dataclass
class Promise:
    """What was certain at a cut, and the event that was under way."""

    state: State = field(default_factory=dict)
    topics: bool = False
    begun: Begun | None = None
    certain: bool = False
    published: dict[str, int] = field(default_factory=dict)
    staged: dict[tuple[str, int], tuple[Share, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, acknowledged: tuple[object, ...]) -> Promise:
        """Add up *acknowledged*."""
        promise = cls()
        for what in acknowledged:
            match what:
                case Topics(names):
                    promise.topics = True
                    promise.state = {(name, n): [] for name, count in names for n in range(count)}
                case Staged(query, batch, shares):
                    promise.staged[query, batch] = shares
                case Begun():
                    promise._settle()
                    promise.begun = what
                case Certain():
                    promise.certain = True
        return promise

    def _settle(self) -> None:
        """An event began, so the one before it was done."""
        if self.begun is not None:
            assert self.certain, "a workload goes on before its event is certain"
            self.state = self.after()
            if self.begun.query:
                self.published[self.begun.query] = self.begun.batch
        self.begun, self.certain = None, False

    def after(self) -> State:
        """Return the contents with the event that was under way."""
        state = {name: list(values) for name, values in self.state.items()}
        for name, values in self.begun.values if self.begun is not None else ():
            state[name] += values
        return state


def check_sink(image: CrashImage) -> None:
    """Open the image: the newest event is there whole or not at all, and the query can go on."""
    check_files(image.files, Promise.of(image.acknowledged))


def check_files(files: Files, promise: Promise) -> None:
    """Hold the directory on *files* to *promise*; errors start with the invariant's name."""
    if promise.topics:
        check_verify(files, "before it is opened")
        check_reader(files, promise)
    log = open_log(files)
    if not promise.topics:
        log.close()
        return
    try:
        found = contents_of(log.data_directory)
    except UnknownTopic as error:
        raise AssertionError(f"D1: {error}") from error
    except CordwoodError as error:
        raise AssertionError(f"E2: a partition is refused: {error}") from error
    check_contents(found, promise)
    check_journals(files, found, promise)
    found = check_again(log.data_directory, found, promise)
    check_staged(files, promise)
    for name in found:
        placed = log.topic(name[0]).append(b"after the cut", partition=name[1])
        expected = len(found[name])
        assert placed.offset == expected, f"O1: the next offset of {name} is {placed.offset}, not {expected}"
        found[name].append(b"after the cut")
    log.close()
    check_verify(files, "after the next close")
    with open_log(files) as log:
        assert contents_of(log.data_directory) == found, "R3: opening again changed the log"


def check_contents(found: State, promise: Promise) -> None:
    """All of the newest event or nothing of it, over all partitions, and all of those before it."""
    without, with_it = promise.state, promise.after()
    if found == with_it or (found == without and not promise.certain):
        return
    counts = [value for values in found.values() for value in values]
    twice = {value for value in counts if counts.count(value) > 1}
    assert not twice, f"E1: published twice: {sorted(twice)}"
    for name, values in without.items():
        assert found[name][: len(values)] == values, f"D1: {name} had {values} and has {found[name]}"
    assert found != without, f"E2: the intent was synced, but {promise.begun} is not published"[:300]
    raise AssertionError(f"E3: a part of {promise.begun} is visible: {found}"[:300])


def check_journals(files: Files, found: State, promise: Promise) -> None:
    """What is there is known to be, so that it is not published again; and no intent stays open."""
    published = dict(promise.published)
    begun = promise.begun
    if begun is not None and begun.query and found == promise.after():
        published[begun.query] = begun.batch
        if not begun.values and not promise.certain:
            # One without records leaves no other trace.
            del published[begun.query]
    for query, batch in published.items():
        journal = read_journal(files, DATA, query)
        assert journal.published == batch, f"E1: {query} has {journal.published} published, not {batch}"
        assert journal.intent is None, f"R1: the intent of {query} is still open"


def check_again(data: DataDirectory, found: State, promise: Promise) -> State:
    """Publish every batch that there was once more: nothing happens, but that the newest is there then."""
    for (query, batch), shares in promise.staged.items():
        newest = promise.begun is not None and (promise.begun.query, promise.begun.batch) == (query, batch)
        if not newest and batch > promise.published.get(query, -1):
            continue
        expected = promise.after() if newest else found
        try:
            new = data.publisher.publish(query, batch, shares)
        except CordwoodError as error:
            raise AssertionError(f"E2: what was staged cannot be published: {error}") from error
        assert contents_of(data) == expected, "E1: publishing again gave something else"
        assert new == (found != expected), "E1: the answer of publish is not what it did"
        found = expected
    return found


def check_staged(files: Files, promise: Promise) -> None:
    """Of a published batch nothing is staged any more."""
    published = dict(promise.published)
    if promise.begun is not None and promise.begun.query:
        published[promise.begun.query] = promise.begun.batch
    for query, batch in published.items():
        directory = query_directory(DATA, query)
        for name in files.list(directory) if files.exists(directory) else ():
            assert int(name) > batch, f"R1: what was staged of batch {name} of {query} is still there"


def check_reader(files: Files, promise: Promise) -> None:
    """A reader that opens the image sees no batch that has no intent, and no order but ours."""
    reader = ReadOnlyDirectory(files, DATA, CONFIG)
    try:
        found = contents_of(reader)
        planned = planned_ends(reader)
    except MetadataDamaged as error:
        # A torn slot of a mark is refused by name until a writer has opened the directory.
        if error.path.endswith("mark"):
            return
        raise
    finally:
        reader.close()
    begun, after = promise.begun, promise.after()
    open_or_done = done = False
    if begun is not None and begun.query and files.exists(journal_path(DATA, begun.query)):
        journal = read_journal(files, DATA, begun.query)
        done = journal.published >= begun.batch
        open_or_done = done or journal.intent is not None
    for name, values in found.items():
        assert values == after[name][: len(values)], f"E3: a reader is shown {values} of {name}"
        if begun is not None and begun.query and not open_or_done:
            certain = len(promise.state[name])
            assert len(values) <= certain, f"E3: a reader is shown a batch without intent: {values}"
        if begun is not None and begun.query and not done:
            # It may be in some partitions and not yet in others: a plan over all of them has nothing of it.
            certain = len(promise.state[name])
            assert planned[name] <= certain, f"E3: a plan has a part of a batch: {planned}"


def planned_ends(reader: ReadOnlyDirectory) -> dict[Name, int]:
    """Return the ends of all partitions as a reader beside the writer plans with them."""

    def look() -> dict[StagedTarget, int]:
        return {
            StagedTarget(entry.name, entry.id, number): reader.readable(entry.name, number).high_watermark
            for entry in reader.topics.values()
            for number in range(entry.partitions)
        }

    found, intents = reader.look_at_once(look)
    return {
        (topic, number): intents.end_before(topic, topic_id, number, end)
        for (topic, topic_id, number), end in found.items()
    }


def check_verify(files: Files, when: str) -> None:
    """`verify` has nothing to say but notes."""
    report = verify_directory(files, DATA)
    bad = [finding for finding in report.findings if finding.severity != "note"]
    assert not bad, f"I3: {when}: {bad[0]}"


Run: TypeAlias = Callable[[RecordingFiles], object]
