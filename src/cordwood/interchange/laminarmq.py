"""laminarmq's directories: ``<base>.store`` and its dense ``<base>.index``, a directory a partition."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

from cordwood.disk import Files, join
from cordwood.errors import DirectoryRefused, FrameError, InvalidBatch, RecordRefused, TruncatedFrame
from cordwood.formats.per_record import IndexRecord, laminarmq
from cordwood.interchange.directories import NewDirectory, content, find_partitions, segments
from cordwood.interchange.kept import KeptPartition, NewSegment, StoredFrame, StoredItem
from cordwood.interchange.losses import Losses
from cordwood.interchange.outgoing import Outgoing, OutgoingItem, SegmentFiles, SegmentLimits, rolled
from cordwood.kernels import Buffer
from cordwood.records import Record

SEGMENT_BYTES = 1 << 30


def read_partitions(
    files: Files, directory: str, losses: Losses, *, now_ms: int
) -> dict[int, Iterator[Record]]:
    """Return the records of each partition below *directory*, or of *directory* itself.

    Metadata of other writers is not interpreted: such a record has it as a header, and the time *now_ms*.

    Raises:
        DirectoryRefused: If there is no partition, or an index is missing.
        FrameError: While reading, if store and index do not match; names file and position.
    """
    found = find_partitions(files, directory, ".store")
    return {number: _records(files, path, now_ms, losses) for number, path in found.items()}


def read_frames(files: Files, directory: str, losses: Losses) -> dict[int, KeptPartition]:
    """Return the frames of each partition, byte for byte; see `read_partitions`."""
    found = find_partitions(files, directory, ".store")
    return {number: KeptPartition(partial(_frames, files, path, losses)) for number, path in found.items()}


def _records(files: Files, directory: str, now_ms: int, losses: Losses) -> Iterator[Record]:
    for pair in _pairs(files, directory):
        for offset, entry in _entries(pair, losses):
            with placed(pair.path):
                found = laminarmq.read_record(pair.store, entry.position, entry.end)
            value, timestamp = found.value(pair.store), found.timestamp_ms
            if laminarmq.foreign_metadata(found.key, value, found.headers) is not None:
                losses.add("times of records with metadata of another program, which became now")
                timestamp = now_ms
            yield Record(offset, timestamp, found.key, value, found.headers)


def _frames(files: Files, directory: str, losses: Losses) -> Iterator[StoredItem]:
    next_offset = 0
    for pair in _pairs(files, directory):
        yield NewSegment(pair.base)
        next_offset = pair.base
        for offset, entry in _entries(pair, losses):
            if offset != next_offset:
                raise RecordRefused(
                    f"{pair.path}: the record at offset {next_offset} was removed, and a topic in the format "
                    "laminarmq begins without gaps: leave cordwood.format out"
                )
            frame = bytes(memoryview(pair.store)[entry.position : entry.end])
            yield StoredFrame(offset, laminarmq.NO_TIMESTAMP, frame)
            next_offset = offset + 1


def _pairs(files: Files, directory: str) -> Iterator[_StoreAndIndex]:
    """Yield the segments in order, each with its index; the last one may be empty."""
    stores = segments(files, directory, ".store")
    indexes = dict(segments(files, directory, ".index"))
    next_index = None
    for number, (base, path) in enumerate(stores):
        if base not in indexes:
            raise DirectoryRefused(f"{join(directory, str(base))}.index is missing, and nothing else has it")
        store, index = content(files, path), content(files, indexes[base])
        is_last = number == len(stores) - 1
        try:
            marked = laminarmq.parse_base_marker(index)
        except FrameError as error:
            if is_last and not len(store):
                return
            raise error.at(indexes[base], 0) from None
        if marked != base or next_index not in (None, base):
            expected = base if marked != base else next_index
            found = marked if marked != base else base
            raise InvalidBatch(
                position=0, expected=expected, found=found, what="base index", path=indexes[base]
            )
        yield _StoreAndIndex(path, base, store, index, is_last)
        next_index = base + len(index) // laminarmq.ENTRY_SIZE - 1


class _StoreAndIndex(NamedTuple):
    """A store and its index."""

    path: str
    base: int
    store: Buffer
    entries: Buffer
    is_last: bool


def _entries(pair: _StoreAndIndex, losses: Losses) -> Iterator[tuple[int, IndexRecord]]:
    """Yield the entries of a segment, checked against its store, each with its offset."""
    path, base, store, index, is_last = pair
    end = 0
    for offset, entry in enumerate(laminarmq.parse_index(index), base):
        if not entry.length:
            # A record that compaction removed; no record is that short.
            continue
        try:
            if entry.position != end:
                raise InvalidBatch(position=end, expected=end, found=entry.position, what="position")
            laminarmq.check_record(store, entry)
        except FrameError as error:
            # One record may be cut off. If the index has more after it, records are missing.
            is_torn = is_last and offset == base + len(index) // laminarmq.ENTRY_SIZE - 2
            if is_torn and isinstance(error, TruncatedFrame):
                losses.add("bytes of a last record that is not whole", len(store) - end)
                return
            raise error.at(path, 0) from None
        yield offset, entry
        end = entry.end
    if end < len(store):
        if not is_last:
            raise InvalidBatch(
                position=end,
                expected="its end",
                found=f"{len(store) - end} bytes more",
                what="store",
                path=path,
            )
        losses.add("bytes of the store after the last record that the index has", len(store) - end)


@contextlib.contextmanager
def placed(path: str) -> Iterator[None]:
    """Name the file in an error about a frame."""
    try:
        yield
    except FrameError as error:
        raise error.at(path, 0) from None


def write_partitions(out: NewDirectory, outgoing: Outgoing, losses: Losses, limits: SegmentLimits) -> None:
    """Write ``<n>/<base>.store`` and ``.index`` for each partition.

    Indexes have no gaps, so records after a gap get lower offsets.
    """
    size_max = min(limits.within(SEGMENT_BYTES), laminarmq.STORE_SIZE_MAX // 2)
    for partition, records in outgoing:
        names = SegmentFiles((str(partition),), ("store", "index"), digits=1)
        numbered = _without_gaps(records, losses)
        bounded = limits if limits.segment_bytes is None else SegmentLimits(size_max)
        for segment in rolled(out, numbered, names, bounded, size_max):
            store, index = segment.files
            index.append(laminarmq.BASE_MARKER.pack(segment.base, 0))
            for record in segment.records:
                data = record.data if isinstance(record, StoredFrame) else _encode(record, losses)
                try:
                    index.append(laminarmq.index_record(data, store.size))
                except FrameError as error:
                    raise RecordRefused(f"record {record.offset}: {error}") from None
                store.append(data)


def _encode(record: Record, losses: Losses) -> bytes:
    """Encode a record; metadata of another program, which an import kept, is written back unchanged."""
    metadata = laminarmq.foreign_metadata(record.key, record.value, record.headers)
    if metadata is not None:
        assert record.value is not None
        told = record.timestamp != laminarmq.NO_TIMESTAMP
        losses.add("times of records with metadata of another program, which is written back", int(told))
        return laminarmq.encode_foreign(metadata, record.value, size_max=1 << 31)
    headers = tuple((name, value or b"") for name, value in record.headers)
    nulls = sum(value is None for _, value in record.headers)
    losses.add("nulls of headers, which became empty values", nulls)
    return laminarmq.encode_record(record.timestamp, record.key, record.value, headers, size_max=1 << 31)


def _without_gaps(items: Iterator[OutgoingItem], losses: Losses) -> Iterator[OutgoingItem]:
    next_offset = None
    for item in items:
        if isinstance(item, NewSegment):
            yield NewSegment(item.base if next_offset is None else next_offset)
            continue
        number = item.offset if next_offset is None else next_offset
        losses.add("offsets after gaps, which moved up", int(number != item.offset))
        if isinstance(item, StoredFrame):
            yield item._replace(offset=number)
        else:
            yield Record(number, item.timestamp, item.key, item.value, item.headers)
        next_offset = number + 1
