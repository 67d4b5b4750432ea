"""Store the last offset of each key, and copy the records that are kept."""

from __future__ import annotations

from cordwood.kernels.layout import (
    BinaryBuffers,
    Buffer,
)
from cordwood.kernels.reference.bounds import check_bounds
from cordwood.kernels.reference.columns import ColumnSource, numbers_of


class KeyMap:
    """The last offset of each key, for at most *capacity* keys.

    The compiled map takes 24 bytes per slot, for keys of any length: it stores a hash of 128 bits under a
    *secret* of 16 bytes for each key. One caller at a time.
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

    def note(
        self, column: BinaryBuffers, offsets: Buffer, rows: int, start: int = 0, known: bool = False
    ) -> int:
        """Add the keys of *rows* records from row *start* on; return the row after the last added one.

        That is *rows*, unless the map is full: then all keys before that row are added. Skips null keys, and
        with *known* all keys that the map does not have.
        """
        keys, each = _keyed_rows(column, offsets, rows, start)
        for i in range(start, rows):
            key = keys.get(i, i)
            if key is None or (known and key not in self._last):
                continue
            if key not in self._last and len(self._last) >= self._capacity:
                return i
            self._last[key] = max(each[i], self._last.get(key, each[i]))
        return rows

    def superseded(self, column: BinaryBuffers, offsets: Buffer, rows: int) -> bytearray:
        """Return one byte for each of *rows* records: 1 if its key has a later offset in the map, else 0."""
        keys, each = _keyed_rows(column, offsets, rows, 0)
        found = bytearray(rows)
        for i in range(rows):
            key = keys.get(i, i)
            found[i] = key is not None and self._last.get(key, each[i]) > each[i]
        return found


def _keyed_rows(
    column: BinaryBuffers, offsets: Buffer, rows: int, start: int
) -> tuple[ColumnSource, memoryview]:
    keys, each = ColumnSource(column), numbers_of(offsets, "q")
    if not 0 <= start <= rows or len(keys) < rows or len(each) < rows:
        raise ValueError(f"a column is shorter than {rows} rows")
    return keys, each


def keep_records(
    buffer: Buffer, start: int, stop: int, dropped: Buffer, first: int, count: int
) -> tuple[Buffer, int, int]:
    """Return the bytes of those of *count* records in [start, stop) whose byte in *dropped* is 0.

    Record i has byte ``first + i``. Also returns their number and their largest timestamp delta. The bytes of
    each record are unchanged.

    Raises:
        ValueError: Unless the bytes are exactly *count* whole records.
    """
    check_bounds(buffer, start, stop)
    check_bounds(dropped, first, first + count)
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
    """Return the position after a zig-zag varint and its value; the position is -1 if it is incomplete."""
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
