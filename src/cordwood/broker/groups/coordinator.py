"""All consumer groups of a broker by name, with their deadlines, stored state and committed offsets.

Like `group`: events in, effects out, time as an argument. Used by one thread, the server's event loop. State
to store is returned as records of the internal topic and takes effect when the server reports them stored.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from cordwood.broker.groups import offsets_topic
from cordwood.broker.groups.actions import (
    Action,
    GroupMember,
    GroupReply,
    GroupState,
    Joined,
    JoinRequest,
    Protocol,
    Refusal,
    StoreState,
    Synced,
    Token,
)
from cordwood.broker.groups.group import Group
from cordwood.broker.groups.offsets_topic import Committed, OffsetKey, OffsetsRow, StoredGroup, StoredMember
from cordwood.records import TopicPartition


class GroupLimits(NamedTuple):
    """The bounds of members' requests, and the retention of offsets."""

    session_min_ms: int = 6_000
    session_max_ms: int = 1_800_000
    size_max: int = 1 << 30
    initial_delay_ms: int = 0
    retention_ms: int = 7 * 24 * 3_600_000


class StoreGroup(NamedTuple):
    """Store *rows*, then call `Coordinator.stored` with the group, the generation and the token."""

    group: str
    generation: int
    rows: list[OffsetsRow]
    token: Token | None = None


Effect = GroupReply | StoreGroup


