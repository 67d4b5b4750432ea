"""Members of a large group that all ask at once, and are answered at once, leave room for others."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from cordwood.server.groups.turns import EACH_TURN, Turns


def run_turns(count: int) -> list[list[int]]:
    """Return what ran in each turn of the loop."""

    async def watch() -> list[list[int]]:
        turns, ran, seen = Turns(asyncio.get_running_loop()), list[int](), list[list[int]]()
        for number in range(count):
            turns.run(partial(ran.append, number))
        while sum(map(len, seen)) < count:
            seen.append(ran[sum(map(len, seen)) :])
            await asyncio.sleep(0)
        return seen

    return asyncio.run(watch())


@pytest.mark.parametrize("count", [1, EACH_TURN, EACH_TURN + 1, 20 * EACH_TURN])
def test_calls_run_in_their_order_and_few_in_each_turn(count: int) -> None:
    """The first ones run at once; who asks alone waits for nothing."""
    seen = run_turns(count)
    assert [number for turn in seen for number in turn] == list(range(count))
    assert len(seen[0]) == min(count, EACH_TURN)
    assert all(len(turn) <= EACH_TURN for turn in seen)


def test_a_long_call_runs_in_a_later_turn_and_in_order() -> None:
    async def run() -> list[str]:
        turns, ran = Turns(asyncio.get_running_loop()), list[str]()
        turns.run_later(partial(ran.append, "long"))
        turns.run(partial(ran.append, "after it"))
        assert ran == []
        while len(ran) < 2:
            await asyncio.sleep(0)
        return ran

    assert asyncio.run(run()) == ["long", "after it"]


def test_a_call_that_fails_takes_no_other_with_it() -> None:
    async def run() -> list[int]:
        loop = asyncio.get_running_loop()
        failed: list[object] = []
        loop.set_exception_handler(lambda _, context: failed.append(context))
        turns, ran = Turns(loop), list[int]()
        for number in range(EACH_TURN):
            turns.run(partial(ran.append, number))
        turns.run(lambda: [][0])
        turns.run(partial(ran.append, -1))
        while not ran or ran[-1] != -1:
            await asyncio.sleep(0)
        assert len(failed) == 1
        return ran

    assert len(asyncio.run(asyncio.wait_for(run(), 60))) == EACH_TURN + 1


def test_all_calls_that_wait_are_run_at_the_end() -> None:
    async def run() -> int:
        turns, ran = Turns(asyncio.get_running_loop()), list[int]()
        for number in range(3 * EACH_TURN):
            turns.run(partial(ran.append, number))
        turns.finish()
        return len(ran)

    assert asyncio.run(run()) == 3 * EACH_TURN
