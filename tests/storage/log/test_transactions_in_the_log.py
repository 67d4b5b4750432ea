"""Transactions in the log of one partition: what is open, what is stable, what was aborted."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from threading import Event, Lock, Thread
from typing import Any

import pytest
from support.disks import image
from support.patience import SECONDS_MAX
from support.producing import DATA, DIRECTORY, SNAPSHOT, Bench, Sent, receive, snapshots_every
from support.seeds import seeds_from
from support.transactions import committed_values, end_transaction, every_value, send_in_transaction

from cordwood.config.loading import load_broker_config
from cordwood.errors import ProducerFenced, TransactionStateInvalid
from cordwood.formats import Marker
from cordwood.index import AbortedEntry, AbortedIndex
from cordwood.storage.log import Partition, PartitionLog
from cordwood.storage.log.producers import OpenTransactions
from cordwood.storage.readonly import ReadOnlyDirectory

A, B = 1, 2
TINY = {"segment.bytes": "400", "index.interval.bytes": "100"}


def say(log: PartitionLog, producer: int, sequence: int, *values: bytes) -> int:
    """Append a transactional batch; return its first offset."""
    return send_in_transaction(log, Sent(producer, 0, sequence, values)).base_offset


# --- what is stable -----------------------------------------------------------------------------------


def test_records_of_an_open_transaction_and_all_after_it_are_not_stable() -> None:
    """X1: a reader of committed records stops before the first open transaction."""
    log = Bench().open()
    log.append([(b"k", b"plain")])
    first = say(log, A, 0, b"a0")
    log.append([(b"k", b"after")])
    log.commit()
    assert (log.last_stable_offset, log.high_watermark) == (first, 3)
    assert committed_values(log) == [b"plain"]
    assert every_value(log) == [b"plain", b"a0", b"after"]
    end_transaction(log, A, committed=True)
    assert log.last_stable_offset == 3, "a decided transaction is visible before its marker is synced"
    log.commit()
    assert log.last_stable_offset == log.high_watermark == 4
    assert committed_values(log) == [b"plain", b"a0", b"after"]


def test_the_last_stable_offset_waits_for_the_oldest_of_several_transactions() -> None:
    log = Bench().open()
    say(log, A, 0, b"a0")
    say(log, B, 0, b"b0")
    say(log, A, 1, b"a1")
    end_transaction(log, B, committed=True)
    log.commit()
    assert log.last_stable_offset == 0
    end_transaction(log, A, committed=False)
    log.commit()
    assert log.last_stable_offset == log.high_watermark == 5
    assert committed_values(log) == [b"b0"]
    assert [each[:3] for each in log.aborted(0, 5)] == [(A, 0, 4)]
    assert log.open_transactions() == []


def test_what_is_not_synced_is_not_stable() -> None:
    log = Bench().open()
    say(log, A, 0, b"a0")
    end_transaction(log, A, committed=True)
    assert log.last_stable_offset == log.high_watermark == 0


# --- what is refused ------------------------------------------------------------------------------------


def test_a_transactional_batch_needs_to_be_admitted() -> None:
    log = Bench().open()
    with pytest.raises(TransactionStateInvalid):
        send_refused(log)
    assert log.log_end_offset == 0
    assert not log.state.transactional


def send_refused(log: PartitionLog) -> None:
    """Send a batch that the coordinator does not admit."""

    def refuse(stamp: object) -> None:
        raise TransactionStateInvalid("no ongoing transaction")

    frame = receive(Sent(A, 0, 0, (b"x",)))
    assert frame.stamp is not None
    log.append_received(frame._replace(stamp=frame.stamp._replace(transactional=True)), admit=refuse)


def test_a_plain_batch_within_an_open_transaction_is_refused() -> None:
    log = Bench().open()
    say(log, A, 0, b"a0")
    with pytest.raises(TransactionStateInvalid):
        log.append_received(receive(Sent(A, 0, 1, (b"plain",))))


def test_a_marker_of_an_older_epoch_is_refused_and_a_later_one_fences() -> None:
    """X3: after the marker of a later epoch the old producer appends nothing more."""
    log = Bench().open()
    say(log, A, 0, b"a0")
    end_transaction(log, A, committed=False, epoch=1)
    with pytest.raises(ProducerFenced):
        say(log, A, 1, b"a1")
    with pytest.raises(ProducerFenced):
        end_transaction(log, A, committed=True, epoch=0)
    log.commit()
    assert committed_values(log) == []
    send_in_transaction(log, Sent(A, 1, 0, (b"again",)))


def test_a_duplicate_of_an_ended_transaction_is_answered_with_the_original() -> None:
    log = Bench().open()
    first = send_in_transaction(log, Sent(A, 0, 0, (b"a0",)))
    end_transaction(log, A, committed=True)
    assert send_in_transaction(log, Sent(A, 0, 0, (b"a0",))) == first
    assert log.open_transactions() == []


# --- after a restart ------------------------------------------------------------------------------------


def everything(log: PartitionLog) -> tuple[object, ...]:
    """Return all that readers and the coordinator learn from a log."""
    log.commit()
    whole = log.aborted(log.log_start_offset, log.high_watermark)
    return (
        log.last_stable_offset,
        committed_values(log, 300),
        every_value(log),
        [(each.producer_id, each.first_offset) for each in log.open_transactions()],
        whole,
    )


def busy(log: PartitionLog) -> None:
    """Append transactions of two producers over several segments, one of them still open at the end."""
    log.append([(b"k", b"plain")])
    for round_ in range(8):
        say(log, A, 2 * round_, b"a%d" % round_, b"A%d" % round_)
        say(log, B, round_, b"b%d" % round_)
        end_transaction(log, A, committed=round_ % 2 == 0)
        if round_ % 3:
            end_transaction(log, B, committed=round_ % 4 != 1)
    say(log, A, 16, b"open")


@pytest.mark.parametrize("snapshot_bytes", [1, 300, 1 << 20])
def test_a_killed_or_closed_log_opens_with_the_same_transactions(snapshot_bytes: int) -> None:
    """R5: open and aborted transactions follow from the frames, with or without a snapshot of them."""
    with snapshots_every(snapshot_bytes):
        bench = Bench(settings=TINY)
        log = bench.open()
        busy(log)
        before = everything(log)
        assert before[3], "a transaction is open"
        killed = bench.left()
        assert everything(killed.open()) == before
        again = killed.left()
        assert everything(again.open()) == before
        bench.close()
        closed = bench.left()
        assert everything(closed.open()) == before


@pytest.mark.parametrize("lost", ["txnindex", "producers.json", "mark"])
def test_what_is_derived_may_be_lost_or_damaged_file_by_file(lost: str) -> None:
    with snapshots_every(300):
        bench = Bench(settings=TINY)
        log = bench.open()
        busy(log)
        before = everything(log)
        found = [path for path in image(bench.files, DATA) if lost in path]
        assert found
        for path in found:
            assert everything(bench.left(gone=(path,)).open()) == before, path
            data = bytearray(image(bench.files, DATA)[path] or b"")
            data[len(data) // 2] ^= 1
            if lost != "mark":
                assert everything(bench.left({path: bytes(data)}).open()) == before, path
        print(f"{len(found)} files lost and damaged")


def test_a_reader_beside_the_writer_sees_the_same_committed_records() -> None:
    bench = Bench(settings=TINY)
    log = bench.open()
    busy(log)
    log.commit()
    beside = reader(bench)
    assert (beside.last_stable_offset, beside.high_watermark) == (log.last_stable_offset, log.high_watermark)
    assert committed_values(beside, 300) == committed_values(log)
    end_transaction(log, A, committed=True)
    end_transaction(log, B, committed=True)
    log.commit()
    assert beside.last_stable_offset == log.high_watermark
    assert committed_values(beside, 300) == committed_values(log)


@pytest.mark.parametrize("lost", ["txnindex", "producers.json"])
def test_a_reader_beside_the_writer_does_without_a_lost_index(lost: str) -> None:
    bench = Bench(settings=TINY)
    log = bench.open()
    busy(log)
    log.commit()
    expected = committed_values(log)
    for path in image(bench.files, DATA):
        if path.endswith(lost):
            assert committed_values(reader(bench.left(gone=(path,))), 300) == expected, path


def reader(bench: Bench) -> Partition:
    """Return the partition as another process reads it."""
    config = load_broker_config(environment={})[0]
    directory = ReadOnlyDirectory(bench.files, DATA, config, mapped=False)
    return directory.readable("orders", 0, directory.topics["orders"])


# --- through changes of the log ---------------------------------------------------------------------------


def test_a_truncation_that_cuts_a_marker_off_opens_its_transaction_again() -> None:
    bench = Bench(settings=TINY)
    log = bench.open()
    say(log, A, 0, b"a0")
    marker = end_transaction(log, A, committed=True).base_offset
    log.append([(b"k", b"after")])
    log.commit()
    log.truncate(marker)
    assert log.last_stable_offset == 0
    assert [each.producer_id for each in log.open_transactions()] == [A]
    assert everything(bench.left().open()) == everything(log)
    end_transaction(log, A, committed=False)
    log.commit()
    assert committed_values(log) == []


def test_the_log_start_may_pass_an_open_transaction() -> None:
    bench = Bench(settings=TINY)
    log = bench.open()
    say(log, A, 0, b"a0")
    log.append([(b"k", b"after")])
    log.commit()
    log.advance_log_start(1)
    assert log.last_stable_offset == log.log_start_offset == 1
    end_transaction(log, A, committed=False)
    log.commit()
    assert committed_values(log) == [b"after"]


# --- changes that a thread without the append lock sees the half of ----------------------------------------


def test_a_sync_that_meets_an_abort_shows_none_of_its_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """X1: a sync takes up at any moment where the first open transaction begins, also as the marker is noted.

    The sync runs in the moment before the transaction is among the aborted ones, as the committer might.
    """
    bench = Bench()
    log = bench.open()
    say(log, A, 0, b"aborted")
    log.commit()
    log.append([(b"k", b"plain")])
    add, seen = AbortedIndex.add, list[tuple[int, list[bytes]]]()

    def meets_a_sync(index: AbortedIndex, aborted: AbortedEntry) -> None:
        log.commit()
        seen.append((log.last_stable_offset, committed_values(log)))
        add(index, aborted)

    monkeypatch.setattr(AbortedIndex, "add", meets_a_sync)
    end_transaction(log, A, committed=False)
    assert seen == [(0, [])]
    log.commit()
    assert committed_values(log) == [b"plain"]


class WatchedGuard:
    """The guard of open transactions, that says when a thread comes to it."""

    def __init__(self, came: Event) -> None:
        self._lock = Lock()
        self._came = came

    def __enter__(self) -> None:
        self._came.set()
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()


class Popping(dict[int, int]):
    """A dict that calls something once an item was taken out."""

    then: Callable[[], None]

    def pop(self, *arguments: Any) -> Any:
        found = super().pop(*arguments)
        self.then()
        return found


def test_a_sync_that_meets_an_end_marks_nothing_of_the_transaction_as_stable() -> None:
    """The mark names offsets below which nothing is open, and a power cut may lose a marker not synced."""
    opened, came, stable = OpenTransactions(), Event(), list[int]()
    opened._guard = WatchedGuard(came)  # type: ignore[assignment]
    opened._open = popping = Popping()
    opened.begin(A, 3)

    def ask() -> None:
        stable.append(opened.stable_below(10))
        came.set()

    def syncs() -> None:
        came.clear()
        thread.start()
        # It has an answer, or waits until the end is noted.
        assert came.wait(SECONDS_MAX)

    thread, popping.then = Thread(target=ask), syncs
    opened.end(A, 10)
    thread.join()
    assert stable == [3]
    assert opened.stable_below(11) == 11


# --- a model ----------------------------------------------------------------------------------------------


class Model:
    """What a list says about one partition: every record with its producer's transaction."""

    def __init__(self) -> None:
        self.rows: list[tuple[bytes | None, object]] = []
        self.outcome: dict[object, bool] = {}
        self.open: dict[int, object] = {}

    def append(self, value: bytes | None, transaction: object = None) -> None:
        self.rows.append((value, transaction))

    def stable(self) -> int:
        open_ = set(map(id, self.open.values()))
        return next((at for at, (_, t) in enumerate(self.rows) if id(t) in open_), len(self.rows))

    def committed(self) -> list[bytes]:
        return [
            value
            for value, transaction in self.rows[: self.stable()]
            if value is not None and (transaction is None or self.outcome[transaction])
        ]


