"""Bytes written to a file, by position: what has to be copied for another file to become equal to it.

Pure bookkeeping. A stretch has its bytes, or only says where they are to be read.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from operator import attrgetter
from typing import NamedTuple


class Stretch(NamedTuple):
    """The bytes [start, end) of a file; ``data`` is None where they have to be read from it."""

    start: int
    end: int
    data: bytes | None

    def part(self, start: int, end: int) -> Stretch:
        """Return the part of it within [start, end)."""
        start, end = max(start, self.start), min(end, self.end)
        data = None if self.data is None else self.data[start - self.start : end - self.start]
        return Stretch(start, end, data)


_START = attrgetter("start")


class Patches:
    """Stretches of one file, in order, none of which overlap. One user at a time."""

    def __init__(self) -> None:
        self._stretches: list[Stretch] = []
        #: The size of the bytes that are kept here.
        self.kept = 0

    def __iter__(self) -> Iterator[Stretch]:
        return iter(self._stretches)

    def __bool__(self) -> bool:
        return bool(self._stretches)

    def overlaps(self, start: int, end: int) -> bool:
        """Return whether a byte of [start, end) is in a stretch."""
        at = bisect_right(self._stretches, start, key=_START) - 1
        if at >= 0 and self._stretches[at].end > start:
            return True
        return at + 1 < len(self._stretches) and self._stretches[at + 1].start < end

    def overlap(self, others: Patches) -> bool:
        """Return whether a byte of *others* is in a stretch of these."""
        return any(self.overlaps(each.start, each.end) for each in others)

    def put(self, new: Stretch) -> None:
        """Add *new*; what was there of the same bytes is forgotten."""
        if new.start >= new.end:
            return
        stretches = self._stretches
        self.kept += 0 if new.data is None else len(new.data)
        if not stretches or stretches[-1].end <= new.start:
            self._add_last(new)
            return
        first = bisect_right(stretches, new.start, key=_START)
        if first and stretches[first - 1].end > new.start:
            first -= 1
        last = bisect_left(stretches, new.end, key=_START)
        replaced = stretches[first:last]
        kept = [new]
        if replaced:
            self.kept -= sum(len(each.data) for each in replaced if each.data is not None)
            before, after = replaced[0].part(0, new.start), replaced[-1].part(new.end, replaced[-1].end)
            kept = [each for each in (before, new, after) if each.start < each.end]
            self.kept += sum(len(each.data) for each in kept if each is not new and each.data is not None)
        stretches[first:last] = kept

    def _add_last(self, new: Stretch) -> None:
        last = self._stretches[-1] if self._stretches else None
        if last is not None and last.end == new.start and last.data is None and new.data is None:
            self._stretches[-1] = Stretch(last.start, new.end, None)
        else:
            self._stretches.append(new)

    def cut(self, size: int) -> None:
        """Forget everything from the position *size* on."""
        stretches = self._stretches
        while stretches and stretches[-1].end > size:
            last = stretches.pop()
            self.kept -= 0 if last.data is None else len(last.data)
            if last.start < size:
                self.put(last.part(last.start, size))

    def forget_bytes(self) -> None:
        """Keep no bytes, only where they are."""
        before, self._stretches, self.kept = self._stretches, [], 0
        for each in before:
            self.put(Stretch(each.start, each.end, None))
