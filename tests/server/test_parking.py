"""Fetches that wait: woken by the bytes they wait for, never by others, and never overlooked."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordwood.records import TopicPartition
from cordwood.server.parking import Parking, Waiter

HERE: TopicPartition = ("orders", 0)
THERE: TopicPartition = ("orders", 1)
ELSEWHERE: TopicPartition = ("payments", 0)


def no_transactions(topic: str, partition: int) -> int:
    raise AssertionError("asked for a last stable offset without a transaction")


class Fetch:
    """A fetch that notes when it is woken, and forgets the parking when it has had enough."""

    def __init__(
        self, parking: Parking, places: list[TopicPartition], min_bytes: int, wakes_max: int = 1
    ) -> None:
        self.woken = 0
        self._parking = parking
        self._wakes_max = wakes_max
        self.waiter: Waiter = parking.add(places, min_bytes, self._wake)

    def _wake(self) -> None:
        self.woken += 1
        if self.woken == self._wakes_max:
            self._parking.remove(self.waiter)


def test_a_fetch_is_woken_by_the_byte_that_makes_its_minimum_full() -> None:
    parking = Parking(no_transactions)
    fetch = Fetch(parking, [HERE], 100)
    parking.advance(HERE, 60)
    parking.advance(HERE, 39)
    assert fetch.woken == 0
    parking.advance(HERE, 1)
    assert fetch.woken == 1


def test_bytes_of_all_its_partitions_count_and_of_no_other() -> None:
    parking = Parking(no_transactions)
    fetch = Fetch(parking, [HERE, THERE], 100)
    parking.advance(ELSEWHERE, 1000)
    parking.advance(HERE, 50)
    assert fetch.woken == 0
    parking.advance(THERE, 50)
    assert fetch.woken == 1


def test_a_partition_that_is_named_twice_counts_once() -> None:
    parking = Parking(no_transactions)
    fetch = Fetch(parking, [HERE, HERE], 100)
    parking.advance(HERE, 60)
    assert fetch.woken == 0


def test_everyone_who_waits_for_a_partition_is_woken() -> None:
    parking = Parking(no_transactions)
    fetches = [Fetch(parking, [HERE], 1) for _ in range(10)]
    others = [Fetch(parking, [THERE], 1) for _ in range(3)]
    parking.advance(HERE, 1)
    assert [fetch.woken for fetch in fetches] == [1] * 10
    assert [fetch.woken for fetch in others] == [0] * 3
    assert len(parking) == 3


def test_a_fetch_that_stays_is_woken_again_by_more() -> None:
    """It may have been reading when the bytes came, and says itself when it has enough."""
    parking = Parking(no_transactions)
    fetch = Fetch(parking, [HERE], 10, wakes_max=3)
    for woken in (1, 2, 3):
        parking.advance(HERE, 10)
        assert fetch.woken == woken
    assert len(parking) == 0


def test_a_fetch_that_was_removed_is_not_woken_and_leaves_nothing() -> None:
    parking = Parking(no_transactions)
    fetch = Fetch(parking, [HERE, THERE], 1)
    parking.remove(fetch.waiter)
    parking.remove(fetch.waiter)
    parking.advance(HERE, 10)
    parking.wake_all()
    assert fetch.woken == 0
    assert len(parking) == 0
    assert not parking._waiters, "a partition that nobody waits for any more must not take memory"


def test_one_that_is_woken_may_remove_others_that_are_due_with_it() -> None:
    """Waking a fetch may close its connection, or another one's."""
    parking = Parking(no_transactions)
    woken: list[str] = []
    waiters: list[Waiter] = []

    def wake_and_remove_all(name: str) -> None:
        woken.append(name)
        for waiter in waiters:
            parking.remove(waiter)

    for name in ("one", "two"):
        waiters.append(parking.add([HERE], 1, lambda name=name: wake_and_remove_all(name)))  # type: ignore[misc]
    parking.advance(HERE, 1)
    assert woken
    assert len(parking) == 0


