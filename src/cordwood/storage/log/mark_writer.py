"""When the mark moves, and when it is itself synced."""

from __future__ import annotations

from typing import NamedTuple

from cordwood.disk import DISK_FULL, PASSING, Files, MarkFile
from cordwood.storage.log.active_segment import ActiveSegment, mark_of
from cordwood.storage.log.state import PartitionState

#: The mark is synced, and the indexes with it, after this many bytes of appends …
MARK_SYNC_BYTES = 64 << 20
#: … or this long after the last time: so much a power cut makes recovery scan, at the most.
MARK_SYNC_NS = 1_000_000_000


class ActiveEnd(NamedTuple):
    """Where the active segment ended at one moment. Replaced whole, so any thread may read it."""

    segment: ActiveSegment
    position: int
    next_offset: int
    index_entries: int
    time_entries: int


class MarkKeeper:
    """Moves the mark after every sync. One caller at a time: the holder of the right to sync."""

    def __init__(self, mark: MarkFile, position: int, now_ns: int) -> None:
        self._mark = mark
        self._synced = (position, now_ns)

    def move(
        self, state: PartitionState, end: ActiveEnd, last_stable_offset: int, now_ns: int, *, sync: bool
    ) -> None:
        """Write that everything up to *end* is synced, which it must be. Durable with *sync*, or when due.

        Raises:
            OSError: If the disk refused for another reason than being full, or having too many files open.
        """
        self.check_invariants(end)
        position, synced_ns = self._synced
        sync = sync or end.position - position >= MARK_SYNC_BYTES or now_ns - synced_ns >= MARK_SYNC_NS
        try:
            if sync:
                end.segment.sync_indexes(end.index_entries, end.time_entries)
            mark = mark_of(state, end.segment, end.position, end.next_offset, last_stable_offset)
            self._mark.write(mark)
            if sync:
                end.segment.aborted.sync(mark.aborted_entries)
                self._mark.sync()
                self._synced = (end.position, now_ns)
        except OSError as error:
            # A lower bound that stays behind is still one, and indexes are derived: what the records
            # need is synced already, so a full disk is no reason to fail them, nor is a lack of handles.
            if error.errno not in DISK_FULL | PASSING:
                raise

    def check_invariants(self, end: ActiveEnd) -> None:
        """Check that the mark would not be moved beyond the last byte written.

        Raises:
            AssertionError: If it would: a fault of this code.
        """
        assert self._synced[0] >= 0, "the mark was synced at a negative position"
        assert end.position <= end.segment.store.end, "the mark would lie beyond the last byte written"
        assert end.next_offset <= end.segment.next_offset, "the mark would name offsets not written"

    def rest(self, files: Files) -> int:
        """Close the mark until it moves; return how many handles that gave back."""
        return self._mark.rest(files)

    def close(self) -> None:
        """Close the mark; syncs nothing."""
        self._mark.close()
