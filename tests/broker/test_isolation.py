"""Readers of committed records: where they stop, what they learn of aborted transactions, what is news."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from broker.nodes import EVERYTHING, open_on
from support.log_transactions import LogTransactions, shown_by_client
from support.seeds import seed_or

from cordwood.broker.fetch_sessions import Asked
from cordwood.broker.fetching import Got, PartitionFetch
from cordwood.broker.node import Node
from cordwood.broker.offsets import EARLIEST, LATEST, NEWEST
from cordwood.disk.memory import MemoryFiles
from cordwood.errors import OffsetOutOfRange

SEED = seed_or(20_260_827)
RUNS = 60
TOPIC = "orders"


@pytest.fixture
def node() -> Iterator[Node]:
    with open_on(MemoryFiles()) as node:
        node.topics.create(TOPIC, 1)
        yield node


@pytest.fixture
def log(node: Node) -> LogTransactions:
    return LogTransactions(node.directory.partitions.writable(TOPIC, 0))


def wish(offset: int = 0, max_bytes: int = EVERYTHING) -> PartitionFetch:
    return PartitionFetch(TOPIC, 0, offset, max_bytes)


def read(node: Node, offset: int = 0, max_bytes: int = EVERYTHING, *, committed: bool = True) -> Got:
    (got,) = node.read([wish(offset, max_bytes)], max_bytes, committed=committed).each
    return got


def shown(got: Got) -> list[bytes]:
    aborted = [(each.producer_id, each.first_offset) for each in got.aborted]
    return shown_by_client(map(bytes, got.frames), aborted)


def test_a_reader_of_committed_records_stops_before_the_first_open_transaction(
    node: Node, log: LogTransactions
) -> None:
    log.plain(b"a", b"b")
    first = log.add(1, b"c")
    log.plain(b"d")
    log.add(2, b"e")
    assert shown(read(node)) == [b"a", b"b"]
    assert read(node).last_stable_offset == first == 2
    log.commit(2)
    assert shown(read(node)) == [b"a", b"b"]
    log.commit(1)
    got = read(node)
    assert shown(got) == [b"a", b"b", b"c", b"d", b"e"]
    assert got.last_stable_offset == got.high_watermark == 7


def test_any_other_reader_gets_everything_and_knows_how_far_it_is_stable(
    node: Node, log: LogTransactions
) -> None:
    log.plain(b"a")
    log.add(1, b"b")
    log.add(2, b"c")
    log.abort(2)
    got = read(node, committed=False)
    assert len(got.frames) >= 1
    assert shown_by_client(map(bytes, got.frames), []) == [b"a", b"b", b"c"]
    assert (got.last_stable_offset, got.high_watermark, list(got.aborted)) == (1, 4, [])


@pytest.mark.parametrize("offset", [1, 2, 3])
def test_between_the_last_stable_offset_and_the_end_there_is_nothing_to_read(
    node: Node, log: LogTransactions, offset: int
) -> None:
    """A client may know these offsets from another one, or from a read with another isolation."""
    log.plain(b"a")
    log.add(1, b"b")
    log.plain(b"c")
    got = read(node, offset)
    assert got.error is None
    assert got.frames == ()
    assert node.peek([wish(offset)], committed=True) is not None
    assert isinstance(read(node, 4).error, OffsetOutOfRange)
    assert node.peek([wish(4)], committed=True) is None


def test_only_the_aborted_transactions_among_the_records_are_listed(node: Node, log: LogTransactions) -> None:
    for producer in range(1, 6):
        log.add(producer, b"x" * 200)
        log.abort(producer) if producer % 2 else log.commit(producer)
    got = read(node, 4, 300)
    assert [each.producer_id for each in got.aborted] == [3]
    assert [each.first_offset for each in got.aborted] == [4]
    assert [each.producer_id for each in read(node, 0).aborted] == [1, 3, 5]


def test_nothing_is_listed_for_a_frame_that_does_not_fit(node: Node, log: LogTransactions) -> None:
    log.add(1, b"x" * 200)
    log.abort(1)
    full, none = node.read([wish(), wish()], 10, committed=True).each
    assert len(full.aborted) == 1
    assert (none.frames, list(none.aborted)) == ((), [])


def test_peek_compares_with_the_end_that_the_reader_has(node: Node, log: LogTransactions) -> None:
    log.plain(b"a")
    log.add(1, b"b")
    nothing = node.peek([wish(1)], committed=True)
    assert nothing is not None
    (got,) = nothing.each
    assert (got.last_stable_offset, got.high_watermark) == (1, 2)
    assert node.peek([wish(1)]) is None
    assert node.peek([wish(0)], committed=True) is None
    assert node.peek([wish(2)]) is not None


def test_a_session_is_told_that_the_last_stable_offset_moved(node: Node, log: LogTransactions) -> None:
    log.plain(b"a")
    log.add(1, b"b")
    asked = Asked(TOPIC, 0, 1, EVERYTHING)
    asked.wish = wish(1)
    assert node.find_news([asked], committed=True) == [asked]
    got = read(node, 1)
    assert asked.is_news(got, committed=True)
    asked.tell(got, committed=True)
    assert node.find_news([asked], committed=True) == []
    assert not asked.is_news(read(node, 1), committed=True)
    log.abort(1)
    assert node.find_news([asked], committed=True) == [asked]


def test_a_session_that_changes_its_isolation_is_told_again(node: Node, log: LogTransactions) -> None:
    log.plain(b"a")
    log.add(1, b"b")
    asked = Asked(TOPIC, 0, 2, EVERYTHING)
    asked.wish = wish(2)
    asked.tell(read(node, 2, committed=False))
    assert node.find_news([asked]) == []
    assert node.find_news([asked], committed=True) == [asked]


def test_offsets_are_found_below_the_last_stable_offset_only(node: Node, log: LogTransactions) -> None:
    log.plain(b"a")
    (stable,) = [log.add(1, b"b")]
    log.plain(b"c")
    newest = node.find_offset(TOPIC, 0, NEWEST)
    assert newest.offset == 2

    def found(timestamp: int, *, committed: bool) -> int:
        return node.find_offset(TOPIC, 0, timestamp, committed=committed).offset

    assert found(LATEST, committed=True) == stable == 1
    assert found(LATEST, committed=False) == 3
    assert found(EARLIEST, committed=True) == 0
    assert found(0, committed=True) == 0
    assert found(newest.timestamp, committed=False) == 2
    assert found(newest.timestamp, committed=True) == -1
    assert found(NEWEST, committed=True) == -1
    log.commit(1)
    assert found(newest.timestamp, committed=True) == 2
    assert found(LATEST, committed=True) == found(LATEST, committed=False) == 4


def test_pieces_of_any_size_show_what_is_committed_and_nothing_else(node: Node) -> None:
    """The model is a list: a record is shown if its transaction was committed, in the order of offsets."""
    print(f"seed {SEED}, {RUNS} histories")
    checked = 0
    for run in range(RUNS):
        rng = random.Random(f"{SEED} {run}")
        topic = f"t{run}"
        node.topics.create(topic, 1)
        log = LogTransactions(node.directory.partitions.writable(topic, 0))
        # (offset, value, transaction) of every record; how each transaction ended.
        history: list[tuple[int, bytes, int | None]] = []
        ends: dict[int, bool] = {}
        current: dict[int, int] = {}
        firsts: dict[int, int] = {}
        for step in range(rng.randrange(5, 40)):
            producer = rng.randrange(1, 4)
            values = [b"%d-%d" % (step, at) for at in range(rng.randrange(1, 4))]
            choice = rng.random()
            if choice < 0.3:
                base = log.plain(*values)
                history += [(base + at, value, None) for at, value in enumerate(values)]
            elif choice < 0.7 or producer not in current:
                base = log.add(producer, *values)
                name = current.setdefault(producer, step)
                firsts.setdefault(name, base)
                history += [(base + at, value, name) for at, value in enumerate(values)]
            else:
                name = current.pop(producer)
                ends[name] = rng.random() < 0.5
                log.commit(producer) if ends[name] else log.abort(producer)
        end = log.log.high_watermark
        stable = min((first for name, first in firsts.items() if name not in ends), default=end)
        wanted = [
            (offset, value)
            for offset, value, name in history
            if offset < stable and (name is None or ends.get(name))
        ]
        start = rng.randrange(0, end + 1)
        offset, found = start, list[bytes]()
        while offset < stable:
            wishes = [PartitionFetch(topic, 0, offset, rng.randrange(1, 600))]
            (got,) = node.read(wishes, EVERYTHING, committed=True).each
            assert got.error is None
            assert got.last_stable_offset == stable
            kept = shown(got)
            found += kept
            offset = max(offset + 1, _end_of(got, offset))
        inside = [value for at, value in wanted if at >= start]
        assert found[len(found) - len(inside) :] == inside, run
        # A batch may begin before the offset that was asked for.
        assert len(found) - len(inside) <= 2, run
        checked += len(inside)
    assert checked > RUNS


def _end_of(got: Got, offset: int) -> int:
    from cordwood.formats import batch

    ends = [header.next_offset for frame in got.frames for header in batch.scan(bytes(frame)).headers()]
    return ends[-1] if ends else offset
