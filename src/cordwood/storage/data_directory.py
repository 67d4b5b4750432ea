"""A data directory open for writing: lock, identity, catalogue, and the partitions in it."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from threading import Condition, Lock, RLock
from typing import Any

import msgspec

from cordwood import process, tenancy
from cordwood.clock import Clock, SystemClock
from cordwood.config import FIXED_SETTINGS, TOPIC_SETTINGS, BrokerConfig, TopicConfig, topic_config
from cordwood.errors import (
    CordwoodError,
    DirectoryRefused,
    InvalidSetting,
    LogClosed,
    LogFailed,
    MetadataDamaged,
    RecordRefused,
    SignedFor,
    SigningUnavailable,
    StorageError,
    UnknownTopic,
)
from cordwood.formats.registry import BATCH, EVERY_FORMAT
from cordwood.kernels import Buffer
from cordwood.setting_kinds import text_of
from cordwood.storage import identity
from cordwood.storage.active import Surroundings
from cordwood.storage.catalogue import (
    SHARED_TOPIC,
    Catalogue,
    DeletedEntry,
    Entry,
    ProducerIdsEntry,
    TopicEntry,
    is_shared,
)
from cordwood.storage.chain import Chains
from cordwood.storage.chain_files import KeptChain
from cordwood.storage.checkpoints import sign_checkpoint, signed_up_to, signing_key, verifier_key
from cordwood.storage.deletion import discard_topic, finish_deletions, remove_moved
from cordwood.storage.files import Files, join, parent, read_file, write_atomically
from cordwood.storage.maintenance import (
    Expired,
    MaintenanceReport,
    expire_partition,
    maintain_partition,
    merged,
)
from cordwood.storage.open_files import OpenFiles
from cordwood.storage.partition_log import PartitionLog
from cordwood.storage.partition_state import new_state
from cordwood.storage.publishing import Publisher, promised
from cordwood.storage.recovery import (
    RecoveryReport,
    check_belongs,
    create_partition,
    open_partition,
    partition_exists,
    sync_names,
)
from cordwood.storage.rewriting import Pace, no_pace
from cordwood.storage.shared_topics import SHARED_CONFIG, SharedTopics
from cordwood.storage.spool import Spool, remove_spools, spool
from cordwood.storage.staging import Share, ShareWriter
from cordwood.storage.store import as_storage_error
from cordwood.storage.unused import UnusedPartition
from cordwood.storage.verify import Progress, VerifyReport, verify_directory
from cordwood.storage.virtual_log import AnyLog, VirtualLog, owner_of
from cordwood.telemetry import CHAIN_LAG, INDEX_REBUILD_SECONDS, INDEX_REBUILDS, Telemetry

_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")
TOPIC_NAME_MAX = 249
#: What was staged this long ago belongs to a query that will not come back for it.
ABANDONED_MS = 7 * 24 * 3_600_000


def _check_not_shared_log(name: str, done: str) -> None:
    if name == SHARED_TOPIC:
        raise RecordRefused(f"{name} is the log of all topics with cordwood.storage=shared; it is not {done}")


def check_topic_name(name: str) -> None:
    """Refuse a name that could lead out of the directory, or that Kafka would refuse.

    A tenant's topic has its org behind the name, as ``orders@7``.

    Raises:
        RecordRefused: If *name* is not 1 to 249 of ``a-z A-Z 0-9 . _ -``, the org included, or is ``.`` or
            ``..``, or what comes after an ``@`` is not the number of an org.
    """
    try:
        plain, _ = tenancy.split(name)
    except ValueError as error:
        raise RecordRefused(f"topic name {name!r}: {error}") from None
    if not _TOPIC_NAME.fullmatch(plain) or plain in {".", ".."} or len(name) > TOPIC_NAME_MAX:
        raise RecordRefused(f"topic name {name!r} must be 1 to 249 of a-z, A-Z, 0-9, '.', '_' and '-'")


def partition_directory(data: str, topic: str, partition: int) -> str:
    """Return where a partition lives."""
    return join(data, "topics", topic, str(partition))


def check_format(config: TopicConfig) -> None:
    """Refuse settings that the records of a topic's format cannot follow.

    Raises:
        InvalidSetting: If there is one.
    """
    if "compact" in config.cleanup_policy and not EVERY_FORMAT[config.format].holds.keys:
        expected = f"delete: records of format {config.format} have no keys"
        raise InvalidSetting("cleanup.policy", config.cleanup_policy, expected)


def check_change(before: TopicConfig, after: TopicConfig) -> None:
    """Refuse a change of settings that the files of a topic cannot follow.

    Raises:
        InvalidSetting: If there is one.
    """
    for name in FIXED_SETTINGS:
        attribute = TOPIC_SETTINGS[name].attribute
        if getattr(before, attribute) != getattr(after, attribute):
            kept = text_of(getattr(before, attribute))
            raise InvalidSetting(name, text_of(getattr(after, attribute)), f"{kept}: it cannot be changed")
    if after.stored_bytes_max < before.stored_bytes_max:
        # Batches of that size may be stored, and would be refused on reading.
        expected = f"no less than {before.max_message_bytes}, what it was"
        raise InvalidSetting("max.message.bytes", after.max_message_bytes, expected)


@dataclass(frozen=True, slots=True)
class Opening:
    """Everything that opening a directory is told rather than finds out.

    What is not given is that of this process; tests give what they want to be the same every time.
    """

    files: Files
    path: str
    config: BrokerConfig
    create: bool = True
    mapped: bool = True
    clock: Clock = field(default_factory=SystemClock)
    telemetry: Telemetry = field(default_factory=Telemetry)
    holder: str = field(default_factory=process.holder)
    uuid: str = field(default_factory=process.new_id)
    node_name: str = field(default_factory=process.host)
    secret: bytes = field(default_factory=process.new_secret)


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
        self._used = Condition(self._guard)
        self._clean_guard = Lock()
        self._partitions: dict[tuple[str, int], PartitionLog] = {}
        self._refused: dict[tuple[str, int], StorageError] = {}
        self._left_over = False
        self._closed = False
        # Asked before anything is made, so that a directory that is not ours stays as it is …
        if identity.is_first_boot(files, opening.path) and not opening.create:
            raise DirectoryRefused(f"{opening.path} is not a data directory")
        gained = files.make_directories(join(opening.path, "meta"))
        self._lock = files.lock(join(opening.path, "meta", "lock"), opening.holder)
        try:
            # … and again under the lock, because another process may have made it meanwhile.
            first_boot = identity.is_first_boot(files, opening.path)
            if first_boot:
                # An earlier try may have made the directory and crashed before its name was synced.
                for directory in {*gained, parent(opening.path), opening.path}:
                    files.sync_directory(directory)
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
        open_files = OpenFiles(
            files,
            mapped=opening.mapped,
            indexes_max=opening.config.index_cache_segments,
            rebuilding=self._rebuilding,
        )
        self._around = Surroundings(
            files,
            open_files,
            opening.clock,
            opening.telemetry,
            self._check_alive,
            self._before_change,
            opening.config.producer_id_expiration_ms,
        )
        self.chains = Chains(files, opening.clock, self._sign_compaction)
        self._shared = SharedTopics(
            self._around, self.chains, lambda: self.own_partition(SHARED_TOPIC, 0), self._guard
        )
        remove_spools(files, self.path)
        remove_moved(files, self.path)
        self._publisher = Publisher(
            files,
            self.path,
            self.partition,
            lambda: self._catalogue.contents.topics,
            self.config_of,
            EVERY_FORMAT,
            self._check,
        )
        if not self._clean and not first_boot:
            contents = self._catalogue.contents
            # Names that a killed process made may be in the cache only, and are about to be relied on.
            sync_names(files, self.path)
            finish_deletions(files, self.path, contents.topics, contents.deleted)
            self._open_all()
            self._finish_shared_deletions()
            self._finish_publications()

    @contextlib.contextmanager
    def _rebuilding(self) -> Iterator[None]:
        """Count an index that is built from its log, and how long that takes."""
        telemetry, clock = self._opening.telemetry, self._opening.clock
        telemetry.add(INDEX_REBUILDS)
        started = clock.monotonic_ns()
        yield
        telemetry.observe(INDEX_REBUILD_SECONDS, (clock.monotonic_ns() - started) / 1e9)

    def _finish_publications(self) -> None:
        """Publish what a crash interrupted, before anyone can append; refuse partitions where that fails."""
        for key, error in self._publisher.finish_all().items():
            self._refused[key] = error
            self._shared.forget(*key)
            log = self._partitions.pop(key, None)
            if log is not None:
                with contextlib.suppress(StorageError):
                    log.close()

    def _finish_shared_deletions(self) -> None:
        """Say in the shared log which topics have ended, where a crash came before that."""
        contents = self._catalogue.contents
        gone = [
            each for each in contents.deleted.values() if is_shared(each) and each.name not in contents.topics
        ]
        if gone:
            try:
                self._shared.end(gone)
            except StorageError:
                # As long as the shared log cannot be opened, nobody takes their records for another's.
                self._left_over = True

    def _before_change(self) -> None:
        if self._clean:
            # Not the guard: a thread that closes the directory holds that and waits for appends to end.
            with self._clean_guard:
                if self._clean:
                    try:
                        identity.mark_unclean(self._files, self.path)
                    except OSError as error:
                        raise as_storage_error(error, "preparing a change") from error
                    self._clean = False

    def _open_all(self) -> None:
        """Open every partition there is; what cannot be opened is remembered and refused when asked for."""
        for entry in self._catalogue.contents.topics.values():
            for partition in range(0 if is_shared(entry) else entry.partitions):
                # One partition that cannot be opened must not take the others with it.
                with contextlib.suppress(StorageError):
                    self.find_partition(entry.name, partition)

    # --- topics -----------------------------------------------------------------------------------

    @property
    def topics(self) -> Mapping[str, TopicEntry]:
        """The topics there are, by name."""
        self._check()
        return self._catalogue.contents.topics

    def create_topic(
        self, name: str, topic_id: str, partitions: int, config: Mapping[str, str]
    ) -> TopicEntry:
        """Add a topic to the catalogue, unless it is there: then return it as it is.

        Durable on return; the topic's directories appear with its first record.

        Raises:
            RecordRefused: If the name is not allowed.
            ConfigError: If a setting is unknown or its value does not fit.
            DiskFull: Nothing was created.
        """
        (entry,) = self.create_topics([self.new_topic(name, topic_id, partitions, config)])
        return entry

    def new_topic(self, name: str, topic_id: str, partitions: int, config: Mapping[str, str]) -> TopicEntry:
        """Return what the catalogue would say of a new topic. Raises as `create_topic`; creates nothing."""
        check_topic_name(name)
        _check_not_shared_log(name, "created")
        settings = self.config_of(self._with_storage(name, config))
        if settings.format == "shared":
            raise InvalidSetting("cordwood.format", "shared", "batch: say cordwood.storage=shared")
        return TopicEntry(name, topic_id, partitions, settings.overrides())

    def create_topics(self, wanted: Sequence[TopicEntry]) -> list[TopicEntry]:
        """Add topics to the catalogue with one sync, but for those that are there: return all as they are.

        Durable on return.

        Raises:
            DiskFull: Nothing was created.
        """
        with self._guard:
            self._check()
            topics = self._catalogue.contents.topics
            new: dict[str, Entry] = {}
            if SHARED_TOPIC not in topics and any(map(is_shared, wanted)):
                new[SHARED_TOPIC] = TopicEntry(SHARED_TOPIC, process.new_id(), 1, SHARED_CONFIG)
            for entry in wanted:
                if entry.name not in topics:
                    new.setdefault(entry.name, entry)
            if new:
                self._before_change()
                try:
                    for name in new:
                        self._clear_the_way(name)
                    self._catalogue.add(list(new.values()))
                except OSError as error:
                    raise as_storage_error(error, f"creating topic {wanted[0].name}") from error
            return [topics[entry.name] for entry in wanted]

    def _with_storage(self, name: str, config: Mapping[str, str]) -> Mapping[str, str]:
        """Return the settings of a new topic, among them where its records are kept, if that is not usual."""
        default = self._opening.config.topic_defaults.storage
        # The broker's own topics are compacted, or read by its own means.
        if default == "own" or "cordwood.storage" in config or name.startswith("__"):
            return config
        return {**config, "cordwood.storage": default}

    def _clear_the_way(self, name: str) -> None:
        """Move away what is left of a deleted topic: records of a new one must never lie beside it."""
        deleted = self._catalogue.contents.deleted_names.get(name)
        if deleted is not None and is_shared(deleted):
            self._shared.end([deleted])
        # The last one of that name: if there is a directory it is its, those before were moved.
        if deleted is not None and self._files.exists(join(self.path, "topics", name)):
            discard_topic(self._files, self.path, deleted)

    @property
    def surroundings(self) -> Surroundings:
        """What the partition logs share."""
        return self._around

    @property
    def telemetry(self) -> Telemetry:
        """What is counted here."""
        return self._opening.telemetry

    def virtual_topic(self, topic: str, partition: int) -> str:
        """Return what a partition is called where it lies: in the shared log it is ``ORG-HASH-PARTITION``."""
        entry = self._catalogue.contents.topics.get(topic)
        shared = entry is not None and is_shared(entry)
        return str(owner_of(topic, partition)) if shared else f"{topic}-{partition}"

    def topic_by_id(self, topic_id: str) -> TopicEntry | None:
        """Return the topic with this id, if there is one."""
        self._check()
        return self._catalogue.contents.by_id.get(topic_id)

    def delete_topic(self, name: str) -> None:
        """Remove a topic and everything in it. Durable on return; what cannot go now goes at the next open.

        Raises:
            UnknownTopic: If there is none of that name.
            RecordRefused: If it is the shared log, which has the records of others.
            DiskFull: Nothing was removed.
        """
        _check_not_shared_log(name, "deleted")
        with self._guard:
            self._check()
            entry = self._entry(name, 0)
            self._before_change()
            try:
                self._catalogue.add([DeletedEntry(entry.id)])
            except OSError as error:
                raise as_storage_error(error, f"deleting topic {name}") from error
            for key in [(name, partition) for partition in range(entry.partitions)]:
                self._refused.pop(key, None)
                self._shared.forget(*key)
                log = self._partitions.pop(key, None)
                if log is not None:
                    self._around.changed.discard(log)
                    self.chains.forget(log)
                    # Nobody needs what it holds any more, so nobody cares whether that can be synced.
                    with contextlib.suppress(StorageError):
                        log.close()
            self._used.notify_all()
            try:
                if is_shared(entry):
                    self._shared.end([entry])
                else:
                    discard_topic(self._files, self.path, entry)
            except (OSError, StorageError):
                self._left_over = True

    def alter_topic(
        self, name: str, *, partitions: int | None = None, config: Mapping[str, str] | None = None
    ) -> TopicEntry:
        """Give a topic more partitions, or other settings of its own in place of all it has. Durable.

        Raises:
            UnknownTopic: If there is none of that name.
            ConfigError: If a setting is unknown, does not fit, or cannot be changed any more.
            DiskFull: Nothing was changed.
        """
        with self._guard:
            entry = self._entry(name, 0)
            if partitions is not None and partitions != entry.partitions:
                _check_not_shared_log(name, "given more partitions")
            if partitions is not None and partitions < entry.partitions:
                raise InvalidSetting("partitions", partitions, f"no fewer than {entry.partitions}")
            settings = self.config_of(entry.config if config is None else config)
            check_change(self.config_of(entry.config), settings)
            changed = msgspec.structs.replace(
                entry, partitions=partitions or entry.partitions, config=settings.overrides()
            )
            if changed == entry:
                return entry
            self._before_change()
            try:
                self._catalogue.add([changed])
            except OSError as error:
                raise as_storage_error(error, f"changing topic {name}") from error
            for partition in range(entry.partitions):
                log = self.opened(name, partition)
                if log is not None:
                    log.reconfigure(settings)
        return changed

    def reserve_producer_ids(self, count: int) -> int:
        """Return the first of *count* ids that no idempotent producer was or will be given. Durable.

        Raises:
            DiskFull: Nothing was reserved.
        """
        with self._guard:
            self._check()
            self._before_change()
            first = self._catalogue.contents.next_producer_id
            try:
                self._catalogue.add([ProducerIdsEntry(first + count)])
            except OSError as error:
                raise as_storage_error(error, "reserving producer ids") from error
            return first

    def config_of(self, overrides: Mapping[str, str]) -> TopicConfig:
        """Return the settings of a topic that sets *overrides* itself.

        Raises:
            ConfigError: If one is unknown, its value does not fit, or its format cannot do what it asks for.
        """
        config = topic_config(overrides, self._opening.config)
        check_format(config)
        return config

    def partition(self, topic: str, partition: int) -> AnyLog:
        """Return the log of a partition to append to, made with its first use.

        Raises:
            UnknownTopic: If there is no such topic or partition.
            MetadataDamaged: If it cannot be opened.
            DiskFull: If there is no space to make it.
        """
        self._check()
        log = self.opened(topic, partition)
        if log is not None:
            return log
        with self._guard:
            log = self.find_partition(topic, partition)
            if log is None:
                try:
                    log = self._create_partition(topic, partition)
                except OSError as error:
                    raise as_storage_error(error, f"making partition {partition} of {topic}") from error
                self._partitions[topic, partition] = log
                self._used.notify_all()
            return log

    def own_partition(self, topic: str, partition: int) -> PartitionLog:
        """Do as `partition` does, for a topic that has files of its own."""
        log = self.partition(topic, partition)
        assert isinstance(log, PartitionLog), f"topic {topic} is in the shared log"
        return log

    def free_bytes(self) -> int:
        """Return the bytes that can still be written."""
        return self._files.free_bytes(self.path)

    def opened(self, topic: str, partition: int) -> AnyLog | None:
        """Return the log of a partition if it is open already. Never blocks."""
        return self._partitions.get((topic, partition)) or self._shared.opened(topic, partition)

    def readable(self, topic: str, partition: int) -> AnyLog | UnusedPartition:
        """Return what there is to read of a partition, making nothing."""
        self._check()
        log = self.opened(topic, partition) or self.find_partition(topic, partition)
        if log is None:
            entry = self._entry(topic, partition)
            first = self.config_of(entry.config).initial_offset
            return UnusedPartition(first, lambda: self._wait_for_use(topic, partition))
        return log

    def _wait_for_use(self, topic: str, partition: int) -> AnyLog:
        with self._used:
            while True:
                self._check()
                log = self.opened(topic, partition)
                if log is not None:
                    return log
                self._entry(topic, partition)
                self._used.wait()

    def find_partition(self, topic: str, partition: int) -> AnyLog | None:
        """Return the log of a partition, None if it never had a record. Raises as `partition` does."""
        key = (topic, partition)
        with self._guard:
            self._check()
            if key in self._refused:
                raise self._refused[key]
            if key not in self._partitions:
                entry = self._entry(topic, partition)
                if is_shared(entry):
                    return self._shared.open(entry, partition, self.config_of(entry.config))
                try:
                    log = self._open_partition(topic, partition)
                except StorageError as error:
                    self._refused[key] = error
                    raise
                except OSError as error:
                    raise as_storage_error(error, f"opening partition {partition} of {topic}") from error
                if log is None:
                    return None
                self._partitions[key] = log
            return self._partitions[key]

    def _entry(self, topic: str, partition: int) -> TopicEntry:
        entry = self._catalogue.contents.topics.get(topic)
        if entry is None:
            raise UnknownTopic(f"there is no topic {topic}")
        if not 0 <= partition < entry.partitions:
            raise UnknownTopic(f"topic {topic} has partitions 0 to {entry.partitions - 1}, not {partition}")
        return entry

    def _open_partition(self, topic: str, partition: int) -> PartitionLog | None:
        entry = self._entry(topic, partition)
        directory = partition_directory(self.path, topic, partition)
        config = self.config_of(entry.config)
        if not partition_exists(self._files, directory, config.initial_offset):
            return None
        quarantine = join(self.path, "quarantine")
        log, report = open_partition(
            self._around, directory, quarantine, config, EVERY_FORMAT[config.format].for_partition(partition)
        )
        self.reports.append(report)
        try:
            check_belongs(directory, log.state, entry, partition, config.initial_offset)
        except MetadataDamaged:
            log.close()
            raise
        if config.chain and not self._clean:
            # A crash may have taken leaves that were not durable yet.
            self._around.changed.add(log)
        return log

    def _create_partition(self, topic: str, partition: int) -> PartitionLog:
        entry = self._entry(topic, partition)
        config = self.config_of(entry.config)
        format_ = EVERY_FORMAT[config.format].for_partition(partition)
        self._before_change()
        state = new_state(
            topic,
            entry.id,
            partition,
            initial_offset=config.initial_offset,
            index_interval_bytes=config.index_interval_bytes,
            record_format=format_.name,
            index_interval_records=config.index_interval_records if format_.record_per_frame else 0,
        )
        directory = partition_directory(self.path, topic, partition)
        return create_partition(self._around, directory, config, format_, state)

    def open_partitions(self) -> list[PartitionLog]:
        """Return the logs that are open now."""
        with self._guard:
            self._check()
            return list(self._partitions.values())

    def all_partitions(self) -> list[PartitionLog]:
        """Return the logs of all partitions that ever had a record and can be opened."""
        with self._guard:
            self._check()
            self._open_all()
            return list(self._partitions.values())

    def spool(self, name: str, chunks: Iterable[Buffer], max_bytes: int) -> Spool:
        """Take a whole stream into ``tmp/`` before it is appended; see `spool.spool`."""
        self._check()
        self._before_change()
        return spool(self._files, self.path, f"{name}.spool", chunks, max_bytes)

    def publish(self, query: str, batch: int, shares: Sequence[Share], *, remember: bool = True) -> bool:
        """Append what the tasks of a query's batch staged, once; see `Publisher.publish`."""
        self._check()
        return self._publisher.publish(query, batch, shares, remember=remember)

    def promised(self, query: str) -> int:
        """Return the highest batch of *query* that is published or will be, -1 if none is."""
        self._check()
        return promised(self._files, self.path, query)

    def stage(self, query: str, batch: int, task: str) -> ShareWriter:
        """Return a writer for what one task of a query's batch has, to be published later."""
        self._check()
        now_ms = self._opening.clock.now_ms()
        return ShareWriter(self._files, self.path, query, batch, task, now_ms, BATCH)

    def maintain(self, *, force: bool = False) -> MaintenanceReport:
        """Do what policies ask for in every partition, one after the other; with *force* compact what can be.

        Also notes hashes of sealed segments and removes abandoned shares. It may take long and holds nothing
        up: appends and reads go on.
        """
        if SHARED_TOPIC in self.topics:
            self._shared.log()
        reports = [self.keep_up(log, force=force) for log in self.all_partitions()]
        hashed = sum(log.hash_sealed() for log in self.all_partitions())
        return replace(merged(reports), segments_hashed=hashed, shares_removed=self.collect_abandoned())

    def keep_up(
        self, log: AnyLog, *, needed_from: int | None = None, pace: Pace = no_pace, force: bool = False
    ) -> MaintenanceReport:
        """Do what policies ask for in one partition; see `maintenance.maintain_partition`."""
        self._check()
        if isinstance(log, VirtualLog):
            return self._shared.expire([log], needed_from)
        if log.state.topic == SHARED_TOPIC:
            return merged([self._shared.expire(self._unwaited()), self._shared.reclaim(pace)])
        return maintain_partition(
            self._around,
            self.chains,
            log,
            map_bytes=self._opening.config.cleaner_map_bytes,
            secret=self._opening.secret,
            needed_from=needed_from,
            pace=pace,
            force=force,
        )

    def _unwaited(self) -> Iterator[VirtualLog]:
        """Yield the partitions in the shared log whose retention waits for nobody."""
        for entry in list(self.topics.values()):
            if is_shared(entry) and not self.config_of(entry.config).retention_waits_for_groups:
                for partition in range(entry.partitions):
                    with contextlib.suppress(StorageError, UnknownTopic):
                        log = self.find_partition(entry.name, partition)
                        assert isinstance(log, VirtualLog)
                        yield log

    def expire(self, log: AnyLog, *, needed_from: int | None = None) -> Expired | None:
        """Let go of what retention no longer keeps in one partition; see `maintenance.expire_partition`."""
        self._check()
        if isinstance(log, VirtualLog):
            return next(iter(self._shared.expire([log], needed_from).expired), None)
        return expire_partition(self._around, self.chains, log, needed_from=needed_from)

    def verify(self, topic: str, progress: Progress) -> VerifyReport:
        """Check everything of a topic as any other process would: from its files, beside the writer.

        Raises:
            UnknownTopic: If there is none of that name any more.
        """
        self._check()
        return verify_directory(self._files, self.path, topic, progress)

    @property
    def is_chain_behind(self) -> bool:
        """Whether a chain may not have all of its log, or not durably. Touches no file."""
        return bool(self._around.changed) or self.chains.is_uncommitted

    def follow_changed(self, pace: Pace = no_pace) -> dict[PartitionLog, CordwoodError]:
        """Bring the chains of all logs up to date that changed since, and return what could not be, and why.

        Raises:
            LogClosed: If *pace* says so. What is left is followed another time.
        """
        self._check()
        changed, failures = self._around.changed, dict[PartitionLog, CordwoodError]()
        self._note_lag()
        for _ in range(len(changed)):
            log = changed.pop()
            try:
                if log.config.chain:
                    self.chains.follow(log, pace)
            except CordwoodError as error:
                changed.add(log)
                if isinstance(error, LogClosed):
                    raise
                failures[log] = error
        with contextlib.suppress(StorageError):
            self.chains.commit_due()
        self._note_lag()
        return failures

    def _note_lag(self) -> None:
        behind = sum(self.chains.lag(log) for log in list(self._around.changed) if log.config.chain)
        self._around.telemetry.set(CHAIN_LAG, behind)

    def sign(self, log: PartitionLog, chain: KeptChain) -> str:
        """Sign for what the chain of *log* has, keep the note and return it; see `checkpoints`. Durable.

        The key that signs is made on first use.

        Raises:
            EvidenceRefused: If the tree does not begin with what was signed for before.
            SigningUnavailable: If what signs is not installed.
        """
        self._check()
        state, broker = log.state, self.identity.uuid
        key = signing_key(self._files, self.path, broker, process.new_seed)
        return sign_checkpoint(
            self._files, self.path, broker, state.topic, state.partition, chain, key, state.record_format
        )

    def check_not_signed_for(self, log: PartitionLog, end_offset: int) -> None:
        """Refuse to cut *log* at *end_offset* where that takes back what was signed for.

        Raises:
            SignedFor: If it does.
        """
        state = log.state
        try:
            signed = signed_up_to(self._files, self.path, state.topic_id, state.partition)
        except OSError as error:
            raise as_storage_error(error, "looking for checkpoints") from error
        if end_offset < signed:
            raise SignedFor(state.topic, state.partition, end_offset, signed)

    def _sign_compaction(self, log: PartitionLog, chain: KeptChain) -> None:
        # Where nobody has signed anything yet, nobody has a key to check it with. What a compaction says of
        # itself is in the tree, so the first checkpoint signs for it.
        if verifier_key(self._files, self.path) is not None:
            with contextlib.suppress(SigningUnavailable):
                self.sign(log, chain)

    def collect_abandoned(self) -> int:
        """Remove shares that nobody published for a week; return how many. See `staging`."""
        self._check()
        return self._publisher.collect_abandoned(self.abandoned_before_ms())

    def abandoned_before_ms(self) -> int:
        """Return the time before which what was staged is abandoned by now."""
        return self._opening.clock.now_ms() - ABANDONED_MS

    # --- ending -----------------------------------------------------------------------------------

    def describe(self, holder: str) -> None:
        """Tell others who find the directory locked more about us, such as where we listen."""
        self._lock.describe(holder)

    def _check(self) -> None:
        if self._closed:
            raise LogClosed(f"{self.path} is closed")
        self._check_alive()

    def _check_alive(self) -> None:
        if not self._lock.held() and not self._closed:
            raise LogClosed(f"{self.path} was opened by the process this one was forked from")

    def close(self) -> None:
        """Make everything durable, say that it is, and unlock. Idempotent; does nothing in a forked child.

        Raises:
            LogFailed: If a partition failed, now or before. The others are closed all the same.
            StorageError: If what the directory says of itself could not be written.
        """
        with self._guard:
            if self._closed or not self._lock.held():
                self._closed = True
                return
            self._closed = True
            self._used.notify_all()
        # Without the guard: an append that is under way may need it before it lets go of its partition.
        self.chains.finish(log for log in list(self._around.changed) if log.config.chain)
        failures = self._close_partitions()
        if self._catalogue.failed:
            # As with a partition: nothing says then that there is nothing to recover.
            failures.append(LogFailed(f"{self.path}: a sync of the catalogue failed"))
        try:
            self._catalogue.close()
            if not failures:
                self._write_summary()
                if not self._clean and not self._refused and not self._left_over:
                    identity.mark_clean(self._files, self.path)
        except StorageError as error:
            failures.append(error)
        except OSError as error:
            failures.append(as_storage_error(error, "closing"))
        finally:
            self._lock.release()
        if failures:
            raise failures[0]

    def _close_partitions(self) -> list[StorageError]:
        failures: list[StorageError] = []
        self._shared.close()
        for log in self._partitions.values():
            try:
                log.close()
            except StorageError as error:
                failures.append(error)
            if log.failure is not None:
                failures.append(log.failure)
        return failures

    def _write_summary(self) -> None:
        """Write `checkpoint.json`: for people, and for tools that know this layout. Decides nothing."""
        now: dict[tuple[str, int], dict[str, Any]] = {
            (log.state.topic, log.state.partition): {
                "topic": log.state.topic,
                "partition": log.state.partition,
                "log_end_offset": log.log_end_offset,
                "active_segment_base_offset": log.state.active_base,
                "active_segment_size_bytes": log.active_size,
                "last_flushed_offset": log.high_watermark,
            }
            for log in self._partitions.values()
        }
        # What was said of a topic that is gone by now is said no more.
        topics = self._catalogue.contents.topics
        before = {key: entry for key, entry in self._summarised_before().items() if key[0] in topics}
        partitions = [entry for _, entry in sorted({**before, **now}.items())]
        summary = msgspec.json.format(msgspec.json.encode({"partitions": partitions}), indent=2)
        write_atomically(self._files, join(self.path, "meta", "checkpoint.json"), summary)

    def _summarised_before(self) -> dict[tuple[str, int], dict[str, Any]]:
        """Return what the summary says of partitions that were not opened since: they have not changed."""
        try:
            summary = msgspec.json.decode(read_file(self._files, join(self.path, "meta", "checkpoint.json")))
            return {(entry["topic"], entry["partition"]): entry for entry in summary["partitions"]}
        except (FileNotFoundError, msgspec.MsgspecError, UnicodeDecodeError, KeyError, TypeError):
            return {}
