"""A partition that never had a record: something to read from, nothing on disk."""

from __future__ import annotations

from collections.abc import Callable

from cordwood.errors import OffsetOutOfRange
from cordwood.storage.view import Fetched
from cordwood.storage.virtual_log import AnyLog


class UnusedPartition:
    """What a reader finds where nobody has appended yet: an empty log at its first offset."""

    def __init__(self, first_offset: int, wait_for_use: Callable[[], AnyLog]) -> None:
        self.log_start_offset = self.high_watermark = self.log_end_offset = first_offset
        self._wait_for_use = wait_for_use

    def read(self, offset: int, max_bytes: int, stop: int | None = None) -> Fetched:
        """Return nothing, for the one offset there is."""
        first = self.log_start_offset
        if offset != first:
            raise OffsetOutOfRange(offset, first, first)
        return Fetched((), first, first, first, first)

    def offset_at(self, timestamp: int) -> None:
        """Return None: there is no record at any time."""

    def newest(self) -> None:
        """Return None: there is no record."""

    def wait_beyond(self, offset: int) -> int:
        """Wait for the first record and then as the log itself does."""
        return self._wait_for_use().wait_beyond(offset)

    def size(self) -> int:
        """Return 0."""
        return 0
