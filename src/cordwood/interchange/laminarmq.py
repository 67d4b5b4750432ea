"""laminarmq's directories: ``<base>.store`` and its dense ``<base>.index``, a directory a partition."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from cordwood.disk import Files, join
from cordwood.errors import DirectoryRefused, FrameError, InvalidBatch, RecordRefused, TruncatedFrame
from cordwood.formats.per_record import IndexRecord, laminarmq
from cordwood.interchange.directories import NewDirectory, content, find_partitions, segments
from cordwood.interchange.losses import Losses
from cordwood.interchange.outgoing import Outgoing, SegmentFiles, SegmentLimits, rolled
from cordwood.kernels import Buffer
from cordwood.records import Header, Record

SEGMENT_BYTES = 1 << 30


def read_partitions(
    files: Files, directory: str, losses: Losses, *, now_ms: int
) -> dict[int, Iterator[Record]]:
    """Return the records of each partition below *directory*, or of *directory* itself.

    Metadata of other writers is not interpreted: such a record has only its value, with the time *now_ms*.

    Raises:
        DirectoryRefused: If there is no partition, or an index is missing.
        FrameError: While reading, if store and index do not match; names file and position.
    """
    found = find_partitions(files, directory, ".store")
    return {number: _records(files, path, now_ms, losses) for number, path in found.items()}


def _records(files: Files, directory: str, now_ms: int, losses: Losses) -> Iterator[Record]:
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
        next_index = base
        pair = _StoreAndIndex(path, base, store, index, is_last)
        for record in _segment_records(pair, now_ms, losses):
            yield record
            next_index = record.offset + 1


class _StoreAndIndex(NamedTuple):
    """A store and its index."""

    path: str
    base: int
    store: Buffer
    entries: Buffer
    is_last: bool


def _segment_records(pair: _StoreAndIndex, now_ms: int, losses: Losses) -> Iterator[Record]:
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
            record = _parsed(store, entry, now_ms, losses)
        except FrameError as error:
            if is_last and isinstance(error, TruncatedFrame):
                break
            raise error.at(path, 0) from None
        yield Record(offset, *record)
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
        losses.add("bytes of a last record that is not whole", len(store) - end)


def _parsed(
    store: Buffer, entry: IndexRecord, now_ms: int, losses: Losses
) -> tuple[int, bytes | None, bytes | None, tuple[Header, ...]]:
    try:
        record = laminarmq.parse_record(store, entry.position, entry.end)
    except InvalidBatch:
        _, value_at = laminarmq.split_record(store, entry.position, entry.end)
        losses.add("metadata of another writer, and its records' times, which became now")
        return now_ms, None, bytes(memoryview(store)[value_at : entry.end]), ()
    return record.timestamp_ms, record.key, record.value(store), record.headers


def write_partitions(out: NewDirectory, outgoing: Outgoing, losses: Losses, limits: SegmentLimits) -> None:
    """Write ``<n>/<base>.store`` and ``.index`` for each partition.

    Indexes have no gaps, so records after a gap get lower offsets.
    """
    size_max = min(limits.within(SEGMENT_BYTES), laminarmq.STORE_SIZE_MAX // 2)
    for partition, records in outgoing:
        names = SegmentFiles((str(partition),), ("store", "index"), digits=1)
        numbered = _without_gaps(records, losses)
        for segment in rolled(out, numbered, names, SegmentLimits(size_max), size_max):
            store, index = segment.files
            index.append(laminarmq.BASE_MARKER.pack(segment.base, 0))
            for record in segment.records:
                headers = tuple((name, value or b"") for name, value in record.headers)
                nulls = sum(value is None for _, value in record.headers)
                losses.add("nulls of headers, which became empty values", nulls)
                data = laminarmq.encode_record(
                    record.timestamp, record.key, record.value, headers, size_max=1 << 31
                )
                try:
                    index.append(laminarmq.index_record(data, store.size))
                except FrameError as error:
                    raise RecordRefused(f"record {record.offset}: {error}") from None
                store.append(data)


def _without_gaps(records: Iterator[Record], losses: Losses) -> Iterator[Record]:
    next_offset = None
    for record in records:
        number = record.offset if next_offset is None else next_offset
        losses.add("offsets after gaps, which moved up", int(number != record.offset))
        yield Record(number, record.timestamp, record.key, record.value, record.headers)
        next_offset = number + 1
