"""Every power cut during transactions of the library: all of a transaction or nothing, and what was answered.

`CORDWOOD_CRASH_LIMIT` sets how many images are looked at per power cut (default 1, 0 is all of them).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NamedTuple

import pytest
from support.clocks import ManualClock
from support.crashes import CrashCount, CrashImage, again, crash_images, survives
from support.disks import RecordingFiles

import cordwood
from cordwood.disk.files import Files
from cordwood.disk.memory import MemoryFiles
from cordwood.embedded.committing import TransactionCommit
from cordwood.embedded.transactions import LogTransactions
from cordwood.errors import UnexpectedOffset

LIMIT = int(os.environ.get("CORDWOOD_CRASH_LIMIT", "1")) or None
DATA = "/data"
NOW = 1_700_000_000_000
PLACES = (("a", 0), ("a", 1), ("b", 0))


class Answered(NamedTuple):
    """A transaction whose commit, or whose abort, was answered."""

    number: int
    committed: bool


def open_log(files: Files) -> cordwood.Log:
    return cordwood.open(DATA, files=files, clock=ManualClock(NOW))


def commit(log: cordwood.Log, transactional_id: str, number: int, *, expected: int | None = None) -> None:
    """Commit one transaction: its number in every partition, and as an offset of a group."""
    with log.transaction(transactional_id) as tx:
        for topic, partition in PLACES:
            at = expected if (topic, partition) == PLACES[0] else None
            tx.append(topic, b"%d" % number, partition=partition, expected_offset=at)
        tx.append("b", b"%d" % number)
        tx.commit_offsets("g", {("a", 0): number, ("b", 0): number})


def workload(files: RecordingFiles) -> None:
    """Transactions of two ids, one that is refused, plain records between them, and a second process."""
    log = open_log(files)
    log.topic("a", partitions=2, config={"segment.bytes": "600", "index.interval.bytes": "100"})
    log.topic("b")
    files.acknowledge("topics")
    for number in range(1, 3):
        commit(log, "x", number)
        files.acknowledge(Answered(number, True))
    log.topic("a").append(b"plain", partition=0)
    commit(log, "y", 4)
    files.acknowledge(Answered(4, True))
    with pytest.raises(UnexpectedOffset):
        commit(log, "x", 5, expected=0)
    files.acknowledge(Answered(5, False))
    commit(log, "x", 6)
    files.acknowledge(Answered(6, True))
    log.close()
    log = open_log(files)
    commit(log, "x", 7)
    files.acknowledge(Answered(7, True))
    log.close()


def check(image: CrashImage) -> None:
    """X1 and X4: what is visible is whole, what was answered is there, nothing stays open, and it goes on."""
    log = open_log(image.files)
    if "topics" not in image.acknowledged:
        log.close()
        return
    seen = see(log)
    for answered in image.acknowledged:
        if isinstance(answered, Answered):
            assert (answered.number in seen) == answered.committed, f"X4: {answered}, visible {seen}"
    commit(log, "x", 100)
    assert see(log) == [*seen, 100], "X4: a transaction after the crash is not there"
    log.close()


def see(log: cordwood.Log) -> list[int]:
    """Return the transactions that are visible, after checking that each is so everywhere."""
    visible: list[list[int]] = []
    for name, partition in PLACES:
        topic = log.topic(name)
        values = [int(r.value or b"") for r in topic.read(partition) if r.value != b"plain"]
        if name == "b":
            assert values[::2] == values[1::2], f"X1: half a batch is visible: {values}"
            values = values[::2]
        visible.append(values)
        stable, end = topic.last_stable_offset(partition), topic.high_watermark(partition)
        assert stable == end, f"X5: {name}-{partition} has an open transaction from {stable} on"
    assert visible[0] == visible[1] == visible[2], f"X1: not all or nothing: {visible}"
    offsets = log.committed_offsets("g")
    expected = {("a", 0): visible[0][-1], ("b", 0): visible[0][-1]} if visible[0] else {}
    assert offsets == expected, f"X1: offsets {offsets} with transactions {visible[0]}"
    return visible[0]


def test_every_power_cut_leaves_all_of_a_transaction_or_nothing() -> None:
    count = CrashCount()
    violation = survives(workload, check, images_max=100_000, limit_per_prefix=LIMIT, count=count)
    print("\n".join(count.report()))
    assert violation is None, str(violation)
    count.require(200)


def test_a_second_power_cut_during_recovery_changes_nothing() -> None:
    """Only cuts while transactions are finished: the rest of recovery has its own enumeration."""
    recording = RecordingFiles(MemoryFiles())
    workload(recording)
    looked_at = 0
    images = [each for each in crash_images(recording, limit_per_prefix=1) if "topics" in each.acknowledged]
    for image in images[:: max(1, len(images) // 6)]:
        inner = again(image)
        open_log(inner)
        for second in crash_images(inner, limit_per_prefix=1):
            looked_at += 1
            check(second)
    print(f"{looked_at} disks after a second cut")
    assert looked_at >= 50


# --- planted faults: each is caught -----------------------------------------------------------------------


def markers_before_the_decision(monkeypatch: pytest.MonkeyPatch) -> None:
    def commit_early(self: LogTransactions, transaction: cordwood.embedded.LogTransaction) -> None:
        steps = self.begin_commit(transaction)
        try:
            self.sync(steps.write())
        except BaseException as error:
            steps.fail(error)
            raise
        syncs = steps.decide()
        steps.complete()
        self.sync(steps._known.unsynced)
        self.sync(syncs)

    monkeypatch.setattr(LogTransactions, "commit", commit_early)


def decision_is_not_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    decide = TransactionCommit.decide

    def decide_only(self: TransactionCommit) -> dict[object, int]:
        decide(self)
        return {}

    monkeypatch.setattr(TransactionCommit, "decide", decide_only)


def data_is_synced_after_the_decision(monkeypatch: pytest.MonkeyPatch) -> None:
    def commit_late(self: LogTransactions, transaction: cordwood.embedded.LogTransaction) -> None:
        steps = self.begin_commit(transaction)
        try:
            syncs = steps.write()
        except BaseException as error:
            steps.fail(error)
            raise
        self.sync(steps.decide())
        self.sync(syncs)
        steps.complete()

    monkeypatch.setattr(LogTransactions, "commit", commit_late)


def epoch_is_not_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    """The marker of one transaction, written again, ends the next one."""
    new_producer = LogTransactions.new_producer

    def same_producer(self: LogTransactions, known: object, timeout_ms: int) -> object:
        before = known.producer  # type: ignore[attr-defined]
        if before is None:
            return new_producer(self, known, timeout_ms)  # type: ignore[arg-type]
        found = self._coordinator.find(known.id)  # type: ignore[attr-defined]
        if found is not None and found.is_prepared:
            self._coordinator.markers_written(found.id, NOW)
        return before

    monkeypatch.setattr(LogTransactions, "new_producer", same_producer)


def decision_is_replaced_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """A power cut loses the markers, and nothing is left that says that they have to be written."""
    complete = TransactionCommit.complete

    def complete_and_replace(self: TransactionCommit) -> None:
        complete(self)
        coordinator = self._transactions._coordinator
        coordinator.markers_written(self._known.id, NOW)
        found = coordinator.find(self._known.id)
        assert found is not None
        self._transactions.sync(self._transactions.store(found.row()))

    monkeypatch.setattr(TransactionCommit, "complete", complete_and_replace)


def nothing_is_recovered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LogTransactions, "recover", lambda self, is_clean: None)


@pytest.mark.parametrize(
    "plant",
    [
        markers_before_the_decision,
        decision_is_not_synced,
        data_is_synced_after_the_decision,
        epoch_is_not_raised,
        decision_is_replaced_early,
        nothing_is_recovered,
    ],
)
def test_a_planted_fault_is_caught(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    violation = survives(workload, check, images_max=100_000, limit_per_prefix=8)
    assert violation is not None, "the fault was not caught"
    print(violation)
