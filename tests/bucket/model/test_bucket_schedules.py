"""The protocol of the bucket in every order, with faults, crashes and pauses: K1, K2, K4, K5, and progress.

`CORDWOOD_BUCKET_SCHEDULES=N` looks at N schedules of each scenario.
"""

from __future__ import annotations

import os

import pytest
from support import seeds
from support.bucket_model import Scenario, Tally, explore, sample
from support.bucket_model.scenarios import EXHAUSTIVE, LARGER, RANDOM

GIVEN = int(os.environ.get("CORDWOOD_BUCKET_SCHEDULES", "0"))
#: How many schedules of each larger scenario a run looks at, in order and at random.
IN_ORDER = GIVEN or 3_400
AT_RANDOM = GIVEN or 500
ONLY_AT_RANDOM = GIVEN or 3_000
SEED = 20_261_119
#: The least that a run of the whole suite looks at.
SCHEDULES_MIN = 100_000
#: Some random schedules are the same.
DISTINCT_MIN = 0.6


def floor_of(scenario: Scenario) -> int:
    """Return the least number of schedules that the test of *scenario* must look at."""
    for each, least in EXHAUSTIVE:
        if each is scenario:
            return least
    if scenario in RANDOM:
        return int(ONLY_AT_RANDOM * DISTINCT_MIN)
    return IN_ORDER


def report(scenario: Scenario, tally: Tally) -> None:
    print(f"{scenario.name}: {tally}; with {dict(sorted(tally.kinds.items()))}")
    assert tally.schedules >= floor_of(scenario), f"only {tally.schedules} schedules"


@pytest.mark.parametrize("scenario", [each for each, _ in EXHAUSTIVE], ids=lambda each: each.name)
def test_every_schedule_within_the_limits_keeps_what_was_promised(scenario: Scenario) -> None:
    tally = explore(scenario, at_most=1_000_000)
    assert tally.is_complete
    report(scenario, tally)


@pytest.mark.parametrize("scenario", LARGER, ids=lambda each: each.name)
def test_schedules_of_a_larger_scenario_keep_what_was_promised(scenario: Scenario) -> None:
    found = seeds.seeds_from(SEED, AT_RANDOM)
    print(f"seeds {found}")
    tally = explore(scenario, at_most=IN_ORDER)
    if not tally.is_complete:
        tally += sample(scenario, found)
    report(scenario, tally)
    for kind in scenario.limits.kinds if scenario.limits.faults else "":
        assert tally.kinds.get(kind), f"no schedule with the fault {kind}"


@pytest.mark.parametrize("scenario", RANDOM, ids=lambda each: each.name)
def test_random_schedules_of_all_processes_keep_what_was_promised(scenario: Scenario) -> None:
    found = seeds.seeds_from(SEED, ONLY_AT_RANDOM)
    print(f"seeds {found}")
    tally = sample(scenario, found)
    report(scenario, tally)
    assert all(tally.kinds.get(kind) for kind in (*scenario.limits.kinds, "crash", "late"))


@pytest.mark.skipif(bool(GIVEN), reason="the number of schedules is given")
def test_the_suite_looks_at_enough_schedules() -> None:
    """Each test above fails below its own least number; this is their sum."""
    floors = [floor_of(each) for each in (*(scenario for scenario, _ in EXHAUSTIVE), *LARGER, *RANDOM)]
    print(f"at least {sum(floors):,} schedules in {len(floors)} scenarios")
    assert sum(floors) >= SCHEDULES_MIN
