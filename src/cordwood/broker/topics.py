"""The topics of a broker, of all tenants: lookup by name or id, creation, deletion.

Names are those of the catalogue, such as ``orders@7``; `tenants` has the clients' view.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from threading import RLock
from typing import NamedTuple

from cordwood import tenancy
from cordwood.broker.audit import AUDIT_PREFIX
from cordwood.broker.groups import NAME as OFFSETS_TOPIC
from cordwood.broker.leader_epochs import LeaderEpochs
from cordwood.broker.staging import STAGING_PREFIX
from cordwood.broker.transactions import NAME as TRANSACTIONS_TOPIC
from cordwood.config import LONG_MAX, BrokerConfig, TopicConfig
from cordwood.errors import CordwoodError, InvalidSetting, RecordRefused, TopicExists, UnknownTopic
from cordwood.storage.directory import DataDirectory, check_change, collision
from cordwood.storage.meta import SHARED_TOPIC, TopicEntry, check_topic_name, collision_form

#: One partition: all groups share its syncs, and a group's records stay in order.
OFFSETS_PARTITIONS = 1
#: One partition, for the same reasons.
TRANSACTIONS_PARTITIONS = 1
#: One partition: events have one order.
AUDIT_PARTITIONS = 1
#: What the broker itself writes is never refused for its time, whatever the settings for all topics say and
#: whatever the clock does.
_ANY_TIME = {
    "cordwood.timestamp.order": "any",
    "message.timestamp.after.max.ms": str(LONG_MAX),
    "message.timestamp.before.max.ms": str(LONG_MAX),
    "message.timestamp.type": "CreateTime",
}
#: Nothing is removed by itself, each record is evidence, and it is durable before it counts. Whoever may
#: alter the settings of the broker must not keep events off the record by that.
AUDIT_SETTINGS = {
    **_ANY_TIME,
    "cleanup.policy": "delete",
    "compression.type": "producer",
    "cordwood.chain": "true",
    "cordwood.sync": "each",
    # An append of the audit log is never too large, whatever the broker accepts from clients.
    "max.message.bytes": str(16 << 20),
    "retention.bytes": "-1",
    "retention.ms": "-1",
}
#: Every commit is a record, and only the last record of a key is valid; the active segment is not compacted.
INTERNAL_SEGMENT_BYTES = 16 << 20
#: The maximum number of partitions of a topic: each takes files and memory.
PARTITIONS_MAX = 10_000


#: Topics that clients may read but not write.
INTERNAL = frozenset({OFFSETS_TOPIC, TRANSACTIONS_TOPIC})
#: Names that no client's topic can have, in any org: the broker's own topics, visible or hidden.
RESERVED = INTERNAL | {SHARED_TOPIC}


def is_internal(name: str) -> bool:
    """Return whether a topic is internal to the broker, so that clients exclude it from patterns."""
    return is_reserved(name) or name.startswith(STAGING_PREFIX)


def is_read_only(name: str) -> bool:
    """Return whether clients may read the topic *name* and only the broker writes it."""
    return name in INTERNAL or name.startswith(AUDIT_PREFIX)


def is_reserved(name: str) -> bool:
    """Return whether no client's topic can be called *name*, in any org."""
    return name in RESERVED or name.startswith(AUDIT_PREFIX)


class BrokerTopic(NamedTuple):
    """A topic: its name for clients, its internal name, and its 16-byte id."""

    name: str
    key: str
    id: bytes
    entry: TopicEntry

    @property
    def partitions(self) -> int:
        """The number of partitions."""
        return self.entry.partitions


class NewTopic(NamedTuple):
    """A topic to create, with ``num.partitions`` partitions if *partitions* is None."""

    name: str
    partitions: int | None
    config: Mapping[str, str]


class Shelf:
    """The topics of one org by their names for clients, in the order of their creation.

    One thread writes; other threads may look up, and list in one step.
    """

    def __init__(self) -> None:
        self.topics: dict[str, BrokerTopic] = {}
        self.by_id: dict[bytes, BrokerTopic] = {}
        #: Increases with every change, so that data derived from the topics can be invalidated.
        self.changes = 0


