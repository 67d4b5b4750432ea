"""The open transactions of a partition, and the last stable offset that follows from them."""

from __future__ import annotations

from collections.abc import Iterable
from threading import Lock

from cordwood.storage.log.producers.known import OpenTransaction

#: The first offset of an open transaction if there is none.
NONE_OPEN = 1 << 62


class OpenTransactions:
    """Where transactions begin that have not ended. Changed by the appender; read by any thread.

    A transaction ends when its marker is appended: its outcome was synced before. The mark of the partition
    must not say so before the marker is synced, because a power cut may lose the marker.
    """

    def __init__(self, found: Iterable[OpenTransaction] = ()) -> None:
        self._guard = Lock()
        # In the order of their first offsets, because each begins at the end of the log.
        self._open = {each.producer_id: each.first_offset for each in found}
        #: The first offset of an open transaction, NONE_OPEN without one.
        self.open_from = next(iter(self._open.values()), NONE_OPEN)
        #: (first offset, offset of the marker) of transactions whose marker may not be synced.
        self._ended: list[tuple[int, int]] = []
        # Whether a transaction is in one of these two. Read without the guard: a transaction that ends is in
        # neither of them for a moment.
        self._is_unsettled = bool(self._open)

    def open_from_without(self, producer_id: int) -> int:
        """Return the first offset of an open transaction of another producer, NONE_OPEN without one."""
        with self._guard:
            return next((first for id_, first in self._open.items() if id_ != producer_id), NONE_OPEN)

    def begin(self, producer_id: int, offset: int) -> None:
        """Record a batch of a transaction at *offset*: it may be the first."""
        with self._guard:
            self._is_unsettled = True
            self._open.setdefault(producer_id, offset)
            self.open_from = next(iter(self._open.values()))

    def end(self, producer_id: int, marker_offset: int) -> None:
        """Record the marker at *marker_offset*."""
        with self._guard:
            first = self._open.pop(producer_id, None)
            if first is not None:
                self._ended.append((first, marker_offset))
            self.open_from = next(iter(self._open.values()), NONE_OPEN)

    def stable_below(self, synced_offset: int) -> int:
        """Return the last stable offset of the part of the log below *synced_offset*, which is synced.

        Later calls have the same offset or a larger one.
        """
        if not self._is_unsettled:
            return synced_offset
        with self._guard:
            self._ended = [each for each in self._ended if each[1] >= synced_offset]
            self._is_unsettled = bool(self._open or self._ended)
            # Nothing that ended is open at the same time, and its first offset may be below all others.
            firsts = (next(iter(self._open.values()), NONE_OPEN), *(first for first, _ in self._ended))
            return min(synced_offset, *firsts)
