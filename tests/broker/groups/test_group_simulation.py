"""Twenty consumers and their coordinator in virtual time: joining, leaving, crashing, hanging, started anew.

Each run is one seed. Consumers share twelve partitions under the eager range assignor or a cooperative one
that takes partitions away in one generation and gives them out in the next; what they say and what they are
told takes time, and so does storing. The coordinator is killed too: the next one knows what was stored and
acknowledged, and some of what was not. `CORDWOOD_GROUP_RUNS` sets how many runs there are,
`CORDWOOD_SEED` the first seed.

The checks, all of them from the consumers' side of the wire:

- no generation has two owners of a partition, by what members are told and by what they may commit, and
  who asks again is told the same;
- no two consumers of one generation hold the same partition, at any time;
- the generation of assignments that are told never goes back, nor do committed positions;
- nobody is fenced but by a newer instance; nobody is answered twice;
- once the churn stops the group comes to rest: every partition has exactly one owner, and that one lives.
"""

from __future__ import annotations

import heapq
import itertools
import os
import random
import re
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from support.seeds import seed_or

from cordwood.broker.groups import known, stored
from cordwood.broker.groups.actions import (
    Action,
    GroupMember,
    GroupReply,
    GroupState,
    Joined,
    JoinRequest,
    Protocol,
    Refusal,
    Synced,
)
from cordwood.broker.groups.coordinator import Coordinator, Effect, StoreGroup
from cordwood.broker.groups.group import Group
from cordwood.broker.groups.known import GroupLimits
from cordwood.broker.groups.offsets_topic import Committed, OffsetsRow

RUNS = int(os.environ.get("CORDWOOD_GROUP_RUNS", "1000"))
SEED = seed_or(20_260_405)
#: A canary that is caught is caught by one of so many runs; most fall to the first few.
CANARY_RUNS = 150

GROUP, TOPIC = "group", "topic"
SLOTS, STATIC_SLOTS, PARTITIONS = 20, 8, 12
ALL = (1 << PARTITIONS) - 1
HEARTBEAT_MS, SESSION_MS, REBALANCE_MS = 80, 300, 600
CHURN_MS, CHURN_EVENTS = 2_500, 24
#: How long a group may take to come to rest: a few sessions and rebalances one after the other.
REST_MS = 6 * (SESSION_MS + REBALANCE_MS)
LIMITS = GroupLimits(session_min_ms=1)


class Broken(AssertionError):
    """Something that must never be."""


def bits(mask: int) -> list[int]:
    return [partition for partition in range(PARTITIONS) if mask >> partition & 1]


# --- what consumers agree on --------------------------------------------------------------------------


def assign_range(claims: Mapping[str, int]) -> dict[str, int]:
    """Share all partitions out in ranges, whoever had them before."""
    share, more = divmod(PARTITIONS, len(claims))
    assigned, at = {}, 0
    for number, member in enumerate(sorted(claims)):
        size = share + (number < more)
        assigned[member] = ((1 << size) - 1) << at
        at += size
    return assigned


def assign_cooperatively(claims: Mapping[str, int]) -> dict[str, int]:
    """Leave everyone what it has up to its share, and give out only what nobody has."""
    share, more = divmod(PARTITIONS, len(claims))
    seen = twice = 0
    for mask in claims.values():
        twice |= seen & mask
        seen |= mask
    assigned = {}
    for member, mask in sorted(claims.items(), key=lambda item: (-item[1].bit_count(), item[0])):
        size = share + (more > 0)
        kept = bits(mask & ~twice)[:size]
        more -= len(kept) == share + 1
        assigned[member] = sum(1 << partition for partition in kept)
    free = bits(ALL & ~seen)
    for size in (share, share + 1):
        for member in sorted(assigned):
            while free and assigned[member].bit_count() < size:
                assigned[member] |= 1 << free.pop()
    return assigned


Assignor = Callable[[Mapping[str, int]], dict[str, int]]


# --- the world ----------------------------------------------------------------------------------------


