"""A group changes its protocol while its members run: from classic to consumer, and back."""

from __future__ import annotations

from collections.abc import Collection, Set
from enum import Enum
from functools import lru_cache
from typing import NamedTuple

from cordwood.broker.groups.actions import GroupMember
from cordwood.broker.groups.consumer import embedded
from cordwood.broker.groups.consumer.assignors import TargetAssignment
from cordwood.broker.groups.consumer.classic import reported_by_id
from cordwood.broker.groups.consumer.embedded import EmbeddedSubscription, SubscriptionDecoder
from cordwood.broker.groups.consumer.group import ConsumerGroup
from cordwood.broker.groups.consumer.members import ConsumerMember, Reported
from cordwood.broker.groups.consumer.rows import (
    ClassicTerms,
    GroupEpoch,
    MemberMetadata,
    MemberState,
    OwnedState,
    RowKey,
    RowKind,
    TargetEpoch,
)
from cordwood.broker.groups.consumer.topics import TopicsView, hash_of_topics
from cordwood.broker.groups.group import Group
from cordwood.broker.groups.voting import vote


class MigrationPolicy(Enum):
    """Which changes of protocol a group with members may make; the values are Kafka's."""

    BIDIRECTIONAL = "bidirectional"
    UPGRADE = "upgrade"
    DOWNGRADE = "downgrade"
    DISABLED = "disabled"

    @property
    def upgrades(self) -> bool:
        """Whether a classic group may become a consumer group."""
        return self in (MigrationPolicy.BIDIRECTIONAL, MigrationPolicy.UPGRADE)

    @property
    def downgrades(self) -> bool:
        """Whether a consumer group may become a classic group."""
        return self in (MigrationPolicy.BIDIRECTIONAL, MigrationPolicy.DOWNGRADE)


def upgraded(classic: Group, topics: TopicsView) -> ConsumerGroup | None:
    """Return a consumer group with the members of a classic one, which own what they are assigned.

    A member that joined with more than that, and has not joined again since, may still consume it: it must
    give that up first. Returns None if that is impossible: they are no consumers, or an assignor of their own
    needs more than the partitions.
    """
    if classic.protocol_type != embedded.PROTOCOL_TYPE:
        return None
    group = ConsumerGroup(classic.id)
    group.apply(RowKey(RowKind.GROUP_EPOCH, group.id), GroupEpoch(classic.generation))
    group.apply(RowKey(RowKind.TARGET_EPOCH, group.id), TargetEpoch(classic.generation))
    try:
        decoder = SubscriptionDecoder()
        found = {member.id: _held_by(classic, member, topics, decoder) for member in classic.members.values()}
    except ValueError:
        return None
    given = {
        (topic, each) for held in found.values() for topic, numbers in held.target.items() for each in numbers
    }
    for member in classic.members.values():
        _add_upgraded(group, classic, member, found[member.id], given)
    epoch = GroupEpoch(classic.generation, hash_of_topics(group.subscribed_names(), topics))
    group.apply(RowKey(RowKind.GROUP_EPOCH, group.id), epoch)
    return group


class _HeldPartitions(NamedTuple):
    """What a member of a classic group is assigned, and what it said it owned when it joined."""

    subscription: EmbeddedSubscription
    target: TargetAssignment
    owned: Reported


def _held_by(
    classic: Group, member: GroupMember, topics: TopicsView, decoder: SubscriptionDecoder
) -> _HeldPartitions:
    names = [each.name for each in member.protocols]
    chosen = classic.protocol if classic.protocol in names else names[0]
    subscription = decoder.decode(member.metadata_for(chosen))
    assigned, more = embedded.decode_assignment(member.assignment)
    if more:
        raise ValueError("the data of an assignor would be lost")
    target: TargetAssignment = {
        topic: tuple(sorted(partitions)) for topic, partitions in reported_by_id(assigned, topics).items()
    }
    return _HeldPartitions(subscription, target, reported_by_id(subscription.owned, topics))


@lru_cache(maxsize=8)
def _sorted_names(topics: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of topics in order: one object for all members with the same ones."""
    return tuple(sorted(set(topics)))


def _add_upgraded(
    group: ConsumerGroup,
    classic: Group,
    member: GroupMember,
    held: _HeldPartitions,
    given: Set[tuple[bytes, int]],
) -> None:
    metadata = MemberMetadata(
        member.instance_id,
        held.subscription.rack_id,
        member.client_id,
        member.client_host,
        _sorted_names(held.subscription.topics),
        None,
        member.rebalance_ms,
        None,
        ClassicTerms(member.session_ms, member.protocols),
    )
    generation = classic.generation
    # What another member is assigned was taken from this one, as one that was away too long.
    left = {
        topic: dict.fromkeys(sorted(each for each in numbers if (topic, each) not in given), generation)
        for topic, numbers in held.owned.items()
    }
    revoking = {topic: numbers for topic, numbers in left.items() if numbers}
    owned = OwnedState(
        generation,
        generation,
        MemberState.UNREVOKED_PARTITIONS if revoking else MemberState.STABLE,
        {topic: dict.fromkeys(partitions, generation) for topic, partitions in held.target.items()},
        revoking,
    )
    group.apply(RowKey(RowKind.MEMBER, group.id, member.id), metadata)
    group.apply(RowKey(RowKind.TARGET, group.id, member.id), held.target)
    group.apply(RowKey(RowKind.OWNED, group.id, member.id), owned)


def can_downgrade(group: ConsumerGroup, leaving: Collection[str], size_max: int) -> bool:
    """Return whether all members but those *leaving* use the classic protocol, and there are some."""
    staying = [member for member in group.members.values() if member.id not in leaving]
    return 0 < len(staying) <= size_max and all(member.is_classic for member in staying)


def downgraded(group: ConsumerGroup, topics: TopicsView, empty: Group, now_ms: int) -> Group:
    """Return the classic group *empty* with the members of a consumer group, and what they own.

    If the group is stable, these are their target assignments.
    """
    empty.restore(group.epoch.epoch, embedded.PROTOCOL_TYPE, now_ms)
    members = [_classic_member(member) for member in group.members.values()]
    protocol = vote(members)
    decoder = SubscriptionDecoder()
    for member in members:
        version = decoder.decode(member.metadata_for(protocol)).version
        member.assignment = embedded.encode_assignment(version, _owned_by_name(group, member.id, topics))
    empty.restore_members(members, protocol, members[0].id, now_ms)
    return empty


def _owned_by_name(group: ConsumerGroup, member_id: str, topics: TopicsView) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    owned = group.members[member_id].owned
    for partitions in (owned.assigned, owned.revoking):
        for topic, epochs in partitions.items():
            name = topics.name_of(topic)
            if name is not None:
                found.setdefault(name, []).extend(sorted(epochs))
    return found


def _classic_member(member: ConsumerMember) -> GroupMember:
    metadata, classic = member.metadata, member.metadata.classic
    assert classic is not None
    return GroupMember(
        member.id,
        metadata.instance_id,
        metadata.client_id,
        metadata.client_host,
        classic.session_ms,
        metadata.rebalance_ms,
        classic.protocols,
    )
