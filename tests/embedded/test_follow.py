"""Following a log: records as they come, in order, and no work while none come."""

from __future__ import annotations

import errno
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.clocks import ManualClock
from support.disks import FaultPlan, FaultyFiles
from support.following import Follower
from support.logs import DATA, SMALL
from support.patience import SECONDS_MAX

import cordwood
from cordwood.disk.files import Files
from cordwood.disk.memory import MemoryFiles
from cordwood.errors import LogFailed, OffsetOutOfRange
from cordwood.records import Record
from cordwood.storage.directory.data_directory import DataDirectory
from cordwood.storage.log.partition_log import PartitionLog

NOW = 1_700_000_000_000


def open_log(files: Files, **options: Any) -> cordwood.Log:
    return cordwood.open(DATA, files=files, clock=ManualClock(NOW), **options)


class ObservedCondition(threading.Condition):
    """A condition that lets the test wait until someone waits on it, and counts how often they do.

    Who waits holds the lock until they are to be woken, so a record that comes after `wait_for_waiter`
    returned finds them waiting.
    """

    def __init__(self, lock: Any) -> None:
        super().__init__(lock)
        self.waits = 0
        self._waiter = threading.Semaphore(0)

    def wait(self, timeout: float | None = None) -> bool:
        self.waits += 1
        self._waiter.release()
        return super().wait(timeout)

    def wait_for_waiter(self, count: int = 1) -> None:
        for _ in range(count):
            assert self._waiter.acquire(timeout=SECONDS_MAX), "nobody waits"


def observe(log: cordwood.Log, partition: int = 0) -> ObservedCondition:
    """Watch who waits for records of a partition of t, which is made if it is not there."""
    found: PartitionLog = log.data_directory.partitions.own("t", partition)
    found.grown = condition = ObservedCondition(found.view_lock)
    return condition


def observe_unused(log: cordwood.Log) -> ObservedCondition:
    """Watch who waits for partitions to be made."""
    directory = log.data_directory
    assert isinstance(directory, DataDirectory)
    directory.partitions._used = condition = ObservedCondition(directory._guard)
    return condition


@pytest.fixture
def files() -> FaultyFiles:
    return FaultyFiles(MemoryFiles())


@pytest.fixture
def log(files: FaultyFiles) -> Iterator[cordwood.Log]:
    with open_log(files) as opened:
        yield opened


# --- What comes ----------------------------------------------------------------------------------


def test_records_come_as_they_are_appended_by_another_thread(log: cordwood.Log) -> None:
    topic = log.topic("t", config=SMALL)
    topic.append(b"0")
    follower = Follower(lambda: topic.read(follow=True))
    assert follower.wait_for(1) == [b"0"]
    for i in range(1, 50):
        topic.append(b"%d" % i, key=b"k", headers=[("h", b"1")], timestamp=i)
        # Each comes by itself: nothing is held back until more has come.
        assert follower.wait_for(i + 1)[-1] == b"%d" % i
    log.close()
    found = follower.end()
    assert [record.offset for record in found] == list(range(50))
    assert found[7] == Record(7, 7, b"k", b"7", (("h", b"1"),))


def test_a_follower_reads_what_is_there_first_and_goes_on_from_a_start(log: cordwood.Log) -> None:
    topic = log.topic("t")
    topic.append_many([(None, b"%d" % i) for i in range(10)])
    # Inside a batch, and at the very end.
    followers = {start: Follower(lambda s=start: topic.read(0, s, follow=True)) for start in (0, 7, 10)}  # type: ignore[misc]
    topic.append_many([(None, b"%d" % i) for i in range(10, 13)])
    for start, follower in followers.items():
        assert follower.wait_for(13 - start) == [b"%d" % i for i in range(start, 13)]
    log.close()
    for start, follower in followers.items():
        assert [record.offset for record in follower.end()] == list(range(start, 13))


@pytest.mark.parametrize("start", [-1, 2])
def test_a_start_outside_of_the_log_is_refused_at_once(log: cordwood.Log, start: int) -> None:
    topic = log.topic("t")
    topic.append(b"0")
    with pytest.raises(OffsetOutOfRange):
        topic.read(0, start, follow=True)


