"""Records on their way out, cut into segments."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import NamedTuple, TypeAlias

from cordwood.interchange.directories import NewDirectory, NewFile
from cordwood.records import Record

Outgoing: TypeAlias = Iterable[tuple[int, Iterator[Record]]]
"""The records of each partition, one partition after the other."""


class Limits(NamedTuple):
    """How large segments become. A segment of ``segment_bytes`` is followed by another one.

    None is the system's own size.
    """

    segment_bytes: int | None = None

    def within(self, usual: int) -> int:
        """Return how large a segment may become, where *usual* is the system's own size."""
        return usual if self.segment_bytes is None else self.segment_bytes


class SegmentFiles(NamedTuple):
    """How the files of a segment are called: below ``place``, ``digits`` digits and each suffix.

    The number is the offset of the first record or, where ``counted``, that of the segment.
    """

    place: tuple[str, ...]
    suffixes: tuple[str, ...]
    digits: int = 20
    counted: bool = False


class OutgoingSegment(NamedTuple):
    """A segment to be written: its first file is what its size is measured by."""

    base: int
    files: tuple[NewFile, ...]
    records: Iterator[Record]


def rolled(
    out: NewDirectory, records: Iterator[Record], names: SegmentFiles, limits: Limits, usual: int
) -> Iterator[OutgoingSegment]:
    """Yield segments, each with the records that go into it, until there are none left.

    A segment ends once its first file has reached the limit, so a record never lies in two. A partition
    without records has one segment, at 0.
    """
    size_max = limits.within(usual)
    first = next(records, None)
    count = 0
    while first is not None or not count:
        base = 0 if first is None else first.offset
        stem = f"{count if names.counted else base:0{names.digits}d}"
        made = tuple(out.create(*names.place, f"{stem}.{suffix}") for suffix in names.suffixes)
        rest = iter(()) if first is None else chain([first], records)
        taken = _Until(rest, made[0], size_max)
        yield OutgoingSegment(base, made, iter(taken))
        for file in made:
            out.finish(file)
        count, first = count + 1, taken.left


class _Until:
    """Records until a file is full; ``left`` is the one that did not go into it any more."""

    def __init__(self, records: Iterator[Record], file: NewFile, size_max: int) -> None:
        self._records = records
        self._file = file
        self._size_max = size_max
        self.left: Record | None = None

    def __iter__(self) -> Iterator[Record]:
        for record in self._records:
            if self._file.size >= self._size_max:
                self.left = record
                return
            yield record
