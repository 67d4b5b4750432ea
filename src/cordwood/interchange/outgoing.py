"""Divide exported records into segments."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import NamedTuple, TypeAlias

from cordwood.interchange.directories import NewDirectory, NewFile
from cordwood.interchange.kept import NewSegment, StoredFrame, StoredItem
from cordwood.records import Header, Record, split_timestamp_us

OutgoingItem: TypeAlias = Record | StoredItem
Outgoing: TypeAlias = Iterable[tuple[int, Iterator[OutgoingItem]]]
"""The records of each partition, one partition after the other.

Either records, or segments and their frames, if the topic has the format of the system.
"""


class SegmentLimits(NamedTuple):
    """The size limit of segments: one that reaches ``segment_bytes`` is followed by another.

    None means the segments of the topic if they are known, else the system's default.
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
    records: Iterator[Record | StoredFrame]


def rolled(
    out: NewDirectory, items: Iterator[OutgoingItem], names: SegmentFiles, limits: SegmentLimits, usual: int
) -> Iterator[OutgoingSegment]:
    """Yield segments, each with its records, until no records are left.

    A segment ends once its first file has reached the limit, so a record is never in two segments. Segments
    of the topic are kept, also an empty one, unless there is a limit other than the *usual* one. A partition
    without records and segments has one segment, at 0.
    """
    size_max = limits.within(usual)
    if limits.segment_bytes is not None:
        items = (item for item in items if not isinstance(item, NewSegment))
    item = next(items, None)
    count = 0
    while item is not None or not count:
        begins = isinstance(item, NewSegment)
        base = 0 if item is None else item.base if isinstance(item, NewSegment) else item.offset
        stem = f"{count if names.counted else base:0{names.digits}d}"
        made = tuple(out.create(*names.place, f"{stem}.{suffix}") for suffix in names.suffixes)
        rest = items if item is None or begins else chain([item], items)
        taken = _UntilFull(rest, made[0], None if begins else size_max)
        yield OutgoingSegment(base, made, iter(taken))
        for file in made:
            out.finish(file)
        count, item = count + 1, taken.left


class _UntilFull:
    """Records until a file is full or a segment begins; ``left`` is the first item after them."""

    def __init__(self, items: Iterator[OutgoingItem], file: NewFile, size_max: int | None) -> None:
        self._items = items
        self._file = file
        self._size_max = size_max
        self.left: OutgoingItem | None = None

    def __iter__(self) -> Iterator[Record | StoredFrame]:
        for item in self._items:
            full = self._size_max is not None and self._file.size >= self._size_max
            if full or isinstance(item, NewSegment):
                self.left = item
                return
            yield item


def time_and_headers(record: Record) -> tuple[int, tuple[Header, ...]]:
    """Return the time of a record in microseconds, and its headers without a valid one of the time."""
    try:
        return split_timestamp_us(record.timestamp, record.headers)
    except ValueError:
        # In a topic of another format the header may have any value.
        return record.timestamp * 1000, record.headers
