"""Planning: every offset in exactly one slice, shares that add up."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from cordwood.errors import ConfigError, UnknownTopic
from cordwood.spark.access.access import Ends, Piece
from cordwood.spark.access.planning import (
    PIECE_BYTES_MAX,
    RANGE_BYTES,
    TASKS_MIN,
    cut_pieces,
    find_offsets,
    is_due,
    share_out,
    share_tasks,
    subscribed,
)
from cordwood.spark.options import LATEST, Limit, Subscription
from cordwood.spark.source.filters import narrow


@given(
    st.lists(
        st.tuples(st.integers(0, 1000), st.integers(0, 500), st.lists(st.integers(0, 1500), max_size=5)),
        max_size=5,
    ),
    st.none() | st.integers(1, 40),
    st.none() | st.integers(1, 300),
)
def test_every_offset_is_in_exactly_one_slice(
    ranges: list[tuple[int, int, list[int]]], least: int | None, most: int | None
) -> None:
    pieces = [
        (Piece("t", number, start, start + size), sorted(set(cuts)))
        for number, (start, size, cuts) in enumerate(ranges)
    ]
    found = cut_pieces(pieces, least, most)
    read = [(piece.partition, offset) for piece in found for offset in range(piece.start, piece.end)]
    planned = [(piece.partition, offset) for piece, _ in pieces for offset in range(piece.start, piece.end)]
    assert read == planned
    assert all(piece.start < piece.end for piece in found)
    assert len(found) >= min(least or 0, len(planned))
    assert most is None or all(piece.end - piece.start <= most for piece in found)


@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(1, 300), st.integers(0, 200 << 20)), max_size=80),
    st.none() | st.integers(1, 40),
    st.none() | st.integers(1, 300),
)
def test_every_piece_is_in_one_task_and_tasks_are_as_large_and_as_many_as_allowed(
    given_pieces: list[tuple[int, int, int]], least: int | None, most: int | None
) -> None:
    sized = [(Piece("t", number, 0, count), size) for number, count, size in sorted(given_pieces)]
    tasks = share_tasks(sized, least, most)
    assert [piece for task in tasks for piece in task] == [piece for piece, _ in sized]
    assert len(tasks) >= min(max(least or 0, TASKS_MIN), len(sized))
    sizes = iter(size for _, size in sized)
    for task in tasks:
        cost = sum(next(sizes) + RANGE_BYTES for _ in task)
        if len(task) > 1:
            assert cost <= PIECE_BYTES_MAX
            assert len({piece.partition for piece in task}) == len(task)
            assert most is None or sum(piece.end - piece.start for piece in task) <= most


@pytest.mark.parametrize(("ranges", "tasks"), [(1, 1), (16, 16), (32, 16), (300, 17), (3000, 97)])
def test_small_ranges_share_tasks(ranges: int, tasks: int) -> None:
    sized = [(Piece(f"t{number:04}", 0, 0, 10), 1000) for number in range(ranges)]
    assert len(share_tasks(sized, None, None)) == tasks
    assert len(share_tasks(sized, 20, None)) >= min(20, ranges)
    # Large ones have tasks of their own.
    assert len(share_tasks([(piece, 100 << 20) for piece, _ in sized], None, None)) == ranges


@given(
    st.dictionaries(st.tuples(st.just("t"), st.integers(0, 9)), st.integers(0, 1000)), st.integers(1, 2000)
)
def test_shares_add_up_to_the_limit_and_none_starves(
    available: dict[tuple[str, int], int], limit: int
) -> None:
    shares = share_out(limit, available)
    waiting = [partition for partition, size in available.items() if size]
    assert shares.keys() == available.keys()
    assert all(0 <= shares[partition] <= size for partition, size in available.items())
    assert all(shares[partition] >= 1 for partition in waiting)
    assert sum(shares.values()) == max(min(limit, sum(available.values())), len(waiting))


def test_shares_follow_the_volume() -> None:
    assert share_out(100, {("t", 0): 900, ("t", 1): 90, ("t", 2): 10}) == {
        ("t", 0): 90,
        ("t", 1): 9,
        ("t", 2): 1,
    }


def test_cuts_are_where_the_index_says() -> None:
    found = cut_pieces([(Piece("t", 0, 10, 100), [10, 40, 100, 200])], None, None)
    assert [(piece.start, piece.end) for piece in found] == [(10, 40), (40, 100)]
    assert cut_pieces([(Piece("t", 0, 5, 5), [])], 10, None) == []


def test_subscriptions() -> None:
    there = {"orders": 3, "refunds": 1, "__orders": 1}
    assert subscribed(Subscription("subscribePattern", pattern="or|ref"), there) == {
        "orders": None,
        "refunds": None,
    }
    assert subscribed(Subscription("subscribe", topics=("__orders",)), there) == {"__orders": None}
    assigned = Subscription("assign", partitions=(("orders", 0), ("orders", 2)))
    assert subscribed(assigned, there) == {"orders": (0, 2)}
    for wrong in (
        Subscription("subscribe", topics=("x",)),
        Subscription("assign", partitions=(("refunds", 1),)),
    ):
        with pytest.raises(UnknownTopic):
            subscribed(wrong, there)


def test_offsets_by_time_never_pass_the_end_that_was_seen() -> None:
    """A record may come between taking the ends and asking for a time."""
    limit = Limit("startingTimestamp", timed=True, everywhere=7)
    ends = {("t", 0): Ends(2, 10)}
    assert find_offsets(limit, ends, lambda times: dict.fromkeys(times, 12), latest_without_match=False) == {
        ("t", 0): 10
    }
    assert find_offsets(limit, ends, lambda times: dict.fromkeys(times), latest_without_match=True) == {
        ("t", 0): 10
    }
    with pytest.raises(ConfigError, match="partition 0 of topic t has no record at or after timestamp 7"):
        find_offsets(limit, ends, lambda times: dict.fromkeys(times), latest_without_match=False)


def test_offsets_of_each_partition_name_all_of_them() -> None:
    ends = {("t", 0): Ends(2, 10), ("t", 1): Ends(0, 5)}

    def found(each: dict[tuple[str, int], int]) -> Any:
        limit = Limit("startingOffsets", timed=False, each=each)
        return find_offsets(limit, ends, lambda times: dict.fromkeys(times), latest_without_match=False)

    assert found({("t", 0): LATEST, ("t", 1): 5}) == {("t", 0): 10, ("t", 1): 5}
    for each, sentence in (
        ({("t", 0): 3}, "leaves out partition 1 of topic t"),
        ({("t", 0): 3, ("t", 1): 3, ("u", 4): 1}, "names what is not read: partition 4 of topic u"),
        (
            {("t", 0): 11, ("t", 1): 3},
            "partition 0 of topic t has offsets 2 up to 10, and 11 is past the end",
        ),
    ):
        with pytest.raises(ConfigError, match=sentence):
            found(each)


def test_triggers() -> None:
    assert is_due(0, None, 0, 100)
    assert is_due(5, 5, 0, 100)
    assert not is_due(4, 5, 99, 100)
    assert is_due(4, 5, 100, 100)


@pytest.mark.parametrize(
    ("kind", "microsecond", "since_ms"),
    [
        (GreaterThan, 0, 1_700_000_000_001),
        (GreaterThan, 1, 1_700_000_000_001),
        (GreaterThan, 1000, 1_700_000_000_002),
        (GreaterThanOrEqual, 0, 1_700_000_000_000),
        (GreaterThanOrEqual, 1, 1_700_000_000_001),
        (EqualTo, 999, 1_700_000_000_001),
        (LessThanOrEqual, 0, None),
    ],
)
def test_times_narrow_to_the_first_millisecond_that_may_match(
    kind: Any, microsecond: int, since_ms: int | None
) -> None:
    moment = datetime.fromtimestamp(1_700_000_000, UTC).replace(microsecond=microsecond)
    assert narrow([kind(("timestamp",), moment)]).since_ms == since_ms
    # Without a zone it is not known which moment is meant.
    assert narrow([kind(("timestamp",), moment.replace(tzinfo=None))]).since_ms is None


def test_only_what_is_certain_narrows() -> None:
    found = narrow(
        [
            In(("offset",), (9, 4)),
            LessThanOrEqual(("offset",), 7),
            EqualTo(("partition",), 2),
            StringStartsWith(("topic",), "or"),
            In(("topic",), ("orders", "other")),
            IsNotNull(("offset",)),
            Not(EqualTo(("offset",), 5)),
            EqualTo(("value",), b"x"),
        ]
    )
    assert (found.start, found.end) == (4, 8)
    assert found.has_partition("orders", 2)
    assert not found.has_partition("orders", 1)
    assert not found.has_partition("other", 3)
    assert not found.has_partition("refunds", 2)
    assert narrow([EqualTo(("offset",), "5"), In(("offset",), ())]) == narrow([])
