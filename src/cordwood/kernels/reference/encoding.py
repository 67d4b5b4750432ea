"""Encode rows or columns as the records of one batch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from cordwood.errors import RecordRefused
from cordwood.kernels.layout import (
    INT32_MAX,
    INT64_MAX,
    INT64_MIN,
    ColumnBuffers,
)
from cordwood.kernels.reference.columns import ColumnSource, HeaderSource, numbers_of


def encode_columns(
    columns: ColumnBuffers, start: int, stop: int, headroom: int
) -> tuple[bytearray, int, int, int]:
    """Encode rows [start, stop) as the records of one batch, after *headroom* zero bytes for its header.

    Offset deltas are 0, 1, 2, … or, if *columns* has offsets, the differences from the first offset.

    Returns:
        Headroom and records, the base and the largest timestamp, and the last offset delta.
    """
    if not 0 <= start < stop <= columns.rows:
        raise IndexError(f"rows [{start}, {stop}) are not within {columns.rows}")
    assert columns.timestamp is not None
    assert columns.value is not None
    timestamps = numbers_of(columns.timestamp, "q")
    offsets = None if columns.offset is None else numbers_of(columns.offset, "q")
    keys = None if columns.key is None else ColumnSource(columns.key)
    values = ColumnSource(columns.value)
    headers = None if columns.headers is None else HeaderSource(columns.headers, columns.rows)
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

    Returns the same as `encode_columns`; the last offset delta is -1 if there are no rows.

    Raises:
        RecordRefused: If a row does not have that form. No row is encoded.
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
