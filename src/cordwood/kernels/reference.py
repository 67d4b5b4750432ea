"""The kernels in plain Python: what they do, said once where anyone can read it.

They run where no compiler was there when Cordwood was installed, and the compiled ones are held to
them, byte for byte and error for error, by tests/kernels.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, TypeVar

from cordwood.errors import InvalidBatch, RecordRefused
from cordwood.kernels.layout import (
    HEADER_COLUMNS,
    HEADER_SIZE,
    INT32_MAX,
    INT64_MAX,
    INT64_MIN,
    LENGTH_OVERHEAD,
    RECORD_SIZE_MIN,
    BinaryBuffers,
    Buffer,
    ColumnBuffers,
    Field,
    Finding,
    HeaderBuffers,
    HeaderColumn,
    Stop,
    Want,
    invalid_records,
)

Made = TypeVar("Made")

LOG_APPEND_TIME = 0x08

#: The header of a batch, a field each: docs/formats/batch.md has the table.
HEADER = struct.Struct(
    ">"
    "q"  # base offset
    "i"  # batch length: bytes after this field
    "i"  # partition leader epoch
    "b"  # magic, 2
    "I"  # CRC-32C of everything after this field
    "h"  # attributes
    "i"  # last offset delta
    "q"  # base timestamp
    "q"  # max timestamp
    "q"  # producer id
    "h"  # producer epoch
    "i"  # base sequence
    "i"  # record count
)
assert HEADER.size == HEADER_SIZE

_ROW = struct.Struct(f"={HEADER_COLUMNS}q")


def readonly(source: Buffer, start: int, stop: int) -> Buffer:
    """Return bytes [start, stop) of *source* as an object that C functions accept like ``bytes``."""
    _check_bounds(source, start, stop)
    return bytes(memoryview(source)[start:stop])


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
    """Read batch headers from *start* up to *stop* until one is not whole or not valid.

    A header is valid if its magic is 2, its size lies within [61, *size_max*], its offsets start at
    or after *next_offset* and then after the batch before it (where *dense*, exactly there), and its
    leader epoch lies within [*epoch_low*, *epoch_high*] and not below that of the batch before it.
    Checksums are not looked at, records neither.

    Returns:
        The header table (a row of `HeaderColumn` int64 values per batch), the position where the
        scan stopped, and the `Stop` reason.
    """
    _check_bounds(buffer, start, stop)
    view = memoryview(buffer)
    table = bytearray()
    position = start
    while position < stop:
        head = view[position : min(position + HEADER_SIZE, stop)]
        # Fewer zeros than a header are no sign of anything: a base offset begins with some.
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
        table += _ROW.pack(position, size, offset, epoch, crc, attributes, last_delta, *rest, count)
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

    Offset deltas must rise and not exceed *last_offset_delta*; where *dense*, they must be 0, 1, 2, ….
    An empty batch has no timestamp, -1, and no size, 0. *compressed_at* is the position of the batch if
    the bytes were decompressed, -1 if they are the batch's own.

    Raises:
        InvalidBatch: With position, expectation and finding of the first thing that is wrong.
    """
    _check_bounds(buffer, start, stop)
    reader = _Reader(buffer, start, stop, compressed_at)
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
    _check_bounds(buffer, start, stop)
    reader = _Reader(buffer, start, stop, compressed_at)
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
    """Decode the batches of a header *table* to one buffer per wanted column.

    ``payloads[i]`` holds the decompressed records of batch i, or is None where they stand in *buffer*
    as they are. Every record is checked whether or not its columns are wanted. At most 2 GiB of
    records in one call, because the offsets of a byte-string column are 32 bits wide.
    """
    rows = list(_ROW.iter_unpack(memoryview(table)))
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
            reader = _Reader(buffer, position + HEADER_SIZE, end, -1)
        else:
            reader = _Reader(payload, 0, len(payload), position)
        columns.add_batch(reader, row)
    return columns.finish(Want(want))


