"""The dense index: an entry for every offset, which is also what the frames are checked against."""

from __future__ import annotations

from collections.abc import Callable

Reading = Callable[[int], int | None]
"""Returns where the frame of an offset starts, or the next one where it was removed; None past the end."""


class DenseIndex:
    """Looks up positions in a sidecar that has one for every offset; `sparse.SparseIndex` says what is asked.

    Nothing is kept in memory: each lookup reads the entries that it needs. So there are no entries to write
    beside those of the sidecar.
    """

    interval_bytes = 0
    interval_records = 1

    def __init__(self, base_offset: int, position_of: Reading, next_offset: Callable[[], int]) -> None:
        """Look up with *position_of* what lies in [base offset, *next_offset*)."""
        self.entries = bytearray()
        self._base_offset = base_offset
        self._position_of = position_of
        self._next_offset = next_offset

    def __len__(self) -> int:
        return 0

    def add(self, offset: int, position: int) -> None:
        """Do nothing: the sidecar has it."""

    def floor_entry(self, offset: int) -> tuple[int, int] | None:
        """Return (offset, position) of *offset*, or of the last one there is."""
        return self._entry(min(offset, self._next_offset() - 1))

    def ceiling_entry(self, offset: int) -> tuple[int, int] | None:
        """Return (offset, position) of *offset*, or of the first one there is."""
        return self._entry(max(offset, self._base_offset)) if offset < self._next_offset() else None

    def last(self) -> tuple[int, int] | None:
        """Return (offset, position) of the last entry."""
        return self._entry(self._next_offset() - 1)

    def next_after(self, position: int) -> tuple[int, int] | None:
        """Return (offset, position) of the first frame that starts after *position*."""
        low, high = self._base_offset, self._next_offset()
        while low < high:
            middle = (low + high) // 2
            found = self._position_of(middle)
            if found is not None and found <= position:
                low = middle + 1
            else:
                high = middle
        return self._entry(low) if low < self._next_offset() else None

    def resume_after(self, offset: int, position: int, end: int) -> tuple[int, int] | None:
        """Return (offset, position) of the first entry after *offset* that lies in (position, end)."""
        for following in range(offset + 1, self._next_offset()):
            found = self._position_of(following)
            if found is not None and position < found < end:
                return following, found
        return None

    def _entry(self, offset: int) -> tuple[int, int] | None:
        if offset < self._base_offset:
            return None
        position = self._position_of(offset)
        return None if position is None else (offset, position)
