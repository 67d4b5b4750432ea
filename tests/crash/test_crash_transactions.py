"""Crash enumeration of transactions in one partition: no power cut shows what was not committed.

The coordinator is played by the test: what it decided before the cut counts as stored, and what was decided
is finished after the cut, as a broker does it when it starts. Checked on every disk: X1, X2, O4, R1 to R3,
R5. `CORDWOOD_CRASH_LIMIT` sets how many images are looked at per power cut (0 is all of them).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import msgspec
import pytest
from support.crashes import CrashCount, CrashImage, Violation, again, crash_images, survives, violation_of
from support.disks import RecordingFiles
from support.producing import DATA, Bench, Sent, snapshots_every
from support.transactions import committed_values, end_transaction, send_in_transaction

from cordwood.config.loading import load_broker_config
from cordwood.disk.memory import MemoryFiles
from cordwood.errors import CordwoodError, NotADataDirectory
from cordwood.index import AbortedIndex
from cordwood.storage.log import PartitionLog
from cordwood.storage.log.active_segment import ActiveSegment
from cordwood.storage.log.changes import NoteTransactional
from cordwood.storage.log.producers import OpenTransactions, ProducerKeeper, Replay
from cordwood.storage.log.producers import committed as committed_module
from cordwood.storage.log.reading import View
from cordwood.storage.log.segment import Segment
from cordwood.storage.readonly import ReadOnlyDirectory

LIMIT = int(os.environ.get("CORDWOOD_CRASH_LIMIT", "1")) or None
STRIDE = 1 if LIMIT is None else 40
TINY = {"segment.bytes": "500", "index.interval.bytes": "100", "cordwood.chain": "false"}
Run = Callable[[RecordingFiles], Any]
Planted = Callable[[], contextlib.AbstractContextManager[None]]


@dataclass(frozen=True)
class Began:
    """A batch of the producer's transaction may be in the log from here on."""

    producer: int
    number: int
    values: tuple[bytes, ...]


@dataclass(frozen=True)
class Kept:
    """Everything appended before is acknowledged as durable."""


@dataclass(frozen=True)
class Decided:
    """The outcome of a transaction is stored; its marker follows."""

    producer: int
    number: int
    committed: bool


@dataclass(frozen=True)
class Cut:
    """From here on records at or above the offset may be gone, and their transactions count no more."""

    end_offset: int


class Producing:
    """Producers with transactions on a recording disk, each promise noted when it is made."""

    def __init__(self, files: RecordingFiles) -> None:
        self.files = files
        self.bench = Bench(files, TINY)
        self.log = self.bench.open()
        self.sequences: dict[int, int] = {}
        self.numbers: dict[int, int] = {}
        self.written = 0

    def say(self, producer: int, count: int = 1) -> None:
        """Append a batch of a transaction, not durable yet."""
        values = tuple(b"%d-%d" % (producer, self.written + i) for i in range(count))
        self.written += count
        number = self.numbers.setdefault(producer, 0)
        self.files.acknowledge(Began(producer, number, values))
        sequence = self.sequences.get(producer, 0)
        send_in_transaction(self.log, Sent(producer, 0, sequence, values))
        self.sequences[producer] = sequence + count

    def plain(self) -> None:
        """Append a record without a transaction, durable."""
        self.log.append([(b"k", b"plain")])
        self.sync()

    def sync(self) -> None:
        """Acknowledge everything that was appended."""
        self.log.commit()
        self.files.acknowledge(Kept())

    def end(self, producer: int, *, committed: bool, synced: bool = True) -> None:
        """Sync the records, decide, and append the marker; its sync comes later unless *synced*."""
        self.sync()
        self.files.acknowledge(Decided(producer, self.numbers.get(producer, 0), committed))
        self.numbers[producer] = self.numbers.get(producer, 0) + 1
        end_transaction(self.log, producer, committed=committed)
        if synced:
            self.sync()

    def restart(self) -> None:
        """Close the log and open it again."""
        self.bench.close()
        self.log = self.bench.open()


