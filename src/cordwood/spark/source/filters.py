"""Narrow a read by filters on offset, partition, topic and timestamp. Pure; Spark checks every row again.

Only records that a filter certainly excludes are left out: unknown filters and values exclude nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass
class Narrowing:
    """Possible matches: ranges of offsets and partitions, names of topics, the earliest timestamp (ms).

    There is no latest timestamp: records are not in the order of time, so the first record at or after a time
    is known, but not the last one before it.
    """

    start: int = 0
    end: int | None = None
    first_partition: int = 0
    end_partition: int | None = None
    topics: set[str] | None = None
    prefix: str = ""
    since_ms: int | None = None

    def has_partition(self, topic: str, number: int) -> bool:
        """Return whether a record of this partition may match."""
        return (
            (self.topics is None or topic in self.topics)
            and topic.startswith(self.prefix)
            and self.first_partition <= number
            and (self.end_partition is None or number < self.end_partition)
        )


def narrow(filters: Sequence[Filter]) -> Narrowing:
    """Return the possible matches of all *filters* together."""
    found = Narrowing()
    for each in filters:
        match getattr(each, "attribute", None):
            case ("offset",):
                low, end = _whole_numbers(each)
                found.start = max(found.start, low)
                found.end = _lower(found.end, end)
            case ("partition",):
                low, end = _whole_numbers(each)
                found.first_partition = max(found.first_partition, low)
                found.end_partition = _lower(found.end_partition, end)
            case ("topic",):
                _narrow_topic(found, each)
            case ("timestamp",):
                since = _since(each)
                if since is not None:
                    found.since_ms = since if found.since_ms is None else max(found.since_ms, since)
    return found


def _whole_numbers(each: Filter) -> tuple[int, int | None]:
    """Return the first number that may match, and the one after the last if there is one."""
    value = getattr(each, "value", None)
    values = value if isinstance(each, In) else (value,)
    if (
        not isinstance(values, tuple | list)
        or not all(type(number) is int for number in values)
        or not values
    ):
        return 0, None
    match each:
        case EqualTo() | EqualNullSafe() | In():
            return min(values), max(values) + 1
        case GreaterThan():
            return values[0] + 1, None
        case GreaterThanOrEqual():
            return values[0], None
        case LessThan():
            return 0, values[0]
        case LessThanOrEqual():
            return 0, values[0] + 1
    return 0, None


def _lower(one: int | None, other: int | None) -> int | None:
    return min((end for end in (one, other) if end is not None), default=None)


def _narrow_topic(found: Narrowing, each: Filter) -> None:
    match each:
        case EqualTo(value=str(name)) | EqualNullSafe(value=str(name)):
            names = {name}
        case In(value=values) if all(isinstance(name, str) for name in values):
            names = set(values)
        case StringStartsWith(value=str(prefix)):
            if prefix.startswith(found.prefix):
                found.prefix = prefix
            return
        case _:
            return
    found.topics = names if found.topics is None else found.topics & names


def _since(each: Filter) -> int | None:
    """Return the first millisecond that may match, None without a limit."""
    match each:
        case EqualTo() | EqualNullSafe() | GreaterThanOrEqual():
            micros = _microseconds(each.value)
            return None if micros is None else -(-micros // 1000)
        case GreaterThan():
            micros = _microseconds(each.value)
            return None if micros is None else micros // 1000 + 1
    return None


def _microseconds(value: Any) -> int | None:
    if not isinstance(value, datetime) or value.tzinfo is None:
        return None
    return (value - _EPOCH) // timedelta(microseconds=1)
