"""The steps that events of a consumer group are made of. Each adds rows and applies them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from cordwood.broker.groups.consumer.assignors import ASSIGNORS, Subscriber, TargetAssignment
from cordwood.broker.groups.consumer.deadlines import DeadlineKey, Waiting
from cordwood.broker.groups.consumer.group import ConsumerGroup
from cordwood.broker.groups.consumer.members import JOINING, ConsumerMember, Goal, Reported, reconciled
from cordwood.broker.groups.consumer.rows import (
    ConsumerRow,
    GroupEpoch,
    MemberMetadata,
    MemberState,
    OwnedState,
    RowKey,
    RowKind,
    RowValue,
    TargetEpoch,
)
from cordwood.broker.groups.consumer.topics import TopicShape, TopicsView, hash_of_topics


class ConsumerTerms(NamedTuple):
    """The settings of a group. The first of ``assignors`` is used if no member asks for one."""

    session_ms: int = 45_000
    heartbeat_ms: int = 5_000
    assignment_interval_ms: int = 1_000
    size_max: int = 0x7FFFFFFF
    assignors: tuple[str, ...] = ("uniform", "range")
    regex_refresh_ms: int = 600_000


class GroupChange:
    """The rows that one event adds to a group, applied as they are added."""

    def __init__(self, group: ConsumerGroup, topics: TopicsView, terms: ConsumerTerms, now_ms: int) -> None:
        self.group = group
        self.topics = topics
        self.terms = terms
        self.now_ms = now_ms
        self.rows: list[ConsumerRow] = []

    def put(self, kind: RowKind, value: RowValue | None, name: str = "") -> None:
        """Add and apply a row or a tombstone."""
        key = RowKey(kind, self.group.id, name)
        self.rows.append((key, value))
        self.group.apply(key, value)

    # --- members ----------------------------------------------------------------------------------

    def update(self, member: ConsumerMember, metadata: MemberMetadata) -> bool:
        """Set what a member says of itself; return whether the topics that it names have changed."""
        if metadata == member.metadata and member.id in self.group.members:
            return False
        self.put(RowKind.MEMBER, metadata, member.id)
        return set(metadata.topics) != set(member.metadata.topics)

    def remove(self, member_id: str) -> None:
        """Remove a member."""
        self.put(RowKind.OWNED, None, member_id)
        self.put(RowKind.TARGET, None, member_id)
        self.put(RowKind.MEMBER, None, member_id)
        self.group.deadlines.cancel_all(member_id)

    def replace(self, old: ConsumerMember, member_id: str) -> None:
        """Give what a static member has to the member that takes over its instance id."""
        target = self.group.target.get(old.id, {})
        self.remove(old.id)
        self.put(RowKind.MEMBER, old.metadata, member_id)
        self.put(RowKind.TARGET, target, member_id)
        self.put(RowKind.OWNED, old.owned._replace(epoch=JOINING, previous_epoch=JOINING), member_id)

    def forget_regexes(self, regexes: Iterable[str | None]) -> None:
        """Remove the topics of regular expressions that no member is subscribed to any more."""
        for regex in set(regexes):
            if regex in self.group.regexes and regex not in self.group.regex_counts:
                self.put(RowKind.REGEX, None, regex)

    # --- epochs and target assignments ------------------------------------------------------------

    def topics_changed(self) -> bool:
        """Return whether topics that members are subscribed to have changed since the epoch began."""
        group = self.group
        if group.topics_seen == self.topics.version:
            return False
        changed = hash_of_topics(group.subscribed_names(), self.topics) != group.epoch.topics_hash
        if not changed and not group.has_topic_metadata:
            group.topics_seen = self.topics.version
        return changed

    def begin_epoch_if_changed(self, *, changed: bool) -> bool:
        """Begin the next epoch if subscriptions or their topics have *changed*; return whether it began."""
        group = self.group
        if not changed and group.topics_seen == self.topics.version:
            return False
        group.topics_seen = self.topics.version
        topics_hash = hash_of_topics(group.subscribed_names(), self.topics)
        changed = changed or topics_hash != group.epoch.topics_hash
        if changed:
            self.put(RowKind.GROUP_EPOCH, GroupEpoch(group.epoch.epoch + 1, topics_hash))
        if group.has_topic_metadata:
            self.put(RowKind.TOPIC_METADATA, None)
        return changed

    @property
    def must_assign(self) -> bool:
        """Whether the current epoch has no target assignment, and the last one was not made a moment ago."""
        group, last_ms = self.group, self.group.target_epoch.assigned_ms
        if group.target_epoch.epoch >= group.epoch.epoch:
            return False
        # A clock that was set back over a restart does not make the group wait until it has caught up.
        return not (last_ms and last_ms <= self.now_ms < last_ms + self.terms.assignment_interval_ms)

    def assign_if_due(self) -> None:
        """Make the target assignment of the current epoch, unless the last one was made a moment ago."""
        group = self.group
        if not self.must_assign:
            return
        target = self._assign()
        for member_id in group.members:
            old, new = group.target.get(member_id), target.get(member_id, {})
            if new is not old and new != old:
                self.put(RowKind.TARGET, new, member_id)
        self.put(RowKind.TARGET_EPOCH, TargetEpoch(group.epoch.epoch, self.now_ms))

    def _assign(self) -> dict[str, TargetAssignment]:
        group = self.group
        name = group.assignor(self.terms.assignors[0])
        assign = ASSIGNORS[name if name in ASSIGNORS else self.terms.assignors[0]]
        shapes: dict[bytes, TopicShape] = {}
        for topic in group.subscribed_names():
            shape = self.topics.find(topic)
            if shape is not None:
                shapes[shape.id] = shape
        members = {
            member.id: Subscriber(
                member.metadata.instance_id,
                group.ids_of(member.metadata, self.topics),
                group.target.get(member.id, {}),
            )
            for member in group.members.values()
        }
        counts = {shape.id: shape.partitions for shape in shapes.values()}
        return assign(members, counts, homogeneous=group.is_homogeneous())

    def reconcile(self, member_id: str, reported: Reported | None, *, subscription_changed: bool) -> None:
        """Take a member one step towards its target assignment."""
        group = self.group
        member = group.members[member_id]
        if not subscription_changed and member.is_at(group.target_epoch.epoch):
            return
        goal = Goal(
            group.target_epoch.epoch,
            group.target.get(member_id, {}),
            group.ids_of(member.metadata, self.topics),
            group.owned,
        )
        owned = reconciled(member.owned, goal, reported, subscription_changed=subscription_changed)
        if owned == member.owned:
            return
        self.put(RowKind.OWNED, owned, member_id)
        if not member.is_classic:
            self._set_revoking_deadline(member_id, owned, member.metadata.rebalance_ms)

    def _set_revoking_deadline(self, member_id: str, owned: OwnedState, rebalance_ms: int) -> None:
        key = DeadlineKey(member_id, Waiting.REVOKE)
        if owned.state is MemberState.UNREVOKED_PARTITIONS:
            self.group.deadlines.set(key, self.now_ms + max(rebalance_ms, 0))
        else:
            self.group.deadlines.cancel(key)

    def fence(self, member_ids: Iterable[str]) -> None:
        """Remove members and begin an epoch without them."""
        members = [self.group.members[member_id] for member_id in member_ids]
        for member in members:
            self.remove(member.id)
        self.forget_regexes(member.metadata.regex for member in members)
        if members:
            self.begin_epoch_if_changed(changed=True)