def one_after_the_other(files: RecordingFiles) -> None:
    """Commits and aborts, over several segments, of one producer."""
    work = Producing(files)
    work.plain()
    for number in range(5):
        work.say(1, 2)
        work.say(1)
        work.end(1, committed=number % 2 == 0, synced=number % 3 == 0)
    work.plain()


def side_by_side(files: RecordingFiles) -> None:
    """Transactions of three producers that overlap, one of them open throughout."""
    work = Producing(files)
    work.say(3)
    for number in range(4):
        work.say(1)
        work.say(2, 2)
        work.end(1 + number % 2, committed=number < 2, synced=number % 2 == 0)
        work.plain()
    work.end(2, committed=False, synced=False)
    work.say(1)
    work.sync()


def restarted(files: RecordingFiles) -> None:
    """Restarts with open and with ended transactions."""
    work = Producing(files)
    work.say(1)
    work.sync()
    work.restart()
    work.say(1)
    work.end(1, committed=False)
    work.say(2)
    work.end(2, committed=True, synced=False)
    work.restart()
    work.say(1, 3)
    work.plain()
    work.end(1, committed=True)


def cut_back(files: RecordingFiles) -> None:
    """A truncation that cuts the marker of an abort off, and one of a commit."""
    work = Producing(files)
    work.say(1)
    work.end(1, committed=False)
    end = work.log.log_end_offset
    work.say(2)
    work.end(2, committed=True)
    files.acknowledge(Cut(end))
    work.log.truncate(end)
    work.plain()
    files.acknowledge(Cut(end - 1))
    work.log.truncate(end - 1)
    work.plain()
    work.end(1, committed=False)


def ended_during_a_sync(files: RecordingFiles) -> None:
    """Markers that are appended while the sync of earlier records is under way, as by another thread."""
    work = Producing(files)
    for number in range(3):
        work.say(1)
        files.acknowledge(Decided(1, number, False))
        work.numbers[1] = number + 1
        active = work.log.active
        real = active.sync

        def sync(active: ActiveSegment = active, real: Callable[[], None] = real) -> None:
            real()
            with patch.object(active, "sync", real):
                end_transaction(work.log, 1, committed=False)

        with patch.object(active, "sync", sync):
            work.log.commit(work.log.log_end_offset)
    work.plain()


WORKLOADS: list[Run] = [one_after_the_other, side_by_side, restarted, cut_back, ended_during_a_sync]


class Expected:
    """What must be visible, and what may be, after everything that was promised before a cut."""

    def __init__(self, acknowledged: tuple[object, ...]) -> None:
        self.decided: dict[tuple[int, int], bool] = {}
        self.values: dict[tuple[int, int], list[bytes]] = {}
        self.kept: set[bytes] = set()
        self.is_cut = False
        self.plain = 0
        written: list[bytes] = []
        for each in acknowledged:
            if isinstance(each, Began):
                self.values.setdefault((each.producer, each.number), []).extend(each.values)
                written += each.values
            elif isinstance(each, Kept):
                self.kept.update(written)
            elif isinstance(each, Decided):
                self.decided[each.producer, each.number] = each.committed
            elif isinstance(each, Cut):
                self.is_cut = True

    def check(self, seen: list[bytes], *, complete: bool) -> None:
        """Hold what a reader of committed records sees to the promises; X2 only if it is *complete*."""
        shown = [value for value in seen if value != b"plain"]
        assert len(shown) == len(set(shown)), f"X1: a record twice: {shown}"
        for transaction, values in self.values.items():
            there = [value for value in values if value in shown]
            outcome = self.decided.get(transaction)
            if not outcome:
                assert not there, f"X1: {there} of a transaction that was not committed"
            elif complete and not self.is_cut:
                assert there == values, f"X2: {there} of {values} of a committed transaction"
            elif not self.is_cut:
                assert there in ([], values) or not complete or there == values[: len(there)], "X1: half"


