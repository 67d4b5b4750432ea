"""The index of aborted transactions of a segment, in Kafka's layout. docs/formats/directory.md has its bytes.

An entry belongs to the segment that holds the marker, wherever the records of the transaction are.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterator
from typing import NamedTuple

ENTRY = struct.Struct(
    ">h"  # version: 0
    "q"  # producer id
    "q"  # first offset of the transaction
    "q"  # offset of its marker
    "q"  # last stable offset once the marker was appended
)
ENTRY_SIZE = ENTRY.size
assert ENTRY_SIZE == 34
_VERSION = 0
#: How many entries a lookup steps over at once if all of their transactions begin too late.
_BLOCK = 64


class AbortedEntry(NamedTuple):
    """A transaction that was aborted: the producer's batches of [first offset, last offset] do not count.

    ``last_offset`` is that of its marker. A transaction whose marker comes later begins at or above
    ``last_stable_offset``.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class AbortedIndex:
    """Aborted transactions by the offset of their marker, ascending. ``entries`` is the content of the file.

    Not safe for concurrent `add` and `extend`; lookups may run beside one adding thread.
    """

    #: Whether entries may be missing, or wrong; see `DoubtfulIndex`.
    has_doubts = False

    def __init__(self, entries: bytes | bytearray = b"") -> None:
        self.entries = bytearray(entries)
        self._first_begins: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self.entries) // ENTRY_SIZE

    def __iter__(self) -> Iterator[AbortedEntry]:
        return (self._at(number) for number in range(len(self)))

    def add(self, aborted: AbortedEntry) -> None:
        """Add a transaction whose marker comes after all others."""
        self.entries += ENTRY.pack(_VERSION, *aborted)

    def extend(self, entries: bytes) -> None:
        """Add transactions as the file has them, whose markers come after all others."""
        self.entries += entries

    def count_below(self, offset: int) -> int:
        """Return how many entries have a marker below *offset*."""
        return bisect_left(range(len(self)), offset, key=lambda number: self._at(number).last_offset)

    def end_of(self, count: int) -> int:
        """Return the offset after the marker of the last of the first *count* entries."""
        return self._at(count - 1).last_offset + 1

    def within(self, start: int, stop: int) -> tuple[list[AbortedEntry], bool]:
        """Return the transactions that may have records in [start, stop), and whether later ones have none.

        The cost depends on what is found, whatever else is in the index: where a transaction stayed open
        beside thousands of others, all of them come before the entry that says that later ones have none.
        """
        total = len(self)
        stable = bisect_left(range(total), stop, key=lambda number: self._at(number).last_stable_offset)
        end = min(stable + 1, total)
        found: list[AbortedEntry] = []
        number = self.count_below(start)
        while number < end:
            block, place = divmod(number, _BLOCK)
            if place == 0 and number + _BLOCK <= end and self._first_begin(block) >= stop:
                number += _BLOCK
                continue
            aborted = self._at(number)
            if aborted.first_offset < stop:
                found.append(aborted)
            number += 1
        return found, stable < total

    def _first_begin(self, block: int) -> int:
        """Return the smallest first offset in a complete block of entries, which never changes."""
        found = self._first_begins.get(block)
        if found is None:
            start = block * _BLOCK
            found = min(self._at(number).first_offset for number in range(start, start + _BLOCK))
            self._first_begins[block] = found
        return found

    def _at(self, number: int) -> AbortedEntry:
        return AbortedEntry._make(ENTRY.unpack_from(self.entries, number * ENTRY_SIZE)[1:])
