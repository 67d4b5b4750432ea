"""Twenty consumers, their coordinator, its disk and the network, in virtual time.

Consumers use the consumer protocol, or the classic one with Kafka's range assignor, which some do eagerly
and some cooperatively. In a mixed world each starts again with another; in most of them all change to one
protocol and back, under any policy. Topics grow and are deleted. Requests, answers and writes take time and
are lost; the coordinator is killed, and the next one knows what was stored. `World.check_hold` is what must
never be broken.
"""

from __future__ import annotations

import heapq
import itertools
import random
import struct
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cordwood.broker.groups.actions import (
    GroupReply,
    HeartbeatAnswer,
    Joined,
    JoinRequest,
    Protocol,
    Refusal,
    Synced,
)
from cordwood.broker.groups.consumer import (
    ConsumerBasis,
    ConsumerTerms,
    LiveGroup,
    MemberHeartbeat,
    MigrationPolicy,
    TopicShape,
)
from cordwood.broker.groups.consumer.embedded import (
    decode_assignment,
    decode_subscription,
    encode_assignment,
)
from cordwood.broker.groups.coordinator import Coordinator, Effect, StoreConsumerRows, StoreGroup
from cordwood.broker.groups.group import Group
from cordwood.broker.groups.known import GroupLimits
from cordwood.broker.groups.offsets_topic import Committed, OffsetsRow
from cordwood.records import TopicPartition

GROUP = "group"
SLOTS, STATIC_SLOTS = 20, 8
HEARTBEAT_MS, SESSION_MS, REBALANCE_MS, INTERVAL_MS = 80, 400, 700, 60
CHURN_MS, CHURN_EVENTS = 2_500, 30
#: How long a group may take to come to rest: a few sessions and rebalances one after the other.
REST_MS = 8 * (SESSION_MS + REBALANCE_MS)
LIMITS = GroupLimits(session_min_ms=1)
TERMS = ConsumerTerms(
    session_ms=SESSION_MS, heartbeat_ms=HEARTBEAT_MS, assignment_interval_ms=INTERVAL_MS, regex_refresh_ms=300
)
PATTERN = "t.*"
TOPICS_OF_ALL = struct.pack(">hi", 0, 3) + b"".join(
    struct.pack(">h", 2) + name for name in (b"t1", b"t2", b"t3")
)
SUBSCRIPTION_OF_NOTHING_OWNED = TOPICS_OF_ALL + struct.pack(">i", -1)
Place = tuple[str, int]


class Broken(AssertionError):
    """Something that must never be."""


class Shelf:
    """The topics, which grow."""

    def __init__(self) -> None:
        self.version = 1
        self.counts: dict[str, int] = {}
        self.deleted: set[str] = set()

    def set(self, name: str, count: int) -> None:
        self.counts[name] = count
        self.version += 1

    def delete(self, name: str) -> None:
        """Delete a topic, which is not created again: it would have another id."""
        if self.counts.pop(name, None) is not None:
            self.deleted.add(name)
            self.version += 1

    @staticmethod
    def id_of(name: str) -> bytes:
        return name.encode().rjust(16, b"\0")

    def find(self, name: str) -> TopicShape | None:
        return TopicShape(self.id_of(name), self.counts[name]) if name in self.counts else None

    def name_of(self, topic_id: bytes) -> str | None:
        name = topic_id.lstrip(b"\0").decode()
        return name if name in self.counts else None


@dataclass(eq=False, slots=True)
class Call:
    """A request on its way, and what waits for its answer."""

    client: Client
    answered: Callable[[Any], None]
    turn: int


LOST = object()
"""What a consumer gets in place of an answer when its connection breaks."""


