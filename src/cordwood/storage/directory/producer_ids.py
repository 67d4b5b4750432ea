"""Ids of idempotent producers, reserved in the catalogue."""

from __future__ import annotations

from threading import RLock

from cordwood.disk import as_storage_error
from cordwood.storage.meta import Catalogue, Lifecycle, ProducerIdsEntry


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
            try:
                self._catalogue.add([ProducerIdsEntry(first + count)])
            except OSError as error:
                raise as_storage_error(error, "reserving producer ids") from error
            return first
