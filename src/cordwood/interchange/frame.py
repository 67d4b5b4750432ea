"""Directories of framed records: ``<n>/segments/<base>.log`` with ``.idx`` and ``.timeidx``."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from cordwood.disk import Files
from cordwood.formats.per_record import frame
from cordwood.index import TimeIndex
from cordwood.interchange.directories import NewDirectory, find_partitions, segments
from cordwood.interchange.losses import Losses
from cordwood.interchange.outgoing import Outgoing, SegmentFiles, SegmentLimits, rolled
from cordwood.interchange.walking import walk
from cordwood.records import Record

INDEX_INTERVAL = 100
SEGMENT_BYTES = 1 << 30
_INDEX_ENTRY = struct.Struct(">QQ")


def read_partitions(files: Files, directory: str, losses: Losses) -> dict[int, Iterator[Record]]:
    """Return the records of each partition below *directory*, or of *directory* itself.

    A segment with a ``.tomb`` was being deleted and is skipped.

    Raises:
        DirectoryRefused: If there is none.
        FrameError: While reading, at damage in a segment; names file and position.
    """
    found = find_partitions(files, directory, ".log", inner="segments")
    return {number: _records(files, path, losses) for number, path in found.items()}


def _records(files: Files, directory: str, losses: Losses) -> Iterator[Record]:
    deleted = {base for base, _ in segments(files, directory, ".tomb")}
    paths = segments(files, directory, ".log")
    left = [(base, path) for base, path in paths if base not in deleted]
    if len(left) < len(paths):
        losses.add("segments that were being deleted", len(paths) - len(left))
    for record, data in walk(files, left, frame.parse_record, 8, "frame", losses):
        yield Record(record.offset, record.timestamp_ms, record.key(data), record.value(data))


def write_partitions(out: NewDirectory, outgoing: Outgoing, losses: Losses, limits: SegmentLimits) -> None:
    """Write ``<n>/segments/<base>.log``, ``.idx`` and ``.timeidx`` for each partition."""
    for partition, records in outgoing:
        names = SegmentFiles((str(partition), "segments"), ("log", "idx", "timeidx"))
        for segment in rolled(out, records, names, limits, SEGMENT_BYTES):
            log, index, times = segment.files
            largest = TimeIndex()
            for number, record in enumerate(segment.records):
                losses.add("headers", len(record.headers))
                if number % INDEX_INTERVAL == 0:
                    index.append(_INDEX_ENTRY.pack(record.offset, log.size))
                largest.add(record.timestamp, record.offset)
                log.append(
                    frame.encode_record(
                        record.offset, record.timestamp, record.key, record.value, size_max=1 << 32
                    )
                )
            times.append(largest.entries)