@dataclass(eq=False)
class World:
    """Everything there is, and what must hold of it."""

    seed: int
    kinds: tuple[type[Client], ...]
    now: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    disk: list[OffsetsRow] = field(default_factory=list)
    faults: bool = True

    def __post_init__(self) -> None:
        self.draw = random.Random(self.seed)
        self.topics = Shelf()
        self.topics.set("t1", 8)
        self.topics.set("t2", 5)
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._ids = itertools.count()
        self._life = 0
        #: What is to be stored, and its rows; the first may be under way.
        self._writes: list[tuple[Callable[[], None], Sequence[OffsetsRow]]] = []
        self._writing = False
        self.policy = MigrationPolicy.BIDIRECTIONAL
        if len(self.kinds) > 1 and self.draw.random() < 0.4:
            self.policy = self.draw.choice([*MigrationPolicy])
        self._had: tuple[type, bool] = (Group, False)
        self.clients: dict[int, Client] = {}
        #: The last offset of each partition that a member was told is committed.
        self.committed: dict[TopicPartition, int] = {}
        self._offset = 0
        self.coordinator = self._open()

    # --- time -------------------------------------------------------------------------------------

    def after(self, ms: int, do: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + ms, next(self._order), do))

    def run_until(self, end: int, stop: Callable[[], bool] = lambda: False) -> bool:
        """Let time pass; return whether *stop* said so."""
        while self._events and self._events[0][0] <= end:
            self.now, _, do = heapq.heappop(self._events)
            do()
            self.counts["events"] += 1
            if stop():
                return True
        self.now = max(self.now, end)
        return False

    # --- the coordinator --------------------------------------------------------------------------

    def _open(self) -> Coordinator:
        basis = ConsumerBasis(
            topics_of=lambda _: self.topics, terms_of=lambda _: TERMS, policy=lambda: self.policy
        )
        coordinator = Coordinator(LIMITS, lambda name: f"{name}-{next(self._ids)}", basis)
        last: dict[bytes, bytes | None] = {}
        for key, value in self.disk:
            last.pop(key, None)
            last[key] = value
        unread = coordinator.load(last.items(), self.now)
        assert unread == 0
        return coordinator

    def restart(self) -> None:
        """Kill the coordinator; some of what was being stored is, and nobody gets an answer."""
        self.counts["restarts"] += 1
        self._count_state()
        self._life += 1
        stored = self._writes[: self.draw.randint(0, len(self._writes))]
        for _, rows in stored:
            self.disk += rows
            self.counts["stored, not answered"] += 1
        self._writes.clear()
        self._writing = False
        self.coordinator = self._open()
        self.check_offsets()
        self._alarm()

    def _count_state(self) -> None:
        group = self.coordinator.find(GROUP)
        if group is not None:
            kind = "consumer" if isinstance(group, LiveGroup) else "classic"
            self.counts[f"restart, {kind}: {group.state.value}"] += 1
        if isinstance(group, LiveGroup):
            self.counts.update(
                f"restart, member: {state.name}"
                for state in {member.owned.state for member in group.members.values()}
            )

    def _count_migrations(self) -> None:
        group = self.coordinator.find(GROUP)
        if group is None:
            return
        kind, had_members = self._had
        if had_members and not isinstance(group, kind):
            self.counts["upgrades" if isinstance(group, LiveGroup) else "downgrades"] += 1
        self._had = type(group), bool(group.members)

    def _alarm(self) -> None:
        due, life = self.coordinator.deadline(), self._life
        if due is not None:

            def tick() -> None:
                if life == self._life and (self.coordinator.deadline() or self.now + 1) <= self.now:
                    self.perform(self.coordinator.tick(self.now))

            self.after(max(due - self.now, 0), tick)

    def perform(self, effects: Sequence[Effect]) -> None:
        self._count_migrations()
        for effect in effects:
            if isinstance(effect, GroupReply):
                self._reply(effect.token, effect.result)
            else:
                self._store(effect)
        self._alarm()

    def _store(self, effect: StoreGroup | StoreConsumerRows) -> None:
        life = self._life

        def finish() -> None:
            if life != self._life:
                return
            self._writes.pop(0)
            failed = self.faults and self.draw.random() < 0.02
            self.counts["failed writes"] += failed
            if not failed:
                self.disk += effect.rows
            self._writing = False
            self._write_next()
            if isinstance(effect, StoreConsumerRows):
                self.perform(self.coordinator.rows_stored(effect.group, effect.number, failed=failed))
            else:
                told = self.coordinator.stored(
                    effect.group, effect.generation, failed=failed, now_ms=self.now, token=effect.token
                )
                self.perform(told)

        self._writes.append((finish, effect.rows))
        self._write_next()

    def _write_next(self) -> None:
        if self._writes and not self._writing:
            self._writing = True
            self.after(self.draw.randint(0, 6), self._writes[0][0])

    # --- committed offsets ------------------------------------------------------------------------

    def commit(self, client: Client, epoch: int) -> None:
        """Commit what *client* holds, as the server does: checked now, in force once it is stored."""
        coordinator = self.coordinator
        checked = coordinator.check_commit(GROUP, client.id, client.instance, epoch, self.now)
        if isinstance(checked, Refusal):
            self.counts["refused commits"] += 1
            return
        self._offset += 1
        offsets = {
            (name, number): Committed(self._offset, -1, "", self.now)
            for name, number in client.held
            if checked is None or checked(Shelf.id_of(name), number) is None
        }
        rows, life = coordinator.rows_to_commit(GROUP, offsets), self._life

        def finish() -> None:
            if life != self._life:
                return
            self._writes.pop(0)
            failed = self.faults and self.draw.random() < 0.02
            self.check_offsets()
            if not failed:
                self.disk += rows
                coordinator.committed(GROUP, offsets)
                self.committed.update({place: each.offset for place, each in offsets.items()})
                self.counts["commits"] += 1
            self._writing = False
            self._write_next()

        if offsets:
            self._writes.append((finish, rows))
            self._write_next()

    def check_offsets(self) -> None:
        """Check that every offset that a member was told is committed is known."""
        known = self.coordinator.offsets(GROUP)
        for place, offset in self.committed.items():
            found = known.get(place)
            # A later one may have been stored whose member was not answered.
            if found is None or found.offset < offset:
                raise Broken(f"offset {offset} of {place} is lost: {found}")

    # --- the network ------------------------------------------------------------------------------

    def ask(
        self, client: Client, ask: Callable[[Call], list[Effect]], answered: Callable[[Any], None]
    ) -> None:
        """Send a request: what *ask* makes of it is done, and its answer is given to *answered*."""
        client.turn += 1
        call = Call(client, answered, client.turn)
        if self.faults and self.draw.random() < 0.01:
            self._reply(call, LOST)
            return
        life = self._life

        def arrive() -> None:
            if life == self._life:
                self.perform(ask(call))
            # Whoever is not answered gives up.
            self.after(150, lambda: self._reply(call, LOST))

        self.after(self.draw.randint(1, 8), arrive)

    def _reply(self, call: Any, result: Any) -> None:
        if result is not LOST and self.faults and self.draw.random() < 0.01:
            result = LOST
        delay = 30 if result is LOST else self.draw.randint(1, 8)

        def arrive() -> None:
            client = call.client
            if call.turn == client.turn and client.alive:
                client.turn += 1
                if client.hangs_until > self.now:
                    self.after(client.hangs_until - self.now, lambda: call.answered(result))
                else:
                    call.answered(result)

        self.after(delay, arrive)

    # --- what must hold ---------------------------------------------------------------------------

    def is_member(self, client: Client) -> bool:
        """Return whether the coordinator counts on *client*."""
        group = self.coordinator.find(GROUP)
        return client.alive and group is not None and client.id in group.members

    def check_hold(self, client: Client, places: set[Place]) -> None:
        """Check that no other member holds what *client* begins to hold."""
        if not self.is_member(client):
            return
        for other in self.clients.values():
            if other is not client and other.held & places and self.is_member(other):
                both = sorted(other.held & places)
                raise Broken(f"{client.id} and {other.id} both own {both} at {self.now}")

    def check_epoch(self, member_id: str, told: int) -> None:
        """Check that the coordinator knows the epoch that a member was told."""
        group = self.coordinator.find(GROUP)
        member = group.members.get(member_id) if isinstance(group, LiveGroup) else None
        if member is not None and 0 <= member.epoch < told:
            raise Broken(f"{member_id} was told epoch {told}, which goes back to {member.epoch}")

    def restless(self) -> str | None:
        """Return why the group is not at rest, or None."""
        if self._writing or self._writes:
            return "rows are being stored"
        live = [client for client in self.clients.values() if client.alive]
        owned = Counter(place for client in live for place in client.held)
        every = {(name, number) for name, count in self.topics.counts.items() for number in range(count)}
        group = self.coordinator.find(GROUP)
        if group is None or group.state.value not in ("Stable", "Empty"):
            return f"the group is {None if group is None else group.state.value}"
        if not live:
            return None
        if set(group.members) != {client.id for client in live}:
            return "its members are not those that live"
        if owned != Counter(every):
            return f"{owned - Counter(every)} too often, {Counter(every) - owned} too rarely owned"
        return None


