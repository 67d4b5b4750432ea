"""One consumer group, event by event: who is told what, and what is stored before anyone is told."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest
from support.groups import REBALANCE_MS, SESSION_MS, Stage, joining
from support.seeds import seed_or

from cordwood.broker.groups.actions import (
    GroupMember,
    GroupReply,
    GroupState,
    Joined,
    Protocol,
    Refusal,
    StoreState,
    Synced,
)

STABLE, EMPTY = GroupState.STABLE, GroupState.EMPTY
PREPARING, COMPLETING = GroupState.PREPARING, GroupState.COMPLETING


def joined(answer: Joined | None) -> Joined:
    """Return an answer that has come and is no refusal."""
    assert answer is not None
    assert answer.refusal is None
    return answer


def refusal(answer: Joined | Synced | None) -> Refusal | None:
    """Return why an answer that has come is a refusal."""
    assert answer is not None
    return answer.refusal


# --- joining ------------------------------------------------------------------------------------------


def test_the_first_member_begins_the_first_generation_and_leads_it() -> None:
    stage = Stage()
    answer = joined(stage.join(joining(client="a")))
    assert answer == Joined(
        None, "a-1", 1, "consumer", "range", "a-1", (("a-1", None, b"topics of the range"),), False
    )
    assert stage.group.state is COMPLETING
    assert stage.unstored == []


def test_a_member_without_an_id_is_told_to_come_back_with_one_and_is_no_member_until_then() -> None:
    stage = Stage()
    answer = stage.join(joining(client="a", id_first=True))
    assert answer == Joined(Refusal.MEMBER_ID_REQUIRED, "a-1")
    assert (stage.members(), stage.group.state) == ([], EMPTY)
    assert joined(stage.join(joining("a-1", id_first=True))).member_id == "a-1"


def test_a_member_that_does_not_come_back_in_time_is_unknown() -> None:
    stage = Stage()
    stage.join(joining(client="a", id_first=True))
    stage.until(SESSION_MS)
    assert stage.group.deadline() is None
    assert refusal(stage.join(joining("a-1"))) is Refusal.UNKNOWN_MEMBER


def test_a_static_member_needs_no_second_round() -> None:
    stage = Stage()
    assert joined(stage.join(joining(instance="i", id_first=True))).member_id == "i-1"


def test_a_member_that_joins_has_all_others_join_again_and_the_leader_is_told_of_everyone() -> None:
    stage = Stage()
    (first,) = stage.stable("a")
    assert stage.join(joining(client="b", protocols={"range": b"of b"}), "b") is None
    assert stage.heartbeat(first) is Refusal.REBALANCING
    leader = joined(stage.join(joining(first)))
    follower = joined(stage.joined("b"))
    assert (leader.generation, follower.generation) == (2, 2)
    assert (leader.leader, follower.leader) == (first, first)
    assert leader.members == ((first, None, b"topics of the range"), ("b-2", None, b"of b"))
    assert follower.members == ()


def test_whoever_is_awaited_with_an_id_holds_the_generation_up_until_it_comes_or_its_time_is_up() -> None:
    for late in (False, True):
        stage = Stage()
        stage.join(joining(client="slow", id_first=True))
        stage.now = 1
        assert stage.join(joining(client="a"), "a") is None
        if late:
            stage.until(SESSION_MS - 1)
            assert stage.joined("a") is None
            stage.until(SESSION_MS)
        else:
            stage.join(joining("slow-1", id_first=True))
        assert len(joined(stage.joined("a")).members) == (1 if late else 2)


def test_a_pending_member_that_leaves_holds_nobody_up() -> None:
    stage = Stage()
    stage.join(joining(client="b", id_first=True))
    assert stage.join(joining(client="a"), "a") is None
    assert stage.leave("b-1") is None
    assert joined(stage.joined("a")).generation == 1
    assert refusal(stage.join(joining("b-1"))) is Refusal.UNKNOWN_MEMBER


def test_the_first_members_of_a_group_get_the_initial_delay_to_come_together() -> None:
    stage = Stage(initial_delay_ms=3000)
    for at, name in ((0, "a"), (1000, "b"), (2999, "c")):
        stage.until(at)
        assert stage.join(joining(client=name), name) is None
    stage.until(3000)
    assert [joined(stage.joined(name)).generation for name in "abc"] == [1, 1, 1]
    # Only the first: a rebalance of a group that has members begins as soon as all of them are there.
    stage.settle()
    stage.join(joining(client="d"), "d")
    for member in stage.members()[:3]:
        stage.join(joining(member))
    assert joined(stage.joined("d")).generation == 2


def test_a_group_whose_members_all_leave_within_the_initial_delay_is_empty() -> None:
    stage = Stage(initial_delay_ms=3000)
    stage.join(joining(client="a"), "a")
    stage.leave("a-1")
    assert refusal(stage.joined("a")) is Refusal.UNKNOWN_MEMBER
    stage.until(3000)
    assert (stage.group.state, stage.group.generation, stage.members()) == (EMPTY, 1, [])


def test_a_full_group_takes_nobody_more_and_those_under_way_count() -> None:
    stage = Stage(size_max=2)
    stage.join(joining(client="b", id_first=True))
    stage.join(joining(client="a"))
    for request in (joining(client="c"), joining(client="c", id_first=True), joining(instance="i")):
        assert refusal(stage.join(request)) is Refusal.GROUP_FULL
    assert stage.join(joining("b-1")) is not None
    assert refusal(stage.join(joining(client="c"))) is Refusal.GROUP_FULL
    stage.leave("b-1")
    stage.join(joining(client="c"))
    assert len(stage.members()) == 2


def test_a_full_group_lets_a_static_member_that_was_started_anew_take_its_place() -> None:
    stage = Stage(size_max=1)
    stage.stable("i", static="i")
    assert stage.join(joining(instance="i"), "again") is None
    stage.store()
    assert joined(stage.joined("again")).member_id == "i-2"


# --- protocols ----------------------------------------------------------------------------------------


def test_a_member_without_a_protocol_in_common_with_all_others_is_refused() -> None:
    stage = Stage()
    stage.stable("a", protocols={"range": b"", "sticky": b""})
    refused = [
        joining(protocols={}),
        joining(kind=""),
        joining(kind="connect", protocols={"range": b""}),
        joining(protocols={"roundrobin": b""}),
    ]
    assert {refusal(stage.join(request)) for request in refused} == {Refusal.INCONSISTENT_PROTOCOL}
    assert stage.join(joining(client="b", protocols={"sticky": b""})) is None
    # In common with each of the two, and not with both.
    answer = stage.join(joining(client="c", protocols={"range": b""}))
    assert refusal(answer) is Refusal.INCONSISTENT_PROTOCOL


def test_a_name_that_is_listed_twice_counts_once() -> None:
    """Else a member that knows none of the others' protocols is let in, and no protocol can be chosen."""
    stage = Stage()
    stage.join(joining(client="a", protocols=[("x", b"1"), ("x", b"2"), ("y", b"")]))
    stage.join(joining(client="b", protocols={"y": b""}))
    assert refusal(stage.join(joining(client="c", protocols={"x": b""}))) is Refusal.INCONSISTENT_PROTOCOL
    stage.until(SESSION_MS)
    assert (stage.group.state, stage.group.protocol, stage.members()) == (COMPLETING, "y", ["b-2"])


