"""A group whose members change their protocol one after the other: who owns what at each step."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import pytest
from support.consumer_world import Shelf

from cordwood.broker.groups.actions import (
    GroupReply,
    GroupState,
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
)
from cordwood.broker.groups.consumer.embedded import decode_assignment, encode_assignment
from cordwood.broker.groups.coordinator import Coordinator, Effect, StoreConsumerRows, StoreGroup
from cordwood.broker.groups.group import Group
from cordwood.broker.groups.known import GroupLimits
from cordwood.broker.groups.offsets_topic import OffsetsRow

GROUP, TOPIC = "group", "t1"
SESSION_MS, REBALANCE_MS, INTERVAL_MS = 30_000, 20_000, 1_000
ALL = range(6)
Numbers = Collection[int]


def subscription(owned: Numbers | None) -> bytes:
    """Return the subscription of a cooperative consumer, or of an eager one if *owned* is None."""
    head = struct.pack(">hih", 0 if owned is None else 1, 1, len(TOPIC)) + TOPIC.encode()
    if owned is None:
        return head + struct.pack(">i", -1)
    if not owned:
        return head + struct.pack(">ii", -1, 0)
    numbers = struct.pack(f">i{len(owned)}i", len(owned), *owned)
    return head + struct.pack(">iih", -1, 1, len(TOPIC)) + TOPIC.encode() + numbers


class Desk:
    """A coordinator whose rows are stored at once, and members that say what they are told to."""

    def __init__(self, policy: MigrationPolicy = MigrationPolicy.BIDIRECTIONAL) -> None:
        self.topics = Shelf()
        self.topics.set(TOPIC, len(ALL))
        self.now = 1_000_000
        self.disk: list[OffsetsRow] = []
        self._policy = policy
        self._numbers = itertools.count()
        self._told: dict[object, Any] = {}
        self.coordinator = self._open()

    def _open(self) -> Coordinator:
        basis = ConsumerBasis(
            topics_of=lambda _: self.topics,
            terms_of=lambda _: ConsumerTerms(assignment_interval_ms=INTERVAL_MS),
            policy=lambda: self._policy,
        )
        coordinator = Coordinator(
            GroupLimits(session_min_ms=1), lambda name: f"{name}-{next(self._numbers)}", basis
        )
        assert not coordinator.load(dict(self.disk).items(), self.now)
        coordinator.loaded = True
        return coordinator

    def restart(self) -> None:
        self.coordinator = self._open()

    def do(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, GroupReply):
                self._told[effect.token] = effect.result
                continue
            self.disk += effect.rows
            if isinstance(effect, StoreGroup):
                self.do(
                    self.coordinator.stored(
                        effect.group, effect.generation, failed=False, now_ms=self.now, token=effect.token
                    )
                )
            else:
                assert isinstance(effect, StoreConsumerRows)
                self.do(self.coordinator.rows_stored(effect.group, effect.number, failed=False))

    def join(
        self, name: str, member_id: str = "", owned: Numbers | None = (), instance: str | None = None
    ) -> Joined:
        """Join; the answer may come later, to `joined`."""
        metadata = subscription(owned)
        protocol = Protocol("range" if owned is None else "cooperative-sticky", metadata)
        request = JoinRequest(
            member_id, instance, name, "", SESSION_MS, REBALANCE_MS, "consumer", (protocol,), False
        )
        self._told.pop(f"join {name}", None)
        self.do(self.coordinator.join(GROUP, request, f"join {name}", self.now))
        return self.joined(name)

    def joined(self, name: str) -> Joined:
        told: Joined = self._told.get(f"join {name}", Joined(Refusal.REBALANCING))
        return told

    def sync(
        self, name: str, joined: Joined, assignments: Mapping[str, Numbers] | None = None
    ) -> Refusal | list[int]:
        """Return the partitions that a member is assigned, or why it is not told."""
        given = [
            (member_id, encode_assignment(1, {TOPIC: numbers} if numbers else {}))
            for member_id, numbers in (assignments or {}).items()
        ]
        effects = self.coordinator.sync(
            GROUP, joined.member_id, None, joined.generation, None, None, given, f"sync {name}", self.now
        )
        self.do(effects)
        told: Synced = self._told[f"sync {name}"]
        if told.refusal is not None:
            return told.refusal
        return [each for numbers in decode_assignment(told.assignment)[0].values() for each in numbers]

    def heartbeat(self, joined: Joined) -> Refusal | None:
        return self.coordinator.heartbeat(GROUP, joined.member_id, None, joined.generation, self.now)

    def rejoin(self, name: str, joined: Joined, owned: Numbers | None) -> tuple[Joined, list[int]]:
        """Join and sync again as a member of a consumer group; return what it is assigned."""
        again = self.join(name, joined.member_id, owned)
        assert again.refusal is None
        assigned = self.sync(name, again)
        assert isinstance(assigned, list), assigned
        return again, assigned

    def beat(
        self,
        member_id: str,
        epoch: int = 0,
        owned: Numbers = (),
        instance: str | None = None,
        regex: str | None = None,
    ) -> tuple[HeartbeatAnswer, frozenset[str]]:
        """Send a heartbeat of the consumer protocol with everything in it."""
        beat = MemberHeartbeat(
            member_id,
            epoch,
            instance,
            None,
            REBALANCE_MS,
            () if regex else (TOPIC,),
            regex,
            None,
            {Shelf.id_of(TOPIC): list(owned)} if owned else {},
        )
        effects, regexes = self.coordinator.consumer_heartbeat(GROUP, beat, f"beat {member_id}", self.now)
        self.do(effects)
        answer: HeartbeatAnswer = self._told[f"beat {member_id}"]
        return answer, regexes

    def told(self, member_id: str, epoch: int = 0, owned: Numbers = ()) -> tuple[int, list[int]]:
        """Return the epoch and the partitions that a member of the consumer protocol is told."""
        answer, _ = self.beat(member_id, epoch, owned)
        assert answer.refusal is None
        assert answer.assignment is not None
        return answer.epoch, [each for numbers in answer.assignment.values() for each in numbers]

    def live(self) -> LiveGroup:
        group = self.coordinator.find(GROUP)
        assert isinstance(group, LiveGroup)
        return group

    def classic(self) -> Group:
        group = self.coordinator.find(GROUP)
        assert isinstance(group, Group)
        return group

    def pair(self) -> tuple[Joined, Joined]:
        """Fill the group with cooperative *a*, which holds everything, and *b*, before they sync."""
        a = self.join("a")
        assert self.sync("a", a, {a.member_id: ALL}) == [*ALL]
        self.join("b")
        a = self.join("a", a.member_id, ALL)
        return a, self.joined("b")

    def mixed(self) -> tuple[Joined, Joined]:
        """Fill the group with eager *a* and *b* and the consumer member *c*, two partitions each."""
        a = self.join("a", owned=None)
        self.sync("a", a, {a.member_id: ALL})
        self.join("b", owned=None)
        a = self.join("a", a.member_id, None)
        b = self.joined("b")
        half = {a.member_id: (0, 1, 2), b.member_id: (3, 4, 5)}
        self.sync("a", a, half)
        assert self.sync("b", b) == [3, 4, 5]
        epoch, got = self.told("c")
        a, first = self.rejoin("a", a, None)
        b, second = self.rejoin("b", b, None)
        epoch, got = self.told("c", epoch, got)
        assert sorted((*first, *second, *got)) == [*ALL]
        assert len(got) == 2
        assert self.live().state.value == "Stable"
        return a, b


def test_a_cooperative_member_keeps_its_partitions_when_the_group_is_upgraded_in_a_rebalance() -> None:
    """Between the joins and the leader's sync, cooperative members consume what they had before."""
    desk = Desk()
    a, b = desk.pair()
    assert desk.classic().state is GroupState.COMPLETING
    epoch, got = desk.told("c")
    assert got == []
    assert desk.live().members[a.member_id].owned.assigned == {Shelf.id_of(TOPIC): dict.fromkeys(ALL, 2)}
    a, kept = desk.rejoin("a", a, ALL)
    assert len(kept) == 2
    assert desk.told("c", epoch)[1] == []
    # Only after a member has said that it gave up its partitions are they given to others.
    assert desk.heartbeat(a) is Refusal.REBALANCING
    a, still = desk.rejoin("a", a, kept)
    assert still == kept
    b, new = desk.rejoin("b", b, ())
    assert sorted((*kept, *new, *desk.told("c", epoch)[1])) == [*ALL]


