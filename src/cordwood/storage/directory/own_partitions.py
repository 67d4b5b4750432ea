"""Partitions with files of their own: found, opened, created and closed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from threading import RLock
from typing import NamedTuple

import msgspec

from cordwood import tenancy
from cordwood.disk import as_storage_error, join
from cordwood.errors import DiskFull, ResourcesExhausted, StorageError, UnknownTopic
from cordwood.formats import EVERY_FORMAT
from cordwood.storage.directory.topic_settings import TopicSettings
from cordwood.storage.log import (
    LogContext,
    PartitionLog,
    RecoveryReport,
    check_belongs,
    create_partition,
    new_state,
    open_partition,
    partition_exists,
    read_state,
)
from cordwood.storage.meta import (
    SHARED_TOPIC,
    Catalogue,
    Lifecycle,
    TopicEntry,
    check_regular_partition,
    partition_directory,
)

PartitionKey = tuple[str, int]
"""The topic and the number of a partition."""


def find_entry(catalogue: Catalogue, topic: str, partition: int) -> TopicEntry:
    """Return the topic of a partition.

    Raises:
        UnknownTopic: If there is no such topic or partition.
    """
    entry = catalogue.contents.topics.get(topic)
    if entry is None:
        raise UnknownTopic.named(topic)
    if not 0 <= partition < entry.partitions:
        raise UnknownTopic(f"topic {topic} has partitions 0 to {entry.partitions - 1}, not {partition}")
    return entry


class Beginning(NamedTuple):
    """The first offset of a partition, and the state that the missing frame before it left."""

    offset: int
    before: bytes = b""


class OwnPartitions:
    """The partition logs of a data directory. Call `find`, `create` and `refuse` with the guard held."""

    def __init__(
        self,
        context: LogContext,
        path: str,
        catalogue: Catalogue,
        settings: TopicSettings,
        lifecycle: Lifecycle,
        guard: RLock,
    ) -> None:
        #: The logs that are open. Other threads may look one up without the guard.
        self.logs: dict[PartitionKey, PartitionLog] = {}
        #: Partitions that cannot be opened, and why.
        self.refused: dict[PartitionKey, StorageError] = {}
        #: The recovery report of each log.
        self.reports: list[RecoveryReport] = []
        self._context = context
        self._path = path
        self._catalogue = catalogue
        self._settings = settings
        self._lifecycle = lifecycle
        self._guard = guard

    def find(self, entry: TopicEntry, partition: int) -> PartitionLog | None:
        """Return the log of a partition, opened if necessary; None if it never had a record.

        Raises:
            MetadataDamaged: If it cannot be opened.
        """
        key = (entry.name, partition)
        if key in self.refused:
            raise self.refused[key]
        if key not in self.logs:
            try:
                # Recovery writes indexes and state. It may use the reserved space of a full disk.
                log = self._context.reserve.freeing(lambda: self._open(entry, partition))
            except StorageError as error:
                if not isinstance(error, DiskFull | ResourcesExhausted):
                    self.refused[key] = error
                raise
            except OSError as error:
                raise as_storage_error(error, f"opening partition {partition} of {entry.name}") from error
            if log is None:
                return None
            self.logs[key] = log
        return self.logs[key]

    def create(self, entry: TopicEntry, partition: int, begin: Beginning | None = None) -> PartitionLog:
        """Make the files of a partition that never had a record, and return its log.

        Its first record is *begin*; None for the first offset of the topic's settings.

        Raises:
            DiskFull: If there is no space.
        """
        try:
            log = self._create(entry, partition, begin)
        except OSError as error:
            raise as_storage_error(error, f"making partition {partition} of {entry.name}") from error
        self.logs[entry.name, partition] = log
        return log

    def shared_log(self) -> PartitionLog:
        """Return the log that holds the topics of the shared log, created on its first use."""
        with self._guard:
            self._lifecycle.check_open()
            entry = find_entry(self._catalogue, SHARED_TOPIC, 0)
            return self.find(entry, 0) or self.create(entry, 0)

    def _open(self, entry: TopicEntry, partition: int) -> PartitionLog | None:
        context, files = self._context, self._context.files
        directory = partition_directory(self._path, entry.name, partition)
        config = self._settings.config_of(entry.config)
        check_regular_partition(files, directory)
        if not partition_exists(files, directory, config.initial_offset):
            return None
        state = read_state(files, directory)
        check_belongs(directory, state, entry, partition, config.initial_offset)
        quarantine = join(self._path, "quarantine")
        format_ = EVERY_FORMAT[config.format].for_partition(partition, state.tenant)
        log, report = open_partition(context, directory, quarantine, config, format_)
        self.reports.append(report)
        if config.chain and not self._lifecycle.is_clean:
            # A crash may have taken leaves that were not durable yet.
            context.changed.add(log)
        return log

    def _create(self, entry: TopicEntry, partition: int, begin: Beginning | None) -> PartitionLog:
        config = self._settings.config_of(entry.config)
        tenant = tenancy.split(entry.name).org
        format_ = EVERY_FORMAT[config.format].for_partition(partition, tenant)
        self._lifecycle.before_change()
        state = new_state(
            entry.name,
            entry.id,
            partition,
            initial_offset=config.initial_offset if begin is None else begin.offset,
            index_interval_bytes=config.index_interval_bytes,
            record_format=format_.name,
            index_interval_records=config.index_interval_records if format_.record_per_frame else 0,
            tenant=tenant,
        )
        if begin is not None:
            state = msgspec.structs.replace(state, before=begin.before.hex())
        directory = partition_directory(self._path, entry.name, partition)
        return create_partition(self._context, directory, config, format_, state)

    def refuse(self, key: PartitionKey, error: StorageError) -> None:
        """Close a partition and raise *error* for every later use of it."""
        self.refused[key] = error
        log = self.logs.pop(key, None)
        if log is not None:
            with contextlib.suppress(StorageError):
                log.close()

    def drop(self, keys: Iterable[PartitionKey]) -> list[PartitionLog]:
        """Forget the partitions of a deleted topic; return those of their logs that were open."""
        dropped = []
        for key in keys:
            self.refused.pop(key, None)
            log = self.logs.pop(key, None)
            if log is not None:
                dropped.append(log)
        return dropped

    def has_open_transactions(self) -> bool:
        """Return whether an open log has a transaction that has not ended.

        Raises:
            StorageError: If one cannot be read.
        """
        return any(log.open_transactions() for log in list(self.logs.values()))

    def give_back(self, count: int) -> int:
        """Close files of the logs whose last append is longest ago, at least *count*; return how many.

        See `PartitionLog.rest`.
        """
        # The list is copied in one step: other threads open partitions meanwhile.
        logs, given = list(self.logs.values()), 0
        for log in sorted(logs, key=lambda log: log.used_ns):
            given += log.rest()
            if given >= count:
                break
        return given

    def close(self) -> list[StorageError]:
        """Flush, sync and close every log; return the failures, those of earlier syncs included."""
        failures: list[StorageError] = []
        for log in self.logs.values():
            try:
                log.close()
            except StorageError as error:
                failures.append(error)
            if log.failure is not None:
                failures.append(log.failure)
        return failures
