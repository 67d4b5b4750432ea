"""Decode batches: headers to a table, records to objects or columns."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import TypeVar

from cordwood.kernels.layout import (
    HEADER,
    HEADER_COLUMNS,
    HEADER_SIZE,
    INT32_MAX,
    INT64_MAX,
    INT64_MIN,
    LENGTH_OVERHEAD,
    Buffer,
    ColumnBuffers,
    HeaderBuffers,
    HeaderColumn,
    Stop,
    Want,
)
from cordwood.kernels.reference.bounds import check_bounds
from cordwood.kernels.reference.columns import lay_out, pack
from cordwood.kernels.reference.records import RecordReader

Made = TypeVar("Made")

LOG_APPEND_TIME = 0x08

TABLE_ROW = struct.Struct(f"={HEADER_COLUMNS}q")


def scan_headers(
    buffer: Buffer,
    start: int,
    stop: int,
    size_max: int,
    next_offset: int,
    dense: bool,
    epoch_low: int,
    epoch_high: int,
) -> tuple[Buffer, int, int]:
    """Read batch headers from *start* up to *stop* until one is incomplete or invalid.

    A header is valid if its magic is 2, its size is within [61, *size_max*], its offsets start at or after
    *next_offset*, and then at or after the end of the previous batch (if *dense*, exactly there), and its
    leader epoch is within [*epoch_low*, *epoch_high*] and not below that of the previous batch. Checksums and
    records are not checked.

    Returns:
        The header table (a row of `HeaderColumn` int64 values per batch), the position where the
        scan stopped, and the `Stop` reason.
    """
    check_bounds(buffer, start, stop)
    view = memoryview(buffer)
    table = bytearray()
    position = start
    while position < stop:
        head = view[position : min(position + HEADER_SIZE, stop)]
        # Fewer zero bytes than a header prove nothing: a base offset begins with some.
        if len(head) < HEADER_SIZE:
            return table, position, Stop.SHORT
        if not any(head):
            return table, position, Stop.ZEROS
        (offset, length, epoch, magic, crc, attributes, last_delta, *rest, count) = HEADER.unpack(head)
        size = length + LENGTH_OVERHEAD
        if magic != 2:
            return table, position, Stop.BAD_MAGIC
        if size < HEADER_SIZE:
            return table, position, Stop.BAD_LENGTH
        if size > size_max:
            return table, position, Stop.TOO_LARGE
        misplaced = offset != next_offset if dense else offset < next_offset
        if misplaced or last_delta < 0 or offset + last_delta >= INT64_MAX:
            return table, position, Stop.BAD_OFFSET
        if not epoch_low <= epoch <= epoch_high:
            return table, position, Stop.BAD_EPOCH
        if not 0 <= count <= last_delta + 1:
            return table, position, Stop.BAD_COUNT
        if size > stop - position:
            return table, position, Stop.SHORT
        table += TABLE_ROW.pack(position, size, offset, epoch, crc, attributes, last_delta, *rest, count)
        next_offset, epoch_low = offset + last_delta + 1, epoch
        position += size
    return table, position, Stop.END


def walk_records(
    buffer: Buffer,
    start: int,
    stop: int,
    count: int,
    last_offset_delta: int,
    base_timestamp: int,
    dense: bool,
    compressed_at: int,
) -> tuple[int, int]:
    """Check that [start, stop) holds exactly *count* well-formed records.

    Returns the largest timestamp and the size of the largest record, its length field included.

    Offset deltas must ascend and not exceed *last_offset_delta*; if *dense*, they must be 0, 1, 2, …. For an
    empty batch the timestamp is -1 and the size 0. *compressed_at* is the position of the batch if the bytes
    were decompressed, else -1.

    Raises:
        InvalidBatch: For the first fault, with its position, expectation and finding.
    """
    check_bounds(buffer, start, stop)
    reader = RecordReader(buffer, start, stop, compressed_at)
    reader.check_count(count)
    low, delta_max, size_max = 0, INT64_MIN, 0
    for i in range(count):
        before = reader.position
        timestamp_delta, offset_delta, *_ = reader.record(
            low, i if dense else last_offset_delta, base_timestamp
        )
        low = offset_delta + 1
        delta_max = max(delta_max, timestamp_delta)
        size_max = max(size_max, reader.position - before)
    reader.check_end()
    return base_timestamp + delta_max if count else -1, size_max


def decode_rows(
    make: Callable[[int, int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]], Made],
    buffer: Buffer,
    start: int,
    stop: int,
    count: int,
    base_offset: int,
    last_offset_delta: int,
    base_timestamp: int,
    append_timestamp: int,
    log_append_time: bool,
    compressed_at: int,
) -> list[Made]:
    """Decode *count* records to objects: ``make(offset, timestamp, key, value, headers)`` for each."""
    check_bounds(buffer, start, stop)
    reader = RecordReader(buffer, start, stop, compressed_at)
    reader.check_count(count)
    made, low = [], 0
    for _ in range(count):
        timestamp_delta, offset_delta, key, value, headers = reader.record(
            low, last_offset_delta, base_timestamp
        )
        low = offset_delta + 1
        timestamp = append_timestamp if log_append_time else base_timestamp + timestamp_delta
        made.append(
            make(
                base_offset + offset_delta,
                timestamp,
                key,
                value,
                tuple((name.decode(), content) for name, content in headers),
            )
        )
    reader.check_end()
    return made


def decode_columns(
    buffer: Buffer, table: Buffer, payloads: Sequence[Buffer | None], want: int
) -> ColumnBuffers:
    """Decode the batches of a header *table* to one buffer per requested column.

    ``payloads[i]`` has the decompressed records of batch i, or is None if its records in *buffer* are not
    compressed. Every record is checked, whichever columns are requested. At most 2 GiB of records per call,
    because the offsets of a byte-string column have 32 bits.
    """
    rows = list(TABLE_ROW.iter_unpack(memoryview(table)))
    if len(payloads) != len(rows):
        raise ValueError(f"{len(rows)} batches need as many payloads, not {len(payloads)}")
    sizes = (
        row[HeaderColumn.SIZE] if payload is None else len(payload)
        for row, payload in zip(rows, payloads, strict=True)
    )
    if (size := sum(sizes)) > INT32_MAX:
        raise ValueError(f"decode at most {INT32_MAX} bytes of records at a time, not {size}")
    columns = _Columns()
    for b, (row, payload) in enumerate(zip(rows, payloads, strict=True)):
        position, end = row[HeaderColumn.POSITION], row[HeaderColumn.POSITION] + row[HeaderColumn.SIZE]
        if payload is None:
            if position < 0 or row[HeaderColumn.SIZE] < HEADER_SIZE or end > len(buffer):
                raise IndexError(f"batch {b} of the table is not within the buffer")
            reader = RecordReader(buffer, position + HEADER_SIZE, end, -1)
        else:
            reader = RecordReader(payload, 0, len(payload), position)
        columns.add_batch(reader, row)
    return columns.finish(Want(want))


class _Columns:
    """Columns under construction, as lists; converted to Arrow buffers at the end."""

    def __init__(self) -> None:
        self.offsets: list[int] = []
        self.timestamps: list[int] = []
        self.types: list[int] = []
        self.keys: list[bytes | None] = []
        self.values: list[bytes | None] = []
        self.list_offsets = [0]
        self.names: list[bytes | None] = []
        self.header_values: list[bytes | None] = []

    def add_batch(self, reader: RecordReader, row: Sequence[int]) -> None:
        base_offset, base_timestamp = row[HeaderColumn.BASE_OFFSET], row[HeaderColumn.BASE_TIMESTAMP]
        log_append_time = bool(row[HeaderColumn.ATTRIBUTES] & LOG_APPEND_TIME)
        reader.check_count(row[HeaderColumn.COUNT])
        low = 0
        for _ in range(row[HeaderColumn.COUNT]):
            timestamp_delta, offset_delta, key, value, headers = reader.record(
                low, row[HeaderColumn.LAST_OFFSET_DELTA], base_timestamp
            )
            low = offset_delta + 1
            self.offsets.append(base_offset + offset_delta)
            self.timestamps.append(
                row[HeaderColumn.MAX_TIMESTAMP] if log_append_time else base_timestamp + timestamp_delta
            )
            self.types.append(log_append_time)
            self.keys.append(key)
            self.values.append(value)
            for name, content in headers:
                self.names.append(name)
                self.header_values.append(content)
            self.list_offsets.append(len(self.names))
        reader.check_end()

    def finish(self, want: Want) -> ColumnBuffers:
        rows = len(self.offsets)
        headers = HeaderBuffers(
            pack("i", self.list_offsets), lay_out(self.names), lay_out(self.header_values)
        )
        return ColumnBuffers(
            rows,
            pack("q", self.offsets) if want & Want.OFFSET else None,
            pack("q", self.timestamps) if want & Want.TIMESTAMP else None,
            pack("i", self.types) if want & Want.TIMESTAMP_TYPE else None,
            lay_out(self.keys) if want & Want.KEY else None,
            lay_out(self.values) if want & Want.VALUE else None,
            headers if want & Want.HEADERS else None,
        )
