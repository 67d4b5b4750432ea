"""Transactions of the library: all or nothing, across topics, partitions and groups."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from support.clocks import ManualClock
from support.disks import FaultPlan, FaultyFiles
from support.following import Follower
from support.logs import DATA
from support.patience import SECONDS_MAX
from support.producing import Sent
from support.transactions import send_in_transaction

import cordwood
from cordwood.broker.transactions import NAME, TransactionCoordinator
from cordwood.disk.memory import MemoryFiles
from cordwood.embedded.transactions import LogTransactions
from cordwood.errors import (
    DiskFull,
    InvalidSetting,
    LogClosed,
    LogFailed,
    OffsetOutOfRange,
    RecordRefused,
    TransactionStateInvalid,
    TransactionsUnsupported,
    TransactionTimeoutInvalid,
    UnexpectedOffset,
    UnknownTopic,
)

NOW = 1_700_000_000_000


@pytest.fixture
def files() -> FaultyFiles:
    return FaultyFiles(MemoryFiles())


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW)


@pytest.fixture
def log(files: FaultyFiles, clock: ManualClock) -> Iterator[cordwood.Log]:
    opened = cordwood.open(DATA, files=files, clock=clock)
    yield opened
    with contextlib.suppress(LogFailed, LogClosed):
        opened.close()


def reopened(log: cordwood.Log, files: FaultyFiles) -> cordwood.Log:
    log.close()
    return cordwood.open(DATA, files=files, clock=ManualClock(NOW))


def values(topic: cordwood.Topic, partition: int = 0, **options: Any) -> list[bytes | None]:
    return [record.value for record in topic.read(partition, **options)]


def abandoned(log: cordwood.Log) -> None:
    """End the process that has the log open, without closing anything."""
    log.data_directory.abandon()


# --- all or nothing -------------------------------------------------------------------------------------


def test_records_and_offsets_become_visible_together_at_the_end_of_the_block(log: cordwood.Log) -> None:
    orders, ledger = log.topic("orders", partitions=2), log.topic("ledger")
    with log.transaction("x") as tx:
        tx.append(orders, b"o0", partition=0, headers=[("h", b"1")], timestamp=NOW - 1)
        tx.append("orders", b"o1", partition=1)
        tx.append_many(ledger, [(b"k", b"l0"), (b"k", b"l1", [("h", b"2")], NOW - 2)])
        tx.commit_offsets("g", {("orders", 0): 7, ("orders", 1): (8, "meta")})
        assert values(orders, 0, committed=False) == values(ledger, committed=False) == []
        assert log.committed_offsets("g") == {}
    assert (values(orders, 0), values(orders, 1), values(ledger)) == ([b"o0"], [b"o1"], [b"l0", b"l1"])
    assert [tuple(each) for each in tx.placements] == [(0, 0), (1, 0), (0, 0), (0, 1)]
    assert log.committed_offsets("g") == {("orders", 0): 7, ("orders", 1): 8}
    (record,) = orders.read(0)
    assert (record.timestamp, record.headers) == (NOW - 1, (("h", b"1"),))
    assert ledger.last_stable_offset() == ledger.high_watermark(), "and nothing is open"


def test_an_exception_in_the_block_aborts_and_nothing_is_written(
    log: cordwood.Log, files: FaultyFiles
) -> None:
    topic = log.topic("t")
    with contextlib.suppress(ZeroDivisionError), log.transaction("x") as tx:
        tx.append(topic, b"v")
        tx.commit_offsets("g", {("t", 0): 1})
        raise ZeroDivisionError
    assert topic.log_end_offset() == 0
    assert log.committed_offsets("g") == {}
    with pytest.raises(TransactionStateInvalid, match="aborted"):
        tx.commit()
    with pytest.raises(TransactionStateInvalid):
        _ = tx.placements
    with log.transaction("x") as tx:
        tx.append(topic, b"again")
    assert values(topic) == [b"again"]


def test_commit_and_abort_by_hand_end_a_transaction(log: cordwood.Log) -> None:
    topic = log.topic("t")
    with log.transaction("x") as tx:
        tx.append(topic, b"1")
        tx.commit()
        with pytest.raises(TransactionStateInvalid, match="committed"):
            tx.append(topic, b"2")
    with log.transaction("x") as tx:
        tx.append(topic, b"3")
        tx.abort()
    with log.transaction("x"):
        pass
    assert values(topic) == [b"1"]


def test_transactions_survive_a_restart_and_go_on(log: cordwood.Log, files: FaultyFiles) -> None:
    topic = log.topic("t", partitions=2)
    for round_ in range(3):
        for number in range(3):
            with log.transaction("x") as tx:
                for partition in range(2):
                    tx.append(topic, b"%d.%d" % (round_, number), partition=partition)
        log = reopened(log, files)
        topic = log.topic("t")
    expected = [b"%d.%d" % (round_, number) for round_ in range(3) for number in range(3)]
    assert values(topic, 0) == values(topic, 1) == expected
    log.close()


def test_a_transaction_larger_than_a_batch_is_stored_in_several(log: cordwood.Log) -> None:
    topic = log.topic("t", config={"max.message.bytes": "400"})
    with log.transaction("x") as tx:
        tx.append_many(topic, [(None, b"%d" % i * 30, iter([("h", b"1")])) for i in range(50)])
    assert values(topic) == [b"%d" % i * 30 for i in range(50)]
    assert [each.offset for each in tx.placements] == [record.offset for record in topic.read()]


def test_a_follower_sees_a_transaction_as_a_whole(log: cordwood.Log) -> None:
    topic = log.topic("t")
    follower = Follower(lambda: topic.read(follow=True))
    for number in range(5):
        with log.transaction("x") as tx:
            tx.append_many(topic, [(None, b"%d.%d" % (number, i)) for i in range(3)])
        assert len(follower.wait_for(3 * number + 3)) == 3 * number + 3
    log.close()
    assert len(follower.end()) == 15


# --- expected offsets -----------------------------------------------------------------------------------


def test_one_unexpected_offset_refuses_the_whole_transaction(log: cordwood.Log) -> None:
    topic, other = log.topic("t"), log.topic("u")
    topic.append(b"0")
    for expected in ((1, 5), (0, 0), (1, 1)):
        tx = log.transaction("x")
        tx.append(other, b"other")
        tx.append(topic, b"1", expected_offset=expected[0])
        tx.append(topic, b"2", expected_offset=expected[1])
        with pytest.raises(UnexpectedOffset):
            tx.commit()
    assert (topic.log_end_offset(), other.log_end_offset()) == (1, 0), "nothing was appended"
    with log.transaction("x") as tx:
        tx.append(other, b"other", expected_offset=0)
        tx.append(topic, b"1", expected_offset=1)
        tx.append(topic, b"2", expected_offset=2)
    assert (values(topic), values(other)) == ([b"0", b"1", b"2"], [b"other"])


# --- what is refused ------------------------------------------------------------------------------------


def test_what_cannot_be_stored_is_refused_when_it_is_added(log: cordwood.Log) -> None:
    topic = log.topic("t")
    log.topic("rust", config={"cordwood.format": "rustlog"})
    log.offsets_topic()
    with log.transaction("x") as tx:
        with pytest.raises(UnknownTopic):
            tx.append("missing", b"v")
        with pytest.raises(UnknownTopic):
            tx.append(topic, b"v", partition=1)
        with pytest.raises(TransactionsUnsupported, match="rustlog"):
            tx.append("rust", b"v")
        with pytest.raises(TransactionsUnsupported):
            tx.append_many("rust", [(None, b"v")])
        for internal in ("__consumer_offsets", NAME):
            with pytest.raises(RecordRefused, match="internal"):
                tx.append(internal, b"v")
        with pytest.raises(RecordRefused):
            tx.append(topic, b"v", key="text")  # type: ignore[arg-type]
        with pytest.raises(RecordRefused):
            tx.append(topic, b"v", expected_offset="1")  # type: ignore[arg-type]
        wrong: Any
        for wrong in ({("t", 0): -1}, {("t", 0): "1"}, {("t", 0): (1, b"bytes")}):
            with pytest.raises(RecordRefused):
                tx.commit_offsets("g", wrong)
        with pytest.raises(RecordRefused):
            tx.commit_offsets("", {("t", 0): 1})
        with pytest.raises(UnknownTopic):
            tx.commit_offsets("g", {("missing", 0): 1})
        tx.append(topic, b"good")
    assert values(topic) == [b"good"]
    assert log.committed_offsets("g") == {}


def test_a_record_that_is_refused_at_the_commit_stores_nothing(log: cordwood.Log) -> None:
    topic, keyed = log.topic("t"), log.topic("keyed", config={"cleanup.policy": "compact"})
    bad: Any
    for bad in ((topic, "text", b"k"), (keyed, b"no key", None)):
        tx = log.transaction("x")
        tx.append(topic, b"first")
        tx.append(bad[0], bad[1], key=bad[2])
        with pytest.raises(RecordRefused):
            tx.commit()
    assert (topic.log_end_offset(), keyed.log_end_offset()) == (0, 0)


def test_an_id_has_one_transaction_at_a_time(log: cordwood.Log) -> None:
    topic = log.topic("t")
    with log.transaction("x") as tx:
        with pytest.raises(TransactionStateInvalid, match="open transaction"):
            log.transaction("x")
        with log.transaction("y") as other:
            other.append(topic, b"y")
        tx.append(topic, b"x")
    assert values(topic) == [b"y", b"x"]


def test_ids_and_timeouts_are_checked(log: cordwood.Log) -> None:
    wrong: Any
    for wrong in ("", "x" * 40_000, 5):
        with pytest.raises(InvalidSetting):
            log.transaction(wrong)
    for timeout_ms in (0, -1, 1 << 40):
        with pytest.raises(TransactionTimeoutInvalid):
            log.transaction("x", timeout_ms=timeout_ms)


@pytest.mark.parametrize("timeout_ms", [1.5, "5", None, True, float("nan")])
def test_a_timeout_that_is_no_whole_number_is_refused_and_the_id_stays_usable(
    log: cordwood.Log, timeout_ms: Any
) -> None:
    ledger = log.topic("ledger")
    with pytest.raises(InvalidSetting, match="whole number of milliseconds"):
        log.transaction("shop", timeout_ms=timeout_ms)
    with log.transaction("shop") as tx:
        tx.append(ledger, b"stored")
    assert [record.value for record in ledger.read()] == [b"stored"]


@pytest.mark.parametrize("transactional_id", ["\ud800", "x" * 40_000])
def test_an_id_that_cannot_be_stored_is_refused_in_a_short_sentence(
    log: cordwood.Log, transactional_id: str
) -> None:
    with pytest.raises(InvalidSetting, match="1 to 32767 bytes") as refused:
        log.transaction(transactional_id)
    assert len(str(refused.value)) < 200


def test_a_topic_of_another_log_is_refused(log: cordwood.Log) -> None:
    """Its name may be one of this log as well, and the record would be stored in the wrong one."""
    ledger = log.topic("ledger")
    with cordwood.open(":memory:") as other:
        elsewhere = other.topic("ledger")
        tx = log.transaction("shop")
        with pytest.raises(RecordRefused, match="of another log"):
            tx.append(elsewhere, b"lost")
        with pytest.raises(RecordRefused, match="of another log"):
            tx.append_many(elsewhere, [(None, b"lost")])
        with pytest.raises(RecordRefused, match="not NoneType"):
            tx.append(None, b"lost")  # type: ignore[arg-type]
        tx.commit()
    assert not list(ledger.read())


@pytest.mark.parametrize(
    ("group", "offsets"),
    [
        ("group", {("ledger", 0): 1 << 63}),
        ("group", {("ledger", 0): (1, 2, 3)}),
        ("group", {("ledger", 0): (1, "\ud800")}),
        ("group", {"ledger": 1}),
        ("group", {(None, 0): 1}),
        ("group", None),
        ("group", 5),
        ("\ud800", {("ledger", 0): 1}),
    ],
)
def test_offsets_that_cannot_be_stored_are_refused_when_they_are_added(
    log: cordwood.Log, group: str, offsets: Any
) -> None:
    ledger = log.topic("ledger")
    with log.transaction("shop") as tx:
        tx.append(ledger, b"stored")
        with pytest.raises(RecordRefused):
            tx.commit_offsets(group, offsets)
    assert [record.value for record in ledger.read()] == [b"stored"]
    assert not log.committed_offsets("group")


def test_a_read_only_log_refuses(log: cordwood.Log, files: FaultyFiles) -> None:
    with cordwood.open(DATA, read_only=True, files=files, clock=ManualClock(NOW)) as beside:
        with pytest.raises(LogClosed):
            beside.transaction("x")
        assert beside.committed_offsets("g") == {}


# --- timeouts and fencing -------------------------------------------------------------------------------


def test_a_transaction_that_is_open_for_too_long_is_aborted(log: cordwood.Log, clock: ManualClock) -> None:
    topic = log.topic("t")
    tx = log.transaction("x", timeout_ms=1_000)
    tx.append(topic, b"late")
    clock.advance(1_001)
    with pytest.raises(TransactionStateInvalid, match="timeout"):
        tx.commit()
    assert topic.log_end_offset() == 0


def test_after_the_timeout_another_one_takes_the_id_over(log: cordwood.Log, clock: ManualClock) -> None:
    """X3: the transaction before it can commit nothing any more."""
    topic = log.topic("t")
    before = log.transaction("x", timeout_ms=1_000)
    before.append(topic, b"before")
    clock.advance(1_001)
    with log.transaction("x") as tx:
        tx.append(topic, b"after")
    with pytest.raises(TransactionStateInvalid, match="taken over"):
        before.commit()
    assert values(topic) == [b"after"]


def test_a_later_process_has_another_producer(log: cordwood.Log, files: FaultyFiles) -> None:
    """X3: a batch of the process before cannot be taken for one of the next, nor the other way round."""
    topic, found = log.topic("t"), []
    for _ in range(3):
        with log.transaction("x") as tx:
            tx.append(topic, b"v")
        partition = log.data_directory.partitions.writable("t", 0)
        found.append(max((each.id, each.epoch) for each in partition.producers()))
        log = reopened(log, files)
        topic = log.topic("t")
    assert len({producer for producer, _ in found}) == 3
    log.close()


# --- the process ends in the middle -----------------------------------------------------------------------


@pytest.mark.called_only
@pytest.mark.parametrize("step", ["write", "decide", "complete"])
def test_a_transaction_of_an_earlier_process_is_finished_or_aborted_at_open(
    log: cordwood.Log, files: FaultyFiles, step: str
) -> None:
    topic = log.topic("t", partitions=2)
    with log.transaction("x") as tx:
        tx.append(topic, b"before")
        tx.append(topic, b"before", partition=1)
    transactions = log.transactions()
    tx = log.transaction("x")
    for partition in range(2):
        tx.append(topic, b"middle", partition=partition)
    tx.commit_offsets("g", {("t", 0): 5})
    commit = transactions.begin_commit(tx)
    transactions.sync(commit.write())
    if step != "write":
        transactions.sync(commit.decide())
    if step == "complete":
        commit.complete()
    abandoned(log)
    with cordwood.open(DATA, files=files, clock=ManualClock(NOW)) as again:
        topic = again.topic("t")
        expected = [b"before"] if step == "write" else [b"before", b"middle"]
        assert values(topic, 0) == values(topic, 1) == expected
        assert again.committed_offsets("g") == ({} if step == "write" else {("t", 0): 5})
        assert topic.last_stable_offset() == topic.high_watermark()
        with again.transaction("x") as tx:
            tx.append(topic, b"after", partition=0)
            tx.append(topic, b"after", partition=1)
        assert values(topic, 0) == values(topic, 1) == [*expected, b"after"]


@pytest.mark.called_only
def test_an_orphan_raises_the_stored_epoch_of_its_producer(log: cordwood.Log, files: FaultyFiles) -> None:
    """Else a server would give out an epoch whose batches are there already, and take new ones for those."""
    topic = log.topic("t")
    for number in range(2):
        tx = log.transaction("x")
        tx.append(topic, b"%d" % number)
        if number == 0:
            tx.commit()
    transactions = log.transactions()
    commit = transactions.begin_commit(tx)
    transactions.sync(commit.write())
    (written,) = log.data_directory.partitions.writable("t", 0).open_transactions()
    abandoned(log)
    with cordwood.open(DATA, files=files, clock=ManualClock(NOW)) as again:
        coordinator: TransactionCoordinator = again.transactions()._coordinator
        found = coordinator.find("x")
        assert found is not None
        assert found.identity == (written.producer_id, written.epoch)


def test_an_open_transaction_of_a_server_is_aborted_at_open(log: cordwood.Log, files: FaultyFiles) -> None:
    """Its producer cannot go on: there is no server."""
    topic = log.topic("t")
    with log.transaction("x") as tx:
        tx.append(topic, b"1")
    partition = log.data_directory.partitions.writable("t", 0)
    send_in_transaction(partition, Sent(4_711, 0, 0, (b"open",)), NOW)
    partition.commit()
    assert topic.last_stable_offset() == 2
    abandoned(log)
    with cordwood.open(DATA, files=files, clock=ManualClock(NOW)) as again:
        topic = again.topic("t")
        assert topic.last_stable_offset() == topic.high_watermark()
        assert values(topic) == [b"1"]


# --- failures -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", range(1, 13))
def test_a_full_disk_aborts_and_later_transactions_work(
    log: cordwood.Log, files: FaultyFiles, call: int
) -> None:
    """X1: whatever write fails, the transaction is there as a whole or not at all."""
    topic = log.topic("t", partitions=2)
    with log.transaction("x") as tx:
        tx.append(topic, b"0", partition=0)
        tx.append(topic, b"0", partition=1)
    files.plan(FaultPlan(call, frozenset({"write"}), errno.ENOSPC))
    committed = [b"0"]
    try:
        with log.transaction("x") as tx:
            tx.append(topic, b"1", partition=0)
            tx.append(topic, b"1", partition=1)
        committed.append(b"1")
    except DiskFull:
        pass
    files.heal()
    with log.transaction("x") as tx:
        tx.append(topic, b"2", partition=0)
        tx.append(topic, b"2", partition=1)
    committed.append(b"2")
    assert values(topic, 0) == values(topic, 1) == committed
    log = reopened(log, files)
    topic = log.topic("t")
    assert values(topic, 0) == values(topic, 1) == committed
    log.close()


@pytest.mark.parametrize("call", range(1, 5))
def test_a_failed_sync_fails_the_log_and_opening_finds_out(
    log: cordwood.Log, files: FaultyFiles, call: int
) -> None:
    topic = log.topic("t", partitions=2)
    with log.transaction("x") as tx:
        tx.append(topic, b"0", partition=0)
        tx.append(topic, b"0", partition=1)
    files.plan(FaultPlan(call, frozenset({"sync"}), errno.EIO))
    try:
        with log.transaction("x") as tx:
            tx.append(topic, b"1", partition=0)
            tx.append(topic, b"1", partition=1)
        answered = True
    except LogFailed:
        answered = False
    files.heal()
    with contextlib.suppress(LogFailed, LogClosed):
        log.close()
    with cordwood.open(DATA, files=files, clock=ManualClock(NOW)) as again:
        topic = again.topic("t")
        found = values(topic, 0)
        assert found == values(topic, 1)
        assert found in ([[b"0", b"1"]] if answered else [[b"0"], [b"0", b"1"]])
        assert topic.last_stable_offset() == topic.high_watermark()


# --- ids that are not used any more -----------------------------------------------------------------------


KEPT = 8


def transactions_of(log: Any) -> LogTransactions:
    """Return the transactions of a log, also of an awaited one."""
    inner = getattr(log, "_inner", None)
    found: LogTransactions = (log if inner is None else inner._log).transactions()
    return found


def known_ids(log: cordwood.Log) -> tuple[int, int]:
    """Return how many transactional ids are in memory, and how many of them the coordinator knows."""
    transactions = transactions_of(log)
    return len(transactions._ids), len(list(transactions._coordinator))


def test_an_id_for_each_request_takes_no_memory_for_long(
    log: cordwood.Log, files: FaultyFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody finishes them in the background here. Ids are used again, also those that were forgotten."""
    monkeypatch.setattr("cordwood.embedded.transactions.IDS_KEPT", KEPT)
    topic = log.topic("t")
    sizes = []
    for number in range(200):
        with log.transaction(f"request-{number % 150}") as tx:
            tx.append(topic, b"%d" % number)
        sizes.append(max(known_ids(log)))
    assert max(sizes) <= 3 * KEPT, sizes
    # Also if nothing is written, and if the log is told to finish everything.
    for number in range(50):
        log.transaction(f"nothing-{number}").abort()
    assert transactions_of(log).finish_all()
    assert max(known_ids(log)) <= 3 * KEPT
    expected = [b"%d" % number for number in range(200)]
    assert [record.value for record in topic.read()] == expected
    again = reopened(log, files)
    assert [record.value for record in again.topic("t").read()] == expected
    again.close()


