"""One broker without its sockets: topics, partitions, producer ids, in domain words."""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from threading import Lock
from typing import NamedTuple

from cordwood.broker.fetching import Got, Haul, Wanted, read_all
from cordwood.broker.offsets import Position, find_offset
from cordwood.broker.sink import Sink
from cordwood.broker.topics import Topics
from cordwood.config import BrokerConfig
from cordwood.errors import CordwoodError, OffsetOutOfRange, StorageError, UnknownTopic
from cordwood.storage.catalogue import SHARED_TOPIC, TopicEntry, is_shared
from cordwood.storage.data_directory import DataDirectory
from cordwood.storage.maintenance import MaintenanceReport
from cordwood.storage.partition_log import PartitionLog
from cordwood.storage.rewriting import Pace
from cordwood.storage.unused import UnusedPartition
from cordwood.storage.verify import Progress, VerifyReport
from cordwood.storage.virtual_log import AnyLog
from cordwood.telemetry import PRODUCE_STORE, Telemetry, Tracer, no_tracing

#: How much is read at a time of a topic that is read whole.
ROWS_BYTES = 1 << 20
#: Producer ids are reserved this many at a time, so that giving one out rarely costs a sync.
PRODUCER_ID_BLOCK = 1000


class Placed(NamedTuple):
    """Where a batch was put: offsets [base, next) of a log. Durable once that log has committed them."""

    log: AnyLog
    base_offset: int
    next_offset: int
    append_timestamp: int


class Standing(NamedTuple):
    """Where a partition stands, and the bytes of its segments."""

    log_start_offset: int
    high_watermark: int
    size: int


