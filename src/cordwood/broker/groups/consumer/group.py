"""The state of one consumer group: what its rows say.

Decisions are made in `heartbeats` and `classic` as rows, and the state changes only by applying rows, so
after a restart it is the same. Deadlines are not stored: they start again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from enum import Enum
from typing import TypeVar

from cordwood.broker.groups.consumer.assignors import TargetAssignment, most_wanted
from cordwood.broker.groups.consumer.deadlines import Deadlines
from cordwood.broker.groups.consumer.members import LEAVING, ConsumerMember
from cordwood.broker.groups.consumer.rows import (
    ConsumerRow,
    GroupEpoch,
    MemberMetadata,
    OwnedState,
    ResolvedRegex,
    RowKey,
    RowKind,
    RowValue,
    TargetEpoch,
)
from cordwood.broker.groups.consumer.topics import TopicsView

T = TypeVar("T")


class ConsumerGroupState(Enum):
    """The state of a consumer group; the values are the names that Kafka's tools show."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


class ConsumerGroup:
    """A consumer group. Used by one thread."""

    protocol_type = "consumer"

    def __init__(self, group_id: str) -> None:
        self.id = group_id
        #: As in Kafka, the first change makes it 2.
        self.epoch = GroupEpoch(1)
        self.target_epoch = TargetEpoch(1)
        self.members: dict[str, ConsumerMember] = {}
        self.target: dict[str, TargetAssignment] = {}
        self.instances: dict[str, str] = {}
        self.regexes: dict[str, ResolvedRegex] = {}
        #: By topic id and partition, the epoch of the member that owns the partition.
        self.owned: dict[bytes, dict[int, int]] = {}
        #: The numbers of members by what they are subscribed to, by assignor, and by classic protocol.
        self.topics_counts: Counter[tuple[str, ...]] = Counter()
        self.regex_counts: Counter[str] = Counter()
        self.assignor_counts: Counter[str] = Counter()
        self.protocol_counts: Counter[str] = Counter()
        self.classic_count = 0
        #: Whether Kafka before 4.1 stored a row that is not needed any more.
        self.has_topic_metadata = False
        # What is not stored.
        self.deadlines = Deadlines()
        #: The version of the topics that the epoch was last compared with.
        self.topics_seen: int | None = None
        #: Whether regular expressions are being resolved.
        self.is_resolving = False
        self._ids: dict[tuple[tuple[str, ...], str | None], frozenset[bytes]] = {}
        self._ids_version: int | None = None

    # --- queries ----------------------------------------------------------------------------------

    @property
    def state(self) -> ConsumerGroupState:
        """The state, found in time proportional to the number of members."""
        if not self.members:
            return ConsumerGroupState.EMPTY
        if self.epoch.epoch > self.target_epoch.epoch:
            return ConsumerGroupState.ASSIGNING
        if all(member.is_at(self.target_epoch.epoch) for member in self.members.values()):
            return ConsumerGroupState.STABLE
        return ConsumerGroupState.RECONCILING

    def static_member(self, instance_id: str) -> ConsumerMember | None:
        """Return the member with that instance id, or None."""
        member_id = self.instances.get(instance_id)
        return None if member_id is None else self.members[member_id]

    def subscribed_names(self) -> set[str]:
        """Return the names of all topics that a member is subscribed to; they need not exist."""
        names = set[str]().union(*self.topics_counts)
        for resolved in self.regexes.values():
            names |= resolved.topics
        return names

    def names_of(self, metadata: MemberMetadata) -> frozenset[str]:
        """Return the names of the topics that a member is subscribed to."""
        resolved = self.regexes.get(metadata.regex) if metadata.regex else None
        return frozenset(metadata.topics) if resolved is None else resolved.topics.union(metadata.topics)

    def ids_of(self, metadata: MemberMetadata, topics: TopicsView) -> frozenset[bytes]:
        """Return the ids of the topics that a member is subscribed to and that exist."""
        if self._ids_version != topics.version:
            self._ids, self._ids_version = {}, topics.version
        subscription = metadata.topics, metadata.regex
        found = self._ids.get(subscription)
        if found is None:
            shapes = map(topics.find, self.names_of(metadata))
            found = frozenset(shape.id for shape in shapes if shape is not None)
            self._ids[subscription] = found
        return found

    def is_homogeneous(self) -> bool:
        """Return whether all members are known to be subscribed to the same topics."""
        count = len(self.members)
        if len(self.topics_counts) > 1:
            return False
        if not self.regex_counts:
            return True
        named = any(self.topics_counts)
        return len(self.regex_counts) == 1 and not named and self.regex_counts.total() == count

    def assignor(self, default: str) -> str:
        """Return the assignor that most members ask for."""
        return most_wanted(self.assignor_counts, default)

    def rows(self) -> Iterator[ConsumerRow]:
        """Yield all rows of the group."""
        for regex, resolved in self.regexes.items():
            yield RowKey(RowKind.REGEX, self.id, regex), resolved
        for member in self.members.values():
            yield RowKey(RowKind.MEMBER, self.id, member.id), member.metadata
        yield RowKey(RowKind.GROUP_EPOCH, self.id), self.epoch
        for member_id, target in self.target.items():
            yield RowKey(RowKind.TARGET, self.id, member_id), target
        yield RowKey(RowKind.TARGET_EPOCH, self.id), self.target_epoch
        for member in self.members.values():
            yield RowKey(RowKind.OWNED, self.id, member.id), member.owned

    def tombstones(self) -> Iterator[ConsumerRow]:
        """Yield the tombstones that delete the group, in the order in which Kafka accepts them."""
        for kind in (RowKind.OWNED, RowKind.TARGET):
            for member_id in self.members if kind is RowKind.OWNED else self.target:
                yield RowKey(kind, self.id, member_id), None
        yield RowKey(RowKind.TARGET_EPOCH, self.id), None
        for member_id in self.members:
            yield RowKey(RowKind.MEMBER, self.id, member_id), None
        for regex in self.regexes:
            yield RowKey(RowKind.REGEX, self.id, regex), None
        if self.has_topic_metadata:
            yield RowKey(RowKind.TOPIC_METADATA, self.id), None
        yield RowKey(RowKind.GROUP_EPOCH, self.id), None

    # --- changes ----------------------------------------------------------------------------------

    def apply(self, key: RowKey, value: RowValue | None) -> None:
        """Apply a row or a tombstone."""
        if isinstance(value, MemberMetadata):
            member = self.members.get(key.name) or ConsumerMember(key.name)
            self._set_member(member._replace(metadata=value))
        elif isinstance(value, OwnedState):
            member = self.members.get(key.name) or ConsumerMember(key.name)
            self._set_member(member._replace(owned=value))
        elif isinstance(value, GroupEpoch):
            self.epoch = value
        elif isinstance(value, TargetEpoch):
            self.target_epoch = value
        elif isinstance(value, ResolvedRegex):
            self.regexes[key.name] = value
            self._ids.clear()
        elif value is not None:
            self.target[key.name] = value
        elif key.kind is RowKind.TOPIC_METADATA:
            self.has_topic_metadata = False
        else:
            self._delete(key)

    def _delete(self, key: RowKey) -> None:
        member = self.members.get(key.name)
        if key.kind is RowKind.OWNED and member is not None:
            self._set_member(member._replace(owned=OwnedState(LEAVING, LEAVING)))
        elif key.kind is RowKind.MEMBER and member is not None:
            del self.members[member.id]
            self._count(member, -1)
            instance_id = member.metadata.instance_id
            if instance_id is not None and self.instances.get(instance_id) == member.id:
                del self.instances[instance_id]
        elif key.kind is RowKind.TARGET:
            self.target.pop(key.name, None)
        elif key.kind is RowKind.TARGET_EPOCH:
            self.target_epoch = TargetEpoch(-1)
        elif key.kind is RowKind.REGEX:
            self.regexes.pop(key.name, None)
            self._ids.clear()

    def _set_member(self, member: ConsumerMember) -> None:
        old = self.members.get(member.id)
        if old is not None and old.metadata is member.metadata:
            self._release(old.owned)
            self._own(member.owned)
        else:
            if old is not None:
                self._count(old, -1)
            self._count(member, 1)
        self.members[member.id] = member
        if member.metadata.instance_id is not None:
            self.instances[member.metadata.instance_id] = member.id

    def _count(self, member: ConsumerMember, change: int) -> None:
        metadata = member.metadata
        _add(self.topics_counts, (metadata.topics,), change)
        _add(self.regex_counts, (metadata.regex,) if metadata.regex else (), change)
        _add(self.assignor_counts, (metadata.assignor,) if metadata.assignor else (), change)
        if metadata.classic is not None:
            self.classic_count += change
            _add(self.protocol_counts, {each.name for each in metadata.classic.protocols}, change)
        if change < 0:
            self._release(member.owned)
        else:
            self._own(member.owned)

    def _own(self, owned: OwnedState) -> None:
        for partitions in (owned.assigned, owned.revoking):
            for topic, epochs in partitions.items():
                self.owned.setdefault(topic, {}).update(dict.fromkeys(epochs, owned.epoch))

    def _release(self, owned: OwnedState) -> None:
        for partitions in (owned.assigned, owned.revoking):
            for topic, epochs in partitions.items():
                known = self.owned.get(topic, {})
                for partition in epochs:
                    # Rows of two members may be loaded in another order than they were written.
                    if known.get(partition) == owned.epoch:
                        del known[partition]
                if not known:
                    self.owned.pop(topic, None)

    def drop_incomplete(self) -> None:
        """Remove what rows say of members that are gone, as may be if not all rows could be stored."""
        for member_id in [member.id for member in self.members.values() if member.epoch == LEAVING]:
            self._delete(RowKey(RowKind.MEMBER, self.id, member_id))
        for member_id in self.target.keys() - self.members.keys():
            del self.target[member_id]
        for regex in self.regexes.keys() - self.regex_counts.keys():
            del self.regexes[regex]
        # A member at an epoch whose target assignment was not stored must not count as being there when that
        # epoch comes again with other assignments.
        newest = max((member.epoch for member in self.members.values()), default=0)
        least = self.target_epoch.epoch if newest <= self.target_epoch.epoch else newest + 1
        if least > self.epoch.epoch:
            self.epoch = self.epoch._replace(epoch=least)

    def begin_epoch_after_load(self) -> None:
        """Begin the next epoch, unless it has begun and waits for its target assignment.

        Nothing is stored: if that assignment is not made before the next load, this is done again.
        """
        if self.epoch.epoch == self.target_epoch.epoch:
            self.epoch = self.epoch._replace(epoch=self.epoch.epoch + 1)

    def is_assigned(self, topics: TopicsView) -> bool:
        """Return whether each partition of the topics of members is in one target assignment."""
        targets = [
            (topic, each)
            for target in self.target.values()
            for topic, numbers in target.items()
            for each in numbers
        ]
        known = set(targets)
        shapes = filter(None, map(topics.find, self.subscribed_names()))
        return len(known) == len(targets) and all(
            (shape.id, each) in known for shape in shapes for each in range(shape.partitions)
        )

    def check_invariants(self) -> None:
        """Check that members, targets and counts agree. Takes constant time.

        Raises:
            AssertionError: If they do not: a bug in this code.
        """
        count = len(self.members)
        assert len(self.instances) <= count, "more instances than members"
        assert len(self.target) <= count, "a target assignment of no member"
        assert 0 <= self.classic_count <= count, "more members of the classic protocol than members"
        assert self.target_epoch.epoch <= self.epoch.epoch, "a target assignment of a later epoch"
        assert count or not self.owned, "a partition is owned in a group without members"


def _add(counts: Counter[T], keys: Iterable[T], change: int) -> None:
    for key in keys:
        counts[key] += change
        if not counts[key]:
            del counts[key]
