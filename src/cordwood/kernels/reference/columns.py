"""Writing and reading of columns of byte strings and numbers in Arrow's layout."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Literal

from cordwood.kernels.layout import (
    BinaryBuffers,
    Buffer,
    HeaderBuffers,
)


def pack(code: str, numbers: Sequence[int]) -> bytes:
    """Return *numbers* as a buffer of the type *code*."""
    return struct.pack(f"={len(numbers)}{code}", *numbers)


def lay_out(items: Sequence[bytes | None]) -> BinaryBuffers:
    """Return byte strings in Arrow's layout."""
    offsets, data = [0], bytearray()
    validity = bytearray((len(items) + 7) // 8)
    for i, item in enumerate(items):
        if item is not None:
            validity[i >> 3] |= 1 << (i & 7)
            data += item
        offsets.append(len(data))
    nulls = sum(item is None for item in items)
    return BinaryBuffers(validity if nulls else None, pack("i", offsets), data, nulls)


def numbers_of(buffer: Buffer, code: Literal["i", "q"]) -> memoryview:
    """Return the numbers in a buffer; incomplete bytes at its end are ignored."""
    size = struct.calcsize(code)
    return memoryview(buffer).cast("B")[: len(buffer) // size * size].cast(code)


class ColumnSource:
    """A byte-string column to encode. Every offset is checked before it is used."""

    def __init__(self, column: BinaryBuffers) -> None:
        self.offsets = numbers_of(column.offsets, "i")
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


class HeaderSource:
    """A column of header lists to encode."""

    def __init__(self, column: HeaderBuffers, rows: int) -> None:
        self.offsets = numbers_of(column.offsets, "i")
        self.names = ColumnSource(column.names)
        self.values = ColumnSource(column.values)
        if len(self.offsets) < rows + 1:
            raise ValueError("the header lists are shorter than the columns")

    def get(self, row: int) -> tuple[tuple[bytes, bytes | None], ...]:
        """Return the headers of *row* as (name, value) pairs."""
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
