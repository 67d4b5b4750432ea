"""Crash enumeration of retention and compaction: the old segments or the new ones, never a mix.

`CORDWOOD_CRASH_LIMIT` sets how many images are looked at per power cut (0 is all of them); by default one.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest
from support.clocks import ManualClock
from support.crashes import CrashCount, CrashImage, Violation, again, crash_images, survives, violation_of
from support.disks import RecordingFile, RecordingFiles

import cordwood
from cordwood.disk.files import Files
from cordwood.disk.memory import MemoryFiles
from cordwood.disk.watched import WatchedFile
from cordwood.embedded import Log, Topic
from cordwood.errors import CordwoodError
from cordwood.records import Record
from cordwood.storage.log.changes import swapping, truncation
from cordwood.storage.log.partition_log import PartitionLog
from cordwood.storage.log.segment import segment_path, segments_directory
from cordwood.storage.log.state import read_state, swapped_state
from cordwood.storage.maintenance import compactor, rewriting
from cordwood.verify import verify_directory

LIMIT = int(os.environ.get("CORDWOOD_CRASH_LIMIT", "1")) or None
DATA = "/data"
HOUR = 3_600_000
CONFIG = {
    "cleanup.policy": "compact,delete",
    "segment.bytes": "400",
    "min.cleanable.dirty.ratio": "0",
    "delete.retention.ms": str(HOUR),
    "index.interval.bytes": "100",
}
Row = tuple[bytes, bytes | None]


class Promise(NamedTuple):
    """What was acknowledged: all rows so far, by offset, and where the log starts at least."""

    rows: tuple[Row, ...]
    log_start: int
    #: Whether tombstones may have gone, and which offsets were compacted away before a truncation.
    tombstones_may_go: bool
    gone: frozenset[int]


class Work:
    """A workload, and what it is promised as it goes."""

    def __init__(self, files: RecordingFiles) -> None:
        self.files = files
        self.clock = ManualClock()
        self.rows: list[Row] = []
        self.log_start = 0
        self.tombstones_may_go = False
        self.gone: frozenset[int] = frozenset()
        self.open()

    def open(self) -> None:
        self.log: Log = cordwood.open(DATA, files=self.files, clock=self.clock)
        self.topic: Topic = self.log.topic("t", config=CONFIG)

    def append(self, *rows: Row) -> None:
        # Noted before: a power cut may keep what was not acknowledged.
        self.rows += rows
        self.topic.append_many(list(rows), partition=0)
        self.promise()

    def promise(self) -> None:
        self.files.acknowledge(Promise(tuple(self.rows), self.log_start, self.tombstones_may_go, self.gone))

    def maintain(self) -> None:
        report = self.log.maintain(force=True)
        assert report.failures == ()
        self.promise()

    def forget_from(self, offset: int) -> None:
        """Promise only what lies below *offset* and was not compacted away."""
        there = {record.offset for record in self.topic.read(0)}
        self.rows = self.rows[:offset]
        self.gone = frozenset(range(offset)) - there
        self.promise()

    def let_tombstones_go(self) -> None:
        self.tombstones_may_go = True
        self.promise()
        self.clock.advance(HOUR)


def keyed(count: int, keys: int, turn: int) -> list[Row]:
    return [(b"k%d" % (number % keys), b"%d of turn %d" % (number, turn)) for number in range(count)]


def compacting(files: RecordingFiles) -> None:
    """Groups that merge, one that stays, tombstones that wait and then go, a restart in between."""
    work = Work(files)
    for turn in range(2):
        for row in keyed(9, 4, turn):
            work.append(row)
        work.append((b"k1", None), (b"only %d" % turn, b"once"))
        work.topic.roll()
        work.maintain()
    work.log.close()
    work.open()
    work.let_tombstones_go()
    work.append((b"k0", b"last"))
    work.topic.roll()
    work.maintain()
    work.append((b"k2", b"after"))


def expiring(files: RecordingFiles) -> None:
    """Segments go by size and by age, between appends."""
    work = Work(files)
    for turn in range(3):
        for row in keyed(6, 50, turn):
            work.append(row)
        work.topic.roll()
    directory = work.log.data_directory
    directory.topics.alter("t", config={**CONFIG, "retention.bytes": "700"})
    first_kept = expected_start(work)
    work.log_start = 0
    work.promise()
    (expired,) = work.log.maintain().expired
    assert expired.log_start_offset == first_kept > 0
    work.log_start = first_kept
    work.append((b"new", b"row"))
    directory.topics.alter("t", config={**CONFIG, "retention.ms": "1000"})
    work.clock.advance(2000)
    # Idle as it is, the active segment is sealed and goes too.
    work.log.maintain()
    work.log_start = len(work.rows)
    work.append((b"newest", b"row"))


def expected_start(work: Work) -> int:
    log = work.log.data_directory.partitions.own("t", 0)
    left, start = log.size(), 0
    for info in log.state.sealed:
        if left - info.size < 700:
            break
        left, start = left - info.size, info.next_offset
    return start


def cutting(files: RecordingFiles) -> None:
    """A truncation that makes a compacted segment active again, appends to it, and compacts once more."""
    work = Work(files)
    for row in keyed(12, 3, 0):
        work.append(row)
    work.topic.roll()
    work.maintain()
    work.append((b"k9", b"x"))
    # What was dropped before does not come back: of those keys nothing is left below the cut.
    work.forget_from(10)
    work.topic.truncate(0, 10)
    work.append((b"k8", b"in the place of another"))
    work.log.close()
    work.open()
    work.append((b"k1", b"y"))
    work.topic.roll()
    work.maintain()


WORKLOADS: list[Callable[[RecordingFiles], None]] = [compacting, expiring, cutting]


def check(image: CrashImage) -> None:
    """Nothing acknowledged is lost but what a policy may take; what is there is what was written."""
    promise = next((p for p in reversed(image.acknowledged) if isinstance(p, Promise)), None)
    check_records(opened_and_read(image.files), promise)
    report = verify_directory(image.files, DATA)
    assert not report.corrupt, f"I3: {report.findings}"
    # Once more, and upkeep goes on from here.
    log = cordwood.open(DATA, files=image.files, clock=ManualClock())
    if "t" in log.topics:
        failures = log.maintain(force=True).failures
        assert failures == (), f"R3: {failures}"
        check_records(list(log.topic("t").read(0, log.topic("t").log_start_offset(0))), promise)
    log.close()


def opened_and_read(files: Files) -> list[Record]:
    log = cordwood.open(DATA, files=files, clock=ManualClock())
    try:
        if "t" not in log.topics:
            return []
        topic = log.topic("t")
        return list(topic.read(0, topic.log_start_offset(0)))
    finally:
        log.close()


def check_records(found: list[Record], promise: Promise | None) -> None:
    offsets = [record.offset for record in found]
    assert offsets == sorted(set(offsets)), "O1: offsets do not rise"
    if promise is None:
        return
    for record in found:
        if record.offset < len(promise.rows):
            key, value = promise.rows[record.offset]
            assert (record.key, record.value) == (key, value), f"O3: offset {record.offset} has changed"
    there = {record.offset for record in found}
    last_there = {record.key: record.offset for record in found}
    for offset, (key, value) in enumerate(promise.rows):
        if offset in there or offset in promise.gone or last_there.get(key, -1) > offset:
            continue
        if promise.tombstones_may_go and superseded_by_a_tombstone(promise.rows, offset):
            continue
        below = min(there, default=None)
        if promise.log_start and offset < promise.log_start:
            continue
        if may_expire(promise, offset, below):
            continue
        raise AssertionError(f"D1: the record at offset {offset} is gone: {(key, value)}")


def superseded_by_a_tombstone(rows: tuple[Row, ...], offset: int) -> bool:
    key = rows[offset][0]
    return any(value is None for at, value in ((k, v) for k, v in rows[offset:]) if at == key)


def may_expire(promise: Promise, offset: int, first_there: int | None) -> bool:
    """A deletion that was decided, and not acknowledged yet, may have happened: whole, from the start on."""
    return EXPIRING and (first_there is None or offset < first_there)


EXPIRING = False


@contextlib.contextmanager
def allowing_expiry(workload: Callable[[RecordingFiles], None]) -> Iterator[None]:
    with patch(f"{__name__}.EXPIRING", workload is expiring):
        yield


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.__name__)
def test_no_power_cut_leaves_a_mix_of_old_and_new_segments(
    workload: Callable[[RecordingFiles], None],
) -> None:
    """C3, D1, R1, R3 on every disk, and once more after upkeep went on there."""
    count = CrashCount()
    with allowing_expiry(workload):
        violation = survives(workload, check, images_max=1 << 30, limit_per_prefix=LIMIT, count=count)
    assert violation is None, violation
    print("\n".join(count.report()))
    count.require(350)


def test_no_power_cut_while_a_swap_is_finished_does_either() -> None:
    """Recovery that finishes a swap can be cut anywhere too."""
    recording = RecordingFiles(MemoryFiles())
    compacting(recording)
    count, cut = CrashCount(), 0
    seen: set[int] = set()
    for image in crash_images(recording, limit_per_prefix=1):
        if image.prefix in seen or image.prefix % 2 or not swap_is_open(image.files):
            continue
        seen.add(image.prefix)
        cut += 1
        second = again(image)
        with contextlib.closing(cordwood.open(DATA, files=second, clock=ManualClock())) as log:
            list(log.topic("t").read(0))
        for after in crash_images(second, limit_per_prefix=LIMIT, count=count):
            check(after)
    print(f"{cut} recoveries cut", *count.report(), sep="\n")
    assert cut >= 10
    assert count.total >= 60


def swap_is_open(files: Files) -> bool:
    path = f"{DATA}/topics/t/0/partition.json"
    with contextlib.suppress(Exception):
        return read_state(files, path.rpartition("/")[0]).swapping is not None
    return False


# --- planted bugs ---------------------------------------------------------------------------------


def bug_of_swap_not_synced() -> Any:
    """The new log is not synced before it is committed."""
    original = rewriting._Output

    class Unsynced(original):  # type: ignore[misc, valid-type]
        def __init__(self, file: Any, *arguments: Any) -> None:
            super().__init__(file, *arguments)
            # Only the disk that is recorded is to lose something, not those that are looked at afterwards.
            inner = file._inner if isinstance(file, WatchedFile) else file
            if isinstance(inner, RecordingFile):
                inner.sync = lambda: None  # type: ignore[method-assign]

    return patch.object(rewriting, "_Output", Unsynced)


def bug_of_names_not_synced() -> Any:
    """The names of prepared files are not synced before the commit."""
    return patch.object(compactor, "segments_directory", lambda directory: directory)


def bug_of_renaming_before_the_commit() -> Any:
    """The new log takes its name before partition.json says so."""
    original = swapping.commit_swap

    def commit(files: Any, directory: str, state: Any, info: Any) -> Any:
        path = swapping.swap_path(directory, info.base, "log")
        files.rename(path, segment_path(directory, info.base, "log"))
        files.sync_directory(segments_directory(directory))
        return original(files, directory, state, info)

    return patch.object(swapping, "commit_swap", commit)


def bug_of_no_commit() -> Any:
    """The state is not written at all before files are replaced."""
    return patch.object(
        swapping,
        "commit_swap",
        lambda files, directory, state, info: swapped_state(state, info),
    )


def bug_of_dropping_unknown_keys() -> Any:
    """Tombstones go at once, while older records of their keys may be left elsewhere."""
    return patch.object(rewriting, "is_tombstone_due", lambda info, config, now_ms: True)


def bug_of_files_before_the_log_start() -> Any:
    """Segment files go before the log start moves."""
    original = PartitionLog.advance_log_start

    def advance(self: PartitionLog, offset: int) -> None:
        bases = [info.base for info in self.state.sealed if info.next_offset <= offset]
        truncation.remove_segments(self.context.files, self.directory, bases)
        original(self, offset)

    return patch.object(PartitionLog, "advance_log_start", advance)


BUGS: dict[str, tuple[Callable[[], Any], Callable[[RecordingFiles], None]]] = {
    "the new log is not synced": (bug_of_swap_not_synced, compacting),
    "the new names are not synced": (bug_of_names_not_synced, compacting),
    "renamed before the commit": (bug_of_renaming_before_the_commit, compacting),
    "no commit": (bug_of_no_commit, compacting),
    "tombstones go at once": (bug_of_dropping_unknown_keys, compacting),
    "files go before the log start moves": (bug_of_files_before_the_log_start, expiring),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_of_upkeep_is_caught(bug: str) -> None:
    plant, workload = BUGS[bug]
    violation: Violation | None
    with plant(), allowing_expiry(workload):
        try:
            violation = survives(workload, check, images_max=1 << 30, seed=0, limit_per_prefix=LIMIT)
        except CordwoodError as error:  # The workload itself may meet the bug.
            violation = violation_of(error)
    assert violation is not None, f"{bug}: not caught"
    print(f"caught: {bug}: {violation}")