def test_a_follower_goes_on_across_segments(log: cordwood.Log) -> None:
    topic = log.topic("t")
    follower = Follower(lambda: topic.read(follow=True))
    for i in range(6):
        topic.append(b"%d" % i)
        topic.roll()
        topic.append(b"%d again" % i)
        follower.wait_for(2 * i + 2)
    log.close()
    assert [record.offset for record in follower.end()] == list(range(12))


@pytest.mark.called_only
def test_a_follower_sees_no_record_before_it_is_durable(log: cordwood.Log) -> None:
    """Each frame is shown by its commit, and a roll shows everything before it."""
    topic = log.topic("t")
    grown = observe(log)
    follower = Follower(lambda: topic.read(follow=True))
    grown.wait_for_waiter()
    partition = log.data_directory.partitions.own("t", 0)
    partition.append([(None, b"written")])
    assert (follower.records, grown.waits) == ([], 1)
    partition.commit()
    assert follower.wait_for(1) == [b"written"]
    grown.wait_for_waiter()
    partition.append([(None, b"rolled")])
    partition.roll()
    assert follower.wait_for(2) == [b"written", b"rolled"]


@pytest.mark.parametrize("sync", ["every:100", "never"])
def test_under_a_weaker_policy_records_come_when_they_are_written(files: FaultyFiles, sync: str) -> None:
    with open_log(files, sync=sync) as log:
        topic = log.topic("t")
        follower = Follower(lambda: topic.read(follow=True))
        for i in range(5):
            topic.append(b"%d" % i)
            follower.wait_for(i + 1)


def test_streams_are_followed_too(log: cordwood.Log) -> None:
    topic = log.topic("t")
    follower = Follower(lambda: topic.read(follow=True))
    topic.append_stream([b"in ", b"chunks"])
    assert follower.wait_for(1) == [b"in chunks"]


@pytest.mark.called_only
def test_the_first_records_of_a_topic_come_to_who_waited_for_them(log: cordwood.Log) -> None:
    """Following a topic that has no records yet makes nothing on disk and waits for the first."""
    topic = log.topic("t", 2)
    used = observe_unused(log)
    follower = Follower(lambda: topic.read(1, follow=True))
    used.wait_for_waiter()
    topic.append(b"elsewhere", partition=0)
    used.wait_for_waiter()
    for i in range(3):
        topic.append(b"%d" % i, partition=1)
        assert follower.wait_for(i + 1)[-1] == b"%d" % i


def test_since_starts_at_the_first_record_of_that_time(log: cordwood.Log) -> None:
    """By offset the first at or after the time, though times are out of order; all after it come."""
    topic = log.topic("t")
    times = [100, 300, 200, 500, 250, 400]
    topic.append_many([(None, b"%d" % when, (), when) for when in times])
    for since, start in ((0, 0), (101, 1), (300, 1), (301, 3), (500, 3), (501, 6)):
        follower = Follower(lambda s=since: topic.read(since=s, follow=True, stop=6))  # type: ignore[misc]
        assert [record.offset for record in follower.end()] == list(range(start, 6))
    follower = Follower(lambda: topic.read(since=301, follow=True))
    topic.append(b"new", timestamp=1_000)
    assert follower.wait_for(4) == [b"500", b"250", b"400", b"new"]


# --- How it waits --------------------------------------------------------------------------------


@pytest.mark.called_only
def test_a_follower_sleeps_until_a_record_comes(log: cordwood.Log) -> None:
    """It waits once for each record, and what happens elsewhere does not wake it."""
    topic = log.topic("t", 2)
    grown = observe(log)
    follower = Follower(lambda: topic.read(follow=True, stop=3))
    for i in range(3):
        grown.wait_for_waiter()
        assert grown.waits == i + 1
        for _ in range(300):
            topic.append(b"elsewhere", partition=1)
        assert (len(follower.records), grown.waits) == (i, i + 1)
        topic.append(b"%d" % i, partition=0)
        follower.wait_for(i + 1)
    assert len(follower.end()) == grown.waits == 3


@pytest.mark.called_only
def test_an_idle_follower_uses_no_processor_time(log: cordwood.Log) -> None:
    """While another thread computes for a good while, the follower's own clock stands still."""
    topic = log.topic("t")
    grown = observe(log)
    follower = Follower(lambda: topic.read(follow=True, stop=1))
    grown.wait_for_waiter()
    before = time.thread_time()
    busy = 0
    while time.thread_time() - before < 0.5:
        busy += 1
    topic.append(b"0")
    follower.end()
    assert grown.waits == 1
    assert follower.seconds < 0.1


