"""One consumer group, classic protocol: a state machine of events in, actions out.

Members join. Once all of them have joined, or time is up, a generation begins: one member, the leader, sends
the assignment of all members; each member is sent its own; they stay by sending heartbeats. Each change of
the set of members begins the next generation.

Nothing here waits, reads a clock or stores. Each event comes with the time in milliseconds and returns the
actions to perform: requests to answer, and a state to store before answering. `deadline` returns when `tick`
is due.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from cordwood.broker.groups.actions import (
    Action,
    GroupMember,
    GroupReply,
    GroupState,
    Joined,
    JoinRequest,
    Refusal,
    StoreState,
    Synced,
    Token,
)
from cordwood.broker.groups.voting import common_protocols, vote


@dataclass(slots=True)
class Group:
    """A consumer group. ``new_member_id`` makes an id from the name of a client or instance."""

    id: str
    new_member_id: Callable[[str], str]
    size_max: int = 1 << 30
    initial_delay_ms: int = 0
    state: GroupState = GroupState.EMPTY
    generation: int = 0
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str | None = None
    members: dict[str, GroupMember] = field(default_factory=dict)
    state_since_ms: int = 0
    _instances: dict[str, str] = field(default_factory=dict)
    _pending: dict[str, int] = field(default_factory=dict)
    _join_deadline_ms: int | None = None
    _sync_deadline_ms: int | None = None
    _initial_until_ms: int = -1
    #: What the leader assigned, while it is being stored. Until then members own what they had before.
    _given: dict[str, bytes] | None = None

    # --- queries ----------------------------------------------------------------------------------

    def check_member(self, member_id: str, instance_id: str | None, generation: int) -> Refusal | None:
        """Return why a request of a member in *generation* is refused, or None."""
        refusal = self._check_identity(member_id, instance_id)
        if refusal is not None:
            return refusal
        return None if generation == self.generation else Refusal.ILLEGAL_GENERATION

    def _check_identity(self, member_id: str, instance_id: str | None) -> Refusal | None:
        if instance_id is not None and self._instances.get(instance_id, member_id) != member_id:
            return Refusal.FENCED
        if member_id not in self.members:
            return Refusal.UNKNOWN_MEMBER
        if instance_id is not None and instance_id not in self._instances:
            return Refusal.UNKNOWN_MEMBER
        return None

    def assignment_to_store(self, member: GroupMember) -> bytes:
        """Return the assignment of a member: the one that is being stored, if there is one."""
        return member.assignment if self._given is None else self._given.get(member.id, b"")

    def deadline(self) -> int | None:
        """Return the time when `tick` is due, or None."""
        times = [member.expires_ms for member in self.members.values() if not member.waits]
        times += self._pending.values()
        times += [at for at in (self._join_deadline_ms, self._sync_deadline_ms) if at is not None]
        return min(times, default=None)

    def restore(self, generation: int, protocol_type: str | None, now_ms: int) -> None:
        """Set the generation of a stored group without members."""
        self.generation, self.protocol_type, self.state_since_ms = generation, protocol_type, now_ms

    def restore_members(
        self, members: Iterable[GroupMember], protocol: str | None, leader: str | None, now_ms: int
    ) -> None:
        """Restore the members of a stored generation. The session timeout of each starts at *now_ms*.

        Without a *leader* they have to join again.
        """
        for member in members:
            member.expires_ms = now_ms + member.session_ms
            self.members[member.id] = member
            if member.instance_id is not None:
                self._instances[member.instance_id] = member.id
        # The stored leader is used only if it is a member.
        known = leader if leader in self.members else next(iter(self.members), None)
        self.protocol, self.leader = protocol, known
        self._enter(GroupState.STABLE if self.members else GroupState.EMPTY, now_ms)
        if self.members and leader is None:
            self._prepare(now_ms)

    # --- joining ----------------------------------------------------------------------------------

    def join(self, request: JoinRequest, token: Token, now_ms: int) -> list[Action]:
        """Add a member, or continue with a member that joined before. The answer may come later."""
        actions = self._join(request, token, now_ms)
        self.check_invariants()
        return actions

    def _join(self, request: JoinRequest, token: Token, now_ms: int) -> list[Action]:
        if not self._accepts(request):
            return [GroupReply(token, Joined(Refusal.INCONSISTENT_PROTOCOL, request.member_id))]
        if not request.member_id:
            return self._join_unknown(request, token, now_ms)
        if request.member_id in self._pending and request.instance_id is None:
            del self._pending[request.member_id]
            return self._add(request.member_id, request, token, now_ms)
        refusal = self._check_identity(request.member_id, request.instance_id)
        if refusal is not None:
            return [GroupReply(token, Joined(refusal, request.member_id))]
        return self._join_again(self.members[request.member_id], request, token, now_ms)

    def _accepts(self, request: JoinRequest) -> bool:
        """Return whether the group and the member have a protocol in common."""
        if not request.protocols or not request.protocol_type:
            return False
        others = [member for member in self.members.values() if member.id != request.member_id]
        if not others:
            return True
        common = common_protocols(others)
        return request.protocol_type == self.protocol_type and any(
            each.name in common for each in request.protocols
        )

    def _join_unknown(self, request: JoinRequest, token: Token, now_ms: int) -> list[Action]:
        replaced = self._instances.get(request.instance_id) if request.instance_id is not None else None
        if replaced is not None:
            return self._replace(self.members[replaced], request, token, now_ms)
        if len(self.members) + len(self._pending) >= self.size_max:
            return [GroupReply(token, Joined(Refusal.GROUP_FULL))]
        member_id = self.new_member_id(request.instance_id or request.client_id)
        if request.instance_id is None and request.id_required_first:
            # A member that does not return must not delay the group longer than a session.
            self._pending[member_id] = now_ms + request.session_ms
            return [GroupReply(token, Joined(Refusal.MEMBER_ID_REQUIRED, member_id))]
        return self._add(member_id, request, token, now_ms)

    def _add(self, member_id: str, request: JoinRequest, token: Token, now_ms: int) -> list[Action]:
        if len(self.members) >= self.size_max:
            return [GroupReply(token, Joined(Refusal.GROUP_FULL, member_id))]
        first = not self.members
        member = GroupMember(
            member_id,
            request.instance_id,
            request.client_id,
            request.client_host,
            request.session_ms,
            request.rebalance_ms,
            request.protocols,
        )
        self.members[member_id] = member
        if request.instance_id is not None:
            self._instances[request.instance_id] = member_id
        if self.leader is None:
            self.leader = member_id
        if first:
            self.protocol_type = request.protocol_type
        member.join = token
        return self._prepare(now_ms, delayed=first and self.state is GroupState.EMPTY)

    def _replace(self, old: GroupMember, request: JoinRequest, token: Token, now_ms: int) -> list[Action]:
        """Replace the member of an instance id by its restarted one."""
        actions = self._refuse_waiting(old, Refusal.FENCED)
        member_id = self.new_member_id(request.instance_id or request.client_id)
        unchanged = self._same_metadata(old, request)
        old_id = old.id
        del self.members[old_id]
        old.id, old.client_id, old.client_host = member_id, request.client_id, request.client_host
        old.protocols = request.protocols
        old.session_ms, old.rebalance_ms = request.session_ms, request.rebalance_ms
        old.expires_ms = now_ms + old.session_ms
        self.members[member_id] = old
        assert request.instance_id is not None
        self._instances[request.instance_id] = member_id
        was_leader = self.leader not in self.members
        if was_leader:
            self.leader = member_id
        if self.state is GroupState.STABLE and unchanged:
            # No change can move a partition, so there is no rebalance. A leader that does not understand the
            # flag to skip the assignment must not act as leader: it is told that its old id is the leader.
            result = self._joined(old)
            if was_leader:
                skip = request.knows_skip
                members = self._metadata() if skip else ()
                leader = member_id if skip else old_id
                result = result._replace(members=members, leader=leader, skip_assignment=skip)
            # After a restart of the broker with only the old id, the member would be fenced.
            old.replacing = GroupReply(token, result)
            return [*actions, StoreState(self.generation, token)]
        old.join = token
        return [*actions, *self._prepare(now_ms)]

    def _same_metadata(self, member: GroupMember, request: JoinRequest) -> bool:
        now = next((each.metadata for each in request.protocols if each.name == self.protocol), None)
        return now is not None and now == member.metadata_for(self.protocol)

    def _join_again(
        self, member: GroupMember, request: JoinRequest, token: Token, now_ms: int
    ) -> list[Action]:
        changed = member.protocols != request.protocols
        settled = self.state in (GroupState.STABLE, GroupState.COMPLETING) and not changed
        if settled and not (self.state is GroupState.STABLE and member.id == self.leader):
            # The member did not receive the answer. A leader of a stable group joins to request a rebalance.
            member.expires_ms = now_ms + member.session_ms
            members = self._metadata() if member.id == self.leader else ()
            return [GroupReply(token, self._joined(member)._replace(members=members))]
        member.protocols = request.protocols
        member.session_ms, member.rebalance_ms = request.session_ms, request.rebalance_ms
        actions: list[Action] = []
        if member.join is not None:
            actions = [GroupReply(member.join, Joined(Refusal.REBALANCING, member.id))]
        member.join = token
        return [*actions, *self._prepare(now_ms)]

    # --- rebalancing ------------------------------------------------------------------------------

    def rebalance(self, now_ms: int) -> list[Action]:
        """Begin a rebalance: the members have to join again."""
        actions = self._prepare(now_ms)
        self.check_invariants()
        return actions

    def _prepare(self, now_ms: int, *, delayed: bool = False) -> list[Action]:
        """Begin a rebalance, or continue the current one."""
        actions: list[Action] = []
        if self.state is not GroupState.PREPARING:
            for member in self.members.values():
                if member.sync is not None:
                    member.expires_ms = now_ms + member.session_ms
                    actions += self._refuse_sync(member, Refusal.REBALANCING)
            self._given = None
            self._sync_deadline_ms = None
            self._enter(GroupState.PREPARING, now_ms)
            wait = max((member.rebalance_ms for member in self.members.values()), default=0)
            if delayed and self.initial_delay_ms:
                # More members of a new group are likely to join soon.
                self._initial_until_ms = now_ms + self.initial_delay_ms
                wait = self.initial_delay_ms
            self._join_deadline_ms = now_ms + wait
        return [*actions, *self._begin_generation_if_all_joined(now_ms)]

    def _begin_generation_if_all_joined(self, now_ms: int) -> list[Action]:
        waiting = self._pending or any(member.join is None for member in self.members.values())
        if self.state is not GroupState.PREPARING or waiting or now_ms < self._initial_until_ms:
            return []
        return self._begin_generation(now_ms)

    def _begin_generation(self, now_ms: int) -> list[Action]:
        """Begin the next generation with the members that joined."""
        for member in list(self.members.values()):
            # A static member is removed only when its session ends: it may be restarting.
            if member.join is None and member.instance_id is None:
                self._forget(member)
        self._join_deadline_ms, self._initial_until_ms = None, -1
        joined = [member for member in self.members.values() if member.join is not None]
        if self.members and not joined:
            # Only static members are left, and none has joined: wait for them, or for their sessions to end.
            wait = max(max(member.rebalance_ms, member.session_ms) for member in self.members.values())
            self._join_deadline_ms = now_ms + max(wait, 1)
            return []
        self.generation += 1
        if not self.members:
            self.protocol = self.leader = None
            self._enter(GroupState.EMPTY, now_ms)
            return [StoreState(self.generation)]
        if self.leader not in {member.id for member in joined}:
            self.leader = joined[0].id
        self.protocol = vote(self.members.values())
        self._enter(GroupState.COMPLETING, now_ms)
        self._sync_deadline_ms = now_ms + max(member.rebalance_ms for member in self.members.values())
        actions: list[Action] = []
        for member in joined:
            token, member.join = member.join, None
            member.expires_ms = now_ms + member.session_ms
            members = self._metadata() if member.id == self.leader else ()
            actions.append(GroupReply(token, self._joined(member)._replace(members=members)))
        return actions

    def _joined(self, member: GroupMember) -> Joined:
        return Joined(None, member.id, self.generation, self.protocol_type, self.protocol, self.leader or "")

    def _metadata(self) -> tuple[tuple[str, str | None, bytes], ...]:
        return tuple(
            (member.id, member.instance_id, member.metadata_for(self.protocol))
            for member in self.members.values()
        )

    # --- syncing ----------------------------------------------------------------------------------

    def sync(
        self,
        member_id: str,
        instance_id: str | None,
        generation: int,
        protocol_type: str | None,
        protocol: str | None,
        assignments: Iterable[tuple[str, bytes]],
        token: Token,
        now_ms: int,
    ) -> list[Action]:
        """Answer a member with its assignment once the leader has sent it and it is stored."""
        refusal = self.check_member(member_id, instance_id, generation)
        if refusal is None and (
            (protocol_type is not None and protocol_type != self.protocol_type)
            or (protocol is not None and protocol != self.protocol)
        ):
            refusal = Refusal.INCONSISTENT_PROTOCOL
        if refusal is None and self.state is GroupState.PREPARING:
            refusal = Refusal.REBALANCING
        if refusal is not None:
            return [GroupReply(token, Synced(refusal))]
        member = self.members[member_id]
        member.expires_ms = now_ms + member.session_ms
        if self.state is GroupState.STABLE:
            return [GroupReply(token, self._synced(member))]
        actions = self._refuse_sync(member, Refusal.REBALANCING)
        member.sync = token
        if member_id == self.leader and self._given is None:
            self._given = dict(assignments)
            actions.append(StoreState(self.generation))
        self.check_invariants()
        return actions

    def stored(
        self, generation: int, *, failed: bool, now_ms: int, token: Token | None = None
    ) -> list[Action]:
        """Continue after the state of a `StoreState` was stored, or could not be stored."""
        actions = self._after_storing(generation, failed, now_ms, token)
        self.check_invariants()
        return actions

    def _after_storing(self, generation: int, failed: bool, now_ms: int, token: Token | None) -> list[Action]:
        if token is not None:
            return self._replaced(token, failed, now_ms)
        given = self._given
        if given is None or generation != self.generation or self.state is not GroupState.COMPLETING:
            return []
        self._given = None
        if failed:
            # No member may act on an assignment that is unknown after a restart.
            actions: list[Action] = []
            for member in self.members.values():
                if member.sync is not None:
                    member.expires_ms = now_ms + member.session_ms
                    actions += self._refuse_sync(member, Refusal.NOT_STORED)
            return [*actions, *self._prepare(now_ms)]
        self._enter(GroupState.STABLE, now_ms)
        self._sync_deadline_ms = None
        actions = []
        for member in self.members.values():
            member.assignment = given.get(member.id, b"")
            if member.sync is not None:
                token, member.sync = member.sync, None
                member.expires_ms = now_ms + member.session_ms
                actions.append(GroupReply(token, self._synced(member)))
            else:
                # The member has one session timeout to ask for its assignment.
                member.expires_ms = max(member.expires_ms, now_ms + member.session_ms)
        return actions

    def _replaced(self, token: Token, failed: bool, now_ms: int) -> list[Action]:
        """Answer a restarted static member, unless it is already answered."""
        for member in self.members.values():
            if member.replacing is not None and member.replacing.token is token:
                reply, member.replacing = member.replacing, None
                member.expires_ms = now_ms + member.session_ms
                return [GroupReply(token, Joined(Refusal.NOT_STORED)) if failed else reply]
        return []

    def _synced(self, member: GroupMember) -> Synced:
        return Synced(None, member.assignment, self.protocol_type, self.protocol)

    # --- staying and leaving ----------------------------------------------------------------------

    def heartbeat(
        self, member_id: str, instance_id: str | None, generation: int, now_ms: int
    ) -> Refusal | None:
        """Extend a member's session; return why its heartbeat is refused, or None."""
        refusal = self.check_member(member_id, instance_id, generation)
        if refusal is not None:
            return refusal
        self.members[member_id].expires_ms = now_ms + self.members[member_id].session_ms
        return Refusal.REBALANCING if self.state is GroupState.PREPARING else None

    def leave(
        self, member_id: str, instance_id: str | None, now_ms: int
    ) -> tuple[Refusal | None, list[Action]]:
        """Remove a member. A static member may be named by its instance id alone."""
        if instance_id is not None and not member_id:
            member_id = self._instances.get(instance_id, "")
        if member_id in self._pending and instance_id is None:
            del self._pending[member_id]
            return None, self._begin_generation_if_all_joined(now_ms)
        refusal = self._check_identity(member_id, instance_id)
        if refusal is not None:
            return refusal, []
        actions = self._remove(self.members[member_id], now_ms)
        self.check_invariants()
        return None, actions

    def tick(self, now_ms: int) -> list[Action]:
        """Apply deadlines: remove members whose session ended, end a rebalance that takes too long."""
        actions: list[Action] = []
        for member_id, expires_ms in list(self._pending.items()):
            if expires_ms <= now_ms:
                del self._pending[member_id]
        for member in list(self.members.values()):
            if not member.waits and member.expires_ms <= now_ms and member.id in self.members:
                actions += self._remove(member, now_ms)
        if self._sync_deadline_ms is not None and self._sync_deadline_ms <= now_ms:
            self._sync_deadline_ms = None
            for member in [each for each in self.members.values() if each.sync is None]:
                actions += self._remove(member, now_ms)
        if self._join_deadline_ms is not None and self._join_deadline_ms <= now_ms:
            self._pending.clear()
            actions += self._begin_generation(now_ms)
        actions += self._begin_generation_if_all_joined(now_ms)
        self.check_invariants()
        return actions

    def check_invariants(self) -> None:
        """Check that state, members and deadlines agree. Takes constant time.

        Raises:
            AssertionError: If they do not: a bug in this code.
        """
        state = self.state
        assert state not in (GroupState.EMPTY, GroupState.DEAD) or not self.members, (
            "an empty group has members"
        )
        assert state not in (GroupState.COMPLETING, GroupState.STABLE) or self.members, (
            "a generation without members"
        )
        assert self.leader is None or self.leader in self.members, "the leader is not a member"
        assert len(self._instances) <= len(self.members), "more instances than members"
        assert self._join_deadline_ms is None or state is GroupState.PREPARING, (
            "join deadline in a wrong state"
        )
        assert self._sync_deadline_ms is None or state is GroupState.COMPLETING, (
            "sync deadline in a wrong state"
        )
        assert self._given is None or state is GroupState.COMPLETING, (
            "an assignment is stored in a wrong state"
        )

    def refuse_all(self, refusal: Refusal) -> list[Action]:
        """Answer all pending requests with *refusal*: the group is no longer served."""
        return [
            action for member in self.members.values() for action in self._refuse_waiting(member, refusal)
        ]

    def _remove(self, member: GroupMember, now_ms: int) -> list[Action]:
        actions = self._refuse_waiting(member, Refusal.UNKNOWN_MEMBER)
        self._forget(member)
        if self.state in (GroupState.STABLE, GroupState.COMPLETING):
            return [*actions, *self._prepare(now_ms)]
        return [*actions, *self._begin_generation_if_all_joined(now_ms)]

    def _forget(self, member: GroupMember) -> None:
        del self.members[member.id]
        if member.instance_id is not None and self._instances.get(member.instance_id) == member.id:
            del self._instances[member.instance_id]
        if self.leader == member.id:
            self.leader = next(iter(self.members), None)

    def _refuse_waiting(self, member: GroupMember, refusal: Refusal) -> list[Action]:
        actions = self._refuse_sync(member, refusal)
        if member.join is not None:
            token, member.join = member.join, None
            actions.append(GroupReply(token, Joined(refusal, member.id)))
        if member.replacing is not None:
            token, member.replacing = member.replacing.token, None
            actions.append(GroupReply(token, Joined(refusal, member.id)))
        return actions

    @staticmethod
    def _refuse_sync(member: GroupMember, refusal: Refusal) -> list[Action]:
        if member.sync is None:
            return []
        token, member.sync = member.sync, None
        return [GroupReply(token, Synced(refusal))]

    def _enter(self, state: GroupState, now_ms: int) -> None:
        self.state, self.state_since_ms = state, now_ms
