"""A data directory open for writing: lock, identity, catalogue, and the partitions in it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from threading import RLock
from typing import Any

import msgspec

from cordwood.clock import Clock
from cordwood.config import BrokerConfig, TopicConfig, topic_config
from cordwood.errors import (
    DirectoryRefused,
    DiskFull,
    LogClosed,
    MetadataDamaged,
    RecordRefused,
    StorageError,
    UnknownTopic,
)
from cordwood.formats.format import Format
from cordwood.formats.native import BatchFormat
from cordwood.storage import identity
from cordwood.storage.active import Surroundings
from cordwood.storage.catalogue import Catalogue, TopicEntry
from cordwood.storage.files import Files, join, parent, write_atomically
from cordwood.storage.partition_log import PartitionLog
from cordwood.storage.partition_state import new_state
from cordwood.storage.recovery import RecoveryReport, create_partition, open_partition, partition_exists
from cordwood.storage.segment import OpenFiles
from cordwood.storage.store import DISK_FULL
from cordwood.telemetry import Telemetry

_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")
FORMATS: Mapping[str, Format] = {"batch": BatchFormat()}


def check_topic_name(name: str) -> None:
    """Refuse a name that could lead out of the directory, or that Kafka would refuse.

    Raises:
        RecordRefused: If *name* is not 1 to 249 of ``a-z A-Z 0-9 . _ -``, or is ``.`` or ``..``.
    """
    if not _TOPIC_NAME.fullmatch(name) or name in {".", ".."}:
        raise RecordRefused(f"topic name {name!r} must be 1 to 249 of a-z, A-Z, 0-9, '.', '_' and '-'")


def partition_directory(data: str, topic: str, partition: int) -> str:
    """Return where a partition lives."""
    return join(data, "topics", topic, str(partition))


@dataclass(frozen=True, slots=True)
class Opening:
    """Everything that opening a directory is told rather than finds out."""

    files: Files
    path: str
    clock: Clock
    telemetry: Telemetry
    holder: str
    uuid: str
    node_name: str
    config: BrokerConfig
    create: bool = True
    mapped: bool = True


class DataDirectory:
    """The one writer of a data directory. Every method may be called from any thread."""

    def __init__(self, opening: Opening) -> None:
        """Lock the directory, make it at first boot, recover it after a crash.

        Raises:
            DirectoryLocked: If another process writes it.
            DirectoryRefused: If it is missing and not to be created, not ours, or newer than we are.
            MetadataDamaged: If what says which topics there are cannot be read.
        """
        self.path = opening.path
        self.reports: list[RecoveryReport] = []
        self._opening = opening
        self._files = files = opening.files
        self._guard = RLock()
        self._partitions: dict[tuple[str, int], PartitionLog] = {}
        self._refused: dict[tuple[str, int], StorageError] = {}
        self._closed = False
        first_boot = identity.is_first_boot(files, opening.path)
        if first_boot and not opening.create:
            raise DirectoryRefused(f"{opening.path} is not a data directory")
        gained = files.make_directories(join(opening.path, "meta"))
        if first_boot:
            # An earlier try may have made the directory and crashed before its name was synced.
            for directory in {*gained, parent(opening.path), opening.path}:
                files.sync_directory(directory)
        self._lock = files.lock(join(opening.path, "meta", "lock"), opening.holder)
        try:
            self._open(first_boot)
        except BaseException:
            self._lock.release()
            raise

    def _open(self, first_boot: bool) -> None:
        files, opening = self._files, self._opening
        if first_boot:
            self._catalogue = Catalogue.create(files, self.path)
            self._write_summary()
            self.identity = identity.create_identity(
                files, self.path, opening.clock, opening.uuid, opening.node_name
            )
        else:
            self.identity = identity.read_identity(files, self.path)
            self._catalogue = Catalogue.open(files, self.path)
        self._clean = not first_boot and identity.was_closed_cleanly(files, self.path)
        open_files = OpenFiles(files, mapped=opening.mapped)
        self._around = Surroundings(files, open_files, opening.clock, opening.telemetry, self._before_change)
        if not self._clean and not first_boot:
            self._recover_all()

    def _before_change(self) -> None:
        if self._clean:
            with self._guard:
                identity.mark_unclean(self._files, self.path)
                self._clean = False

    def _recover_all(self) -> None:
        """Open every partition there is, because any of them may have a torn tail."""
        for entry in self._catalogue.topics.values():
            for partition in range(entry.partitions):
                try:
                    if partition_exists(self._around, partition_directory(self.path, entry.name, partition)):
                        self.partition(entry.name, partition)
                except StorageError as error:
                    # One partition that cannot be opened must not take the others with it.
                    self._refused[entry.name, partition] = error

    # --- topics -----------------------------------------------------------------------------------

    @property
    def topics(self) -> Mapping[str, TopicEntry]:
        """The topics there are, by name."""
        self._check()
        return self._catalogue.topics

    def create_topic(
        self, name: str, topic_id: str, partitions: int, config: Mapping[str, str]
    ) -> TopicEntry:
        """Add a topic to the catalogue. Durable on return; its directories appear with its first record.

        Raises:
            RecordRefused: If the name is not allowed.
            ConfigError: If a setting is unknown or its value does not fit.
            DiskFull: Nothing was created.
        """
        check_topic_name(name)
        entry = TopicEntry(name, topic_id, partitions, self.config_of(config).overrides())
        with self._guard:
            self._check()
            self._before_change()
            try:
                self._catalogue.add([entry])
            except OSError as error:
                if error.errno in DISK_FULL:
                    raise DiskFull(f"{self.path}: no space to create topic {name}") from error
                raise StorageError(f"{self.path}: topic {name} could not be created: {error}") from error
        return entry

    def config_of(self, overrides: Mapping[str, str]) -> TopicConfig:
        """Return the settings of a topic that sets *overrides* itself."""
        return topic_config(overrides, self._opening.config)

    def partition(self, topic: str, partition: int) -> PartitionLog:
        """Return the log of a partition, made with its first use.

        Raises:
            UnknownTopic: If there is no such topic or partition.
            MetadataDamaged: If it cannot be opened.
        """
        key = (topic, partition)
        log = self._partitions.get(key)
        if log is not None and not self._closed:
            return log
        with self._guard:
            self._check()
            if key in self._refused:
                raise self._refused[key]
            if key not in self._partitions:
                self._partitions[key] = self._open_partition(topic, partition)
            return self._partitions[key]

    def _open_partition(self, topic: str, partition: int) -> PartitionLog:
        entry = self._catalogue.topics.get(topic)
        if entry is None:
            raise UnknownTopic(f"there is no topic {topic}")
        if not 0 <= partition < entry.partitions:
            raise UnknownTopic(f"topic {topic} has partitions 0 to {entry.partitions - 1}, not {partition}")
        directory = partition_directory(self.path, topic, partition)
        config = self.config_of(entry.config)
        format_ = FORMATS[config.format]
        if partition_exists(self._around, directory):
            quarantine = join(self.path, "quarantine")
            log, report = open_partition(self._around, directory, quarantine, config, format_)
            self.reports.append(report)
            if log.state.topic_id != entry.id or log.first_base < config.initial_offset:
                log.close()
                raise MetadataDamaged(directory, f"does not belong to topic {topic} with id {entry.id}")
            return log
        self._before_change()
        state = new_state(
            topic,
            entry.id,
            partition,
            initial_offset=config.initial_offset,
            index_interval_bytes=config.index_interval_bytes,
        )
        return create_partition(self._around, directory, config, format_, state)

    def open_partitions(self) -> list[PartitionLog]:
        """Return the logs that are open now."""
        with self._guard:
            return list(self._partitions.values())

    # --- ending -----------------------------------------------------------------------------------

    def describe(self, holder: str) -> None:
        """Tell others who find the directory locked more about us, such as where we listen."""
        self._lock.describe(holder)

    def _check(self) -> None:
        if self._closed:
            raise LogClosed(f"{self.path} is closed")
        if not self._lock.held():
            raise LogClosed(f"{self.path} was opened by the process this one was forked from")

    def close(self) -> None:
        """Make everything durable, say that it is, and unlock. Idempotent; does nothing in a forked child.

        Raises:
            LogFailed: If a partition failed, now or before. The others are closed all the same.
        """
        with self._guard:
            if self._closed or not self._lock.held():
                self._closed = True
                return
            self._closed = True
            failures: list[StorageError] = []
            try:
                for log in self._partitions.values():
                    try:
                        log.close()
                    except StorageError as error:
                        failures.append(error)
                    failures += [log.failure] if log.failure is not None else []
                self._catalogue.close()
                if not failures:
                    self._write_summary()
                    if not self._clean and not self._refused:
                        identity.mark_clean(self._files, self.path)
            finally:
                self._lock.release()
        if failures:
            raise failures[0]

    def _write_summary(self) -> None:
        """Write `checkpoint.json`: for people, and for tools that know this layout. Decides nothing."""
        partitions: list[dict[str, Any]] = [
            {
                "topic": log.state.topic,
                "partition": log.state.partition,
                "log_end_offset": log.log_end_offset,
                "active_segment_base_offset": log.state.active_base,
                "active_segment_size_bytes": log.active_size,
                "last_flushed_offset": log.high_watermark,
            }
            for _, log in sorted(self._partitions.items())
        ]
        summary = msgspec.json.format(msgspec.json.encode({"partitions": partitions}), indent=2)
        write_atomically(self._files, join(self.path, "meta", "checkpoint.json"), summary)
