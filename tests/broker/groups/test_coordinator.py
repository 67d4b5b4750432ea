"""All groups of a broker: what is due when, what is committed, what is forgotten, what a restart finds."""

from __future__ import annotations

import itertools
import tracemalloc
from collections.abc import Iterable
from typing import Any

import pytest
from support.groups import REBALANCE_MS, SESSION_MS, joining, subscription

from cordwood.broker.groups import offsets_topic
from cordwood.broker.groups.actions import (
    GroupReply,
    GroupState,
    Joined,
    Refusal,
    Synced,
    Token,
)
from cordwood.broker.groups.coordinator import Coordinator, Effect, StoreGroup
from cordwood.broker.groups.group import Group
from cordwood.broker.groups.known import GroupLimits
from cordwood.broker.groups.offsets_topic import Committed, OffsetKey, OffsetsRow

RETENTION_MS = 60_000
GROUP = "group"
PLACE = ("topic", 0)


class Desk:
    """A coordinator whose stores succeed at once, and its topic: `reopened` reads that into another one."""

    def __init__(self, rows: Iterable[OffsetsRow] = (), now: int = 0, **limits: int) -> None:
        numbers = itertools.count(1)
        self.limits = {"retention_ms": RETENTION_MS, **limits}
        self.coordinator = Coordinator(GroupLimits(**self.limits), lambda name: f"{name}-{next(numbers)}")
        self.now = now
        self.rows: list[OffsetsRow] = list(rows)
        self.told: dict[Token, Any] = {}
        self._tokens = itertools.count(1)
        self.unread = self.coordinator.load(self.rows, now)
        self.coordinator.loaded = True

    def reopened(self) -> Desk:
        return Desk(self.rows, self.now, **self.limits)

    def do(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, GroupReply):
                self.told[effect.token] = effect.result
            else:
                assert isinstance(effect, StoreGroup)
                self.rows += effect.rows
                name, generation = effect.group, effect.generation
                self.do(
                    self.coordinator.stored(
                        name, generation, failed=False, now_ms=self.now, token=effect.token
                    )
                )

    def join(self, group: str = GROUP, member_id: str = "", **more: Any) -> Joined | None:
        token = next(self._tokens)
        request = joining(member_id, **more)
        self.do(self.coordinator.join(group, request, token, self.now))
        told = self.told.get(token)
        assert told is None or isinstance(told, Joined)
        return told

    def sync(self, member_id: str, generation: int, group: str = GROUP, given: bytes = b"") -> Synced | None:
        token = next(self._tokens)
        assigned = [(member_id, given)]
        self.do(
            self.coordinator.sync(group, member_id, None, generation, None, None, assigned, token, self.now)
        )
        told = self.told.get(token)
        assert told is None or isinstance(told, Synced)
        return told

    def member(self, group: str = GROUP, **more: Any) -> str:
        """Fill an empty group with one member, and return its id."""
        joined = self.join(group, **more)
        assert joined is not None
        assert joined.refusal is None
        self.sync(joined.member_id, joined.generation, group, b"all")
        assert self.group(group).state is GroupState.STABLE
        return joined.member_id

    def leave(self, member_id: str, group: str = GROUP) -> Refusal | None:
        refusal, effects = self.coordinator.leave(group, member_id, None, self.now)
        self.do(effects)
        return refusal

    def group(self, name: str = GROUP) -> Group:
        group = self.coordinator.find(name)
        assert isinstance(group, Group)
        return group

    def commit(self, *places: tuple[str, int], group: str = GROUP, at: int = 5) -> None:
        offsets = {place: Committed(at, -1, "", self.now) for place in places}
        self.rows += self.coordinator.rows_to_commit(group, offsets)
        self.coordinator.committed(group, offsets)

    def until(self, now: int) -> int:
        """Let time go by; return how often something was due."""
        ticks = 0
        while (due := self.coordinator.deadline()) is not None and due <= now:
            self.now = max(due, self.now)
            self.do(self.coordinator.tick(self.now))
            ticks += 1
        self.now = now
        return ticks


# --- time ---------------------------------------------------------------------------------------------


def test_the_first_of_all_groups_that_is_due_is_looked_at_when_it_is() -> None:
    desk = Desk()
    assert desk.coordinator.deadline() is None
    desk.member("slow", session_ms=30_000)
    desk.member("quick", session_ms=10_000)
    assert desk.coordinator.deadline() == 10_000
    assert desk.until(9_999) == 0
    assert [group.state for group in map(desk.group, ("slow", "quick"))] == [
        GroupState.STABLE,
        GroupState.STABLE,
    ]
    desk.until(10_000)
    assert [group.state for group in map(desk.group, ("slow", "quick"))] == [
        GroupState.STABLE,
        GroupState.EMPTY,
    ]
    assert desk.coordinator.deadline() == 30_000


