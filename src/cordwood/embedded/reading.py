"""Read the records of a partition one by one, up to an offset or as they come."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from cordwood.errors import (
    LogClosed,
)
from cordwood.records import Record
from cordwood.storage.log import Partition

READ_BYTES_MIN, READ_BYTES_MAX = 64 << 10, 1 << 20


def records_between(log: Partition, start: int, stop: int) -> Iterator[Record]:
    """Yield the records of *log* from *start* up to *stop*."""
    # One record is read alone; a longer reading begins small and grows, so that a short one stays cheap.
    size = 1 if stop - start == 1 else READ_BYTES_MIN
    while start < stop:
        fetched = log.read(start, size)
        size = min(size * 4, READ_BYTES_MAX)
        for run in fetched.runs:
            for record in run.records():
                if start <= record.offset < stop:
                    yield record
        if fetched.next_offset <= start:
            return
        start = fetched.next_offset


def followed(find: Callable[[], Partition], start: int, stop: int | None) -> Iterator[Record]:
    """Yield records as they come, waiting for each without asking over and over."""
    while stop is None or start < stop:
        try:
            end = find().wait_beyond(start)
            end = end if stop is None else min(stop, end)
            # Looked up again: a partition without records becomes another object with its first one.
            yield from records_between(find(), start, end)
        except LogClosed:
            return
        start = end
