"""Appends from many threads share syncs, and none is acknowledged before the one that covers it."""

from __future__ import annotations

import contextlib
import errno
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from support.clocks import HookedFiles, ManualClock
from support.patience import SECONDS_MAX

import cordwood
from cordwood.disk.files import os_error
from cordwood.disk.memory import MemoryFiles
from cordwood.errors import CordwoodError, LogFailed
from cordwood.storage.log.group_commit import GroupCommit
from cordwood.storage.log.partition_log import PartitionLog

THREADS = 8


class Gate:
    """Holds every sync of a segment until it is let through, or told to fail."""

    def __init__(self, files: HookedFiles) -> None:
        self.arrived = threading.Semaphore(0)
        self.admitted = threading.Semaphore(0)
        self.syncs = 0
        self.failing = False
        files.before = self._before

    def _before(self, kind: str, path: str) -> None:
        if kind == "sync" and path.endswith(".log"):
            self.syncs += 1
            self.arrived.release()
            assert self.admitted.acquire(timeout=SECONDS_MAX)
            if self.failing:
                raise os_error(errno.EIO, path)

    def wait_for_a_sync(self) -> None:
        assert self.arrived.acquire(timeout=SECONDS_MAX)

    def let_through(self) -> None:
        self.admitted.release()


@dataclass
class Appender:
    """A thread that appends one record as `Topic.append` does, and notes when it was acknowledged."""

    log: PartitionLog
    appended: threading.Event = field(default_factory=threading.Event)
    acknowledged: threading.Event = field(default_factory=threading.Event)
    error: BaseException | None = None

    def start(self) -> Appender:
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()
        assert self.appended.wait(SECONDS_MAX)
        return self

    def _run(self) -> None:
        appended = self.log.append([(None, b"value")])
        self.appended.set()
        try:
            self.log.settle(appended)
            self.acknowledged.set()
        except BaseException as error:
            self.error = error

    def join(self) -> None:
        self.thread.join(SECONDS_MAX)
        assert not self.thread.is_alive(), "the append was never answered"


@dataclass
class Setup:
    files: HookedFiles
    log: PartitionLog
    gate: Gate


def open_partition(files: HookedFiles) -> PartitionLog:
    opened = cordwood.open("/data", files=files, clock=ManualClock())
    opened.topic("orders")
    return opened.data_directory.partitions.own("orders", 0)


@pytest.fixture
def setup() -> Setup:
    files = HookedFiles(MemoryFiles())
    log = open_partition(files)
    return Setup(files, log, Gate(files))


# --- Through the engine --------------------------------------------------------------------------


def test_appends_share_one_sync_and_are_acknowledged_only_after_it(setup: Setup) -> None:
    gate, log = setup.gate, setup.log
    first = Appender(log).start()
    gate.wait_for_a_sync()
    others = [Appender(log).start() for _ in range(THREADS)]

    assert not first.acknowledged.is_set()
    assert (log.high_watermark, log.log_end_offset) == (0, 1 + THREADS)
    gate.let_through()
    first.join()

    # The first sync began before the others were written, so it says nothing about them.
    gate.wait_for_a_sync()
    assert first.acknowledged.is_set()
    assert not any(other.acknowledged.is_set() for other in others)
    assert log.high_watermark == 1
    gate.let_through()
    for other in others:
        other.join()

    assert all(other.acknowledged.is_set() for other in others)
    assert log.high_watermark == 1 + THREADS
    assert gate.syncs == 2


def test_a_sync_that_fails_fails_every_waiter_and_is_never_tried_again(setup: Setup) -> None:
    gate, log = setup.gate, setup.log
    first = Appender(log).start()
    gate.wait_for_a_sync()
    others = [Appender(log).start() for _ in range(THREADS)]
    gate.failing = True
    gate.let_through()
    for appender in (first, *others):
        appender.join()
        assert isinstance(appender.error, LogFailed)
        assert not appender.acknowledged.is_set()
    assert log.high_watermark == 0
    gate.failing = False
    for call in (
        lambda: log.append([(None, b"later")]),
        lambda: log.commit(),
        lambda: log.read(0, 100),
        lambda: log.roll(),
        lambda: log.truncate(0),
    ):
        with pytest.raises(LogFailed):
            call()
    assert gate.syncs == 1


def test_closing_a_log_whose_sync_failed_says_so_and_leaves_no_clean_marker() -> None:
    """The next open must rescan: what the device holds of the tail is not known."""
    files = HookedFiles(MemoryFiles())
    opened = cordwood.open("/data", files=files)
    topic = opened.topic("orders")
    topic.append(b"kept")

    def fail(kind: str, path: str) -> None:
        if kind == "sync" and path.endswith(".log"):
            raise os_error(errno.EIO, path)

    files.before = fail
    with pytest.raises(LogFailed):
        topic.append(b"doubtful")
    with pytest.raises(LogFailed):
        topic.append(b"refused")
    with pytest.raises(LogFailed):
        opened.close()
    assert not files.exists("/data/meta/clean")
    files.before = lambda kind, path: None
    with cordwood.open("/data", files=files) as again:
        records = list(again.topic("orders").read())
        assert records[0].value == b"kept"
        assert [record.value for record in records[1:]] in ([], [b"doubtful"])


def test_a_roll_acknowledges_what_it_sealed_without_another_sync(setup: Setup) -> None:
    gate, log = setup.gate, setup.log
    appended = log.append([(None, b"value")])
    gate.let_through()
    log.roll()
    syncs = gate.syncs
    log.settle(appended)
    assert gate.syncs == syncs
    assert log.high_watermark == appended.next_offset