def test_an_alarm_that_comes_early_does_nothing_but_set_the_next() -> None:
    desk = Desk()
    member = desk.member()
    alarms = 0
    for at in range(0, 20 * SESSION_MS, 500):
        alarms += desk.until(at)
        assert desk.coordinator.heartbeat(GROUP, member, None, 1, at) is None
    assert desk.group().state is GroupState.STABLE
    # One a session or so, not one a heartbeat.
    assert alarms <= 25
    assert len(desk.coordinator._alarms) == 1


def test_a_member_keeps_its_place_by_committing() -> None:
    desk = Desk()
    member = desk.member()
    for at in range(0, 3 * SESSION_MS, 6_000):
        desk.until(at)
        assert desk.coordinator.check_commit(GROUP, member, None, 1, at) is None
    desk.until(3 * SESSION_MS + 3_999)
    assert list(desk.group().members) == [member]


# --- who may commit -----------------------------------------------------------------------------------


def test_offsets_are_committed_by_members_of_the_generation_or_by_nobody_in_particular() -> None:
    desk = Desk()
    check = desk.coordinator.check_commit
    assert check(GROUP, "", None, -1, 0) is None
    assert check(GROUP, "somebody", None, 3, 0, version=8) is Refusal.ILLEGAL_GENERATION
    assert check(GROUP, "somebody", None, 3, 0, version=9) is Refusal.NO_GROUP
    member = desk.member()
    assert check(GROUP, member, None, 1, 0) is None
    # Who assigns partitions to itself has no business in a group that has members.
    assert check(GROUP, "", None, -1, 0) is Refusal.UNKNOWN_MEMBER
    assert check(GROUP, member, None, -1, 0) is Refusal.ILLEGAL_GENERATION
    assert check(GROUP, member, None, 0, 0) is check(GROUP, member, None, 2, 0) is Refusal.ILLEGAL_GENERATION
    assert check(GROUP, "nobody", None, 1, 0) is Refusal.UNKNOWN_MEMBER
    assert check(GROUP, member, "instance", 1, 0) is Refusal.UNKNOWN_MEMBER
    # While others are awaited the owner commits what it did; from the next generation on it does not.
    desk.join(client="other")
    assert desk.group().state is GroupState.PREPARING
    assert check(GROUP, member, None, 1, 0) is None
    desk.join(GROUP, member)
    assert desk.group().state is GroupState.COMPLETING
    assert check(GROUP, member, None, 1, 0) is Refusal.ILLEGAL_GENERATION
    assert check(GROUP, member, None, 2, 0) is Refusal.REBALANCING
    desk.leave(member)
    desk.until(SESSION_MS)
    assert desk.group().state is GroupState.EMPTY
    assert check(GROUP, member, None, 2, 0) is Refusal.UNKNOWN_MEMBER
    assert check(GROUP, "", None, -1, 0) is None


def test_nobody_speaks_for_a_group_that_is_not_there() -> None:
    desk = Desk()
    assert desk.coordinator.heartbeat("none", "m", None, 1, 0) is Refusal.UNKNOWN_MEMBER
    assert desk.leave("m", "none") is Refusal.UNKNOWN_MEMBER
    assert desk.sync("m", 1, "none") == Synced(Refusal.UNKNOWN_MEMBER)
    assert desk.join("none", "m") == Joined(Refusal.UNKNOWN_MEMBER, "m")
    assert desk.coordinator.groups() == []


# --- expiry -------------------------------------------------------------------------------------------


def test_offsets_that_nobody_joined_for_expire_each_after_its_own_commit() -> None:
    desk = Desk()
    desk.commit(("topic", 0), ("topic", 1))
    desk.now = 40_000
    desk.commit(("topic", 1))
    assert desk.coordinator.expired(RETENTION_MS - 1) == {}
    assert desk.coordinator.expired(RETENTION_MS) == {GROUP: [("topic", 0)]}
    assert desk.coordinator.expired(RETENTION_MS + 40_000) == {GROUP: [("topic", 0), ("topic", 1)]}


def test_offsets_of_a_group_with_members_do_not_expire() -> None:
    desk = Desk()
    desk.member(session_ms=1_000_000)
    desk.commit(PLACE)
    assert desk.coordinator.expired(100 * RETENTION_MS) == {}