def test_partitions_that_a_cooperative_member_must_still_give_up_are_not_given_to_others() -> None:
    """In its first generation after a join, a cooperative group takes partitions away and gives none."""
    desk = Desk()
    a, b = desk.pair()
    assert desk.sync("a", a, {a.member_id: (0, 1, 2), b.member_id: ()}) == [0, 1, 2]
    assert desk.classic().state is GroupState.STABLE
    # The member was told, and may not have stopped consuming the others yet.
    epoch, got = desk.told("c")
    assert got == []
    a, kept = desk.rejoin("a", a, (0, 1, 2))
    assert set(kept) < {0, 1, 2}
    assert set(desk.told("c", epoch)[1]) <= {3, 4, 5}


def test_a_partition_taken_from_a_member_that_was_away_is_not_awaited_from_it() -> None:
    desk = Desk()
    a, b = desk.pair()
    # As an assignor does that ignores what members own.
    desk.sync("a", a, {a.member_id: (0, 1), b.member_id: (2, 3, 4, 5)})
    desk.beat("c")
    assert desk.live().members[a.member_id].owned.revoking == {}


def test_a_generation_keeps_its_assignments_until_the_next_ones_are_stored() -> None:
    desk = Desk()
    a, b = desk.pair()
    effects = desk.coordinator.sync(
        GROUP, a.member_id, None, a.generation, None, None, [(b.member_id, b"new")], "sync", desk.now
    )
    members = desk.classic().members
    assert members[b.member_id].assignment == b""
    assert decode_assignment(members[a.member_id].assignment)[0] == {TOPIC: tuple(ALL)}
    (store,) = effects
    assert isinstance(store, StoreGroup)
    assert b"new" in (store.rows[0][1] or b"")
    desk.do(effects)
    assert [members[each.member_id].assignment for each in (a, b)] == [b"", b"new"]


