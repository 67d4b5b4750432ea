"""The coordinator of all consumer groups of a broker.

Like `group`: events in, effects out, time as an argument. Used by one thread, the server's event loop. State
to store is returned as records of the internal topic and takes effect when the server reports them stored.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from cordwood.broker.groups.actions import (
    Action,
    GroupReply,
    GroupState,
    HeartbeatAnswer,
    Joined,
    JoinRequest,
    Refusal,
    StoreRows,
    StoreState,
    Synced,
    Token,
)
from cordwood.broker.groups.consumer import (
    EPOCHS_FROM,
    CommitCheck,
    ConsumerGroup,
    LiveGroup,
    MemberHeartbeat,
    upgraded,
)
from cordwood.broker.groups.group import Group
from cordwood.broker.groups.known import AnyGroup, KnownGroups
from cordwood.broker.groups.offsets_topic import OffsetsRow
from cordwood.broker.groups.stored import row_of
from cordwood.broker.groups.writes import GroupWrites


class StoreGroup(NamedTuple):
    """Store *rows*, then call `Coordinator.stored` with the group, the generation and the token."""

    group: str
    generation: int
    rows: list[OffsetsRow]
    token: Token | None = None


class StoreConsumerRows(NamedTuple):
    """Store *rows*, then call `Coordinator.rows_stored` with the group and the number."""

    group: str
    number: int
    rows: Sequence[OffsetsRow]


Effect = GroupReply | StoreGroup | StoreConsumerRows


class Coordinator(KnownGroups):
    """The coordinator of all groups, of the classic and the consumer protocol. Used by one thread.

    *consumer* is what groups of the consumer protocol are told by the broker.
    """

    # --- members ----------------------------------------------------------------------------------

    def join(self, name: str, request: JoinRequest, token: Token, now_ms: int) -> list[Effect]:
        """Add a member to the group; create the group if it does not exist and the member is new."""
        group = self._groups.get(name)
        before: list[Action] = []
        if group is None or (isinstance(group, LiveGroup) and not group.members):
            if request.member_id:
                return [GroupReply(token, Joined(Refusal.UNKNOWN_MEMBER, request.member_id))]
            if group is not None:
                before = [StoreRows(self._tombstones(group), [])]
            group = self._new_group(name, now_ms)
        effects = self._effects(group, [*before, *group.join(request, token, now_ms)])
        self._drop_if_unused(group)
        return effects

    def consumer_heartbeat(
        self, name: str, beat: MemberHeartbeat, token: Token, now_ms: int
    ) -> tuple[list[Effect], frozenset[str]]:
        """Answer a heartbeat of the consumer protocol; create or convert the group if the member joins.

        Also returns the regular expressions to compare with all topics; `resolved` takes the result.
        """
        old = self._groups.get(name)
        if isinstance(old, LiveGroup):
            actions, resolve = old.beat(beat, token, now_ms)
            return self._effects(old, actions), resolve
        group = None if beat.epoch else self._consumer_group(name, old, now_ms)
        if group is None:
            return [GroupReply(token, HeartbeatAnswer(Refusal.NO_GROUP, beat.member_id))], frozenset()
        converted = [] if old is None else group.converted_rows()
        actions, resolve = group.beat(beat, token, now_ms)
        if not any(isinstance(action, StoreRows) for action in actions):
            return self._effects(group, actions), frozenset()
        self._groups[name] = group
        refused = [] if old is None else old.refuse_all(Refusal.REBALANCING)
        return self._effects(group, [*refused, StoreRows(converted, []), *actions]), resolve

    def _consumer_group(self, name: str, old: Group | None, now_ms: int) -> LiveGroup | None:
        """Return a group of the consumer protocol in place of *old*, or None if it cannot be converted."""
        if old is None or not old.members:
            return LiveGroup(ConsumerGroup(name), self._around, now_ms)
        size_max = self._basis.terms_of(name).size_max
        if not self._basis.policy().upgrades or len(old.members) > size_max:
            return None
        known = upgraded(old, self._basis.topics_of(name))
        if known is None:
            return None
        group = LiveGroup(known, self._around, now_ms)
        group.begun(now_ms)
        return group

    def resolved(
        self, name: str, found: Mapping[str, frozenset[str]] | None, version: int, now_ms: int
    ) -> list[Effect]:
        """Set the topics that regular expressions of a group match; None if they could not be compared."""
        group = self._groups.get(name)
        if not isinstance(group, LiveGroup):
            return []
        return self._effects(group, group.resolved(found, version, now_ms))

    def rows_stored(self, name: str, number: int, *, failed: bool) -> list[Effect]:
        """Continue after the rows of a `StoreConsumerRows` were stored, or could not be stored."""
        writes = self._writes[name]
        replies, told = writes.stored(number, failed=failed)
        if writes.is_idle:
            del self._writes[name]
        if told:
            return list(replies)
        return [reply._replace(result=type(reply.result)(Refusal.NOT_STORED)) for reply in replies]

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
        """Extend a member's session; return why its heartbeat is refused, or None.

        The next `deadline` may be earlier afterwards.
        """
        group = self._groups.get(name)
        if group is None:
            return Refusal.UNKNOWN_MEMBER
        refusal = group.heartbeat(member_id, instance_id, generation, now_ms)
        if isinstance(group, LiveGroup):
            # The member may have to join within a time that is shorter than its session.
            self._set_alarm(group)
        return refusal

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
        if not isinstance(group, Group):
            return []
        return self._effects(group, group.stored(generation, failed=failed, now_ms=now_ms, token=token))

    # --- time -------------------------------------------------------------------------------------

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

    def _drop_if_unused(self, group: AnyGroup) -> None:
        """Remove a group that never had a member: no join was completed or accepted."""
        if not group.generation and not group.members and group.deadline() is None:
            del self._groups[group.id]

    def _effects(self, group: AnyGroup, actions: Sequence[Action]) -> list[Effect]:
        if isinstance(group, LiveGroup) and group.successor is not None:
            group = self._groups[group.id] = group.successor
        if group.id in self._groups:
            self._set_alarm(group)
        effects: list[Effect] = []
        for action in actions:
            if isinstance(action, StoreRows):
                effects += self._store_rows(group, action)
            elif isinstance(action, StoreState):
                rows = self._repaired(group, [row_of(group)] if isinstance(group, Group) else [])
                effects.append(StoreGroup(group.id, action.generation, rows, action.token))
            else:
                effects.append(action)
        return effects

    def _store_rows(self, group: AnyGroup, action: StoreRows) -> list[Effect]:
        writes = self._writes.setdefault(group.id, GroupWrites())
        written = writes.write(action.rows, action.replies, lambda: _rows_of(group))
        if writes.is_idle:
            del self._writes[group.id]
        return list(written) if isinstance(written, list) else [StoreConsumerRows(group.id, *written)]

    def _repaired(self, group: AnyGroup, rows: list[OffsetsRow]) -> list[OffsetsRow]:
        writes = self._writes.get(group.id)
        return rows if writes is None else list(writes.repaired(rows, lambda: _rows_of(group)))

    def close(self) -> list[Effect]:
        """Answer all pending requests: the broker shuts down, and members must look for the coordinator."""
        return [
            effect
            for group in self._groups.values()
            for effect in self._effects(group, group.refuse_all(Refusal.NOT_STORED))
        ]

    # --- committed offsets ------------------------------------------------------------------------

    def check_commit(
        self,
        name: str,
        member_id: str,
        instance_id: str | None,
        generation: int,
        now_ms: int,
        version: int = EPOCHS_FROM,
    ) -> Refusal | CommitCheck | None:
        """Return why a commit of offsets is refused, or what says so of each partition, or None.

        A commit without a generation is allowed while the group has no members: consumers that assign
        partitions themselves do not join. A commit extends the session of its member in a classic group.
        *version* is that of the request.
        """
        group = self._groups.get(name)
        if isinstance(group, LiveGroup):
            return group.check_commit(member_id, instance_id, generation, version)
        if group is None or not group.members:
            if generation < 0:
                return None
            if group is not None:
                return Refusal.UNKNOWN_MEMBER
            return Refusal.NO_GROUP if version >= EPOCHS_FROM else Refusal.ILLEGAL_GENERATION
        if generation < 0 and not member_id:
            return Refusal.UNKNOWN_MEMBER
        refusal = group.check_member(member_id, instance_id, generation)
        if refusal is not None:
            return refusal
        if group.state is GroupState.COMPLETING:
            return Refusal.REBALANCING
        group.heartbeat(member_id, instance_id, generation, now_ms)
        return None

    def check_fetch(self, name: str, member_id: str | None, epoch: int) -> Refusal | None:
        """Return why committed offsets may not be read by a member, or None."""
        group = self._groups.get(name)
        return group.check_fetch(member_id, epoch) if isinstance(group, LiveGroup) else None

    def check_commit_in_transaction(
        self, name: str, member_id: str, instance_id: str | None, generation: int
    ) -> Refusal | CommitCheck | None:
        """Return why a commit of offsets in a transaction is refused, or what says so of each partition.

        As in Kafka, a producer that names neither a member nor a generation is allowed at any time: older
        ones cannot name them. The commit is also allowed during a rebalance, and does not extend a session.
        """
        group = self._groups.get(name)
        if group is None:
            return Refusal.ILLEGAL_GENERATION if generation >= 0 else None
        if isinstance(group, LiveGroup):
            return group.check_commit(member_id, instance_id, generation, None)
        if generation < 0 and (not group.members or (not member_id and instance_id is None)):
            return None
        return group.check_member(member_id, instance_id, generation)


def _rows_of(group: AnyGroup) -> list[OffsetsRow]:
    return [row_of(group)] if isinstance(group, Group) else group.rows()