def encode_columns(
    columns: ColumnBuffers, start: int, stop: int, headroom: int
) -> tuple[bytearray, int, int, int]:
    """Encode rows [start, stop) as the records of one batch, after *headroom* zero bytes for its header.

    Offset deltas are 0, 1, 2, … or, where *columns* has offsets, the distance from the first.

    Returns:
        Headroom and records, the base and the largest timestamp, and the last offset delta.
    """
    if not 0 <= start < stop <= columns.rows:
        raise IndexError(f"rows [{start}, {stop}) are not within {columns.rows}")
    assert columns.timestamp is not None
    assert columns.value is not None
    timestamps = _numbers(columns.timestamp, "q")
    offsets = None if columns.offset is None else _numbers(columns.offset, "q")
    keys = None if columns.key is None else _Source(columns.key)
    values = _Source(columns.value)
    headers = None if columns.headers is None else _HeaderSource(columns.headers, columns.rows)
    for numbers in (timestamps, offsets, keys, values):
        if numbers is not None and len(numbers) < columns.rows:
            raise ValueError(f"a column is shorter than {columns.rows} rows")
    base_timestamp, base_offset = timestamps[start], 0 if offsets is None else offsets[start]
    out, last_delta = bytearray(headroom), -1
    for i in range(start, stop):
        key = None if keys is None else keys.get(i, i)
        value = values.get(i, i)
        header_list = () if headers is None else headers.get(i)
        delta = i - start if offsets is None else offsets[i] - base_offset
        if not last_delta < delta <= INT32_MAX:
            raise ValueError(f"row {i}: offsets must rise, by less than 2**31 within a batch")
        last_delta = delta
        _put_record(out, i, timestamps[i] - base_timestamp, delta, key, value, header_list)
    return out, base_timestamp, max(timestamps[start:stop]), last_delta


def encode_rows(
    rows: Iterable[Sequence[Any]], default_timestamp: int, headroom: int
) -> tuple[bytearray, int, int, int]:
    """Encode ``(key, value[, headers[, timestamp]])`` rows as the records of one batch.

    Returns what `encode_columns` returns; the last offset delta is -1 where there are no rows.

    Raises:
        RecordRefused: If a row is not of that form. Nothing is kept of the others.
    """
    out = bytearray(headroom)
    base_timestamp = max_timestamp = 0
    delta = -1
    for row in rows:
        delta += 1
        if not 2 <= len(row) <= 4:
            raise RecordRefused(
                f"row {delta} has {len(row)} fields; a row is (key, value[, headers[, timestamp]])"
            )
        key = None if row[0] is None else _as_bytes(row[0], "key")
        value = None if row[1] is None else _as_bytes(row[1], "value")
        headers = tuple(map(_encode_header, row[2] or ())) if len(row) > 2 else ()
        timestamp = default_timestamp
        if len(row) > 3 and row[3] is not None:
            timestamp = row[3]
            if not isinstance(timestamp, int) or not INT64_MIN <= timestamp <= INT64_MAX:
                raise RecordRefused(f"timestamp must be milliseconds as a 64-bit integer, not {timestamp!r}")
        if delta == 0:
            base_timestamp = max_timestamp = timestamp
        max_timestamp = max(max_timestamp, timestamp)
        _put_record(out, delta, timestamp - base_timestamp, delta, key, value, headers)
    return out, base_timestamp, max_timestamp, delta


def _check_bounds(buffer: Buffer, start: int, stop: int) -> None:
    if not 0 <= start <= stop <= len(buffer):
        raise IndexError(f"[{start}, {stop}) is not within {len(buffer)} bytes")