class Topics:
    """All topics. Lookups never block; creation and deletion sync. May be called from any thread.

    All topics of a broker are created and deleted here, so that each org has its own list: listing the topics
    of one org does not scan those of all others.
    """

    def __init__(self, directory: DataDirectory, config: BrokerConfig) -> None:
        self.epochs = LeaderEpochs(directory.partitions)
        self._directory = directory
        self._config = config
        self._changing = RLock()
        self._shelves: dict[int, Shelf] = {}
        for entry in list(directory.topics.values()):
            self._shelve(entry)

    def shelf(self, org: int) -> Shelf:
        """Return the topics of an org; always the same object."""
        return self._shelves.setdefault(org, Shelf())

    def has_tenants(self) -> bool:
        """Return whether there are topics of any org except 0."""
        return any(org and shelf.topics for org, shelf in list(self._shelves.items()))

    def _shelve(self, entry: TopicEntry) -> TopicEntry:
        name, org = tenancy.split(entry.name)
        shelf = self.shelf(org)
        topic = BrokerTopic(name, entry.name, uuid.UUID(entry.id).bytes, entry)
        shelf.topics[name] = shelf.by_id[topic.id] = topic
        shelf.changes += 1
        return entry

    def names(self) -> list[str]:
        """Return the names of all topics in the order of their creation."""
        return list(self._directory.topics)

    def find(self, name: str) -> TopicEntry | None:
        """Return the topic called *name*, or None."""
        return self._directory.topics.get(name)

    def find_by_id(self, topic_id: bytes) -> TopicEntry | None:
        """Return the topic with this 16-byte id, or None."""
        return self._directory.topics.by_id(str(uuid.UUID(bytes=topic_id)))

    def id_of(self, entry: TopicEntry) -> bytes:
        """Return the 16 bytes of a topic's id."""
        return uuid.UUID(entry.id).bytes

    def config_of(self, entry: TopicEntry) -> TopicConfig:
        """Return the settings of a topic."""
        return self._directory.config_of(entry.config)

    def plan(self, name: str, partitions: int | None, config: Mapping[str, str]) -> TopicConfig:
        """Check that a topic can be created, and return its settings. Creates nothing.

        Raises:
            RecordRefused: If the name is not allowed.
            TopicExists: If the topic exists.
            ConfigError: If a setting or the number of partitions is not allowed.
        """
        check_topic_name(name)
        shown = tenancy.split(name).name
        if self.find(name) is not None:
            raise TopicExists(shown)
        if is_reserved(shown):
            raise RecordRefused(f"{shown} is internal")
        self._directory.topics.check_no_collision(name)
        if partitions is not None and not 1 <= partitions <= PARTITIONS_MAX:
            raise InvalidSetting("partitions", partitions, f"a whole number from 1 to {PARTITIONS_MAX}")
        new = self._directory.topics.new_entry(name, "", partitions or self._config.num_partitions, config)
        return self._directory.config_of(new.config)

    def create(
        self, name: str, partitions: int | None = None, config: Mapping[str, str] | None = None
    ) -> TopicEntry:
        """Create a topic, with ``num.partitions`` partitions by default. Durable on return.

        Raises like `plan`, and:

        Raises:
            StorageError: If it could not be stored.
        """
        (made,) = self.create_all([NewTopic(name, partitions, config or {})])
        if isinstance(made, CordwoodError):
            raise made
        return made

    def create_all(self, wanted: Sequence[NewTopic]) -> list[TopicEntry | CordwoodError]:
        """Create topics with one sync for all; return each topic or its error. Durable on return."""
        with self._changing:
            made = self._new_entries(wanted)
            new = [entry for entry in made if isinstance(entry, TopicEntry)]
            try:
                there = {entry.name: self._shelve(entry) for entry in self._directory.topics.create_all(new)}
            except CordwoodError as error:
                return [error if isinstance(entry, TopicEntry) else entry for entry in made]
        return [
            TopicExists(tenancy.split(entry.name).name)
            if isinstance(entry, TopicEntry) and there[entry.name].id != entry.id
            else entry
            for entry in made
        ]

    def _new_entries(self, wanted: Sequence[NewTopic]) -> list[TopicEntry | CordwoodError]:
        """Return the catalogue entry of each of *wanted*, or its error."""
        made: list[TopicEntry | CordwoodError] = []
        forms: dict[str, str] = {}
        for name, partitions, config in wanted:
            try:
                self.plan(name, partitions, config)
                earlier = forms.setdefault(collision_form(name), name)
                if earlier != name:
                    raise collision(name, earlier)
                count = partitions or self._config.num_partitions
                made.append(self._directory.topics.new_entry(name, str(uuid.uuid4()), count, config))
            except CordwoodError as error:
                made.append(error)
        return made

    def _create(self, name: str, topic_id: str, partitions: int, config: Mapping[str, str]) -> TopicEntry:
        with self._changing:
            return self._shelve(self._directory.topics.create(name, topic_id, partitions, config))

    def ensure(self, name: str) -> TopicEntry:
        """Return the topic; create it if it is missing and auto-creation is enabled. Durable on return.

        Raises:
            UnknownTopic: If it is missing and auto-creation is disabled.
            RecordRefused: If the name is not allowed.
        """
        found = self.find(name)
        if found is not None:
            return found
        check_topic_name(name)
        if name in INTERNAL:
            return self.ensure_internal(name)
        shown = tenancy.split(name).name
        if is_reserved(shown):
            raise RecordRefused(f"{shown} is internal")
        if not self._config.auto_create_topics:
            raise UnknownTopic.named(shown)
        topic_id = str(uuid.uuid4())
        return self._create(name, topic_id, self._config.num_partitions, {})

    def ensure_internal(self, name: str = OFFSETS_TOPIC) -> TopicEntry:
        """Return an internal topic, created if it is missing. Durable on return."""
        found = self.find(name)
        if found is not None:
            return found
        if name.startswith(AUDIT_PREFIX):
            return self._create(name, str(uuid.uuid4()), AUDIT_PARTITIONS, AUDIT_SETTINGS)
        # As in Kafka, the broker's own records keep the compression in which it writes them.
        config = {**_ANY_TIME, "cleanup.policy": "compact", "compression.type": "producer"}
        if self._config.topic_defaults.segment_bytes > INTERNAL_SEGMENT_BYTES:
            config["segment.bytes"] = str(INTERNAL_SEGMENT_BYTES)
        partitions = OFFSETS_PARTITIONS
        if name == TRANSACTIONS_TOPIC:
            # A marker must not outlive the decision that it follows, also where records may be lost.
            config["cordwood.sync"] = "each"
            partitions = TRANSACTIONS_PARTITIONS
        return self._create(name, str(uuid.uuid4()), partitions, config)

    def add_partitions(self, name: str, count: int, *, validate_only: bool = False) -> None:
        """Increase the number of partitions of a topic to *count*. Durable on return.

        Raises:
            UnknownTopic: If the topic does not exist.
            InvalidSetting: If *count* is not an increase or is too large.
        """
        entry = self.find(name)
        if entry is None:
            raise UnknownTopic.named(tenancy.split(name).name)
        if not entry.partitions < count <= PARTITIONS_MAX:
            expected = f"more than the current {entry.partitions}, up to {PARTITIONS_MAX}"
            raise InvalidSetting("partitions", count, expected)
        if not validate_only:
            with self._changing:
                self._shelve(self._directory.topics.alter(name, partitions=count))

    def alter(self, name: str, config: Mapping[str, str], *, validate_only: bool = False) -> None:
        """Replace the topic's own settings. Durable on return.

        Raises:
            UnknownTopic: If the topic does not exist.
            ConfigError: If a setting is unknown, its value is invalid, or it is fixed at creation.
        """
        entry = self.find(name)
        if entry is None:
            raise UnknownTopic.named(tenancy.split(name).name)
        if validate_only:
            check_change(self.config_of(entry), self._directory.config_of(config))
        else:
            with self._changing:
                self._shelve(self._directory.topics.alter(name, config=config))

    def delete(self, name: str) -> None:
        """Delete a topic and all its records. Durable on return.

        Raises:
            UnknownTopic: If the topic does not exist.
        """
        with self._changing:
            self._directory.topics.delete(name)
            shown, org = tenancy.split(name)
            shelf = self.shelf(org)
            topic = shelf.topics.pop(shown, None)
            if topic is not None:
                shelf.by_id.pop(topic.id, None)
                self.epochs.forget(topic.entry)
            shelf.changes += 1

    def note_truncation(self, name: str) -> None:
        """Note that a partition of a topic was truncated, which raised its leader epoch."""
        with self._changing:
            shown, org = tenancy.split(name)
            shelf = self.shelf(org)
            topic = shelf.topics.get(shown)
            if topic is not None:
                self.epochs.forget(topic.entry)
            # Answers that were kept for clients have the old epoch.
            shelf.changes += 1