def committed_beside(files: Any) -> list[bytes] | None:
    """Return what a reader sees that opens the directory before any writer does; None without a partition."""
    try:
        directory = ReadOnlyDirectory(files, DATA, load_broker_config(environment={})[0], mapped=False)
    except NotADataDirectory:
        return None
    if "orders" not in directory.topics:
        return None
    log = directory.readable("orders", 0, directory.topics["orders"])
    assert log.log_start_offset <= log.last_stable_offset <= log.high_watermark, "O4: out of order"
    return committed_values(log, 150)


def finish(log: PartitionLog, expected: Expected) -> None:
    """Append the markers of what was decided, and abort the rest, as a broker does when it starts."""
    for each in log.open_transactions():
        numbers = [number for producer, number in expected.values if producer == each.producer_id]
        batches = [value.decode() for value in first_values(log, each.first_offset)]
        owner = next(
            (
                (each.producer_id, number)
                for number in numbers
                if any(batch.encode() in expected.values[each.producer_id, number] for batch in batches)
            ),
            None,
        )
        end_transaction(log, each.producer_id, committed=bool(owner and expected.decided.get(owner)))
    log.commit()


def first_values(log: PartitionLog, offset: int) -> list[bytes]:
    """Return the values of the batch at *offset*."""
    fetched = log.read(offset, 1)
    return [record.value or b"" for run in fetched.runs for record in run.records()]


def check(image: CrashImage) -> None:
    """Hold what is left to everything promised before the cut: beside a writer, opened, and opened again."""
    expected = Expected(image.acknowledged)
    try:
        seen = committed_beside(image.files)
    except CordwoodError:
        # A reader may be refused what only a writer can repair.
        seen = None
    if seen is not None:
        expected.check(seen, complete=False)
    for _ in range(2):
        bench = Bench(image.files, TINY)
        log = bench.open()
        expected.check(committed_values(log, 150), complete=False)
        open_before = [(each.producer_id, each.first_offset) for each in log.open_transactions()]
        again_ = bench.left().open()
        found = [(each.producer_id, each.first_offset) for each in again_.open_transactions()]
        assert found == open_before, f"R3: {found} open, not {open_before}"
        finish(log, expected)
        assert log.last_stable_offset == log.high_watermark, "X4: something is still open"
        expected.check(committed_values(log, 150), complete=True)
        bench.close()


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.__name__)
@pytest.mark.parametrize("snapshot_bytes", [150, 1 << 30])
def test_no_power_cut_shows_what_was_not_committed_or_loses_what_was(
    workload: Run, snapshot_bytes: int
) -> None:
    count = CrashCount()
    with snapshots_every(snapshot_bytes):
        violation = survives(workload, check, images_max=1 << 30, limit_per_prefix=LIMIT, count=count)
    print("\n".join(count.report()))
    assert violation is None, violation
    count.require(60, kinds=())


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.__name__)
def test_no_power_cut_after_another_does_either(workload: Run) -> None:
    """R3: opening after a cut can be cut too."""
    count = CrashCount()
    with snapshots_every(150):
        recording = RecordingFiles(MemoryFiles())
        workload(recording)
        for number, image in enumerate(crash_images(recording, limit_per_prefix=LIMIT)):
            if number % STRIDE:
                continue
            second = again(image)
            log = Bench(second, TINY).open()
            finish(log, Expected(image.acknowledged))
            log.append([(b"k", b"plain")])
            for cut in crash_images(second, limit_per_prefix=LIMIT, count=count):
                try:
                    check(cut)
                except Exception as error:
                    raise AssertionError(f"{violation_of(error, cut.kind, cut.prefix)}") from error
    print("\n".join(count.report()))
    count.require(10, kinds=())


# --- canaries -------------------------------------------------------------------------------------------


@contextlib.contextmanager
def the_last_stable_offset_past_an_open_transaction() -> Iterator[None]:
    with patch.object(View, "last_stable_offset", property(lambda self: self.high_watermark)):
        yield


@contextlib.contextmanager
def the_mark_counts_markers_that_are_not_synced() -> Iterator[None]:
    with patch.object(OpenTransactions, "stable_below", lambda self, synced: min(self.open_from, synced)):
        yield


