"""Hash records one by one, and the lists of them that leaves of a chain commit to."""

from __future__ import annotations

import struct
from hashlib import sha256

from cordwood.kernels.layout import ITEM_SIZE, NO_KEY, NO_VALUE, SALT_SIZE, Buffer, ColumnBuffers
from cordwood.kernels.reference.columns import ColumnSource, HeaderSource, numbers_of

_LENGTH = struct.Struct(">i")
_TIMESTAMP = struct.Struct(">q")


def hash_records(columns: ColumnBuffers, salt: bytes) -> Buffer:
    """Return the item of each record, `ITEM_SIZE` bytes each: docs/integrity.md has the layout.

    *columns* must have keys, values, headers and timestamps.

    Raises:
        ValueError: If a column is missing or its offsets do not lie within its data, or *salt* has not
            `SALT_SIZE` bytes.
    """
    if len(salt) != SALT_SIZE:
        raise ValueError(f"a salt of {len(salt)} bytes, not {SALT_SIZE}")
    if columns.key is None or columns.value is None or columns.headers is None or columns.timestamp is None:
        raise ValueError("a column is missing")
    keys, values = ColumnSource(columns.key), ColumnSource(columns.value)
    headers, times = HeaderSource(columns.headers, columns.rows), numbers_of(columns.timestamp, "q")
    if min(len(keys), len(values), len(times)) < columns.rows:
        raise ValueError(f"a column is shorter than {columns.rows} rows")
    out = bytearray()
    for row in range(columns.rows):
        key, value = keys.get(row, row), values.get(row, row)
        out.append((NO_KEY if key is None else 0) | (NO_VALUE if value is None else 0))
        out += sha256(b"\1" + salt + (key or b"")).digest()
        rest = sha256(b"\2" + _TIMESTAMP.pack(times[row]) + _sized(value))
        listed = headers.get(row)
        rest.update(_LENGTH.pack(len(listed)))
        for name, header in listed:
            rest.update(_sized(name) + _sized(header))
        out += rest.digest()
    return out


def _sized(value: bytes | None) -> bytes:
    return _LENGTH.pack(-1) if value is None else _LENGTH.pack(len(value)) + value


def list_roots(items: Buffer, offsets: Buffer, counts: Buffer) -> Buffer:
    """Return the root over each list of items, 32 bytes each: the Merkle tree of RFC 6962 over its entries.

    The items of all lists follow each other; *offsets* has the int64 offset of each record, *counts* the
    int64 number of items of each list. The entry of a record, which is a leaf of the tree, is the SHA-256 of
    a zero byte, the offset in 8 bytes, big-endian, and the item.

    Raises:
        ValueError: If the counts do not add up to the number of items, or there are fewer offsets.
    """
    each, lengths, data = numbers_of(offsets, "q"), numbers_of(counts, "q"), memoryview(items).cast("B")
    rows = sum(lengths)
    if len(data) != rows * ITEM_SIZE or len(each) < rows or min(lengths, default=0) < 0:
        raise ValueError(f"{len(data)} bytes of items and {len(each)} offsets for lists of {rows} records")
    out, row = bytearray(), 0
    for count in lengths:
        entries = [
            sha256(b"\0" + _TIMESTAMP.pack(each[at]) + data[at * ITEM_SIZE : (at + 1) * ITEM_SIZE]).digest()
            for at in range(row, row + count)
        ]
        out += _root(entries)
        row += count
    return out


def _root(hashes: list[bytes]) -> bytes:
    if not hashes:
        return sha256().digest()
    while len(hashes) > 1:
        paired = [sha256(b"\1" + a + b).digest() for a, b in zip(hashes[::2], hashes[1::2], strict=False)]
        # A node without a sibling is passed up unchanged.
        hashes = paired + hashes[len(paired) * 2 :]
    return hashes[0]
