"""Planted bugs, one at a time: each must be caught by a property, or the checker proves nothing."""

from __future__ import annotations

import pytest
from support.bucket_model import Violation, explore
from support.bucket_model.planted import PLANTED, Planted
from support.bucket_model.scenarios import BY_NAME

#: More schedules than any of them needs.
SCHEDULES_MAX = 30_000


def test_there_are_enough_planted_bugs() -> None:
    assert len(PLANTED) >= 12
    assert len({each.name for each in PLANTED}) == len(PLANTED)


def first_violation(planted: Planted, name: str) -> Violation | None:
    """Return what the checker finds in the scenario *name* with the bug, None if it finds nothing."""
    with planted.where():
        try:
            tally = explore(BY_NAME[name], SCHEDULES_MAX)
        except Violation as found:
            return found
    print(f"{planted.name}: not in {tally} of {name}")
    return None


@pytest.mark.parametrize("planted", PLANTED, ids=lambda each: each.name)
def test_a_planted_bug_is_caught(planted: Planted) -> None:
    for name in planted.scenarios:
        found = first_violation(planted, name)
        if found is not None:
            print(f"{planted.name}: caught by {found.claim} in {name}")
            assert found.claim in planted.claims, str(found)
            return
    pytest.fail("it survives")
