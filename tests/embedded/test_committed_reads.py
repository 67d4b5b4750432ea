"""Readers see committed records only, unless they ask for all: X1 for every way of reading."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial

import pytest
from support.clocks import ManualClock
from support.following import Follower
from support.logs import DATA
from support.producing import Sent
from support.seeds import seeds_from
from support.transactions import end_transaction, send_in_transaction

import cordwood
from cordwood.disk.memory import MemoryFiles
from cordwood.errors import EvidenceMissing, InvalidSetting, OffsetOutOfRange
from cordwood.storage.log import WritablePartition

NOW = 1_700_000_000_000
A, B = 1, 2
SMALL = {"segment.bytes": "600", "index.interval.bytes": "100"}


@pytest.fixture
def files() -> MemoryFiles:
    return MemoryFiles()


@pytest.fixture
def log(files: MemoryFiles) -> Iterator[cordwood.Log]:
    with cordwood.open(DATA, files=files, clock=ManualClock(NOW)) as opened:
        yield opened


def partition_of(log: cordwood.Log) -> WritablePartition:
    return log.data_directory.partitions.writable("t", 0)


def send(partition: WritablePartition, producer: int, sequence: int, *values: bytes) -> None:
    send_in_transaction(partition, Sent(producer, 0, sequence, values), NOW)
    partition.commit()


def end(partition: WritablePartition, producer: int, *, committed: bool) -> None:
    end_transaction(partition, producer, committed=committed)
    partition.commit()


def mixed(log: cordwood.Log, config: dict[str, str] | None = None) -> cordwood.Topic:
    """Return t: 0 plain, 1 aborted, 2 committed, 3 and 4 their markers, 5 plain, 6 open, 7 plain."""
    topic = log.topic("t", config=config)
    topic.append(b"plain")
    partition = partition_of(log)
    send(partition, A, 0, b"aborted")
    send(partition, B, 0, b"committed")
    end(partition, A, committed=False)
    end(partition, B, committed=True)
    topic.append(b"between")
    send(partition, A, 1, b"open")
    topic.append(b"behind")
    return topic


EVERY = [b"plain", b"aborted", b"committed", b"between", b"open", b"behind"]
STABLE = [b"plain", b"committed", b"between"]


def values(records: object) -> list[bytes | None]:
    return [record.value for record in records]  # type: ignore[attr-defined]


def scanned(scan: cordwood.Scan) -> list[bytes]:
    found: list[bytes] = scan.reader().read_all().column("value").to_pylist()
    return found


def test_reading_shows_committed_records_up_to_the_first_open_transaction(log: cordwood.Log) -> None:
    topic = mixed(log)
    assert (topic.last_stable_offset(), topic.high_watermark()) == (6, 8)
    assert values(topic.read()) == STABLE
    assert values(topic.read(start=1, stop=3)) == [b"committed"]
    assert values(topic.read(start=7)) == [], "a start above the last stable offset is one to wait at"
    assert values(topic.read(committed=False)) == EVERY
    end(partition_of(log), A, committed=True)
    assert topic.last_stable_offset() == topic.high_watermark() == 9
    assert values(topic.read()) == [*STABLE, b"open", b"behind"]


def test_a_scan_shows_committed_records_up_to_the_first_open_transaction(log: cordwood.Log) -> None:
    topic = mixed(log)
    assert scanned(topic.scan()) == scanned(log.scan("t", 0)) == STABLE
    assert scanned(topic.scan(start=1, stop=3)) == [b"committed"]
    assert scanned(topic.scan(since=NOW)) == STABLE
    assert scanned(topic.scan(committed=False)) == EVERY
    assert "committed=False" in repr(topic.scan(committed=False))


def test_get_finds_no_record_of_an_aborted_transaction_and_none_at_a_marker(log: cordwood.Log) -> None:
    topic = mixed(log)
    assert topic.get(0, 1) is None
    assert topic.get(0, 3) is None
    assert values([topic.get(0, 1, committed=False)]) == [b"aborted"]
    assert topic.get(0, 3, committed=False) is None, "a marker is no record"
    found = topic.get_many(0, [2, 1, 0, 3])
    assert [None if each is None else each.value for each in found] == [b"committed", None, b"plain", None]


def test_a_record_that_may_still_be_aborted_is_out_of_range(log: cordwood.Log) -> None:
    """None would say for good that there is no record."""
    topic = mixed(log)
    for offset in (6, 7):
        with pytest.raises(OffsetOutOfRange):
            topic.get(0, offset)
        with pytest.raises(OffsetOutOfRange):
            topic.get_many(0, [0, offset])
    assert values([topic.get(0, 6, committed=False)]) == [b"open"]


def test_following_waits_for_the_end_of_a_transaction(log: cordwood.Log) -> None:
    topic = mixed(log)
    all_of_them = Follower(lambda: topic.read(follow=True, committed=False))
    assert all_of_them.wait_for(6) == EVERY
    follower = Follower(lambda: topic.read(follow=True))
    assert follower.wait_for(3) == STABLE
    topic.append(b"later")
    assert all_of_them.wait_for(7)[-1] == b"later"
    assert len(follower.records) == 3, "records behind an open transaction came"
    end(partition_of(log), A, committed=False)
    assert follower.wait_for(5) == [*STABLE, b"behind", b"later"]
    log.close()
    assert len(follower.end()) == 5


def test_a_replay_folds_committed_records(log: cordwood.Log, library: str) -> None:
    topic = mixed(log)
    plain = topic if library == "called" else topic._inner._topic  # type: ignore[attr-defined]

    def fold(state: bytes, record: cordwood.Record) -> bytes:
        return state + (record.value or b"") + b" "

    replay = partial(cordwood.replay, plain, fold, b"", encode=bytes, decode=bytes)
    found = replay(save_every=1)
    assert (found.state, found.offset, found.records) == (b"plain committed between ", 6, 3)
    assert replay().records == 0, "the snapshot is of committed records"
    every = replay(committed=False)
    assert (every.state.split(), every.start_offset, every.offset) == (EVERY, 0, 8)
    with pytest.raises(InvalidSetting):
        replay(committed=False, save_every=1)
    with pytest.raises(OffsetOutOfRange):
        replay(end_offset=7)


def test_a_verified_read_refuses_records_that_are_not_committed(log: cordwood.Log) -> None:
    topic = mixed(log, {"cordwood.chain": "true"})
    assert topic.read_verified(2).record.value == b"committed"
    with pytest.raises(EvidenceMissing, match="aborted"):
        topic.read_verified(1)
    with pytest.raises(EvidenceMissing, match="no record"):
        topic.read_verified(3)
    with pytest.raises(OffsetOutOfRange):
        topic.read_verified(6)
    assert topic.read_verified(1, committed=False).record.value == b"aborted"
    assert topic.read_verified(6, committed=False).record.value == b"open"


def test_a_reader_beside_the_writer_sees_the_same(log: cordwood.Log, files: MemoryFiles) -> None:
    topic = mixed(log)
    with cordwood.open(DATA, read_only=True, files=files, clock=ManualClock(NOW)) as beside:
        seen = beside.topic("t")
        assert seen.last_stable_offset() == 6
        assert values(seen.read()) == scanned(seen.scan()) == STABLE
        assert values(seen.read(committed=False)) == EVERY
        follower = Follower(lambda: seen.read(follow=True, stop=9))
        assert follower.wait_for(3) == STABLE
        end(partition_of(log), A, committed=True)
        assert values(follower.end()) == values(topic.read()) == [*STABLE, b"open", b"behind"]


@pytest.mark.parametrize("seed", seeds_from(26_300, 6))
def test_every_way_of_reading_agrees_with_a_list(log: cordwood.Log, seed: int) -> None:
    """Random transactions of three producers and plain records between them, over many segments."""
    print(f"seed {seed}")
    chance = random.Random(seed)
    topic = log.topic("t", config=SMALL)
    partition, sequences = partition_of(log), dict.fromkeys((1, 2, 3), 0)
    everything: dict[int, bytes] = {}
    state: dict[int, bool | None] = {}
    begun: dict[int, list[int]] = {1: [], 2: [], 3: []}
    for step in range(200):
        producer, base = chance.choice((1, 2, 3)), partition.log_end_offset
        kind = chance.random()
        if kind < 0.3:
            everything[base], state[base] = b"p%d" % step, True
            topic.append(b"p%d" % step)
        elif kind < 0.7 or not begun[producer]:
            said = tuple(b"t%d.%d" % (step, i) for i in range(chance.randint(1, 4)))
            send(partition, producer, sequences[producer], *said)
            sequences[producer] += len(said)
            everything |= {base + i: value for i, value in enumerate(said)}
            state |= dict.fromkeys(range(base, base + len(said)))
            begun[producer] += range(base, base + len(said))
        else:
            committed = chance.random() < 0.5
            end(partition, producer, committed=committed)
            state |= dict.fromkeys(begun[producer], committed)
            begun[producer] = []
    stable = topic.last_stable_offset()
    opened = [offset for offset, committed in state.items() if committed is None]
    assert stable == min([partition.high_watermark, *opened])
    expected = [value for offset, value in everything.items() if offset < stable and state[offset]]
    assert values(topic.read()) == scanned(topic.scan()) == expected
    assert values(topic.read(committed=False)) == scanned(topic.scan(committed=False))
    assert values(topic.read(committed=False)) == list(everything.values())
    wanted = chance.sample(range(stable), min(60, stable))
    found = [None if each is None else each.value for each in topic.get_many(0, wanted)]
    assert found == [everything.get(offset) if state.get(offset) else None for offset in wanted]
    start = chance.randrange(stable + 1)
    later = [value for offset, value in everything.items() if start <= offset < stable and state[offset]]
    assert values(topic.read(start=start)) == scanned(topic.scan(start=start)) == later
