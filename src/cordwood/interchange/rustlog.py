"""RustLog's directories: ``partitions/<n>/<base>.log`` and its sparse ``.index``."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from cordwood.errors import FrameError, InvalidBatch, TruncatedFrame
from cordwood.formats import rustlog
from cordwood.formats.zeros import only_zeros
from cordwood.interchange.directories import NewDirectory, content, find_partitions, segments
from cordwood.interchange.losses import Losses
from cordwood.interchange.outgoing import Limits, Outgoing, SegmentFiles, rolled
from cordwood.records import Record
from cordwood.storage.files import Files

INDEX_INTERVAL = 100
SEGMENT_BYTES = 100 << 20
_INDEX_ENTRY = struct.Struct(">QQ")


def read_partitions(files: Files, directory: str, losses: Losses) -> dict[int, Iterator[Record]]:
    """Return the records of each partition below *directory*, or of the one that it is.

    Raises:
        DirectoryRefused: If there is none.
        FrameError: While reading, where a segment is not as it should be; names file and position.
    """
    found = find_partitions(files, directory, ".log", roots=("", "partitions"))
    return {number: _records(files, path, losses) for number, path in found.items()}


def _records(files: Files, directory: str, losses: Losses) -> Iterator[Record]:
    paths = segments(files, directory, ".log")
    next_offset = 0
    for number, (base, path) in enumerate(paths):
        data, at = content(files, path), 0
        if base < next_offset:
            raise InvalidBatch(position=0, expected=next_offset, found=base, what="base offset", path=path)
        while at < len(data):
            try:
                record = rustlog.parse_record(data, at)
                if record.offset < max(next_offset, base):
                    raise InvalidBatch(
                        position=at + 4,
                        expected=f"{max(next_offset, base)} or more",
                        found=record.offset,
                        what="offset",
                    )
            except FrameError as error:
                if only_zeros(data, at):
                    break
                if isinstance(error, TruncatedFrame) and number == len(paths) - 1:
                    losses.add("bytes of a last record that is not whole", len(data) - at)
                    break
                raise error.at(path, 0) from None
            losses.add("microseconds of timestamps", int(record.timestamp_us % 1000 > 0))
            payload = bytes(memoryview(data)[record.payload_at : record.end])
            yield Record(record.offset, record.timestamp_us // 1000, None, payload)
            next_offset, at = record.offset + 1, record.end


def write_partitions(out: NewDirectory, outgoing: Outgoing, losses: Losses, limits: Limits) -> None:
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
                # An empty record at offset 0 and time 0 would be zeros, which are none.
                instant = timestamp * 1000 or int(not payload and not record.offset)
                log.append(rustlog.encode_record(record.offset, instant, payload, size_max=1 << 32))


def _count_losses(record: Record, losses: Losses) -> None:
    losses.add("keys", int(record.key is not None))
    losses.add("headers", len(record.headers))
    losses.add("nulls, which became empty values", int(record.value is None))
    losses.add("timestamps before 1970, which became 0", int(record.timestamp < 0))