def test_an_append_that_is_truncated_before_its_sync_is_answered() -> None:
    """Between writing and syncing, another thread may truncate. The first must not sync for ever.

    Whether it is told that its record went or that it was stored is not said: both are true.
    """
    files = HookedFiles(MemoryFiles())
    log = open_partition(files)
    appended = log.append([(None, b"value")] * 3)
    log.truncate(0)
    syncs = 0

    def count(kind: str, path: str) -> None:
        nonlocal syncs
        syncs += kind == "sync" and path.endswith(".log")
        if syncs > 5:
            raise AssertionError("it syncs again and again for offsets that are gone")

    files.before = count
    with contextlib.suppress(CordwoodError):
        log.settle(appended)


def test_the_high_watermark_moves_after_the_sync_and_the_mark_after_both() -> None:
    """A mark that says more than is synced would make recovery take a torn tail for corruption."""
    files = HookedFiles(MemoryFiles())
    log = open_partition(files)
    log.commit(log.append([(None, b"first")]).next_offset)
    mark = log.directory + "/mark"
    at_sync: list[tuple[int, bytes]] = []

    def look(kind: str, path: str) -> None:
        if kind == "sync" and path.endswith(".log"):
            at_sync.append((log.high_watermark, files.inner.open(mark, "read").read_at(0, 1024)))

    before = files.inner.open(mark, "read").read_at(0, 1024)
    files.before = look
    log.commit(log.append([(None, b"second")]).next_offset)
    assert at_sync == [(1, before)]
    assert log.high_watermark == 2
    assert files.inner.open(mark, "read").read_at(0, 1024) != before


# --- By itself -----------------------------------------------------------------------------------


class Ledger:
    """What a group commit keeps durable here: a number of appends, and what each sync covered."""

    def __init__(self) -> None:
        self.commit = GroupCommit(0)
        self.lock = threading.Lock()
        self.end = 0
        self.covered: list[int] = []
        self.syncing = 0

    def append(self) -> tuple[int, int]:
        """Append, and return the next offset and how many syncs were through by then."""
        with self.lock:
            self.end += 1
            return self.end, len(self.covered)

    def sync(self) -> int:
        self.syncing += 1
        assert self.syncing == 1, "two threads sync at once"
        end = self.end
        self.syncing -= 1
        with self.lock:
            self.covered.append(end)
        return end


def in_threads(count: int, work: Callable[[], None]) -> None:
    """Run *work* in that many threads at once; raise what one of them raised."""
    errors: list[BaseException] = []
    barrier = threading.Barrier(count)

    def run() -> None:
        try:
            barrier.wait(SECONDS_MAX)
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS_MAX)
        assert not thread.is_alive()
    if errors:
        raise errors[0]


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


def test_no_append_waits_for_more_than_two_syncs(ledger: Ledger) -> None:
    """The one under way when it was written, which may miss it, and the next, which cannot."""
    waited: list[int] = []

    def work() -> None:
        for _ in range(200):
            offset, through = ledger.append()
            ledger.commit.wait(offset, ledger.sync)
            assert ledger.commit.synced_offset >= offset
            covering = next(i for i, end in enumerate(ledger.covered) if end >= offset)
            waited.append(covering - through + 1)

    in_threads(THREADS, work)
    print(f"{len(waited)} appends shared {len(ledger.covered)} syncs; the longest wait was {max(waited)}")
    assert len(waited) == THREADS * 200
    assert max(waited) <= 2
    assert ledger.covered == sorted(ledger.covered)


def test_what_is_synced_already_waits_for_nothing(ledger: Ledger) -> None:
    ledger.append()
    ledger.commit.wait(1, ledger.sync)
    ledger.commit.wait(1, lambda: pytest.fail("there was nothing to sync"))


def test_an_error_that_is_not_of_the_disk_is_its_callers_alone(ledger: Ledger) -> None:
    ledger.append()

    def interrupted() -> int:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ledger.commit.wait(1, interrupted)
    ledger.commit.wait(1, ledger.sync)
    assert ledger.covered == [1]


def test_after_a_failure_every_wait_for_more_fails_at_once(ledger: Ledger) -> None:
    ledger.append()
    ledger.commit.wait(1, ledger.sync)
    ledger.commit.fail(LogFailed("the disk is gone"))
    ledger.commit.wait(1, ledger.sync)
    with pytest.raises(LogFailed):
        ledger.commit.wait(2, lambda: pytest.fail("a failed log was synced"))


def test_whoever_holds_the_right_to_sync_alone_is_not_joined(ledger: Ledger) -> None:
    """Sealing and truncating rely on it: nobody moves the mark or the end meanwhile."""
    inside = threading.Event()
    leave = threading.Event()

    def hold() -> None:
        with ledger.commit.exclusively():
            inside.set()
            assert leave.wait(SECONDS_MAX)

    holder = threading.Thread(target=hold, daemon=True)
    holder.start()
    assert inside.wait(SECONDS_MAX)
    offset, _ = ledger.append()
    waiter = threading.Thread(target=ledger.commit.wait, args=(offset, ledger.sync), daemon=True)
    waiter.start()
    assert ledger.covered == []
    leave.set()
    holder.join(SECONDS_MAX)
    waiter.join(SECONDS_MAX)
    assert not waiter.is_alive()
    assert ledger.covered == [1]