class _Reader:
    """Reads records from a buffer, raising the error that names the first field that is wrong."""

    def __init__(self, buffer: Buffer, start: int, stop: int, compressed_at: int) -> None:
        self.view = memoryview(buffer).cast("B")
        self.position = start
        self.stop = stop
        self.compressed_at = compressed_at

    def error(
        self, finding: Finding, field: Field, position: int, low: int = 0, high: int = 0, found: int = 0
    ) -> InvalidBatch:
        return invalid_records(finding, field, position, low, high, found, self.compressed_at)

    def check_range(self, field: Field, position: int, low: int, high: int, found: int) -> None:
        if not low <= found <= high:
            raise self.error(Finding.OUT_OF_RANGE, field, position, low, high, found)

    def check_count(self, count: int) -> None:
        limit = (self.stop - self.position) // RECORD_SIZE_MIN
        self.check_range(Field.COUNT, self.position, 0, limit, count)

    def check_end(self) -> None:
        self.check_range(Field.RECORDS_END, self.position, 0, 0, self.stop - self.position)

    def varint(self, end: int, bits: int, field: Field) -> int:
        """Read a zig-zag varint of at most *bits* bits, strictly before *end*."""
        start, raw, shift = self.position, 0, 0
        while True:
            if self.position >= end:
                raise self.error(Finding.CUT_OFF, field, start, found=end - start)
            byte = self.view[self.position]
            self.position += 1
            # The last byte may only carry the bits that are left, and must be the last.
            if shift + 7 > bits and byte >> (bits - shift):
                raise self.error(Finding.VARINT_TOO_LONG, field, start, high=bits)
            raw |= (byte & 0x7F) << shift
            if byte < 0x80:
                return (raw >> 1) ^ -(raw & 1)
            shift += 7

    def sized(self, end: int, field: Field, low: int) -> bytes | None:
        """Read a length of at least *low* and that many bytes; a length of -1 is None."""
        start = self.position
        length = self.varint(end, 32, field)
        self.check_range(field, start, low, end - self.position, length)
        if length < 0:
            return None
        self.position += length
        return bytes(self.view[self.position - length : self.position])

    def record(
        self, delta_low: int, delta_high: int, base_timestamp: int
    ) -> tuple[int, int, bytes | None, bytes | None, list[tuple[bytes, bytes | None]]]:
        """Read one record: timestamp delta, offset delta, key, value, headers."""
        start = self.position
        length = self.varint(self.stop, 32, Field.LENGTH)
        self.check_range(Field.LENGTH, start, 0, self.stop - self.position, length)
        end = self.position + length
        if length == 0:
            raise self.error(Finding.CUT_OFF, Field.ATTRIBUTES, self.position)
        self.position += 1
        start = self.position
        timestamp_delta = self.varint(end, 64, Field.TIMESTAMP_DELTA)
        low = INT64_MIN - min(base_timestamp, 0)
        high = INT64_MAX - max(base_timestamp, 0)
        self.check_range(Field.TIMESTAMP_DELTA, start, low, high, timestamp_delta)
        start = self.position
        offset_delta = self.varint(end, 32, Field.OFFSET_DELTA)
        self.check_range(Field.OFFSET_DELTA, start, delta_low, delta_high, offset_delta)
        key = self.sized(end, Field.KEY, -1)
        value = self.sized(end, Field.VALUE, -1)
        start = self.position
        header_count = self.varint(end, 32, Field.HEADER_COUNT)
        self.check_range(Field.HEADER_COUNT, start, 0, (end - self.position) // 2, header_count)
        headers = []
        for _ in range(header_count):
            start = self.position
            name = self.sized(end, Field.HEADER_NAME, 0)
            assert name is not None
            try:
                name.decode()
            except UnicodeDecodeError:
                raise self.error(Finding.NOT_UTF8, Field.HEADER_NAME, start) from None
            headers.append((name, self.sized(end, Field.HEADER_VALUE, -1)))
        self.check_range(Field.RECORD_END, self.position, 0, 0, end - self.position)
        return timestamp_delta, offset_delta, key, value, headers


class _Columns:
    """Columns being filled, as lists; laid out as Arrow buffers at the end."""

    def __init__(self) -> None:
        self.offsets: list[int] = []
        self.timestamps: list[int] = []
        self.types: list[int] = []
        self.keys: list[bytes | None] = []
        self.values: list[bytes | None] = []
        self.list_offsets = [0]
        self.names: list[bytes | None] = []
        self.header_values: list[bytes | None] = []

    def add_batch(self, reader: _Reader, row: Sequence[int]) -> None:
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
            _pack("i", self.list_offsets), _binary(self.names), _binary(self.header_values)
        )
        return ColumnBuffers(
            rows,
            _pack("q", self.offsets) if want & Want.OFFSET else None,
            _pack("q", self.timestamps) if want & Want.TIMESTAMP else None,
            _pack("i", self.types) if want & Want.TIMESTAMP_TYPE else None,
            _binary(self.keys) if want & Want.KEY else None,
            _binary(self.values) if want & Want.VALUE else None,
            headers if want & Want.HEADERS else None,
        )


def _pack(code: str, numbers: Sequence[int]) -> bytes:
    return struct.pack(f"={len(numbers)}{code}", *numbers)


