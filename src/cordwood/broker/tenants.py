"""Topics as the clients of one org see them: under their own names, without those of other orgs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from cordwood import tenancy
from cordwood.broker.audit import AUDIT_PREFIX
from cordwood.broker.leader_epochs import NO_EPOCH
from cordwood.broker.node import Node
from cordwood.broker.offsets import Position
from cordwood.broker.operations import Operation
from cordwood.broker.topics import INTERNAL, RESERVED, BrokerTopic, NewTopic, is_reserved
from cordwood.config import BrokerConfig, TopicConfig
from cordwood.errors import CordwoodError, InvalidSetting, LogClosed, RecordRefused, SignedFor, UnknownTopic
from cordwood.storage.directory import not_cut_alone
from cordwood.storage.log import KnownProducer
from cordwood.storage.meta import TopicEntry, check_topic_name, is_shared

Result = TypeVar("Result")


class Tenant:
    """The topics of one org. May be called from any thread.

    Lookups except `leader_epochs` never block; all other methods may. Arguments are the names or ids that
    clients send; topics of other orgs do not exist here. Results have both names: `BrokerTopic.name` for
    clients, `BrokerTopic.key` for the broker.
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
        """A number that changes with every change to the topics."""
        # Whether the internal topics are hidden also changes the visible topics.
        return self._shelf.changes << 1 | self._hides_internal()

    def __len__(self) -> int:
        """Return the approximate number of topics, including hidden ones."""
        return len(self._shelf.topics)

    def names(self) -> list[str]:
        """Return the names of all topics in the order of their creation."""
        return [name for name in list(self._shelf.topics) if not self._is_hidden(name)]

    def sorted_names(self) -> list[str]:
        """Return the sorted names of all topics. Callers must not change the list."""
        changes = self.changes
        if self._sorted[0] != changes:
            self._sorted = (changes, sorted(self.names()))
        return self._sorted[1]

    def find(self, name: str) -> BrokerTopic | None:
        """Return the topic called *name*, or None."""
        found = self._shelf.topics.get(name)
        return None if found is None or self._is_hidden(name) else found

    def find_by_id(self, topic_id: bytes) -> BrokerTopic | None:
        """Return the topic with this 16-byte id, or None."""
        found = self._shelf.by_id.get(bytes(topic_id))
        return None if found is None or self._is_hidden(found.name) else found

    def _is_hidden(self, name: str) -> bool:
        return name in RESERVED and (name not in INTERNAL or self._hides_internal())

    def _hides_internal(self) -> bool:
        """Return whether the internal topics are hidden from this org: they have records of all orgs."""
        return self.is_one_of_many

    @property
    def is_one_of_many(self) -> bool:
        """Whether the broker has, or may get, topics of another org."""
        return bool(self.org or self._shared_broker or self._topics.has_tenants())

    def check_name(self, name: str) -> None:
        """Check that a client may create a topic called *name*.

        Raises:
            RecordRefused: If the name is not allowed, too long together with the org, or internal.
        """
        if tenancy.MARK in name:
            raise RecordRefused(f"topic name {name!r} must be 1 to 249 of a-z, A-Z, 0-9, '.', '_' and '-'")
        check_topic_name(name)
        longest = 249 - len(tenancy.qualify("", self.org))
        if len(name) > longest:
            raise RecordRefused(f"topic name {name!r} must have at most {longest} characters in this org")

    def _check_visible(self, name: str) -> None:
        """Raise RecordRefused if *name* is not allowed or belongs to a topic that is hidden from clients."""
        self.check_name(name)
        if self._is_hidden(name):
            raise RecordRefused(f"{name} is internal")

    def _found(self, name: str) -> BrokerTopic:
        found = self.find(name)
        if found is None:
            raise UnknownTopic.named(name)
        return found

    def _own(self, name: str) -> BrokerTopic:
        """Return the topic called *name*. Raises RecordRefused if clients may not change it."""
        found = self._found(name)
        if is_reserved(name):
            raise RecordRefused(f"{name} is internal")
        return found

    # --- changing ---------------------------------------------------------------------------------

    def plan(self, name: str, partitions: int | None, config: Mapping[str, str]) -> TopicConfig:
        """Check that a topic can be created, and return its settings. Creates nothing.

        Raises:
            RecordRefused: If the name is not allowed.
            TopicExists: If the topic exists.
            ConfigError: If a setting or the number of partitions is not allowed.
        """
        self._check_visible(name)
        return self._topics.plan(tenancy.qualify(name, self.org), partitions, config)

    def create_all(self, wanted: Sequence[NewTopic]) -> list[BrokerTopic | CordwoodError]:
        """Create topics with one sync for all; return each topic or its error. Durable on return.

        The error is one that `plan` raises, or a StorageError.
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
        return self.find(name) or UnknownTopic(f"topic {name} was deleted after its creation")

    def create(self, name: str, partitions: int | None, config: Mapping[str, str]) -> BrokerTopic:
        """Create a topic; see `create_all`. Raises the error instead of returning it."""
        (made,) = self.create_all([NewTopic(name, partitions, config)])
        if isinstance(made, CordwoodError):
            raise made
        return made

    def ensure(self, name: str) -> BrokerTopic:
        """Return the topic; create it if it is missing and auto-creation is enabled. Durable on return.

        Raises:
            UnknownTopic: If it is missing and auto-creation is disabled.
            RecordRefused: If the name is not allowed.
        """
        self._check_visible(name)
        self._topics.ensure(tenancy.qualify(name, self.org))
        return self._found(name)

    def add_partitions(self, name: str, count: int, *, validate_only: bool = False) -> None:
        """Increase the number of partitions of a topic to *count*. Durable on return.

        Raises:
            UnknownTopic: If the topic does not exist.
            InvalidSetting: If *count* is not an increase or is too large, or the topic is internal.
        """
        key = self._found(name).key
        if is_reserved(name):
            raise InvalidSetting("partitions", count, f"none: {name} is internal")
        self._topics.add_partitions(key, count, validate_only=validate_only)

    def alter(self, name: str, config: Mapping[str, str], *, validate_only: bool = False) -> None:
        """Replace the topic's own settings. Durable on return.

        Raises:
            UnknownTopic: If the topic does not exist.
            RecordRefused: If it is an audit topic: who may change its retention may erase it.
            ConfigError: If a setting is unknown, its value is invalid, or it is fixed at creation.
        """
        if name.startswith(AUDIT_PREFIX):
            raise RecordRefused(f"{self._found(name).name} is changed on its data directory, by no client")
        self._topics.alter(self._found(name).key, config, validate_only=validate_only)

    def group_settings(self, group: str) -> Mapping[str, str]:
        """Return the settings that a group was given. Never blocks."""
        return self._node.directory.settings.of_group(self.org, group)

    def alter_group(self, group: str, config: Mapping[str, str], *, validate_only: bool = False) -> None:
        """Replace the settings of a group. Durable on return.

        Raises:
            ConfigError: If a setting is unknown or its value is not allowed.
            QuotaExceeded: If too many groups of the org would have settings.
        """
        settings = self._node.directory.settings
        settings.alter_group(self.org, group, config, validate_only=validate_only)

    def delete(self, name: str) -> None:
        """Delete a topic and all its records. Durable on return.

        Raises:
            UnknownTopic: If the topic does not exist.
            RecordRefused: If the topic is internal.
        """
        self._topics.delete(self._own(name).key)

    def delete_records(self, name: str, partition: int, offset: int) -> int:
        """Delete the records below *offset*, or all if it is -1; return the log start. Durable on return.

        Raises:
            UnknownTopic: If the topic or partition does not exist.
            RecordRefused: If the topic is internal.
            OffsetOutOfRange: If *offset* is above the high watermark, or below 0 and not -1.
        """
        return self._node.delete_records(self._own(name).key, partition, offset)

    def operate(self, name: str, operation: Operation, *, dry_run: bool = False) -> None:
        """Seal or truncate a partition; see `Node.operate`. Errors have the client's name of the topic.

        Raises:
            UnknownTopic: If the topic or partition does not exist.
            RecordRefused: If the topic is internal or in the shared log.
        """
        found = self._own(name)
        if is_shared(found.entry):
            raise not_cut_alone(name)
        if not 0 <= operation.partition < found.entry.partitions:
            raise UnknownTopic(f"topic {name} has no partition {operation.partition}")
        try:
            self._node.operate(found.key, operation, dry_run=dry_run)
        except SignedFor as error:
            raise SignedFor(name, error.partition, error.offset, error.signed_up_to) from None

    # --- reading ----------------------------------------------------------------------------------

    def look_at_once(self, look: Callable[[], Result]) -> Result:
        """Return the result of *look*, which reads ends of partitions; see `Node.look_at_once`."""
        return self._node.look_at_once(look)

    def find_offset(
        self,
        name: str,
        partition: int,
        timestamp: int,
        leader_epoch: int = NO_EPOCH,
        *,
        committed: bool = False,
    ) -> Position:
        """Return the position for *timestamp*; see `Node.find_offset`."""
        key = self._found(name).key
        return self._node.find_offset(key, partition, timestamp, leader_epoch, committed=committed)

    def epoch_end(
        self, name: str, partition: int, epoch: int, leader_epoch: int = NO_EPOCH
    ) -> tuple[int, int]:
        """Return the end of a leader epoch; see `Node.epoch_end`."""
        return self._node.epoch_end(self._found(name).key, partition, epoch, leader_epoch)

    def producers(self, name: str, partition: int) -> list[KnownProducer]:
        """Return the idempotent producers of a partition; see `Node.producers`."""
        return self._node.producers(self._found(name).key, partition)

    def sizes(self, topic: BrokerTopic) -> dict[int, int]:
        """Return the bytes of each partition of a topic, without partitions that cannot be read.

        Raises:
            UnknownTopic, LogClosed: If the topic is deleted concurrently.
        """
        return {partition: size for (_, partition), size in self._node.sizes([topic.entry]).items()}

    def stored_bytes(self) -> int:
        """Return the bytes of all partitions. Opens all of them; skips topics deleted concurrently."""
        total = 0
        for topic in list(self._shelf.topics.values()):
            if is_reserved(topic.name):
                continue
            try:
                total += sum(self.sizes(topic).values())
            except (UnknownTopic, LogClosed):
                continue
        return total
