"""The dense index: an entry for every offset, which also has the checksums of frames."""

from __future__ import annotations

from collections.abc import Callable

Reading = Callable[[int], int | None]
"""Returns the position of an offset's frame, or of the next one if it was removed; None past the end."""


class DenseIndex:
    """Looks up positions in a sidecar with an entry for every offset; same interface as `sparse.SparseIndex`.

    Nothing is stored in memory: each lookup reads the entries that it needs. So there is no index file
    besides the sidecar.
    """

    interval_bytes = 0
    interval_records = 1

    def __init__(self, base_offset: int, position_of: Reading, next_offset: Callable[[], int]) -> None:
        """Look up offsets in [base offset, *next_offset*) with *position_of*."""
        self.entries = bytearray()
        self._base_offset = base_offset
        self._position_of = position_of
        self._next_offset = next_offset

    def __len__(self) -> int:
        return 0

    def add(self, offset: int, position: int) -> bool:
        """Do nothing and return False: the sidecar has the entry, and no other one is due."""
        return False

    def floor_entry(self, offset: int) -> tuple[int, int] | None:
        """Return (offset, position) of *offset*, or of the last one."""
        return self._entry(min(offset, self._next_offset() - 1))

    def ceiling_entry(self, offset: int) -> tuple[int, int] | None:
        """Return (offset, position) of *offset*, or of the first one."""
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
