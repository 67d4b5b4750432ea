"""The sparse offset index: the positions of some frames. docs/formats/directory.md has its bytes."""

from __future__ import annotations

import struct

ENTRY = struct.Struct(">QQ")
assert ENTRY.size == 16


class SparseIndex:
    """Entries (offset, position), ascending. ``entries`` is the content of the index file, byte for byte.

    Not safe for concurrent `add`; lookups may run beside one adding thread.
    """

    def __init__(
        self, interval_bytes: int, entries: bytes | bytearray = b"", *, interval_records: int = 0
    ) -> None:
        """Continue *entries*: one every *interval_bytes*, or every *interval_records* if that is not 0."""
        self.entries = bytearray(entries)
        self.interval_bytes = interval_bytes
        self.interval_records = interval_records
        # At least one byte further: a frame that is read again after a restart gets no second entry.
        self._step = interval_records or max(interval_bytes, 1)
        self._due_at = 0
        if entries:
            offset, position = self._offset(len(self) - 1), self._position(len(self) - 1)
            self._due_at = (offset if interval_records else position) + self._step

    def __len__(self) -> int:
        return len(self.entries) // ENTRY.size

    def add(self, offset: int, position: int) -> bool:
        """Add an appended frame; return whether it got an entry: if it is far enough from the last one."""
        place = offset if self.interval_records else position
        if place < self._due_at:
            return False
        self.entries += ENTRY.pack(offset, position)
        self._due_at = place + self._step
        return True

    def floor_entry(self, offset: int) -> tuple[int, int] | None:
        """Return (offset, position) of the last indexed frame that starts at or before *offset*."""
        low, high = 0, len(self)
        while low < high:
            middle = (low + high) // 2
            if self._offset(middle) <= offset:
                low = middle + 1
            else:
                high = middle
        return (self._offset(low - 1), self._position(low - 1)) if low else None

    def ceiling_entry(self, offset: int) -> tuple[int, int] | None:
        """Return (offset, position) of the first indexed frame that starts at or after *offset*."""
        low, high = 0, len(self)
        while low < high:
            middle = (low + high) // 2
            if self._offset(middle) < offset:
                low = middle + 1
            else:
                high = middle
        return (self._offset(low), self._position(low)) if low < len(self) else None

    def last(self) -> tuple[int, int] | None:
        """Return (offset, position) of the last entry."""
        return (self._offset(len(self) - 1), self._position(len(self) - 1)) if len(self) else None

    def next_after(self, position: int) -> tuple[int, int] | None:
        """Return (offset, position) of the first indexed frame that starts after *position*."""
        low, high = 0, len(self)
        while low < high:
            middle = (low + high) // 2
            if self._position(middle) <= position:
                low = middle + 1
            else:
                high = middle
        return (self._offset(low), self._position(low)) if low < len(self) else None

    def resume_after(self, offset: int, position: int, end: int) -> tuple[int, int] | None:
        """Return the (offset, position) where a walk can continue after damage at *position*."""
        return self.next_after(position)

    def _offset(self, entry: int) -> int:
        return int.from_bytes(self.entries[entry * 16 : entry * 16 + 8], "big")

    def _position(self, entry: int) -> int:
        return int.from_bytes(self.entries[entry * 16 + 8 : entry * 16 + 16], "big")
