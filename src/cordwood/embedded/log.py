"""`Log`: an open data directory."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from threading import Lock
from types import TracebackType
from typing import TYPE_CHECKING

from cordwood.broker import CommittedOffsets, Topics
from cordwood.broker.groups import NAME as OFFSETS_TOPIC
from cordwood.config import TOPIC_SETTINGS, TopicConfig, load_broker_config, text_of
from cordwood.embedded.reading import records_between
from cordwood.embedded.repeating import Repeated
from cordwood.embedded.scan import Scan, check_columns
from cordwood.embedded.topic import Topic
from cordwood.errors import (
    InvalidSetting,
    LogClosed,
    TopicMismatch,
    UnknownTopic,
)
from cordwood.host import SystemClock
from cordwood.storage.directory import DataDirectory
from cordwood.storage.log import Partition, RecoveryReport
from cordwood.storage.maintenance import MaintenanceReport, Planned
from cordwood.storage.meta import TopicEntry
from cordwood.storage.readonly import ReadOnlyDirectory

if TYPE_CHECKING:
    from cordwood.evidence import SignedCheckpoint

#: How often leaves are added to chains that are behind their logs.
FOLLOW_SECONDS = 0.5


class Log:
    """An open data directory. May be used from many threads; dead in a forked child."""

    def __init__(self, owned: DataDirectory | None = None, beside: ReadOnlyDirectory | None = None) -> None:
        """Take the directory that this process writes, or the one that it reads beside a writer."""
        directory = owned if beside is None else beside
        assert directory is not None
        self._owned = owned
        self._beside = beside
        self._directory: DataDirectory | ReadOnlyDirectory = directory
        self._repeated: dict[str, Repeated] = {}
        self._repeated_guard = Lock()
        self._topics: Topics | None = None

    def __enter__(self) -> Log:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def topics(self) -> list[str]:
        """The names of all topics, sorted."""
        return sorted(self._directory.topics)

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
                raise UnknownTopic.named(name)
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
            raise UnknownTopic.named(name)
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
    ) -> Scan:
        """Return the records of *topic* as columns for pyarrow, pandas, polars and DuckDB, read lazily.

        One *partition* or all of them; offsets from *start* up to *stop*, of every partition scanned;
        timestamps (milliseconds) from *since* up to *until*; *columns* out of key, value, topic,
        partition, offset, timestamp, timestampType and headers, all but headers by default.

        Raises:
            UnknownTopic: If there is no such topic or partition.
            RecordRefused: If a column does not exist.
            OffsetOutOfRange: When reading, if *start* is outside of what a partition holds.
        """
        entry = self._directory.topics.get(topic)
        if entry is None:
            raise UnknownTopic.named(topic)
        if partition is not None:
            self._readable(topic, partition)
        numbers = tuple(range(entry.partitions)) if partition is None else (partition,)
        return Scan(topic, numbers, self._readable, start, stop, check_columns(columns), since, until)

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
        now_ms = SystemClock().now_ms()
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

    def _read_offsets_topic(self) -> Iterator[tuple[bytes | None, bytes | None]]:
        entry = self._directory.topics.get(OFFSETS_TOPIC)
        for partition in range(0 if entry is None else entry.partitions):
            log = self._readable(OFFSETS_TOPIC, partition)
            for record in records_between(log, log.log_start_offset, log.high_watermark):
                yield record.key, record.value

    def close(self) -> None:
        """Flush, sync and close. Idempotent.

        Raises:
            LogFailed: If a partition failed, now or before.
        """
        with self._repeated_guard:
            repeated, self._repeated = self._repeated, {}
        for each in repeated.values():
            each.stop()
        self._directory.close()

    @property
    def data_directory(self) -> DataDirectory:
        """The engine behind this log, for tools that need more than topics. Not part of the stable API.

        Raises:
            LogClosed: If the log is open to read only.
        """
        if self._owned is not None:
            return self._owned
        raise LogClosed("the log is open to read only")

    def _readable(self, topic: str, partition: int) -> Partition:
        """Return a partition to read."""
        return self._directory.readable(topic, partition)

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
        """Bring chains up to date. Chains that fail are retried; a call that needs one reports the error."""
        if self.data_directory.chains.is_behind:
            self.data_directory.chains.follow_changed()

    def _follow_always(self) -> None:
        """Start the thread that brings chains up to date."""
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
