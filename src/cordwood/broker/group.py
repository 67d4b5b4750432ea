"""One consumer group, classic protocol: a state machine of events in, actions out.

Members join; once all of them have, or time is up, a generation begins: its leader, a member, decides who
gets what and hands that in; every member is told its share; they stay by sending heartbeats. Whatever
changes the set of members begins the next generation.

Nothing here waits, reads a clock or stores. Each event comes with the time in milliseconds and returns what
is to be done: requests to answer, and what to store before answering. `deadline` says when `tick` is due.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

Token = object
"""Stands for a request that is answered later. The group only hands it back."""


class State(Enum):
    """Where a group stands; values as Kafka's tools show them."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class Refusal(Enum):
    """Why a member is not served."""

    UNKNOWN_MEMBER = "no such member"
    MEMBER_ID_REQUIRED = "join again with the id you were given"
    ILLEGAL_GENERATION = "another generation"
    REBALANCING = "the group is rebalancing"
    INCONSISTENT_PROTOCOL = "no protocol in common with the group"
    FENCED = "another member has taken over the instance id"
    GROUP_FULL = "the group is full"
    NOT_STORED = "the generation could not be stored"


class Joined(NamedTuple):
    """What a member that joined is told; only the leader gets ``members``: (id, instance id, metadata)."""

    refusal: Refusal | None = None
    member_id: str = ""
    generation: int = -1
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    members: tuple[tuple[str, str | None, bytes], ...] = ()
    skip_assignment: bool = False


class Synced(NamedTuple):
    """What a member is assigned."""

    refusal: Refusal | None = None
    assignment: bytes = b""
    protocol_type: str | None = None
    protocol: str | None = None


class Reply(NamedTuple):
    """Answer the request behind *token*."""

    token: Token
    result: Joined | Synced


class Store(NamedTuple):
    """Store the group as it is now, then tell it with `stored`.

    *token* is the join of a member that was started anew, answered once its new id is stored.
    """

    generation: int
    token: Token | None = None


Action = Reply | Store


class Protocol(NamedTuple):
    """A way of assigning partitions that a member knows, and what it has to say to it."""

    name: str
    metadata: bytes


