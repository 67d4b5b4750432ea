"""Encode records that already have offsets as frames of the native format.

A log has no gaps between frames, so a gap between records lies within one: a batch may take more offsets than
it has records, as after a compaction.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from cordwood.errors import FrameTooLarge, InvalidBatch, RecordRefused
from cordwood.formats import BatchHeader, BatchOptions, batch
from cordwood.kernels import HEADER, HEADER_SIZE, INT32_MAX, LENGTH_OVERHEAD
from cordwood.records import Record

#: The approximate size in bytes at which a frame is closed.
FRAME_BYTES = 256 << 10
FRAME_RECORDS = 4096
#: The largest overhead of a record in a batch, in bytes.
_RECORD_OVERHEAD = 32
_LAST_DELTA_AT = 23
#: The largest number of offsets of a gap: every 2**31 of them need a frame.
GAP_MAX = 1 << 41


class BatchFrame(NamedTuple):
    """One batch with assigned offsets."""

    data: bytearray
    base_offset: int
    next_offset: int
    records: int


def frame_of(header: BatchHeader, data: bytearray) -> BatchFrame:
    """Return the batch *data*, whose header is known."""
    records = 0 if header.is_control else header.record_count
    return BatchFrame(data, header.base_offset, header.next_offset, records)


def frames_of(records: Iterable[Record], size_max: int) -> Iterator[BatchFrame]:
    """Encode records, whose offsets ascend, as frames of at most *size_max* bytes.

    Raises:
        InvalidBatch: If offsets do not ascend.
        FrameTooLarge: If a record does not fit; names it by its offset.
    """
    held: list[Record] = []
    size, next_offset = 0, 0
    limit = min(FRAME_BYTES, size_max - HEADER_SIZE)
    for record in records:
        if record.offset < next_offset:
            raise InvalidBatch(
                position=0, expected=f"{next_offset} or more", found=record.offset, what="offset of a record"
            )
        taken = _size_of(record)
        if held and (size + taken > limit or len(held) >= FRAME_RECORDS or record.offset != next_offset):
            yield _encode(held, size_max)
            held, size = [], 0
        held.append(record)
        size += taken
        next_offset = record.offset + 1
    if held:
        yield _encode(held, size_max)


def dense(frames: Iterable[BatchFrame], start: int) -> Iterator[BatchFrame]:
    """Yield *frames* so that each begins where the one before ends, the first at *start*.

    Raises:
        InvalidBatch: If a frame begins before the one before it ends.
        RecordRefused: If a gap is larger than any log has.
    """
    before: BatchFrame | None = None
    next_offset = start
    for frame in frames:
        gap = frame.base_offset - next_offset
        if gap < 0:
            raise InvalidBatch(
                position=0, expected=f"{next_offset} or more", found=frame.base_offset, what="base offset"
            )
        if gap > GAP_MAX:
            raise RecordRefused(f"{gap} offsets are missing before {frame.base_offset}")
        if before is not None:
            yield reaching(before, frame.base_offset)
            next_offset = before.base_offset + _span_max(before, frame.base_offset)
        yield from empty_frames(next_offset, frame.base_offset)
        before, next_offset = frame, frame.next_offset
    if before is not None:
        yield before


def within(frame: BatchFrame, start: int, stop: int) -> BatchFrame | None:
    """Return a frame without the records below *start* and from *stop* on; None if it becomes empty."""
    if frame.base_offset >= start and frame.next_offset <= stop:
        return frame
    columns = batch.decode_columns(frame.data, batch.scan(frame.data, size_max=INT32_MAX))
    assert columns.offset is not None
    offsets = memoryview(columns.offset).cast("B").cast("q")
    first, last = bisect_left(offsets, start), bisect_left(offsets, stop)
    if first == last:
        return None
    header = batch.read_header(frame.data, size_max=INT32_MAX)
    options = BatchOptions(
        compression=header.compression,
        leader_epoch=header.leader_epoch,
        attributes=header.attributes & batch.LOG_APPEND_TIME,
    )
    if header.is_transactional:
        # Without its producer it would be committed, whatever the marker of its transaction says.
        cut_off = offsets[first] - header.base_offset
        sequence = header.base_sequence
        options = options._replace(
            attributes=options.attributes | batch.TRANSACTIONAL,
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            base_sequence=sequence if sequence == batch.NO_SEQUENCE else (sequence + cut_off) & INT32_MAX,
        )
    cut = batch.encode_columns(columns, first, last, options, size_max=INT32_MAX)
    return frame_of(batch.read_header(cut, size_max=INT32_MAX), cut)


def _span_max(frame: BatchFrame, next_offset: int) -> int:
    """Return the number of offsets up to *next_offset* that a frame can take."""
    return min(next_offset - frame.base_offset, INT32_MAX + 1)


def reaching(frame: BatchFrame, next_offset: int) -> BatchFrame:
    """Return a frame extended to *next_offset*, as far as possible."""
    span = _span_max(frame, next_offset)
    if frame.next_offset == frame.base_offset + span:
        return frame
    frame.data[_LAST_DELTA_AT : _LAST_DELTA_AT + 4] = (span - 1).to_bytes(4, "big")
    batch.seal(frame.data)
    return frame._replace(next_offset=frame.base_offset + span)


def empty_frames(start: int, stop: int) -> Iterator[BatchFrame]:
    """Yield frames without records that take the offsets [start, stop)."""
    while start < stop:
        span = min(stop - start, INT32_MAX + 1)
        data = bytearray(HEADER_SIZE)
        HEADER.pack_into(
            data,
            0,
            start,
            HEADER_SIZE - LENGTH_OVERHEAD,
            0,
            batch.MAGIC,
            0,
            0,
            span - 1,
            batch.NO_PRODUCER_ID,
            batch.NO_PRODUCER_ID,
            batch.NO_PRODUCER_ID,
            batch.NO_PRODUCER_EPOCH,
            batch.NO_SEQUENCE,
            0,
        )
        batch.seal(data)
        yield BatchFrame(data, start, start + span, 0)
        start += span


def _encode(held: list[Record], size_max: int) -> BatchFrame:
    rows = [(record.key, record.value, record.headers, record.timestamp) for record in held]
    base = held[0].offset
    try:
        data = batch.encode_records(rows, 0, BatchOptions(base_offset=base), size_max=size_max)
    except FrameTooLarge as error:
        raise FrameTooLarge(
            position=0, expected=error.expected, found=error.found, what=f"record {base}"
        ) from None
    return BatchFrame(data, base, held[-1].offset + 1, len(held))


def _size_of(record: Record) -> int:
    named = sum(len(name) * 4 + len(value or b"") + 10 for name, value in record.headers)
    return _RECORD_OVERHEAD + len(record.key or b"") + len(record.value or b"") + named
