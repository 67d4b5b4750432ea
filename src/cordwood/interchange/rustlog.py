"""RustLog's directories: ``partitions/<n>/<base>.log`` and its sparse ``.index``."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from cordwood.disk import Files, join
from cordwood.formats.per_record import rustlog
from cordwood.interchange.directories import NewDirectory, find_partitions, segments
from cordwood.interchange.intervals import INDEX_ENTRY, indexed_offsets
from cordwood.interchange.kept import KeptPartition, StoredFrame, StoredItem
from cordwood.interchange.losses import Losses
from cordwood.interchange.outgoing import Outgoing, SegmentFiles, SegmentLimits, rolled, time_and_headers
from cordwood.interchange.walking import RecordLayout, walk, walk_frames
from cordwood.records import Header, Record

SEGMENT_BYTES = 100 << 20


_LAYOUT = RecordLayout(rustlog.parse_record, 4, "record")


def read_partitions(
    files: Files, directory: str, losses: Losses, *, topic: str
) -> dict[int, Iterator[Record]]:
    """Return the records of each partition below *directory*, or of *directory* itself.

    *directory* is the data directory of RustLog, the one of *topic* in it, or the one of a partition.

    Raises:
        DirectoryRefused: If there is no partition.
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
    return {number: indexed_offsets(files, path, ".index") for number, path in found.items()}


def _find(files: Files, directory: str, topic: str) -> dict[int, str]:
    roots = ("", "partitions", join("topics", topic, "partitions"))
    return find_partitions(files, directory, ".log", roots=roots)


def _frames(files: Files, directory: str, losses: Losses) -> Iterator[StoredItem]:
    paths = segments(files, directory, ".log")
    return walk_frames(files, paths, _LAYOUT, losses, lambda record: record.timestamp_us // 1000)


def _records(files: Files, directory: str, losses: Losses) -> Iterator[Record]:
    paths = segments(files, directory, ".log")
    for record, data in walk(files, paths, _LAYOUT, losses):
        losses.add("microseconds of timestamps", int(record.timestamp_us % 1000 > 0))
        payload = bytes(memoryview(data)[record.payload_at : record.end])
        yield Record(record.offset, record.timestamp_us // 1000, None, payload)


def write_partitions(
    out: NewDirectory, outgoing: Outgoing, losses: Losses, limits: SegmentLimits, *, interval: int
) -> None:
    """Write ``partitions/<n>/<base>.log`` and ``.index``, which has every *interval*-th record."""
    for partition, records in outgoing:
        place = ("partitions", str(partition))
        before = -1
        for segment in rolled(out, records, SegmentFiles(place, ("log", "index")), limits, SEGMENT_BYTES):
            log, index = segment.files
            for number, record in enumerate(segment.records):
                if number % interval == 0:
                    index.append(INDEX_ENTRY.pack(record.offset, log.size))
                if isinstance(record, StoredFrame):
                    log.append(record.data)
                    continue
                timestamp_us, headers = time_and_headers(record)
                _count_losses(record, headers, losses)
                timestamp_us = max(timestamp_us, 0)
                losses.add("the order of timestamps, which run backwards", int(timestamp_us < before))
                before = max(before, timestamp_us)
                payload = record.value or b""
                # An empty record at offset 0 and time 0 would be all zeros, which are not a record.
                timestamp_us = timestamp_us or int(not payload and not record.offset)
                log.append(rustlog.encode_record(record.offset, timestamp_us, payload, size_max=1 << 32))


def _count_losses(record: Record, headers: tuple[Header, ...], losses: Losses) -> None:
    losses.add("keys", int(record.key is not None))
    losses.add("headers", len(headers))
    losses.add("nulls, which became empty values", int(record.value is None))
    losses.add("timestamps before 1970, which became 0", int(record.timestamp < 0))
