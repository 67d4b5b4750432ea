"""The topics of a broker: found by name or id, created, deleted."""

from __future__ import annotations

import uuid
from collections.abc import Mapping

from cordwood.broker.offsets_topic import NAME as OFFSETS_TOPIC
from cordwood.broker.sink import STAGING_PREFIX
from cordwood.config import BrokerConfig, TopicConfig
from cordwood.errors import InvalidSetting, RecordRefused, TopicExists, UnknownTopic
from cordwood.storage.catalogue import TopicEntry
from cordwood.storage.data_directory import DataDirectory, check_change, check_topic_name

#: One partition: all groups share its syncs, and a group's records stay in order.
OFFSETS_PARTITIONS = 1
#: More partitions than this in one topic are refused: each of them costs files and memory.
PARTITIONS_MAX = 10_000


#: Topics that clients may read but not write.
INTERNAL = frozenset({OFFSETS_TOPIC})


def is_internal(name: str) -> bool:
    """Return whether a topic is there for the broker's own sake, so that clients leave it out of patterns."""
    return name in INTERNAL or name.startswith(STAGING_PREFIX)


class Topics:
    """What topics there are. Looking up never blocks; creating and deleting sync. From any thread."""

    def __init__(self, directory: DataDirectory, config: BrokerConfig) -> None:
        self._directory = directory
        self._config = config
        self._ids: dict[str, bytes] = {}

    def names(self) -> list[str]:
        """Return the names of all topics, in the order they were created."""
        return list(self._directory.topics)

    def find(self, name: str) -> TopicEntry | None:
        """Return the topic of that name, if there is one."""
        return self._directory.topics.get(name)

    def find_by_id(self, topic_id: bytes) -> TopicEntry | None:
        """Return the topic with this id of 16 bytes, if there is one."""
        return self._directory.topic_by_id(str(uuid.UUID(bytes=topic_id)))

    def id_of(self, entry: TopicEntry) -> bytes:
        """Return the 16 bytes of a topic's id."""
        found = self._ids.get(entry.id)
        if found is None:
            found = self._ids[entry.id] = uuid.UUID(entry.id).bytes
        return found

    def config_of(self, entry: TopicEntry) -> TopicConfig:
        """Return the settings of a topic."""
        return self._directory.config_of(entry.config)

    def plan(self, name: str, partitions: int | None, config: Mapping[str, str]) -> TopicConfig:
        """Check that a topic could be created, and return the settings it would have.

        Raises:
            RecordRefused: If the name is not allowed.
            TopicExists: If there is one.
            ConfigError: If a setting or the number of partitions is not allowed.
        """
        check_topic_name(name)
        if self.find(name) is not None:
            raise TopicExists(name)
        if name in INTERNAL:
            raise RecordRefused(f"{name} is internal")
        if partitions is not None and not 1 <= partitions <= PARTITIONS_MAX:
            raise InvalidSetting("partitions", partitions, f"a whole number from 1 to {PARTITIONS_MAX}")
        return self._directory.config_of(config)

    def create(
        self, name: str, partitions: int | None = None, config: Mapping[str, str] | None = None
    ) -> TopicEntry:
        """Create a topic, with ``num.partitions`` unless told otherwise. Durable on return.

        Raises as `plan` does, and:

        Raises:
            StorageError: If it could not be stored.
        """
        self.plan(name, partitions, config or {})
        topic_id = str(uuid.uuid4())
        entry = self._directory.create_topic(
            name, topic_id, partitions or self._config.num_partitions, config or {}
        )
        if entry.id != topic_id:
            raise TopicExists(name)
        return entry

    def ensure(self, name: str) -> TopicEntry:
        """Return the topic, created if it is missing and that is allowed. Durable on return.

        Raises:
            UnknownTopic: If it is missing and topics are not created by being asked for.
            RecordRefused: If the name is not allowed.
        """
        found = self.find(name)
        if found is not None:
            return found
        check_topic_name(name)
        if name in INTERNAL:
            return self.ensure_internal()
        if not self._config.auto_create_topics:
            raise UnknownTopic(f"there is no topic {name}")
        topic_id = str(uuid.uuid4())
        return self._directory.create_topic(name, topic_id, self._config.num_partitions, {})

    def ensure_internal(self) -> TopicEntry:
        """Return the topic of consumer groups, created if it is missing. Durable on return."""
        found = self.find(OFFSETS_TOPIC)
        if found is not None:
            return found
        config = {"cleanup.policy": "compact"}
        return self._directory.create_topic(OFFSETS_TOPIC, str(uuid.uuid4()), OFFSETS_PARTITIONS, config)

    def add_partitions(self, name: str, count: int, *, validate_only: bool = False) -> None:
        """Give a topic *count* partitions in all. Durable on return.

        Raises:
            UnknownTopic: If there is none.
            InvalidSetting: If that is not more than it has, or too many.
        """
        entry = self.find(name)
        if entry is None:
            raise UnknownTopic(f"there is no topic {name}")
        if not entry.partitions < count <= PARTITIONS_MAX:
            expected = f"more than the {entry.partitions} there are, up to {PARTITIONS_MAX}"
            raise InvalidSetting("partitions", count, expected)
        if not validate_only:
            self._directory.alter_topic(name, partitions=count)

    def alter(self, name: str, config: Mapping[str, str], *, validate_only: bool = False) -> None:
        """Replace the settings that a topic has of its own. Durable on return.

        Raises:
            UnknownTopic: If there is none.
            ConfigError: If a setting is unknown, does not fit, or cannot be changed any more.
        """
        entry = self.find(name)
        if entry is None:
            raise UnknownTopic(f"there is no topic {name}")
        if validate_only:
            check_change(self.config_of(entry), self._directory.config_of(config))
        else:
            self._directory.alter_topic(name, config=config)

    def delete(self, name: str) -> None:
        """Delete a topic and everything in it. Durable on return.

        Raises:
            UnknownTopic: If there is none.
        """
        entry = self.find(name)
        self._directory.delete_topic(name)
        if entry is not None:
            self._ids.pop(entry.id, None)