def test_who_waits_for_a_topic_that_is_gone_is_woken_and_nobody_else() -> None:
    parking = Parking(no_transactions)
    gone = [Fetch(parking, [place], 1 << 30) for place in (HERE, THERE)]
    both = Fetch(parking, [HERE, ELSEWHERE], 1 << 30)
    other = Fetch(parking, [ELSEWHERE], 1 << 30)
    parking.wake_topic("orders")
    assert [fetch.woken for fetch in (*gone, both, other)] == [1, 1, 1, 0]
    parking.wake_topic("nothing")
    assert len(parking) == 1


def test_all_are_woken_at_the_end_whatever_they_miss() -> None:
    parking = Parking(no_transactions)
    fetches = [Fetch(parking, [place], 1 << 30) for place in (HERE, THERE, ELSEWHERE)]
    both = Fetch(parking, [HERE, THERE], 1 << 30)
    parking.wake_all()
    assert [fetch.woken for fetch in (*fetches, both)] == [1] * 4
    assert len(parking) == 0


class Ends:
    """The last stable offsets of partitions."""

    def __init__(self) -> None:
        self.at: dict[TopicPartition, int] = {HERE: 5, THERE: 5}

    def find(self, topic: str, partition: int) -> int | None:
        return self.at.get((topic, partition))


def test_bytes_behind_an_open_transaction_wake_nobody_until_its_end() -> None:
    """Its end is a small batch, and makes everything readable that came before."""
    ends = Ends()
    parking = Parking(ends.find)
    committed, other = Fetch(parking, [HERE], 100), Fetch(parking, [HERE], 100)
    parking.withhold(committed.waiter, {HERE: 5})
    parking.advance(HERE, 1000)
    assert (committed.woken, other.woken) == (0, 1)
    ends.at[HERE] = 25
    parking.advance(HERE, 78)
    assert committed.woken == 1


def test_bytes_of_partitions_without_an_open_transaction_count_beside_one_with() -> None:
    parking = Parking(Ends().find)
    fetch = Fetch(parking, [HERE, THERE], 100)
    parking.withhold(fetch.waiter, {HERE: 5})
    parking.advance(HERE, 1000)
    parking.advance(THERE, 99)
    assert fetch.woken == 0
    parking.advance(THERE, 1)
    assert fetch.woken == 1


@pytest.mark.parametrize("now", [25, None])
def test_a_transaction_that_ended_during_the_read_is_not_overlooked(now: int | None) -> None:
    """Its bytes were counted before the fetch knew of the transaction: nothing else would wake it."""
    ends = Ends()
    parking = Parking(ends.find)
    fetch = Fetch(parking, [HERE], 100)
    parking.advance(HERE, 78)
    ends.at = {} if now is None else {HERE: now}
    parking.withhold(fetch.waiter, {HERE: 5})
    assert fetch.waiter.missing == 0


places = st.sampled_from([HERE, THERE, ELSEWHERE])
steps = st.lists(
    st.tuples(st.just("advance"), places, st.integers(1, 50))
    | st.tuples(st.just("add"), st.lists(places, min_size=1, max_size=3), st.integers(1, 100))
    | st.tuples(st.just("remove"), st.integers(0, 5), st.just(0)),
    max_size=40,
)


@given(steps)
def test_no_wake_up_is_missed_and_none_comes_for_nothing(steps: list[tuple[str, object, int]]) -> None:
    """The model: each fetch has a number of bytes to go, and is woken when that is used up."""
    parking = Parking(no_transactions)
    fetches: list[tuple[Fetch, list[TopicPartition]]] = []
    missing: list[int | None] = []
    for kind, what, size in steps:
        if kind == "add":
            assert isinstance(what, list)
            fetches.append((Fetch(parking, what, size), what))
            missing.append(size)
        elif kind == "advance":
            assert isinstance(what, tuple)
            parking.advance(what, size)
            for number, left in enumerate(missing):
                if left is not None and left > 0 and what in fetches[number][1]:
                    missing[number] = left - size
        elif isinstance(what, int) and what < len(fetches):
            parking.remove(fetches[what][0].waiter)
            if (missing[what] or 0) > 0:
                missing[what] = None
        expected = [left is not None and left <= 0 for left in missing]
        assert [fetch.woken for fetch, _ in fetches] == expected
        assert len(parking) == sum(left is not None and left > 0 for left in missing)
