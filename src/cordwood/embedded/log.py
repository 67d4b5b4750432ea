"""`Log`: an open data directory."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator, Mapping, Sequence
from threading import Lock
from types import TracebackType
from typing import TYPE_CHECKING, cast

from cordwood.broker import CommittedOffsets, Topics, read_offsets_topic
from cordwood.broker.groups import NAME as OFFSETS_TOPIC
from cordwood.broker.groups import OffsetKey, StoredRows, offsets_topic
from cordwood.broker.transactions import NAME as TRANSACTIONS_TOPIC
from cordwood.config import TOPIC_SETTINGS, TopicConfig, load_broker_config, text_of
from cordwood.embedded.repeating import Repeated
from cordwood.embedded.scan import Scan, check_columns
from cordwood.embedded.topic import Topic
from cordwood.embedded.transaction import LogTransaction
from cordwood.embedded.transactions import LogTransactions
from cordwood.errors import (
    InvalidSetting,
    LogClosed,
    StorageError,
    TopicMismatch,
    UnknownTopic,
)
from cordwood.host import Clock, SystemClock
from cordwood.records import TopicPartition
from cordwood.storage.directory import DataDirectory, SharedIds, Snapshots, find_snapshots
from cordwood.storage.log import Partition, RecoveryReport
from cordwood.storage.maintenance import MaintenanceReport, Planned
from cordwood.storage.meta import SHARED_TOPIC, TopicEntry, is_shared
from cordwood.storage.readonly import ReadOnlyDirectory
from cordwood.tenancy import suggest
from cordwood.wording import counted

if TYPE_CHECKING:
    from cordwood.bucket import BucketLag, ShippedDirectory
    from cordwood.evidence import SignedCheckpoint

#: How often leaves are added to chains that are behind their logs.
FOLLOW_SECONDS = 0.5


class Log:
    """An open data directory. May be used from many threads; dead in a forked child."""

    def __init__(
        self,
        owned: DataDirectory | None = None,
        beside: ReadOnlyDirectory | None = None,
        clock: Clock | None = None,
        shipped: ShippedDirectory | None = None,
    ) -> None:
        """Take the directory that this process writes, or the one that it reads beside a writer."""
        directory = owned if beside is None else beside
        assert directory is not None
        self._owned = owned
        self._shipped = shipped
        self._beside = beside
        self._clock = clock or SystemClock()
        self._directory: DataDirectory | ReadOnlyDirectory = directory
        self._repeated: dict[str, Repeated] = {}
        self._repeated_guard = Lock()
        self._topics: Topics | None = None
        self._transactions: LogTransactions | None = None

    def __enter__(self) -> Log:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        """Return the path, the number of topics and the mode. Reads no file, and works on a closed log."""
        directory = self._directory
        if not isinstance(directory, DataDirectory):
            # The number of topics is in a file, which the writer changes.
            mode = "closed" if directory.is_closed else "read-only"
            return f"<cordwood.Log {directory.path!r}, {mode}>"
        try:
            return f"<cordwood.Log {directory.path!r}, {counted(len(directory.topics), 'topic')}, read-write>"
        except LogClosed:
            return f"<cordwood.Log {directory.path!r}, closed>"

    def __len__(self) -> int:
        """Return the number of topics."""
        return len(self._directory.topics)

    def __bool__(self) -> bool:
        """Return True, also for a log without topics: a log is not its topics."""
        return True

    def __contains__(self, name: object) -> bool:
        """Return whether there is a topic *name*."""
        return name in self._directory.topics

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names of all topics, sorted."""
        return iter(self.topics)

    @property
    def topics(self) -> list[str]:
        """The names of all topics, sorted."""
        return sorted(self._directory.topics)

    @property
    def mapped_bytes(self) -> int:
        """The bytes of sealed segments that are mapped into memory now; 0 with ``cordwood.io=direct``.

        They are in the page cache, which the system shrinks when memory is needed.
        """
        return self._directory.mapped_bytes

    def bucket_lag(self) -> BucketLag | None:
        """Return how far the bucket is behind: what is lost if this machine is. None without a bucket."""
        return None if self._shipped is None else self._shipped.lag()

    @property
    def reports(self) -> list[RecoveryReport]:
        """The recovery reports of the partitions opened so far."""
        return list(self.data_directory.partitions.reports)

    def topic(
        self, name: str, partitions: int | None = None, config: Mapping[str, str] | None = None
    ) -> Topic:
        """Return the topic *name*, created if it is missing: with one partition unless told otherwise.

        Of an existing topic, what is given must be as stored.

        Raises:
            TopicMismatch: If the topic exists with another number of partitions or another setting.
            UnknownTopic: If it does not exist and the log is read-only.
        """
        entry = self._directory.topics.get(name)
        if entry is None:
            if partitions is not None and partitions < 1:
                raise InvalidSetting("partitions", partitions, "at least 1")
            if not isinstance(self._directory, DataDirectory):
                raise self._unknown(name)
            topic_id = str(uuid.uuid4())
            entry = self._directory.topics.create(name, topic_id, partitions or 1, config or {})
        else:
            _check_as_stored(entry, partitions, config or {}, self._directory)
        return Topic(self, entry)

    # --- topics as a whole ------------------------------------------------------------------------

    def entry(self, name: str) -> TopicEntry:
        """Return what the catalogue says of a topic: its id, partitions and own settings.

        Raises:
            UnknownTopic: If there is none of that name.
        """
        found = self._directory.topics.get(name)
        if found is None:
            raise self._unknown(name)
        return found

    def config_of(self, name: str) -> TopicConfig:
        """Return the settings of a topic, its own and those it has from elsewhere. Raises as `entry`."""
        return self._directory.config_of(self.entry(name).config)

    def create_topic(
        self, name: str, partitions: int | None = None, config: Mapping[str, str] | None = None
    ) -> Topic:
        """Create a topic that is not there yet, with ``num.partitions`` unless told. Durable on return.

        Raises:
            TopicExists: If it is there.
            RecordRefused, ConfigError: If its name or a setting is not allowed.
        """
        return Topic(self, self._changing().create(name, partitions, config))

    def alter_topic(
        self, name: str, *, partitions: int | None = None, config: Mapping[str, str] | None = None
    ) -> None:
        """Give a topic more partitions, or other settings in place of all its own. Durable on return.

        Raises:
            UnknownTopic: If there is none of that name.
            ConfigError: If the number or a setting does not fit, or cannot be changed any more.
        """
        topics = self._changing()
        if partitions is not None:
            # Asked first, so that both are changed or neither.
            topics.add_partitions(name, partitions, validate_only=config is not None)
        if config is not None:
            topics.alter(name, config)
            if partitions is not None:
                topics.add_partitions(name, partitions)

    def delete_topic(self, name: str) -> None:
        """Delete a topic and everything in it. Durable on return.

        What groups have committed of it stays in the topic of `offsets_topic`.

        Raises:
            UnknownTopic: If there is none of that name.
        """
        self._changing().delete(name)

    def offsets_topic(self) -> Topic:
        """Return the internal topic that consumer groups commit to, created if it is missing."""
        return Topic(self, self._changing().ensure_internal())

    def _changing(self) -> Topics:
        if self._topics is None:
            self._topics = Topics(self.data_directory, load_broker_config()[0])
        return self._topics

    # --- transactions -----------------------------------------------------------------------------

    def transaction(self, transactional_id: str, *, timeout_ms: int = 60_000) -> LogTransaction:
        """Return a transaction: its records and offsets become visible together, or not at all.

        Use it in a ``with`` block: leaving the block commits, an exception aborts. A transactional id has one
        transaction at a time, which stays open for at most *timeout_ms*. Threads that commit at the same time
        under different ids share syncs.

        Raises:
            TransactionStateInvalid: If the id has an open transaction.
            TransactionTimeoutInvalid: If *timeout_ms* is not from 1 to ``transaction.max.timeout.ms``.
            InvalidSetting: If the id is empty or too long.
            LogClosed: If the log is closed, or open to read only.
        """
        return self.transactions().begin(self, transactional_id, timeout_ms)

    def transactions(self) -> LogTransactions:
        """Return the transactions of this log, for callers that share syncs. Not part of the stable API."""
        directory = self.data_directory
        directory.lifecycle.check_open()
        with self._repeated_guard:
            if self._transactions is None:
                config = load_broker_config()[0]
                self._transactions = LogTransactions(directory, config, self._clock)
            return self._transactions

    def _recover_transactions(self, *, is_clean: bool) -> None:
        """Finish and abort the transactions of an earlier process, if there were any."""
        directory = self.data_directory
        if TRANSACTIONS_TOPIC in directory.topics or (
            # After a restore without that topic, for example.
            directory.lifecycle.may_have_orphans and directory.partitions.with_transactions()
        ):
            self.transactions().recover(is_clean=is_clean)

    def committed_offsets(self, group: str) -> dict[TopicPartition, int]:
        """Return the offset that a consumer group has committed in each partition, as of now.

        Reads the topic of `offsets_topic`. Offsets of transactions count once these are committed.

        Raises:
            CordwoodError: If the topic cannot be read.
        """
        found: dict[TopicPartition, int] = {}
        for key, value in self._read_offsets_topic().rows():
            try:
                place = offsets_topic.decode_key(key)
                if isinstance(place, OffsetKey) and place.group == group and value is not None:
                    found[place.topic, place.partition] = offsets_topic.decode_offset(value).offset
            except ValueError:
                raise StorageError(f"a record of {OFFSETS_TOPIC} has an unknown format") from None
        return found

    def scan(
        self,
        topic: str,
        partition: int | None = None,
        *,
        start: int | None = None,
        stop: int | None = None,
        columns: Sequence[str] | None = None,
        since: int | None = None,
        until: int | None = None,
        committed: bool = True,
    ) -> Scan:
        """Return the records of *topic* as columns for pyarrow, pandas, polars and DuckDB, read lazily.

        One *partition* or all of them; offsets from *start* up to *stop*, of every partition scanned;
        timestamps (milliseconds) from *since* up to *until*; *columns* out of key, value, topic,
        partition, offset, timestamp, timestampType and headers, all but headers by default. Records of
        aborted and of open transactions are left out, unless *committed* is False; see `Topic.read`.

        Raises:
            UnknownTopic: If there is no such topic or partition.
            RecordRefused: If a column does not exist.
            OffsetOutOfRange: When reading, if *start* is outside of what a partition holds.
        """
        entry = self._directory.topics.get(topic)
        if entry is None:
            raise self._unknown(topic)
        if partition is not None:
            self._readable(topic, partition)
        numbers = tuple(range(entry.partitions)) if partition is None else (partition,)
        return Scan(
            topic,
            numbers,
            self._readable,
            self._directory.look_at_once,
            entry.id,
            start,
            stop,
            check_columns(columns),
            since,
            until,
            committed,
        )

    def checkpoint(
        self, topic: str | None = None, *, wait_seconds: float | None = None
    ) -> list[SignedCheckpoint]:
        """Sign a checkpoint of each partition that has records, of *topic* or of every topic with a chain.

        Every record gets its leaf first. A log that is open to read only signs for the leaves that its writer
        has written, all but those of the last seconds; with *wait_seconds* it waits up to that long until
        every record that is synced now has its leaf. The notes are kept in the data directory, durable on
        return; keep a copy elsewhere. The key that signs is created on first use.

        Raises:
            EvidenceMissing: If *topic* keeps no chain, or no topic does; or if leaves are still missing after
                *wait_seconds*. Nothing is signed then.
            EvidenceRefused: If a partition contradicts an earlier checkpoint. Nothing is signed for it.
            SigningUnavailable: If the package that signs is not installed.
            UnknownTopic: If there is no such topic.
        """
        # Loaded here, because most programs that open a log never sign.
        from cordwood.evidence import sign_checkpoints, wait_for_leaves

        directory = self._directory
        if isinstance(directory, DataDirectory):
            for log in directory.partitions.open_all():
                if log.config.chain:
                    directory.chains.commit(log)
        elif wait_seconds is not None:
            wait_for_leaves(directory.path, topic, seconds=wait_seconds, files=directory.files)
        return sign_checkpoints(directory.path, topic, files=directory.files)

    def maintain(self, *, force: bool = False, evidence: bool = True) -> MaintenanceReport:
        """Run one pass of retention and compaction now and return what it did; see `DirectoryMaintenance`.

        With *force* topics are compacted however little there is to compact. Without *evidence* compaction
        also rewrites frames whose records cannot be kept as evidence, and states that. Topics with
        ``cordwood.retention.wait.for.groups`` keep what a group has not committed past. Where that cannot be
        read, they keep everything and the report says so.
        """
        needed_from = self._committed_offsets().needed_from
        return self.data_directory.maintenance.maintain_all(
            force=force, evidence=evidence, needed_from=needed_from
        )

    def plan_maintenance(self, *, force: bool = False) -> list[Planned]:
        """Return what `maintain` would do now, of a log that is open to read only. Changes nothing.

        Raises:
            CordwoodError: If a topic waits for groups and what they have committed cannot be read.
        """
        directory = self._beside
        if directory is None:
            raise LogClosed("maintenance is planned on a log that is open to read only")
        now_ms = self._clock.now_ms()
        committed, plans = self._committed_offsets(), []
        for name, entry in sorted(directory.topics.items()):
            config = directory.config_of(entry.config)
            for number in range(entry.partitions):
                waits = config.retention_waits_for_groups
                needed = committed.needed_from(name, number) if waits else None
                log = directory.readable(name, number, entry)
                plans.append(log.plan_maintenance(config, now_ms, force=force, needed_from=needed))
        return plans

    def _committed_offsets(self) -> CommittedOffsets:
        """Return what consumer groups have committed; nothing is read before it is asked for."""
        return CommittedOffsets(self._read_offsets_topic)

    def _read_offsets_topic(self) -> StoredRows:
        if self._transactions is not None:
            # Offsets count from the marker of their transaction on, which can be read once it is synced.
            self._transactions.finish_all()
        entry = self._directory.topics.get(OFFSETS_TOPIC)
        numbers = range(0 if entry is None else entry.partitions)
        return read_offsets_topic(self._readable(OFFSETS_TOPIC, number) for number in numbers)

    def close(self) -> None:
        """Flush, sync and close. Idempotent.

        Raises:
            LogFailed: If a partition failed, now or before.
        """
        with self._repeated_guard:
            repeated, self._repeated = self._repeated, {}
        for each in repeated.values():
            each.stop()
        if self._transactions is not None:
            self._transactions.close()
        self._directory.close()

    @property
    def directory(self) -> DataDirectory | ReadOnlyDirectory:
        """The engine behind this log, also of one that is open to read only. Not part of the stable API."""
        return self._directory

    @property
    def data_directory(self) -> DataDirectory:
        """The engine behind this log, for tools that need more than topics. Not part of the stable API.

        Raises:
            LogClosed: If the log is open to read only.
        """
        if self._owned is not None:
            return self._owned
        raise LogClosed("the log is open to read only")

    def _unknown(self, name: str) -> UnknownTopic:
        return UnknownTopic.named(name, suggestion=suggest(name, self._directory.topics))

    def _readable(self, topic: str, partition: int) -> Partition:
        """Return a partition to read."""
        return self._directory.readable(topic, partition)

    def _snapshots(self, topic: str, partition: int) -> Snapshots:
        """Return the snapshots of a partition."""
        directory, entry, log = self._directory, self.entry(topic), self._readable(topic, partition)
        ids = cast("SharedIds", log) if is_shared(entry) else None
        config = directory.config_of(entry.config)
        return find_snapshots(
            directory.files,
            directory.path,
            entry,
            partition,
            config,
            ids,
            lambda: self._commit_chain(topic, partition),
        )

    def _commit_chain(self, topic: str, partition: int) -> None:
        """Give every record of a partition its leaf. Beside a writer, the writer does that."""
        directory = self._directory
        if isinstance(directory, DataDirectory):
            chained = (SHARED_TOPIC, 0) if is_shared(self.entry(topic)) else (topic, partition)
            own = directory.partitions.find_own(*chained)
            if own is not None and own.config.chain:
                directory.chains.commit(own)

    def _flush_within(self, milliseconds: int) -> None:
        """Start the thread that keeps the promise of ``ms:T``, once per T."""
        name = f"sync-{milliseconds}ms"
        if name not in self._repeated:
            with self._repeated_guard:
                if name not in self._repeated:
                    self._repeated[name] = Repeated(milliseconds / 1000, name, self._commit_late)

    def _commit_late(self) -> None:
        """Commit every partition that promises to do so some time after an append."""
        for log in self.data_directory.partitions.opened_logs():
            if log.config.sync.mode == "ms" and log.failure is None:
                log.commit_quietly()

    def _follow_changed(self) -> None:
        """Bring chains up to date, and `checkpoint.json` when it is due; finish transactions.

        Chains that fail are retried; a call that needs one reports the error.
        """
        directory = self.data_directory
        if self._transactions is not None:
            self._transactions.finish_all()
        if directory.chains.is_behind:
            directory.chains.follow_changed()
        if directory.summary.is_due:
            # Nothing depends on it. It is tried again after the next interval.
            with contextlib.suppress(OSError):
                directory.save_summary()

    def _follow_always(self) -> None:
        """Start the thread that brings chains and `checkpoint.json` up to date."""
        self._repeated["chains"] = Repeated(FOLLOW_SECONDS, "chains", self._follow_changed)


def _check_as_stored(
    entry: TopicEntry,
    partitions: int | None,
    config: Mapping[str, str],
    directory: DataDirectory | ReadOnlyDirectory,
) -> None:
    if partitions is not None and partitions != entry.partitions:
        raise TopicMismatch(entry.name, "partitions", entry.partitions, partitions)
    if not config:
        return
    stored, given = directory.config_of(entry.config), directory.config_of(config)
    for name in config:
        attribute = TOPIC_SETTINGS[name].attribute
        if getattr(stored, attribute) != getattr(given, attribute):
            texts = (text_of(getattr(settings, attribute)) for settings in (stored, given))
            raise TopicMismatch(entry.name, name, *texts)
