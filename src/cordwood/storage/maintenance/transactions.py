"""Transactions in compaction: which records were aborted, and which markers may go.

Only segments below the last stable offset are compacted, so every transaction with a record there has ended.
Records of aborted transactions are dropped and supersede nothing. A marker stays as long as a frame of its
transaction is in the log, with or without records: without the marker, the transaction would be open again.
After that it waits for ``delete.retention.ms``, as tombstones do, from the pass on that dropped the last of
these frames: a reader that is between the two, such as that of committed offsets, must meet the marker.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum

from cordwood.formats import FrameTable
from cordwood.storage.log import AbortedRanges, SealedInfo, View

Rows = Sequence[tuple[int, int]]
"""Ranges of rows [first, after), ascending."""


def compactable(view: View, up_to: int | None = None) -> list[SealedInfo]:
    """Return the sealed segments that end at or before *up_to* and the last stable offset."""
    end = view.last_stable_offset if up_to is None else min(up_to, view.last_stable_offset)
    return [segment.info for segment in view.segments[:-1] if segment.info.next_offset <= end]


def aborted_rows(table: FrameTable, aborted: AbortedRanges | None) -> Rows:
    """Return the rows of `FrameTable.columns` that are records of *aborted* transactions."""
    found: list[tuple[int, int]] = []
    if aborted is None:
        return found
    row = 0
    for frame in range(len(table)):
        first, row = row, row + table.record_count(frame)
        stamp = None if first == row else table.stamp(frame)
        if stamp is None or not stamp.transactional:
            continue
        if (stamp.producer_id, table.base_offset(frame)) in aborted:
            found.append((first, row))
    return found


def rows_between(start: int, stop: int, left_out: Rows) -> Iterator[tuple[int, int]]:
    """Yield the rows of [start, stop) that are not in *left_out*."""
    for first, after in left_out:
        if start < min(first, stop):
            yield start, min(first, stop)
        start = max(start, after)
    if start < stop:
        yield start, stop


class MarkerUse(Enum):
    """Why a marker is in the log."""

    NEEDED = "a frame of its transaction is left"
    FREED = "this pass dropped the last frame of its transaction"
    UNNEEDED = "no frame of its transaction was left before this pass"


class FollowedTransactions:
    """Follows the frames of one pass over a log, from its first segment on, to tell which markers may go."""

    def __init__(self) -> None:
        self._kept: set[int] = set()
        self._dropped: set[int] = set()

    def note(self, producer_id: int, *, dropped: bool) -> None:
        """Note a frame in the transaction of a producer."""
        (self._dropped if dropped else self._kept).add(producer_id)

    def end(self, producer_id: int) -> MarkerUse:
        """Note the marker of a producer, and return what it is needed for."""
        use = MarkerUse.UNNEEDED
        if producer_id in self._kept:
            use = MarkerUse.NEEDED
        elif producer_id in self._dropped:
            use = MarkerUse.FREED
        self._kept.discard(producer_id)
        self._dropped.discard(producer_id)
        return use
