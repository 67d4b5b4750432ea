"""Directories of framed records: ``<n>/segments/<base>.log`` with ``.idx`` and ``.timeidx``."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from cordwood.errors import FrameError, InvalidBatch, TruncatedFrame
from cordwood.formats import frame
from cordwood.formats.zeros import only_zeros
from cordwood.index.time import TimeIndex
from cordwood.interchange.directories import NewDirectory, content, find_partitions, segments
from cordwood.interchange.losses import Losses
from cordwood.interchange.outgoing import Limits, Outgoing, SegmentFiles, rolled
from cordwood.records import Record
from cordwood.storage.files import Files

INDEX_INTERVAL = 100
SEGMENT_BYTES = 1 << 30
_INDEX_ENTRY = struct.Struct(">QQ")


def read_partitions(files: Files, directory: str, losses: Losses) -> dict[int, Iterator[Record]]:
    """Return the records of each partition below *directory*, or of the one that it is.

    A segment with a ``.tomb`` was being deleted, and is left out.

    Raises:
        DirectoryRefused: If there is none.
        FrameError: While reading, where a segment is not as it should be; names file and position.
    """
    found = find_partitions(files, directory, ".log", inner="segments")
    return {number: _records(files, path, losses) for number, path in found.items()}


def _records(files: Files, directory: str, losses: Losses) -> Iterator[Record]:
    paths = segments(files, directory, ".log")
    deleted = {base for base, _ in segments(files, directory, ".tomb")}
    next_offset = 0
    for number, (base, path) in enumerate(paths):
        if base in deleted:
            losses.add("segments that were being deleted")
            continue
        data, at = content(files, path), 0
        while at < len(data):
            try:
                record = frame.parse_record(data, at)
                if record.offset < max(next_offset, base):
                    raise InvalidBatch(
                        position=at + 8,
                        expected=f"{max(next_offset, base)} or more",
                        found=record.offset,
                        what="offset",
                    )
            except FrameError as error:
                if only_zeros(data, at):
                    break
                if isinstance(error, TruncatedFrame) and number == len(paths) - 1:
                    losses.add("bytes of a last frame that is not whole", len(data) - at)
                    break
                raise error.at(path, 0) from None
            yield Record(record.offset, record.timestamp_ms, record.key(data), record.value(data))
            next_offset, at = record.offset + 1, record.end


def write_partitions(out: NewDirectory, outgoing: Outgoing, losses: Losses, limits: Limits) -> None:
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