@dataclass(eq=False)
class Client:
    """A consumer, alive or not."""

    world: World
    slot: int
    id: str = ""
    instance: str | None = None
    alive: bool = True
    turn: int = 0
    hangs_until: int = 0
    held: set[Place] = field(default_factory=set)

    def start(self) -> None:
        raise NotImplementedError

    def stop(self) -> None:
        """Leave the group in an orderly way, or, if static, for a moment."""
        raise NotImplementedError

    def die(self) -> None:
        self.alive = False
        self.held.clear()

    def hold(self, places: set[Place]) -> None:
        self.world.check_hold(self, places - self.held)
        self.held |= places
        self.world.counts["told"] += 1

    def later(self, ms: int, do: Callable[[], None]) -> None:
        turn = self.turn
        self.world.after(ms, lambda: do() if self.alive and self.turn == turn else None)


def by_topic(places: set[Place]) -> dict[bytes, list[int]]:
    found: dict[bytes, list[int]] = {}
    for name, number in sorted(places):
        found.setdefault(Shelf.id_of(name), []).append(number)
    return found


class ModernClient(Client):
    """A consumer of the consumer protocol, as the Java client is."""

    def start(self) -> None:
        self.id = f"m{self.world.draw.getrandbits(48):012x}"
        draw = self.world.draw
        self.assignor = draw.choice([None, "uniform", "range"])
        self.regex = PATTERN if draw.random() < 0.2 else None
        self.epoch = 0
        self.wanted: set[Place] = set()
        self.said: set[Place] | None = None
        self.full = True
        self.revoking: set[Place] = set()
        self.beat()

    def beat(self) -> None:
        self.world.check_epoch(self.id, self.epoch)
        full = self.full or self.epoch == 0
        owned = self.held | self.wanted if full else self.held
        say = owned if full or owned != self.said else None
        names = () if self.regex else ("t1", "t2", "t3")
        beat = MemberHeartbeat(
            member_id=self.id,
            epoch=self.epoch,
            instance_id=self.instance,
            rebalance_ms=REBALANCE_MS if full else -1,
            topics=names if full else None,
            regex=(self.regex or "") if full else None,
            assignor=self.assignor if full else None,
            owned=None if say is None else by_topic(say if self.epoch else set()),
        )
        if say is not None:
            self.said = set(say)

        def ask(call: Call) -> list[Effect]:
            effects, regexes = self.world.coordinator.consumer_heartbeat(GROUP, beat, call, self.world.now)
            if regexes:
                self.world.after(self.world.draw.randint(1, 30), resolve(self.world, regexes))
            return effects

        self.world.ask(self, ask, self.answered)

    def answered(self, answer: Any) -> None:
        if answer is LOST or answer.refusal is Refusal.NOT_STORED:
            self.full = True
            self.world.counts["retries"] += 1
            self.later(10, self.beat)
            return
        assert isinstance(answer, HeartbeatAnswer)
        if answer.refusal in (Refusal.FENCED_EPOCH, Refusal.UNKNOWN_MEMBER, Refusal.NO_GROUP):
            self.world.counts[f"{answer.refusal.name} "] += 1
            self.held, self.wanted, self.revoking = set(), set(), set()
            self.epoch, self.full = 0, True
            # A classic group may not be converted: its members have to leave first.
            self.later(50 if answer.refusal is Refusal.NO_GROUP else 5, self.beat)
            return
        if answer.refusal is Refusal.UNRELEASED_INSTANCE:
            self.later(50, self.beat)
            return
        if answer.refusal is Refusal.FENCED:
            self.die()
            return
        assert answer.refusal is None, answer.refusal
        if answer.epoch < self.epoch:
            raise Broken(f"{self.id} goes back from epoch {self.epoch} to {answer.epoch}")
        self.epoch, self.full = answer.epoch, False
        if self.held and self.world.draw.random() < 0.1:
            self.world.commit(self, self.epoch)
        if answer.assignment is not None:
            names = {topic: self.world.topics.name_of(topic) or "" for topic in answer.assignment}
            self.wanted = {
                (names[topic], each)
                for topic, found in answer.assignment.items()
                for each in found
                if names[topic]
            }
        if self.reconcile():
            self.later(1, self.beat)
        else:
            self.later(HEARTBEAT_MS, self.beat)

    def reconcile(self) -> bool:
        """Begin to get what is wanted; return whether something is to be said at once."""
        if self.revoking:
            return False
        goes = self.held - self.wanted
        if not goes:
            new = self.wanted - self.held
            if new:
                self.hold(new)
            return bool(new)
        self.revoking = goes

        def revoked() -> None:
            if self.alive and self.revoking is goes:
                self.held -= goes
                self.revoking = set()
                # What is wanted meanwhile counts.
                self.reconcile()

        slow = self.world.faults and self.world.draw.random() < 0.03
        self.world.after(REBALANCE_MS + 200 if slow else self.world.draw.randint(0, 60), revoked)
        return False

    def stop(self) -> None:
        beat = MemberHeartbeat(self.id, -2 if self.instance else -1, self.instance)
        coordinator = self.world.coordinator
        world = self.world
        self.die()
        world.after(
            world.draw.randint(1, 8),
            lambda: (
                world.perform(
                    coordinator.consumer_heartbeat(GROUP, beat, Call(self, lambda _: None, -1), world.now)[0]
                )
                if coordinator is world.coordinator
                else None
            ),
        )