def _binary(items: Sequence[bytes | None]) -> BinaryBuffers:
    """Lay out byte strings as Arrow does."""
    offsets, data = [0], bytearray()
    validity = bytearray((len(items) + 7) // 8)
    for i, item in enumerate(items):
        if item is not None:
            validity[i >> 3] |= 1 << (i & 7)
            data += item
        offsets.append(len(data))
    nulls = sum(item is None for item in items)
    return BinaryBuffers(validity if nulls else None, _pack("i", offsets), data, nulls)


def _numbers(buffer: Buffer, code: Literal["i", "q"]) -> memoryview:
    """Return the whole numbers of a buffer; what is left over at its end is not one."""
    size = struct.calcsize(code)
    return memoryview(buffer).cast("B")[: len(buffer) // size * size].cast(code)


class _Source:
    """A byte-string column to encode from, every offset checked before it is followed."""

    def __init__(self, column: BinaryBuffers) -> None:
        self.offsets = _numbers(column.offsets, "i")
        self.data = memoryview(column.data).cast("B")
        self.validity = None if column.validity is None else memoryview(column.validity).cast("B")
        if not self.offsets:
            raise ValueError("a byte-string column needs at least one offset")
        if self.validity is not None and len(self.validity) * 8 < len(self):
            raise ValueError("the validity bitmap is shorter than its column")

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def get(self, i: int, row: int) -> bytes | None:
        """Return value *i*, for row *row* of the columns."""
        if self.validity is not None and not self.validity[i >> 3] >> (i & 7) & 1:
            return None
        first, after = self.offsets[i], self.offsets[i + 1]
        if not 0 <= first <= after <= len(self.data):
            raise ValueError(f"row {row}: the offsets of a column do not lie within its data")
        return bytes(self.data[first:after])


class _HeaderSource:
    """A column of header lists to encode from."""

    def __init__(self, column: HeaderBuffers, rows: int) -> None:
        self.offsets = _numbers(column.offsets, "i")
        self.names = _Source(column.names)
        self.values = _Source(column.values)
        if len(self.offsets) < rows + 1:
            raise ValueError("the header lists are shorter than the columns")

    def get(self, row: int) -> tuple[tuple[bytes, bytes | None], ...]:
        first, after = self.offsets[row], self.offsets[row + 1]
        if not 0 <= first <= after <= min(len(self.names), len(self.values)):
            raise ValueError(f"row {row}: the offsets of a column do not lie within its data")
        found = []
        for h in range(first, after):
            name = self.names.get(h, row)
            if name is None:
                raise ValueError(f"row {row}: the offsets of a column do not lie within its data")
            found.append((name, self.values.get(h, row)))
        return tuple(found)


def _as_bytes(data: object, what: str) -> bytes:
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes(data)
    raise RecordRefused(f"{what} must be bytes or None, not {type(data).__name__}")


def _encode_header(header: Any) -> tuple[bytes, bytes | None]:
    try:
        name, content = header
    except (TypeError, ValueError):
        raise RecordRefused(f"a header is (name, value), not {header!r}") from None
    if not isinstance(name, str):
        raise RecordRefused(f"header name must be str, not {type(name).__name__}")
    try:
        encoded = name.encode()
    except UnicodeEncodeError:
        raise RecordRefused(f"header name {name!r} has no UTF-8 form") from None
    return encoded, None if content is None else _as_bytes(content, "header value")


def _put_varint(out: bytearray, value: int) -> None:
    raw = value << 1 if value >= 0 else (-value << 1) - 1
    while raw >= 0x80:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    out.append(raw)


def _put_sized(out: bytearray, data: bytes | None) -> None:
    if data is None:
        _put_varint(out, -1)
    else:
        _put_varint(out, len(data))
        out += data


def _put_record(
    out: bytearray,
    row: int,
    timestamp_delta: int,
    offset_delta: int,
    key: bytes | None,
    value: bytes | None,
    headers: Sequence[tuple[bytes, bytes | None]],
) -> None:
    if not INT64_MIN <= timestamp_delta <= INT64_MAX:
        raise RecordRefused(f"row {row}: its timestamp is too far from the first of the batch")
    body = bytearray(1)
    _put_varint(body, timestamp_delta)
    _put_varint(body, offset_delta)
    _put_sized(body, key)
    _put_sized(body, value)
    _put_varint(body, len(headers))
    for name, content in headers:
        _put_sized(body, name)
        _put_sized(body, content)
    if len(out) + len(body) + 10 > INT32_MAX:
        raise RecordRefused("the records of one batch exceed 2 GiB")
    _put_varint(out, len(body))
    out += body


# --- partitioning -----------------------------------------------------------------------------------

_MURMUR_SEED = 0x9747B28C
_MURMUR_FACTOR = 0x5BD1E995
_MASK32 = 0xFFFFFFFF


def murmur2(data: Buffer) -> int:
    """Return the 32-bit MurmurHash2 of *data* under Kafka's seed, unsigned."""
    key = bytes(data)
    size = len(key)
    h = _MURMUR_SEED ^ size
    whole = size & ~3
    for start in range(0, whole, 4):
        k = int.from_bytes(key[start : start + 4], "little") * _MURMUR_FACTOR & _MASK32
        k = (k ^ (k >> 24)) * _MURMUR_FACTOR & _MASK32
        h = (h * _MURMUR_FACTOR & _MASK32) ^ k
    if whole < size:
        h = (h ^ int.from_bytes(key[whole:], "little")) * _MURMUR_FACTOR & _MASK32
    h = (h ^ (h >> 13)) * _MURMUR_FACTOR & _MASK32
    return h ^ (h >> 15)


def partition_keys(column: BinaryBuffers, rows: int, partitions: int, keyless: int) -> bytearray:
    """Return the partition of each key of a column as int32, as Kafka's default partitioner has it.

    A null key gets *keyless*.
    """
    if partitions < 1:
        raise ValueError(f"{partitions} partitions")
    keys = _Source(column)
    if len(keys) < rows:
        raise ValueError(f"a column is shorter than {rows} rows")
    found = array("i")
    for i in range(rows):
        key = keys.get(i, i)
        found.append(keyless if key is None else (murmur2(key) & 0x7FFFFFFF) % partitions)
    return bytearray(found.tobytes())


# --- compaction -------------------------------------------------------------------------------------


class KeyMap:
    """The last offset of each key, for at most *capacity* keys.

    The compiled one keeps 24 bytes a slot, whatever the length of the keys: a hash of 128 bits under a
    *secret* of 16 bytes stands for each. One caller at a time.
    """

    def __init__(self, capacity: int, secret: bytes) -> None:
        if capacity < 1:
            raise ValueError(f"a map of {capacity} keys")
        if len(secret) != 16:
            raise ValueError(f"a secret of {len(secret)} bytes, not 16")
        self._capacity = capacity
        self._last: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._last)

    def note(self, column: BinaryBuffers, offsets: Buffer, rows: int, start: int = 0) -> int:
        """Take note of the keys of *rows* records from row *start* on, and return the row it stopped at.

        That is *rows*, unless a key did not fit any more: all before it were noted. Null keys are left out.
        """
        keys, each = _keyed_rows(column, offsets, rows, start)
        for i in range(start, rows):
            key = keys.get(i, i)
            if key is None:
                continue
            if key not in self._last and len(self._last) >= self._capacity:
                return i
            self._last[key] = max(each[i], self._last.get(key, each[i]))
        return rows

    def superseded(self, column: BinaryBuffers, offsets: Buffer, rows: int) -> bytearray:
        """Return a byte for each of *rows* records: 1 where its key is known to have a later one, else 0."""
        keys, each = _keyed_rows(column, offsets, rows, 0)
        found = bytearray(rows)
        for i in range(rows):
            key = keys.get(i, i)
            found[i] = key is not None and self._last.get(key, each[i]) > each[i]
        return found


def _keyed_rows(column: BinaryBuffers, offsets: Buffer, rows: int, start: int) -> tuple[_Source, memoryview]:
    keys, each = _Source(column), _numbers(offsets, "q")
    if not 0 <= start <= rows or len(keys) < rows or len(each) < rows:
        raise ValueError(f"a column is shorter than {rows} rows")
    return keys, each


def keep_records(
    buffer: Buffer, start: int, stop: int, dropped: Buffer, first: int, count: int
) -> tuple[Buffer, int, int]:
    """Return the bytes of those of *count* records in [start, stop) whose byte in *dropped* is 0.

    Record i has byte ``first + i``. Also returns how many they are, and the largest of their timestamp
    deltas. Records stay as they are, each with its own deltas.

    Raises:
        ValueError: If there are not so many whole records, and nothing else.
    """
    _check_bounds(buffer, start, stop)
    _check_bounds(dropped, first, first + count)
    records, flags = memoryview(buffer)[start:stop], memoryview(dropped)[first : first + count]
    out, kept, newest, position = bytearray(), 0, 0, 0
    for i in range(count):
        body, length = _plain_varint(records, position)
        if body < 0 or not 1 <= length <= len(records) - body:
            break
        after, delta = _plain_varint(records[: body + length], body + 1)
        if after < 0:
            break
        begin, position = position, body + length
        if not flags[i]:
            out += records[begin:position]
            newest = delta if not kept else max(newest, delta)
            kept += 1
    else:
        if position == len(records):
            return out, kept, newest
    raise ValueError(f"there are not {count} whole records in [{start}, {stop})")


def _plain_varint(data: memoryview, position: int) -> tuple[int, int]:
    """Return the position after a zig-zag varint and its value; -1 where it does not end."""
    raw = 0
    for shift in range(0, 70, 7):
        if position >= len(data):
            break
        byte = data[position]
        position += 1
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            raw &= (1 << 64) - 1
            value = (raw >> 1) ^ -(raw & 1)
            return position, value
    return -1, 0