def test_a_member_that_has_not_given_up_a_partition_owns_it_after_a_downgrade_and_an_upgrade() -> None:
    desk = Desk()
    a, _b = desk.pair()
    epoch, _ = desk.told("c")
    a, _kept = desk.rejoin("a", a, ALL)
    # All that leave take the group back to the classic protocol while *a* still holds everything.
    desk.beat("c", -1)
    assert desk.classic().state is GroupState.PREPARING
    _, got = desk.told("d")
    assert got == []
    assert desk.live().members[a.member_id].owned.assigned == {Shelf.id_of(TOPIC): dict.fromkeys(ALL, epoch)}


@pytest.mark.parametrize("policy", [MigrationPolicy.UPGRADE, MigrationPolicy.DISABLED])
def test_classic_members_alone_in_a_consumer_group_take_over_from_one_that_left(
    policy: MigrationPolicy,
) -> None:
    """There is no heartbeat of the consumer protocol that would begin the next assignment."""
    desk = Desk()
    a, b = desk.mixed()
    desk._policy = policy
    desk.beat("c", -1)
    desk.now += INTERVAL_MS
    assert desk.heartbeat(a) is Refusal.REBALANCING
    a, _ = desk.rejoin("a", a, None)
    assert desk.heartbeat(b) is Refusal.REBALANCING
    b, second = desk.rejoin("b", b, None)
    a, first = desk.rejoin("a", a, None)
    assert sorted((*first, *second)) == [*ALL]
    assert desk.live().state.value == "Stable"
    assert desk.heartbeat(a) is desk.heartbeat(b) is None


def test_classic_members_take_over_while_a_static_consumer_is_away() -> None:
    """A static member that left for a moment, with epoch -2, keeps the group from a downgrade."""
    desk = Desk()
    a, b = desk.mixed()
    assert desk.beat("s", instance="i")[0].refusal is None
    desk.now += INTERVAL_MS
    a, _ = desk.rejoin("a", a, None)
    b, _ = desk.rejoin("b", b, None)
    desk.beat("s", -2, instance="i")
    desk.beat("c", -1)
    desk.now += INTERVAL_MS
    assert desk.heartbeat(a) is Refusal.REBALANCING
    a, _ = desk.rejoin("a", a, None)
    b, second = desk.rejoin("b", b, None)
    a, first = desk.rejoin("a", a, None)
    kept_for_it = desk.live().known.target["s"][Shelf.id_of(TOPIC)]
    assert len(kept_for_it) == 2
    assert sorted((*first, *second, *kept_for_it)) == [*ALL]


