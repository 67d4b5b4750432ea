"""Ids of idempotent producers, reserved in the catalogue."""

from __future__ import annotations

from threading import RLock

from cordwood.disk import as_storage_error
from cordwood.storage.meta import Catalogue, Lifecycle, ProducerIdsEntry

#: The ids of another cluster ascend, so that a new one rarely needs a sync.
PASSED_AT_A_TIME = 1000


class ProducerIdBlocks:
    """Reserves producer ids. Every method may be called from any thread."""

    def __init__(self, catalogue: Catalogue, lifecycle: Lifecycle, guard: RLock) -> None:
        self._catalogue = catalogue
        self._lifecycle = lifecycle
        self._guard = guard

    def reserve(self, count: int) -> int:
        """Return the first of *count* ids that no producer was or will be given. Durable on return.

        Raises:
            DiskFull: Nothing was reserved.
        """
        with self._guard:
            self._lifecycle.check_open()
            self._lifecycle.before_change()
            first = self._catalogue.contents.next_producer_id
            self._reserve_below(first + count)
            return first

    def pass_over(self, producer_id: int) -> None:
        """Make sure that *producer_id*, which another cluster gave away, is never given to a producer here.

        A batch of the new producer could be taken for one of the old one. Durable on return.

        Raises:
            DiskFull: Nothing was reserved.
        """
        with self._guard:
            self._lifecycle.check_open()
            if producer_id >= self._catalogue.contents.next_producer_id:
                self._lifecycle.before_change()
                self._reserve_below(producer_id + PASSED_AT_A_TIME)

    def _reserve_below(self, next_id: int) -> None:
        try:
            self._catalogue.add([ProducerIdsEntry(next_id)])
        except OSError as error:
            raise as_storage_error(error, "reserving producer ids") from error
