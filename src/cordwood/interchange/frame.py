"""Directories of framed records: ``<n>/segments/<base>.log`` with ``.idx`` and ``.timeidx``."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from cordwood.disk import Files, join
from cordwood.formats.per_record import frame
from cordwood.index import TimeIndex
from cordwood.interchange.directories import NewDirectory, find_partitions, segments
from cordwood.interchange.intervals import INDEX_ENTRY, indexed_offsets
from cordwood.interchange.kept import KeptPartition, StoredFrame, StoredItem
from cordwood.interchange.losses import Losses
from cordwood.interchange.outgoing import Outgoing, SegmentFiles, SegmentLimits, rolled
from cordwood.interchange.walking import RecordLayout, walk, walk_frames
from cordwood.records import Record

SEGMENT_BYTES = 1 << 30


_LAYOUT = RecordLayout(frame.parse_record, 8, "frame")


def read_partitions(
    files: Files, directory: str, losses: Losses, *, topic: str
) -> dict[int, Iterator[Record]]:
    """Return the records of each partition below *directory*, or of *directory* itself.

    *directory* is the data directory of a broker, the one of *topic* in it, or the one of a partition.
    A segment with a ``.tomb`` was being deleted and is skipped.

    Raises:
        DirectoryRefused: If there is none.
        FrameError: While reading, at damage in a segment; names file and position.
    """
    found = _find(files, directory, topic)
    return {number: _records(files, path, losses) for number, path in found.items()}


def read_frames(files: Files, directory: str, losses: Losses, *, topic: str) -> dict[int, KeptPartition]:
    """Return the frames of each partition, byte for byte; see `read_partitions`."""
    found = _find(files, directory, topic)
    return {number: KeptPartition(partial(_frames, files, path, losses)) for number, path in found.items()}


def read_indexes(files: Files, directory: str, *, topic: str) -> dict[int, dict[int, list[int]]]:
    """Return the offsets in the indexes of each partition, by the base of the segment."""
    found = _find(files, directory, topic)
    return {number: indexed_offsets(files, path, ".idx") for number, path in found.items()}


def _find(files: Files, directory: str, topic: str) -> dict[int, str]:
    roots = ("", join("topics", topic))
    return find_partitions(files, directory, ".log", roots=roots, inner="segments")


def _records(files: Files, directory: str, losses: Losses) -> Iterator[Record]:
    for record, data in walk(files, _segments(files, directory, losses), _LAYOUT, losses):
        yield Record(record.offset, record.timestamp_ms, record.key(data), record.value(data))


def _frames(files: Files, directory: str, losses: Losses) -> Iterator[StoredItem]:
    paths = _segments(files, directory, losses)
    return walk_frames(files, paths, _LAYOUT, losses, lambda record: record.timestamp_ms)


def _segments(files: Files, directory: str, losses: Losses) -> list[tuple[int, str]]:
    """Return the segments that are not being deleted."""
    deleted = {base for base, _ in segments(files, directory, ".tomb")}
    paths = segments(files, directory, ".log")
    left = [(base, path) for base, path in paths if base not in deleted]
    if len(left) < len(paths):
        losses.add("segments that were being deleted", len(paths) - len(left))
    return left


def has_time_indexes(files: Files, directory: str, *, topic: str) -> bool:
    """Return whether a partition has an index by time."""
    return any(segments(files, path, ".timeidx") for path in _find(files, directory, topic).values())


def write_partitions(
    out: NewDirectory,
    outgoing: Outgoing,
    losses: Losses,
    limits: SegmentLimits,
    *,
    interval: int,
    with_times: bool,
) -> None:
    """Write ``<n>/segments/<base>.log`` and ``.idx``, and ``.timeidx`` if *with_times*.

    The indexes have every *interval*-th record.
    """
    suffixes = ("log", "idx", "timeidx") if with_times else ("log", "idx")
    for partition, records in outgoing:
        names = SegmentFiles((str(partition), "segments"), suffixes)
        for segment in rolled(out, records, names, limits, SEGMENT_BYTES):
            log, index, *times = segment.files
            largest = TimeIndex(sparse=True)
            for number, record in enumerate(segment.records):
                is_indexed = number % interval == 0
                if is_indexed:
                    index.append(INDEX_ENTRY.pack(record.offset, log.size))
                largest.add(record.timestamp, record.offset, is_indexed=is_indexed)
                if isinstance(record, StoredFrame):
                    log.append(record.data)
                    continue
                losses.add("headers", len(record.headers))
                log.append(
                    frame.encode_record(
                        record.offset, record.timestamp, record.key, record.value, size_max=1 << 32
                    )
                )
            for file in times:
                file.append(largest.entries)
