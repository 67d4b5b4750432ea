"""Committed offsets of consumer groups, read from the internal topic."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from cordwood.broker.groups import (
    Coordinator,
    GroupLimits,
    OffsetsRow,
    StoredRows,
    TransactionKey,
    offsets_topic,
)
from cordwood.errors import CordwoodError, StorageError
from cordwood.storage.log import FrameRun, Partition

#: The bytes per read.
READ_BYTES = 1 << 20
ReadRows = Callable[[], StoredRows]
"""Reads the internal topic."""


def read_offsets_topic(partitions: Iterable[Partition]) -> StoredRows:
    """Return what the partitions of the internal topic say: records and markers are taken in their order.

    Records behind an open transaction count too, so this does not stop at the last stable offset.

    Raises:
        CorruptRange: If a record is corrupt.
    """
    stored = StoredRows()
    for partition, log in enumerate(partitions):
        offset, end = log.log_start_offset, log.high_watermark
        while offset < end:
            fetched = log.read(offset, READ_BYTES)
            for run in fetched.runs:
                _replay(run, partition, stored)
            offset = fetched.next_offset
    return stored


def _replay(run: FrameRun, partition: int, stored: StoredRows) -> None:
    for frame in range(run.first, run.last + 1):
        stamp, marker = run.table.stamp(frame), run.table.marker(frame)
        if marker is not None:
            stored.end(TransactionKey(marker.producer_id, partition), committed=marker.committed)
            continue
        transaction = None
        if stamp is not None and stamp.transactional:
            transaction = TransactionKey(stamp.producer_id, partition)
        for record in run.table.records(frame):
            stored.add(record.key, record.value, transaction)


def last_rows(rows: Iterable[tuple[bytes | None, bytes | None]]) -> list[OffsetsRow]:
    """Return the last record of each key, in order.

    For a topic without transactions, in which only the last record of a key is valid. Memory depends on the
    number of keys, not on the size of the topic.
    """
    stored = StoredRows()
    for key, value in rows:
        stored.add(key, value)
    return stored.rows()


class CommittedOffsets:
    """The committed offsets of all groups without a coordinator, read once at the first use.

    One thread at a time.
    """

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
                coordinator.load_stored(self._read_rows(), 0)
            except CordwoodError as error:
                self._failure = error
                raise
            coordinator.loaded = True
            self._coordinator = coordinator
        if self._coordinator.is_unread(topic, partition):
            raise StorageError(f"a record of {offsets_topic.NAME} has an unknown format")
        return self._coordinator.needed_from(topic, partition)
