"""A partition that never had a record, implementing `ServedPartition`. It has no files."""

from __future__ import annotations

from collections.abc import Callable

from cordwood.errors import OffsetOutOfRange
from cordwood.storage.log import (
    AbortedEntry,
    Epoch,
    Fetched,
    KnownProducer,
    OpenTransaction,
    Partition,
    Standing,
)


class UnusedPartition:
    """An empty log at its first offset. *wait_for_use* returns the log once it has a record."""

    def __init__(
        self, first_offset: int, wait_for_use: Callable[[], Partition], leader_epoch: int = 0
    ) -> None:
        """*leader_epoch* is that of the first record."""
        self.leader_epoch = leader_epoch
        self.log_start_offset = self.high_watermark = self.log_end_offset = first_offset
        self.epochs = (Epoch(leader_epoch, first_offset),)
        self._wait_for_use = wait_for_use

    @property
    def last_stable_offset(self) -> int:
        """The first offset."""
        return self.high_watermark

    @property
    def standing(self) -> Standing:
        """The first offset, three times."""
        return self.high_watermark, self.log_start_offset, self.high_watermark

    def aborted(self, start: int, stop: int) -> list[AbortedEntry]:
        """Return an empty list: there was no transaction."""
        return []

    def open_transactions(self) -> list[OpenTransaction]:
        """Return an empty list: there was no transaction."""
        return []

    def read(
        self, offset: int, max_bytes: int, stop: int | None = None, *, committed: bool = False
    ) -> Fetched:
        """Return no frames, if *offset* is the first one."""
        self._check(offset)
        first = self.log_start_offset
        return Fetched((), first, first, first, first)

    def offset_at(self, timestamp: int) -> None:
        """Return None: there is no record at any time."""

    def newest(self) -> None:
        """Return None: there is no record."""

    def wait_beyond(self, offset: int, *, committed: bool = False) -> int:
        """Wait for the first record and then as the log itself does."""
        return self._wait_for_use().wait_beyond(offset, committed=committed)

    def size(self) -> int:
        """Return 0."""
        return 0

    def producers(self) -> list[KnownProducer]:
        """Return an empty list: no producer has appended."""
        return []

    def producer_epochs(self) -> dict[int, int]:
        """Return nothing: no producer has appended."""
        return {}

    def advance_log_start(self, offset: int) -> None:
        """Accept offsets up to the first one, which change nothing."""
        if offset > self.log_start_offset:
            self._check(offset)

    def _check(self, offset: int) -> None:
        first = self.log_start_offset
        if offset != first:
            raise OffsetOutOfRange(offset, first, first)
