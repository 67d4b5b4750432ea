"""Fetch sessions: whom they are given to, when they end, and that a client misses nothing of what is new."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from support.seeds import seeds_from

from cordwood.broker.fetch_sessions import (
    EVICTABLE_AFTER_MS,
    NO_SESSION,
    Asked,
    FetchSession,
    FetchSessions,
    Key,
    SessionProblem,
    next_epoch,
)
from cordwood.broker.fetching import Got
from cordwood.errors import OffsetOutOfRange


class Clock:
    """Milliseconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now_ms = 1_000

    def __call__(self) -> int:
        return self.now_ms

    def pass_(self, ms: int) -> None:
        self.now_ms += ms


@pytest.fixture
def clock() -> Clock:
    return Clock()


def sessions_of(clock: Clock, slots: int, partitions_max: int = 100) -> FetchSessions:
    """Return sessions with ids 1, 2, and so on."""
    return FetchSessions(slots, itertools.count(1).__next__, clock, partitions_max)


def asked(count: int, topic: str = "t", first: int = 0, offset: int = 0) -> list[Asked]:
    return [Asked(topic, first + number, offset, 100) for number in range(count)]


def resumed(
    sessions: FetchSessions,
    id_: int,
    epoch: int,
    new: Sequence[Asked] = (),
    forgotten: Sequence[Key] = (),
) -> FetchSession:
    session = sessions.resume(id_, epoch, new, forgotten, by_id=False)
    assert isinstance(session, FetchSession)
    return session


def test_a_session_has_the_partitions_it_was_opened_with_and_those_that_came_and_went(clock: Clock) -> None:
    sessions = sessions_of(clock, 2)
    id_ = sessions.open(asked(3), by_id=False)
    assert (id_, len(sessions), sessions.partitions) == (1, 1, 3)
    session = resumed(sessions, id_, 1, [Asked("t", 1, 7, 50, 4), Asked("u", 0, 0, 1)], [("t", 0), ("x", 9)])
    assert list(session.partitions) == [("t", 1), ("t", 2), ("u", 0)]
    changed = session.partitions["t", 1]
    assert (changed.offset, changed.max_bytes, changed.leader_epoch) == (7, 50, 4)
    assert sessions.partitions == 3
    sessions.close(id_)
    sessions.close(id_)
    assert (len(sessions), sessions.partitions) == (0, 0)


def test_a_request_must_have_the_next_epoch_and_name_topics_as_before(clock: Clock) -> None:
    sessions = sessions_of(clock, 2)
    id_ = sessions.open(asked(1), by_id=True)
    assert sessions.resume(99, 1, [], [], by_id=True) is SessionProblem.NOT_FOUND
    assert sessions.resume(NO_SESSION, 1, [], [], by_id=True) is SessionProblem.NOT_FOUND
    for epoch in (2, -3, 2**31 - 1):
        assert sessions.resume(id_, epoch, [], [], by_id=True) is SessionProblem.WRONG_EPOCH
    assert sessions.resume(id_, 1, [], [], by_id=False) is SessionProblem.WRONG_NAMING
    # Nothing of it changed the session.
    for epoch in (1, 2, 3):
        assert isinstance(sessions.resume(id_, epoch, [], [], by_id=True), FetchSession)
        assert sessions.resume(id_, epoch, [], [], by_id=True) is SessionProblem.WRONG_EPOCH


def test_epochs_go_round_past_the_one_that_opens_a_session() -> None:
    assert [next_epoch(epoch) for epoch in (1, 2**31 - 2, 2**31 - 1)] == [2, 2**31 - 1, 1]


def test_a_session_whose_last_partition_is_forgotten_is_over(clock: Clock) -> None:
    sessions = sessions_of(clock, 2)
    id_ = sessions.open(asked(1), by_id=False)
    assert sessions.resume(id_, 1, [], [("t", 0)], by_id=False) is None
    assert (len(sessions), sessions.partitions) == (0, 0)
    assert sessions.resume(id_, 2, [], [], by_id=False) is SessionProblem.NOT_FOUND


def test_no_session_is_opened_for_nothing_or_for_what_is_named_twice(clock: Clock) -> None:
    sessions = sessions_of(clock, 2)
    assert sessions.open([], by_id=False) == NO_SESSION
    assert sessions.open(asked(2) + asked(1), by_id=False) == NO_SESSION
    assert sessions_of(clock, 0).open(asked(1), by_id=False) == NO_SESSION
    assert (len(sessions), sessions.partitions) == (0, 0)