def resolve(world: World, regexes: frozenset[str]) -> Callable[[], None]:
    version, names = world.topics.version, frozenset(world.topics.counts)
    coordinator = world.coordinator

    def done() -> None:
        if coordinator is world.coordinator:
            found = dict.fromkeys(regexes, names)
            world.perform(coordinator.resolved(GROUP, found, version, world.now))

    return done


class EagerClient(Client):
    """A consumer of the classic protocol that gives up everything before it joins."""

    def start(self) -> None:
        self.generation = -1
        self.seen = self.world.topics.version
        self.join()

    def join(self) -> None:
        request = JoinRequest(
            self.id,
            self.instance,
            f"c{self.slot}",
            "",
            SESSION_MS,
            REBALANCE_MS,
            "consumer",
            (Protocol("range", self.subscription()),),
        )
        world = self.world
        # A join is answered when all have joined: as long as that may take.
        world.ask(self, lambda call: world.coordinator.join(GROUP, request, call, world.now), self.joined)

    def joined(self, answer: Any) -> None:
        if answer is LOST:
            self.later(10, self.join)
            return
        assert isinstance(answer, Joined)
        if answer.refusal is not None:
            self.refused(answer.refusal, answer.member_id)
            return
        self.id, self.generation = answer.member_id, answer.generation
        assignments: list[tuple[str, bytes]] = []
        if answer.leader == self.id and answer.members:
            assignments = shared_out(self.world.topics.counts, answer.members)
        world = self.world
        world.ask(
            self,
            lambda call: world.coordinator.sync(
                GROUP,
                self.id,
                self.instance,
                self.generation,
                "consumer",
                "range",
                assignments,
                call,
                world.now,
            ),
            self.synced,
        )

    def synced(self, answer: Any) -> None:
        if answer is LOST:
            self.later(10, self.join)
            return
        assert isinstance(answer, Synced)
        if answer.refusal is not None:
            self.refused(answer.refusal, self.id)
            return
        found, _ = decode_assignment(answer.assignment)
        self.take({(name, number) for name, numbers in found.items() for number in numbers})

    def subscription(self) -> bytes:
        return SUBSCRIPTION_OF_NOTHING_OWNED

    def take(self, assigned: set[Place]) -> None:
        self.hold(assigned)
        self.later(HEARTBEAT_MS, self.beat)

    def beat(self) -> None:
        world = self.world

        def ask(call: Call) -> list[Effect]:
            refusal = world.coordinator.heartbeat(GROUP, self.id, self.instance, self.generation, world.now)
            return [GroupReply(call, Synced(refusal))]

        world.ask(self, ask, self.told)

    def told(self, answer: Any) -> None:
        if answer is LOST or answer.refusal is None:
            stale = self.world.topics.version != self.seen
            self.seen = self.world.topics.version
            # Whoever sees new partitions joins again: in a classic group, the leader begins a rebalance by
            # it.
            if answer is not LOST and stale:
                self.refused(Refusal.REBALANCING, self.id)
                return
            if answer is not LOST and self.world.draw.random() < 0.1:
                self.world.commit(self, self.generation)
            self.later(HEARTBEAT_MS, self.beat)
            return
        self.refused(answer.refusal, self.id)

    def refused(self, refusal: Refusal, member_id: str) -> None:
        self.world.counts[f"classic {refusal.name}"] += 1
        if refusal is Refusal.MEMBER_ID_REQUIRED:
            self.id = member_id
            self.join()
            return
        if refusal is Refusal.FENCED:
            self.die()
            return
        if refusal is Refusal.UNKNOWN_MEMBER:
            self.id = ""
        self.give_up(refusal)

    def give_up(self, refusal: Refusal) -> None:
        """Give up everything, then join again."""

        def revoked() -> None:
            self.held.clear()
            self.join()

        self.later(self.world.draw.randint(1, 40), revoked)

    def stop(self) -> None:
        world, coordinator, member_id, instance = self.world, self.world.coordinator, self.id, self.instance
        self.die()
        if instance is None and member_id:

            def leave() -> None:
                if coordinator is world.coordinator:
                    world.perform(coordinator.leave(GROUP, member_id, None, world.now)[1])

            world.after(world.draw.randint(1, 8), leave)


