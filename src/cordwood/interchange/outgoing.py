"""Divide exported records into segments."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import NamedTuple, TypeAlias

from cordwood.interchange.directories import NewDirectory, NewFile
from cordwood.records import Record

Outgoing: TypeAlias = Iterable[tuple[int, Iterator[Record]]]
"""The records of each partition, one partition after the other."""


class SegmentLimits(NamedTuple):
    """The size limit of segments: one that reaches ``segment_bytes`` is followed by another.

    None means the system's default.
    """

    segment_bytes: int | None = None

    def within(self, usual: int) -> int:
        """Return the size limit of a segment; *usual* is the system's default."""
        return usual if self.segment_bytes is None else self.segment_bytes


class SegmentFiles(NamedTuple):
    """The names of a segment's files: below ``place``, ``digits`` digits and each suffix.

    The number is the offset of the first record or, if ``counted``, the number of the segment.
    """

    place: tuple[str, ...]
    suffixes: tuple[str, ...]
    digits: int = 20
    counted: bool = False


class OutgoingSegment(NamedTuple):
    """A segment to write; the size of its first file counts."""

    base: int
    files: tuple[NewFile, ...]
    records: Iterator[Record]


def rolled(
    out: NewDirectory, records: Iterator[Record], names: SegmentFiles, limits: SegmentLimits, usual: int
) -> Iterator[OutgoingSegment]:
    """Yield segments, each with its records, until no records are left.

    A segment ends once its first file has reached the limit, so a record is never in two segments. A
    partition without records has one segment, at 0.
    """
    size_max = limits.within(usual)
    first = next(records, None)
    count = 0
    while first is not None or not count:
        base = 0 if first is None else first.offset
        stem = f"{count if names.counted else base:0{names.digits}d}"
        made = tuple(out.create(*names.place, f"{stem}.{suffix}") for suffix in names.suffixes)
        rest = iter(()) if first is None else chain([first], records)
        taken = _UntilFull(rest, made[0], size_max)
        yield OutgoingSegment(base, made, iter(taken))
        for file in made:
            out.finish(file)
        count, first = count + 1, taken.left


class _UntilFull:
    """Records until a file is full; ``left`` is the first record of the next file."""

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
