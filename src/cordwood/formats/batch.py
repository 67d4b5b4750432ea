"""Kafka's RecordBatch, version 2: the native format. docs/formats/batch.md has its byte layout.

Headers are read without touching records; records are decoded to objects or to columns, and encoded
from either. A header table (`Scan.table`) is the currency between the steps, so that work is done
per batch or per buffer, never per record, in this module.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import google_crc32c

from cordwood import kernels
from cordwood.errors import (
    ChecksumMismatch,
    FrameError,
    FrameTooLarge,
    InvalidBatch,
    RecordRefused,
    TruncatedFrame,
    UnsupportedFrame,
)
from cordwood.formats.compression import Compression, compress, decompress
from cordwood.kernels import HEADER_COLUMNS, HEADER_SIZE, Buffer, ColumnBuffers, HeaderColumn, Stop, Want
from cordwood.kernels.layout import INT32_MAX, INT64_MIN, LENGTH_OVERHEAD
from cordwood.kernels.reference import HEADER
from cordwood.records import Record

MAGIC = 2
#: The checksum covers everything from here to the end of the batch.
CRC_START = 21
#: `message.max.bytes`: a batch as stored.
SIZE_MAX = 16 * 1024 * 1024
#: The records of one batch once decompressed.
DECOMPRESSED_MAX = 8 * SIZE_MAX

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1
NO_LEADER_EPOCH = -1
_ANY_EPOCH = (-(1 << 31), INT32_MAX)

COMPRESSION_MASK = 0x07
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20
DELETE_HORIZON = 0x40
KNOWN_ATTRIBUTES = 0x7F

_OFFSET = struct.Struct(">q")
_EPOCH = struct.Struct(">i")
_ATTRIBUTES = struct.Struct(">h")
_TIMESTAMP = struct.Struct(">q")
_CRC = struct.Struct(">I")
_LEADER_EPOCH_AT, _CRC_AT, _ATTRIBUTES_AT, _MAX_TIMESTAMP_AT = 12, 17, 21, 35


class BatchHeader(NamedTuple):
    """The header of one batch; fields in the order of `kernels.HeaderColumn`."""

    position: int
    size: int
    base_offset: int
    leader_epoch: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def end(self) -> int:
        """The position after the batch."""
        return self.position + self.size

    @property
    def next_offset(self) -> int:
        """The offset after the last one this batch takes, records compacted away included."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def compression(self) -> Compression:
        """How the records are compressed.

        Raises:
            UnsupportedFrame: If the attributes name a compression that does not exist.
        """
        try:
            return Compression(self.attributes & COMPRESSION_MASK)
        except ValueError:
            raise UnsupportedFrame(
                position=self.position + _ATTRIBUTES_AT,
                expected="0 to 4",
                found=self.attributes & COMPRESSION_MASK,
                what="compression",
            ) from None

    @property
    def log_append_time(self) -> bool:
        """Whether every record carries the time of the append, ``max_timestamp``."""
        return bool(self.attributes & LOG_APPEND_TIME)

    @property
    def is_transactional(self) -> bool:
        """Whether the batch is part of a transaction."""
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        """Whether the records are markers for the broker, not data."""
        return bool(self.attributes & CONTROL)


assert len(BatchHeader._fields) == HEADER_COLUMNS


