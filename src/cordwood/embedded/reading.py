"""Read the records of a partition: one by one up to an offset, as they come, or those at given offsets.

*committed* leaves out the records of aborted transactions, and ends before the first open transaction. That
is work for each frame, and none in a partition that never had a transaction.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence

from cordwood.errors import (
    CordwoodError,
    LogClosed,
    OffsetOutOfRange,
)
from cordwood.records import Record
from cordwood.storage.log import Fetched, FrameRun, Partition, committed_runs

READ_BYTES_MIN, READ_BYTES_MAX = 64 << 10, 1 << 20


def end_of(log: Partition, *, committed: bool) -> int:
    """Return the first offset that cannot be read: the last stable offset, or the high watermark."""
    return log.last_stable_offset if committed else log.high_watermark


def visible_runs(fetched: Fetched) -> Iterable[FrameRun]:
    """Return the frames that were read, without those of aborted transactions if committed ones were read."""
    return committed_runs(fetched.runs, fetched.aborted) if fetched.aborted else fetched.runs


def records_between(log: Partition, start: int, stop: int, *, committed: bool = False) -> Iterator[Record]:
    """Yield the records of *log* from *start* up to *stop*."""
    # One record is read alone; a longer reading begins small and grows, so that a short one stays cheap.
    size = 1 if stop - start == 1 else READ_BYTES_MIN
    while start < stop:
        fetched = log.read(start, size, committed=committed)
        size = min(size * 4, READ_BYTES_MAX)
        for run in visible_runs(fetched):
            for record in run.records():
                if start <= record.offset < stop:
                    yield record
        if fetched.next_offset <= start:
            return
        start = fetched.next_offset


def records_window(
    log: Partition, start: int, stop: int, size: int, *, committed: bool = False
) -> tuple[list[Record], int]:
    """Return the records from *start* up to *stop* in about *size* bytes, and the offset to go on at.

    The offset is *start* if there is nothing to read yet.

    Raises:
        OffsetOutOfRange: If the partition does not hold *start*, any more or yet.
        CorruptRange, FrameError: If the record at *start* is not what was written. One further on is raised
            by the window that begins there.
    """
    fetched = log.read(start, size, committed=committed)
    records: list[Record] = []
    try:
        for run in visible_runs(fetched):
            records += (record for record in run.records() if start <= record.offset < stop)
    except CordwoodError:
        if not records:
            raise
        return records, records[-1].offset + 1
    return records, fetched.next_offset


def start_and_end(
    log: Partition, start: int | None, since: int | None, *, committed: bool = False
) -> tuple[int, int]:
    """Return the offset to begin at, *start* or the first one at the time *since*, and that of `end_of`.

    Raises:
        OffsetOutOfRange: If *start* is below the log start or above the high watermark.
    """
    # The end is read first: no record below it becomes part of an open transaction later.
    stop = end_of(log, committed=committed)
    low, end = log.log_start_offset, log.high_watermark
    if since is not None:
        found = log.offset_at(since)
        start = end if found is None else found[0]
    elif start is None:
        start = low
    if not low <= start <= end:
        raise OffsetOutOfRange(start, low, end)
    return start, stop


def followed(
    find: Callable[[], Partition], start: int, stop: int | None, *, committed: bool = False
) -> Iterator[Record]:
    """Yield records as they come, waiting for each without asking over and over."""
    while stop is None or start < stop:
        try:
            end = find().wait_beyond(start, committed=committed)
            end = end if stop is None else min(stop, end)
            # Looked up again: a partition without records becomes another object with its first one.
            yield from records_between(find(), start, end, committed=committed)
        except LogClosed:
            return
        start = end


def records_at(log: Partition, offsets: Sequence[int], *, committed: bool = False) -> list[Record | None]:
    """Return the records at *offsets*, in that order; None where there is no record, or none any more.

    Each frame that holds one of them is read and decoded once, in the order of the log. Frames between them
    are not read, except those that a read of neighbours brings along.

    Raises:
        OffsetOutOfRange: If one of *offsets* is below the log start, or not below the offset of `end_of`.
        CorruptRange: Where a frame is not what was written.
    """
    low, high = log.log_start_offset, end_of(log, committed=committed)
    for offset in offsets:
        if not low <= offset < high:
            raise OffsetOutOfRange(offset, low, high)
    wanted = sorted(set(offsets))
    # The same number for offsets that follow each other without a gap.
    lines = [offset - at for at, offset in enumerate(wanted)]
    found: dict[int, Record] = {}
    at, size = 0, 1
    while at < len(wanted):
        last_neighbour = wanted[bisect_right(lines, lines[at]) - 1]
        fetched = log.read(wanted[at], size, last_neighbour + 1, committed=committed)
        if not fetched.runs:
            # Compaction removed the last records of the log: nothing follows them.
            break
        after = bisect_left(wanted, fetched.next_offset, at)
        here = set(wanted[at:after])
        for run in visible_runs(fetched):
            found |= {record.offset: record for record in run.records() if record.offset in here}
        # The first read takes one frame. If offsets follow it without a gap, the next one takes more.
        more = after < len(wanted) and wanted[after] == fetched.next_offset
        size = min(max(size * 4, READ_BYTES_MIN), READ_BYTES_MAX) if more else 1
        at = after
    return [found.get(offset) for offset in offsets]
