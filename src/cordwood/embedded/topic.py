"""`Topic`: append to and read from one topic."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

from cordwood.broker import partition_for_key
from cordwood.embedded.reading import followed, records_between
from cordwood.errors import (
    OffsetOutOfRange,
    RecordRefused,
)
from cordwood.formats import Row
from cordwood.records import Header, OffsetRange, Record
from cordwood.storage.directory import Snapshots
from cordwood.storage.log import Appended, TruncationReport, WritablePartition
from cordwood.storage.meta import TopicEntry, partition_directory

if TYPE_CHECKING:
    from cordwood.embedded.log import Log


class Placement(NamedTuple):
    """Where a record was put."""

    partition: int
    offset: int


class Topic:
    """Append to and read from one topic. May be used from many threads."""

    def __init__(self, log: Log, entry: TopicEntry) -> None:
        self._log = log
        self.name = entry.name
        self.partitions = entry.partitions
        self._turn = count()
        # A log that was opened once stays the same, and says itself when it is closed.
        self._logs: dict[int, WritablePartition] = {}

    # --- appending --------------------------------------------------------------------------------

    def append(
        self,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Iterable[Header] = (),
        partition: int | None = None,
        timestamp: int | None = None,
        expected_offset: int | None = None,
    ) -> Placement:
        """Append one record and return where it was put, durable as the sync policy says.

        Without *partition* a key decides, as in Kafka; without either, partitions take turns.
        *timestamp* is milliseconds since the epoch, now if not given. A *value* of None is a tombstone.

        Raises:
            UnexpectedOffset: If *expected_offset* is given and not the next one. Nothing was stored.
            RecordRefused, FrameTooLarge: If the record cannot be held. Nothing was stored.
            DiskFull: Nothing was stored; works again once there is space.
            LogFailed: A sync failed; every later call says so too.
        """
        where = self._partition_for(key) if partition is None else partition
        try:
            row = (key, value, tuple(headers), timestamp)
        except TypeError:
            raise RecordRefused(f"headers must be (name, value) pairs, not {headers!r}") from None
        return Placement(where, self._append(where, [row], expected_offset))

    def append_many(self, rows: Iterable[Row], *, partition: int | None = None) -> list[Placement]:
        """Append ``(key, value[, headers[, timestamp]])`` rows: one frame and one sync per partition touched.

        Returns placements in the order of the rows. Each frame is stored whole or not at all.
        """
        rows = list(rows)
        if not rows:
            return []
        if partition is not None:
            base = self._append(partition, rows, None)
            return [Placement(partition, base + i) for i in range(len(rows))]
        shares: dict[int, list[Row]] = {}
        places: list[tuple[int, int]] = []
        turn = next(self._turn) % self.partitions
        for row in rows:
            # Keyless rows of one call stay together, in one frame.
            where = turn if row[0] is None else self._partition_for(row[0])
            share = shares.setdefault(where, [])
            places.append((where, len(share)))
            share.append(row)
        bases = {where: self._append(where, share, None) for where, share in shares.items()}
        return [Placement(where, bases[where] + i) for where, i in places]

    def append_stream(
        self,
        chunks: Iterable[bytes],
        *,
        key: bytes | None = None,
        headers: Iterable[Header] = (),
        max_bytes: int | None = None,
        partition: int | None = None,
        timestamp: int | None = None,
        expected_offset: int | None = None,
    ) -> Placement:
        """Append one record whose value comes in *chunks*, in constant memory, all or nothing.

        Other appends do not wait for the stream. It may be as long as the segment has room left, and half
        a segment more; *max_bytes* and ``max.message.bytes`` limit it further.

        Raises:
            StreamTooLong: The stream went on past its limit. Nothing was stored.
            Whatever *chunks* raises: nothing was stored.
        """
        where = self._partition_for(key) if partition is None else partition
        log = self._writable(where)
        limit = log.stream_bytes_max() if max_bytes is None else min(max_bytes, log.stream_bytes_max())
        spooled = self._log.data_directory.partitions.spool(str(uuid.uuid4()), chunks, limit)
        try:
            appended = log.append_stream(key, headers, timestamp, spooled, expected_offset)
        finally:
            spooled.close()
        self._settle(log, appended)
        return Placement(where, appended.base_offset)

    def _append(self, partition: int, rows: Sequence[Row], expected_offset: int | None) -> int:
        log = self._writable(partition)
        appended = log.append(rows, expected_offset)
        self._settle(log, appended)
        return appended.base_offset

    def _settle(self, log: WritablePartition, appended: Appended) -> None:
        if log.config.sync.mode == "ms":
            self._log._flush_within(log.config.sync.amount)
        else:
            log.settle(appended)

    def _partition_for(self, key: bytes | None) -> int:
        if key is None:
            return next(self._turn) % self.partitions
        if not isinstance(key, bytes | bytearray | memoryview):
            raise RecordRefused(f"key must be bytes or None, not {type(key).__name__}")
        return partition_for_key(bytes(key), self.partitions)

    # --- reading ----------------------------------------------------------------------------------

    def read(
        self,
        partition: int = 0,
        start: int | None = None,
        stop: int | None = None,
        *,
        since: int | None = None,
        follow: bool = False,
    ) -> Iterator[Record]:
        """Return the records from *start* up to *stop*, or to the high watermark as it is now.

        *start* is the log start if not given, *since* the first record at or after a time (milliseconds)
        instead. With *follow* the iteration does not end: it waits for records to come, until *stop* or
        until the log is closed. A start in a gap begins at the next record; one at the high watermark
        gives nothing.

        Raises:
            OffsetOutOfRange: If *start* is below the log start or above the high watermark.
            CorruptRange: While reading, where records are not what was written.
        """
        log = self._log._readable(self.name, partition)
        low, end = log.log_start_offset, log.high_watermark
        if since is not None:
            found = log.offset_at(since)
            start = end if found is None else found[0]
        elif start is None:
            start = low
        if not low <= start <= end:
            raise OffsetOutOfRange(start, low, end)
        if follow:
            return followed(lambda: self._log._readable(self.name, partition), start, stop)
        return records_between(log, start, end if stop is None else min(stop, end))

    def offset_at(self, timestamp: int, partition: int = 0) -> int | None:
        """Return the offset of the first record at or after *timestamp* (milliseconds), exactly."""
        found = self._log._readable(self.name, partition).offset_at(timestamp)
        return None if found is None else found[0]

    def high_watermark(self, partition: int = 0) -> int:
        """Return the first offset that cannot be read yet."""
        return self._log._readable(self.name, partition).high_watermark

    def log_end_offset(self, partition: int = 0) -> int:
        """Return the offset the next record will get."""
        return self._log._readable(self.name, partition).log_end_offset

    def log_start_offset(self, partition: int = 0) -> int:
        """Return the first offset that can be read."""
        return self._log._readable(self.name, partition).log_start_offset

    def offsets(self, partition: int = 0) -> OffsetRange:
        """Return the offsets that can be read now: how many, whether one is among them, how far in."""
        log = self._log._readable(self.name, partition)
        return OffsetRange(log.log_start_offset, log.high_watermark)

    def size(self, partition: int = 0) -> int:
        """Return the bytes of a partition's segments."""
        return self._log._readable(self.name, partition).size()

    def snapshots(self, partition: int = 0) -> Snapshots:
        """Return the snapshots of what was derived from a partition's records; see `replay.replay`."""
        directory = self._log._directory
        return Snapshots(directory.files, partition_directory(directory.path, self.name, partition))

    # --- cutting ----------------------------------------------------------------------------------

    def truncate(self, partition: int, end_offset: int, *, force: bool = False) -> TruncationReport:
        """Drop every record of *partition* at or above *end_offset*. Durable on return.

        Raises:
            SignedFor: If a checkpoint signs for one of them, and *force* does not say that this is meant.
        """
        log, directory = self._writable(partition), self._log.data_directory
        if not force:
            directory.signer.check_not_signed_for(log, end_offset)
        own = directory.partitions.opened_own(self.name, partition)
        if own is None:
            return log.truncate(end_offset)
        with own.maintaining:
            directory.chains.keep_lists_from(own, end_offset)
            report = log.truncate(end_offset)
            if own.state.active_generation:
                # Frames that follow rewritten ones in a segment cannot be told from them, and get no leaves.
                own.roll()
            return report

    def advance_log_start(self, partition: int, offset: int) -> None:
        """Make *offset* the first one that can be read. Durable on return."""
        self._writable(partition).advance_log_start(offset)

    def remove_expired(self) -> int:
        """Delete what retention no longer keeps; return how many records that were. Durable on return.

        With ``cordwood.retention.wait.for.groups`` what a group has not committed past stays.

        Raises:
            CordwoodError: If the topic waits for groups and what they have committed cannot be read. Nothing
                was deleted.
        """
        directory, removed = self._log.data_directory, 0
        needed_from = self._log._committed_offsets().needed_from
        for partition in range(self.partitions):
            log = directory.partitions.find(self.name, partition)
            expired = None if log is None else directory.maintenance.expire(log, needed_from=needed_from)
            removed += 0 if expired is None else expired.records
        return removed

    def roll(self, partition: int = 0) -> None:
        """Seal the active segment and go on in a new one. Durable on return."""
        self._writable(partition).roll()

    def _writable(self, partition: int) -> WritablePartition:
        log = self._logs.get(partition)
        if log is None:
            log = self._logs[partition] = self._log.data_directory.partitions.writable(self.name, partition)
        return log