class BatchOptions(NamedTuple):
    """What the header of a batch to encode says beside its records.

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


@dataclass(frozen=True, slots=True)
class Scan:
    """Where a scan found batches, where it stopped and why.

    ``table`` holds a row of int64 values per batch (`kernels.HeaderColumn`), in one buffer.
    """

    table: Buffer
    stopped_at: int
    reason: Stop

    def __len__(self) -> int:
        return len(self.table) // (HEADER_COLUMNS * 8)

    def headers(self) -> Iterator[BatchHeader]:
        """Yield the header of each batch found."""
        values = memoryview(self.table).cast("B").cast("q")
        for start in range(0, len(values), HEADER_COLUMNS):
            yield BatchHeader._make(values[start : start + HEADER_COLUMNS])

    def column(self, column: HeaderColumn) -> memoryview:
        """Return one field of every header."""
        return memoryview(self.table).cast("B").cast("q")[column::HEADER_COLUMNS]

    def error(self, buffer: Buffer) -> FrameError:
        """Return what is wrong where the scan stopped. Only for a scan that did not reach the end."""
        return _stop_error(buffer, self.stopped_at, self.reason)


def scan(
    buffer: Buffer,
    start: int = 0,
    stop: int | None = None,
    *,
    size_max: int = SIZE_MAX,
    next_offset: int = 0,
    dense: bool = False,
    epochs: tuple[int, int] = (NO_LEADER_EPOCH, INT32_MAX),
) -> Scan:
    """Read batch headers until the end, an all-zero header, or one that is not whole or not valid.

    Offsets must not fall below *next_offset* nor the batch before, and must go on exactly there where
    *dense*; leader epochs must lie within *epochs*, both included, and never fall.
    Never raises for what the bytes are; checksums are `check_crc`'s work.
    """
    end = len(buffer) if stop is None else stop
    found = kernels.scan_headers(buffer, start, end, size_max, next_offset, dense, *epochs)
    return Scan(found[0], found[1], Stop(found[2]))


def read_header(buffer: Buffer, position: int = 0, *, size_max: int = SIZE_MAX) -> BatchHeader:
    """Read the header of the batch at *position*, all of whose bytes must be there.

    Raises:
        FrameError: Of the kind that says what is wrong, with the position of the field.
    """
    end = len(buffer)
    if 0 <= position <= end - HEADER_SIZE:
        size = int.from_bytes(memoryview(buffer)[position + 8 : position + 12], "big", signed=True)
        end = min(end, max(position + size + LENGTH_OVERHEAD, position + HEADER_SIZE))
    found = scan(buffer, position, end, size_max=size_max, next_offset=INT64_MIN, epochs=_ANY_EPOCH)
    if not len(found):
        raise found.error(buffer)
    return next(found.headers())


def check_crc(buffer: Buffer, header: BatchHeader) -> None:
    """Compare the batch's checksum with that of its bytes.

    Raises:
        ChecksumMismatch: With both, at the position of the checksum.
    """
    actual = _crc(buffer, header.position, header.end)
    if actual != header.crc:
        raise ChecksumMismatch(
            position=header.position + _CRC_AT,
            expected=f"{header.crc:#010x}",
            found=f"{actual:#010x}",
            what="CRC-32C of the batch",
        )


def count_sound(buffer: Buffer, found: Scan, checked_before: int = 0) -> int:
    """Return how many batches from the first on have the checksum of their bytes.

    Those that end at or before the position *checked_before* count without being read again.
    """
    readonly, value = kernels.readonly, google_crc32c.value
    positions, sizes, crcs = map(found.column, (HeaderColumn.POSITION, HeaderColumn.SIZE, HeaderColumn.CRC))
    for i in range(len(found)):
        end = positions[i] + sizes[i]
        if end > checked_before and value(readonly(buffer, positions[i] + CRC_START, end)) != crcs[i]:
            return i
    return len(found)


def validate(
    buffer: Buffer,
    header: BatchHeader,
    *,
    decompressed_max: int = DECOMPRESSED_MAX,
    record_max: int = SIZE_MAX,
) -> None:
    """Check all that a batch says of itself.

    Checksum, attributes, a count that matches its offsets, and every record: well formed, offsets
    dense, no larger than *record_max*, timestamps as the header says. Compressed records are
    decompressed for it.

    Raises:
        FrameError: Of the kind that says what is wrong, with position, expectation and finding.
    """
    largest = check_records(buffer, header, decompressed_max=decompressed_max, record_max=record_max)
    if not header.log_append_time and largest != header.max_timestamp:
        raise InvalidBatch(
            position=header.position + _MAX_TIMESTAMP_AT,
            expected=largest,
            found=header.max_timestamp,
            what="max timestamp",
        )


def check_records(
    buffer: Buffer,
    header: BatchHeader,
    *,
    decompressed_max: int = DECOMPRESSED_MAX,
    record_max: int = SIZE_MAX,
) -> int:
    """Check all that `validate` does but the max timestamp of the header; return what that should be.

    Some clients get it wrong, and brokers set it right.
    """
    check_crc(buffer, header)
    if header.attributes & ~KNOWN_ATTRIBUTES:
        raise UnsupportedFrame(
            position=header.position + _ATTRIBUTES_AT,
            expected="bits 0 to 6",
            found=f"{header.attributes & 0xFFFF:#06x}",
            what="attributes",
        )
    if header.record_count != header.last_offset_delta + 1:
        raise InvalidBatch(
            position=header.position + HEADER_SIZE - 4,
            expected=header.last_offset_delta + 1,
            found=header.record_count,
            what="record count",
        )
    records, start, stop, compressed_at = _records_of(buffer, header, decompressed_max)
    largest, record_size = kernels.walk_records(
        records,
        start,
        stop,
        header.record_count,
        header.last_offset_delta,
        header.base_timestamp,
        True,
        compressed_at,
    )
    if record_size > record_max:
        raise FrameTooLarge(
            position=header.position,
            expected=f"at most {record_max} bytes",
            found=record_size,
            what="a record of the batch",
        )
    return largest


def count_keyless(buffer: Buffer, header: BatchHeader) -> int:
    """Return how many records of a batch that was checked have no key."""
    found = scan(
        buffer, header.position, header.end, size_max=INT32_MAX, next_offset=INT64_MIN, epochs=_ANY_EPOCH
    )
    keys = decode_columns(buffer, found, Want.KEY).key
    assert keys is not None
    return keys.nulls


def decode_records(
    buffer: Buffer, header: BatchHeader, *, decompressed_max: int = DECOMPRESSED_MAX
) -> list[Record]:
    """Decode the records of one batch, whose checksum is the caller's to check.

    Raises:
        FrameError: If the records are not what the header says.
    """
    records, start, stop, compressed_at = _records_of(buffer, header, decompressed_max)
    return kernels.decode_rows(
        Record,
        records,
        start,
        stop,
        header.record_count,
        header.base_offset,
        header.last_offset_delta,
        header.base_timestamp,
        header.max_timestamp,
        header.log_append_time,
        compressed_at,
    )


def decode_columns(
    buffer: Buffer, found: Scan, want: Want = Want.ALL, *, decompressed_max: int = DECOMPRESSED_MAX
) -> ColumnBuffers:
    """Decode every data record of the batches *found* to columns. Control batches give no rows.

    Checksums are the caller's to check (`count_sound`). *decompressed_max* bounds each batch; all
    of them together may come to at most 2 GiB.

    Raises:
        FrameError: If the records of a batch are not what its header says.
    """
    values = memoryview(found.table).cast("B").cast("q")
    attributes = values[HeaderColumn.ATTRIBUTES :: HEADER_COLUMNS]
    payloads: list[Buffer | None] = [None] * len(attributes)
    data_rows: list[int] = []
    for i, bits in enumerate(attributes):
        if bits & CONTROL:
            continue
        data_rows.append(i)
        if bits & COMPRESSION_MASK:
            header = BatchHeader._make(values[i * HEADER_COLUMNS : (i + 1) * HEADER_COLUMNS])
            payloads[i] = _records_of(buffer, header, decompressed_max)[0]
    table = found.table
    if len(data_rows) < len(payloads):
        row_size = HEADER_COLUMNS * 8
        view = memoryview(table)
        table = b"".join(view[i * row_size : (i + 1) * row_size] for i in data_rows)
        payloads = [payloads[i] for i in data_rows]
    return kernels.decode_columns(buffer, table, payloads, want)


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
    records, start, stop, _ = _records_of(buffer, header, DECOMPRESSED_MAX)
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
    _EPOCH.pack_into(buffer, position + _LEADER_EPOCH_AT, leader_epoch)


def set_max_timestamp(buffer: bytearray | memoryview, header: BatchHeader, timestamp: int) -> None:
    """Say in the header what the largest timestamp is, in place, checksum included."""
    _TIMESTAMP.pack_into(buffer, header.position + _MAX_TIMESTAMP_AT, timestamp)
    _CRC.pack_into(buffer, header.position + _CRC_AT, _crc(buffer, header.position, header.end))


def stamp_append_time(buffer: bytearray | memoryview, header: BatchHeader, now_ms: int) -> None:
    """Make every record of the batch carry the time of its append, in place, checksum included."""
    _ATTRIBUTES.pack_into(buffer, header.position + _ATTRIBUTES_AT, header.attributes | LOG_APPEND_TIME)
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
    _CRC.pack_into(encoded, _CRC_AT, _crc(encoded, 0, len(encoded)))


def _crc(buffer: Buffer, position: int, end: int) -> int:
    return int(google_crc32c.value(kernels.readonly(buffer, position + CRC_START, end)))


def _records_of(buffer: Buffer, header: BatchHeader, decompressed_max: int) -> tuple[Buffer, int, int, int]:
    """Return the buffer the records are in, their start and stop, and where they were compressed or -1."""
    compression = header.compression
    if compression is Compression.NONE:
        return buffer, header.position + HEADER_SIZE, header.end, -1
    compressed = memoryview(buffer)[header.position + HEADER_SIZE : header.end]
    records = decompress(compression, compressed, decompressed_max, header.position)
    return records, 0, len(records), header.position


def _stop_error(buffer: Buffer, position: int, reason: Stop) -> FrameError:
    left = len(buffer) - position
    if reason is Stop.END or (reason is Stop.SHORT and left < HEADER_SIZE):
        return TruncatedFrame(
            position=position,
            expected=f"a header of {HEADER_SIZE} bytes",
            found=f"{max(left, 0)} bytes",
            what="batch",
        )
    if reason is Stop.ZEROS:
        return InvalidBatch(position=position, expected="a batch", found="zeros", what="batch header")
    field = dict(zip(_HEADER_FIELDS, HEADER.unpack_from(buffer, position), strict=True))
    size = field["batch length"] + LENGTH_OVERHEAD
    if reason is Stop.SHORT:
        return TruncatedFrame(
            position=position, expected=f"{size} bytes", found=f"{left} bytes", what="batch"
        )
    if reason is Stop.BAD_MAGIC:
        return UnsupportedFrame(position=position + 16, expected=MAGIC, found=field["magic"], what="magic")
    if reason is Stop.TOO_LARGE:
        return FrameTooLarge(
            position=position + 8, expected="no more than the limit", found=f"{size} bytes", what="batch"
        )
    name, at, expected = _STOP_FIELDS[reason]
    return InvalidBatch(position=position + at, expected=expected, found=field[name], what=name)


_HEADER_FIELDS = (
    "base offset",
    "batch length",
    "leader epoch",
    "magic",
    "checksum",
    "attributes",
    "last offset delta",
    "base timestamp",
    "max timestamp",
    "producer id",
    "producer epoch",
    "base sequence",
    "record count",
)
_STOP_FIELDS = {
    Stop.BAD_LENGTH: ("batch length", 8, f"at least {HEADER_SIZE - LENGTH_OVERHEAD}"),
    Stop.BAD_OFFSET: ("base offset", 0, "offsets that go on after the batch before"),
    Stop.BAD_EPOCH: ("leader epoch", 12, "no less than the batch before"),
    Stop.BAD_COUNT: ("record count", 57, "0 up to the last offset delta plus one"),
}