def test_offsets_of_a_group_expire_from_when_its_last_member_left_also_after_a_restart() -> None:
    desk = Desk()
    member = desk.member(session_ms=1_000_000)
    desk.commit(PLACE)
    desk.now = 500_000
    desk.leave(member)
    for each in (desk, desk.reopened()):
        assert each.coordinator.expired(500_000 + RETENTION_MS - 1) == {}
        assert each.coordinator.expired(500_000 + RETENTION_MS) == {GROUP: [PLACE]}
    desk.now = 520_000
    desk.commit(PLACE)
    assert desk.coordinator.expired(520_000 + RETENTION_MS - 1) == {}


def test_a_group_without_members_and_offsets_is_forgotten_after_as_long() -> None:
    desk = Desk()
    member = desk.member()
    assert desk.coordinator.abandoned(100 * RETENTION_MS) == []
    desk.now = 1_000
    desk.leave(member)
    desk.commit(PLACE)
    assert desk.coordinator.abandoned(1_000 + RETENTION_MS) == []
    desk.coordinator.dropped(GROUP, [PLACE])
    assert desk.coordinator.abandoned(1_000 + RETENTION_MS - 1) == []
    assert desk.coordinator.abandoned(1_000 + RETENTION_MS) == [GROUP]


def test_a_group_that_members_are_just_coming_to_is_not_abandoned() -> None:
    desk = Desk(now=100 * RETENTION_MS)
    desk.join(id_first=True)
    assert desk.coordinator.abandoned(desk.now) == []


# --- deleting -----------------------------------------------------------------------------------------


def test_what_is_deleted_is_taken_back_record_by_record_and_a_restart_does_not_know_it() -> None:
    desk = Desk()
    desk.leave(desk.member())
    desk.commit(("topic", 0), ("other", 3))
    desk.commit(PLACE, group="kept")
    taken = desk.coordinator.rows_to_delete(GROUP)
    assert {offsets_topic.decode_key(key) for key, _ in taken} == {
        OffsetKey(GROUP, "topic", 0),
        OffsetKey(GROUP, "other", 3),
        GROUP,
    }
    assert {value for _, value in taken} == {None}
    desk.rows += taken
    desk.coordinator.deleted(GROUP, [("topic", 0), ("other", 3)])
    for each in (desk, desk.reopened()):
        assert each.coordinator.groups() == ["kept"]
        assert each.coordinator.find(GROUP) is None
        assert each.coordinator.offsets(GROUP) == {}
        assert each.coordinator.heartbeat(GROUP, "member-1", None, 1, 0) is Refusal.UNKNOWN_MEMBER


def test_an_offset_that_came_while_its_group_was_deleted_stays_as_its_record_does() -> None:
    desk = Desk()
    desk.commit(("topic", 0))
    desk.rows += desk.coordinator.rows_to_delete(GROUP)
    desk.commit(("topic", 1))
    desk.coordinator.deleted(GROUP, [("topic", 0)])
    for each in (desk, desk.reopened()):
        assert list(each.coordinator.offsets(GROUP)) == [("topic", 1)]


def test_a_group_that_members_came_to_while_it_was_deleted_stays() -> None:
    desk = Desk()
    desk.leave(desk.member())
    desk.rows += desk.coordinator.rows_to_delete(GROUP)
    member = desk.member()
    desk.coordinator.deleted(GROUP, [])
    for each in (desk, desk.reopened()):
        assert each.coordinator.heartbeat(GROUP, member, None, 3, 0) is None


def test_dropped_offsets_are_gone_and_those_that_never_were_cost_no_record() -> None:
    desk = Desk()
    desk.commit(("topic", 0), ("topic", 1))
    taken = desk.coordinator.rows_to_drop(GROUP, [("topic", 1), ("topic", 7)])
    assert taken == [(offsets_topic.offset_key(OffsetKey(GROUP, "topic", 1)), None)]
    desk.rows += taken
    desk.coordinator.dropped(GROUP, [("topic", 1), ("topic", 7)])
    for each in (desk, desk.reopened()):
        assert list(each.coordinator.offsets(GROUP)) == [("topic", 0)]
    desk.coordinator.dropped(GROUP, [("topic", 0)])
    assert desk.coordinator.groups() == []