class Coordinator:
    """The coordinator of all groups. Used by one thread."""

    def __init__(self, limits: GroupLimits, new_member_id: Callable[[str], str]) -> None:
        self.limits = limits
        self.loaded = False
        self._new_member_id = new_member_id
        self._groups: dict[str, Group] = {}
        self._offsets: dict[str, dict[TopicPartition, Committed]] = {}
        #: Committed offsets that cannot be decoded, by group and partition; None for an undecodable key.
        self._unread: set[tuple[str, TopicPartition] | None] = set()
        self._alarms: list[tuple[int, str]] = []
        self._alarm_of: dict[str, int] = {}

    # --- loading ----------------------------------------------------------------------------------

    def load(self, rows: Iterable[OffsetsRow], now_ms: int) -> int:
        """Load records of the internal topic in their order; return the number that cannot be decoded.

        Members of a stored generation have one session timeout to send a heartbeat once `loaded` is set.
        """
        unread = 0
        for key, value in rows:
            try:
                self._load(key, value, now_ms)
            except ValueError:
                unread += 1
        return unread

    def _load(self, key: bytes, value: bytes | None, now_ms: int) -> None:
        try:
            whose = offsets_topic.decode_key(key)
        except ValueError:
            self._unread.add(None)
            raise
        if isinstance(whose, OffsetKey):
            place = (whose.topic, whose.partition)
            if value is not None:
                self._unread.add((whose.group, place))
                self._offsets.setdefault(whose.group, {})[place] = offsets_topic.decode_offset(value)
                self._unread.discard((whose.group, place))
            else:
                self._drop_offset(whose.group, place)
        elif isinstance(whose, str):
            # Decoded first: a record that cannot be decoded must not remove the group.
            stored = None if value is None else offsets_topic.decode_group(value)
            self._groups.pop(whose, None)
            if stored is not None:
                self._restore(whose, stored, now_ms)

    def _restore(self, name: str, stored: StoredGroup, now_ms: int) -> None:
        group = self._new_group(name, now_ms)
        since_ms = stored.since_ms if stored.since_ms >= 0 else now_ms
        group.restore(stored.generation, stored.protocol_type or None, since_ms)
        if stored.members:
            members = [_member_of(member, stored.protocol) for member in stored.members]
            group.restore_members(members, stored.protocol, stored.leader, now_ms)
        self._set_alarm(group)

    def _new_group(self, name: str, now_ms: int) -> Group:
        group = Group(
            name,
            self._new_member_id,
            size_max=self.limits.size_max,
            initial_delay_ms=self.limits.initial_delay_ms,
            state_since_ms=now_ms,
        )
        self._groups[name] = group
        return group

    # --- members ----------------------------------------------------------------------------------

    def join(self, name: str, request: JoinRequest, token: Token, now_ms: int) -> list[Effect]:
        """Add a member to the group; create the group if it does not exist and the member is new."""
        group = self._groups.get(name)
        if group is None:
            if request.member_id:
                return [GroupReply(token, Joined(Refusal.UNKNOWN_MEMBER, request.member_id))]
            group = self._new_group(name, now_ms)
        effects = self._effects(group, group.join(request, token, now_ms))
        self._drop_if_unused(group)
        return effects

    def sync(
        self,
        name: str,
        member_id: str,
        instance_id: str | None,
        generation: int,
        protocol_type: str | None,
        protocol: str | None,
        assignments: Iterable[tuple[str, bytes]],
        token: Token,
        now_ms: int,
    ) -> list[Effect]:
        """Answer a member with its assignment, now or later."""
        group = self._groups.get(name)
        if group is None:
            return [GroupReply(token, Synced(Refusal.UNKNOWN_MEMBER))]
        actions = group.sync(
            member_id, instance_id, generation, protocol_type, protocol, assignments, token, now_ms
        )
        return self._effects(group, actions)

    def heartbeat(
        self, name: str, member_id: str, instance_id: str | None, generation: int, now_ms: int
    ) -> Refusal | None:
        """Extend a member's session; return why its heartbeat is refused, or None."""
        group = self._groups.get(name)
        if group is None:
            return Refusal.UNKNOWN_MEMBER
        return group.heartbeat(member_id, instance_id, generation, now_ms)

    def leave(
        self, name: str, member_id: str, instance_id: str | None, now_ms: int
    ) -> tuple[Refusal | None, list[Effect]]:
        """Remove a member."""
        group = self._groups.get(name)
        if group is None:
            return Refusal.UNKNOWN_MEMBER, []
        refusal, actions = group.leave(member_id, instance_id, now_ms)
        return refusal, self._effects(group, actions)

    def stored(
        self, name: str, generation: int, *, failed: bool, now_ms: int, token: Token | None = None
    ) -> list[Effect]:
        """Continue after the rows of a `StoreGroup` were stored, or could not be stored."""
        group = self._groups.get(name)
        if group is None:
            return []
        return self._effects(group, group.stored(generation, failed=failed, now_ms=now_ms, token=token))

    # --- time -------------------------------------------------------------------------------------

    def deadline(self) -> int | None:
        """Return the time when `tick` is due, or None."""
        while self._alarms and self._alarm_of.get(self._alarms[0][1]) != self._alarms[0][0]:
            heapq.heappop(self._alarms)
        return self._alarms[0][0] if self._alarms else None

    def tick(self, now_ms: int) -> list[Effect]:
        """Apply the deadlines that have passed in all groups."""
        effects: list[Effect] = []
        while (due := self.deadline()) is not None and due <= now_ms:
            _, name = heapq.heappop(self._alarms)
            del self._alarm_of[name]
            group = self._groups.get(name)
            if group is None:
                continue
            effects += self._effects(group, group.tick(now_ms))
            self._drop_if_unused(group)
        return effects

    def _drop_if_unused(self, group: Group) -> None:
        """Remove a group that never had a member: no join was completed or accepted."""
        if not group.generation and not group.members and group.deadline() is None:
            del self._groups[group.id]

    def _set_alarm(self, group: Group) -> None:
        """Set an alarm for the group's next deadline. An early alarm does no harm."""
        deadline = group.deadline()
        known = self._alarm_of.get(group.id)
        if deadline is not None and (known is None or deadline < known):
            self._alarm_of[group.id] = deadline
            heapq.heappush(self._alarms, (deadline, group.id))
        self.check_invariants(group.id)

    def check_invariants(self, changed: str) -> None:
        """Check the group named *changed*, its alarm and its offsets. Takes constant time.

        Raises:
            AssertionError: If they do not agree: a bug in this code.
        """
        group = self._groups.get(changed)
        assert group is None or group.id == changed, "a group is stored under another name"
        assert group is None or group.state is not GroupState.DEAD, "a dead group was not removed"
        assert self._offsets.get(changed) != {}, "a group has an empty entry of offsets"
        assert len(self._alarm_of) <= len(self._alarms), "a group's alarm was never set"

    def _effects(self, group: Group, actions: Sequence[Action]) -> list[Effect]:
        self._set_alarm(group)
        return [
            StoreGroup(group.id, action.generation, [_row_of(group)], action.token)
            if isinstance(action, StoreState)
            else action
            for action in actions
        ]

    def close(self) -> list[Effect]:
        """Answer all pending requests: the broker shuts down, and members must look for the coordinator."""
        return [
            effect
            for group in self._groups.values()
            for effect in self._effects(group, group.refuse_all(Refusal.NOT_STORED))
        ]

    # --- committed offsets ------------------------------------------------------------------------

    def check_commit(
        self, name: str, member_id: str, instance_id: str | None, generation: int, now_ms: int
    ) -> Refusal | None:
        """Return why a commit of offsets is refused, or None if it is allowed.

        A commit without a generation is allowed while the group has no members: consumers that assign
        partitions themselves do not join. A commit extends the session of its member.
        """
        group = self._groups.get(name)
        if group is None or not group.members:
            if generation >= 0:
                return Refusal.ILLEGAL_GENERATION if group is None else Refusal.UNKNOWN_MEMBER
            return None
        if generation < 0 and not member_id:
            return Refusal.UNKNOWN_MEMBER
        refusal = group.check_member(member_id, instance_id, generation)
        if refusal is not None:
            return refusal
        if group.state is GroupState.COMPLETING:
            return Refusal.REBALANCING
        group.heartbeat(member_id, instance_id, generation, now_ms)
        return None

    def rows_to_commit(self, name: str, offsets: Mapping[TopicPartition, Committed]) -> list[OffsetsRow]:
        """Return the records that store *offsets*."""
        return [
            (offsets_topic.offset_key(OffsetKey(name, *place)), offsets_topic.offset_value(committed))
            for place, committed in offsets.items()
        ]

    def committed(self, name: str, offsets: Mapping[TopicPartition, Committed]) -> None:
        """Apply offsets that are stored."""
        if offsets:
            self._offsets.setdefault(name, {}).update(offsets)
            self._unread.difference_update((name, place) for place in offsets)
            self.check_invariants(name)

    def offsets(self, name: str) -> Mapping[TopicPartition, Committed]:
        """Return the committed offsets of the group."""
        return self._offsets.get(name, {})

    # --- looking and deleting ---------------------------------------------------------------------

    def groups(self) -> list[str]:
        """Return the names of all groups, including those that have only offsets."""
        return list({**self._groups, **self._offsets})

    def find(self, name: str) -> Group | None:
        """Return the group of that name, or None. A group with only committed offsets counts as empty."""
        group = self._groups.get(name)
        if group is None and name in self._offsets:
            return Group(name, self._new_member_id)
        return group

    def rows_to_delete(self, name: str) -> list[OffsetsRow]:
        """Return the tombstones that delete a group without members and its offsets."""
        keys = [offsets_topic.offset_key(OffsetKey(name, *place)) for place in self._offsets.get(name, ())]
        if name in self._groups:
            keys.append(offsets_topic.group_key(name))
        return offsets_topic.tombstones(keys)

    def deleted(self, name: str, places: Iterable[TopicPartition]) -> None:
        """Remove a group and the offsets whose tombstones are stored."""
        group = self._groups.get(name)
        self.dropped(name, places)
        if group is not None and not group.members:
            group.state = GroupState.DEAD
            del self._groups[name]
            group.check_invariants()

    def is_subscribed(self, name: str, topic: str) -> bool:
        """Return whether a member's subscription includes *topic* or cannot be decoded."""
        group = self._groups.get(name)
        if group is None or group.protocol_type != "consumer":
            return False
        for member in group.members.values():
            topics = offsets_topic.subscribed_topics(member.metadata_for(group.protocol))
            if topics is None or topic in topics:
                return True
        return False

    def rows_to_drop(self, name: str, places: Iterable[TopicPartition]) -> list[OffsetsRow]:
        """Return the tombstones that delete offsets of a group."""
        known = self._offsets.get(name, {})
        return offsets_topic.tombstones(
            offsets_topic.offset_key(OffsetKey(name, *place)) for place in places if place in known
        )

    def dropped(self, name: str, places: Iterable[TopicPartition]) -> None:
        """Remove offsets whose tombstones are stored."""
        for place in places:
            self._drop_offset(name, place)

    def _drop_offset(self, name: str, place: TopicPartition) -> None:
        self._unread.discard((name, place))
        known = self._offsets.get(name)
        if known is not None:
            known.pop(place, None)
            if not known:
                del self._offsets[name]
        self.check_invariants(name)

    def topics(self) -> set[str]:
        """Return the topics that have committed offsets."""
        return {topic for offsets in self._offsets.values() for topic, _ in offsets}

    def offsets_of_topic(self, topic: str) -> dict[str, list[TopicPartition]]:
        """Return the groups with committed offsets in *topic*, and the partitions of those offsets."""
        found: dict[str, list[TopicPartition]] = {}
        for name, offsets in self._offsets.items():
            places = [place for place in offsets if place[0] == topic]
            if places:
                found[name] = places
        return found

    def needed_from(self, topic: str, partition: int) -> int | None:
        """Return the smallest offset that any group has committed in a partition, or None.

        Returns 0 while groups are not loaded, or if a committed offset cannot be decoded: the position of
        that group is unknown.
        """
        if not self.loaded or self.is_unread(topic, partition):
            return 0
        found = [
            offsets[topic, partition].offset
            for offsets in self._offsets.values()
            if (topic, partition) in offsets
        ]
        return min(found, default=None)

    def is_unread(self, topic: str, partition: int) -> bool:
        """Return whether a stored record that may be about a partition could not be decoded."""
        place = (topic, partition)
        return any(each is None or each[1] == place for each in self._unread)

    def expired(self, now_ms: int) -> dict[str, list[TopicPartition]]:
        """Return the offsets of groups without members whose retention time has passed.

        The time starts at the last commit or, if later, when the last member left.
        """
        found: dict[str, list[TopicPartition]] = {}
        for name, offsets in self._offsets.items():
            group = self._groups.get(name)
            if group is not None and group.members:
                continue
            since_ms = 0 if group is None else group.state_since_ms
            places = [
                place
                for place, committed in offsets.items()
                if now_ms - max(committed.commit_ms, since_ms) >= self.limits.retention_ms
            ]
            if places:
                found[name] = places
        return found

    def abandoned(self, now_ms: int) -> list[str]:
        """Return the groups that have had neither members nor offsets for the retention time of offsets."""
        return [
            name
            for name, group in self._groups.items()
            if group.state is GroupState.EMPTY
            and name not in self._offsets
            and now_ms - group.state_since_ms >= self.limits.retention_ms
        ]


def _row_of(group: Group) -> OffsetsRow:
    members = tuple(
        StoredMember(
            member.id,
            member.instance_id,
            member.client_id,
            member.client_host,
            member.rebalance_ms,
            member.session_ms,
            member.metadata_for(group.protocol),
            member.assignment,
        )
        for member in group.members.values()
    )
    stored = StoredGroup(
        group.protocol_type or "",
        group.generation,
        group.protocol,
        group.leader,
        group.state_since_ms,
        members,
    )
    return offsets_topic.group_key(group.id), offsets_topic.group_value(stored)


def _member_of(stored: StoredMember, protocol: str | None) -> GroupMember:
    return GroupMember(
        stored.id,
        stored.instance_id,
        stored.client_id,
        stored.client_host,
        stored.session_ms,
        stored.rebalance_ms,
        (Protocol(protocol or "", stored.subscription),),
        stored.assignment,
    )
