"""Batches made of rows or columns, and fields that are set in place."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from cordwood import kernels
from cordwood.errors import (
    FrameTooLarge,
    InvalidBatch,
    RecordRefused,
)
from cordwood.formats.batch.decoding import DECOMPRESSED_MAX, records_of
from cordwood.formats.batch.header import (
    ATTRIBUTES_AT,
    CRC_AT,
    LEADER_EPOCH_AT,
    LOG_APPEND_TIME,
    MAGIC,
    MAX_TIMESTAMP_AT,
    NO_LEADER_EPOCH,
    SIZE_MAX,
    BatchHeader,
    crc_of,
)
from cordwood.formats.compression import Compression, compress
from cordwood.kernels import (
    HEADER,
    HEADER_SIZE,
    INT32_MAX,
    LENGTH_OVERHEAD,
    Buffer,
    ColumnBuffers,
)

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1

_OFFSET = struct.Struct(">q")
_EPOCH = struct.Struct(">i")
_ATTRIBUTES = struct.Struct(">h")
_TIMESTAMP = struct.Struct(">q")
CRC = struct.Struct(">I")


class BatchOptions(NamedTuple):
    """The header fields of a batch to encode that do not follow from its records.

    ``attributes`` takes LOG_APPEND_TIME, TRANSACTIONAL and CONTROL; ``level`` is the compression's own.
    """

    base_offset: int = 0
    leader_epoch: int = NO_LEADER_EPOCH
    compression: Compression = Compression.NONE
    level: int | None = None
    attributes: int = 0
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH
    base_sequence: int = NO_SEQUENCE


NO_OPTIONS = BatchOptions()


def encode_records(
    rows: Iterable[Sequence[Any]],
    now_ms: int,
    options: BatchOptions = NO_OPTIONS,
    *,
    size_max: int = SIZE_MAX,
) -> bytearray:
    """Encode ``(key, value[, headers[, timestamp]])`` rows as one batch.

    A row without a timestamp gets *now_ms*; with LOG_APPEND_TIME every record counts as appended then.

    Raises:
        RecordRefused: If there are no rows, or one is not of that form.
        FrameTooLarge: If the batch would exceed *size_max* bytes.
    """
    encoded, base_timestamp, max_timestamp, last_delta = kernels.encode_rows(rows, now_ms, HEADER_SIZE)
    if last_delta < 0:
        raise RecordRefused("a batch needs at least one record")
    if options.attributes & LOG_APPEND_TIME:
        max_timestamp = now_ms
    return _finish(encoded, last_delta + 1, last_delta, base_timestamp, max_timestamp, options, size_max)


def encode_columns(
    columns: ColumnBuffers,
    start: int,
    stop: int,
    options: BatchOptions = NO_OPTIONS,
    *,
    size_max: int = SIZE_MAX,
) -> bytearray:
    """Encode rows [start, stop) of *columns*, which needs values and timestamps at least, as one batch.

    Where *columns* has offsets the batch keeps them, gaps included, in place of ``base_offset``.

    Raises:
        FrameTooLarge: If the batch would exceed *size_max* bytes.
    """
    encoded, base_timestamp, max_timestamp, last_delta = kernels.encode_columns(
        columns, start, stop, HEADER_SIZE
    )
    if columns.offset is not None:
        options = options._replace(base_offset=memoryview(columns.offset).cast("B").cast("q")[start])
    return _finish(encoded, stop - start, last_delta, base_timestamp, max_timestamp, options, size_max)


def without(
    buffer: Buffer, header: BatchHeader, dropped: Buffer, first: int, options: BatchOptions
) -> bytearray:
    """Return a batch without the records whose byte in *dropped* is not 0, record i having ``first + i``.

    *options* are those of its header. The others keep their bytes, so base offset, last offset delta and base
    timestamp stay; a batch that has no records left keeps its largest timestamp as Kafka does.

    Raises:
        InvalidBatch: If the records are not what the header says.
    """
    records, start, stop, _ = records_of(buffer, header, DECOMPRESSED_MAX)
    try:
        kept, count, newest = kernels.keep_records(records, start, stop, dropped, first, header.record_count)
    except ValueError as error:
        raise InvalidBatch(
            position=header.position, expected=f"{header.record_count} records", found=error, what="records"
        ) from None
    encoded = bytearray(HEADER_SIZE)
    encoded += kept
    base_timestamp = max_timestamp = header.max_timestamp
    if not count:
        options = options._replace(compression=Compression.NONE)
    else:
        base_timestamp = header.base_timestamp
        if not header.log_append_time:
            max_timestamp = base_timestamp + newest
    return _finish(
        encoded, count, header.last_offset_delta, base_timestamp, max_timestamp, options, INT32_MAX
    )


def place(buffer: bytearray | memoryview, position: int, base_offset: int, leader_epoch: int) -> None:
    """Set base offset and leader epoch of the batch at *position*, in place.

    Neither is under the checksum, so nothing else changes: this is how a log assigns offsets to a
    batch it never opens.
    """
    _OFFSET.pack_into(buffer, position, base_offset)
    _EPOCH.pack_into(buffer, position + LEADER_EPOCH_AT, leader_epoch)


def place_epoch(buffer: bytearray | memoryview, leader_epoch: int) -> None:
    """Set the leader epoch of the batch at the start of *buffer*, in place. No checksum covers it."""
    if len(buffer) >= HEADER_SIZE:
        _EPOCH.pack_into(buffer, LEADER_EPOCH_AT, leader_epoch)


def set_max_timestamp(buffer: bytearray | memoryview, header: BatchHeader, timestamp: int) -> None:
    """Say in the header what the largest timestamp is, in place, checksum included."""
    _TIMESTAMP.pack_into(buffer, header.position + MAX_TIMESTAMP_AT, timestamp)
    CRC.pack_into(buffer, header.position + CRC_AT, crc_of(buffer, header.position, header.end))


def stamp_append_time(buffer: bytearray | memoryview, header: BatchHeader, now_ms: int) -> None:
    """Make every record of the batch carry the time of its append, in place, checksum included."""
    _ATTRIBUTES.pack_into(buffer, header.position + ATTRIBUTES_AT, header.attributes | LOG_APPEND_TIME)
    set_max_timestamp(buffer, header, now_ms)


def _finish(
    encoded: bytearray,
    count: int,
    last_delta: int,
    base_timestamp: int,
    max_timestamp: int,
    options: BatchOptions,
    size_max: int,
) -> bytearray:
    """Compress the encoded records if asked to, and write the header before them."""
    if options.compression is not Compression.NONE:
        records = compress(options.compression, memoryview(encoded)[HEADER_SIZE:], options.level)
        encoded = bytearray(HEADER_SIZE)
        encoded += records
    check_size(encoded, size_max)
    HEADER.pack_into(
        encoded,
        0,
        options.base_offset,
        len(encoded) - LENGTH_OVERHEAD,
        options.leader_epoch,
        MAGIC,
        0,
        options.attributes | options.compression,
        last_delta,
        base_timestamp,
        max_timestamp,
        options.producer_id,
        options.producer_epoch,
        options.base_sequence,
        count,
    )
    seal(encoded)
    return encoded


def check_size(encoded: bytearray, size_max: int) -> None:
    """Refuse a batch that is larger than *size_max* bytes.

    Raises:
        FrameTooLarge: If it is.
    """
    if len(encoded) > size_max:
        raise FrameTooLarge(
            position=0, expected=f"at most {size_max} bytes", found=len(encoded), what="batch"
        )


def seal(encoded: bytearray) -> None:
    """Write the checksum of a batch whose every other byte is in place."""
    CRC.pack_into(encoded, CRC_AT, crc_of(encoded, 0, len(encoded)))