def test_all_offsets_of_a_topic_are_found_whoever_committed_them() -> None:
    desk = Desk()
    desk.commit(("gone", 0), ("gone", 1), ("kept", 0), group="a")
    desk.commit(("gone", 5), group="b")
    desk.commit(("kept", 0), group="c")
    assert desk.coordinator.offsets_of_topic("gone") == {"a": [("gone", 0), ("gone", 1)], "b": [("gone", 5)]}
    assert desk.coordinator.topics() == {"gone", "kept"}


@pytest.mark.parametrize(
    ("metadata", "subscribed"),
    [(subscription("topic", "more"), True), (subscription("other"), False), (b"", True), (b"\xff" * 9, True)],
)
def test_a_member_that_cannot_be_understood_may_read_any_topic(metadata: bytes, subscribed: bool) -> None:
    desk = Desk()
    desk.member(protocols={"range": metadata})
    assert desk.coordinator.is_subscribed(GROUP, "topic") is subscribed
    assert not desk.coordinator.is_subscribed("no group", "topic")


def test_members_that_are_no_consumers_subscribe_to_nothing() -> None:
    desk = Desk()
    desk.member(kind="connect")
    assert not desk.coordinator.is_subscribed(GROUP, "topic")


# --- loading ------------------------------------------------------------------------------------------


def test_a_restart_knows_generation_members_assignments_and_offsets() -> None:
    desk = Desk()
    member = desk.member(protocols={"range": b"said", "sticky": b""})
    desk.commit(PLACE, at=17)
    again = desk.reopened()
    assert again.unread == 0
    group = again.group()
    assert (group.state, group.generation, group.protocol, group.leader) == (
        GroupState.STABLE,
        1,
        "range",
        member,
    )
    assert again.coordinator.offsets(GROUP) == {PLACE: Committed(17, -1, "", 0)}
    assert again.coordinator.heartbeat(GROUP, member, None, 1, 0) is None
    assert again.sync(member, 1) == Synced(None, b"all", "consumer", "range")
    again.until(SESSION_MS)
    assert (again.group().state, again.group().generation) == (GroupState.EMPTY, 2)
    third = again.reopened().join(client="b")
    assert third is not None
    assert third.generation == 3


def test_of_each_key_the_last_record_counts() -> None:
    desk = Desk()
    for at in (5, 9, 7):
        desk.commit(PLACE, at=at)
    member = desk.member()
    desk.join(GROUP, member)
    desk.sync(member, 2)
    again = desk.reopened()
    assert again.coordinator.offsets(GROUP)[PLACE].offset == 7
    assert again.group().generation == 2


def test_records_that_cannot_be_read_are_counted_and_take_nothing_with_them() -> None:
    desk = Desk()
    member = desk.member()
    desk.commit(PLACE)
    group_key, offset_key = offsets_topic.group_key(GROUP), offsets_topic.offset_key(OffsetKey(GROUP, *PLACE))
    bad: list[OffsetsRow] = [
        (group_key, b"\0\x09"),
        (offset_key, b""),
        (b"", b"x"),
        (b"\0\2\0\x09short", b"x"),
    ]
    # Keys of kinds that are not ours, such as Kafka's share groups: neither ours nor damaged.
    others: list[OffsetsRow] = [(b"\0\x09anything", b"x"), (b"\0\x0b", None)]
    again = Desk([*desk.rows, *bad, *others])
    assert again.unread == len(bad)
    assert again.coordinator.heartbeat(GROUP, member, None, 1, 0) is None
    assert PLACE in again.coordinator.offsets(GROUP)
    assert again.coordinator.groups() == [GROUP]


def test_a_commit_that_cannot_be_read_may_need_every_record_until_the_group_commits_again() -> None:
    """R6: retention that waits for groups must not take it for a group that has read everything."""
    desk = Desk()
    desk.commit(PLACE, at=9)
    key = offsets_topic.offset_key(OffsetKey("other", *PLACE))
    again = Desk([*desk.rows, (key, b"\0\x63")])
    again.coordinator.loaded = True
    assert again.coordinator.needed_from(*PLACE) == 0
    assert again.coordinator.needed_from(PLACE[0], PLACE[1] + 1) is None
    again.commit(PLACE, group="other", at=7)
    assert again.coordinator.needed_from(*PLACE) == 7
    taken_back = Desk([*desk.rows, (key, b"\0\x63"), (key, None)])
    taken_back.coordinator.loaded = True
    assert taken_back.coordinator.needed_from(*PLACE) == 9