class CooperativeClient(EagerClient):
    """A consumer of the classic protocol that keeps what it has while the group rebalances."""

    def subscription(self) -> bytes:
        topics = TOPICS_OF_ALL.replace(b"\0\0", b"\0\1", 1) + struct.pack(">i", -1)
        owned: dict[str, list[int]] = {}
        for name, number in sorted(self.held):
            owned.setdefault(name, []).append(number)
        parts = [
            struct.pack(">h", len(name)) + name.encode() + struct.pack(f">i{len(each)}i", len(each), *each)
            for name, each in owned.items()
        ]
        return topics + struct.pack(">i", len(parts)) + b"".join(parts)

    def take(self, assigned: set[Place]) -> None:
        goes = self.held - assigned
        self.hold(assigned)
        if not goes:
            self.later(HEARTBEAT_MS, self.beat)
            return

        def revoked() -> None:
            self.held -= goes
            self.join()

        self.later(self.world.draw.randint(0, 60), revoked)

    def give_up(self, refusal: Refusal) -> None:
        if refusal in (Refusal.UNKNOWN_MEMBER, Refusal.ILLEGAL_GENERATION):
            super().give_up(refusal)
        else:
            self.later(self.world.draw.randint(1, 40), self.join)


def shared_out(
    counts: Mapping[str, int], members: Sequence[tuple[str, str | None, bytes]]
) -> list[tuple[str, bytes]]:
    """Assign ranges of partitions, without those that another member still owns."""
    owner: dict[Place, str] = {}
    for member_id, _, metadata in members:
        for topic, numbers in decode_subscription(metadata).owned.items():
            owner.update(((topic, number), member_id) for number in numbers)
    names = sorted(member_id for member_id, _, _ in members)
    assignments = []
    for at, name in enumerate(names):
        given: dict[str, list[int]] = {}
        for topic, count in sorted(counts.items()):
            share, more = divmod(count, len(names))
            first = at * share + min(at, more)
            numbers = range(first, first + share + (at < more))
            given[topic] = [each for each in numbers if owner.get((topic, each), name) == name]
        assignments.append((name, encode_assignment(0, given)))
    return assignments


