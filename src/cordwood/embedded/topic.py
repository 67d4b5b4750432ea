"""`Topic`: append to and read from one topic."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from cordwood.embedded.reading import followed, records_at, records_between, start_and_end
from cordwood.embedded.writing import Placement, RowShare, TopicWriter, with_event_type
from cordwood.formats import Row
from cordwood.records import EventType, Header, OffsetRange, Record
from cordwood.storage.directory import Snapshots, check_truncation
from cordwood.storage.log import TruncationReport
from cordwood.storage.meta import TopicEntry
from cordwood.wording import counted

if TYPE_CHECKING:
    from cordwood.embedded.log import Log
    from cordwood.embedded.scan import Scan
    from cordwood.evidence import VerifiedRead


class Topic:
    """Append to and read from one topic. May be used from many threads."""

    def __init__(self, log: Log, entry: TopicEntry) -> None:
        self._log = log
        self.name = entry.name
        self.partitions = entry.partitions
        #: Appends without waiting for the sync, for callers that share syncs. Not part of the stable API.
        self.writer = TopicWriter(log, entry)

    def __repr__(self) -> str:
        """Return the name, the partitions and the log. Reads no file, and works on a closed log."""
        return f"<cordwood.Topic {self.name!r}, {counted(self.partitions, 'partition')}, of {self._log!r}>"

    def __len__(self) -> int:
        """Return the number of offsets that can be read now, over all partitions.

        At least the number of records, and more if compaction left gaps.
        """
        return sum(len(self.offsets(partition)) for partition in range(self.partitions))

    def __bool__(self) -> bool:
        """Return True, also for a topic without records: a topic is not its records."""
        return True

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
        event_type: int = EventType.DATA,
    ) -> Placement:
        """Append one record and return where it was put, durable as the sync policy says.

        Without *partition* a key decides, as in Kafka; without either, partitions take turns.
        *timestamp* is milliseconds since the epoch, now if not given. A *value* of None is a tombstone.
        An *event_type* other than 0 is the header ``cordwood.event_type``, in decimal digits; the format
        ``kimberlite`` stores it in its own field.

        Raises:
            UnexpectedOffset: If *expected_offset* is given and not the next one. Nothing was stored.
            RecordRefused, FrameTooLarge: If the record cannot be held. Nothing was stored.
            DiskFull: Nothing was stored; works again once there is space.
            LogFailed: A sync failed; every later call says so too.
        """
        share = self.writer.share_of(value, key, headers, partition, timestamp, event_type)
        return Placement(share.partition, self._append(share, expected_offset))

    def append_many(self, rows: Iterable[Row], *, partition: int | None = None) -> list[Placement]:
        """Append ``(key, value[, headers[, timestamp]])`` rows: one frame and one sync per partition touched.

        Returns placements in the order of the rows. Each frame is stored whole or not at all.
        """
        shares, places = self.writer.shares_of(rows, partition)
        bases = {share.partition: self._append(share, None) for share in shares}
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
        event_type: int = EventType.DATA,
    ) -> Placement:
        """Append one record whose value comes in *chunks*, in constant memory, all or nothing.

        Other appends do not wait for the stream. It may be as long as the segment has room left, and half
        a segment more; *max_bytes* and ``max.message.bytes`` limit it further. The other parameters are those
        of `append`.

        Raises:
            StreamTooLong: The stream went on past its limit. Nothing was stored.
            Whatever *chunks* raises: nothing was stored.
        """
        writer = self.writer
        where = writer.partition_for(key) if partition is None else partition
        headers = with_event_type(headers, event_type, has_value=True)
        spooled = writer.spool(chunks, writer.stream_limit(where, max_bytes))
        try:
            written = writer.write_spooled(where, spooled, key, headers, timestamp, expected_offset)
        finally:
            spooled.close()
        writer.settle(written)
        return Placement(where, written.appended.base_offset)

    def _append(self, share: RowShare, expected_offset: int | None) -> int:
        written = self.writer.write(share, expected_offset)
        self.writer.settle(written)
        return written.appended.base_offset

    # --- reading ----------------------------------------------------------------------------------

    def read(
        self,
        partition: int = 0,
        start: int | None = None,
        stop: int | None = None,
        *,
        since: int | None = None,
        follow: bool = False,
        committed: bool = True,
    ) -> Iterator[Record]:
        """Return the records from *start* up to *stop*, or to the last stable offset as it is now.

        *start* is the log start if not given, *since* the first record at or after a time (milliseconds)
        instead. With *follow* the iteration does not end: it waits for records to come, until *stop* or
        until the log is closed. A start in a gap begins at the next record; one at the high watermark
        gives nothing. Records of aborted transactions are left out, and reading ends before the first record
        of an open transaction; with *committed* False neither is so, and the end is the high watermark.

        Raises:
            OffsetOutOfRange: If *start* is below the log start or above the high watermark.
            CorruptRange: While reading, where records are not what was written.
        """
        log = self._log._readable(self.name, partition)
        start, end = start_and_end(log, start, since, committed=committed)
        if follow:
            return followed(
                lambda: self._log._readable(self.name, partition), start, stop, committed=committed
            )
        return records_between(log, start, end if stop is None else min(stop, end), committed=committed)

    def get(self, partition: int, offset: int, *, committed: bool = True) -> Record | None:
        """Return the record at *offset*, or None if there is none.

        None if compaction removed it, if its transaction was aborted, or if the end of a transaction is
        there. With *committed* False records of aborted and open transactions are returned too.

        Raises:
            OffsetOutOfRange: If *offset* is below the log start, or not below the last stable offset; without
                *committed*, not below the high watermark.
            CorruptRange: If its frame is not what was written.
        """
        return records_at(self._log._readable(self.name, partition), [offset], committed=committed)[0]

    def get_many(
        self, partition: int, offsets: Iterable[int], *, committed: bool = True
    ) -> list[Record | None]:
        """Return the records at *offsets*, in that order, None for each that is not there; see `get`.

        An offset may come more than once. Each frame that holds one of them is read once.

        Raises:
            OffsetOutOfRange: If one of them is out of range; see `get`.
            CorruptRange: If a frame is not what was written.
        """
        return records_at(self._log._readable(self.name, partition), list(offsets), committed=committed)

    def scan(
        self,
        partition: int | None = None,
        *,
        start: int | None = None,
        stop: int | None = None,
        columns: Sequence[str] | None = None,
        since: int | None = None,
        until: int | None = None,
        committed: bool = True,
    ) -> Scan:
        """Return the records as columns for pyarrow, pandas, polars and DuckDB; see `Log.scan`."""
        return self._log.scan(
            self.name,
            partition,
            start=start,
            stop=stop,
            columns=columns,
            since=since,
            until=until,
            committed=committed,
        )

    def read_verified(self, offset: int, partition: int = 0, *, committed: bool = True) -> VerifiedRead:
        """Return the record at *offset*, verified from the nearest signed checkpoint or snapshot.

        The result says which that was and how many frames were read: one, or in the format kimberlite at most
        those between the record and the anchor and three more. See `evidence.read_verified` for what it
        checks. With *committed* False the record may be of an aborted or open transaction.

        Raises:
            OffsetOutOfRange: If there is no such offset, or its record is not synced or not committed yet.
            EvidenceMissing: If there is nothing to verify the record with, or its transaction was aborted.
            EvidenceRefused, CorruptRange: If a record is not what was appended.
        """
        # Loaded here, because most programs that read never verify.
        from cordwood.evidence import read_verified

        directory = self._log._directory
        self._log._commit_chain(self.name, partition)
        return read_verified(
            directory.path,
            self.name,
            offset,
            partition=partition,
            committed=committed,
            files=directory.files,
        )

    def offset_at(self, timestamp: int, partition: int = 0) -> int | None:
        """Return the offset of the first record at or after *timestamp* (milliseconds), exactly."""
        found = self._log._readable(self.name, partition).offset_at(timestamp)
        return None if found is None else found[0]

    def high_watermark(self, partition: int = 0) -> int:
        """Return the first offset that cannot be read yet, also not with *committed* False."""
        return self._log._readable(self.name, partition).high_watermark

    def last_stable_offset(self, partition: int = 0) -> int:
        """Return the first offset of an open transaction, or the high watermark if none is open.

        Committed records are read up to it.
        """
        return self._log._readable(self.name, partition).last_stable_offset

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
        return self._log._snapshots(self.name, partition)

    # --- cutting ----------------------------------------------------------------------------------

    def truncate(
        self, partition: int, end_offset: int, *, force: bool = False, dry_run: bool = False
    ) -> TruncationReport:
        """Drop every record of *partition* at or above *end_offset*. Durable on return.

        With *dry_run* nothing changes, the log may be open to read only, and the report has no bytes.

        Raises:
            OffsetOutOfRange: If the partition does not have that end.
            SignedFor: If a checkpoint signs for one of them, and *force* does not say that this is meant.
        """
        if not dry_run:
            return self._log.data_directory.cutting.truncate(self.name, partition, end_offset, force=force)
        directory, log = self._log._directory, self._log._readable(self.name, partition)
        entry = directory.topics[self.name]
        return check_truncation(
            directory.files, directory.path, entry, partition, log, end_offset, force=force
        )

    def advance_log_start(self, partition: int, offset: int) -> None:
        """Make *offset* the first one that can be read. Durable on return."""
        self.writer.writable(partition).advance_log_start(offset)

    def remove_expired(self, older_than_ms: int | None = None) -> int:
        """Delete what retention no longer keeps; return how many records that were. Durable on return.

        With *older_than_ms*, segments whose newest record is older than this many milliseconds are deleted,
        in place of ``retention.ms`` and ``retention.bytes``, and also if the topic has no retention. Its age
        is that of ``cordwood.retention.clock``. An active segment that is that old is sealed first. With
        ``cordwood.retention.wait.for.groups`` what a group has not committed past stays.

        Raises:
            InvalidSetting: If *older_than_ms* is negative, or the topic is compacted and not deleted by age.
            CordwoodError: If the topic waits for groups and what they have committed cannot be read. Nothing
                was deleted.
        """
        directory, removed = self._log.data_directory, 0
        needed_from = self._log._committed_offsets().needed_from
        for partition in range(self.partitions):
            log = directory.partitions.find(self.name, partition)
            expired = None
            if log is not None:
                expired = directory.maintenance.expire(
                    log, needed_from=needed_from, older_than_ms=older_than_ms
                )
            removed += 0 if expired is None else expired.records
        return removed

    def roll(self, partition: int = 0) -> None:
        """Seal the active segment and go on in a new one. Durable on return."""
        self.writer.writable(partition).roll()