def test_a_group_of_kafka_without_a_time_counts_as_empty_since_now() -> None:
    old = b"\0\0\0\x08consumer\0\0\0\x09\xff\xff\xff\xff\0\0\0\0"
    # Committed before the group was read: a commit as young as the group would hide its age.
    earlier = Desk(now=0)
    earlier.commit(PLACE)
    desk = Desk([*earlier.rows, (offsets_topic.group_key(GROUP), old)], now=1_000)
    assert (desk.group().generation, desk.group().state) == (9, GroupState.EMPTY)
    assert desk.coordinator.expired(1_000 + RETENTION_MS - 1) == {}
    assert desk.coordinator.expired(1_000 + RETENTION_MS) == {GROUP: [PLACE]}
    desk.coordinator.dropped(GROUP, [PLACE])
    assert desk.coordinator.abandoned(1_000 + RETENTION_MS - 1) == []
    assert desk.coordinator.abandoned(1_000 + RETENTION_MS) == [GROUP]


# --- many, and hostile --------------------------------------------------------------------------------


def test_groups_that_only_committed_count_as_empty_ones() -> None:
    desk = Desk()
    desk.commit(PLACE, group="simple")
    assert desk.coordinator.groups() == ["simple"]
    found = desk.coordinator.find("simple")
    assert found is not None
    assert (found.state, found.members, found.protocol_type) == (GroupState.EMPTY, {}, None)


def test_members_that_never_come_back_cost_memory_for_a_session_and_not_longer() -> None:
    """They ask for an id, most in groups of their own, and are not heard of again, round after round."""
    desk = Desk()
    rounds, alone, together = 5, 1_500, 300
    full, held = [], []
    tracemalloc.start()
    try:
        for number in range(rounds):
            for each in range(alone):
                desk.join(f"group {number}.{each}", id_first=True)
            for _ in range(together):
                desk.join("all", id_first=True)
            assert len(desk.coordinator.groups()) == alone + 1
            desk.told.clear()
            full.append(tracemalloc.get_traced_memory()[0])
            desk.until(desk.now + SESSION_MS)
            assert desk.coordinator.groups() == []
            assert desk.coordinator.deadline() is None
            held.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    print(f"{rounds} rounds of {alone + together} members: {full[0] >> 10} KiB, then {held[-1] >> 10} KiB")
    # What one round leaves behind is nothing like what it took, and no round adds to it.
    assert held[-1] < full[0] / 2


@pytest.mark.parametrize("refused", [{"protocols": {}}, {"kind": ""}])
def test_a_group_that_nobody_could_get_into_is_not_kept(refused: dict[str, Any]) -> None:
    desk = Desk()
    for number in range(100):
        told = desk.join(f"group {number}", **refused)
        assert told is not None
        assert told.refusal is Refusal.INCONSISTENT_PROTOCOL
    assert desk.coordinator.groups() == []


def test_a_group_whose_commit_was_refused_is_not_kept() -> None:
    """Every offset was of a topic that does not exist, so there is nothing to remember."""
    desk = Desk()
    desk.coordinator.committed("never seen", {})
    assert desk.coordinator.groups() == []
    assert desk.coordinator.find("never seen") is None


def test_a_group_whose_only_member_left_before_it_was_in_is_not_kept() -> None:
    desk = Desk()
    desk.join(id_first=True)
    assert desk.leave("member-1") is None
    desk.until(SESSION_MS)
    assert desk.coordinator.groups() == []


def test_a_group_that_had_a_generation_is_kept_so_that_the_next_one_is_higher() -> None:
    desk = Desk()
    desk.leave(desk.member())
    desk.join(id_first=True)
    desk.until(10 * SESSION_MS)
    assert desk.group().generation == 2


def test_a_member_without_time_to_rebalance_does_not_stop_the_clock() -> None:
    """Its static peer is awaited again and again; that must not be done in one endless tick."""
    desk = Desk()
    for instance in ("i", "j"):
        desk.join(instance=instance, client=instance, rebalance_ms=0)
    ticks = desk.until(REBALANCE_MS)
    assert ticks < 100
    assert desk.group().state is GroupState.EMPTY


def test_everyone_who_waits_is_answered_when_the_broker_closes() -> None:
    desk = Desk()
    for group in ("a", "b"):
        desk.member(group)
        assert desk.join(group, client="second") is None
    effects = desk.coordinator.close()
    assert len(effects) == 2
    assert not any(isinstance(effect, StoreGroup) for effect in effects)
    assert {effect.result.refusal for effect in effects if isinstance(effect, GroupReply)} == {
        Refusal.NOT_STORED
    }
