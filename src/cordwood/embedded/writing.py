"""How records of a topic are appended: a partition is chosen, a frame is written, then it is settled.

Choosing touches no file. Writing and settling do, and are separate steps, so that the appends of many callers
can share a sync.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

from cordwood.broker import partition_for_key
from cordwood.errors import RecordRefused
from cordwood.formats import Row
from cordwood.kernels import Buffer
from cordwood.records import EVENT_TYPE_HEADER, EVENT_TYPE_MAX, EventType, Header
from cordwood.storage.log import Appended, Spool, WritablePartition
from cordwood.storage.meta import TopicEntry

if TYPE_CHECKING:
    from cordwood.embedded.log import Log


class Placement(NamedTuple):
    """Where a record was put."""

    partition: int
    offset: int


class RowShare(NamedTuple):
    """Rows that one call appends to one partition, as one frame."""

    partition: int
    rows: Sequence[Row]


class UnsettledAppend(NamedTuple):
    """A frame that was written. It is durable as its sync policy says once it is settled."""

    log: WritablePartition
    appended: Appended


class TopicWriter:
    """Appends to one topic. May be used from many threads."""

    def __init__(self, log: Log, entry: TopicEntry) -> None:
        self._log = log
        self._name = entry.name
        self._partitions = entry.partitions
        self._turn = count()
        # A log that was opened once stays the same, and says itself when it is closed.
        self._logs: dict[int, WritablePartition] = {}

    # --- choosing partitions: no file is touched --------------------------------------------------

    def partition_for(self, key: bytes | None) -> int:
        """Return the partition for a record: by its key as in Kafka, in turns without one.

        Raises:
            RecordRefused: If the key is not bytes.
        """
        if key is None:
            return next(self._turn) % self._partitions
        if not isinstance(key, bytes | bytearray | memoryview):
            raise RecordRefused(f"key must be bytes or None, not {type(key).__name__}")
        return partition_for_key(bytes(key), self._partitions)

    def share_of(
        self,
        value: bytes | None,
        key: bytes | None,
        headers: Iterable[Header],
        partition: int | None,
        timestamp: int | None,
        event_type: int = EventType.DATA,
    ) -> RowShare:
        """Return one record as a share.

        Raises:
            RecordRefused: If the key is not bytes, the headers are not pairs, or the event type is none.
        """
        where = self.partition_for(key) if partition is None else partition
        headers = with_event_type(headers, event_type, has_value=value is not None)
        return RowShare(where, [(key, value, headers, timestamp)])

    def shares_of(
        self, rows: Iterable[Row], partition: int | None
    ) -> tuple[list[RowShare], list[tuple[int, int]]]:
        """Return *rows* by partition, and for each row its partition and its place among that one's rows."""
        rows = list(rows)
        if not rows:
            return [], []
        if partition is not None:
            return [RowShare(partition, rows)], [(partition, i) for i in range(len(rows))]
        shares: dict[int, list[Row]] = {}
        places: list[tuple[int, int]] = []
        turn = next(self._turn) % self._partitions
        for row in rows:
            # Keyless rows of one call stay together, in one frame.
            where = turn if row[0] is None else self.partition_for(row[0])
            share = shares.setdefault(where, [])
            places.append((where, len(share)))
            share.append(row)
        return [RowShare(where, share) for where, share in shares.items()], places

    # --- writing and settling ---------------------------------------------------------------------

    def write(self, share: RowShare, expected_offset: int | None = None) -> UnsettledAppend:
        """Append a share as one frame, whole or not at all. Raises as `WritablePartition.append` does."""
        check_offset(expected_offset)
        log = self.writable(share.partition)
        return UnsettledAppend(log, log.append(share.rows, expected_offset))

    def write_spooled(
        self,
        partition: int,
        spooled: Spool,
        key: bytes | None,
        headers: Iterable[Header],
        timestamp: int | None,
        expected_offset: int | None,
    ) -> UnsettledAppend:
        """Append one record whose value is *spooled*, whole or not at all. The spool stays."""
        check_offset(expected_offset)
        log = self.writable(partition)
        return UnsettledAppend(log, log.append_stream(key, headers, timestamp, spooled, expected_offset))

    def settle(self, written: UnsettledAppend) -> None:
        """Sync as the sync policy of the topic asks after an append.

        Raises:
            LogFailed: If the sync failed; every later call says so too.
        """
        log = written.log
        if log.config.sync.mode == "ms":
            self._log._flush_within(log.config.sync.amount)
        else:
            log.settle(written.appended)

    # --- streams ----------------------------------------------------------------------------------

    def stream_limit(self, partition: int, max_bytes: int | None) -> int:
        """Return how many bytes a stream to *partition* may have now."""
        limit = self.writable(partition).stream_bytes_max()
        return limit if max_bytes is None else min(max_bytes, limit)

    def spool(self, chunks: Iterable[Buffer], limit: int) -> Spool:
        """Write a stream to a file of its own; see `spooling.spool`."""
        return self._log.data_directory.partitions.spool(str(uuid.uuid4()), chunks, limit)

    def begin_spool(self) -> Spool:
        """Return an empty spool for a stream that comes in pieces."""
        return self._log.data_directory.partitions.begin_spool(str(uuid.uuid4()))

    def writable(self, partition: int) -> WritablePartition:
        """Return a partition to append to, created on its first use; see `DirectoryPartitions.writable`."""
        log = self._logs.get(partition)
        if log is None:
            directory = self._log.data_directory
            log = self._logs[partition] = directory.partitions.writable(self._name, partition)
        return log


def check_offset(expected_offset: int | None) -> None:
    """Raise RecordRefused for what can never be the next offset, so that a caller does not try again."""
    if expected_offset is not None and type(expected_offset) is not int:
        kind = type(expected_offset).__name__
        raise RecordRefused(f"expected_offset must be a whole number, not {expected_offset!r} ({kind})")


def with_event_type(headers: Iterable[Header], event_type: int, *, has_value: bool) -> tuple[Header, ...]:
    """Return *headers*, with one more for an event type that is not 0.

    Raises:
        RecordRefused: If *headers* cannot be iterated over, if *event_type* is not from 0 to 65535, or if
            *headers* has one already.
    """
    try:
        headers = tuple(headers)
    except TypeError:
        raise RecordRefused(f"headers must be (name, value) pairs, not {headers!r}") from None
    if isinstance(event_type, bool) or not isinstance(event_type, int):
        raise RecordRefused(f"event_type must be a number, not {type(event_type).__name__}")
    if event_type == 0:
        return headers
    if not 0 <= event_type <= EVENT_TYPE_MAX:
        raise RecordRefused(f"event_type must be from 0 to {EVENT_TYPE_MAX}, not {event_type}")
    if any(header[0] == EVENT_TYPE_HEADER for header in headers):
        raise RecordRefused(f"the event type is given twice: as event_type and as header {EVENT_TYPE_HEADER}")
    if event_type == EventType.TOMBSTONE and not has_value:
        # The null value says so.
        return headers
    return (*headers, (EVENT_TYPE_HEADER, b"%d" % event_type))
