"""The memory that all connections share: counted to the byte, and who waits for room is told once."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordwood.server.connections.budget import MEDIUM, WINDOW, Budget, MemoryClaim

LIMIT = 1000


def test_taking_always_succeeds_and_says_how_it_stands() -> None:
    """What is taken is there already, so refusing it would change nothing."""
    budget = Budget(LIMIT)
    assert (budget.left, budget.exhausted, budget.overdrawn) == (LIMIT, False, False)
    budget.take(LIMIT - 1)
    assert (budget.left, budget.exhausted) == (1, False)
    budget.take(1)
    assert (budget.left, budget.exhausted, budget.overdrawn) == (0, True, False)
    budget.take(LIMIT)
    assert (budget.left, budget.overdrawn) == (0, False)
    budget.take(1)
    assert budget.overdrawn


def test_giving_back_more_than_was_taken_is_a_bug_that_shows() -> None:
    budget = Budget(LIMIT)
    budget.take(10)
    with pytest.raises(AssertionError):
        budget.give(11)


def test_who_waits_is_called_once_a_quarter_is_free_and_not_before() -> None:
    budget = Budget(LIMIT)
    called: list[str] = []
    budget.take(LIMIT)
    budget.when_room(lambda: called.append("one"))
    budget.when_room(lambda: called.append("two"))
    budget.give(LIMIT // 4 - 1)
    assert called == []
    budget.give(1)
    assert called == ["one", "two"]
    budget.give(1)
    budget.take(LIMIT)
    budget.give(LIMIT)
    assert called == ["one", "two"]


def test_who_waits_again_from_its_call_waits_for_the_next_room() -> None:
    """A connection that finds the room gone when its turn comes gets in line once more, and does not spin."""
    budget = Budget(LIMIT)
    called = 0

    def again() -> None:
        nonlocal called
        called += 1
        budget.take(LIMIT)
        budget.when_room(again)

    budget.take(LIMIT)
    budget.when_room(again)
    for calls in (1, 2, 3):
        budget.give(LIMIT)
        assert called == calls


def test_a_call_that_gives_back_itself_does_not_call_the_others_twice() -> None:
    budget = Budget(LIMIT)
    called: list[int] = []

    def give_more() -> None:
        called.append(0)
        budget.give(10)

    budget.take(LIMIT)
    budget.when_room(give_more)
    budget.when_room(lambda: called.append(1))
    budget.give(LIMIT // 2)
    assert called == [0, 1]


steps = st.lists(st.tuples(st.sampled_from(["take", "give", "wait"]), st.integers(0, LIMIT)), max_size=60)


@given(steps)
def test_whatever_is_taken_and_given_nobody_waits_while_a_quarter_is_free(
    steps: list[tuple[str, int]],
) -> None:
    budget = Budget(LIMIT)
    taken: list[int] = []
    waiting: set[int] = set()
    calls = 0

    def wait(number: int) -> None:
        waiting.add(number)
        budget.when_room(lambda: waiting.remove(number))  # Called twice, this raises KeyError.

    for kind, size in steps:
        if kind == "take":
            taken.append(size)
            budget.take(size)
        elif kind == "give" and taken:
            budget.give(taken.pop())
            if budget.used <= LIMIT * 3 // 4:
                assert not waiting
        elif kind == "wait" and budget.exhausted:
            calls += 1
            wait(calls)
        assert budget.used == sum(taken)
        assert budget.left == max(LIMIT - sum(taken), 0)
    budget.give(sum(taken))
    assert not waiting
    assert budget.used == 0


# --- Responses --------------------------------------------------------------------------------------


def test_responses_that_are_not_taken_leave_less_for_others_and_hold_up_no_request() -> None:
    """A few clients that do not read must not keep all others from being heard."""
    budget = Budget(LIMIT)
    budget.take_unsent(3 * LIMIT)
    assert (budget.used, budget.left) == (3 * LIMIT, 0)
    assert (budget.exhausted, budget.overdrawn) == (False, False)
    budget.take(LIMIT)
    assert budget.exhausted
    called: list[bool] = []
    budget.when_room(lambda: called.append(True))
    budget.give(LIMIT // 4)
    assert called, "requests have room again, however much of responses is not taken"
    budget.give_unsent(3 * LIMIT)
    budget.give(LIMIT * 3 // 4)
    assert budget.used == 0


def test_what_is_set_aside_for_one_response_is_not_counted_on_by_another() -> None:
    budget = Budget(LIMIT)
    assert budget.reserve(600, 50) == 600
    assert budget.reserve(600, 50) == 400
    assert budget.reserve(600, 50) == 50, "a fetch returns something even where there is no room"
    assert budget.reserve(20, 50) == 20
    budget.release(600 + 400 + 50 + 20)
    budget.take(300)
    assert budget.reserve(LIMIT, 50) == 700


def test_more_than_was_set_aside_can_be_used_and_is_given_back_as_such() -> None:
    """The first batch comes whole, however large it is."""
    budget = Budget(LIMIT)
    limit, size = budget.reserve(100, 50), 5_000
    budget.release(limit - size)
    assert budget.reserve(LIMIT, 50) == 50
    budget.release(50)
    budget.release(size)
    assert budget.reserve(LIMIT, 50) == LIMIT


def test_many_threads_together_set_aside_no_more_than_there_is() -> None:
    budget = Budget(1_000_000)
    start = threading.Barrier(8)
    reserved: list[int] = []

    def reserve() -> None:
        start.wait()
        for _ in range(1000):
            reserved.append(budget.reserve(1_000, 0))

    threads = [threading.Thread(target=reserve) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(reserved) == 1_000_000


# --- Requests that are not complete -----------------------------------------------------------------

LARGE_LIMIT = 64 << 20
SIZES = (1 << 10, 100 << 10, 3 << 20, 20 << 20, 60 << 20)


class Sending:
    """A client that sends one request of *size*, as far as it is let; *stops* half-way, or not."""

    def __init__(self, budget: Budget, size: int, stops: bool) -> None:
        self._budget = budget
        self.size = size
        self.stops = stops
        self.came = 0
        self.woken = 0
        self.claim = MemoryClaim(self._wake)

    def _wake(self) -> None:
        self.woken += 1

    def step(self) -> bool:
        """Send some more, as far as that may be read; return whether anything was."""
        end = self.size // 2 if self.stops else self.size
        if self.came >= end or (self.came and not self._budget.may_go_on(self.claim)):
            return False
        self.came = min(self.came + WINDOW, end)
        if self.came == self.size:
            # Complete, handled and answered.
            self._budget.update(self.claim, 0, 0)
        else:
            self._budget.update(self.claim, self.came, self.size - self.came)
        return True

    def give_up(self) -> None:
        self._budget.update(self.claim, 0, 0)


@given(st.lists(st.tuples(st.sampled_from(SIZES), st.booleans()), min_size=1, max_size=40))
def test_whoever_sends_half_a_request_the_others_are_read_to_their_ends_within_the_budget(
    wanted: list[tuple[int, bool]],
) -> None:
    """Once those that stop are given up, one after the other, nobody who goes on is left in line."""
    budget = Budget(LARGE_LIMIT)
    everyone = [Sending(budget, *each) for each in wanted]
    most = 0
    while True:
        moved = [each for each in everyone if each.step()]
        most = max(most, budget.used)
        assert budget.used == budget.unfinished == sum(each.claim.held for each in everyone)
        if moved:
            continue
        stuck = [each for each in everyone if each.stops and each.claim.held]
        if not stuck:
            break
        stuck[0].give_up()
        stuck[0].came = stuck[0].size
    assert all(each.came == each.size for each in everyone)
    assert budget.used == 0
    assert not budget.short
    largest = max(each.size for each in everyone)
    # Each may take a little before it is asked whether it may.
    assert most <= max(LARGE_LIMIT, LARGE_LIMIT // 2 + largest) + MEDIUM + len(everyone) * WINDOW


def test_a_request_that_is_larger_than_the_budget_is_read_all_the_same() -> None:
    budget = Budget(1 << 20)
    sending = Sending(budget, 60 << 20, stops=False)
    while sending.step():
        pass
    assert sending.came == sending.size


def test_who_waits_in_line_is_woken_when_the_first_is_done() -> None:
    budget = Budget(LARGE_LIMIT)
    first, second = (Sending(budget, 60 << 20, stops=False) for _ in range(2))
    while first.step() | second.step():
        if first.came == first.size:
            break
    assert second.woken > 0
    while second.step():
        pass
    assert second.came == second.size
