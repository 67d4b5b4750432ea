"""The time index: the first frame that reached a timestamp. docs/formats/directory.md has its bytes."""

from __future__ import annotations

import struct

ENTRY = struct.Struct(">qQ")
assert ENTRY.size == 16

#: The largest timestamp of a segment without records.
NO_TIMESTAMP = -1


class TimeIndex:
    """Entries (largest timestamp so far, base offset of the frame that reached it), both ascending.

    ``entries`` is the content of the index file, byte for byte. Not safe for concurrent `add`;
    lookups may run beside one adding thread.
    """

    def __init__(self, entries: bytes | bytearray = b"") -> None:
        self.entries = bytearray(entries)
        self.largest = self._timestamp(len(self) - 1) if len(self) else NO_TIMESTAMP

    def __len__(self) -> int:
        return len(self.entries) // ENTRY.size

    def add(self, timestamp: int, base_offset: int) -> None:
        """Add the largest timestamp of an appended frame."""
        if timestamp > self.largest or not self.entries:
            self.entries += ENTRY.pack(timestamp, base_offset)
            self.largest = timestamp

    def first_timestamp(self) -> int:
        """Return the largest timestamp of the first frame. There must be one."""
        return self._timestamp(0)

    def last_offset(self) -> int:
        """Return the offset of the last entry, -1 without any."""
        return self._offset(len(self) - 1) if len(self) else -1

    def first_at(self, timestamp: int) -> int | None:
        """Return the base offset of the first frame that holds a record at or after *timestamp*."""
        low, high = 0, len(self)
        while low < high:
            middle = (low + high) // 2
            if self._timestamp(middle) < timestamp:
                low = middle + 1
            else:
                high = middle
        if low == len(self):
            return None
        return self._offset(low)

    def largest_below(self, offset: int) -> int:
        """Return the largest timestamp of the frames that start below *offset*, NO_TIMESTAMP without any."""
        low, high = 0, len(self)
        while low < high:
            middle = (low + high) // 2
            if self._offset(middle) < offset:
                low = middle + 1
            else:
                high = middle
        return self._timestamp(low - 1) if low else NO_TIMESTAMP

    def _offset(self, entry: int) -> int:
        return int.from_bytes(self.entries[entry * 16 + 8 : entry * 16 + 16], "big")

    def _timestamp(self, entry: int) -> int:
        return int.from_bytes(self.entries[entry * 16 : entry * 16 + 8], "big", signed=True)