def test_an_id_that_is_used_again_and_again_keeps_its_producer(
    log: cordwood.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every producer is kept in the partitions for a day."""
    monkeypatch.setattr("cordwood.embedded.transactions.IDS_KEPT", KEPT)
    topic, producers = log.topic("t"), set[int]()
    for number in range(100):
        with log.transaction("billing") as tx:
            tx.append(topic, b"bill")
        producer = transactions_of(log)._ids["billing"].producer
        assert producer is not None
        producers.add(producer.producer_id)
        for other in range(KEPT // 4):
            with log.transaction(f"{number}-{other}") as tx:
                tx.append(topic, b"other")
    assert len(producers) == 1


def test_a_transaction_in_use_is_never_forgotten_and_one_that_was_taken_over_is_too_late(
    log: cordwood.Log, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cordwood.embedded.transactions.IDS_KEPT", KEPT)
    topic = log.topic("t")
    late, lasting = log.transaction("a", timeout_ms=1_000), log.transaction("b")
    late.append(topic, b"late")
    lasting.append(topic, b"lasting")
    clock.advance(2_000)
    with log.transaction("a") as tx:
        tx.append(topic, b"taken over")
    for number in range(10 * KEPT):
        with log.transaction(f"request-{number}") as tx:
            tx.append(topic, b"request")
    assert "a" not in transactions_of(log)._ids
    with pytest.raises(TransactionStateInvalid, match="taken over"):
        late.commit()
    lasting.commit()
    values = [record.value for record in topic.read()]
    assert (values[0], values[-1], len(values)) == (b"taken over", b"lasting", 10 * KEPT + 2)


# --- threads and processes --------------------------------------------------------------------------------


def test_many_threads_with_different_ids_commit_and_share_syncs(
    log: cordwood.Log, files: FaultyFiles
) -> None:
    topic, other = log.topic("t"), log.topic("u")
    threads, rounds = 8, 5
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for round_ in range(rounds):
                with log.transaction(f"id-{number}") as tx:
                    for each in (topic, other):
                        tx.append(each, b"%d.%d" % (number, round_))
        except BaseException as error:
            failures.append(error)

    running = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join(SECONDS_MAX)
    assert not failures, failures
    expected = {b"%d.%d" % (number, round_) for number in range(threads) for round_ in range(rounds)}
    assert set(values(topic)) == set(values(other)) == expected
    assert len(values(topic)) == threads * rounds
    for number in range(threads):
        mine = [value for value in values(topic) if value is not None and value.startswith(b"%d." % number)]
        assert mine == [b"%d.%d" % (number, round_) for round_ in range(rounds)]


def test_closing_waits_for_a_commit_and_refuses_those_that_have_not_begun(
    log: cordwood.Log, files: FaultyFiles
) -> None:
    topic = log.topic("t")
    late = log.transaction("late")
    late.append(topic, b"late")
    with log.transaction("x") as tx:
        tx.append(topic, b"1")
    log.close()
    with pytest.raises(LogClosed):
        late.commit()
    with pytest.raises(LogClosed):
        log.transaction("y")
    with cordwood.open(DATA, files=files, clock=ManualClock(NOW)) as again:
        assert again.data_directory.lifecycle.is_clean, "closed cleanly: nothing was left to finish"
        assert values(again.topic("t")) == [b"1"]


@pytest.mark.called_only
def test_closing_in_the_middle_of_a_commit_waits_for_it(log: cordwood.Log, files: FaultyFiles) -> None:
    topic = log.topic("t")
    tx = log.transaction("x")
    tx.append(topic, b"1")
    transactions: LogTransactions = log.transactions()
    commit = transactions.begin_commit(tx)
    transactions.sync(commit.write())
    closer = threading.Thread(target=log.close)
    closer.start()
    transactions.sync(commit.decide())
    commit.complete()
    closer.join(SECONDS_MAX)
    assert not closer.is_alive()
    with cordwood.open(DATA, files=files, clock=ManualClock(NOW)) as again:
        assert values(again.topic("t")) == [b"1"]


@pytest.mark.called_only
def test_a_forked_child_can_commit_nothing(tmp_path: Any) -> None:
    with cordwood.open(tmp_path / "data") as log:
        topic = log.topic("t")
        tx = log.transaction("x")
        tx.append(topic, b"child")
        child = os.fork()
        if child == 0:
            try:
                tx.commit()
            except LogClosed:
                os._exit(0)
            except BaseException:
                os._exit(2)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert topic.log_end_offset() == 0
        tx.commit()
        assert values(topic) == [b"child"]


def test_what_is_read_is_out_of_range_until_it_is_committed(log: cordwood.Log) -> None:
    topic = log.topic("t")
    with log.transaction("x") as tx:
        tx.append(topic, b"1")
        with pytest.raises(OffsetOutOfRange):
            topic.get(0, 0)
    record = topic.get(0, 0)
    assert record is not None
    assert record.value == b"1"
