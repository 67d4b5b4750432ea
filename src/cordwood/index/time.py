"""The time index: which frame reached a timestamp first. docs/formats/directory.md has its bytes."""

from __future__ import annotations

import struct

ENTRY = struct.Struct(">qQ")
assert ENTRY.size == 16

#: The largest timestamp of a segment without records.
NO_TIMESTAMP = -1


class TimeIndex:
    """Entries (largest timestamp so far, base offset of the frame that reached it), both ascending.

    A *sparse* index has an entry for the first frame. It gets another one when the offset index gets an entry
    for a frame and the timestamp has grown in the frames before that one. So frames that reached a timestamp
    without an entry are never before the last indexed frame. Beside a dense offset index, blocks of
    *block_records* offsets from *first_offset* on take the place of its entries. An index that is not sparse,
    as earlier versions wrote it, gets an entry whenever the timestamp grows.

    ``entries`` is the content of the index file, byte for byte. ``largest`` is the largest timestamp of all
    frames that were added, and of those that the entries name. Not safe for concurrent `add`; lookups may run
    beside one adding thread.
    """

    def __init__(
        self,
        entries: bytes | bytearray = b"",
        *,
        sparse: bool = False,
        block_records: int = 0,
        first_offset: int = 0,
    ) -> None:
        """Continue *entries*; the next frame to `add` is the last indexed one, or one after it."""
        self.entries = bytearray(entries)
        self.sparse = sparse
        self.largest = self._timestamp(len(self) - 1) if len(self) else NO_TIMESTAMP
        self._block_records = block_records
        self._first_offset = first_offset
        #: The frame that reached ``largest``, and the timestamp of the last entry.
        self._reached_at = self.last_offset()
        self._recorded = self.largest

    def __len__(self) -> int:
        return len(self.entries) // ENTRY.size

    def add(self, timestamp: int | None, base_offset: int, *, is_indexed: bool) -> None:
        """Add an appended frame: its largest timestamp, None if it has no records.

        *is_indexed* says whether the offset index got an entry for it.
        """
        if self.sparse and self.largest > self._recorded:
            if self._block_records:
                is_indexed = self.block_start(base_offset) > self._reached_at
            if is_indexed:
                self._record()
        if timestamp is not None and (timestamp > self.largest or not self.entries):
            self.largest, self._reached_at = timestamp, base_offset
            if not self.sparse or not self.entries:
                self._record()

    def _record(self) -> None:
        """Add the entry of the largest timestamp."""
        self.entries += ENTRY.pack(self.largest, self._reached_at)
        self._recorded = self.largest

    def block_start(self, offset: int) -> int:
        """Return the first offset of the block of *offset*, in an index that has blocks."""
        return offset - (offset - self._first_offset) % self._block_records

    @property
    def has_blocks(self) -> bool:
        """Whether blocks of offsets take the place of the entries of the offset index."""
        return self._block_records > 0

    def first_timestamp(self) -> int:
        """Return the largest timestamp of the first frame. There must be one."""
        return self._timestamp(0)

    def last_offset(self) -> int:
        """Return the offset of the last entry, -1 without any."""
        return self._offset(len(self) - 1) if len(self) else -1

    def first_at(self, timestamp: int) -> int | None:
        """Return the offset of the first entry at or after *timestamp*, None without one.

        If the index is not sparse, that frame is the first one that holds a record at or after *timestamp*.
        In a sparse one, the first such frame is that one or between it and the indexed frame before it.
        Without such an entry, it can only be the last indexed frame or one after that.
        """
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
        """Return the largest timestamp of the entries below *offset*, NO_TIMESTAMP without any."""
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