def steps(chance: random.Random) -> Iterator[str]:
    for _ in range(chance.randrange(5, 60)):
        yield chance.choices(
            ["say", "plain", "commit", "abort", "reopen", "kill", "roll"], [8, 2, 3, 3, 1, 1, 1]
        )[0]


def test_readers_of_committed_records_see_what_a_list_says_in_random_runs() -> None:
    runs = operations = 0
    for seed in seeds_from(1, 60):
        chance, model = random.Random(seed), Model()
        bench = Bench(settings=TINY)
        with snapshots_every(chance.choice([1, 200, 1000, 1 << 30])):
            log = bench.open()
            sequences: dict[int, int] = {}
            for number, step in enumerate(steps(chance)):
                producer, value = chance.randrange(1, 5), b"%d" % number
                if step == "say":
                    transaction = model.open.setdefault(producer, object())
                    say(log, producer, sequences.get(producer, 0), value)
                    sequences[producer] = sequences.get(producer, 0) + 1
                    model.append(value, transaction)
                elif step == "plain":
                    log.append([(b"k", value)])
                    model.append(value)
                elif step in ("commit", "abort"):
                    ended = model.open.pop(producer, None)
                    log.append_marker(Marker(producer, 0, step == "commit"))
                    model.append(None)
                    if ended is not None:
                        model.outcome[ended] = step == "commit"
                elif step == "roll":
                    log.roll()
                else:
                    log.commit()
                    if step == "reopen":
                        bench.close()
                    bench = bench.left()
                    log = bench.open()
                log.commit()
                assert log.last_stable_offset == model.stable(), (seed, number)
                assert committed_values(log, 200) == model.committed(), (seed, number)
            start = chance.randrange(log.last_stable_offset + 1)
            later = committed_values(log, 1 << 20, start)
            assert committed_values(log, 50, start) == later, seed
            assert model.committed()[len(model.committed()) - len(later) :] == later, seed
            operations += number + 1
        runs += 1
    print(f"{runs} runs, {operations} operations")
    assert operations >= 5 * runs


def test_the_example_of_the_index_of_aborted_transactions_is_its_bytes() -> None:
    """Kafka's layout: version, producer id, first offset, last offset, last stable offset."""
    bench = Bench()
    log = bench.open()
    say(log, 4000, 0, b"x", b"y")
    end_transaction(log, 4000, committed=False)
    log.commit()
    stored = image(bench.files, DATA)[f"{DIRECTORY}/segments/00000000000000000000.txnindex"]
    assert stored is not None
    assert stored.hex() == "0000" + "0000000000000fa0" + "0" * 16 + "0000000000000002" + "0000000000000003"


def test_a_partition_without_transactions_is_written_as_before() -> None:
    bench = Bench()
    log = bench.open()
    log.append([(b"k", b"v")])
    bench.close()
    files = image(bench.files, DATA)
    assert not any("txnindex" in path for path in files)
    assert b'"transactional":true' not in (files[f"{DIRECTORY}/partition.json"] or b"")
    assert SNAPSHOT not in files