def test_classic_members_alone_in_a_consumer_group_are_assigned_what_a_topic_gains() -> None:
    desk = Desk()
    a, b = desk.mixed()
    desk._policy = MigrationPolicy.UPGRADE
    desk.beat("c", -1)
    desk.now += INTERVAL_MS
    a, _ = desk.rejoin("a", a, None)
    b, _ = desk.rejoin("b", b, None)
    desk.now += INTERVAL_MS
    desk.topics.set("another", 3)
    assert desk.heartbeat(a) is None
    desk.topics.set(TOPIC, 8)
    assert desk.heartbeat(a) is Refusal.REBALANCING
    a, _ = desk.rejoin("a", a, None)
    b, second = desk.rejoin("b", b, None)
    a, first = desk.rejoin("a", a, None)
    assert sorted((*first, *second)) == [*range(8)]


def test_a_sync_is_answered_while_the_next_assignment_may_not_be_made_yet() -> None:
    """Otherwise a member would join again and again until the interval has passed."""
    desk = Desk()
    a, _b = desk.mixed()
    a, _ = desk.rejoin("a", a, None)
    desk.beat("d")
    group = desk.live().known
    assert group.epoch.epoch > group.target_epoch.epoch
    a, _ = desk.rejoin("a", a, None)
    assert desk.heartbeat(a) is None
    desk.now += INTERVAL_MS
    assert desk.heartbeat(a) is Refusal.REBALANCING


def test_a_member_that_was_removed_does_not_join_with_the_partitions_it_had() -> None:
    """They may have other owners already; without any it is a new member."""
    desk = Desk()
    desk.pair()
    desk.told("c")
    assert desk.join("gone", "gone-1", (0, 1)).refusal is Refusal.UNKNOWN_MEMBER
    assert desk.join("new", "new-1", ()).refusal is not Refusal.UNKNOWN_MEMBER


def test_a_restart_after_a_downgrade_does_not_end_its_rebalance() -> None:
    """What the consumer member left has no owner until the others have joined again."""
    desk = Desk()
    a, b = desk.mixed()
    desk.beat("c", -1)
    assert desk.heartbeat(a) is Refusal.REBALANCING
    desk.restart()
    assert desk.heartbeat(a) is desk.heartbeat(b) is Refusal.REBALANCING
    desk.join("a", a.member_id, None)
    b = desk.join("b", b.member_id, None)
    a = desk.joined("a")
    assert a.refusal is b.refusal is None
    leader = a if a.leader == a.member_id else b
    desk.sync("leader", leader, {a.member_id: (0, 1, 2), b.member_id: (3, 4, 5)})
    assert desk.sync("b", b) == [3, 4, 5]


def test_a_clock_that_is_set_back_over_a_restart_does_not_delay_the_next_assignment() -> None:
    desk = Desk()
    epoch, got = desk.told("a")
    assert got == [*ALL]
    desk.now -= 3_600_000
    desk.restart()
    desk.told("b")
    assert desk.live().known.target_epoch.epoch == desk.live().known.epoch.epoch
    _, kept = desk.told("a", epoch, ALL)
    assert len(kept) == 3


def test_a_clock_that_is_set_back_over_a_restart_does_not_delay_regular_expressions() -> None:
    desk = Desk()
    answer, regexes = desk.beat("a", regex="t.*")
    assert regexes == {"t.*"}
    found = {"t.*": frozenset({TOPIC})}
    desk.do(desk.coordinator.resolved(GROUP, found, desk.topics.version, desk.now))
    assert desk.beat("a", answer.epoch, regex="t.*")[1] == frozenset()
    desk.now -= 3_600_000
    desk.restart()
    assert desk.beat("a", answer.epoch, regex="t.*")[1] == {"t.*"}


def test_the_time_in_which_a_member_must_join_again_begins_with_its_heartbeat() -> None:
    """It may be shorter than the session, so the alarm of the session would come too late."""
    desk = Desk()
    a, _b = desk.mixed()
    while (due := desk.coordinator.deadline()) is not None and due < desk.now + REBALANCE_MS:
        desk.now += INTERVAL_MS
        desk.do(desk.coordinator.tick(desk.now))
    desk.beat("d")
    desk.now += INTERVAL_MS
    assert desk.heartbeat(a) is Refusal.REBALANCING
    due = desk.coordinator.deadline()
    assert due is not None
    assert due <= desk.now + REBALANCE_MS
    begun = desk.now
    while desk.now < begun + REBALANCE_MS:
        desk.now += INTERVAL_MS
        desk.do(desk.coordinator.tick(desk.now))
    assert a.member_id not in desk.live().members
