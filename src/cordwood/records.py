"""The types that all rooms share: Record, Header, OffsetRange."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import msgspec

#: A header is a name and an opaque value; names may repeat and keep their order.
Header = tuple[str, bytes | None]
#: Called with the progress of a long operation, in the unit of its total.
Progress = Callable[[int], None]
#: The name of a topic and the number of one of its partitions.
TopicPartition = tuple[str, int]


class Record(msgspec.Struct, frozen=True, gc=False):
    """One record as its producer wrote it, with the offset assigned by the log.

    A ``None`` key means no key and is not the same as an empty one; a ``None`` value is a
    tombstone. ``timestamp`` is milliseconds since the Unix epoch.
    """

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """The offsets from *start* up to but not including *end*."""

    start: int
    end: int

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.end:
            raise ValueError(f"an offset range needs 0 <= start <= end, not [{self.start}, {self.end})")

    def __len__(self) -> int:
        return self.end - self.start

    def __contains__(self, offset: object) -> bool:
        return isinstance(offset, int) and self.start <= offset < self.end

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.start, self.end))

    @property
    def is_empty(self) -> bool:
        """Whether it contains no offset."""
        return self.start == self.end

    def normalize(self, offset: int) -> int | None:
        """Return the distance of *offset* from the start, None if it is not in the range."""
        return offset - self.start if offset in self else None

    def intersection(self, other: OffsetRange) -> OffsetRange:
        """Return the offsets in both; empty, at the larger start, if they do not overlap."""
        start = max(self.start, other.start)
        return OffsetRange(start, max(start, min(self.end, other.end)))