def test_a_member_alone_may_change_its_protocols() -> None:
    stage = Stage()
    (member,) = stage.stable("a", protocols={"range": b""})
    assert joined(stage.join(joining(member, protocols={"sticky": b""}))).protocol == "sticky"


def test_the_protocol_that_most_members_like_best_wins_among_those_that_all_know() -> None:
    stage = Stage()
    wishes: tuple[Sequence[str], ...] = (
        ["x", "range", "sticky"],
        ["sticky", "range"],
        ["sticky", "range", "y"],
    )
    for name, wish in zip("abc", wishes, strict=True):
        stage.join(joining(client=name, protocols=[(each, name.encode()) for each in wish]), name)
    answer = joined(stage.join(joining("a-1", protocols=[(each, b"a") for each in wishes[0]])))
    assert answer.protocol == joined(stage.joined("b")).protocol == "sticky"
    assert [metadata for _, _, metadata in answer.members] == [b"a", b"b", b"c"]


# --- syncing, and what is stored first ----------------------------------------------------------------


def test_nobody_is_told_an_assignment_before_the_generation_is_stored() -> None:
    stage = Stage()
    first, second = stage.stable("a", "b")
    stage.join(joining(first))
    stage.join(joining(second))
    assert stage.sync(second, token="b") is None
    seen = len(stage.actions)
    assert stage.sync(first, {first: b"1", second: b"2"}, "a") is None
    assert stage.actions[seen:] == [StoreState(3)]
    assert stage.group.state is COMPLETING
    stage.store()
    assert stage.group.state is STABLE
    assert stage.synced("a") == Synced(None, b"1", "consumer", "range")
    assert stage.synced("b") == Synced(None, b"2", "consumer", "range")


