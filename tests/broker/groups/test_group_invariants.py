"""Invariants of consumer groups: each planted fault is seen by the next ordinary call."""

from __future__ import annotations

import heapq
from collections.abc import Callable

import pytest
from support.groups import Stage, joining

from cordwood.broker.groups.actions import GroupMember, GroupState, Protocol
from cordwood.broker.groups.coordinator import Coordinator
from cordwood.broker.groups.group import Group
from cordwood.broker.groups.known import GroupLimits
from cordwood.broker.groups.offsets_topic import Committed

Plant = Callable[[Group], None]


def the_leader_is_no_member(group: Group) -> None:
    group.leader = "nobody"


def an_empty_group_has_members(group: Group) -> None:
    group.state = GroupState.EMPTY


def more_instances_than_members(group: Group) -> None:
    group._instances.update({f"instance {number}": "nobody" for number in range(5)})


def members_are_awaited_in_a_stable_group(group: Group) -> None:
    group._join_deadline_ms = 1 << 60


def syncs_are_awaited_in_a_stable_group(group: Group) -> None:
    group._sync_deadline_ms = 1 << 60


def an_assignment_is_stored_in_a_stable_group(group: Group) -> None:
    group._given = {}


@pytest.mark.parametrize(
    "plant",
    [
        the_leader_is_no_member,
        an_empty_group_has_members,
        more_instances_than_members,
        members_are_awaited_in_a_stable_group,
        syncs_are_awaited_in_a_stable_group,
        an_assignment_is_stored_in_a_stable_group,
    ],
)
def test_a_group_whose_parts_disagree_is_caught_by_its_next_tick(plant: Plant) -> None:
    stage = Stage()
    stage.stable("one", "two")
    stage.do(stage.group.tick(stage.now))
    plant(stage.group)
    with pytest.raises(AssertionError):
        stage.group.tick(stage.now)


def test_a_generation_of_nobody_is_caught() -> None:
    stage = Stage()
    stage.stable("one")
    stage.group.members.clear()
    stage.group.leader = None
    with pytest.raises(AssertionError, match="without members"):
        stage.group.tick(stage.now)


def test_a_stored_leader_that_is_no_member_is_no_leader() -> None:
    """A record is not our own state: what it says of a leader is compared with its members."""
    group = Group("group", lambda name: name)
    member = GroupMember("one", None, "client", "/host", 10, 10, (Protocol("range", b""),))
    group.restore(3, "consumer", 0)
    group.restore_members([member], "range", "nobody", 0)
    assert group.leader == "one"
    group.check_invariants()


def coordinator() -> Coordinator:
    found = Coordinator(GroupLimits(session_min_ms=0), lambda name: f"{name}-1")
    found.join("group", joining(), "token", 0)
    return found


def kept_under_another_name(found: Coordinator) -> None:
    found._groups["other"] = found._groups["group"]


def a_dead_group_is_kept(found: Coordinator) -> None:
    found._groups["other"] = Group("other", lambda name: name, state=GroupState.DEAD)


def a_group_without_the_offsets_it_is_kept_for(found: Coordinator) -> None:
    found._offsets["other"] = {}


def an_alarm_that_was_never_set(found: Coordinator) -> None:
    found._alarm_of.update({f"group {number}": 0 for number in range(5)})
    found._alarms = [(0, "group")]
    heapq.heapify(found._alarms)


@pytest.mark.parametrize(
    "plant",
    [
        kept_under_another_name,
        a_dead_group_is_kept,
        a_group_without_the_offsets_it_is_kept_for,
        an_alarm_that_was_never_set,
    ],
)
def test_a_coordinator_whose_parts_disagree_is_caught(plant: Callable[[Coordinator], None]) -> None:
    found = coordinator()
    found.check_invariants("other")
    plant(found)
    with pytest.raises(AssertionError):
        found.check_invariants("other")


def test_a_coordinator_checks_a_group_whose_offsets_are_committed() -> None:
    found = coordinator()
    found._groups["other"] = found._groups["group"]
    with pytest.raises(AssertionError, match="another name"):
        found.committed("other", {("t", 0): Committed(1, -1, "", 0)})
