"""One broker without its sockets: topics, partitions, producer ids, in domain terms."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from cordwood.broker.committed import read_offsets_topic
from cordwood.broker.fetch_sessions import Asked
from cordwood.broker.fetching import FetchResult, Got, PartitionFetch, read_all
from cordwood.broker.groups import NAME as OFFSETS_TOPIC
from cordwood.broker.groups import StoredRows
from cordwood.broker.leader_epochs import NO_EPOCH, check_leader_epoch, epoch_at, epoch_end
from cordwood.broker.offsets import LATEST, Position, find_offset
from cordwood.broker.operations import Operation, TruncatePartition
from cordwood.broker.staging import SinkCommands
from cordwood.broker.topics import Topics, is_read_only
from cordwood.broker.transactions import Admission
from cordwood.config import BrokerConfig
from cordwood.errors import CordwoodError, OffsetOutOfRange, StorageError, UnknownTopic
from cordwood.formats import Marker, compression_in, recompressed_if_sound
from cordwood.records import TopicPartition
from cordwood.storage.directory import DataDirectory
from cordwood.storage.log import (
    KnownProducer,
    OpenTransaction,
    Pace,
    ServedPartition,
    WritablePartition,
    codec_of,
    terms_of,
)
from cordwood.storage.maintenance import MaintenanceReport
from cordwood.storage.meta import SHARED_TOPIC, TopicEntry, is_shared
from cordwood.telemetry import PRODUCE_STORE, Tracer, no_tracing

if TYPE_CHECKING:
    from cordwood.bucket import ShippedDirectory

Result = TypeVar("Result")
#: The bytes per read when a whole topic is read.
ROWS_BYTES = 1 << 20
#: The number of producer ids that are reserved at a time, so that a new id rarely needs a sync.
PRODUCER_ID_BLOCK = 1000


class Placed(NamedTuple):
    """The offsets [base, next) of an appended batch and its log. Durable once the log has committed them."""

    log: WritablePartition
    base_offset: int
    next_offset: int
    append_timestamp: int


class PartitionStanding(NamedTuple):
    """The offsets of a partition and the bytes of its segments."""

    log_start_offset: int
    high_watermark: int
    size: int


class Node:
    """A broker's state. Every method may block on the disk and may be called from any thread."""

    def __init__(
        self,
        directory: DataDirectory,
        config: BrokerConfig,
        tracer: Tracer = no_tracing,
        shipped: ShippedDirectory | None = None,
    ) -> None:
        self._tracer = tracer
        #: The bucket that the directory is shipped to; None without one.
        self.shipped = shipped
        self.topics = Topics(directory, config)
        self.sink = SinkCommands(directory, self.topics.delete)
        self.directory = directory
        #: The check of transactional batches. A coordinator says which transactions are open.
        self.admission = Admission()
        #: Partitions whose last stable offset may be lower than it was: a decided transaction has no marker
        #: there yet. Nothing committed is read from them. Replaced as a whole.
        self.unsettled: frozenset[TopicPartition] = frozenset()
        self._partitions = directory.partitions
        self._producer_ids = range(0)
        self._producer_guard = Lock()

    def may_acknowledge(self) -> bool:
        """Return whether what is synced may be acknowledged: no standby can have taken over meanwhile."""
        return self.shipped is None or self.shipped.may_acknowledge()

    def append(self, topic: str, partition: int, batch: memoryview, topic_id: str | None = None) -> Placed:
        """Check and append a client's batch, in a writable buffer. Not durable on return.

        For a batch of an idempotent producer that is already stored, the existing offsets are returned.

        Raises:
            UnknownTopic: If the topic or partition does not exist, or the topic does not have *topic_id*.
            FrameError, RecordRefused: If the batch is invalid.
            RecordsRejected: If some of its records are invalid.
            OutOfSequence, ProducerFenced: If its sequence or producer epoch is wrong.
            TransactionStateInvalid: If it is not part of an ongoing transaction, as it says or must be.
            StorageError: If it could not be written.
        """
        if self._tracer is no_tracing:
            return self._append(topic, partition, batch, topic_id)
        with self._tracer.start(PRODUCE_STORE) as span:
            span.set(virtual_topic=self._partitions.virtual_topic(topic, partition))
            span.set(topic=topic, partition=partition)
            placed = self._append(topic, partition, batch, topic_id)
            count = placed.next_offset - placed.base_offset
            span.set(record_count=count, base_offset=placed.base_offset)
        return placed

    def _append(self, topic: str, partition: int, batch: memoryview, topic_id: str | None) -> Placed:
        log = self._partitions.writable(topic, partition)
        if topic_id is not None and log.state.topic_id != topic_id:
            # Deleted and created again since the client's request was checked.
            raise UnknownTopic(f"topic {topic} was deleted and created again")
        now_ms = self.directory.context.clock.now_ms()
        terms = terms_of(log.config, now_ms)
        if is_read_only(topic):
            # No client can write to it.
            terms = terms._replace(from_broker=True)
        frame = log.format.receive(batch, terms)
        admit = None
        if frame.stamp is not None:
            if frame.stamp.transactional:
                admit = self.admission.guard(topic, partition)
            else:
                self.admission.check_outside(frame.stamp)
        base_offset, next_offset, append_timestamp = log.append_received(frame, admit=admit)
        return Placed(log, base_offset, next_offset, append_timestamp)

    def append_marker(self, topic: str, partition: int, marker: Marker) -> Placed:
        """Append the end of a transaction to a partition. Not durable on return.

        Raises:
            UnknownTopic: If the topic or partition does not exist.
            TransactionsUnsupported: If the topic has no transactions.
            ProducerFenced: If the producer has a later epoch in this partition.
            StorageError: If it could not be written.
        """
        log = self._partitions.writable(topic, partition)
        base_offset, next_offset, append_timestamp = log.append_marker(marker)
        return Placed(log, base_offset, next_offset, append_timestamp)

    def recompression_of(
        self, topic: str, partition: int, data: memoryview
    ) -> Callable[[], memoryview] | None:
        """Return a function that recompresses the batch *data* for its topic, or None if that is not needed.

        The function is slow and may be called in any thread. It returns an invalid batch unchanged: `append`
        reports the error, and compresses a batch that was not recompressed.
        """
        log = self._partitions.opened(topic, partition)
        codec = None if log is None or log.format.record_per_frame else codec_of(log.config)
        if log is None or codec is None or compression_in(data) in (codec.compression, -1):
            return None
        size_max = log.config.max_message_bytes
        return lambda: recompressed_if_sound(data, codec, size_max)

    def read(
        self, wishes: Sequence[PartitionFetch], max_bytes: int, *, committed: bool = False
    ) -> FetchResult:
        """Read from many partitions within one limit; see `fetching.read_all`."""
        return read_all(
            self._settled if committed else self._partitions.readable,
            wishes,
            max_bytes,
            self._tracer,
            self._partitions.virtual_topic,
            committed=committed,
        )

    def _settled(self, topic: str, partition: int) -> ServedPartition:
        """Return a partition to read committed records from.

        Raises:
            StorageError: If it is among those that are ``unsettled``, or as `readable` does.
        """
        if (topic, partition) in self.unsettled:
            raise StorageError(f"{topic}-{partition}: the end of a transaction cannot be written yet")
        return self._partitions.readable(topic, partition)

    def peek(self, wishes: Sequence[PartitionFetch], *, committed: bool = False) -> FetchResult | None:
        """Return an empty result if there is nothing to read, else None. Does not access the disk.

        With *committed*, there is nothing to read from the last stable offset on.
        """
        each = []
        for wanted in wishes:
            log = self._partitions.opened(wanted.topic, wanted.partition)
            if log is None or (committed and (wanted.topic, wanted.partition) in self.unsettled):
                return None
            end, start, stable = log.standing
            if not (stable if committed else end) <= wanted.offset <= end:
                return None
            if wanted.leader_epoch not in (NO_EPOCH, log.leader_epoch):
                return None
            each.append(Got((), end, start, None, stable))
        return FetchResult(each, 0, failed=False)

    def last_stable_offset(self, topic: str, partition: int) -> int | None:
        """Return the last stable offset of a partition, or None if it is not open. Accesses no disk."""
        log = self._partitions.opened(topic, partition)
        return None if log is None else log.last_stable_offset

    def find_news(self, asked: Iterable[Asked], *, committed: bool = False) -> list[Asked]:
        """Return the partitions of a fetch session that may have changes for its client.

        All others are unchanged for the client. Does not access the disk; the topic of each must be known.
        """
        opened = self._partitions.opened
        found = []
        for each in asked:
            wish = each.wish
            assert wish is not None
            log = opened(wish.topic, wish.partition)
            if log is not None:
                standing = log.standing
                end, start, stable = standing
                if stable < end and not committed:
                    stable, standing = end, (end, start, end)
                same = each.told == standing and stable <= wish.offset <= end
                if same and wish.leader_epoch in (NO_EPOCH, log.leader_epoch):
                    continue
            found.append(each)
        return found

    def look_at_once(self, look: Callable[[], Result]) -> Result:
        """Return the result of *look*, which reads ends of partitions; see `Publisher.look_at_once`."""
        return self.directory.publisher.look_at_once(look)

    def find_offset(
        self,
        topic: str,
        partition: int,
        timestamp: int,
        leader_epoch: int = NO_EPOCH,
        *,
        committed: bool = False,
    ) -> Position:
        """Return the position for *timestamp*; see `offsets.find_offset`.

        Raises:
            UnknownTopic: If the topic or partition does not exist.
            LeaderEpochFenced, LeaderEpochUnknown: If *leader_epoch* is not that of the partition.
            StorageError: If it cannot be read, or is ``unsettled`` and only committed records count.
        """
        find = self._settled if committed else self._partitions.readable
        log = find(topic, partition)
        check_leader_epoch(leader_epoch, log.leader_epoch)
        found = find_offset(log, timestamp, committed=committed)
        if found.offset < 0:
            return found
        # There is no record at the end yet: the epoch is that of the next record.
        epoch = log.leader_epoch if timestamp == LATEST else epoch_at(log.epochs, found.offset)
        return found._replace(leader_epoch=epoch)

    def delete_records(self, topic: str, partition: int, offset: int) -> int:
        """Delete the records below *offset*, or all if it is -1; return the log start. Durable on return.

        Raises:
            UnknownTopic: If the topic or partition does not exist.
            OffsetOutOfRange: If *offset* is above the high watermark, or below 0 and not -1.
        """
        log = self._partitions.readable(topic, partition)
        target = log.high_watermark if offset == -1 else offset
        # An offset below the log start is valid: those records are deleted. One below 0 never existed.
        if not 0 <= target <= log.high_watermark:
            raise OffsetOutOfRange(target, log.log_start_offset, log.high_watermark)
        log.advance_log_start(target)
        return log.log_start_offset

    def operate(self, topic: str, operation: Operation, *, dry_run: bool = False) -> None:
        """Seal or truncate a partition. Durable on return; see `Cutting`. With *dry_run* nothing changes.

        Raises:
            UnknownTopic: If the topic or partition does not exist.
            OffsetOutOfRange, SignedFor: If the partition cannot be truncated there.
            RecordRefused: If the topic is in the shared log.
            StorageError: If it failed.
        """
        cutting, partition = self.directory.cutting, operation.partition
        if isinstance(operation, TruncatePartition):
            try:
                cutting.truncate(
                    topic, partition, operation.end_offset, force=operation.force, dry_run=dry_run
                )
            finally:
                # Also after a failure: it may have come after the commit.
                if not dry_run:
                    self.topics.note_truncation(topic)
        else:
            cutting.roll(topic, partition, dry_run=dry_run)

    def epoch_end(
        self, topic: str, partition: int, epoch: int, leader_epoch: int = NO_EPOCH
    ) -> tuple[int, int]:
        """Return the end of a leader epoch; see `leader_epochs.epoch_end`.

        Raises:
            UnknownTopic: If the topic or partition does not exist.
            LeaderEpochFenced, LeaderEpochUnknown: If *leader_epoch* is not that of the partition.
        """
        log = self._partitions.readable(topic, partition)
        check_leader_epoch(leader_epoch, log.leader_epoch)
        return epoch_end(log.epochs, epoch, log.high_watermark)

    def producers(self, topic: str, partition: int) -> list[KnownProducer]:
        """Return the idempotent producers of a partition.

        Raises:
            UnknownTopic: If the topic or partition does not exist.
            StorageError: If its log cannot be read.
        """
        return self._partitions.readable(topic, partition).producers()

    def producer_epochs(self, topic: str, partition: int) -> dict[int, int]:
        """Return the newest epoch of every producer that a partition knows, by producer id.

        Raises:
            UnknownTopic: If the topic or partition does not exist.
            StorageError: If its log cannot be read.
        """
        return self._partitions.readable(topic, partition).producer_epochs()

    def open_transactions(self, topic: str, partition: int) -> list[OpenTransaction]:
        """Return the transactions that are open in a partition.

        Raises:
            UnknownTopic: If the topic or partition does not exist.
            StorageError: If its log cannot be read.
        """
        return self._partitions.readable(topic, partition).open_transactions()

    def standing(self, topic: str, partition: int) -> PartitionStanding:
        """Return the offsets and size of a partition.

        Raises:
            UnknownTopic: If the topic or partition does not exist.
            StorageError: If it cannot be opened.
        """
        log = self._partitions.readable(topic, partition)
        return PartitionStanding(log.log_start_offset, log.high_watermark, log.size())

    def sizes(self, topics: Sequence[TopicEntry]) -> dict[tuple[str, int], int]:
        """Return the bytes of each partition of *topics*, without partitions that cannot be read."""
        found = {}
        for entry in topics:
            for partition in range(entry.partitions):
                with contextlib.suppress(StorageError):
                    found[entry.name, partition] = self._partitions.readable(entry.name, partition).size()
        return found

    def new_producer_id(self) -> int:
        """Return a new producer id, unique across restarts.

        Raises:
            StorageError: If a block of ids could not be reserved.
        """
        with self._producer_guard:
            if not self._producer_ids:
                first = self.directory.producer_ids.reserve(PRODUCER_ID_BLOCK)
                self._producer_ids = range(first, first + PRODUCER_ID_BLOCK)
            given, self._producer_ids = self._producer_ids[0], self._producer_ids[1:]
            return given

    def read_offsets_topic(self) -> StoredRows:
        """Return what the topic of consumer groups says; see `committed.read_offsets_topic`."""
        entry = self.topics.find(OFFSETS_TOPIC)
        numbers = range(0 if entry is None else entry.partitions)
        return read_offsets_topic(self._partitions.readable(OFFSETS_TOPIC, number) for number in numbers)

    def read_rows(self, topic: str) -> Iterator[tuple[bytes | None, bytes | None]]:
        """Yield key and value of every current record of a topic, partition by partition.

        Raises:
            CorruptRange: If a record is corrupt.
        """
        entry = self.topics.find(topic)
        for partition in range(0 if entry is None else entry.partitions):
            log = self._partitions.readable(topic, partition)
            offset, end = log.log_start_offset, log.high_watermark
            while offset < end:
                fetched = log.read(offset, ROWS_BYTES)
                for run in fetched.runs:
                    for record in run.records():
                        yield record.key, record.value
                offset = fetched.next_offset

    def topics_with_files(self) -> list[str]:
        """Return the names of the topics with files of their own, including the shared log."""
        return [entry.name for entry in list(self.directory.topics.values()) if not is_shared(entry)]

    def follow_changed(self, pace: Pace) -> dict[tuple[str, int], CordwoodError]:
        """Update chains; return the partitions that failed and their errors. See `Chains.follow_changed`."""
        failures = self.directory.chains.follow_changed(pace)
        return {(log.state.topic, log.state.partition): error for log, error in failures.items()}

    @property
    def is_hashing_due(self) -> bool:
        """Whether segments were sealed that have no SHA-256 yet."""
        return bool(self.directory.context.unhashed)

    def hash_sealed(self, pace: Pace) -> dict[tuple[str, int], CordwoodError]:
        """Record the SHA-256 of sealed segments; return the partitions that failed and their errors."""
        failures = self.directory.maintenance.hash_sealed(pace)
        return {(log.state.topic, log.state.partition): error for log, error in failures.items()}

    def to_maintain(self, *, retention: bool, compaction: bool) -> list[tuple[str, int]]:
        """Return the partitions that may need maintenance by their topics' policies. Accesses no file.

        Without *retention*, partitions that exceed their limit are still included: between two passes, a
        partition may get many times the bytes that retention keeps.
        """
        found = []
        outgrown = self.directory.maintenance.has_outgrown
        for entry in list(self.directory.topics.values()):
            if entry.name == SHARED_TOPIC:
                # All topics in the shared log are maintained together, except those that wait for groups.
                found += [(entry.name, 0)] if retention or outgrown(entry.name, 0) else []
                continue
            config = self.directory.config_of(entry.config)
            if is_shared(entry) and not config.retention_waits_for_groups:
                continue
            limited = config.retention_ms >= 0 or config.retention_bytes >= 0
            deletes = retention and limited and "delete" in config.cleanup_policy
            if deletes or (compaction and "compact" in config.cleanup_policy):
                found += [(entry.name, partition) for partition in range(entry.partitions)]
            elif limited and "delete" in config.cleanup_policy:
                numbers = range(entry.partitions)
                found += [(entry.name, number) for number in numbers if outgrown(entry.name, number)]
        return found

    def maintain(
        self, topic: str, partition: int, *, needed_from: int | None, pace: Pace
    ) -> MaintenanceReport:
        """Apply the policies of one partition; *needed_from* is the first offset that a group needs.

        Raises:
            StorageError: If it cannot be opened.
        """
        try:
            log = self._partitions.find(topic, partition)
        except UnknownTopic:
            return MaintenanceReport()
        if log is None:
            return MaintenanceReport()
        maintenance = self.directory.maintenance
        return maintenance.maintain(log, needed_from=lambda topic, partition: needed_from, pace=pace)

    def collect_abandoned(self) -> None:
        """Remove the staged files and topics of abandoned queries.

        Raises:
            StorageError: If a journal or a directory cannot be read.
        """
        self.directory.publisher.collect_abandoned()
        self.sink.collect_abandoned(self.directory.publisher.abandoned_before_ms())
