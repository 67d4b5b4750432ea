"""Twenty consumers in virtual time: joining, leaving, crashing, hanging, restarting with another protocol.

Each run is one seed; see `support.consumer_world`. Topics grow, answers and writes are lost, and the
coordinator is killed and loads what was stored. `CORDWOOD_CONSUMER_RUNS` sets how many runs there are of
each kind, `CORDWOOD_SEED` the first seed. What must hold:

- no two members of the group ever own the same partition;
- the epoch that a member is told never goes back;
- an offset that is committed is never lost, whatever protocol the group changes to;
- a group changes its protocol while its members run, in both directions, often enough to be a test;
- the coordinator is killed in every state of a group, and of its members;
- once the churn stops, every partition has one owner, which lives, and the group is stable.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from support.consumer_world import (
    CHURN_MS,
    Client,
    CooperativeClient,
    EagerClient,
    ModernClient,
    World,
    churn,
    finding,
    run,
)
from support.seeds import seed_or

from cordwood.broker.groups.actions import GroupState
from cordwood.broker.groups.consumer import changes, classic, heartbeats, members
from cordwood.broker.groups.consumer.group import ConsumerGroup, ConsumerGroupState
from cordwood.broker.groups.consumer.rows import MemberState, RowKind
from cordwood.broker.groups.coordinator import Coordinator
from cordwood.broker.groups.group import Group

RUNS = int(os.environ.get("CORDWOOD_CONSUMER_RUNS", "334"))
SEED = seed_or(20_261_121)
#: A planted bug is found by one of so many runs; most by the first few.
CANARY_RUNS = 334
KINDS: dict[str, tuple[type[Client], ...]] = {
    "consumer": (ModernClient,),
    "classic": (EagerClient, CooperativeClient),
    "mixed": (ModernClient, EagerClient, CooperativeClient),
}
CONSUMER_STATES = [
    *(f"consumer: {state.value}" for state in ConsumerGroupState),
    *(f"member: {state.name}" for state in MemberState if state is not MemberState.UNKNOWN),
]
CLASSIC_STATES = [f"classic: {state.value}" for state in GroupState if state is not GroupState.DEAD]
#: What the coordinator must be killed in. The states are those of the runs of one kind.
STATES = {
    "consumer": CONSUMER_STATES,
    "classic": CLASSIC_STATES,
    "mixed": [each for each in (*CONSUMER_STATES, *CLASSIC_STATES) if "Empty" not in each],
}
#: Fewer runs, as CORDWOOD_CONSUMER_RUNS may ask for, need not come across rare states.
RUNS_FOR_ALL_STATES = 300


@pytest.mark.parametrize("kind", KINDS)
def test_no_partition_has_two_owners_and_each_has_one_in_the_end(kind: str) -> None:
    counts: Counter[str] = Counter()
    for seed in range(SEED, SEED + RUNS):
        counts += run(seed, KINDS[kind]).counts
    print(f"{kind}: {RUNS} runs, seeds {SEED} to {SEED + RUNS - 1}: {dict(counts)}")
    assert counts["told"] > 10 * RUNS
    assert counts["restarts"] > RUNS / 4
    assert counts["commits"] > RUNS
    if kind != "classic":
        assert counts["stored, not answered"] > RUNS / 20
    if kind == "mixed":
        assert counts["upgrades"] > RUNS / 3
        assert counts["downgrades"] > RUNS / 4
    if RUNS >= RUNS_FOR_ALL_STATES:
        assert not [state for state in STATES[kind] if not counts[f"restart, {state}"]]


def test_the_same_seed_is_the_same_run() -> None:
    worlds = [run(SEED, KINDS["mixed"]) for _ in range(2)]
    assert worlds[0].counts == worlds[1].counts
    assert worlds[0].disk == worlds[1].disk


def test_what_was_stored_is_the_whole_state_of_a_group() -> None:
    """A group that is loaded has the rows of the one that stored them."""
    for seed in range(SEED, SEED + 10):
        world = World(seed, KINDS["consumer"], faults=False)
        churn(world)
        world.run_until(CHURN_MS)
        world.run_until(CHURN_MS + 5_000, stop=lambda: world.restless() is None)  # noqa: B023
        before = world.coordinator.find("group")
        again = world._open().find("group")
        assert before is not None
        assert again is not None
        assert dict(again.rows()) == dict(before.rows())  # type: ignore[union-attr]


# --- planted bugs -------------------------------------------------------------------------------------


def told_before_stored(patch: pytest.MonkeyPatch) -> str:
    """Members are answered before the rows of the answer are stored."""
    honest = Coordinator._store_rows

    def store(self: Coordinator, group: Any, action: Any) -> Any:
        return [*action.replies, *honest(self, group, action._replace(replies=[]))]

    patch.setattr(Coordinator, "_store_rows", store)
    return "goes back|both own|come to rest"


def given_before_released(patch: pytest.MonkeyPatch) -> str:
    """A partition is given to its next owner while another still has it."""
    honest = members._next_step
    patch.setattr(
        members, "_next_step", lambda owned, goal, said: honest(owned, goal._replace(owned={}), said)
    )
    return "both own"


def revocation_not_awaited(patch: pytest.MonkeyPatch) -> str:
    """A member counts as having given up what it was told to give up."""
    patch.setattr(members, "_still_owns", lambda said, revoking: False)
    return "both own"


def session_not_ended(patch: pytest.MonkeyPatch) -> str:
    """A member that died stays."""
    patch.setattr(heartbeats, "late", lambda group, now_ms: group.deadlines.due(now_ms)[:0])
    return "come to rest"


def epoch_not_checked(patch: pytest.MonkeyPatch) -> str:
    """A member that was fenced goes on as if nothing had happened."""
    honest = heartbeats.check_heartbeat

    def check(group: ConsumerGroup, beat: Any, size_max: int) -> Any:
        refusal = honest(group, beat, size_max)
        return None if refusal is not None and beat.instance_id is None else refusal

    patch.setattr(heartbeats, "check_heartbeat", check)
    return "both own|goes back|come to rest"


def owned_rows_not_stored(patch: pytest.MonkeyPatch) -> str:
    """What members own is forgotten when the coordinator restarts."""
    honest = changes.GroupChange.put

    def put(self: Any, kind: RowKind, value: Any, name: str = "") -> None:
        honest(self, kind, value, name)
        if kind is RowKind.OWNED and value is not None:
            self.rows.pop()

    patch.setattr(changes.GroupChange, "put", put)
    return "goes back|both own|come to rest"


def topics_not_watched(patch: pytest.MonkeyPatch) -> str:
    """Nobody is assigned the partitions that a topic gets."""
    patch.setattr(changes, "hash_of_topics", lambda names, topics: 0)
    return "come to rest"


def upgraded_without_assignments(patch: pytest.MonkeyPatch) -> str:
    """A classic group that is converted forgets what its members own."""
    patch.setattr("cordwood.broker.groups.consumer.migration.reported_by_id", lambda owned, topics: {})
    return "both own|come to rest"


def assignments_cleared_in_a_rebalance(patch: pytest.MonkeyPatch) -> str:
    """A classic group forgets what its members own when a generation begins."""
    honest = Group._begin_generation

    def begin(self: Group, now_ms: int) -> Any:
        actions = honest(self, now_ms)
        for member in self.members.values():
            member.assignment = b""
        return actions

    patch.setattr(Group, "_begin_generation", begin)
    patch.setattr("cordwood.broker.groups.consumer.migration._HeldPartitions", _held_without_owned)
    return "both own"


def still_held_not_awaited(patch: pytest.MonkeyPatch) -> str:
    """A group is converted as if members had given up at once what they are not assigned any more."""
    patch.setattr("cordwood.broker.groups.consumer.migration._HeldPartitions", _held_without_owned)
    return "both own"


def _held_without_owned(subscription: Any, target: Any, owned: Any) -> Any:
    return SimpleNamespace(subscription=subscription, target=target, owned={})


def classic_members_never_asked_to_join(patch: pytest.MonkeyPatch) -> str:
    """Members of the classic protocol wait for others to make the next assignment."""
    patch.setattr(
        classic, "_is_behind", lambda change, member: member.epoch < change.group.target_epoch.epoch
    )
    return "come to rest"


def offsets_not_stored(patch: pytest.MonkeyPatch) -> str:
    """Committed offsets are forgotten when the coordinator restarts."""
    patch.setattr(Coordinator, "rows_to_commit", lambda self, name, offsets: [])
    return "is lost"


CANARIES = (
    offsets_not_stored,
    told_before_stored,
    given_before_released,
    revocation_not_awaited,
    session_not_ended,
    epoch_not_checked,
    owned_rows_not_stored,
    topics_not_watched,
    upgraded_without_assignments,
    assignments_cleared_in_a_rebalance,
    still_held_not_awaited,
    classic_members_never_asked_to_join,
)


@pytest.mark.parametrize("canary", CANARIES, ids=lambda canary: canary.__name__)
def test_the_simulation_finds_a_planted_bug(
    canary: Callable[[pytest.MonkeyPatch], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = canary(monkeypatch)
    seeds = range(SEED, SEED + CANARY_RUNS)
    found = next(
        (found for seed in seeds for kind in ("consumer", "mixed") if (found := finding(seed, KINDS[kind]))),
        None,
    )
    print(f"{canary.__name__}: {found}")
    assert found is not None, f"{canary.__name__} survived {CANARY_RUNS} runs"
    assert re.search(expected, found)
