"""The events of a consumer group: heartbeats, deadlines, and regular expressions that were resolved.

Each function changes the group by rows, which are in the `GroupChange` afterwards and are stored before
anyone is told.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from cordwood.broker.groups.actions import HeartbeatAnswer, Refusal
from cordwood.broker.groups.consumer.changes import GroupChange
from cordwood.broker.groups.consumer.deadlines import DeadlineKey, Waiting
from cordwood.broker.groups.consumer.group import ConsumerGroup
from cordwood.broker.groups.consumer.members import (
    JOINING,
    LEAVING,
    RETURNING,
    ConsumerMember,
    Reported,
    is_within,
)
from cordwood.broker.groups.consumer.rows import MemberMetadata, MemberState, ResolvedRegex, RowKind

#: The time between two comparisons of regular expressions with all topics.
REGEX_REFRESH_MIN_MS = 10_000


class MemberHeartbeat(NamedTuple):
    """A heartbeat of a member. Fields that are None, or -1, have not changed since the one before."""

    member_id: str
    epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_ms: int = -1
    topics: tuple[str, ...] | None = None
    regex: str | None = None
    assignor: str | None = None
    owned: Reported | None = None
    client_id: str = ""
    client_host: str = ""

    @property
    def leaves(self) -> bool:
        """Whether the member leaves the group."""
        return self.epoch in (LEAVING, RETURNING)

    @property
    def is_full(self) -> bool:
        """Whether the member says everything, as it does if an answer was lost."""
        subscribed = self.topics is not None or self.regex is not None
        return self.rebalance_ms != -1 and subscribed and self.owned is not None


def check_heartbeat(group: ConsumerGroup, beat: MemberHeartbeat, size_max: int) -> Refusal | None:
    """Return why a heartbeat of a member that does not leave is refused, or None."""
    if len(group.members) >= size_max and beat.member_id not in group.members:
        return Refusal.GROUP_FULL
    joins = beat.epoch == JOINING
    if beat.instance_id is None:
        member = group.members.get(beat.member_id)
        if member is None:
            return None if joins else Refusal.UNKNOWN_MEMBER
        return _check_epoch(member, beat)
    member = group.static_member(beat.instance_id)
    if joins:
        if member is None or member.id == beat.member_id or member.is_classic or member.epoch == RETURNING:
            return None
        return Refusal.UNRELEASED_INSTANCE
    if member is None:
        return Refusal.UNKNOWN_MEMBER
    return Refusal.FENCED if member.id != beat.member_id else _check_epoch(member, beat)


def _check_epoch(member: ConsumerMember, beat: MemberHeartbeat) -> Refusal | None:
    if beat.epoch in (JOINING, member.epoch):
        return None
    # The answer with the current epoch may have been lost.
    lost = beat.epoch < member.epoch and beat.epoch == member.owned.previous_epoch
    return None if lost and is_within(beat.owned, member.owned.assigned) else Refusal.FENCED_EPOCH


def heartbeat(change: GroupChange, beat: MemberHeartbeat) -> tuple[HeartbeatAnswer, frozenset[str]]:
    """Add or update a member, and take it one step towards its target assignment.

    The heartbeat was checked by `check_heartbeat`. Returns its answer, and the regular expressions to
    resolve.
    """
    group = change.group
    replaced = None if beat.instance_id is None else group.static_member(beat.instance_id)
    if replaced is not None and replaced.id != beat.member_id:
        change.replace(replaced, beat.member_id)
    member = group.members.get(beat.member_id) or ConsumerMember(beat.member_id)
    metadata = _updated(member.metadata, beat)
    names_changed = change.update(member, metadata)
    regex_changed, regex_counts = _change_regex(change, member.metadata.regex, metadata.regex)
    resolve = _regexes_to_resolve(change)
    change.begin_epoch_if_changed(changed=names_changed or regex_counts)
    change.assign_if_due()
    change.reconcile(beat.member_id, beat.owned, subscription_changed=names_changed or regex_changed)
    extend_session(change, beat.member_id, change.terms.session_ms)
    owned = group.members[beat.member_id].owned
    told = None
    if beat.epoch == JOINING or beat.is_full or owned.assigned != member.owned.assigned:
        told = {topic: tuple(sorted(epochs)) for topic, epochs in owned.assigned.items()}
    return HeartbeatAnswer(None, beat.member_id, owned.epoch, told), resolve


def _updated(metadata: MemberMetadata, beat: MemberHeartbeat) -> MemberMetadata:
    return MemberMetadata(
        instance_id=metadata.instance_id if beat.instance_id is None else beat.instance_id,
        rack_id=metadata.rack_id if beat.rack_id is None else beat.rack_id,
        client_id=beat.client_id,
        client_host=beat.client_host,
        topics=metadata.topics if beat.topics is None else tuple(sorted(set(beat.topics))),
        regex=metadata.regex if beat.regex is None else beat.regex,
        rebalance_ms=metadata.rebalance_ms if beat.rebalance_ms == -1 else beat.rebalance_ms,
        assignor=metadata.assignor if beat.assignor is None else beat.assignor,
    )


# --- regular expressions ------------------------------------------------------------------------------


def _change_regex(change: GroupChange, old: str | None, new: str | None) -> tuple[bool, bool]:
    """Return whether a regular expression has changed, and whether that matters before it is resolved."""
    if (old or None) == (new or None):
        return False, False
    change.forget_regexes([old])
    return True, not new or new in change.group.regexes


def _regexes_to_resolve(change: GroupChange) -> frozenset[str]:
    """Return the regular expressions of the group if it is time to compare them with all topics."""
    group = change.group
    if group.is_resolving or not group.regex_counts:
        return frozenset()
    last = next(iter(group.regexes.values()), None)
    if last is not None:
        age_ms = change.now_ms - last.resolved_ms
        # The age is negative if the clock was set back over a restart.
        if 0 <= age_ms <= REGEX_REFRESH_MIN_MS:
            return frozenset()
        complete = len(group.regexes) == len(group.regex_counts)
        fresh = 0 <= age_ms <= change.terms.regex_refresh_ms
        if complete and fresh and last.version == change.topics.version:
            return frozenset()
    group.is_resolving = True
    return frozenset(group.regex_counts)


def resolved(change: GroupChange, found: Mapping[str, frozenset[str]], version: int) -> None:
    """Set the topics that regular expressions match, of those that existed in *version*."""
    group = change.group
    group.is_resolving = False
    changed = False
    for regex, names in found.items():
        if regex in group.regex_counts:
            known = group.regexes.get(regex)
            changed = changed or known is None or known.topics != names
            change.put(RowKind.REGEX, ResolvedRegex(names, version, change.now_ms), regex)
    change.begin_epoch_if_changed(changed=changed)


# --- leaving ------------------------------------------------------------------------------------------


def check_leave(group: ConsumerGroup, member_id: str, instance_id: str | None) -> Refusal | None:
    """Return why a member may not leave, or None."""
    if instance_id is None:
        return None if member_id in group.members else Refusal.UNKNOWN_MEMBER
    member = group.static_member(instance_id)
    if member is None:
        return Refusal.UNKNOWN_MEMBER
    return None if member.id == member_id else Refusal.FENCED


def leave(change: GroupChange, beat: MemberHeartbeat) -> HeartbeatAnswer:
    """Remove a member, or keep what a static member has for its return. It was checked by `check_leave`."""
    if beat.epoch == RETURNING:
        owned = change.group.members[beat.member_id].owned
        # The member that returns has a new id, and got these partitions before its first epoch.
        kept = {topic: dict.fromkeys(epochs, 0) for topic, epochs in owned.assigned.items()}
        left = owned._replace(epoch=RETURNING, assigned=kept, revoking={})
        change.put(RowKind.OWNED, left, beat.member_id)
        change.group.deadlines.cancel(DeadlineKey(beat.member_id, Waiting.REVOKE))
    else:
        change.fence([beat.member_id])
    return HeartbeatAnswer(None, beat.member_id, beat.epoch)


def extend_session(change: GroupChange, member_id: str, session_ms: int) -> None:
    """Give a member *session_ms* until its next heartbeat."""
    change.group.deadlines.set(DeadlineKey(member_id, Waiting.SESSION), change.now_ms + session_ms)


def begin_deadlines(change: GroupChange) -> None:
    """Set the deadlines of all members of a group that was loaded or converted."""
    for member in change.group.members.values():
        classic = member.metadata.classic
        session_ms = change.terms.session_ms if classic is None else classic.session_ms
        extend_session(change, member.id, session_ms)
        if classic is None and member.owned.state is MemberState.UNREVOKED_PARTITIONS:
            key = DeadlineKey(member.id, Waiting.REVOKE)
            change.group.deadlines.set(key, change.now_ms + max(member.metadata.rebalance_ms, 0))


def late(group: ConsumerGroup, now_ms: int) -> list[str]:
    """Return the members that missed a deadline."""
    due = (key.member_id for key in group.deadlines.due(now_ms))
    return [member_id for member_id in dict.fromkeys(due) if member_id in group.members]
