"""What the clients of one org may do with topics: under their own names, and with none of another's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cordwood import tenancy
from cordwood.broker.leader_epochs import NO_EPOCH
from cordwood.broker.node import Node
from cordwood.broker.offsets import Position
from cordwood.broker.topics import INTERNAL, RESERVED, BrokerTopic, NewTopic
from cordwood.config import BrokerConfig, TopicConfig
from cordwood.errors import CordwoodError, InvalidSetting, LogClosed, RecordRefused, UnknownTopic
from cordwood.storage.log import KnownProducer
from cordwood.storage.meta import TopicEntry, check_topic_name


class Tenant:
    """One org. Looking up never blocks, but for `leader_epochs`; all else may. From any thread.

    Topics go in by the names or ids that clients give; those of another org are as if they were not there.
    What comes out has both names: `BrokerTopic.name` for clients, `BrokerTopic.key` for the broker.
    """

    def __init__(self, node: Node, config: BrokerConfig, org: int) -> None:
        self.org = org
        self._node = node
        self._topics = node.topics
        self._shelf = node.topics.shelf(org)
        self._shared_broker = any(config.listener_orgs.values())
        self._sorted: tuple[int, list[str]] = (-1, [])

    # --- looking up -------------------------------------------------------------------------------

    @property
    def changes(self) -> int:
        """A number that is another one after every change to the topics."""
        # What hides the internal topic is part of what is seen.
        return self._shelf.changes << 1 | self._hides_internal()

    def __len__(self) -> int:
        """Return about how many topics there are: those that are hidden count."""
        return len(self._shelf.topics)

    def names(self) -> list[str]:
        """Return the names of all topics, in the order they were created."""
        return [name for name in list(self._shelf.topics) if not self._is_hidden(name)]

    def sorted_names(self) -> list[str]:
        """Return the names of all topics in their own order. Not to be changed."""
        changes = self.changes
        if self._sorted[0] != changes:
            self._sorted = (changes, sorted(self.names()))
        return self._sorted[1]

    def find(self, name: str) -> BrokerTopic | None:
        """Return the topic of that name, if there is one."""
        found = self._shelf.topics.get(name)
        return None if found is None or self._is_hidden(name) else found

    def find_by_id(self, topic_id: bytes) -> BrokerTopic | None:
        """Return the topic with this id of 16 bytes, if there is one."""
        found = self._shelf.by_id.get(bytes(topic_id))
        return None if found is None or self._is_hidden(found.name) else found

    def _is_hidden(self, name: str) -> bool:
        return name in RESERVED and (name not in INTERNAL or self._hides_internal())

    def _hides_internal(self) -> bool:
        """Return whether the offsets of groups are not to be read here: those of many orgs are in there."""
        return self.is_one_of_many

    @property
    def is_one_of_many(self) -> bool:
        """Whether the broker has, or may have, anything of another org."""
        return bool(self.org or self._shared_broker or self._topics.has_tenants())

    def check_name(self, name: str) -> None:
        """Refuse a name that no topic of a client can have.

        Raises:
            RecordRefused: If it is not allowed, too long with the org behind it, or the broker's own.
        """
        if tenancy.MARK in name:
            raise RecordRefused(f"topic name {name!r} must be 1 to 249 of a-z, A-Z, 0-9, '.', '_' and '-'")
        check_topic_name(name)
        longest = 249 - len(tenancy.qualify("", self.org))
        if len(name) > longest:
            raise RecordRefused(f"topic name {name!r} must have no more than {longest} characters here")

    def _check_visible(self, name: str) -> None:
        """Refuse a name that a client cannot give, or of a topic whose being there is nobody's to know."""
        self.check_name(name)
        if self._is_hidden(name):
            raise RecordRefused(f"{name} is internal")

    def _found(self, name: str) -> BrokerTopic:
        found = self.find(name)
        if found is None:
            raise UnknownTopic.named(name)
        return found

    def _own(self, name: str) -> BrokerTopic:
        """Return a topic that clients may change."""
        found = self._found(name)
        if name in RESERVED:
            raise RecordRefused(f"{name} is internal")
        return found

    # --- changing ---------------------------------------------------------------------------------

    def plan(self, name: str, partitions: int | None, config: Mapping[str, str]) -> TopicConfig:
        """Check that a topic could be created, and return the settings it would have.

        Raises:
            RecordRefused: If the name is not allowed.
            TopicExists: If there is one.
            ConfigError: If a setting or the number of partitions is not allowed.
        """
        self._check_visible(name)
        return self._topics.plan(tenancy.qualify(name, self.org), partitions, config)

    def create_all(self, wanted: Sequence[NewTopic]) -> list[BrokerTopic | CordwoodError]:
        """Create topics with one sync for all; return each, or why it was not created. Durable on return.

        What is returned for one is what `plan` would raise, or a StorageError.
        """
        refused: dict[str, CordwoodError] = {}
        for name, _, _ in wanted:
            try:
                self._check_visible(name)
            except RecordRefused as error:
                refused[name] = error
        allowed = [new for new in wanted if new.name not in refused]
        made = self._topics.create_all(
            [new._replace(name=tenancy.qualify(new.name, self.org)) for new in allowed]
        )
        results = dict(zip([new.name for new in allowed], made, strict=True))
        return [refused.get(new.name) or self._made(new.name, results[new.name]) for new in wanted]

    def _made(self, name: str, made: TopicEntry | CordwoodError) -> BrokerTopic | CordwoodError:
        if isinstance(made, CordwoodError):
            return made
        return self.find(name) or UnknownTopic(f"topic {name} was deleted meanwhile")

    def create(self, name: str, partitions: int | None, config: Mapping[str, str]) -> BrokerTopic:
        """Create a topic; see `create_all`. Raises what that returns."""
        (made,) = self.create_all([NewTopic(name, partitions, config)])
        if isinstance(made, CordwoodError):
            raise made
        return made

    def ensure(self, name: str) -> BrokerTopic:
        """Return the topic, created if it is missing and that is allowed. Durable on return.

        Raises:
            UnknownTopic: If it is missing and topics are not created by being asked for.
            RecordRefused: If the name is not allowed.
        """
        self._check_visible(name)
        self._topics.ensure(tenancy.qualify(name, self.org))
        return self._found(name)

    def add_partitions(self, name: str, count: int, *, validate_only: bool = False) -> None:
        """Give a topic *count* partitions in all. Durable on return.

        Raises:
            UnknownTopic: If there is none.
            InvalidSetting: If that is not more than it has, too many, or the topic is internal.
        """
        key = self._found(name).key
        if name in RESERVED:
            raise InvalidSetting("partitions", count, f"none: {name} is internal")
        self._topics.add_partitions(key, count, validate_only=validate_only)

    def alter(self, name: str, config: Mapping[str, str], *, validate_only: bool = False) -> None:
        """Replace the settings that a topic has of its own. Durable on return.

        Raises:
            UnknownTopic: If there is none.
            ConfigError: If a setting is unknown, does not fit, or cannot be changed any more.
        """
        self._topics.alter(self._found(name).key, config, validate_only=validate_only)

    def delete(self, name: str) -> None:
        """Delete a topic and everything in it. Durable on return.

        Raises:
            UnknownTopic: If there is none.
            RecordRefused: If it is internal.
        """
        self._topics.delete(self._own(name).key)

    def delete_records(self, name: str, partition: int, offset: int) -> int:
        """Delete the records below *offset*, or all if it is -1; return the log start. Durable on return.

        Raises:
            UnknownTopic: If there is no such topic or partition.
            RecordRefused: If it is internal.
            OffsetOutOfRange: If *offset* is above the high watermark, or below 0 and not -1.
        """
        return self._node.delete_records(self._own(name).key, partition, offset)

    # --- reading ----------------------------------------------------------------------------------

    def find_offset(
        self, name: str, partition: int, timestamp: int, leader_epoch: int = NO_EPOCH
    ) -> Position:
        """Return the place that *timestamp* stands for; see `Node.find_offset`."""
        return self._node.find_offset(self._found(name).key, partition, timestamp, leader_epoch)

    def epoch_end(
        self, name: str, partition: int, epoch: int, leader_epoch: int = NO_EPOCH
    ) -> tuple[int, int]:
        """Return where a leader epoch ends; see `Node.epoch_end`."""
        return self._node.epoch_end(self._found(name).key, partition, epoch, leader_epoch)

    def producers(self, name: str, partition: int) -> list[KnownProducer]:
        """Return the idempotent producers that a partition knows; see `Node.producers`."""
        return self._node.producers(self._found(name).key, partition)

    def sizes(self, topic: BrokerTopic) -> dict[int, int]:
        """Return the bytes of each partition of a topic; one that cannot be read is left out.

        Raises:
            UnknownTopic, LogClosed: If it is deleted meanwhile.
        """
        return {partition: size for (_, partition), size in self._node.sizes([topic.entry]).items()}

    def stored_bytes(self) -> int:
        """Return the bytes of all partitions. Opens all of them; what goes meanwhile is left out."""
        total = 0
        for topic in list(self._shelf.topics.values()):
            if topic.name in RESERVED:
                continue
            try:
                total += sum(self.sizes(topic).values())
            except (UnknownTopic, LogClosed):
                continue
        return total