class JoinRequest(NamedTuple):
    """A member that wants in."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_ms: int
    rebalance_ms: int
    protocol_type: str
    protocols: tuple[Protocol, ...]
    id_required_first: bool = True
    """Whether the member knows what to do when it is told to come back with an id."""
    knows_skip: bool = False
    """Whether a leader can be told that there is nothing to assign."""


@dataclass(slots=True)
class Member:
    """A member of the group."""

    id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_ms: int
    rebalance_ms: int
    protocols: tuple[Protocol, ...]
    assignment: bytes = b""
    join: Token | None = None
    sync: Token | None = None
    #: What a member that was started anew is told once its new id is stored.
    replacing: Reply | None = None
    expires_ms: int = 0

    @property
    def waits(self) -> bool:
        """Whether it waits for us: it cannot send heartbeats behind a request that is not answered."""
        return self.join is not None or self.sync is not None

    def metadata_for(self, protocol: str | None) -> bytes:
        """Return what the member has to say to *protocol*."""
        return next((each.metadata for each in self.protocols if each.name == protocol), b"")


@dataclass(slots=True)
class Group:
    """See the module. ``new_member_id`` makes an id out of a client's or instance's name."""

    id: str
    new_member_id: Callable[[str], str]
    size_max: int = 1 << 30
    initial_delay_ms: int = 0
    state: State = State.EMPTY
    generation: int = 0
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str | None = None
    members: dict[str, Member] = field(default_factory=dict)
    state_since_ms: int = 0
    _instances: dict[str, str] = field(default_factory=dict)
    _pending: dict[str, int] = field(default_factory=dict)
    _join_deadline_ms: int | None = None
    _sync_deadline_ms: int | None = None
    _initial_until_ms: int = -1
    _storing: bool = False

    # --- what others ask --------------------------------------------------------------------------

    def check_member(self, member_id: str, instance_id: str | None, generation: int) -> Refusal | None:
        """Return why a member may not speak for the group in *generation*, None if it may."""
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

    def deadline(self) -> int | None:
        """Return when `tick` is due, None if nothing is."""
        times = [member.expires_ms for member in self.members.values() if not member.waits]
        times += self._pending.values()
        times += [at for at in (self._join_deadline_ms, self._sync_deadline_ms) if at is not None]
        return min(times, default=None)

    def restore(self, generation: int, protocol_type: str | None, now_ms: int) -> None:
        """Set the generation of a group without members that was stored."""
        self.generation, self.protocol_type, self.state_since_ms = generation, protocol_type, now_ms

    def restore_members(
        self, members: Iterable[Member], protocol: str | None, leader: str | None, now_ms: int
    ) -> None:
        """Go on with the members of a stored generation; each gets a session's time to be heard of."""
        for member in members:
            member.expires_ms = now_ms + member.session_ms
            self.members[member.id] = member
            if member.instance_id is not None:
                self._instances[member.instance_id] = member.id
        self.protocol, self.leader = protocol, leader
        self._enter(State.STABLE if self.members else State.EMPTY, now_ms)

    # --- joining ----------------------------------------------------------------------------------

    def join(self, request: JoinRequest, token: Token, now_ms: int) -> list[Action]:
        """Take a member in, or go on with one that is; the answer may come later."""
        if not self._accepts(request):
            return [Reply(token, Joined(Refusal.INCONSISTENT_PROTOCOL, request.member_id))]
        if not request.member_id:
            return self._join_unknown(request, token, now_ms)
        if request.member_id in self._pending and request.instance_id is None:
            del self._pending[request.member_id]
            return self._add(request.member_id, request, token, now_ms)
        refusal = self._check_identity(request.member_id, request.instance_id)
        if refusal is not None:
            return [Reply(token, Joined(refusal, request.member_id))]
        return self._join_again(self.members[request.member_id], request, token, now_ms)

    def _accepts(self, request: JoinRequest) -> bool:
        """Return whether the group and the member have a protocol in common."""
        if not request.protocols or not request.protocol_type:
            return False
        others = [member for member in self.members.values() if member.id != request.member_id]
        if not others:
            return True
        common = self._common(others)
        return request.protocol_type == self.protocol_type and any(
            each.name in common for each in request.protocols
        )

    @staticmethod
    def _common(members: Sequence[Member]) -> set[str]:
        # A name counts once a member, however often it is listed.
        known = Counter(name for member in members for name in {each.name for each in member.protocols})
        return {name for name, count in known.items() if count >= len(members)}

    def _join_unknown(self, request: JoinRequest, token: Token, now_ms: int) -> list[Action]:
        replaced = self._instances.get(request.instance_id) if request.instance_id is not None else None
        if replaced is not None:
            return self._replace(self.members[replaced], request, token, now_ms)
        if len(self.members) + len(self._pending) >= self.size_max:
            return [Reply(token, Joined(Refusal.GROUP_FULL))]
        member_id = self.new_member_id(request.instance_id or request.client_id)
        if request.instance_id is None and request.id_required_first:
            # One that never comes back must not be waited for longer than a session.
            self._pending[member_id] = now_ms + request.session_ms
            return [Reply(token, Joined(Refusal.MEMBER_ID_REQUIRED, member_id))]
        return self._add(member_id, request, token, now_ms)

    def _add(self, member_id: str, request: JoinRequest, token: Token, now_ms: int) -> list[Action]:
        if len(self.members) >= self.size_max:
            return [Reply(token, Joined(Refusal.GROUP_FULL, member_id))]
        first = not self.members
        member = Member(
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
        return self._prepare(now_ms, delayed=first and self.state is State.EMPTY)

    def _replace(self, old: Member, request: JoinRequest, token: Token, now_ms: int) -> list[Action]:
        """Let a static member that was started anew take the place of the one before."""
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
        if self.state is State.STABLE and unchanged:
            # Nothing has changed that would move a partition, so nobody is disturbed. A leader that does
            # not know how to skip the assignment must not be one now: it is told of its old self.
            result = self._joined(old)
            if was_leader:
                skip = request.knows_skip
                members = self._metadata() if skip else ()
                leader = member_id if skip else old_id
                result = result._replace(members=members, leader=leader, skip_assignment=skip)
            # A restart that knew the old id alone would take the member for one that was fenced.
            old.replacing = Reply(token, result)
            return [*actions, Store(self.generation, token)]
        old.join = token
        return [*actions, *self._prepare(now_ms)]

    def _same_metadata(self, member: Member, request: JoinRequest) -> bool:
        now = next((each.metadata for each in request.protocols if each.name == self.protocol), None)
        return now is not None and now == member.metadata_for(self.protocol)

    def _join_again(self, member: Member, request: JoinRequest, token: Token, now_ms: int) -> list[Action]:
        changed = member.protocols != request.protocols
        settled = self.state in (State.STABLE, State.COMPLETING) and not changed
        if settled and not (self.state is State.STABLE and member.id == self.leader):
            # It did not get our answer; a leader of a stable group asks for a rebalance by joining.
            member.expires_ms = now_ms + member.session_ms
            members = self._metadata() if member.id == self.leader else ()
            return [Reply(token, self._joined(member)._replace(members=members))]
        member.protocols = request.protocols
        member.session_ms, member.rebalance_ms = request.session_ms, request.rebalance_ms
        actions: list[Action] = []
        if member.join is not None:
            actions = [Reply(member.join, Joined(Refusal.REBALANCING, member.id))]
        member.join = token
        return [*actions, *self._prepare(now_ms)]

    # --- rebalancing ------------------------------------------------------------------------------

    def _prepare(self, now_ms: int, *, delayed: bool = False) -> list[Action]:
        """Begin a rebalance, or go on with the one under way."""
        actions: list[Action] = []
        if self.state is not State.PREPARING:
            for member in self.members.values():
                if member.sync is not None:
                    member.expires_ms = now_ms + member.session_ms
                    actions += self._refuse_sync(member, Refusal.REBALANCING)
            self._storing = False
            self._sync_deadline_ms = None
            self._enter(State.PREPARING, now_ms)
            wait = max((member.rebalance_ms for member in self.members.values()), default=0)
            if delayed and self.initial_delay_ms:
                # More members of a group that just starts are likely to come at once.
                self._initial_until_ms = now_ms + self.initial_delay_ms
                wait = self.initial_delay_ms
            self._join_deadline_ms = now_ms + wait
        return [*actions, *self._begin_generation_if_all_joined(now_ms)]

    def _begin_generation_if_all_joined(self, now_ms: int) -> list[Action]:
        waiting = self._pending or any(member.join is None for member in self.members.values())
        if self.state is not State.PREPARING or waiting or now_ms < self._initial_until_ms:
            return []
        return self._begin_generation(now_ms)

    def _begin_generation(self, now_ms: int) -> list[Action]:
        """Begin the next generation with the members that joined."""
        for member in list(self.members.values()):
            # A static member is missed only when its session ends: it may be just restarting.
            if member.join is None and member.instance_id is None:
                self._forget(member)
        self._join_deadline_ms, self._initial_until_ms = None, -1
        joined = [member for member in self.members.values() if member.join is not None]
        if self.members and not joined:
            # Only static members are left, and none has come: wait for them, or for their sessions to end.
            wait = max(max(member.rebalance_ms, member.session_ms) for member in self.members.values())
            self._join_deadline_ms = now_ms + max(wait, 1)
            return []
        self.generation += 1
        if not self.members:
            self.protocol = self.leader = None
            self._enter(State.EMPTY, now_ms)
            return [Store(self.generation)]
        if self.leader not in {member.id for member in joined}:
            self.leader = joined[0].id
        self.protocol = self._vote()
        self._enter(State.COMPLETING, now_ms)
        self._sync_deadline_ms = now_ms + max(member.rebalance_ms for member in self.members.values())
        actions: list[Action] = []
        for member in joined:
            token, member.join = member.join, None
            member.assignment = b""
            member.expires_ms = now_ms + member.session_ms
            members = self._metadata() if member.id == self.leader else ()
            actions.append(Reply(token, self._joined(member)._replace(members=members)))
        return actions

    def _vote(self) -> str:
        """Return the protocol that most members like best among those that all of them know."""
        members = list(self.members.values())
        common = self._common(members)
        votes = Counter(
            next(each.name for each in member.protocols if each.name in common) for member in members
        )
        return votes.most_common(1)[0][0]

    def _joined(self, member: Member) -> Joined:
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
        """Tell a member its assignment, as soon as the leader has handed it in and it is stored."""
        refusal = self.check_member(member_id, instance_id, generation)
        if refusal is None and (
            (protocol_type is not None and protocol_type != self.protocol_type)
            or (protocol is not None and protocol != self.protocol)
        ):
            refusal = Refusal.INCONSISTENT_PROTOCOL
        if refusal is None and self.state is State.PREPARING:
            refusal = Refusal.REBALANCING
        if refusal is not None:
            return [Reply(token, Synced(refusal))]
        member = self.members[member_id]
        member.expires_ms = now_ms + member.session_ms
        if self.state is State.STABLE:
            return [Reply(token, self._synced(member))]
        actions = self._refuse_sync(member, Refusal.REBALANCING)
        member.sync = token
        if member_id == self.leader and not self._storing:
            given = dict(assignments)
            for each in self.members.values():
                each.assignment = given.get(each.id, b"")
            self._storing = True
            actions.append(Store(self.generation))
        return actions

    def stored(
        self, generation: int, *, failed: bool, now_ms: int, token: Token | None = None
    ) -> list[Action]:
        """Go on now that what `Store` asked for is stored, or could not be."""
        if token is not None:
            return self._replaced(token, failed, now_ms)
        if not self._storing or generation != self.generation or self.state is not State.COMPLETING:
            return []
        self._storing = False
        if failed:
            # Nobody may act on an assignment that a restart would not know of.
            actions: list[Action] = []
            for member in self.members.values():
                member.assignment = b""
                if member.sync is not None:
                    member.expires_ms = now_ms + member.session_ms
                    actions += self._refuse_sync(member, Refusal.NOT_STORED)
            return [*actions, *self._prepare(now_ms)]
        self._enter(State.STABLE, now_ms)
        self._sync_deadline_ms = None
        actions = []
        for member in self.members.values():
            if member.sync is not None:
                token, member.sync = member.sync, None
                member.expires_ms = now_ms + member.session_ms
                actions.append(Reply(token, self._synced(member)))
            else:
                # It has a session's time to ask for what it was assigned.
                member.expires_ms = max(member.expires_ms, now_ms + member.session_ms)
        return actions

    def _replaced(self, token: Token, failed: bool, now_ms: int) -> list[Action]:
        """Tell a member that was started anew, unless something else happened to it meanwhile."""
        for member in self.members.values():
            if member.replacing is not None and member.replacing.token is token:
                reply, member.replacing = member.replacing, None
                member.expires_ms = now_ms + member.session_ms
                return [Reply(token, Joined(Refusal.NOT_STORED)) if failed else reply]
        return []

    def _synced(self, member: Member) -> Synced:
        return Synced(None, member.assignment, self.protocol_type, self.protocol)

    # --- staying and leaving ----------------------------------------------------------------------

    def heartbeat(
        self, member_id: str, instance_id: str | None, generation: int, now_ms: int
    ) -> Refusal | None:
        """Keep a member; return what it is to be told, None if all is well."""
        refusal = self.check_member(member_id, instance_id, generation)
        if refusal is not None:
            return refusal
        self.members[member_id].expires_ms = now_ms + self.members[member_id].session_ms
        return Refusal.REBALANCING if self.state is State.PREPARING else None

    def leave(
        self, member_id: str, instance_id: str | None, now_ms: int
    ) -> tuple[Refusal | None, list[Action]]:
        """Let a member go; a static one may be named by its instance alone."""
        if instance_id is not None and not member_id:
            member_id = self._instances.get(instance_id, "")
        if member_id in self._pending and instance_id is None:
            del self._pending[member_id]
            return None, self._begin_generation_if_all_joined(now_ms)
        refusal = self._check_identity(member_id, instance_id)
        if refusal is not None:
            return refusal, []
        return None, self._remove(self.members[member_id], now_ms)

    def tick(self, now_ms: int) -> list[Action]:
        """Do what is due: drop members not heard of, go on with a rebalance that takes too long."""
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
        return [*actions, *self._begin_generation_if_all_joined(now_ms)]

    def refuse_all(self, refusal: Refusal) -> list[Action]:
        """Answer everyone who waits: the group is not served any more."""
        return [
            action for member in self.members.values() for action in self._refuse_waiting(member, refusal)
        ]

    def _remove(self, member: Member, now_ms: int) -> list[Action]:
        actions = self._refuse_waiting(member, Refusal.UNKNOWN_MEMBER)
        self._forget(member)
        if self.state in (State.STABLE, State.COMPLETING):
            return [*actions, *self._prepare(now_ms)]
        return [*actions, *self._begin_generation_if_all_joined(now_ms)]

    def _forget(self, member: Member) -> None:
        del self.members[member.id]
        if member.instance_id is not None and self._instances.get(member.instance_id) == member.id:
            del self._instances[member.instance_id]
        if self.leader == member.id:
            self.leader = next(iter(self.members), None)

    def _refuse_waiting(self, member: Member, refusal: Refusal) -> list[Action]:
        actions = self._refuse_sync(member, refusal)
        if member.join is not None:
            token, member.join = member.join, None
            actions.append(Reply(token, Joined(refusal, member.id)))
        if member.replacing is not None:
            token, member.replacing = member.replacing.token, None
            actions.append(Reply(token, Joined(refusal, member.id)))
        return actions

    @staticmethod
    def _refuse_sync(member: Member, refusal: Refusal) -> list[Action]:
        if member.sync is None:
            return []
        token, member.sync = member.sync, None
        return [Reply(token, Synced(refusal))]

    def _enter(self, state: State, now_ms: int) -> None:
        self.state, self.state_since_ms = state, now_ms
