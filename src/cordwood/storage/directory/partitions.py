"""The partitions of a data directory, whether they have files of their own or are in the shared log."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from threading import Condition, RLock

from cordwood.disk import as_storage_error
from cordwood.errors import LogFailed, StorageError, UnknownTopic
from cordwood.kernels import Buffer
from cordwood.storage.directory.own_partitions import Beginning, OwnPartitions, PartitionKey, find_entry
from cordwood.storage.directory.topic_settings import TopicSettings
from cordwood.storage.directory.unused import UnusedPartition
from cordwood.storage.log import (
    LogContext,
    PartitionLog,
    RecoveryReport,
    ServedPartition,
    Spool,
    WritablePartition,
    begin_spool,
    current_epoch,
    first_epoch,
    read_state,
    spool,
    state_path,
)
from cordwood.storage.meta import Catalogue, Lifecycle, TopicEntry, is_shared, partition_directory
from cordwood.storage.shared import SharedTopics, VirtualLog, owner_of


class DirectoryPartitions:
    """Finds and creates partitions. Every method may be called from any thread."""

    def __init__(
        self,
        context: LogContext,
        path: str,
        catalogue: Catalogue,
        settings: TopicSettings,
        own: OwnPartitions,
        shared: SharedTopics,
        lifecycle: Lifecycle,
        guard: RLock,
    ) -> None:
        #: The topics in the shared log.
        self.shared = shared
        self._context = context
        self._path = path
        self._catalogue = catalogue
        self._settings = settings
        self._own = own
        self._lifecycle = lifecycle
        self._guard = guard
        #: Notified when a partition gets its first record, when a topic is deleted, and on close.
        self._used = Condition(guard)
        #: Why no partition takes appends any more; None while they do.
        self._failure: LogFailed | None = None

    # --- finding ----------------------------------------------------------------------------------

    def fail(self, reason: str) -> None:
        """Refuse every later append to any partition, with *reason*."""
        with self._guard:
            self._failure = LogFailed(reason)
            logs = list(self._own.logs.values())
        for log in logs:
            log.fail(reason)

    def writable(self, topic: str, partition: int) -> WritablePartition:
        """Return the log of a partition to append to, created on its first use.

        Raises:
            UnknownTopic: If there is no such topic or partition.
            MetadataDamaged: If it cannot be opened.
            DiskFull: If there is no space to make it.
        """
        self._lifecycle.check_open()
        if self._failure is not None:
            raise self._failure
        log = self.opened(topic, partition)
        if log is not None:
            return log
        with self._guard:
            return self.find(topic, partition) or self._create(topic, partition)

    def own(self, topic: str, partition: int) -> PartitionLog:
        """Return the log of a partition that has files of its own, created on its first use.

        The topic must not be in the shared log. Raises as `writable`.
        """
        with self._guard:
            return self.find_own(topic, partition) or self._create(topic, partition)

    def create_at(self, topic: str, partition: int, begin: Beginning) -> PartitionLog:
        """Make the files of a partition whose first record is *begin*, and return its log.

        The partition must never have had a record, and not be in the shared log. Its offset must not be below
        the first one of the topic's settings. Raises as `writable`.
        """
        with self._guard:
            assert self.find_own(topic, partition) is None, "the partition has records already"
            return self._create(topic, partition, begin)

    def _create(self, topic: str, partition: int, begin: Beginning | None = None) -> PartitionLog:
        log = self._own.create(find_entry(self._catalogue, topic, partition), partition, begin)
        self._used.notify_all()
        return log

    def opened(self, topic: str, partition: int) -> WritablePartition | None:
        """Return the log of a partition if it is open already. Never blocks."""
        return self._own.logs.get((topic, partition)) or self.shared.opened(topic, partition)

    def opened_own(self, topic: str, partition: int) -> PartitionLog | None:
        """Return the log of a partition with files of its own if it is open already. Never blocks."""
        return self._own.logs.get((topic, partition))

    def find(self, topic: str, partition: int) -> WritablePartition | None:
        """Return the log of a partition, None if it never had a record. Raises as `writable`."""
        with self._guard:
            self._lifecycle.check_open()
            if (topic, partition) in self._own.refused:
                raise self._own.refused[topic, partition]
            entry = find_entry(self._catalogue, topic, partition)
            if is_shared(entry):
                return self.shared.open(entry, partition, self._settings.config_of(entry.config))
            return self._own.find(entry, partition)

    def find_own(self, topic: str, partition: int) -> PartitionLog | None:
        """Return the log of a partition that has files of its own, None if it never had a record.

        The topic must not be in the shared log. Raises as `writable`.
        """
        with self._guard:
            self._lifecycle.check_open()
            entry = find_entry(self._catalogue, topic, partition)
            assert not is_shared(entry), f"topic {topic} is in the shared log"
            return self._own.find(entry, partition)

    def readable(self, topic: str, partition: int) -> ServedPartition:
        """Return a partition to read. Creates nothing on disk. Raises as `writable`."""
        self._lifecycle.check_open()
        log = self.opened(topic, partition) or self.find(topic, partition)
        if log is None:
            entry = find_entry(self._catalogue, topic, partition)
            first = self._settings.config_of(entry.config).initial_offset
            epoch = first_epoch(self._context.takeover)
            return UnusedPartition(first, lambda: self._wait_for_use(topic, partition), epoch)
        return log

    def _wait_for_use(self, topic: str, partition: int) -> WritablePartition:
        with self._used:
            while True:
                self._lifecycle.check_open()
                log = self.opened(topic, partition)
                if log is not None:
                    return log
                find_entry(self._catalogue, topic, partition)
                self._used.wait()

    def leader_epoch(self, topic: str, partition: int) -> int:
        """Return the leader epoch of a partition. Opens no log except the shared log.

        Raises:
            UnknownTopic: If there is no such topic or partition.
            StorageError: If it cannot be read.
        """
        self._lifecycle.check_open()
        if self._failure is not None:
            raise self._failure
        log = self.opened(topic, partition)
        if log is not None:
            return log.leader_epoch
        if is_shared(find_entry(self._catalogue, topic, partition)):
            return self.shared.log().log.leader_epoch
        files, directory = self._context.files, partition_directory(self._path, topic, partition)
        try:
            takeover = self._context.takeover
            if not files.exists(state_path(directory)):
                return first_epoch(takeover)
            return current_epoch(read_state(files, directory), takeover)
        except OSError as error:
            raise as_storage_error(error, f"reading partition {partition} of {topic}") from error

    def virtual_topic(self, topic: str, partition: int) -> str:
        """Return the name under which a partition is stored: ``ORG-HASH-PARTITION`` in the shared log."""
        entry = self._catalogue.contents.topics.get(topic)
        in_shared = entry is not None and is_shared(entry)
        return str(owner_of(topic, partition)) if in_shared else f"{topic}-{partition}"

    # --- all of them ------------------------------------------------------------------------------

    @property
    def reports(self) -> list[RecoveryReport]:
        """The recovery report of each log, in the order of opening."""
        return self._own.reports

    def opened_logs(self) -> list[PartitionLog]:
        """Return the logs with files of their own that are open now."""
        with self._guard:
            self._lifecycle.check_open()
            return list(self._own.logs.values())

    def refused(self) -> set[PartitionKey]:
        """Return the partitions that could not be opened when they were used. Touches no file."""
        with self._guard:
            return set(self._own.refused)

    def open_all(self) -> list[PartitionLog]:
        """Open every partition that has files of its own and ever had a record; return their logs.

        One that cannot be opened is left out; using it raises the reason.
        """
        with self._guard:
            self._lifecycle.check_open()
            for entry in self._catalogue.contents.topics.values():
                for partition in range(0 if is_shared(entry) else entry.partitions):
                    try:
                        self.find(entry.name, partition)
                    except StorageError:
                        if (entry.name, partition) not in self._own.refused:
                            # For example without space. It can be used later all the same, so the next open
                            # must not take it for recovered.
                            self._lifecycle.has_leftovers = True
            return list(self._own.logs.values())

    def with_transactions(self) -> list[PartitionKey]:
        """Return the partitions that ever had a transaction, of those that are open or in the shared log.

        After `open_all` these are all of the directory. Reads nothing except the shared log, if it has
        topics. If that is unreadable, its partitions are among them.
        """
        found = [key for key, log in list(self._own.logs.items()) if log.state.transactional]
        for entry in list(self._catalogue.contents.topics.values()):
            if is_shared(entry):
                places = ((entry.name, partition) for partition in range(entry.partitions))
                found += [place for place in places if self.shared.had_transaction(*place)]
        return found

    def has_open_transactions(self) -> bool:
        """Return whether an open partition, or one in the shared log, has an open transaction.

        Returns True if that is unknown. May be called while the directory is being closed.
        """
        try:
            if self._own.has_open_transactions():
                return True
        except StorageError:
            return True
        has_shared = any(is_shared(entry) for entry in self._catalogue.contents.topics.values())
        return has_shared and self.shared.has_open_transactions()

    def in_shared_log(self, *, waits_for_groups: bool) -> Iterator[VirtualLog]:
        """Yield the partitions in the shared log whose retention waits for consumer groups, or does not."""
        self._lifecycle.check_open()
        for entry in list(self._catalogue.contents.topics.values()):
            if is_shared(entry):
                config = self._settings.config_of(entry.config)
                if config.retention_waits_for_groups == waits_for_groups:
                    for partition in range(entry.partitions):
                        log = self._find_virtual(entry.name, partition)
                        if log is not None:
                            yield log

    def _find_virtual(self, topic: str, partition: int) -> VirtualLog | None:
        """Return a partition in the shared log, None if it was deleted meanwhile or cannot be opened."""
        with contextlib.suppress(StorageError, UnknownTopic), self._guard:
            if self.find(topic, partition) is not None:
                return self.shared.opened(topic, partition)
        return None

    # --- changing ---------------------------------------------------------------------------------

    def reconfigure(self, entry: TopicEntry) -> None:
        """Apply the settings of *entry* to those of its partitions that are open. With the guard held."""
        config = self._settings.config_of(entry.config)
        for partition in range(entry.partitions):
            log = self.opened(entry.name, partition)
            if log is not None and log.config != config:
                log.reconfigure(config)

    def refuse(self, key: PartitionKey, error: StorageError) -> None:
        """Close a partition and raise *error* for every later use of it."""
        with self._guard:
            self.shared.forget(*key)
            self._own.refuse(key, error)

    def drop(self, entry: TopicEntry) -> list[PartitionLog]:
        """Forget the partitions of a deleted topic; return those of their logs that were open.

        Threads that wait for a first record are woken. With the guard held.
        """
        keys = [(entry.name, partition) for partition in range(entry.partitions)]
        for key in keys:
            self.shared.forget(*key)
        self._used.notify_all()
        dropped = self._own.drop(keys)
        for key in keys:
            self._context.growth.tell(*key)
        return dropped

    def wake_waiting(self) -> None:
        """Wake the threads that wait for a first record. With the guard held."""
        self._used.notify_all()

    def spool(self, name: str, chunks: Iterable[Buffer], max_bytes: int) -> Spool:
        """Write a whole stream to ``tmp/`` before it is appended; see `spooling.spool`."""
        self._lifecycle.check_open()
        self._lifecycle.before_change()
        return spool(self._context.files, self._path, f"{name}.spool", chunks, max_bytes)

    def begin_spool(self, name: str) -> Spool:
        """Return an empty file in ``tmp/`` for a stream that comes in pieces; see `spooling.begin_spool`."""
        self._lifecycle.check_open()
        self._lifecycle.before_change()
        return begin_spool(self._context.files, self._path, f"{name}.spool")

    def close(self) -> list[StorageError]:
        """Flush, sync and close every partition; return the failures."""
        self.shared.close()
        return self._own.close()
