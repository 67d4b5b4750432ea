"""Members of a consumer group that use the classic protocol, as they do while its members change protocols.

The coordinator assigns their partitions too, so none of them is the leader: each joins when its heartbeat
says that the group is rebalancing, and its sync is answered at once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from cordwood.broker.groups.actions import Joined, JoinRequest, Refusal, Synced
from cordwood.broker.groups.consumer import embedded
from cordwood.broker.groups.consumer.changes import GroupChange
from cordwood.broker.groups.consumer.deadlines import DeadlineKey, Waiting
from cordwood.broker.groups.consumer.embedded import EmbeddedSubscription
from cordwood.broker.groups.consumer.group import ConsumerGroup
from cordwood.broker.groups.consumer.heartbeats import extend_session
from cordwood.broker.groups.consumer.members import ConsumerMember, Reported
from cordwood.broker.groups.consumer.rows import ClassicTerms, MemberMetadata, MemberState
from cordwood.broker.groups.consumer.topics import TopicsView


class ClassicJoin(NamedTuple):
    """A checked request of a member to join, with the id that it has from now on."""

    request: JoinRequest
    member_id: str
    subscription: EmbeddedSubscription


def check_join(group: ConsumerGroup, request: JoinRequest, size_max: int) -> Refusal | EmbeddedSubscription:
    """Return why a member may not join, or what it subscribes to."""
    if len(group.members) >= size_max and request.member_id not in group.members:
        return Refusal.GROUP_FULL
    names = {each.name for each in request.protocols}
    # All members that use the classic protocol need a protocol in common, to become a classic group again.
    if request.protocol_type != embedded.PROTOCOL_TYPE or not any(
        group.protocol_counts[name] == group.classic_count for name in names
    ):
        return Refusal.INCONSISTENT_PROTOCOL
    try:
        subscription = embedded.decode_subscription(request.protocols[0].metadata)
    except ValueError:
        return Refusal.INCONSISTENT_PROTOCOL
    if (
        request.instance_id is None
        and request.member_id not in group.members
        and any(subscription.owned.values())
    ):
        # A new member owns nothing: this one was removed, and its partitions may have other owners already.
        return Refusal.UNKNOWN_MEMBER
    if request.instance_id is not None and request.member_id:
        return _check_identity(group, request.member_id, request.instance_id) or subscription
    return subscription


def _check_identity(group: ConsumerGroup, member_id: str, instance_id: str | None) -> Refusal | None:
    if instance_id is None:
        return None if member_id in group.members else Refusal.UNKNOWN_MEMBER
    member = group.static_member(instance_id)
    if member is None:
        return Refusal.UNKNOWN_MEMBER
    return None if member.id == member_id else Refusal.FENCED


def update_member(change: GroupChange, join: ClassicJoin) -> bool:
    """Add a member or update it; return whether its subscription has changed."""
    group, request = change.group, join.request
    replaced = None if request.instance_id is None else group.static_member(request.instance_id)
    if replaced is not None and replaced.id != join.member_id:
        change.replace(replaced, join.member_id)
    member = group.members.get(join.member_id) or ConsumerMember(join.member_id)
    metadata = MemberMetadata(
        instance_id=request.instance_id,
        rack_id=join.subscription.rack_id or member.metadata.rack_id,
        client_id=request.client_id,
        client_host=request.client_host,
        topics=tuple(sorted(set(join.subscription.topics))),
        regex="",
        rebalance_ms=request.rebalance_ms,
        assignor=member.metadata.assignor,
        classic=ClassicTerms(request.session_ms, request.protocols),
    )
    changed = change.update(member, metadata)
    change.forget_regexes([member.metadata.regex])
    changed = changed or bool(member.metadata.regex)
    change.begin_epoch_if_changed(changed=changed)
    return changed


def settle(change: GroupChange, join: ClassicJoin, *, changed: bool) -> Joined:
    """Take a member that has joined one step towards its target assignment; return the answer."""
    group, request = change.group, join.request
    reported = reported_by_id(join.subscription.owned, change.topics)
    change.reconcile(join.member_id, reported, subscription_changed=changed)
    group.deadlines.cancel(DeadlineKey(join.member_id, Waiting.JOIN))
    extend_session(change, join.member_id, request.session_ms)
    group.deadlines.set(DeadlineKey(join.member_id, Waiting.SYNC), change.now_ms + request.rebalance_ms)
    epoch = group.members[join.member_id].epoch
    return Joined(None, join.member_id, epoch, embedded.PROTOCOL_TYPE, request.protocols[0].name)


def reported_by_id(owned: Mapping[str, Collection[int]], topics: TopicsView) -> Reported:
    """Return partitions that a member says it owns by topic id; a topic that is gone cannot be owned."""
    shapes = ((topics.find(name), partitions) for name, partitions in owned.items())
    return {shape.id: partitions for shape, partitions in shapes if shape is not None}


def check_member(
    group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int
) -> Refusal | None:
    """Return why a request of a member that uses the classic protocol is refused, or None."""
    refusal = _check_identity(group, member_id, instance_id)
    if refusal is not None:
        return refusal
    member = group.members[member_id]
    if not member.is_classic:
        return Refusal.UNKNOWN_MEMBER
    return None if generation == member.epoch else Refusal.ILLEGAL_GENERATION


def sync(change: GroupChange, member_id: str, protocol_type: str | None, protocol: str | None) -> Synced:
    """Return the assignment of a member that `check_member` accepts."""
    group = change.group
    member = group.members[member_id]
    classic = member.metadata.classic
    assert classic is not None
    first = classic.protocols[0]
    if protocol_type not in (None, embedded.PROTOCOL_TYPE) or protocol not in (None, first.name):
        return Synced(Refusal.INCONSISTENT_PROTOCOL)
    if _is_behind(change, member) and member.owned.state is not MemberState.UNREVOKED_PARTITIONS:
        _await_join(change, member)
        return Synced(Refusal.REBALANCING)
    group.deadlines.cancel(DeadlineKey(member_id, Waiting.SYNC))
    extend_session(change, member_id, classic.session_ms)
    version = embedded.decode_subscription(first.metadata).version
    names = (
        (change.topics.name_of(topic), sorted(epochs)) for topic, epochs in member.owned.assigned.items()
    )
    assignment = embedded.encode_assignment(version, {name: each for name, each in names if name is not None})
    return Synced(None, assignment, embedded.PROTOCOL_TYPE, first.name)


def heartbeat(change: GroupChange, member_id: str) -> Refusal | None:
    """Extend the session of a member that `check_member` accepts; return whether it has to join again."""
    group = change.group
    member = group.members[member_id]
    assert member.metadata.classic is not None
    extend_session(change, member_id, member.metadata.classic.session_ms)
    state = member.owned.state
    if (
        _is_behind(change, member)
        or change.topics_changed()
        or state is MemberState.UNREVOKED_PARTITIONS
        or (state is MemberState.UNRELEASED_PARTITIONS and not _waits(group, member))
    ):
        _await_join(change, member)
        return Refusal.REBALANCING
    return None


def _is_behind(change: GroupChange, member: ConsumerMember) -> bool:
    """Return whether the member would have a later epoch if it joined now.

    Joining makes the target assignment of a new epoch, if that is due. Members of the consumer protocol make
    it too, but there may be none.
    """
    return change.must_assign or member.epoch < change.group.target_epoch.epoch


def _await_join(change: GroupChange, member: ConsumerMember) -> None:
    key = DeadlineKey(member.id, Waiting.JOIN)
    if key not in change.group.deadlines:
        change.group.deadlines.set(key, change.now_ms + max(member.metadata.rebalance_ms, 0))


def _waits(group: ConsumerGroup, member: ConsumerMember) -> bool:
    """Return whether another member still owns a partition of the member's target assignment."""
    for topic, partitions in group.target.get(member.id, {}).items():
        has, owned = member.owned.assigned.get(topic, {}), group.owned.get(topic, {})
        if any(partition not in has and partition in owned for partition in partitions):
            return True
    return False
