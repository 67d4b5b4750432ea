"""A data directory open for writing: it locks the directory, opens its parts and holds them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from threading import RLock
from typing import TypeVar

import msgspec

from cordwood.config import BrokerConfig, TopicConfig, layered_as_far_as_possible, only_static
from cordwood.disk import DISK_FULL, Files, Reserve, WatchedFiles, as_storage_error, join, parent
from cordwood.errors import LogFailed, NotADataDirectory, StorageError
from cordwood.host import Clock, SystemClock, process
from cordwood.storage.chain import Chains, CheckpointSigner
from cordwood.storage.directory.cutting import Cutting
from cordwood.storage.directory.deletion import remove_moved
from cordwood.storage.directory.maintenance import DirectoryMaintenance
from cordwood.storage.directory.own_partitions import OwnPartitions
from cordwood.storage.directory.partitions import DirectoryPartitions
from cordwood.storage.directory.producer_ids import ProducerIdBlocks
from cordwood.storage.directory.settings import DirectorySettings
from cordwood.storage.directory.summary import Summary, create_summary
from cordwood.storage.directory.topic_settings import TopicSettings
from cordwood.storage.directory.topics import DirectoryTopics
from cordwood.storage.directory.unfinished import remove_unfinished
from cordwood.storage.log import (
    LogContext,
    OpenFiles,
    RemoteAcks,
    SegmentSource,
    ServedPartition,
    remove_spools,
    sync_names,
)
from cordwood.storage.meta import (
    Catalogue,
    FailureWatch,
    Lifecycle,
    SecurityStore,
    check_regular_directory,
    identity,
    read_takeover,
)
from cordwood.storage.shared import SharedTopics
from cordwood.storage.sink import NO_INTENTS, OpenIntents, Publisher
from cordwood.telemetry import INDEX_REBUILD_SECONDS, INDEX_REBUILDS, Telemetry

Result = TypeVar("Result")
#: Files that are open to read, at most: or an eighth of all that may be open, as of chains.
OPEN_FILES_MAX = 256
#: File handles in reserve, for as many threads that have to finish a change at the same time; or a sixteenth.
SPARE_HANDLES_MAX = 16


@dataclass(frozen=True, slots=True)
class Opening:
    """The arguments of `DataDirectory`.

    The defaults describe this process; tests give values that are the same in every run.
    """

    files: Files
    path: str
    config: BrokerConfig
    #: Whether settings that were stored at run time apply: to a broker they do.
    dynamic: bool = False
    create: bool = True
    mapped: bool = True
    #: Where sealed segments are read from; None for local files.
    segments: SegmentSource | None = None
    #: Where records of topics with ``cordwood.remote.acks`` have to be before they are acknowledged.
    remote: RemoteAcks | None = None
    #: Called with the lock held and before anything is read: the directory may be completed by it.
    prepare: Callable[[], None] = lambda: None
    #: Called when a close begins.
    closing: Callable[[], None] = lambda: None
    #: Called when everything is closed, with the lock still held.
    finish: Callable[[], None] = lambda: None
    #: Space on the disk that is kept for deletions; see `reserve`.
    reserve_bytes: int = 0
    #: How many files and connections the process may have open, None for no limit.
    handles: int | None = None
    clock: Clock = field(default_factory=SystemClock)
    telemetry: Telemetry = field(default_factory=Telemetry)
    #: The node id of the broker that opens it; None if no broker does.
    node_id: int | None = None
    holder: str = field(default_factory=process.holder)
    uuid: str = field(default_factory=process.new_id)
    node_name: str = field(default_factory=process.host)
    secret: bytes = field(default_factory=process.new_secret)


class DataDirectory:
    """The one writer of a data directory. Every method may be called from any thread.

    The work is done by its parts: ``partitions``, ``topics``, ``settings``, ``producer_ids``, ``security``,
    ``chains``, ``signer``, ``publisher``, ``cutting``, ``maintenance`` and ``summary``. They share
    ``context``, ``lifecycle`` and one lock, and raise LogClosed once the directory is closed.
    """

    def __init__(self, opening: Opening) -> None:
        """Lock the directory, create it at first boot, recover it after a crash.

        Raises:
            DirectoryLocked: If another process writes it.
            DirectoryRefused: If it is missing and not to be created, not a data directory, of a newer
                version, has the identity of another directory, or belongs to another broker.
            MetadataDamaged: If the catalogue of topics cannot be read.
        """
        self.path = opening.path
        self._closing, self._finish = opening.closing, opening.finish
        self.failures = FailureWatch()
        self.files = files = WatchedFiles(opening.files, self.failures.report_sync)
        self.handles = files.handles
        self._guard = RLock()
        self._reserve = Reserve(files, opening.path, opening.clock, opening.reserve_bytes)
        # Before the lock, because taking it writes to its file.
        check_regular_directory(files, opening.path)
        # Before anything is created, so that a directory that is not ours stays as it is …
        if identity.is_first_boot(files, opening.path) and not opening.create:
            raise NotADataDirectory(opening.path)
        gained = files.make_directories(join(opening.path, "meta"))
        self._lock = files.lock(join(opening.path, "meta", "lock"), opening.holder)
        try:
            opening.prepare()
            self._takeover = read_takeover(files, opening.path)
            # Checked again under the lock, because another process may have created it in between.
            first_boot = identity.is_first_boot(files, opening.path)
            if first_boot:
                # An earlier try may have made the directory and crashed before its name was synced.
                for directory in {*gained, parent(opening.path), opening.path}:
                    files.sync_directory(directory)
            self._open_metadata(opening, first_boot)
            self._open_parts(opening)
            self._share_handles(opening)
            if opening.remote is not None:
                self._let_topics_wait(opening.remote)
            remove_spools(files, self.path)
            remove_moved(files, self.path)
            if not self.lifecycle.is_clean:
                self._reserve.keep()
                if not first_boot:
                    self._recover()
                    # Nothing depends on it, so a full disk does not keep the directory from opening.
                    with contextlib.suppress(OSError):
                        self.summary.save()
            # Also where a failed import could not remove its topics and the directory was closed cleanly.
            remove_unfinished(files, self.path, self.topics, self.topics.delete)
            if first_boot or opening.node_id is not None:
                self._record_owner()
        except BaseException:
            self.handles.close()
            self._lock.release()
            raise

    def _open_metadata(self, opening: Opening, first_boot: bool) -> None:
        files = self.files
        if first_boot:
            self._catalogue = Catalogue.create(files, self.path)
            create_summary(files, self.path)
            self.identity = identity.create_identity(
                files, self.path, opening.clock, opening.uuid, opening.node_name
            )
        else:
            self.identity = identity.read_identity(files, self.path)
            self._catalogue = Catalogue.open(files, self.path)
        known = self._catalogue.contents.directory
        self._catalogue.owner = identity.checked_owner(self.path, self.identity, known, opening.node_id)
        is_clean = not first_boot and identity.was_closed_cleanly(files, self.path)
        self.lifecycle = Lifecycle(files, self.path, self._lock, self._reserve, is_clean=is_clean)

    def _open_parts(self, opening: Opening) -> None:
        files, path, guard = self.files, self.path, self._guard
        catalogue, lifecycle = self._catalogue, self.lifecycle
        layers, warnings = only_static(opening.config), list[str]()
        if opening.dynamic:
            # Before recovery: the largest allowed batch decides which bytes recovery accepts as one.
            stored = catalogue.contents.broker_settings
            layers, warnings = layered_as_far_as_possible(opening.config, stored)
        self._topic_settings = topic_settings = TopicSettings(layers)
        self.context = context = self._log_context(opening, topic_settings)
        self.signer = CheckpointSigner(files, path, self.identity.uuid, lifecycle)
        for_chains = None if opening.handles is None else opening.handles // 8
        self.chains = chains = Chains(context, lifecycle, self.signer, for_chains)
        self._own = own = OwnPartitions(context, path, catalogue, topic_settings, lifecycle, guard)
        shared = SharedTopics(context, chains, own.shared_log, guard)
        self.partitions = partitions = DirectoryPartitions(
            context, path, catalogue, topic_settings, own, shared, lifecycle, guard
        )
        self.topics = DirectoryTopics(
            context, path, catalogue, topic_settings, partitions, chains, lifecycle, guard
        )
        self.settings = DirectorySettings(
            catalogue, opening.config, topic_settings, partitions, lifecycle, guard, warnings
        )
        self.producer_ids = ProducerIdBlocks(catalogue, lifecycle, guard)
        self.security = SecurityStore(catalogue, lifecycle, guard)
        self.cutting = Cutting(files, path, catalogue, partitions, chains, lifecycle)
        self.publisher = Publisher(context, path, catalogue, topic_settings, partitions, lifecycle)
        self.maintenance = DirectoryMaintenance(
            context, catalogue, topic_settings, chains, partitions, self.publisher, lifecycle, opening.secret
        )
        self.summary = Summary(
            files,
            path,
            opening.clock,
            opening.config.summary_interval_ms,
            lambda: catalogue.contents.topics,
            # Copied in one step: other threads open partitions meanwhile.
            lambda: list(own.logs.values()),
        )

    def _log_context(self, opening: Opening, settings: TopicSettings) -> LogContext:
        open_files = OpenFiles(
            self.files,
            mapped=opening.mapped,
            limit=OPEN_FILES_MAX if opening.handles is None else min(OPEN_FILES_MAX, opening.handles // 8),
            indexes_max=opening.config.index_cache_segments,
            rebuilding=partial(_count_rebuild, opening.telemetry, opening.clock),
            source=opening.segments,
        )
        return LogContext(
            self.files,
            open_files,
            opening.clock,
            opening.telemetry,
            self.lifecycle.check_alive,
            self.lifecycle.before_change,
            self._reserve,
            self.handles.urgently,
            self.failures.report,
            lambda: settings.broker.producer_id_expiration_ms,
            takeover=self._takeover,
            remote=opening.remote,
        )

    def _let_topics_wait(self, remote: RemoteAcks) -> None:
        """Let topics that ask for it wait, also before their partitions are opened."""
        for entry in self._catalogue.contents.topics.values():
            if self._topic_settings.config_of(entry.config).remote_acks:
                remote.let_topic_wait(join(self.path, "topics", entry.name), waits=True)

    def _share_handles(self, opening: Opening) -> None:
        """Let the parts close idle files when handles run out, and keep some handles in reserve."""
        if opening.config.file_mode == "group":
            # Tasks of other users stage there, and cannot create it in a directory of this user.
            self.files.make_directories(join(self.path, "tmp", "sink"))
        shared = self.partitions.shared
        for part in (self.context.open_files, shared, self.chains, self._own):
            self.handles.add(part.give_back)
        if opening.handles is not None:
            spare = min(SPARE_HANDLES_MAX, opening.handles // 16)
            self.handles.fill_reserve(opening.files, identity.identity_path(self.path), spare)

    def _recover(self) -> None:
        """Finish every change that a crash interrupted, before the first append."""
        # The names of files that a killed process created may not be durable, and recovery relies on them.
        sync_names(self.files, self.path)
        self.topics.finish_deletions()
        self.partitions.open_all()
        self.topics.finish_shared_deletions()
        for key, error in self.publisher.finish_all().items():
            self.partitions.refuse(key, error)

    # --- shared with ReadOnlyDirectory ------------------------------------------------------------

    def free_bytes(self) -> int:
        """Return the bytes that can still be written to the disk of this directory."""
        return self.files.free_bytes(self.path)

    @property
    def mapped_bytes(self) -> int:
        """The bytes of sealed segments that are mapped into memory now."""
        return self.context.open_files.mapped_bytes

    def config_of(self, overrides: Mapping[str, str]) -> TopicConfig:
        """Return the settings of a topic that sets *overrides* itself.

        Raises:
            ConfigError: If a setting is unknown, its value is invalid, or it contradicts the format.
        """
        return self._topic_settings.config_of(overrides)

    def readable(self, topic: str, partition: int) -> ServedPartition:
        """Return a partition to read; see `DirectoryPartitions.readable`."""
        return self.partitions.readable(topic, partition)

    def look_at_once(self, look: Callable[[], Result]) -> tuple[Result, OpenIntents]:
        """Return the result of *look*, which reads ends of partitions; see `Publisher.look_at_once`.

        With no offsets to cut them at, which only readers beside a writer need.
        """
        return self.publisher.look_at_once(look), NO_INTENTS

    # --- closing ----------------------------------------------------------------------------------

    def describe(self, holder: str) -> None:
        """Write *holder* to the lock file, for processes that find it locked: for example our address."""
        self._lock.describe(holder)

    def change_node_id(self, node_id: int) -> None:
        """Let the directory belong to the broker with *node_id* from now on. Durable on return.

        Raises:
            StorageError: If the catalogue cannot be written.
        """
        with self._guard:
            self.lifecycle.check_open()
            self.lifecycle.before_change()
            assert self._catalogue.owner is not None
            self._catalogue.owner = msgspec.structs.replace(self._catalogue.owner, node_id=node_id)
            try:
                self._catalogue.add([])
            except OSError as error:
                raise as_storage_error(error, "changing the node id") from error

    def _record_owner(self) -> None:
        """Write the identity of the directory to the catalogue, unless it has it. Durable on return.

        A directory that an earlier version made gets it from its first broker, or with its next entry. On a
        full disk it stays unwritten until then: a server starts on a full disk to make room.
        """
        if self._catalogue.owner == self._catalogue.contents.directory:
            return
        self.lifecycle.before_change()
        try:
            self._catalogue.add([])
        except OSError as error:
            if error.errno not in DISK_FULL:
                raise

    @property
    def node_id(self) -> int | None:
        """The node id of the broker that the directory belongs to; None if no broker has served it."""
        assert self._catalogue.owner is not None
        return self._catalogue.owner.node_id

    def save_summary(self) -> bool:
        """Write `checkpoint.json` again if something changed; return whether it was written. Durable.

        Raises:
            LogClosed: If the directory is closed: closing has written it.
            OSError: If it cannot be written. Nothing depends on it.
        """
        self.lifecycle.check_open()
        return self.summary.save()

    def close(self) -> None:
        """Flush, sync and close everything, mark the directory clean and unlock it.

        Idempotent; does nothing in a forked child.

        Raises:
            LogFailed: If a partition failed, now or before. The others are closed all the same.
            StorageError: If the metadata could not be written.
        """
        with self._guard:
            if not self.lifecycle.begin_close():
                return
            self.partitions.wake_waiting()
        self._closing()
        # Closing writes a little, and a closed directory reserves no space.
        self._reserve.close()
        # Without the guard: an append that is under way may need it before it leaves its partition.
        self.chains.close()
        is_settled = not self.lifecycle.may_have_orphans or not self.partitions.has_open_transactions()
        failures = self.partitions.close()
        if self._catalogue.failed:
            failures.append(LogFailed(f"{self.path}: a sync of the catalogue failed"))
        try:
            self._catalogue.close()
            if not failures:
                self._save_last_summary()
                if is_settled and self._is_whole():
                    self.lifecycle.mark_clean()
        except StorageError as error:
            failures.append(error)
        except OSError as error:
            failures.append(as_storage_error(error, "closing"))
        finally:
            self.handles.close()
            try:
                self._finish()
            finally:
                self._lock.release()
        if failures:
            raise failures[0]

    def _save_last_summary(self) -> None:
        """Write `checkpoint.json` at the end. Nothing depends on it, so a full disk is no failure."""
        try:
            self.summary.save()
        except OSError as error:
            if error.errno not in DISK_FULL:
                raise

    def abandon(self) -> None:
        """Release the lock and nothing else, as the end of the process would.

        Nothing is flushed, synced or marked clean: the next open recovers. No other call may follow.
        """
        self._lock.release()

    def _is_whole(self) -> bool:
        """Return whether the next open has nothing to recover or to finish."""
        return self.failures.first is None and not self._own.refused and not self.lifecycle.has_leftovers


@contextlib.contextmanager
def _count_rebuild(telemetry: Telemetry, clock: Clock) -> Iterator[None]:
    """Count an index that is rebuilt from its log, and the time that takes."""
    telemetry.add(INDEX_REBUILDS)
    started = clock.monotonic_ns()
    yield
    telemetry.observe(INDEX_REBUILD_SECONDS, (clock.monotonic_ns() - started) / 1e9)
