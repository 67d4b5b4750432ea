"""RustLog's directories: ``partitions/<n>/<base>.log`` and its sparse ``.index``."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from cordwood.disk import Files
from cordwood.formats.per_record import rustlog
from cordwood.interchange.directories import NewDirectory, find_partitions, segments
from cordwood.interchange.losses import Losses
from cordwood.interchange.outgoing import Outgoing, SegmentFiles, SegmentLimits, rolled
from cordwood.interchange.walking import walk
from cordwood.records import Record

INDEX_INTERVAL = 100
SEGMENT_BYTES = 100 << 20
_INDEX_ENTRY = struct.Struct(">QQ")


def read_partitions(files: Files, directory: str, losses: Losses) -> dict[int, Iterator[Record]]:
    """Return the records of each partition below *directory*, or of *directory* itself.

    Raises:
        DirectoryRefused: If there is no partition.
        FrameError: While reading, at damage in a segment; names file and position.
    """
    found = find_partitions(files, directory, ".log", roots=("", "partitions"))
    return {number: _records(files, path, losses) for number, path in found.items()}


def _records(files: Files, directory: str, losses: Losses) -> Iterator[Record]:
    paths = segments(files, directory, ".log")
    for record, data in walk(files, paths, rustlog.parse_record, 4, "record", losses):
        losses.add("microseconds of timestamps", int(record.timestamp_us % 1000 > 0))
        payload = bytes(memoryview(data)[record.payload_at : record.end])
        yield Record(record.offset, record.timestamp_us // 1000, None, payload)


def write_partitions(out: NewDirectory, outgoing: Outgoing, losses: Losses, limits: SegmentLimits) -> None:
    """Write ``partitions/<n>/<base>.log`` and ``.index`` for each partition."""
    for partition, records in outgoing:
        place = ("partitions", str(partition))
        before = -1
        for segment in rolled(out, records, SegmentFiles(place, ("log", "index")), limits, SEGMENT_BYTES):
            log, index = segment.files
            for number, record in enumerate(segment.records):
                _count_losses(record, losses)
                timestamp = max(record.timestamp, 0)
                losses.add("the order of timestamps, which run backwards", int(0 <= timestamp < before))
                before = max(before, timestamp)
                if number % INDEX_INTERVAL == 0:
                    index.append(_INDEX_ENTRY.pack(record.offset, log.size))
                payload = record.value or b""
                # An empty record at offset 0 and time 0 would be all zeros, which are not a record.
                instant = timestamp * 1000 or int(not payload and not record.offset)
                log.append(rustlog.encode_record(record.offset, instant, payload, size_max=1 << 32))


def _count_losses(record: Record, losses: Losses) -> None:
    losses.add("keys", int(record.key is not None))
    losses.add("headers", len(record.headers))
    losses.add("nulls, which became empty values", int(record.value is None))
    losses.add("timestamps before 1970, which became 0", int(record.timestamp < 0))
