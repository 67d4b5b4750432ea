"""Export a topic to a directory of another system, which is created atomically."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

from cordwood import tenancy
from cordwood.config import TopicConfig
from cordwood.disk import Files
from cordwood.errors import CordwoodError, UnknownTopic
from cordwood.formats import batch
from cordwood.interchange import frame, kafka, kimberlite, laminarmq, rafka, rustlog
from cordwood.interchange.directories import NewDirectory
from cordwood.interchange.frames import BatchFrame, frame_of, within
from cordwood.interchange.kept import NewSegment, StoredFrame, StoredItem
from cordwood.interchange.losses import Losses
from cordwood.interchange.outgoing import Outgoing, SegmentLimits
from cordwood.kernels import INT32_MAX
from cordwood.records import Progress, Record
from cordwood.storage.log import FrameRun, committed_runs
from cordwood.storage.readonly import (
    PublishedPartition,
    ReadOnlyDirectory,
    ReadOnlyPartition,
    ReadOnlyVirtual,
)
from cordwood.storage.sink import OpenIntents
from cordwood.tenancy import suggest

READ_BYTES = 1 << 20
EXPORT_SYSTEMS = ("rustlog", "kimberlite", "laminarmq", "rafka", "frame", "kafka")


@dataclass(frozen=True)
class ExportTarget:
    """The target of an export. ``org`` is the tenant in Rafka's index, None for that of the topic."""

    system: str
    directory: str
    segment_bytes: int | None = None
    org: int | None = None


@dataclass(frozen=True, slots=True)
class ExportReport:
    """The exported offsets [start, end) of each partition, and a line for each kind of lost detail."""

    topic: str
    system: str
    directory: str
    records: int
    offsets: tuple[tuple[int, int], ...]
    not_kept: tuple[str, ...]


def export_topic(
    files: Files,
    directory: ReadOnlyDirectory,
    topic: str,
    target: ExportTarget,
    *,
    unique: str,
    progress: Progress = lambda size: None,
) -> ExportReport:
    """Write the published records of *topic* in the layout of another system. Durable on return.

    If the topic has the format of the system, its frames are written byte for byte, and its segments are kept
    unless *target* sets their size. Works beside a live writer. *unique* names the temporary files.

    Raises:
        UnknownTopic: If there is no such topic.
        DirectoryRefused: If the target exists already.
        CorruptRange: If records are damaged; the export is removed.
    """
    return export_topics(files, directory, [topic], target, unique=unique, progress=progress)[0]


def export_topics(
    files: Files,
    directory: ReadOnlyDirectory,
    topics: Sequence[str],
    target: ExportTarget,
    *,
    unique: str,
    progress: Progress = lambda size: None,
) -> tuple[ExportReport, ...]:
    """Write several topics to one directory, which only Rafka's can hold; see `export_topic`.

    Records of topics in the shared log are in its order; topics with files of their own follow.
    """
    if target.system not in EXPORT_SYSTEMS:
        raise CordwoodError(
            f"there is no exporter for {target.system}; there is one for {', '.join(EXPORT_SYSTEMS)}"
        )
    if len(topics) > 1 and target.system != "rafka":
        raise CordwoodError(
            f"a directory of {target.system} holds one topic: export one after the other; rafka holds several"
        )
    if len(set(topics)) < len(topics):
        raise CordwoodError("a topic is named twice")
    done = _ProgressSum(progress)
    works, intents = directory.look_at_once(
        lambda: [_TopicWork.of(directory, topic, target, done) for topic in topics]
    )
    for work in works:
        work.cut(intents)
    limits = SegmentLimits(target.segment_bytes)
    with NewDirectory(files, target.directory, unique) as out:
        if target.system == "rafka":
            rafka.write_records(out, _in_order(works, target), limits)
        else:
            _write(out, works[0], limits)
    return tuple(work.report(target) for work in works)


@dataclass(frozen=True)
class _TopicWork:
    """A topic to export: its partitions, and what is lost of it."""

    topic: str
    topic_id: str
    parts: list[_PartitionPart]
    system: str
    #: Whether the frames of the topic are those of the system.
    kept: bool
    config: TopicConfig
    losses: Losses = field(default_factory=Losses)

    @classmethod
    def of(
        cls, directory: ReadOnlyDirectory, topic: str, target: ExportTarget, done: _ProgressSum
    ) -> _TopicWork:
        entry = directory.topics.get(topic)
        if entry is None:
            raise UnknownTopic.named(topic, suggestion=suggest(topic, directory.topics))
        numbers = range(entry.partitions)
        parts = [_PartitionPart(directory.readable(topic, number), done) for number in numbers]
        config = directory.config_of(entry.config)
        return cls(topic, entry.id, parts, target.system, config.format == target.system, config)

    def cut(self, intents: OpenIntents) -> None:
        """Leave out batches of the Spark sink that are being published."""
        for number, part in enumerate(self.parts):
            part.cut(intents.end_before(self.topic, self.topic_id, number, part.end))

    def outgoing(self) -> Outgoing:
        """Yield the items of each partition."""
        for number, part in enumerate(self.parts):
            yield number, part.read_stored() if self.kept else part.read_records()

    def report(self, target: ExportTarget) -> ExportReport:
        offsets = tuple((part.start, part.end) for part in self.parts)
        for part in self.parts:
            if part.open_offsets:
                self.losses.add("offsets from the first open transaction on", part.open_offsets)
        records = sum(part.records for part in self.parts)
        return ExportReport(self.topic, self.system, target.directory, records, offsets, self.losses.lines())