class Node:
    """A broker's state. Everything here may block on the disk; call it from any thread."""

    def __init__(self, directory: DataDirectory, config: BrokerConfig, tracer: Tracer = no_tracing) -> None:
        self.config = config
        self._tracer = tracer
        self.topics = Topics(directory, config)
        self.sink = Sink(directory, self.topics.delete)
        self._directory = directory
        self._producer_ids = range(0)
        self._producer_guard = Lock()

    @property
    def cluster_id(self) -> str:
        """What the data directory is called for good."""
        return self._directory.identity.uuid

    @property
    def telemetry(self) -> Telemetry:
        """What is counted here."""
        return self._directory.telemetry

    def append(self, topic: str, partition: int, batch: memoryview, topic_id: str | None = None) -> Placed:
        """Append a batch that a client encoded, checked, in a buffer that may be changed. Not durable.

        A batch of an idempotent producer that is stored already gives the place it has.

        Raises:
            UnknownTopic: If there is no such topic or partition, or the topic is not that of *topic_id*.
            FrameError, RecordRefused: If the batch is not one to store.
            OutOfSequence, ProducerFenced: If it is not its producer's turn.
            StorageError: If it could not be written.
        """
        if self._tracer is no_tracing:
            return self._append(topic, partition, batch, topic_id)
        with self._tracer.start(PRODUCE_STORE) as span:
            span.set(virtual_topic=self._directory.virtual_topic(topic, partition))
            span.set(topic=topic, partition=partition)
            placed = self._append(topic, partition, batch, topic_id)
            count = placed.next_offset - placed.base_offset
            span.set(record_count=count, base_offset=placed.base_offset)
        return placed

    def _append(self, topic: str, partition: int, batch: memoryview, topic_id: str | None) -> Placed:
        log = self._directory.partition(topic, partition)
        if topic_id is not None and log.state.topic_id != topic_id:
            # Deleted, and another of its name created, since the client's request was looked at.
            raise UnknownTopic(f"topic {topic} is another one now")
        config = log.config
        frame = log.format.receive(
            batch, size_max=config.max_message_bytes, keyed=config.cleanup_policy != "delete"
        )
        base_offset, next_offset, append_timestamp = log.append_received(frame)
        return Placed(log, base_offset, next_offset, append_timestamp)

    def read(self, wishes: Sequence[Wanted], max_bytes: int) -> Haul:
        """Read from many partitions within one limit; see `fetching.read_all`."""
        return read_all(
            self._directory.readable, wishes, max_bytes, self._tracer, self._directory.virtual_topic
        )

    def peek(self, wishes: Sequence[Wanted]) -> Haul | None:
        """Return a haul of nothing if nothing is there to read, without touching the disk; else None."""
        each = []
        for wanted in wishes:
            log = self._directory.opened(wanted.topic, wanted.partition)
            if log is None or wanted.offset != log.high_watermark:
                return None
            each.append(Got((), log.high_watermark, log.log_start_offset))
        return Haul(each, 0, failed=False)

    def find_offset(self, topic: str, partition: int, timestamp: int) -> Position:
        """Return the place that *timestamp* stands for; see `offsets.find_offset`."""
        return find_offset(self._directory.readable(topic, partition), timestamp)

    def delete_records(self, topic: str, partition: int, offset: int) -> int:
        """Delete the records below *offset*, or all if it is -1; return the log start. Durable on return.

        Raises:
            UnknownTopic: If there is no such topic or partition.
            OffsetOutOfRange: If *offset* is above the high watermark.
        """
        log = self._directory.readable(topic, partition)
        target = log.high_watermark if offset == -1 else offset
        if not isinstance(log, UnusedPartition):
            log.advance_log_start(target)
        elif not 0 <= target <= log.high_watermark:
            raise OffsetOutOfRange(target, log.log_start_offset, log.high_watermark)
        return log.log_start_offset

    def epoch_end(self, topic: str, partition: int, epoch: int) -> tuple[int, int]:
        """Return the largest leader epoch not above *epoch*, and the offset after its last record.

        Both are -1 for an epoch later than any there was.

        Raises:
            UnknownTopic: If there is no such topic or partition.
        """
        log = self._directory.readable(topic, partition)
        if isinstance(log, UnusedPartition):
            return (0, log.high_watermark) if epoch == 0 else (-1, -1)
        epochs = log.state.epochs
        if epoch > log.state.leader_epoch:
            return -1, -1
        at = max(bisect_right([each.epoch for each in epochs], epoch) - 1, 0)
        end = epochs[at + 1].start_offset if at + 1 < len(epochs) else log.high_watermark
        return epochs[at].epoch, end

    def standing(self, topic: str, partition: int) -> Standing:
        """Return where a partition stands.

        Raises:
            UnknownTopic: If there is no such topic or partition.
            StorageError: If it cannot be opened.
        """
        log = self._directory.readable(topic, partition)
        return Standing(log.log_start_offset, log.high_watermark, log.size())

    def sizes(self, topics: Sequence[TopicEntry]) -> dict[tuple[str, int], int]:
        """Return the bytes of each partition of *topics*; one that cannot be read is left out."""
        found = {}
        for entry in topics:
            for partition in range(entry.partitions):
                with contextlib.suppress(StorageError):
                    found[entry.name, partition] = self._directory.readable(entry.name, partition).size()
        return found

    def free_bytes(self) -> int:
        """Return the bytes that can still be written."""
        return self._directory.free_bytes()

    @property
    def path(self) -> str:
        """Where the data is."""
        return self._directory.path

    def new_producer_id(self) -> int:
        """Return an id that no idempotent producer had before, across restarts.

        Raises:
            StorageError: If a block of ids was due to be reserved and could not be.
        """
        with self._producer_guard:
            if not self._producer_ids:
                first = self._directory.reserve_producer_ids(PRODUCER_ID_BLOCK)
                self._producer_ids = range(first, first + PRODUCER_ID_BLOCK)
            given, self._producer_ids = self._producer_ids[0], self._producer_ids[1:]
            return given

    def read_rows(self, topic: str) -> Iterator[tuple[bytes | None, bytes | None]]:
        """Yield key and value of every record of a topic that there is now, partition by partition.

        Raises:
            CorruptRange: Where a record is not what was written.
        """
        entry = self.topics.find(topic)
        for partition in range(0 if entry is None else entry.partitions):
            log = self._directory.readable(topic, partition)
            offset, end = log.log_start_offset, log.high_watermark
            while offset < end:
                fetched = log.read(offset, ROWS_BYTES)
                for run in fetched.runs:
                    for record in run.records():
                        yield record.key, record.value
                offset = fetched.next_offset

    def topic_names(self) -> list[str]:
        """Return the names of all topics. Touches no file."""
        return list(self._directory.topics)

    def topics_with_files(self) -> list[str]:
        """Return the names of the topics that have files of their own, that of the shared log among them."""
        return [entry.name for entry in list(self._directory.topics.values()) if not is_shared(entry)]

    def verify(self, topic: str, progress: Progress) -> VerifyReport:
        """Check everything of a topic, from its files alone; see `verify_directory`."""
        return self._directory.verify(topic, progress)

    @property
    def is_chain_behind(self) -> bool:
        """Whether a chain may not have all of its log, or not durably. Touches no file."""
        return self._directory.is_chain_behind

    def follow_changed(self, pace: Pace) -> dict[tuple[str, int], CordwoodError]:
        """Bring chains up to date; return which could not be, and why. See `DataDirectory.follow_changed`."""
        failures = self._directory.follow_changed(pace)
        return {(log.state.topic, log.state.partition): error for log, error in failures.items()}

    def to_keep_up(self, *, retention: bool, compaction: bool) -> list[tuple[str, int]]:
        """Return the partitions whose topics have a policy that may ask for something. Touches no file."""
        found = []
        for entry in list(self._directory.topics.values()):
            if entry.name == SHARED_TOPIC:
                # All topics in the shared log are kept up together, but for those that wait for groups.
                found += [(entry.name, 0)] if retention else []
                continue
            config = self._directory.config_of(entry.config)
            if is_shared(entry) and not config.retention_waits_for_groups:
                continue
            limited = config.retention_ms >= 0 or config.retention_bytes >= 0
            deletes = retention and limited and "delete" in config.cleanup_policy
            if deletes or (compaction and "compact" in config.cleanup_policy):
                found += [(entry.name, partition) for partition in range(entry.partitions)]
        return found

    def keep_up(
        self, topic: str, partition: int, *, needed_from: int | None, pace: Pace
    ) -> MaintenanceReport:
        """Do what policies ask for in one partition; *needed_from* is what a group has not committed past.

        Raises:
            StorageError: If it cannot be opened.
        """
        try:
            log = self._directory.find_partition(topic, partition)
        except UnknownTopic:
            return MaintenanceReport()
        if log is None:
            return MaintenanceReport()
        if not log.config.retention_waits_for_groups:
            needed_from = None
        return self._directory.keep_up(log, needed_from=needed_from, pace=pace)

    def collect_abandoned(self) -> None:
        """Remove what queries staged and did not come back for.

        Raises:
            StorageError: If a journal or a directory cannot be read.
        """
        self._directory.collect_abandoned()
        self.sink.collect_abandoned(self._directory.abandoned_before_ms())

    def open_logs(self) -> list[PartitionLog]:
        """Return the logs that are open now."""
        return self._directory.open_partitions()

    def describe(self, holder: str) -> None:
        """Tell who finds the directory locked more about us."""
        self._directory.describe(holder)

    def close(self) -> None:
        """Make everything durable and let go.

        Raises:
            StorageError: If a log failed, now or before.
        """
        self._directory.close()
