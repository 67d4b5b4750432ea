"""The topics of a data directory: created, changed and deleted in its catalogue."""

from __future__ import annotations

import contextlib
from collections.abc import ItemsView, Iterator, KeysView, Mapping, Sequence, ValuesView
from threading import RLock

import msgspec

from cordwood import tenancy
from cordwood.disk import as_storage_error, join
from cordwood.errors import InvalidSetting, RecordRefused, StorageError
from cordwood.host import process
from cordwood.storage.chain import Chains
from cordwood.storage.directory.deletion import discard_snapshots, discard_topic, finish_deletions
from cordwood.storage.directory.own_partitions import find_entry
from cordwood.storage.directory.partitions import DirectoryPartitions
from cordwood.storage.directory.topic_settings import TopicSettings, check_change
from cordwood.storage.log import LogContext, PartitionLog
from cordwood.storage.meta import (
    PARTITIONS_MAX,
    SHARED_TOPIC,
    TRANSACTIONS_TOPIC,
    Catalogue,
    CatalogueEntry,
    DeletedEntry,
    Lifecycle,
    TopicEntry,
    check_topic_name,
    collision_form,
    is_shared,
)
from cordwood.storage.shared import SHARED_CONFIG


def collision(name: str, other: str) -> RecordRefused:
    """Return the refusal of a new topic *name* that collides with the topic *other*, in Kafka's words."""
    shown, existing = tenancy.split(name).name, tenancy.split(other).name
    return RecordRefused(f"Topic '{shown}' collides with existing topic: {existing}")


def _check_not_shared_log(name: str, done: str) -> None:
    if name == SHARED_TOPIC:
        raise RecordRefused(f"{name} is the log of all topics with cordwood.storage=shared; it is not {done}")