@dataclass(eq=False, repr=False, slots=True)
class Call:
    """A request, and the answer that is owed for it."""

    consumer: Consumer
    kind: str
    member_id: str
    generation: int
    body: Any = None
    #: Which life of the coordinator answered it.
    life: int = -1


@dataclass(slots=True)
class Writing:
    """Rows on their way to the disk."""

    rows: Sequence[OffsetsRow]
    then: Callable[[bool], None]


LOST = object()
"""What a consumer gets in place of an answer when its connection breaks."""


@dataclass(eq=False, repr=False)
class World:
    """Time, the network, the disk and the coordinator, and what must hold of all of them."""

    seed: int
    assign: Assignor
    now: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    coordinator: Coordinator | None = None
    disk: list[OffsetsRow] = field(default_factory=list)
    disk_fails: bool = True
    newest: dict[str, Consumer] = field(default_factory=dict)
    consumers: list[Consumer] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self._queue: list[tuple[int, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._ids = itertools.count(1)
        self._writing: deque[Writing] = deque()
        self._written_at = 0
        self._life = 0
        self._parked: dict[Call, None] = {}
        self._alarm_at: int | None = None
        # What must hold: who was told of a partition in a generation, who committed it, and how far.
        self._owners: dict[tuple[int, int], str] = {}
        self._assigned: dict[tuple[int, str], bytes] = {}
        self._actors: dict[tuple[int, int], Consumer] = {}
        self._told = 0
        self._positions = [0] * PARTITIONS
        self.boot()

    @property
    def eager(self) -> bool:
        return self.assign is assign_range

    # Time

    def after(self, delay: int, call: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (self.now + delay, next(self._order), call))

    def run(self, until: int) -> None:
        while self._queue and self._queue[0][0] <= until:
            self.now, _, call = heapq.heappop(self._queue)
            call()
        self.now = until

    def delay(self) -> int:
        return self.rng.choice((1, 1, 2, 3, 8))

    # The coordinator's life

    def boot(self) -> None:
        self.coordinator = coordinator = Coordinator(LIMITS, lambda name: f"{name}-{next(self._ids)}")
        assert coordinator.load(self.disk, self.now) == 0
        coordinator.loaded = True
        for (_, partition), committed in coordinator.offsets(GROUP).items():
            if committed.offset < self._positions[partition]:
                raise Broken(f"partition {partition} is back at {committed.offset} after a restart")
            self._positions[partition] = committed.offset
        self._alarm_at = None
        self._set_alarm()

    def kill(self) -> None:
        """Lose the coordinator: what was not acknowledged may or may not be on the disk, in order."""
        if self.coordinator is None:
            return
        self.counts["coordinator killed"] += 1
        self._life += 1
        self.coordinator = None
        for writing in list(self._writing)[: self.rng.randint(0, len(self._writing))]:
            self.disk += writing.rows
        self._writing.clear()
        for call in self._parked:
            self.answer(call, LOST)
        self._parked.clear()
        self.after(self.rng.randint(5, 150), self.boot)

    def write(self, rows: Sequence[OffsetsRow], then: Callable[[bool], None]) -> None:
        self._writing.append(Writing(rows, then))
        self._written_at = max(self._written_at, self.now + self.rng.choice((1, 2, 4, 30)))
        life = self._life
        self.after(self._written_at - self.now, lambda: self._written(life))

    def _written(self, life: int) -> None:
        if life != self._life:
            return
        writing = self._writing.popleft()
        failed = self.disk_fails and self.rng.random() < 0.02
        if not failed:
            self.disk += writing.rows
        self.counts["stores failed" if failed else "stores"] += 1
        writing.then(failed)

    def _set_alarm(self) -> None:
        assert self.coordinator is not None
        due = self.coordinator.deadline()
        if due is not None and (self._alarm_at is None or due < self._alarm_at):
            self._alarm_at = due
            life = self._life
            self.after(max(due - self.now, 0), lambda: self._tick(life))

    def _tick(self, life: int) -> None:
        if life == self._life and self.coordinator is not None:
            self._alarm_at = None
            self.perform(self.coordinator.tick(self.now))

    def perform(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, GroupReply):
                call = effect.token
                assert isinstance(call, Call)
                if call not in self._parked:
                    raise Broken(f"{call.kind} of {call.member_id} is answered again")
                del self._parked[call]
                if isinstance(effect.result, Synced) and effect.result.refusal is None:
                    self._check_told(call, effect.result.assignment)
                self.answer(call, effect.result)
            else:
                assert isinstance(effect, StoreGroup)
                self._store_group(effect)
        self._set_alarm()

    def _store_group(self, effect: StoreGroup) -> None:
        def then(failed: bool) -> None:
            assert self.coordinator is not None
            self.perform(
                self.coordinator.stored(
                    effect.group, effect.generation, failed=failed, now_ms=self.now, token=effect.token
                )
            )

        self.write(effect.rows, then)

    # The network

    def send(self, call: Call) -> None:
        self.after(self.delay(), lambda: self._arrive(call))

    def answer(self, call: Call, result: object) -> None:
        call.life = self._life
        self.after(self.delay(), lambda: call.consumer.receive(call, result))

    def _arrive(self, call: Call) -> None:
        coordinator = self.coordinator
        if coordinator is None:
            self.answer(call, LOST)
            return
        who = (call.member_id, call.consumer.instance)
        if call.kind == "join":
            if not call.member_id:
                call.consumer.take_over(next(self._order))
            self._parked[call] = None
            self.perform(coordinator.join(GROUP, call.body, call, self.now))
        elif call.kind == "sync":
            self._parked[call] = None
            self.perform(
                coordinator.sync(GROUP, *who, call.generation, "consumer", None, call.body, call, self.now)
            )
        elif call.kind == "heartbeat":
            refusal = coordinator.heartbeat(GROUP, *who, call.generation, self.now)
            if refusal is None:
                self._check_accepted(call)
            self.answer(call, refusal)
        elif call.kind == "leave":
            refusal, effects = coordinator.leave(GROUP, *who, self.now)
            self.perform(effects)
            self.answer(call, refusal)
        elif call.kind == "positions":
            known = coordinator.offsets(GROUP)
            self.answer(call, {p: known[TOPIC, p].offset if (TOPIC, p) in known else 0 for p in call.body})
        else:
            self._commit(coordinator, call)

    def _commit(self, coordinator: Coordinator, call: Call) -> None:
        who = (call.member_id, call.consumer.instance)
        refusal = coordinator.check_commit(GROUP, *who, call.generation, self.now)
        if refusal is not None:
            self.counts["commits refused"] += 1
            self.answer(call, refusal)
            return
        self.counts["commits"] += 1
        self._check_accepted(call)
        self._check_actor(call)
        offsets = {(TOPIC, p): Committed(at, -1, "", self.now) for p, at in call.body.items()}
        self._parked[call] = None

        def then(failed: bool) -> None:
            del self._parked[call]
            if not failed:
                coordinator.committed(GROUP, offsets)
                for partition, at in call.body.items():
                    if at < self._positions[partition]:
                        raise Broken(f"partition {partition} goes back to {at} by {call.member_id}")
                    self._positions[partition] = at
            self.answer(call, Refusal.NOT_STORED if failed else None)

        self.write(coordinator.rows_to_commit(GROUP, offsets), then)

    # What must hold

    def _check_told(self, call: Call, assignment: bytes) -> None:
        self.counts["assignments told"] += 1
        if call.generation < self._told:
            raise Broken(f"generation {call.generation} is told after {self._told}")
        self._told = call.generation
        who = call.consumer.instance or call.member_id
        if self._assigned.setdefault((call.generation, who), assignment) != assignment:
            raise Broken(f"{who} is told something else in generation {call.generation}")
        for partition in bits(int.from_bytes(assignment, "big")):
            if self._owners.setdefault((call.generation, partition), who) != who:
                raise Broken(f"generation {call.generation} has two owners of partition {partition}")

    def _check_accepted(self, call: Call) -> None:
        if call.generation < self._told:
            raise Broken(f"a {call.kind} of generation {call.generation} is accepted after {self._told}")

    def _check_actor(self, call: Call) -> None:
        """Let nobody commit a partition that somebody else has committed in the generation."""
        for partition in call.body:
            actor = self._actors.setdefault((call.generation, partition), call.consumer)
            if actor is not call.consumer:
                if not actor.is_succeeded_by(call.consumer):
                    raise Broken(f"two consumers commit partition {partition} in {call.generation}")
                self._actors[call.generation, partition] = call.consumer

    def check_held(self, consumer: Consumer) -> None:
        """Let no two consumers of one generation hold a partition, but for one that was started anew."""
        for other in self.consumers:
            both = other.owned & consumer.owned
            if both and other.alive and other is not consumer and other.is_beside(consumer):
                if other.is_succeeded_by(consumer) or consumer.is_succeeded_by(other):
                    self.counts["held beside a former self"] += 1
                else:
                    raise Broken(f"two consumers hold {bits(both)} in generation {consumer.generation}")

    def group(self) -> Group | None:
        found = None if self.coordinator is None else self.coordinator.find(GROUP)
        assert found is None or isinstance(found, Group)
        return found

    def rests(self) -> bool:
        """Return whether all is well: everyone alive is in, and has its share, and nobody else has any."""
        live = [consumer for consumer in self.consumers if consumer.alive]
        group = self.group()
        if group is None or group.state is not GroupState.STABLE:
            return False
        if any(one.unsettled or one.generation != group.generation for one in live):
            return False
        if {consumer.member_id for consumer in live} != set(group.members):
            return False
        owned = [partition for consumer in live for partition in bits(consumer.owned)]
        return sorted(owned) == list(range(PARTITIONS))


# --- consumers ----------------------------------------------------------------------------------------


@dataclass(eq=False, repr=False)
class Consumer:
    """One process with one consumer, as real ones are: one request at a time to its coordinator."""

    world: World
    name: str
    instance: str | None
    knows_skip: bool
    #: When it last came without an id; of two with one instance id the later one is right.
    number: int = -1
    alive: bool = True
    member_id: str = ""
    #: The generation it acts in, since it was told its assignment; and the one it joined, in which life.
    generation: int = -1
    joined: tuple[int, int] = (-1, -1)
    owned: int = 0
    must_join: bool = True
    #: Whether what it was told of its id must be on the disk by now.
    vouched: bool = False
    frozen_until: int = 0
    leaving: bool = False
    busy: Call | None = None
    positions: dict[int, int] = field(default_factory=dict)

    def is_succeeded_by(self, other: Consumer) -> bool:
        return self.instance is not None and self.instance == other.instance and self.number < other.number

    def take_over(self, number: int) -> None:
        self.number = number
        if self.instance is not None:
            self.world.newest[self.instance] = self

    def is_beside(self, other: Consumer) -> bool:
        """Whether both act in one generation, or joined it with what they hold from the one before."""
        brought = self.joined == other.joined and min(self.generation, other.generation) == self.joined[1] - 1
        return self.generation == other.generation or brought

    @property
    def unsettled(self) -> bool:
        """Whether it is about to do something that concerns the others."""
        joining = self.busy is not None and self.busy.kind in ("join", "sync")
        return joining or self.must_join or self.leaving or self.world.now < self.frozen_until

    # Acting

    def step(self) -> None:
        """Do the next thing, every so often; a process that hangs does it late."""
        world = self.world
        if not self.alive:
            return
        if world.now < self.frozen_until:
            world.after(self.frozen_until - world.now, self.step)
            return
        world.after(HEARTBEAT_MS // 2 + world.rng.randrange(HEARTBEAT_MS), self.step)
        if self.busy is None:
            self._act()

    def _act(self) -> None:
        rng = self.world.rng
        if self.leaving:
            self._send("leave")
        elif self.must_join:
            self._join()
        elif missing := [p for p in bits(self.owned) if p not in self.positions]:
            self._send("positions", missing)
        elif self.owned and rng.random() < 0.4:
            self._commit()
        else:
            self._send("heartbeat")

    def _commit(self) -> None:
        """Work on some partitions and commit how far that came."""
        chosen = [p for p in bits(self.owned) if self.world.rng.random() < 0.6] or bits(self.owned)[:1]
        for partition in chosen:
            self.positions[partition] += self.world.rng.randint(1, 9)
        self._send("commit", {partition: self.positions[partition] for partition in chosen})

    def _join(self) -> None:
        if self.world.eager:
            self._hold(0)
        request = JoinRequest(
            self.member_id,
            self.instance,
            self.name,
            "/host",
            SESSION_MS,
            REBALANCE_MS,
            "consumer",
            (Protocol("assignor", self.owned.to_bytes(2, "big")),),
            knows_skip=self.knows_skip,
        )
        self._send("join", request)

    def _send(self, kind: str, body: Any = None) -> None:
        generation = self.joined[1] if kind == "sync" else self.generation
        self.busy = Call(self, kind, self.member_id, generation, body)
        self.world.send(self.busy)

    def _hold(self, owned: int) -> None:
        self.owned = owned
        self.positions = {p: at for p, at in self.positions.items() if owned >> p & 1}
        self.world.check_held(self)

    def _join_soon(self) -> None:
        if self.alive and self.busy is None and self.must_join and self.world.now >= self.frozen_until:
            self._act()

    def _lose(self) -> None:
        self.generation, self.joined = -1, (-1, -1)
        self._hold(0)

    # Being told

    def receive(self, call: Call, result: object) -> None:
        world = self.world
        if not self.alive or call is not self.busy:
            return
        if world.now < self.frozen_until:
            world.after(self.frozen_until - world.now, lambda: self.receive(call, result))
            return
        self.busy = None
        if result is LOST:
            # Asked again with the next step, joins and syncs as they were.
            if call.kind == "sync":
                world.after(5, lambda: self._sync_again(call))
            self.must_join = self.must_join or call.kind == "sync"
            return
        if isinstance(result, Joined):
            self._joined(result, call.life)
        elif isinstance(result, Synced):
            self._synced(result)
        elif isinstance(result, dict):
            self.positions |= result
        elif call.kind == "leave":
            self.alive = False
        elif result is not None:
            assert isinstance(result, Refusal)
            self._refused(result)

    def _sync_again(self, call: Call) -> None:
        same = (call.member_id, call.generation) == (self.member_id, self.joined[1])
        if self.alive and self.busy is None and same:
            self._send("sync", call.body)

    def _joined(self, joined: Joined, life: int) -> None:
        if joined.refusal is Refusal.MEMBER_ID_REQUIRED:
            self.member_id = joined.member_id
            self._join()
        elif joined.refusal is not None:
            self._refused(joined.refusal)
        else:
            self.member_id, self.joined = joined.member_id, (life, joined.generation)
            self.world.check_held(self)
            assigned: list[tuple[str, bytes]] = []
            if joined.leader == self.member_id and not joined.skip_assignment:
                claims = {member: int.from_bytes(claim, "big") for member, _, claim in joined.members}
                shares = self.world.assign(claims)
                assigned = [(member, share.to_bytes(2, "big")) for member, share in shares.items()]
            self._send("sync", assigned)

    def _synced(self, synced: Synced) -> None:
        if synced.refusal is not None:
            self._refused(synced.refusal)
            return
        if self.generation != self.joined[1] - 1:
            # Whatever it held may have been somebody else's meanwhile, who came further.
            self.positions.clear()
        self.vouched, self.generation = True, self.joined[1]
        assigned = int.from_bytes(synced.assignment, "big")
        lost = self.owned & ~assigned
        # What was taken away is given to others in the next generation.
        self.must_join = bool(lost)
        self._hold(assigned)

    def _refused(self, refusal: Refusal) -> None:
        self.must_join = True
        if refusal is Refusal.FENCED:
            self._fenced()
        elif refusal is Refusal.UNKNOWN_MEMBER:
            self.member_id, self.vouched = "", False
            self._lose()
        elif refusal is Refusal.ILLEGAL_GENERATION:
            self._lose()
        elif refusal is Refusal.REBALANCING:
            self.world.after(self.world.rng.randint(1, 20), self._join_soon)
        elif refusal is Refusal.INCONSISTENT_PROTOCOL:
            raise Broken("all have the same protocol, and one was refused")

    def _fenced(self) -> None:
        """End, as a real consumer does; whoever runs the newest of an instance starts it again."""
        world = self.world
        assert self.instance is not None
        world.counts["fenced"] += 1
        self.alive = False
        if world.newest[self.instance] is self:
            if self.vouched:
                raise Broken(f"{self.member_id} is fenced, and there is no newer {self.instance}")
            start(world, self.name, self.instance)


def start(world: World, name: str, instance: str | None) -> Consumer:
    world.counts["started"] += 1
    consumer = Consumer(world, name, instance, len(world.consumers) % 2 == 0)
    world.consumers.append(consumer)
    world.after(world.delay(), consumer.step)
    return consumer


# --- the runs -----------------------------------------------------------------------------------------


def churn(world: World, slots: list[Consumer | None]) -> None:
    """Let one thing happen to one of the consumers, or to the coordinator."""
    rng = world.rng
    slot = rng.randrange(SLOTS)
    consumer = slots[slot]
    name, instance = f"c{slot}", f"i{slot}" if slot < STATIC_SLOTS else None
    if rng.random() < 0.2:
        # Soon, when what happened before is still going on.
        world.after(rng.randrange(40), world.kill)
    if consumer is None or not consumer.alive:
        slots[slot] = start(world, name, instance)
    else:
        event = rng.choice(("crash", "leave", "hang", "hang", "restart", "second"))
        if event == "second" and instance is None:
            event = "restart"
        world.counts[event] += 1
        if event == "hang":
            consumer.frozen_until = world.now + rng.randint(50, 3 * SESSION_MS)
        elif event == "leave":
            consumer.leaving = True
        elif event == "second":
            # Started while the one before still runs, or hangs.
            slots[slot] = start(world, name, instance)
        else:
            consumer.alive = False
            if event == "restart":
                slots[slot] = start(world, name, instance)


def simulate(seed: int) -> Counter[str]:
    """Run one seed to its end; return what happened."""
    world = World(seed, (assign_range, assign_cooperatively)[seed % 2])
    rng = world.rng
    slots: list[Consumer | None] = [
        start(world, f"c{slot}", f"i{slot}" if slot < STATIC_SLOTS else None) if rng.random() < 0.5 else None
        for slot in range(SLOTS)
    ]
    for at in sorted(rng.randrange(CHURN_MS) for _ in range(CHURN_EVENTS)):
        world.run(at)
        churn(world, slots)
    world.run(CHURN_MS)
    if not any(consumer.alive and not consumer.leaving for consumer in world.consumers):
        start(world, "last", None)
    world.disk_fails = False
    group = come_to_rest(world)
    world.counts["generations"] += group.generation
    world.counts["members at rest"] += len(group.members)
    return world.counts


def come_to_rest(world: World) -> Group:
    """Let everyone go on until all is well, and stays so for a session."""
    while world.now <= CHURN_MS + REST_MS:
        world.run(world.now + 40)
        if world.rests():
            group = world.group()
            assert group is not None
            generation = group.generation
            world.run(world.now + SESSION_MS)
            if world.rests() and group.generation == generation:
                return group
    raise Broken("the group does not come to rest")


def finding(seed: int) -> str | None:
    """Return what is wrong in one run, if anything is."""
    try:
        simulate(seed)
    except Broken as broken:
        return f"seed {seed}: {broken}"
    return None


def test_no_generation_has_two_owners_of_a_partition_and_every_group_comes_to_rest() -> None:
    counts: Counter[str] = Counter()
    for run in range(RUNS):
        try:
            counts += simulate(SEED + run)
        except Broken as broken:
            raise Broken(f"seed {SEED + run}: {broken}") from broken
    print(f"seed {SEED}: {RUNS} runs, {', '.join(f'{n} {what}' for what, n in sorted(counts.items()))}")
    if RUNS >= 100:
        for what in ("crash", "leave", "hang", "restart", "second", "coordinator killed", "generations"):
            assert counts[what] >= RUNS / 2, what
        assert counts["commits"] >= 20 * RUNS
        assert min(counts["fenced"], counts["commits refused"], counts["stores failed"]) >= RUNS / 20


# --- canaries: planted bugs, each of which a few runs must find ---------------------------------------


def told_before_stored(monkeypatch: pytest.MonkeyPatch) -> str:
    """Assignments are told at once; the store that should have come first may be lost."""
    honest = Coordinator.sync

    def sync(self: Coordinator, name: str, *arguments: Any) -> list[Effect]:
        effects = honest(self, name, *arguments)
        now_ms = arguments[-1]
        early = [
            told
            for effect in effects
            if isinstance(effect, StoreGroup)
            for told in self.stored(name, effect.generation, failed=False, now_ms=now_ms)
        ]
        return [*early, *effects]

    monkeypatch.setattr(Coordinator, "sync", sync)
    return "two owners|is told|is accepted after|two consumers"


def generation_not_checked(monkeypatch: pytest.MonkeyPatch) -> str:
    """A member may speak in any generation."""
    monkeypatch.setattr(
        Group, "check_member", lambda self, member, instance, _: self._check_identity(member, instance)
    )
    return "two owners|is told|is accepted after|two consumers|goes back"


def session_not_ended(monkeypatch: pytest.MonkeyPatch) -> str:
    """A member is never missed."""
    monkeypatch.setattr(GroupMember, "waits", property(lambda self: True))
    return "does not come to rest"


def instance_not_fenced(monkeypatch: pytest.MonkeyPatch) -> str:
    """The instance before stays a member beside the one that was started anew."""
    honest = Group._replace

    def replace(self: Group, old: GroupMember, *arguments: Any) -> list[Action]:
        former, former_id = (
            GroupMember(**{name: getattr(old, name) for name in GroupMember.__slots__}),
            old.id,
        )
        former.join = former.sync = former.replacing = None
        actions = honest(self, old, *arguments)
        self.members[former_id] = former
        return actions

    monkeypatch.setattr(Group, "_replace", replace)
    monkeypatch.setattr(
        Group,
        "_check_identity",
        lambda self, member, _: None if member in self.members else Refusal.UNKNOWN_MEMBER,
    )
    return "two consumers|two owners|is told something else|goes back"


def new_id_told_before_stored(monkeypatch: pytest.MonkeyPatch) -> str:
    """A static member that was started anew is told of its id at once."""
    honest = Coordinator.join

    def join(self: Coordinator, name: str, request: JoinRequest, token: object, now_ms: int) -> list[Effect]:
        effects = honest(self, name, request, token, now_ms)
        early = [
            told
            for effect in effects
            if isinstance(effect, StoreGroup) and effect.token is not None
            for told in self.stored(name, effect.generation, failed=False, now_ms=now_ms, token=token)
        ]
        return [*early, *effects]

    monkeypatch.setattr(Coordinator, "join", join)
    return "there is no newer|goes back|two owners"


def assignment_not_stored(monkeypatch: pytest.MonkeyPatch) -> str:
    """The generation is stored without what its members are assigned."""
    honest = stored.member_of

    def member_of(member: Any, protocol: str | None) -> GroupMember:
        return honest(member._replace(assignment=b""), protocol)

    monkeypatch.setattr(known, "member_of", member_of)
    return "is told something else|does not come to rest"


CANARIES = (
    told_before_stored,
    generation_not_checked,
    session_not_ended,
    instance_not_fenced,
    new_id_told_before_stored,
    assignment_not_stored,
)


@pytest.mark.parametrize("canary", CANARIES, ids=lambda canary: canary.__name__)
def test_the_simulation_finds_a_planted_bug(
    canary: Callable[[pytest.MonkeyPatch], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = canary(monkeypatch)
    found = next(filter(None, map(finding, range(SEED, SEED + CANARY_RUNS))), None)
    print(f"{canary.__name__}: {found}")
    assert found is not None, f"{canary.__name__} survived {CANARY_RUNS} runs"
    assert re.search(expected, found)