def churn(world: World) -> None:
    """Let members come and go, topics change and the coordinator restart for a while."""
    draw = world.draw
    preferred = world.kinds
    nobody_until = 0

    def end_all() -> None:
        """Let all members die at once, and the coordinator once their sessions are over."""
        nonlocal nobody_until
        for client in world.clients.values():
            client.die()
        nobody_until = world.now + 2 * (SESSION_MS + REBALANCE_MS)
        world.after(nobody_until - world.now, world.restart)

    def change_protocol(kinds: tuple[type[Client], ...]) -> None:
        """Let all members start again with another protocol, one after the other."""
        nonlocal preferred
        preferred = kinds
        for slot, client in world.clients.items():
            if client.alive and not isinstance(client, kinds):
                world.after(draw.randint(0, CHURN_MS // 5), lambda slot=slot: roll(slot))  # type: ignore[misc]

    def roll(slot: int) -> None:
        if world.clients[slot].alive and not isinstance(world.clients[slot], preferred):
            world.clients[slot].stop()
        world.after(draw.randint(1, 30), lambda: begin(slot))

    def begin(slot: int) -> None:
        if world.now < nobody_until or (slot in world.clients and world.clients[slot].alive):
            return
        client = draw.choice(preferred)(world, slot)
        client.instance = f"i{slot}" if slot < STATIC_SLOTS and world.seed % 3 else None
        world.clients[slot] = client
        client.start()

    def happen() -> None:
        slot = draw.randrange(SLOTS)
        client = world.clients.get(slot)
        what = draw.random()
        if what < 0.06:
            world.restart()
        elif what < 0.12:
            name = draw.choice(["t1", "t2", "t3"])
            if draw.random() < 0.1:
                world.topics.delete(name)
            elif name not in world.topics.deleted:
                world.topics.set(name, world.topics.counts.get(name, 0) + draw.randint(1, 3))
        elif client is None or not client.alive:
            begin(slot)
        elif what < 0.35:
            client.stop()
        elif what < 0.5:
            client.die()
        elif what < 0.6:
            client.hangs_until = world.now + draw.randint(50, 2 * SESSION_MS)
        else:
            client.stop()
            world.after(draw.randint(1, 30), lambda: begin(slot))

    if draw.random() < 0.05:
        world.after(100, end_all)
    classic = tuple(kind for kind in world.kinds if kind is not ModernClient)
    if len(classic) < len(world.kinds) > 1 and draw.random() < 0.7:
        phases = [classic, (ModernClient,), classic]
        preferred = classic
        for number, kinds in enumerate(phases):
            world.after(CHURN_MS * number // 3, lambda kinds=kinds: change_protocol(kinds))  # type: ignore[misc]
    for slot in range(SLOTS):
        if draw.random() < 0.7:
            world.after(draw.randint(0, 200), lambda slot=slot: begin(slot))  # type: ignore[misc]
    for _ in range(CHURN_EVENTS):
        world.after(draw.randint(100, CHURN_MS), happen)


def run(seed: int, kinds: tuple[type[Client], ...]) -> World:
    """Run one world, and check that it comes to rest.

    Raises:
        Broken: If something happens that must not.
    """
    world = World(seed, kinds)
    churn(world)
    world.run_until(CHURN_MS)
    world.faults = False
    # Until those that were to start again have done so.
    world.run_until(CHURN_MS + CHURN_MS // 4)
    clients = world.clients.values()
    if not world.policy.upgrades and any(isinstance(each, EagerClient) and each.alive for each in clients):
        # The others may not join a classic group, and would wait for its end.
        for each in clients:
            if isinstance(each, ModernClient):
                each.die()
    came_to_rest = world.run_until(world.now + REST_MS, stop=lambda: world.restless() is None)
    if not came_to_rest and world.restless() is not None:
        raise Broken(f"the group does not come to rest: {world.restless()}")
    world.check_offsets()
    return world


def finding(seed: int, kinds: tuple[type[Client], ...]) -> str | None:
    """Return what goes wrong in a run, or None."""
    try:
        run(seed, kinds)
    except (Broken, AssertionError) as problem:
        return f"seed {seed}: {problem}"
    return None
