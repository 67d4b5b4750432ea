"""Reading committed records: up to the last stable offset, and without those of aborted transactions."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from cordwood.errors import CorruptRange
from cordwood.index import AbortedEntry
from cordwood.storage.log.producers.replaying import aborted_of
from cordwood.storage.log.reading import Fetched, FrameRun, View


def read_committed(
    view: View, offset: int, max_bytes: int, log_end_offset: int, stop: int | None = None
) -> Fetched:
    """Return frames below the last stable offset, and the aborted transactions with records in them.

    Markers and records of aborted transactions are still in the runs, as Kafka's clients take them: see
    `committed_runs`. Raises as `View.read` does; damage that may hide the end of a transaction counts as
    damage of its records.
    """
    limit = None if view.open_from >= view.high_watermark else view.last_stable_offset
    while True:
        fetched = view.read(offset, max_bytes, log_end_offset, stop, limit)
        if not view.state.transactional or not fetched.runs:
            return fetched
        try:
            return fetched._replace(aborted=tuple(aborted_within(view, offset, fetched.next_offset)))
        except CorruptRange as error:
            if error.offset <= offset:
                raise
            # As with damage in the log: all before it is returned first.
            limit = error.offset


def aborted_within(view: View, start: int, stop: int) -> list[AbortedEntry]:
    """Return the aborted transactions that may have records in [start, stop), by the offset of their marker.

    Raises:
        CorruptRange: If damage may hide the end of a transaction with records there.
        StorageError: If an index has to be built again from a log that cannot be read.
    """
    found: list[AbortedEntry] = []
    if not view.state.transactional:
        return found
    for at in range(view.find_segment(start), len(view.segments)):
        here, is_complete = aborted_of(view, at).within(start, stop)
        found += here
        if is_complete:
            break
    return found


class AbortedRanges:
    """The offsets of aborted transactions by producer, to tell aborted frames from committed ones."""

    def __init__(self, aborted: Iterable[AbortedEntry]) -> None:
        self._ranges: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for each in aborted:
            # A producer has one transaction at a time, so its ranges follow each other.
            self._ranges[each.producer_id].append((each.first_offset, each.last_offset))

    def __contains__(self, frame: tuple[int, int]) -> bool:
        """Return whether the batch of (producer id, base offset) is part of an aborted transaction."""
        producer_id, base_offset = frame
        ranges = self._ranges.get(producer_id, ())
        at = bisect_right(ranges, base_offset, key=lambda each: each[0]) - 1
        return at >= 0 and base_offset <= ranges[at][1]


def committed_runs(runs: Iterable[FrameRun], aborted: Sequence[AbortedEntry]) -> Iterator[FrameRun]:
    """Yield *runs* without the frames of *aborted* transactions; a run is split where one was."""
    if not aborted:
        yield from runs
        return
    ranges = AbortedRanges(aborted)
    for run in runs:
        first = run.first
        for frame in range(run.first, run.last + 1):
            stamp = run.table.stamp(frame)
            if stamp is None or not stamp.transactional:
                continue
            if (stamp.producer_id, run.table.base_offset(frame)) in ranges:
                if frame > first:
                    yield replace(run, first=first, last=frame - 1)
                first = frame + 1
        if first <= run.last:
            yield replace(run, first=first)