class DirectoryTopics(Mapping[str, TopicEntry]):
    """The topics by name. Every method may be called from any thread; reading raises once it is closed."""

    def __init__(
        self,
        context: LogContext,
        path: str,
        catalogue: Catalogue,
        settings: TopicSettings,
        partitions: DirectoryPartitions,
        chains: Chains,
        lifecycle: Lifecycle,
        guard: RLock,
    ) -> None:
        self._context = context
        self._path = path
        self._catalogue = catalogue
        self._settings = settings
        self._partitions = partitions
        self._chains = chains
        self._lifecycle = lifecycle
        self._guard = guard

    # --- reading ----------------------------------------------------------------------------------

    @property
    def _entries(self) -> dict[str, TopicEntry]:
        self._lifecycle.check_open()
        return self._catalogue.contents.topics

    def __getitem__(self, name: str) -> TopicEntry:
        """Return the topic of this name."""
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        """Iterate over a copy of the names: other threads add and delete topics meanwhile."""
        return iter(list(self._entries))

    def __len__(self) -> int:
        """Return the number of topics."""
        return len(self._entries)

    # The views of the dictionary itself: copying one is a single step that no other thread interrupts.

    def keys(self) -> KeysView[str]:
        """Return the names."""
        return self._entries.keys()

    def values(self) -> ValuesView[TopicEntry]:
        """Return the topics."""
        return self._entries.values()

    def items(self) -> ItemsView[str, TopicEntry]:
        """Return names and topics."""
        return self._entries.items()

    def by_id(self, topic_id: str) -> TopicEntry | None:
        """Return the topic with this id, if there is one."""
        self._lifecycle.check_open()
        return self._catalogue.contents.by_id.get(topic_id)

    def was_deleted(self, topic_id: str) -> bool:
        """Return whether there was a topic with this id, which no other topic may get."""
        self._lifecycle.check_open()
        return topic_id in self._catalogue.contents.deleted

    # --- creating ---------------------------------------------------------------------------------

    def create(self, name: str, topic_id: str, partitions: int, config: Mapping[str, str]) -> TopicEntry:
        """Add a topic to the catalogue; return the existing one if the name is taken.

        Durable on return; the topic's directories appear with its first record.

        Raises:
            RecordRefused: If the name is not allowed.
            ConfigError: If a setting is unknown or its value is invalid.
            DiskFull: Nothing was created.
        """
        (entry,) = self.create_all([self.new_entry(name, topic_id, partitions, config)])
        return entry

    def new_entry(self, name: str, topic_id: str, partitions: int, config: Mapping[str, str]) -> TopicEntry:
        """Return the catalogue entry of a new topic. Raises as `create`; creates nothing."""
        check_topic_name(name)
        _check_not_shared_log(name, "created")
        if not 1 <= partitions <= PARTITIONS_MAX:
            raise InvalidSetting("partitions", partitions, f"a whole number from 1 to {PARTITIONS_MAX}")
        settings = self._settings.config_of(self._with_storage(name, config))
        if settings.format == "shared":
            raise InvalidSetting("cordwood.format", "shared", "batch: say cordwood.storage=shared")
        return TopicEntry(name, topic_id, partitions, settings.overrides())

    def _with_storage(self, name: str, config: Mapping[str, str]) -> Mapping[str, str]:
        """Return the settings of a new topic, with the broker's default storage if that is not ``own``."""
        default = self._settings.broker.topic_defaults.storage
        # The broker's own topics are compacted, or read in ways that the shared log does not have.
        if default == "own" or "cordwood.storage" in config or name.startswith("__"):
            return config
        return {**config, "cordwood.storage": default}

    def create_all(self, wanted: Sequence[TopicEntry]) -> list[TopicEntry]:
        """Add topics to the catalogue with one sync; return all, existing ones as they are.

        Durable on return.

        Raises:
            RecordRefused: If a name collides with another one. Nothing was created.
            DiskFull: Nothing was created.
        """
        with self._guard:
            topics = self._entries
            self._check_no_collision([entry.name for entry in wanted if entry.name not in topics])
            new: dict[str, CatalogueEntry] = {}
            if SHARED_TOPIC not in topics and any(map(is_shared, wanted)):
                new[SHARED_TOPIC] = TopicEntry(SHARED_TOPIC, process.new_id(), 1, SHARED_CONFIG)
            for entry in wanted:
                if entry.name not in topics:
                    new.setdefault(entry.name, entry)
            if new:
                self._lifecycle.before_change()
                try:
                    for name in new:
                        self._clear_the_way(name)
                    self._catalogue.add(list(new.values()))
                except OSError as error:
                    raise as_storage_error(error, f"creating topic {wanted[0].name}") from error
            return [topics[entry.name] for entry in wanted]

    def check_no_collision(self, name: str) -> None:
        """Refuse a new topic whose name differs from an existing one in ``.`` and ``_`` only, as Kafka does.

        Names of different orgs never collide.

        Raises:
            RecordRefused: With both names.
        """
        self._check_no_collision([name])

    def _check_no_collision(self, names: Sequence[str]) -> None:
        forms: dict[str, str] = {}
        for name in names:
            earlier = forms.setdefault(collision_form(name), name)
            other = earlier if earlier != name else self._catalogue.contents.colliding(name)
            if other is not None:
                raise collision(name, other)

    def _clear_the_way(self, name: str) -> None:
        """Move away the files of a deleted topic of this name: a new topic must never mix with them."""
        deleted = self._catalogue.contents.deleted_names.get(name)
        if deleted is not None and is_shared(deleted):
            self._partitions.shared.end([deleted])
        # A directory of this name belongs to the last topic that had it: earlier ones were moved.
        if deleted is not None and self._context.files.exists(join(self._path, "topics", name)):
            discard_topic(self._context.files, self._path, deleted)

    # --- changing ---------------------------------------------------------------------------------

    def alter(
        self, name: str, *, partitions: int | None = None, config: Mapping[str, str] | None = None
    ) -> TopicEntry:
        """Add partitions to a topic, or replace all settings of its own with *config*. Durable on return.

        Raises:
            UnknownTopic: If there is no topic of that name.
            ConfigError: If a setting is unknown, its value is invalid, or it cannot be changed any more.
            DiskFull: Nothing was changed.
        """
        with self._guard:
            entry = find_entry(self._catalogue, name, 0)
            if partitions is not None and partitions != entry.partitions:
                _check_not_shared_log(name, "given more partitions")
            if partitions is not None and not entry.partitions <= partitions <= PARTITIONS_MAX:
                expected = f"no fewer than {entry.partitions} and no more than {PARTITIONS_MAX}"
                raise InvalidSetting("partitions", partitions, expected)
            settings = self._settings.config_of(entry.config if config is None else config)
            check_change(self._settings.config_of(entry.config), settings)
            changed = msgspec.structs.replace(
                entry, partitions=partitions or entry.partitions, config=settings.overrides()
            )
            if changed == entry:
                return entry
            self._lifecycle.before_change()
            try:
                self._catalogue.add([changed])
            except OSError as error:
                raise as_storage_error(error, f"changing topic {name}") from error
            self._partitions.reconfigure(changed)
        return changed

    # --- deleting ---------------------------------------------------------------------------------

    def delete(self, name: str) -> None:
        """Remove a topic and its records. Durable on return; the next open removes files left over.

        Raises:
            UnknownTopic: If there is no topic of that name.
            RecordRefused: If it is the shared log, which holds the records of other topics.
            DiskFull: Nothing was removed.
        """
        _check_not_shared_log(name, "deleted")
        context = self._context
        with self._guard:
            self._lifecycle.check_open()
            entry = find_entry(self._catalogue, name, 0)
            self._lifecycle.before_change()
            try:
                context.reserve.freeing(lambda: self._catalogue.add([DeletedEntry(entry.id)]))
            except OSError as error:
                raise as_storage_error(error, f"deleting topic {name}") from error
            if name == TRANSACTIONS_TOPIC:
                # What its states name is open in other partitions, and nobody would end it.
                self._lifecycle.has_leftovers = True
            for log in self._partitions.drop(entry):
                self._end(log)
            try:
                if is_shared(entry):
                    discard_snapshots(context.files, self._path, entry)
                    self._partitions.shared.end([entry])
                else:
                    context.reserve.freeing(lambda: discard_topic(context.files, self._path, entry))
            except (OSError, StorageError):
                self._lifecycle.has_leftovers = True

    def _end(self, log: PartitionLog) -> None:
        """Close the log of a deleted topic, and wait until no thread uses its files by their paths."""
        # Closed first: a thread that follows or maintains the log sees that at its next step and stops.
        # The records are deleted, so it does not matter whether they can be synced.
        with contextlib.suppress(StorageError):
            log.close()
        self._context.changed.discard(log)
        self._chains.forget(log)
        with log.maintaining:
            pass

    def finish_deletions(self) -> None:
        """Remove directories of deleted topics that a crash left. Call it before partitions are opened."""
        contents = self._catalogue.contents
        finish_deletions(self._context.files, self._path, contents.topics, contents.deleted)

    def finish_shared_deletions(self) -> None:
        """Append to the shared log that deleted topics have ended, where a crash came before that."""
        contents = self._catalogue.contents
        gone = [
            each for each in contents.deleted.values() if is_shared(each) and each.name not in contents.topics
        ]
        if gone:
            try:
                self._partitions.shared.end(gone)
            except StorageError:
                # While the shared log cannot be opened, a new topic cannot get the records of an old one.
                self._lifecycle.has_leftovers = True