@contextlib.contextmanager
def records_of_aborted_transactions_returned() -> Iterator[None]:
    with patch.object(committed_module, "aborted_within", lambda view, start, stop: []):
        yield


@contextlib.contextmanager
def a_lost_index_taken_for_an_empty_one() -> Iterator[None]:
    real = Segment.read_aborted

    def read(self: Segment, count: int, crc: int) -> AbortedIndex:
        return real(self, count, crc) or AbortedIndex()

    with patch.object(Segment, "read_aborted", read):
        yield


@contextlib.contextmanager
def transactions_not_learnt_at_opening() -> Iterator[None]:
    with patch.object(PartitionLog, "learn_transactions", lambda self: None):
        yield


@contextlib.contextmanager
def the_first_transaction_not_noted_in_the_state() -> Iterator[None]:
    with patch.object(NoteTransactional, "make", lambda self: True):
        yield


@contextlib.contextmanager
def an_abort_replayed_as_a_commit() -> Iterator[None]:
    real = Replay.over

    def over(self: Replay, *arguments: Any) -> Replay:
        real(self, *arguments)
        self.aborted.clear()
        return self

    with patch.object(Replay, "over", over):
        yield


@contextlib.contextmanager
def a_sealed_segment_without_its_aborted_transactions() -> Iterator[None]:
    real = ActiveSegment.info_now

    def info_now(self: ActiveSegment, now_ms: int) -> Any:
        return msgspec.structs.replace(real(self, now_ms), aborted_count=0, aborted_crc32c=0)

    with patch.object(ActiveSegment, "info_now", info_now):
        yield


@contextlib.contextmanager
def transactions_not_learnt_again_after_a_truncation() -> Iterator[None]:
    def cut(self: ProducerKeeper, leader_epoch: int, end_offset: int, now_ms: int) -> None:
        self._opened_offset = min(self._opened_offset, end_offset)
        self.learn(now_ms).cut(end_offset)
        self.open = OpenTransactions(self.learn(now_ms).open_transactions())
        self._capture(leader_epoch, end_offset, now_ms)
        self.save_synced(end_offset)

    with patch.object(ProducerKeeper, "cut", cut):
        yield


@contextlib.contextmanager
def an_open_transaction_missing_from_the_snapshot() -> Iterator[None]:
    real = ProducerKeeper._capture

    def capture(self: ProducerKeeper, *arguments: Any) -> None:
        real(self, *arguments)
        assert self._pending is not None
        snapshot, active = self._pending
        closed = tuple(msgspec.structs.replace(each, open_offset=None) for each in snapshot.producers)
        self._pending = msgspec.structs.replace(snapshot, producers=closed), active

    with patch.object(ProducerKeeper, "_capture", capture):
        yield


CANARIES: list[Planted] = [
    the_last_stable_offset_past_an_open_transaction,
    the_mark_counts_markers_that_are_not_synced,
    records_of_aborted_transactions_returned,
    a_lost_index_taken_for_an_empty_one,
    transactions_not_learnt_at_opening,
    the_first_transaction_not_noted_in_the_state,
    an_abort_replayed_as_a_commit,
    a_sealed_segment_without_its_aborted_transactions,
    transactions_not_learnt_again_after_a_truncation,
    an_open_transaction_missing_from_the_snapshot,
]


@pytest.mark.parametrize("planted", CANARIES, ids=[each.__name__ for each in CANARIES])
def test_a_planted_bug_is_caught(planted: Planted) -> None:
    found = caught(planted)
    assert found is not None, f"{planted.__name__} survived"
    print(f"caught: {planted.__name__.replace('_', ' ')}: {found}")


def caught(planted: Planted) -> Violation | None:
    """Run the workloads under a planted bug and return the first broken promise."""
    for snapshot_bytes in (150, 1 << 30):
        for workload in WORKLOADS:
            with planted(), snapshots_every(snapshot_bytes):
                try:
                    found = survives(workload, check, images_max=60_000, seed=0, limit_per_prefix=3)
                except (CordwoodError, AssertionError) as error:
                    found = violation_of(error)
            if found is not None:
                return found
    return None
