"""Export a topic to a directory of another system, which is created atomically."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from cordwood.disk import Files
from cordwood.errors import CordwoodError, UnknownTopic
from cordwood.formats import batch
from cordwood.interchange import frame, kafka, kimberlite, laminarmq, rafka, rustlog
from cordwood.interchange.directories import NewDirectory
from cordwood.interchange.frames import BatchFrame, frame_of, within
from cordwood.interchange.losses import Losses
from cordwood.interchange.outgoing import SegmentLimits
from cordwood.kernels import INT32_MAX
from cordwood.records import Progress, Record
from cordwood.storage.log import Partition
from cordwood.storage.readonly import ReadOnlyDirectory

READ_BYTES = 1 << 20
EXPORT_SYSTEMS = ("rustlog", "kimberlite", "laminarmq", "rafka", "frame", "kafka")


@dataclass(frozen=True)
class ExportTarget:
    """The target of an export. ``org`` is the tenant in Rafka's index."""

    system: str
    directory: str
    segment_bytes: int | None = None
    org: int = 0


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

    Works beside a live writer. *unique* names the temporary files.

    Raises:
        UnknownTopic: If there is no such topic.
        DirectoryRefused: If the target exists already.
        CorruptRange: If records are damaged; the export is removed.
    """
    if target.system not in EXPORT_SYSTEMS:
        raise CordwoodError(
            f"there is no exporter for {target.system}; there is one for {', '.join(EXPORT_SYSTEMS)}"
        )
    entry = directory.topics.get(topic)
    if entry is None:
        raise UnknownTopic.named(topic)
    done = _ProgressSum(progress)
    parts = [_PartitionPart(directory.readable(topic, number), done) for number in range(entry.partitions)]
    losses, limits = Losses(), SegmentLimits(target.segment_bytes)
    with NewDirectory(files, target.directory, unique) as out:
        _write(out, topic, target, parts, losses, limits)
    offsets = tuple((part.start, part.end) for part in parts)
    records = sum(part.records for part in parts)
    return ExportReport(topic, target.system, target.directory, records, offsets, losses.lines())


def _write(
    out: NewDirectory,
    topic: str,
    target: ExportTarget,
    parts: list[_PartitionPart],
    losses: Losses,
    limits: SegmentLimits,
) -> None:
    outgoing = ((number, part.read_records()) for number, part in enumerate(parts))
    match target.system:
        case "kafka":
            frames = ((number, part.read_frames()) for number, part in enumerate(parts))
            kafka.write_partitions(out, frames, limits, topic=topic)
        case "rustlog":
            rustlog.write_partitions(out, outgoing, losses, limits)
        case "kimberlite":
            kimberlite.write_partitions(out, outgoing, losses, limits)
        case "laminarmq":
            laminarmq.write_partitions(out, outgoing, losses, limits)
        case "rafka":
            rafka.write_partitions(out, outgoing, losses, limits, topic=topic, org=target.org)
        case "frame":
            frame.write_partitions(out, outgoing, losses, limits)


class _ProgressSum:
    """Adds up the progress of all partitions."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._size = 0

    def add(self, size: int) -> None:
        self._size += size
        self._progress(self._size)


class _PartitionPart:
    """One partition with its current end: later records are not exported."""

    def __init__(self, log: Partition, done: _ProgressSum) -> None:
        self._log = log
        self._done = done
        self.start, self.end = log.log_start_offset, log.high_watermark
        self.records = 0

    def read_records(self) -> Iterator[Record]:
        """Yield the records."""
        for record in self._all_records():
            if self.start <= record.offset < self.end:
                self.records += 1
                yield record

    def _all_records(self) -> Iterator[Record]:
        offset = self.start
        while offset < self.end:
            fetched = self._log.read(offset, READ_BYTES, self.end)
            for run in fetched.runs:
                yield from run.records()
                self._done.add(len(run.data))
            if fetched.next_offset <= offset:
                return
            offset = fetched.next_offset

    def read_frames(self) -> Iterator[BatchFrame]:
        """Yield Kafka's batches: those of the log, or converted from another format."""
        offset = self.start
        while offset < self.end:
            fetched = self._log.read(offset, READ_BYTES, self.end)
            for run in fetched.runs:
                for data in run.batches():
                    for header in batch.scan(data, size_max=INT32_MAX).headers():
                        piece = bytearray(memoryview(data)[header.position : header.end])
                        kept = within(frame_of(header, piece), self.start, self.end)
                        if kept is not None:
                            self.records += kept.records
                            yield kept
                self._done.add(len(run.data))
            if fetched.next_offset <= offset:
                return
            offset = fetched.next_offset
