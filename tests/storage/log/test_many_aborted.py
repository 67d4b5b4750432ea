"""A reader past very many aborted transactions does work for each of them a bounded number of times.

Work is counted, not timed: how often an entry of the index of aborted transactions is looked at.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from support.producing import DATA, Bench, Sent
from support.seeds import seeds_from
from support.transactions import committed_values, end_transaction, send_in_transaction

from cordwood.config.loading import load_broker_config
from cordwood.index import AbortedEntry, AbortedIndex
from cordwood.storage.log import PartitionLog
from cordwood.storage.log.segment import Segment
from cordwood.storage.readonly import ReadOnlyDirectory

MANY = 100_000
#: Offsets that one read takes: what a transaction of two offsets leaves of a megabyte, roughly.
WINDOW = 6_000
#: How many looks an entry may cost a reader of everything. About one and a half are needed.
LOOKS_MAX = 3.0
#: How much more an entry may cost where there are ten times as many.
LINEAR = 1.3
OLD, YOUNG = 1, 2


class Looks:
    """Counts the entries, and the blocks of entries, that lookups look at."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.count = 0
        for name in ("_at", "_first_begin"):
            self._watch(patch, name)

    def _watch(self, patch: pytest.MonkeyPatch, name: str) -> None:
        real = getattr(AbortedIndex, name)

        def watched(index: AbortedIndex, number: int) -> object:
            self.count += 1
            return real(index, number)

        patch.setattr(AbortedIndex, name, watched)

    def of(self, work: Callable[[], object]) -> int:
        """Return how often something was looked at during *work*."""
        before = self.count
        work()
        return self.count - before


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Looks:
    return Looks(monkeypatch)


# --- the index alone --------------------------------------------------------------------------------------


def one_after_the_other(count: int) -> AbortedIndex:
    """Transactions of one record each, each ended before the next begins."""
    index = AbortedIndex()
    for number in range(count):
        index.add(AbortedEntry(YOUNG, 2 * number, 2 * number + 1, 2 * number + 2))
    return index


def beside_one_that_commits(count: int) -> AbortedIndex:
    """The same while a transaction is open from the beginning, which is committed in the end."""
    index = AbortedIndex()
    for number in range(count):
        index.add(AbortedEntry(YOUNG, 2 * number + 1, 2 * number + 2, 0))
    return index


def beside_one_that_aborts(count: int) -> AbortedIndex:
    """The same while a transaction is open from the beginning, which is aborted in the end."""
    index = beside_one_that_commits(count - 1)
    index.add(AbortedEntry(OLD, 0, 2 * count, 2 * count + 1))
    return index


SHAPES = [one_after_the_other, beside_one_that_commits, beside_one_that_aborts]


def read_through(index: AbortedIndex, end: int) -> None:
    for start in range(0, end, WINDOW):
        index.within(start, start + WINDOW)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)
def test_reading_past_100_000_aborted_transactions_looks_at_each_a_bounded_number_of_times(
    shape: Callable[[int], AbortedIndex], looks: Looks
) -> None:
    costs = []
    for count in (MANY // 10, MANY):
        index = shape(count)
        costs.append(looks.of(lambda index=index, count=count: read_through(index, 2 * count)) / count)  # type: ignore[misc]
    few, many = costs
    print(f"{shape.__name__}: {few:.2f} and {many:.2f} looks for each transaction")
    assert many < LOOKS_MAX
    assert many < few * LINEAR


@pytest.mark.parametrize("seed", seeds_from(26_500, 20))
def test_a_lookup_finds_what_a_look_at_every_entry_finds(seed: int) -> None:
    chance = random.Random(seed)
    index, entries, opened, offset = AbortedIndex(), [], dict[int, int](), 0
    for _ in range(chance.choice([40, 700])):
        producer = chance.randrange(5)
        if producer not in opened:
            opened[producer] = offset
        elif chance.random() < 0.6:
            first = opened.pop(producer)
            # A reader is stable up to the first open transaction, or to the end.
            entries.append(AbortedEntry(producer, first, offset, min(opened.values(), default=offset + 1)))
            index.add(entries[-1])
        offset += chance.randint(1, 3)
    for _ in range(200):
        start = chance.randint(0, offset)
        stop = start + chance.randint(1, chance.choice([5, offset]))
        found, is_complete = index.within(start, stop)
        assert found == [each for each in entries if each.last_offset >= start and each.first_offset < stop]
        assert is_complete == any(each.last_stable_offset >= stop for each in entries)


# --- a log ------------------------------------------------------------------------------------------------


def fill(log: PartitionLog, count: int, *, old: bool) -> None:
    """Abort *count* transactions, and commit one of a hundred; with *old*, beside one that is open."""
    if old:
        send_in_transaction(log, Sent(OLD, 0, 0, (b"old",)))
    for number in range(count):
        send_in_transaction(log, Sent(YOUNG, 0, number, (b"%d" % number,)))
        end_transaction(log, YOUNG, committed=number % 100 == 0)
    if old:
        end_transaction(log, OLD, committed=False)
    log.commit()


@pytest.mark.parametrize("old", [False, True], ids=["alone", "beside an old one"])
def test_a_reader_of_a_log_is_linear_in_its_aborted_transactions(old: bool, looks: Looks) -> None:
    """Over several segments, with reads of a few kilobytes."""
    costs = []
    for count in (600, 6_000):
        bench = Bench(settings={"segment.bytes": "300000", "cordwood.chain": "false"})
        log = bench.open()
        fill(log, count, old=old)
        seen: list[bytes] = []
        costs.append(looks.of(lambda log=log, seen=seen: seen.extend(committed_values(log, 30_000))) / count)  # type: ignore[misc]
        assert seen == [b"%d" % number for number in range(0, count, 100)]
        bench.close()
    few, many = costs
    print(f"{few:.2f} and {many:.2f} looks for each transaction")
    assert many < LOOKS_MAX
    assert many < few * LINEAR + 0.5


# --- beside the writer ------------------------------------------------------------------------------------


def beside(bench: Bench) -> ReadOnlyDirectory:
    return ReadOnlyDirectory(bench.files, DATA, load_broker_config(environment={})[0], mapped=False)


def test_a_follower_beside_the_writer_reads_each_entry_of_the_index_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also after the log was truncated and goes on: then what is left is read once more."""
    bench = Bench(settings={"cordwood.chain": "false"})
    log = bench.open()
    read = 0
    real = Segment.aborted_entries

    def counted(segment: Segment, first: int, count: int) -> bytes:
        nonlocal read
        read += count - first
        return real(segment, first, count)

    monkeypatch.setattr(Segment, "aborted_entries", counted)
    directory = beside(bench)
    follower = directory.readable("orders", 0, directory.topics["orders"])
    position, seen = 0, []

    def follow(start: int, stop: int) -> None:
        nonlocal position
        for number in range(start, stop):
            send_in_transaction(log, Sent(YOUNG, 0, number, (b"%d" % number,)))
            end_transaction(log, YOUNG, committed=number % 10 == 0)
            log.commit()
            seen.extend(committed_values(follower, start=position))
            position = follower.last_stable_offset

    follow(0, 200)
    assert seen == [b"%d" % number for number in range(0, 200, 10)]
    assert read == 180
    log.truncate(position - 20)
    position -= 20
    follow(190, 230)
    assert read <= 180 + 171 + 36
    assert committed_values(follower) == [b"%d" % number for number in range(0, 230, 10)]
    bench.close()