def test_many_followers_get_everything(log: cordwood.Log) -> None:
    """Thirty-two of them, from several starts, behind four appending threads."""
    topic = log.topic("t", config={"segment.bytes": "2000"})
    topic.append_many([(None, b"before")] * 8)
    followers = [Follower(lambda s=i % 8: topic.read(0, s, 408, follow=True)) for i in range(32)]  # type: ignore[misc]

    def append(number: int) -> None:
        for i in range(100):
            topic.append(b"%d %d" % (number, i))

    threads = [threading.Thread(target=append, args=(number,), daemon=True) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS_MAX)
    everything = list(topic.read())
    assert len(everything) == 408
    for i, follower in enumerate(followers):
        assert follower.end() == everything[i % 8 :]


@pytest.mark.called_only
def test_one_record_wakes_all_who_wait(log: cordwood.Log) -> None:
    topic = log.topic("t")
    grown = observe(log)
    followers = [Follower(lambda: topic.read(follow=True, stop=1)) for _ in range(8)]
    grown.wait_for_waiter(8)
    topic.append(b"for all")
    assert all([record.value for record in follower.end()] == [b"for all"] for follower in followers)
    assert grown.waits == 8


# --- How it ends ---------------------------------------------------------------------------------


def test_a_follower_stops_at_stop(log: cordwood.Log) -> None:
    """Also where that is inside a batch, also when it is reached already."""
    topic = log.topic("t")
    topic.append_many([(None, b"%d" % i) for i in range(4)])
    assert [record.offset for record in topic.read(0, 1, 3, follow=True)] == [1, 2]
    assert list(topic.read(0, 2, 2, follow=True)) == list(topic.read(0, 3, 1, follow=True)) == []
    follower = Follower(lambda: topic.read(0, 3, 6, follow=True))
    topic.append_many([(None, b"%d" % i) for i in range(4, 9)])
    assert [record.offset for record in follower.end()] == [3, 4, 5]


@pytest.mark.parametrize("used", [True, False], ids=["a used partition", "an unused one"])
@pytest.mark.called_only
def test_a_follower_ends_when_the_log_is_closed(log: cordwood.Log, used: bool) -> None:
    topic = log.topic("t")
    condition = observe(log) if used else observe_unused(log)
    follower = Follower(lambda: topic.read(follow=True))
    condition.wait_for_waiter()
    log.close()
    assert follower.end() == []


@pytest.mark.called_only
def test_many_followers_end_when_the_log_is_closed(log: cordwood.Log) -> None:
    topic = log.topic("t")
    topic.append(b"0")
    grown = observe(log)
    followers = [Follower(lambda: topic.read(follow=True)) for _ in range(16)]
    grown.wait_for_waiter(16)
    log.close()
    assert all(len(follower.end()) == 1 for follower in followers)


@pytest.mark.called_only
def test_a_follower_is_told_when_a_sync_fails() -> None:
    """It does not wait for ever for records that cannot come, nor take the failure for the end."""
    syncs = frozenset({"sync"})
    with_none = FaultyFiles(MemoryFiles())
    with open_log(with_none) as log:
        log.topic("t").append(b"0")
        made = with_none.calls.count("sync")
    files = FaultyFiles(MemoryFiles(), FaultPlan(made + 1, syncs, errno.EIO))
    log = open_log(files)
    topic = log.topic("t")
    topic.append(b"0")
    grown = observe(log)
    follower = Follower(lambda: topic.read(follow=True))
    grown.wait_for_waiter()
    with pytest.raises(LogFailed):
        topic.append(b"lost")
    assert files.failures == 1
    with pytest.raises(LogFailed):
        follower.end()
    assert [record.value for record in follower.records] == [b"0"]
    with pytest.raises(LogFailed):
        log.close()


def test_a_follower_that_is_dropped_holds_nothing(log: cordwood.Log) -> None:
    topic = log.topic("t")
    topic.append_many([(None, b"0"), (None, b"1")])
    following = topic.read(follow=True)
    assert next(following).value == b"0"
    del following
    topic.append(b"2")
    topic.truncate(0, 1)


