"""Committed offsets of consumer groups, read from the internal topic when no coordinator runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from cordwood.broker.groups import Coordinator, GroupLimits, OffsetsRow, offsets_topic
from cordwood.errors import CordwoodError, StorageError

ReadRows = Callable[[], Iterable[tuple[bytes | None, bytes | None]]]
"""Yields key and value of every record of the internal topic, in order."""


def last_rows(rows: Iterable[tuple[bytes | None, bytes | None]]) -> list[OffsetsRow]:
    """Return the last record of each key, in order.

    Only the last record of a key is valid. Memory depends on the number of keys, not on the topic's size.
    """
    last: dict[bytes, bytes | None] = {}
    for key, value in rows:
        if key is not None:
            last.pop(key, None)
            last[key] = value
    return list(last.items())


class CommittedOffsets:
    """The committed offsets of all groups, read once at the first use. One thread at a time."""

    def __init__(self, read_rows: ReadRows) -> None:
        self._read_rows = read_rows
        self._coordinator: Coordinator | None = None
        self._failure: CordwoodError | None = None

    def needed_from(self, topic: str, partition: int) -> int | None:
        """Return the smallest offset that any group has committed in a partition, or None.

        Raises:
            CordwoodError: If the offsets cannot be read, which is not the same as no group.
        """
        if self._failure is not None:
            raise self._failure
        if self._coordinator is None:
            coordinator = Coordinator(GroupLimits(), str)
            try:
                # The time only matters for sessions of members, which are not used here.
                coordinator.load(last_rows(self._read_rows()), 0)
            except CordwoodError as error:
                self._failure = error
                raise
            coordinator.loaded = True
            self._coordinator = coordinator
        if self._coordinator.is_unread(topic, partition):
            raise StorageError(f"a record of {offsets_topic.NAME} has an unknown format")
        return self._coordinator.needed_from(topic, partition)