def test_an_id_is_never_0_nor_that_of_another_session(clock: Clock) -> None:
    ids = iter([0, 5, 5, 0, 5, 6])
    sessions = FetchSessions(9, ids.__next__, clock)
    assert [sessions.open(asked(1), by_id=False) for _ in range(2)] == [5, 6]


# --- eviction, by the rules of Kafka ------------------------------------------------------------------


def test_one_that_was_not_used_for_long_gives_way_to_any_other(clock: Clock) -> None:
    sessions = sessions_of(clock, 2)
    first, second = (sessions.open(asked(5), by_id=False) for _ in range(2))
    clock.pass_(EVICTABLE_AFTER_MS)
    assert sessions.open(asked(1), by_id=False) == NO_SESSION
    resumed(sessions, first, 1)
    clock.pass_(1)
    third = sessions.open(asked(1), by_id=False)
    assert third != NO_SESSION
    assert {session.id for session in sessions} == {first, third}
    assert sessions.resume(second, 1, [], [], by_id=False) is SessionProblem.NOT_FOUND
    assert (sessions.evictions, sessions.partitions) == (1, 6)


def test_the_smallest_that_is_not_new_gives_way_to_a_larger_one(clock: Clock) -> None:
    sessions = sessions_of(clock, 3)
    ids = [sessions.open(asked(size), by_id=False) for size in (4, 2, 3)]
    for _ in range(3):
        clock.pass_(EVICTABLE_AFTER_MS // 2)
        for session in list(sessions):
            resumed(sessions, session.id, session.epoch)
    assert sessions.open(asked(2), by_id=False) == NO_SESSION
    assert sessions.open(asked(3), by_id=False) != NO_SESSION
    assert ids[1] not in {session.id for session in sessions}
    # The smallest now is as large, and the new one is new.
    assert sessions.open(asked(3), by_id=False) == NO_SESSION
    assert sessions.evictions == 1


def test_a_new_one_does_not_give_way_however_small(clock: Clock) -> None:
    sessions = sessions_of(clock, 1)
    sessions.open(asked(1), by_id=False)
    clock.pass_(EVICTABLE_AFTER_MS)
    assert sessions.open(asked(50), by_id=False) == NO_SESSION


def test_all_sessions_together_have_no_more_partitions_than_allowed(clock: Clock) -> None:
    sessions = sessions_of(clock, 50, partitions_max=10)
    assert sessions.open(asked(11), by_id=False) == NO_SESSION
    first = sessions.open(asked(6), by_id=False)
    second = sessions.open(asked(4), by_id=False)
    assert sessions.open(asked(1), by_id=False) == NO_SESSION
    # One that grows past it is over, and what it had is free.
    clock.pass_(EVICTABLE_AFTER_MS // 2)
    assert sessions.resume(second, 1, asked(1, "u"), [], by_id=False) is SessionProblem.NOT_FOUND
    assert sessions.partitions == 6
    third = sessions.open(asked(4), by_id=False)
    # Those that are not used make room.
    clock.pass_(EVICTABLE_AFTER_MS // 2 + 1)
    assert len(resumed(sessions, third, 1, asked(6, "u"))) == 10
    assert [session.id for session in sessions] == [third]
    assert sessions.resume(first, 1, [], [], by_id=False) is SessionProblem.NOT_FOUND


# --- what a client is told ----------------------------------------------------------------------------


def test_partitions_that_gave_records_are_read_last_next_time(clock: Clock) -> None:
    sessions = sessions_of(clock, 1)
    session = resumed(sessions, sessions.open(asked(4), by_id=False), 1)
    session.rotate([session.partitions["t", 0], session.partitions["t", 2]])
    assert [key[1] for key in session.partitions] == [1, 3, 0, 2]
    # One that was forgotten meanwhile does not come back.
    gone = session.partitions["t", 1]
    session.update([], [gone.key])
    session.rotate([gone])
    assert [key[1] for key in session.partitions] == [3, 0, 2]


def test_topics_are_looked_up_when_they_or_the_wishes_changed_and_not_otherwise(clock: Clock) -> None:
    sessions = sessions_of(clock, 1)
    session = resumed(sessions, sessions.open([*asked(2), *asked(1, "u")], by_id=False), 1)
    with_view: list[str | bytes] = []
    there = {"t": "t@7"}

    def find(topic: str | bytes) -> str | None:
        with_view.append(topic)
        return there.get(str(topic))

    assert session.resolve(1, find)
    assert with_view == ["t", "t", "u"]
    assert session.places == frozenset({("t@7", 0), ("t@7", 1)})
    there["u"] = "u@7"
    # What is missing is looked for each time, until it is there.
    assert not session.resolve(1, find)
    assert with_view[3:] == ["u"]
    assert not session.resolve(1, find)
    assert with_view[4:] == []
    assert session.places == frozenset({("t@7", 0), ("t@7", 1), ("u@7", 0)})
    session.update([Asked("t", 1, 5, 9)], [("u", 0)])
    assert not session.resolve(1, find)
    assert with_view[4:] == ["t"]
    wish = session.partitions["t", 1].wish
    assert wish is not None
    assert (wish.topic, wish.offset, wish.max_bytes) == ("t@7", 5, 9)
    assert session.places == frozenset({("t@7", 0), ("t@7", 1)})
    assert not session.resolve(2, find)
    assert with_view[5:] == ["t", "t"]


@dataclass
class Partition:
    """What a partition would answer with."""

    start: int = 0
    end: int = 0
    broken: bool = False

    def got(self, offset: int) -> Got:
        if self.broken:
            return Got((), self.end, self.start, OffsetOutOfRange(offset, self.start, self.end))
        frames = (memoryview(b"x" * (self.end - offset)),) if offset < self.end else ()
        return Got(frames, self.end, self.start)


@dataclass
class Consumer:
    """What a client makes of what it is told."""

    known: dict[Key, tuple[int, int]] = field(default_factory=dict)
    offsets: dict[Key, int] = field(default_factory=dict)
    failed: set[Key] = field(default_factory=set)

    def take(self, key: Key, got: Got) -> None:
        if got.error is not None:
            self.failed.add(key)
            return
        self.failed.discard(key)
        self.known[key] = (got.high_watermark, got.log_start_offset)
        self.offsets[key] += sum(map(len, got.frames))


@pytest.mark.parametrize("seed", seeds_from(20_260_301, 20))
def test_whoever_is_told_only_news_knows_all_that_a_full_answer_would_tell(seed: int, clock: Clock) -> None:
    """Partitions grow, lose their beginning, break and heal, come and go; nothing is told without need."""
    rng = random.Random(seed)
    sessions = sessions_of(clock, 1)
    partitions: dict[Key, Partition] = {("t", number): Partition() for number in range(6)}
    consumer = Consumer(offsets=dict.fromkeys(partitions, 0))
    first = [Asked(topic, number, 0, 1) for topic, number in partitions]
    id_ = sessions.open(first, by_id=False)
    epoch = 1
    told_of = told_at_most = 0
    named = dict.fromkeys(partitions, 0)
    for _ in range(300):
        for key in rng.sample(list(partitions), rng.randint(0, 2)):
            partition = partitions[key]
            match rng.randrange(4):
                case 0 | 1:
                    partition.end += rng.randint(1, 3)
                case 2:
                    partition.start = rng.randint(
                        partition.start, min(partition.end, consumer.offsets.get(key, 0))
                    )
                case _:
                    partition.broken = not partition.broken
        forgotten = rng.sample(list(named), 1) if len(named) > 2 and rng.random() < 0.1 else []
        for key in forgotten:
            del named[key]
            consumer.known.pop(key, None)
        wanted = [
            key for key in partitions if key not in named and key not in forgotten and rng.random() < 0.3
        ]
        wanted += [key for key in named if consumer.offsets[key] != named[key]]
        new = [Asked(*key, consumer.offsets[key], 1) for key in wanted]
        session = resumed(sessions, id_, epoch, new, forgotten)
        epoch = next_epoch(epoch)
        named |= {key: consumer.offsets[key] for key in wanted}
        assert {key: each.offset for key, each in session.partitions.items()} == named
        moved = []
        for key, each in session.partitions.items():
            got = partitions[key].got(each.offset)
            told_at_most += 1
            if each.is_news(got):
                told_of += 1
                each.tell(got)
                consumer.take(key, got)
                if got.frames:
                    moved.append(each)
        session.rotate(moved)
        for key in named:
            if partitions[key].broken:
                assert key in consumer.failed
            else:
                assert key not in consumer.failed
                assert consumer.known[key] == (partitions[key].end, partitions[key].start)
                assert consumer.offsets[key] == partitions[key].end
    print(f"told of {told_of} partitions where full answers would tell of {told_at_most}")
    assert told_of < told_at_most * 2 / 3
