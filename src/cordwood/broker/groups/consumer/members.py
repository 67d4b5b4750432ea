"""A member of a consumer group, and how it gets from what it owns to its target assignment."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Set
from typing import NamedTuple

from cordwood.broker.groups.consumer.assignors import TargetAssignment
from cordwood.broker.groups.consumer.rows import MemberMetadata, MemberState, OwnedPartitions, OwnedState

JOINING, LEAVING, RETURNING = 0, -1, -2
"""Epochs of heartbeats: of a member that joins, leaves, or, being static, leaves and will return."""
Reported = Mapping[bytes, Collection[int]]
"""The partitions that a member says it owns, by topic id."""


class ConsumerMember(NamedTuple):
    """A member of a consumer group."""

    id: str
    metadata: MemberMetadata = MemberMetadata()
    owned: OwnedState = OwnedState()

    @property
    def epoch(self) -> int:
        """The epoch of the member, which its requests must have."""
        return self.owned.epoch

    @property
    def client_id(self) -> str:
        """The name that the client gives itself."""
        return self.metadata.client_id

    @property
    def client_host(self) -> str:
        """The address of the client."""
        return self.metadata.client_host

    @property
    def is_classic(self) -> bool:
        """Whether the member uses the classic protocol."""
        return self.metadata.classic is not None

    def is_at(self, target_epoch: int) -> bool:
        """Return whether the member owns its whole target assignment of that epoch."""
        return self.owned.state is MemberState.STABLE and self.owned.epoch == target_epoch

    def epoch_of(self, topic: bytes, partition: int) -> int | None:
        """Return the epoch of the member in which it got a partition, None if it does not own it."""
        for owned in (self.owned.assigned, self.owned.revoking):
            epoch = owned.get(topic, {}).get(partition)
            if epoch is not None:
                return epoch
        return None


def is_within(reported: Reported | None, owned: OwnedPartitions) -> bool:
    """Return whether a member said that it owns nothing but *owned*."""
    if reported is None:
        return False
    return all(
        partition in owned.get(topic, {})
        for topic, partitions in reported.items()
        for partition in partitions
    )


class Goal(NamedTuple):
    """What a member is on the way to.

    ``epoch`` and ``target`` are the target assignment; ``topics`` are the topics that the member is
    subscribed to now; ``owned`` are the partitions that members of the group own.
    """

    epoch: int
    target: TargetAssignment
    topics: Set[bytes]
    owned: Mapping[bytes, Mapping[int, int]]


def reconciled(
    owned: OwnedState, goal: Goal, reported: Reported | None, *, subscription_changed: bool
) -> OwnedState:
    """Return what a member owns after its next step to *goal*.

    It first loses what it must not have any more, which it keeps until it reports that it does not own it;
    then its epoch is that of the target, and it gets whatever no other member owns. So no partition ever has
    two owners. *reported* is what the member says it owns, None if it does not say.
    """
    if owned.state is MemberState.STABLE:
        if owned.epoch != goal.epoch:
            return _next_step(owned, goal, reported)
        return _without_unsubscribed(owned, goal, reported) if subscription_changed else owned
    if owned.state is MemberState.UNREVOKED_PARTITIONS and _still_owns(reported, owned.revoking):
        return _without_unsubscribed(owned, goal, reported) if subscription_changed else owned
    return _next_step(owned, goal, reported)


def _still_owns(reported: Reported | None, revoking: OwnedPartitions) -> bool:
    """Return whether a member still owns a partition that it must not have, or may do so."""
    if reported is None:
        return True
    return any(
        partition in revoking.get(topic, {})
        for topic, partitions in reported.items()
        for partition in partitions
    )


def _next_step(owned: OwnedState, goal: Goal, reported: Reported | None) -> OwnedState:
    kept: dict[bytes, Mapping[int, int]] = {}
    revoking: dict[bytes, Mapping[int, int]] = {}
    gained: dict[bytes, list[int]] = {}
    unreleased = False
    for topic in {**goal.target, **owned.assigned}:
        has = owned.assigned.get(topic, {})
        wanted = set(goal.target.get(topic, ())) if topic in goal.topics else set()
        if stays := {partition: epoch for partition, epoch in has.items() if partition in wanted}:
            kept[topic] = stays
        if goes := {partition: epoch for partition, epoch in has.items() if partition not in wanted}:
            revoking[topic] = goes
        missing = wanted - has.keys()
        # A partition that this member is giving up is not owned by another.
        taken, own = goal.owned.get(topic, {}), owned.revoking.get(topic, {})
        free = [partition for partition in missing if partition not in taken or partition in own]
        unreleased = unreleased or len(free) < len(missing)
        if free:
            gained[topic] = sorted(free)
    if revoking and _still_owns(reported, revoking):
        return OwnedState(owned.epoch, owned.epoch, MemberState.UNREVOKED_PARTITIONS, kept, revoking)
    for topic, partitions in gained.items():
        kept[topic] = {**kept.get(topic, {}), **dict.fromkeys(partitions, goal.epoch)}
    state = MemberState.UNRELEASED_PARTITIONS if unreleased else MemberState.STABLE
    return OwnedState(goal.epoch, owned.epoch, state, kept, {})


def _without_unsubscribed(owned: OwnedState, goal: Goal, reported: Reported | None) -> OwnedState:
    """Return *owned* without the topics that the member is not subscribed to any more."""
    kept = {topic: epochs for topic, epochs in owned.assigned.items() if topic in goal.topics}
    if len(kept) == len(owned.assigned):
        return owned
    revoking = dict(owned.revoking)
    for topic, epochs in owned.assigned.items():
        if topic not in kept:
            revoking[topic] = {**revoking.get(topic, {}), **epochs}
    if _still_owns(reported, revoking):
        return OwnedState(owned.epoch, owned.epoch, MemberState.UNREVOKED_PARTITIONS, kept, revoking)
    return OwnedState(owned.epoch, owned.epoch, owned.state, kept, owned.revoking)
