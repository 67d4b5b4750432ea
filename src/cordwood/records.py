"""The types that all rooms share: Record, Header, EventType, OffsetRange."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum

import msgspec

#: A header is a name and an opaque value; names may repeat and keep their order.
Header = tuple[str, bytes | None]
#: Called with the progress of a long operation, in the unit of its total.
Progress = Callable[[int], None]
#: The name of a topic and the number of one of its partitions.
TopicPartition = tuple[str, int]
#: The header with the time of a record in microseconds since the Unix epoch, in decimal digits. A record
#: without it has a whole millisecond.
TIMESTAMP_US_HEADER = "cordwood.timestamp_us"
#: The header with the event type of a record, in decimal digits. A record without it has type 0.
EVENT_TYPE_HEADER = "cordwood.event_type"
EVENT_TYPE_MAX = 65535
_MICROSECONDS = re.compile(rb"0|-?[1-9][0-9]{0,18}")


class EventType(IntEnum):
    """The event types with a meaning; every other number up to 65535 is the application's."""

    DATA = 0
    CHECKPOINT = 1
    TOMBSTONE = 2


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

    @property
    def timestamp_us(self) -> int:
        """The time in microseconds: that of the header ``cordwood.timestamp_us``, or a whole millisecond."""
        try:
            return split_timestamp_us(self.timestamp, self.headers)[0]
        except ValueError:
            return self.timestamp * 1000


def split_timestamp_us(timestamp_ms: int, headers: tuple[Header, ...]) -> tuple[int, tuple[Header, ...]]:
    """Return the time of a record in microseconds, and its headers without that of the time.

    Raises:
        ValueError: If the header is not a time within the millisecond of the record; says why.
    """
    said = [value for name, value in headers if name == TIMESTAMP_US_HEADER]
    if not said:
        return timestamp_ms * 1000, headers
    if len(said) > 1:
        raise ValueError(f"{len(said)} headers {TIMESTAMP_US_HEADER}, but a record has one time")
    text = said[0]
    if text is None or not _MICROSECONDS.fullmatch(text):
        shown = "null" if text is None else ascii(text[:30].decode("latin-1"))
        raise ValueError(f"the time {shown} in header {TIMESTAMP_US_HEADER}, which is no decimal number")
    if int(text) // 1000 != timestamp_ms:
        raise ValueError(
            f"the time {timestamp_ms} ms and header {TIMESTAMP_US_HEADER} with {int(text)}, "
            "which is not within that millisecond"
        )
    return int(text), tuple(header for header in headers if header[0] != TIMESTAMP_US_HEADER)


def timestamp_us_headers(timestamp_us: int) -> tuple[Header, ...]:
    """Return the header of a time that is not a whole millisecond, none for others."""
    return ((TIMESTAMP_US_HEADER, b"%d" % timestamp_us),) if timestamp_us % 1000 else ()


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