def test_a_follower_below_a_moved_log_start_is_told(log: cordwood.Log) -> None:
    """What it had not read yet is gone, and it does not skip over that in silence."""
    topic = log.topic("t", config=SMALL)
    for i in range(12):
        topic.append(b"%d" % i)
    following = topic.read(0, 2, follow=True, stop=3)
    late = topic.read(0, 0, follow=True)
    assert [record.offset for record in following] == [2]
    topic.advance_log_start(0, 9)
    with pytest.raises(OffsetOutOfRange):
        next(late)


# --- Beside a writer -----------------------------------------------------------------------------


def test_a_read_only_follower_gets_what_the_writer_publishes(files: FaultyFiles, log: cordwood.Log) -> None:
    topic = log.topic("t", config=SMALL)
    with open_log(files, read_only=True) as reader:
        # Neither the partition nor a record is there yet.
        follower = Follower(lambda: reader.topic("t").read(follow=True))
        for i in range(20):
            topic.append(b"%d" % i)
        assert follower.wait_for(20) == [b"%d" % i for i in range(20)]
        topic.roll()
        topic.append(b"rolled")
        assert follower.wait_for(21)[-1] == b"rolled"
    assert [record.offset for record in follower.end()] == list(range(21))


def test_a_read_only_follower_ends_when_it_is_closed(files: FaultyFiles, log: cordwood.Log) -> None:
    log.topic("t").append(b"0")
    reader = open_log(files, read_only=True)
    follower = Follower(lambda: reader.topic("t").read(follow=True))
    follower.wait_for(1)
    reader.close()
    assert len(follower.end()) == 1


WRITER = textwrap.dedent(
    """
    import sys, cordwood
    log = cordwood.open(sys.argv[1])
    topic = log.topic("t", config={"segment.bytes": "2000"})
    print("ready", flush=True)
    for line in sys.stdin:
        if line == "roll\\n":
            topic.roll()
        else:
            topic.append(line.strip().encode(), timestamp=topic.log_end_offset() * 10)
        print("done", flush=True)
    log.close()
    """
)


class Writer:
    """A process that appends what it is told."""

    def __init__(self, path: Path) -> None:
        arguments = [sys.executable, "-c", WRITER, str(path)]
        self._process = subprocess.Popen(
            arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        assert self._answer() == "ready\n"

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        assert self._answer() == "done\n"

    def close(self) -> int:
        self._process.communicate(timeout=SECONDS_MAX)
        return self._process.returncode

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()


def test_a_follower_beside_a_writer_process_gets_its_records(tmp_path: Path) -> None:
    """From before its first record, across a roll, and after the writer has closed and come again."""
    writer = Writer(tmp_path / "data")
    try:
        with cordwood.open(tmp_path / "data", read_only=True) as reader:
            topic = reader.topic("t")
            follower = Follower(lambda: topic.read(follow=True))
            for i in range(5):
                writer.tell(f"{i}")
                assert follower.wait_for(i + 1)[-1] == b"%d" % i
            writer.tell("roll")
            writer.tell("5")
            assert follower.wait_for(6)[-1] == b"5"
            late = Follower(lambda: topic.read(since=25, follow=True, stop=8))
            assert late.wait_for(3) == [b"3", b"4", b"5"]
            assert writer.close() == 0
            writer = Writer(tmp_path / "data")
            writer.tell("6")
            writer.tell("7")
            assert [record.offset for record in late.end()] == [3, 4, 5, 6, 7]
            follower.wait_for(8)
        assert [record.value for record in follower.end()] == [b"%d" % i for i in range(8)]
        assert writer.close() == 0
    finally:
        writer.kill()


def test_a_follower_outlives_a_killed_writer(tmp_path: Path) -> None:
    """What was acknowledged comes, once, and then what the next writer appends."""
    writer = Writer(tmp_path / "data")
    writer.tell("0")
    with cordwood.open(tmp_path / "data", read_only=True) as reader:
        follower = Follower(lambda: reader.topic("t").read(follow=True))
        writer.tell("1")
        follower.wait_for(2)
        writer.kill()
        with cordwood.open(tmp_path / "data") as log:
            assert log.topic("t").append(b"2").offset == 2
        assert follower.wait_for(3) == [b"0", b"1", b"2"]
