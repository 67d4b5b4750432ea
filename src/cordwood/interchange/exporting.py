"""A topic becomes a directory of another system, which appears whole or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from cordwood.errors import CordwoodError, UnknownTopic
from cordwood.formats import batch
from cordwood.interchange import frame, kafka, kimberlite, laminarmq, rafka, rustlog
from cordwood.interchange.directories import NewDirectory
from cordwood.interchange.frames import Frame, frame_of, within
from cordwood.interchange.losses import Losses
from cordwood.interchange.outgoing import Limits
from cordwood.kernels.layout import INT32_MAX
from cordwood.records import Record
from cordwood.storage.files import Files
from cordwood.storage.read_only import AnyReadOnly, ReadOnlyDirectory

READ_BYTES = 1 << 20
SYSTEMS = ("rustlog", "kimberlite", "laminarmq", "rafka", "frame", "kafka")

Progress = Callable[[int], None]
"""Told how many bytes are done by now."""


@dataclass(frozen=True)
class ExportTarget:
    """Where records go. ``org`` is the tenant under which Rafka's index has them."""

    system: str
    directory: str
    segment_bytes: int | None = None
    org: int = 0


@dataclass(frozen=True, slots=True)
class ExportReport:
    """What was exported of each partition, offsets [start, end), and what could not be kept, a line each."""

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
    """Write the records of *topic* that are published now as another system keeps them. Durable on return.

    Works beside a live writer. *unique* names what is written meanwhile.

    Raises:
        UnknownTopic: If there is none of that name.
        DirectoryRefused: If the target is there already.
        CorruptRange: If records are not what was written; nothing is left of the export.
    """
    if target.system not in SYSTEMS:
        raise CordwoodError(
            f"there is no exporter for {target.system}; there is one for {', '.join(SYSTEMS)}"
        )
    entry = directory.topics.get(topic)
    if entry is None:
        raise UnknownTopic(f"there is no topic {topic}")
    done = _Done(progress)
    parts = [_Part(directory.readable(topic, number), done) for number in range(entry.partitions)]
    losses, limits = Losses(), Limits(target.segment_bytes)
    with NewDirectory(files, target.directory, unique) as out:
        _write(out, topic, target, parts, losses, limits)
    offsets = tuple((part.start, part.end) for part in parts)
    records = sum(part.records for part in parts)
    return ExportReport(topic, target.system, target.directory, records, offsets, losses.lines())


def _write(
    out: NewDirectory, topic: str, target: ExportTarget, parts: list[_Part], losses: Losses, limits: Limits
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


class _Done:
    """Adds up what all partitions have done."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._size = 0

    def add(self, size: int) -> None:
        self._size += size
        self._progress(self._size)


class _Part:
    """One partition as it is now: what comes later is not exported."""

    def __init__(self, log: AnyReadOnly, done: _Done) -> None:
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

    def read_frames(self) -> Iterator[Frame]:
        """Yield Kafka's batches: those of the log, or of what it has in another format."""
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