def _write(out: NewDirectory, work: _TopicWork, limits: SegmentLimits) -> None:
    match work.system:
        case "kafka":
            frames = ((number, part.read_frames()) for number, part in enumerate(work.parts))
            kafka.write_partitions(out, frames, limits, topic=work.topic)
        case "rustlog":
            interval = work.config.export_index_interval
            rustlog.write_partitions(out, work.outgoing(), work.losses, limits, interval=interval)
        case "kimberlite":
            org = tenancy.split(work.topic).org
            kimberlite.write_partitions(out, work.outgoing(), work.losses, limits, tenant=org)
        case "laminarmq":
            laminarmq.write_partitions(out, work.outgoing(), work.losses, limits)
        case "frame":
            frame.write_partitions(
                out,
                work.outgoing(),
                work.losses,
                limits,
                interval=work.config.export_index_interval,
                with_times=work.config.export_time_index,
            )


def _in_order(
    works: Sequence[_TopicWork], target: ExportTarget
) -> Iterator[tuple[rafka.OutgoingTopic, int, Record]]:
    """Yield the records of all topics: those of the shared log in its order, then the others."""
    shared, own = list[Iterator[_InOrder]](), list[Iterator[_InOrder]]()
    for work in works:
        outgoing = rafka.OutgoingTopic.named(work.topic, target.org, work.losses)
        for number, part in enumerate(work.parts):
            (shared if part.is_shared else own).append(_keyed(part, outgoing, number))
    for each in chain(heapq.merge(*shared, key=lambda keyed: keyed.id), *own):
        yield each.topic, each.partition, each.record


class _InOrder(NamedTuple):
    """A record with its number in the shared log."""

    id: int
    topic: rafka.OutgoingTopic
    partition: int
    record: Record


def _keyed(part: _PartitionPart, topic: rafka.OutgoingTopic, number: int) -> Iterator[_InOrder]:
    for id_, record in part.read_numbered():
        yield _InOrder(id_, topic, number, record)


class _ProgressSum:
    """Adds up the progress of all partitions."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._size = 0

    def add(self, size: int) -> None:
        self._size += size
        self._progress(self._size)


class _PartitionPart:
    """One partition up to the first open transaction or its current end: later records are not exported."""

    def __init__(self, log: PublishedPartition, done: _ProgressSum) -> None:
        self._log = log
        self._done = done
        self.start, self.end = log.log_start_offset, log.last_stable_offset
        #: The number of offsets after the first record of an open transaction, which are not exported.
        self.open_offsets = log.high_watermark - self.end
        self.records = 0

    def cut(self, end: int) -> None:
        """Export nothing at or after *end*."""
        if end < self.end:
            # No transaction begins below it and is open: the end would be there.
            self.end, self.open_offsets = max(end, self.start), 0

    @property
    def is_shared(self) -> bool:
        """Whether it is in the shared log."""
        return isinstance(self._log, ReadOnlyVirtual)

    def read_records(self) -> Iterator[Record]:
        """Yield the records."""
        for run in self._runs(committed=True):
            for record in run.records():
                if self.start <= record.offset < self.end:
                    self.records += 1
                    yield record

    def read_numbered(self) -> Iterator[tuple[int, Record]]:
        """Yield the records, each with its number in the shared log, or with 0."""
        if not isinstance(self._log, ReadOnlyVirtual):
            yield from ((0, record) for record in self.read_records())
            return
        for run in self._runs(committed=True):
            found = [record for record in run.records() if self.start <= record.offset < self.end]
            if found:
                first = found[0].offset
                ids = self._log.ids(first, found[-1].offset + 1)
                self.records += len(found)
                yield from ((ids[record.offset - first], record) for record in found)

    def read_stored(self) -> Iterator[StoredItem]:
        """Yield the frames as they are stored, each of one record, and the segments that they are in."""
        log = self._log
        assert isinstance(log, ReadOnlyPartition), "only a topic with files of its own has another format"
        bases, begun = [base for base in log.segment_bases() if base <= self.end], False
        for run in self._runs():
            for offset, timestamp, data in run.frames():
                if not self.start <= offset < self.end:
                    continue
                passed = [base for base in bases if base <= offset]
                if passed:
                    # The log may start in the middle of a segment.
                    yield NewSegment(passed[-1] if begun else offset)
                    bases, begun = bases[len(passed) :], True
                assert timestamp is not None
                self.records += 1
                yield StoredFrame(offset, timestamp, bytes(data))
        if bases:
            # The active segment is empty.
            yield NewSegment(bases[-1])

    def _runs(self, *, committed: bool = False) -> Iterator[FrameRun]:
        """Yield the frames; if *committed*, without those of aborted transactions."""
        offset = self.start
        while offset < self.end:
            fetched = self._log.read(offset, READ_BYTES, self.end, committed=committed)
            for run in committed_runs(fetched.runs, fetched.aborted):
                yield run
                self._done.add(len(run.data))
            if fetched.next_offset <= offset:
                return
            offset = fetched.next_offset

    def read_frames(self) -> Iterator[BatchFrame]:
        """Yield Kafka's batches: those of the log, with transactions, or converted from another format."""
        for run in self._runs():
            for data in run.batches():
                for header in batch.scan(data, size_max=INT32_MAX).headers():
                    piece = bytearray(memoryview(data)[header.position : header.end])
                    kept = within(frame_of(header, piece), self.start, self.end)
                    if kept is not None:
                        self.records += kept.records
                        yield kept
