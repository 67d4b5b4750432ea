"""The transactions of one partition in the shared log: where the open ones begin, which ones were aborted.

Derived from the index of the shared log, like the offsets of the partition. Other partitions are not affected
by them.
"""

from __future__ import annotations

from cordwood.errors import CorruptRange
from cordwood.formats import Marker
from cordwood.index import ABORTED_ENTRY_SIZE, AbortedEntry, AbortedIndex
from cordwood.storage.log import NONE_OPEN, Doubt, DoubtfulIndex


class VirtualTransactions:
    """The open and aborted transactions of a partition. One writer; any thread may read."""

    __slots__ = ("_aborted", "_open", "open_from")

    def __init__(self) -> None:
        #: First offsets by producer id, ascending, because each transaction begins at the end of the log.
        self._open: dict[int, int] = {}
        #: The first offset of an open transaction, NONE_OPEN without one.
        self.open_from = NONE_OPEN
        #: Replaced as a whole when the start moves; extended in place by markers.
        self._aborted = AbortedIndex()

    def begin(self, producer_id: int, offset: int) -> None:
        """Record a batch of a transaction at *offset*: it may be the first."""
        self._open.setdefault(producer_id, offset)
        self.open_from = min(self.open_from, offset)
        self.check_invariants()

    def end(self, marker: Marker, offset: int) -> None:
        """Record *marker* at *offset*."""
        first = self._open.pop(marker.producer_id, None)
        if first is None:
            return
        open_from = next(iter(self._open.values()), NONE_OPEN)
        if not marker.committed:
            stable = min(open_from, offset + 1)
            self._aborted.add(AbortedEntry(marker.producer_id, first, offset, stable))
        # Last: a reader that sees records of the transaction must know that it was aborted.
        self.open_from = open_from
        self.check_invariants()

    def lose(self, damage: CorruptRange) -> None:
        """Record that frames are damaged, which may have been markers of the open transactions."""
        doubts = [Doubt(producer_id, first, damage) for producer_id, first in self._open.items()]
        if doubts:
            self._aborted = DoubtfulIndex(self._aborted, doubts)

    def begins_at(self, producer_id: int, offset: int) -> bool:
        """Return whether the open transaction of a producer begins at *offset*."""
        return self._open.get(producer_id) == offset

    def aborted_within(self, start: int, stop: int) -> list[AbortedEntry]:
        """Return the aborted transactions that may have records in [start, stop), by their markers.

        Raises:
            CorruptRange: If damage may hide the end of a transaction with records there.
        """
        return self._aborted.within(start, stop)[0]

    def forget_before(self, start: int) -> None:
        """Forget the aborted transactions whose markers are below *start*, where the partition starts now."""
        count = self._aborted.count_below(start)
        if count:
            before = self._aborted
            left = AbortedIndex(before.entries[count * ABORTED_ENTRY_SIZE :])
            self._aborted = DoubtfulIndex(left, before.doubts) if isinstance(before, DoubtfulIndex) else left

    def check_invariants(self) -> None:
        """Check that readers see where the first open transaction begins. Takes constant time.

        Raises:
            AssertionError: If they do not: a fault of this code.
        """
        first = next(iter(self._open.values()), NONE_OPEN)
        assert self.open_from == first, "readers see another first open transaction"