def test_a_member_that_the_leader_forgets_is_assigned_nothing() -> None:
    stage = Stage()
    first, second = stage.stable("a", "b")
    stage.join(joining(first))
    stage.join(joining(second))
    stage.settle({first: b"all", "somebody else": b"x"})
    assert stage.sync(second) == Synced(None, b"", "consumer", "range")


def test_who_asks_late_is_told_at_once() -> None:
    stage = Stage()
    first = joined(stage.join(joining(client="a"))).member_id
    stage.sync(first, {first: b"1"})
    stage.store()
    assert stage.sync(first) == Synced(None, b"1", "consumer", "range")
    assert stage.sync(first, protocol="range") == Synced(None, b"1", "consumer", "range")
    assert stage.unstored == []


def test_after_a_store_that_failed_nobody_acts_on_the_assignment_and_a_new_generation_begins() -> None:
    stage = Stage()
    first, second = stage.stable("a", "b")
    stage.join(joining(first))
    stage.join(joining(second))
    stage.sync(second, token="b")
    stage.sync(first, {first: b"1", second: b"2"}, "a")
    stage.store(failed=True)
    assert stage.synced("a") == stage.synced("b") == Synced(Refusal.NOT_STORED)
    # What they may still own is what they had before.
    assert [member.assignment for member in stage.group.members.values()] == [b"a", b"b"]
    assert stage.heartbeat(first) is Refusal.REBALANCING
    stage.join(joining(first))
    stage.join(joining(second))
    assert stage.group.generation == 4


def test_a_store_that_ends_after_the_group_went_on_changes_nothing() -> None:
    for failed in (False, True):
        stage = Stage()
        (first,) = stage.stable("a")
        stage.join(joining(first))
        stage.sync(first, {first: b"1"}, "a")
        stage.join(joining(client="b"), "b")
        assert refusal(stage.synced("a")) is Refusal.REBALANCING
        stage.join(joining(first))
        stage.sync("b-2", token="sync b")
        stage.store(failed=failed)
        assert (stage.group.state, stage.group.generation) == (COMPLETING, 3)
        assert stage.synced("sync b") is None
        stage.sync(first, {"b-2": b"new"})
        stage.store()
        assert stage.synced("sync b") == Synced(None, b"new", "consumer", "range")


def test_a_sync_of_another_generation_member_or_protocol_is_refused() -> None:
    stage = Stage()
    first, second = stage.stable("a", "b")
    assert refusal(stage.sync(first, generation=1)) is Refusal.ILLEGAL_GENERATION
    assert refusal(stage.sync(first, generation=3)) is Refusal.ILLEGAL_GENERATION
    assert refusal(stage.sync("nobody")) is Refusal.UNKNOWN_MEMBER
    assert refusal(stage.sync(first, kind="connect")) is Refusal.INCONSISTENT_PROTOCOL
    assert refusal(stage.sync(first, protocol="sticky")) is Refusal.INCONSISTENT_PROTOCOL
    stage.leave(second)
    assert refusal(stage.sync(first)) is Refusal.REBALANCING


def test_a_sync_that_is_sent_again_replaces_the_one_before_and_stores_nothing_twice() -> None:
    stage = Stage()
    first = joined(stage.join(joining(client="a"))).member_id
    stage.sync(first, {first: b"1"}, "sent")
    stage.sync(first, {first: b"other"}, "again")
    assert refusal(stage.synced("sent")) is Refusal.REBALANCING
    assert stage.unstored == [StoreState(1)]
    stage.store()
    assert stage.synced("again") == Synced(None, b"1", "consumer", "range")


