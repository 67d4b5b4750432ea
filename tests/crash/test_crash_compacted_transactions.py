"""Crash enumeration of compaction with transactions: no power cut loses or shows what it must not.

The newest committed record of each key is there after every cut, and never one of an aborted transaction.
`CORDWOOD_CRASH_LIMIT` sets how many images are looked at per power cut (0 is all of them).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import pytest
from support.clocks import ManualClock
from support.crashes import CrashCount, CrashImage, again, crash_images, survives, violation_of
from support.disks import RecordingFiles
from support.producing import DATA, Bench, Sent
from support.transactions import committed_records, end_transaction, send_rows

from cordwood.disk.memory import MemoryFiles
from cordwood.errors import CordwoodError
from cordwood.index import AbortedIndex
from cordwood.storage.log import PartitionLog
from cordwood.storage.maintenance import compactor, rewriting
from cordwood.storage.maintenance.transactions import FollowedTransactions, MarkerUse
from cordwood.verify import verify_directory

LIMIT = int(os.environ.get("CORDWOOD_CRASH_LIMIT", "1")) or None
STRIDE = 1 if LIMIT is None else 40
HOUR = 3_600_000
SETTINGS = {
    "cleanup.policy": "compact",
    "segment.bytes": "500",
    "index.interval.bytes": "100",
    "min.cleanable.dirty.ratio": "0",
    "delete.retention.ms": str(HOUR),
    "cordwood.chain": "false",
}
ABORTED = b"aborted"


@dataclass(frozen=True)
class Newest:
    """The newest committed number of each key that was acknowledged; larger ones may be there."""

    numbers: dict[bytes, int]


class Work:
    """One producer with transactions after each other, and compaction in between."""

    def __init__(self, files: RecordingFiles) -> None:
        self.files = files
        self.bench = Bench(files, SETTINGS, ManualClock())
        self.log = self.bench.open()
        self.written = 0
        self.newest: dict[bytes, int] = {}

    def transact(self, *keys: bytes, committed: bool, synced: bool = True) -> None:
        """Append a record for each key in a transaction, and end it."""
        rows = []
        for key in keys:
            self.written += 1
            rows.append((key, b"%d" % self.written if committed else ABORTED))
        send_rows(self.log, Sent(1, 0, self.written - len(keys), ()), list(rows))
        self.log.commit()
        end_transaction(self.log, 1, committed=committed)
        if synced:
            self.log.commit()
            if committed:
                self.newest |= {key: int(value) for key, value in rows}
                self.promise()

    def promise(self) -> None:
        self.files.acknowledge(Newest(dict(self.newest)))

    def compact(self) -> None:
        assert self.bench.data.maintenance.maintain_all(force=True).failures == ()
        self.promise()


def compacting(files: RecordingFiles) -> None:
    """Groups that merge, aborted records that go, markers that wait and then go, a restart between."""
    work = Work(files)
    for turn in range(2):
        for number in range(2):
            work.transact(b"k%d" % number, b"both", committed=True)
            work.transact(b"k%d" % number, b"only %d" % turn, committed=False)
        work.log.roll()
        work.compact()
    work.bench.close()
    work.log = work.bench.open()
    work.bench.clock.advance(HOUR)
    work.transact(b"k0", committed=True)
    work.log.roll()
    work.compact()
    work.bench.clock.advance(HOUR)
    work.compact()
    work.transact(b"k1", committed=True)


def with_one_open(files: RecordingFiles) -> None:
    """A transaction that is open while segments before and after its first record are sealed."""
    work = Work(files)
    work.transact(b"k0", b"k1", committed=True)
    work.transact(b"k0", committed=True)
    work.log.roll()
    send_rows(work.log, Sent(2, 0, 0, ()), [(b"k0", ABORTED), (b"k1", ABORTED)])
    # Nothing is promised of it: it is not stable while the other is open.
    work.transact(b"k2", committed=True, synced=False)
    work.log.roll()
    work.compact()
    end_transaction(work.log, 2, committed=False)
    work.log.commit()
    work.newest[b"k2"] = work.written
    work.promise()
    work.log.roll()
    work.compact()
    work.transact(b"k0", committed=True)


def with_a_marker_not_synced(files: RecordingFiles) -> None:
    """A transaction in sealed segments whose marker no sync has covered when compaction begins."""
    work = Work(files)
    work.transact(b"k0", committed=True)
    work.transact(b"k0", committed=True)
    work.written += 1
    send_rows(work.log, Sent(1, 0, work.written - 1, ()), [(b"k0", b"%d" % work.written)])
    work.log.roll()
    work.log.commit()
    end_transaction(work.log, 1, committed=True)
    work.compact()
    work.transact(b"k1", committed=True)


Run = Callable[[RecordingFiles], None]
WORKLOADS: list[Run] = [compacting, with_one_open, with_a_marker_not_synced]


def check(image: CrashImage) -> None:
    """Check the committed view after the cut, what verify says, and both again after a compaction."""
    promise = next((p for p in reversed(image.acknowledged) if isinstance(p, Newest)), Newest({}))
    bench = Bench(image.files, SETTINGS, ManualClock())
    check_view(bench.open(), promise)
    bench.close()
    report = verify_directory(image.files, DATA)
    assert report.sound, f"I3: {report.findings}"
    log = bench.open()
    failures = bench.data.maintenance.maintain_all(force=True).failures
    assert failures == (), f"R3: {failures}"
    check_view(log, promise)
    bench.close()


def check_view(log: PartitionLog, promise: Newest) -> None:
    found = committed_records(log, 300)
    assert ABORTED not in {record.value for record in found}, "X1: a record of an aborted transaction"
    newest = {record.key: int(record.value or b"0") for record in found}
    for key, number in promise.numbers.items():
        assert newest.get(key, -1) >= number, f"D1: {key!r} has {newest.get(key)}, not {number}"


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.__name__)
def test_no_power_cut_of_compaction_changes_what_is_committed(workload: Run) -> None:
    # With fewer, a small workload may have no disk with one of the kinds.
    count, limit = CrashCount(), None if LIMIT is None else 2 * LIMIT
    violation = survives(workload, check, images_max=1 << 30, limit_per_prefix=limit, count=count)
    assert violation is None, violation
    print("\n".join(count.report()))
    count.require(60)


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.__name__)
def test_no_power_cut_of_what_follows_a_power_cut_changes_what_is_committed(workload: Run) -> None:
    """R3: opening after a cut, and the compaction after that, can be cut too."""
    count, seconds = CrashCount(), 0
    recording = RecordingFiles(MemoryFiles())
    workload(recording)
    for number, first in enumerate(crash_images(recording, limit_per_prefix=LIMIT)):
        if number % STRIDE:
            continue
        seconds += 1
        second = again(first)
        bench = Bench(second, SETTINGS, ManualClock())
        bench.open()
        assert bench.data.maintenance.maintain_all(force=True).failures == ()
        for cut in crash_images(second, limit_per_prefix=LIMIT, count=count):
            try:
                check(cut)
            except Exception as error:
                raise AssertionError(f"{violation_of(error, cut.kind, cut.prefix)}") from error
    print("\n".join([f"{seconds} disks that recovery began with", *count.report()]))
    count.require(10, kinds=())


# --- planted bugs ---------------------------------------------------------------------------------


def bug_of_aborted_records_that_supersede() -> Any:
    """An aborted record takes the place of the committed one before it."""
    return patch.object(compactor, "aborted_rows", lambda table, aborted: [])


def bug_of_compacting_an_open_transaction() -> Any:
    """Segments past the last stable offset are compacted."""
    return patch.object(
        compactor, "compactable", lambda view, up_to=None: [each.info for each in view.segments[:-1]]
    )


def bug_of_markers_that_go_too_early() -> Any:
    """A marker goes although records of its transaction are left."""
    return every_one(
        patch.object(FollowedTransactions, "end", lambda self, producer_id: MarkerUse.UNNEEDED),
        patch.object(rewriting, "is_tombstone_due", lambda info, config, now_ms: True),
    )


def bug_of_a_marker_that_is_not_synced() -> Any:
    """What a marker says counts before it is synced."""
    return patch.object(compactor, "settled_view", lambda log: log.view)


def bug_of_a_lost_index() -> Any:
    """Aborted records stay, and the new segment says that it has no index of them."""
    return every_one(
        patch.object(rewriting, "aborted_rows", lambda table, aborted: []),
        patch.object(rewriting, "_aborted_left", lambda work, infos, output: AbortedIndex()),
    )


@contextlib.contextmanager
def every_one(*patches: Any) -> Any:
    """Apply all of *patches*."""
    with contextlib.ExitStack() as stack:
        for each in patches:
            stack.enter_context(each)
        yield


@pytest.mark.parametrize(
    ("bug", "workload"),
    [
        (bug_of_aborted_records_that_supersede, compacting),
        (bug_of_compacting_an_open_transaction, with_one_open),
        (bug_of_markers_that_go_too_early, compacting),
        (bug_of_a_marker_that_is_not_synced, with_a_marker_not_synced),
        (bug_of_a_lost_index, compacting),
    ],
    ids=lambda each: each.__name__,
)
def test_a_planted_bug_is_caught(bug: Callable[[], Any], workload: Run) -> None:
    with bug():
        try:
            violation = survives(workload, check, images_max=1 << 30, limit_per_prefix=LIMIT)
        except (AssertionError, CordwoodError) as error:
            violation = violation_of(error)
    assert violation is not None