# --- joining again ------------------------------------------------------------------------------------


def test_a_join_that_is_sent_again_while_others_are_awaited_replaces_the_one_before() -> None:
    stage = Stage()
    first, _ = stage.stable("a", "b")
    stage.join(joining(first), "sent")
    stage.join(joining(first), "again")
    assert refusal(stage.joined("sent")) is Refusal.REBALANCING
    assert stage.joined("again") is None


def test_a_join_that_is_sent_again_after_the_generation_began_is_told_of_it_again() -> None:
    stage = Stage()
    first, second = stage.stable("a", "b")
    stage.join(joining(first))
    stage.join(joining(second))
    leader, follower = joined(stage.join(joining(first))), joined(stage.join(joining(second)))
    assert (leader.generation, follower.generation) == (3, 3)
    assert ([member for member, _, _ in leader.members], follower.members) == ([first, second], ())
    stage.settle()
    # The leader asks for a rebalance by joining, when the topics have changed.
    assert joined(stage.join(joining(second))).generation == 3
    assert stage.join(joining(first)) is None
    assert stage.group.state is PREPARING


@pytest.mark.parametrize("state", [COMPLETING, STABLE])
def test_a_member_that_has_something_else_to_say_begins_a_rebalance(state: GroupState) -> None:
    stage = Stage()
    first, second = stage.stable("a", "b")
    if state is COMPLETING:
        stage.join(joining(first))
        stage.join(joining(second))
        stage.sync(first, {}, "sync")
    assert stage.join(joining(second, protocols={"range": b"more topics"})) is None
    assert stage.group.state is PREPARING
    if state is COMPLETING:
        assert refusal(stage.synced("sync")) is Refusal.REBALANCING
    (_, _, told) = joined(stage.join(joining(first))).members[1]
    assert told == b"more topics"


# --- leaving, and not being heard of ------------------------------------------------------------------


def test_a_member_that_leaves_makes_the_others_share_what_it_had() -> None:
    stage = Stage()
    first, second, third = stage.stable("a", "b", "c")
    assert stage.leave(first) is None
    assert stage.heartbeat(second) is stage.heartbeat(third) is Refusal.REBALANCING
    assert stage.heartbeat(first) is stage.leave(first) is Refusal.UNKNOWN_MEMBER
    stage.join(joining(third), "c")
    answers = [joined(stage.join(joining(second))), joined(stage.joined("c"))]
    assert [answer.leader for answer in answers] == [second, second]
    assert [member for answer in answers for member, _, _ in answer.members] == [second, third]


def test_the_last_member_that_leaves_leaves_an_empty_generation_behind_that_is_stored() -> None:
    stage = Stage()
    (member,) = stage.stable("a")
    stage.leave(member)
    assert (stage.group.state, stage.group.generation, stage.group.leader) == (EMPTY, 2, None)
    assert stage.unstored == [StoreState(2)]
    assert stage.group.deadline() is None
    stage.store()
    assert joined(stage.join(joining(client="b"))).generation == 3


def test_a_member_is_kept_for_exactly_its_session_after_it_was_last_heard_of() -> None:
    stage = Stage()
    quiet, loud = stage.stable("a", "b")
    heard: list[Callable[[], object]] = [
        lambda: stage.heartbeat(loud),
        lambda: stage.sync(loud),
        lambda: stage.join(joining(loud)),
    ]
    for number, hear in enumerate(heard):
        stage.until((number + 1) * (SESSION_MS // 4))
        hear()
    stage.until(SESSION_MS - 1)
    assert stage.members() == [quiet, loud]
    stage.until(SESSION_MS)
    assert stage.members() == [loud]
    assert stage.group.state is PREPARING
    stage.until(3 * (SESSION_MS // 4) + SESSION_MS - 1)
    assert stage.members() == [loud]
    stage.until(3 * (SESSION_MS // 4) + SESSION_MS)
    assert (stage.members(), stage.group.state) == ([], EMPTY)


def test_a_leader_that_fails_before_it_hands_in_is_replaced_and_its_followers_are_kept() -> None:
    """They wait behind an unanswered request and cannot send heartbeats, however long that takes."""
    stage = Stage()
    leader, second, third = stage.stable("a", "b", "c")
    for member in (leader, second, third):
        stage.join(joining(member))
    stage.sync(second, token="b")
    stage.sync(third, token="c")
    # The leader is heard of, so that the others wait for longer than their own sessions.
    for _ in range(2):
        stage.until(stage.now + SESSION_MS - 1)
        assert stage.heartbeat(leader) is None
    stage.until(stage.now + SESSION_MS)
    assert stage.members() == [second, third]
    assert refusal(stage.synced("b")) is refusal(stage.synced("c")) is Refusal.REBALANCING
    # From now on they are to be heard of again, within a session.
    stage.until(stage.now + SESSION_MS - 1)
    assert stage.members() == [second, third]
    stage.join(joining(third), "third")
    stage.join(joining(second))
    assert joined(stage.joined("third")).leader in (second, third)
    assert stage.group.generation == 5


def test_who_does_not_sync_within_the_rebalance_time_out_is_dropped() -> None:
    stage = Stage()
    leader, second, third = stage.stable("a", "b", "c", rebalance_ms=15_000)
    for member in (leader, second, third):
        stage.join(joining(member, rebalance_ms=15_000))
    stage.sync(second, token="b")
    stage.until(9_000)
    assert stage.heartbeat(leader) is stage.heartbeat(third) is None
    stage.until(14_999)
    assert stage.synced("b") is None
    stage.until(15_000)
    assert stage.members() == [second]
    assert refusal(stage.synced("b")) is Refusal.REBALANCING
    assert joined(stage.join(joining(second))).leader == second


def test_a_rebalance_goes_on_without_those_who_do_not_come_in_time() -> None:
    stage = Stage()
    slow, quick = stage.stable("a", "b", rebalance_ms=15_000)
    assert stage.join(joining(client="c", rebalance_ms=1_000), "c") is None
    stage.join(joining(quick, rebalance_ms=15_000), "b")
    stage.until(9_000)
    assert stage.heartbeat(slow) is Refusal.REBALANCING
    stage.until(14_999)
    assert stage.joined("b") is None
    stage.until(15_000)
    answer = joined(stage.joined("b"))
    assert (answer.generation, answer.leader) == (3, quick)
    assert [member for member, _, _ in answer.members] == [quick, "c-3"]
    for told in (stage.heartbeat(slow, 2), refusal(stage.join(joining(slow))), stage.leave(slow)):
        assert told is Refusal.UNKNOWN_MEMBER


def test_members_that_wait_for_others_are_not_missed() -> None:
    stage = Stage()
    quick, slow = stage.stable("a", "b")
    stage.join(joining(quick), "a")
    while stage.now < REBALANCE_MS - SESSION_MS:
        stage.until(stage.now + SESSION_MS - 1)
        stage.heartbeat(slow)
    assert stage.members() == [quick, slow]


# --- static members -----------------------------------------------------------------------------------


def test_a_static_follower_that_was_started_anew_disturbs_nobody_and_keeps_its_assignment() -> None:
    stage = Stage()
    leader, old = stage.stable("a", "i", static="i")
    assert stage.join(joining(instance="i", client="i"), "again") is None
    assert stage.group.state is STABLE
    assert stage.heartbeat(leader) is None
    stage.store()
    answer = joined(stage.joined("again"))
    assert answer == Joined(None, "i-3", 2, "consumer", "range", leader)
    assert stage.sync("i-3", instance="i") == Synced(None, b"i", "consumer", "range")
    assert stage.members() == [leader, "i-3"]
    assert old == "i-2"


@pytest.mark.parametrize("knows_skip", [True, False])
def test_a_static_leader_that_was_started_anew_does_not_assign_anew(knows_skip: bool) -> None:
    """One that cannot be told to skip it is told that its former self leads, so it does not try."""
    stage = Stage()
    old, other = stage.stable("i", "b", static="i")
    stage.join(joining(instance="i", knows_skip=knows_skip), "again")
    stage.store()
    answer = joined(stage.joined("again"))
    assert answer.skip_assignment is knows_skip
    assert answer.leader == (answer.member_id if knows_skip else old)
    assert len(answer.members) == (2 if knows_skip else 0)
    assert stage.group.leader == answer.member_id
    assert stage.sync(answer.member_id, {other: b"everything"}, instance="i") == Synced(
        None, b"i", "consumer", "range"
    )
    assert stage.unstored == []


def test_a_static_member_is_told_of_its_new_id_only_once_that_is_stored() -> None:
    """Else a restart that knows the old id alone would tell it that it was fenced, which ends a consumer."""
    stage = Stage()
    stage.stable("i", static="i")
    stage.join(joining(instance="i"), "again")
    assert stage.joined("again") is None
    assert stage.unstored == [StoreState(1, "again")]
    stage.store()
    assert joined(stage.joined("again")).generation == 1


def test_a_static_member_whose_new_id_cannot_be_stored_may_try_again() -> None:
    stage = Stage()
    stage.stable("i", static="i")
    stage.join(joining(instance="i"), "first")
    stage.join(joining(instance="i"), "second")
    assert refusal(stage.joined("first")) is Refusal.FENCED
    stage.store()
    assert stage.joined("second") is None
    stage.store(failed=True)
    assert stage.joined("second") == Joined(Refusal.NOT_STORED)
    stage.join(joining(instance="i"), "third")
    stage.store()
    assert stage.sync(joined(stage.joined("third")).member_id, instance="i") == Synced(
        None, b"i", "consumer", "range"
    )


@pytest.mark.parametrize("end", ["session", "leave", "close"])
def test_a_static_member_whose_time_is_up_before_its_id_is_stored_is_answered(end: str) -> None:
    stage = Stage()
    stage.stable("i", static="i")
    stage.join(joining(instance="i"), "again")
    if end == "session":
        stage.until(SESSION_MS)
    elif end == "leave":
        stage.leave("", "i")
    else:
        stage.do(stage.group.refuse_all(Refusal.NOT_STORED))
    expected = Refusal.NOT_STORED if end == "close" else Refusal.UNKNOWN_MEMBER
    assert refusal(stage.joined("again")) is expected
    while stage.unstored:
        stage.store()


def test_the_instance_before_is_fenced_whatever_it_does() -> None:
    stage = Stage()
    old, _ = stage.stable("i", "b", static="i")
    stage.join(joining(instance="i"))
    stage.store()
    assert stage.heartbeat(old, instance="i") is Refusal.FENCED
    assert refusal(stage.sync(old, instance="i")) is Refusal.FENCED
    assert refusal(stage.join(joining(old, "i"))) is Refusal.FENCED
    assert stage.leave(old, "i") is Refusal.FENCED
    assert stage.group.check_member(old, "i", 2) is Refusal.FENCED
    assert stage.heartbeat(old) is Refusal.UNKNOWN_MEMBER
    assert stage.group.state is STABLE


@pytest.mark.parametrize("waits_for", ["join", "sync"])
def test_the_instance_before_is_fenced_while_it_waits(waits_for: str) -> None:
    stage = Stage()
    old, other = stage.stable("i", "b", static="i")
    stage.join(joining(old, "i"), "join")
    if waits_for == "sync":
        stage.join(joining(other))
        stage.sync(old, {}, "sync", instance="i")
    assert stage.join(joining(instance="i"), "again") is None
    told = stage.joined("join") if waits_for == "join" else stage.synced("sync")
    assert refusal(told) is Refusal.FENCED
    stage.join(joining(other))
    assert joined(stage.joined("again")).generation == (4 if waits_for == "sync" else 3)
    assert stage.group.leader == "i-3"


def test_a_static_member_that_comes_back_with_something_else_to_say_begins_a_rebalance() -> None:
    stage = Stage()
    stage.stable("a", "i", static="i")
    assert stage.join(joining(instance="i", protocols={"range": b"more topics"})) is None
    assert stage.group.state is PREPARING
    assert stage.unstored == []


def test_a_static_member_that_is_missing_at_a_rebalance_is_kept_until_its_session_ends() -> None:
    stage = Stage()
    other, _ = stage.stable("a", "i", static="i", rebalance_ms=4_000)
    stage.join(joining(other, rebalance_ms=4_000), "a")
    stage.until(4_000)
    answer = joined(stage.joined("a"))
    assert [instance for _, instance, _ in answer.members] == [None, "i"]
    stage.sync(other, {other: b"some", "i-2": b"more"})
    stage.store()
    # It is of an earlier generation, and learns of its assignment as soon as it asks.
    assert stage.heartbeat("i-2", 2, "i") is Refusal.ILLEGAL_GENERATION
    assert joined(stage.join(joining("i-2", "i"))).generation == 3
    assert stage.sync("i-2", instance="i") == Synced(None, b"more", "consumer", "range")
    stage.until(4_000 + SESSION_MS)
    assert stage.members() == []


@pytest.mark.parametrize("rebalance_ms", [0, 1_000, REBALANCE_MS])
def test_static_members_alone_that_do_not_come_are_awaited_without_a_new_generation(
    rebalance_ms: int,
) -> None:
    """They still speak for the generation they know; and waiting for them is not done in an endless loop."""
    stage = Stage()
    first, dynamic = stage.stable("i", "b", static="i", session_ms=SESSION_MS)
    stage.group.members[first].rebalance_ms = stage.group.members[dynamic].rebalance_ms = rebalance_ms
    stage.leave(dynamic)
    ticks = 0
    while stage.now < 5 * SESSION_MS:
        ticks += 1
        assert ticks < 1_000
        at = min(stage.group.deadline() or stage.now, stage.now + SESSION_MS // 2)
        stage.now = max(at, stage.now + 1)
        assert stage.heartbeat(first, 2, "i") is Refusal.REBALANCING
        stage.do(stage.group.tick(stage.now))
    assert (stage.group.state, stage.group.generation) == (PREPARING, 2)
    assert stage.group.check_member(first, "i", 2) is None
    assert joined(stage.join(joining(first, "i"))).generation == 3


def test_a_static_member_leaves_by_its_instance_alone() -> None:
    stage = Stage()
    stage.stable("i", "b", static="i")
    assert stage.leave("", "nobody") is stage.leave("") is Refusal.UNKNOWN_MEMBER
    assert stage.leave("", "i") is None
    assert stage.members() == ["b-2"]
    assert stage.heartbeat("i-1", instance="i") is Refusal.UNKNOWN_MEMBER


# --- speaking for the group ---------------------------------------------------------------------------


def test_only_a_member_of_the_generation_speaks_for_the_group() -> None:
    stage = Stage()
    static, dynamic = stage.stable("i", "b", static="i")
    check = stage.group.check_member
    assert check(static, "i", 2) is check(dynamic, None, 2) is check(static, None, 2) is None
    assert check(dynamic, None, 1) is check(dynamic, None, -1) is Refusal.ILLEGAL_GENERATION
    assert check("nobody", None, 2) is check("", None, 2) is Refusal.UNKNOWN_MEMBER
    assert check(dynamic, "unknown", 2) is Refusal.UNKNOWN_MEMBER
    assert check(dynamic, "i", 2) is check("", "i", 2) is Refusal.FENCED


# --- after a restart ----------------------------------------------------------------------------------


def restored(stage: Stage) -> list[str]:
    """Give the group the members of a stored generation 7: one static, one not."""
    members = [
        GroupMember("i-1", "i", "i", "/h", SESSION_MS, REBALANCE_MS, (Protocol("range", b""),), b"one"),
        GroupMember("b-2", None, "b", "/h", SESSION_MS, REBALANCE_MS, (Protocol("range", b""),), b"two"),
    ]
    stage.group.restore(7, "consumer", stage.now)
    stage.group.restore_members(members, "range", "b-2", stage.now)
    return ["i-1", "b-2"]


def test_a_restored_generation_goes_on_as_if_nothing_had_happened() -> None:
    stage = Stage()
    static, dynamic = restored(stage)
    assert stage.heartbeat(static, 7, "i") is stage.heartbeat(dynamic, 7) is None
    assert stage.sync(dynamic) == Synced(None, b"two", "consumer", "range")
    assert refusal(stage.sync(dynamic, generation=8)) is Refusal.ILLEGAL_GENERATION
    assert stage.heartbeat("i-0", 7, "i") is Refusal.FENCED
    stage.join(joining(instance="i", protocols={"range": b""}), "again")
    stage.store()
    assert joined(stage.joined("again")).generation == 7


def test_members_of_a_restored_generation_have_a_session_to_be_heard_of() -> None:
    stage = Stage()
    stage.now = 5_000
    static, dynamic = restored(stage)
    stage.until(5_000 + SESSION_MS - 1)
    assert stage.heartbeat(static, 7, "i") is None
    stage.until(5_000 + SESSION_MS)
    assert stage.members() == [static]
    assert dynamic not in stage.members()
    assert joined(stage.join(joining(static, "i"))).generation == 8


def test_a_group_restored_without_members_goes_on_with_the_next_generation() -> None:
    stage = Stage()
    stage.group.restore(7, "consumer", 0)
    assert stage.group.state is EMPTY
    assert joined(stage.join(joining(client="a", kind="connect"))).generation == 8
    assert stage.group.protocol_type == "connect"


# --- the end, and any order ---------------------------------------------------------------------------


def test_everyone_who_waits_is_answered_when_the_group_is_served_no_more() -> None:
    stage = Stage()
    first, second = stage.stable("a", "b")
    stage.join(joining(first), "join")
    stage.do(stage.group.refuse_all(Refusal.NOT_STORED))
    assert refusal(stage.joined("join")) is Refusal.NOT_STORED
    stage.join(joining(first))
    stage.join(joining(second))
    stage.sync(second, token="sync")
    stage.do(stage.group.refuse_all(Refusal.NOT_STORED))
    assert refusal(stage.synced("sync")) is Refusal.NOT_STORED


def random_event(stage: Stage, rng: random.Random, token: object) -> bool:
    """Let anyone do anything, in no sensible order; return whether *token* is owed an answer."""
    group = stage.group
    known = [*group.members, *group._pending, "", "nobody"]
    member = rng.choice(known)
    instance = rng.choice([None, None, "i", "j"])
    if member in group.members and rng.random() < 0.9:
        instance = group.members[member].instance_id
    generation = group.generation - rng.choice([0, 0, 0, 0, 1])
    protocols = {
        name: bytes([rng.randrange(2)]) for name in rng.sample("xyz", rng.choice([0, 1, 2, 3, 3, 3]))
    }
    event = rng.randrange(8)
    if event <= 1:
        rebalance_ms = rng.choice([0, 50, 500])
        stage.join(
            joining(
                rng.choice([member, ""]),
                instance,
                protocols=protocols,
                session_ms=rng.choice([100, 300]),
                rebalance_ms=rebalance_ms,
                id_first=rng.random() < 0.5,
            ),
            token,
        )
        return True
    if event <= 3:
        given = {each: bytes([rng.randrange(9)]) for each in group.members}
        stage.sync(member, given, token, instance=instance, generation=generation)
        return True
    if event == 4:
        stage.heartbeat(member, generation, instance)
    elif event == 5:
        stage.leave(member, instance)
    elif event == 6 and stage.unstored:
        stage.store(failed=rng.random() < 0.2)
    else:
        stage.until(stage.now + rng.choice([1, 20, 120]))
    return False


def test_whatever_happens_in_whatever_order_everyone_is_answered_once_and_the_group_comes_to_rest() -> None:
    runs, events, seed = 400, 60, seed_or(20_260_401)
    states: set[GroupState] = set()
    owed_altogether = 0
    for run in range(runs):
        rng = random.Random(seed + run)
        stage = Stage(size_max=rng.choice([2, 5]), initial_delay_ms=rng.choice([0, 0, 30]))
        owed: list[object] = []
        generation = 0
        for number in range(events):
            if random_event(stage, rng, number):
                owed.append(number)
            states.add(stage.group.state)
            assert stage.group.generation >= generation, (seed, run)
            generation = stage.group.generation
            waiting = [member for member in stage.group.members.values() if member.join is not None]
            assert not waiting or stage.group.state is PREPARING, (seed, run)
        while stage.unstored:
            stage.store()
        stage.until(stage.now + 10_000)
        while stage.unstored:
            stage.store()
        answered = {action.token for action in stage.actions if isinstance(action, GroupReply)}
        assert answered == set(owed), (seed, run, set(owed) - answered)
        assert (stage.group.state, stage.members(), stage.group.deadline()) == (EMPTY, [], None), (seed, run)
        owed_altogether += len(owed)
    print(f"seed {seed}: {runs} runs of {events} events, {owed_altogether} requests, each answered once")
    assert states == {EMPTY, PREPARING, COMPLETING, STABLE}
    assert owed_altogether >= runs * events // 4
