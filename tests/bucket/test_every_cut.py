"""Whenever a piece is cut, recovery makes of the copy what it makes of a crashed disk. Rule 1, K1, K3.

The workloads are those of the crash enumeration. Their histories of disk operations are repeated on files
that note what becomes durable. After each operation, or a sample of them, all of that is shipped to a bucket,
and a disk made from the bucket is held to the promises made by then.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest
from crash import (
    test_crash_engine,
    test_crash_formats,
    test_crash_maintenance,
    test_crash_shared,
    test_crash_sink,
    test_crash_transactions,
)
from support.crashes import CrashImage
from support.disks import Acknowledged, RecordingFiles
from support.producing import snapshots_every
from support.promises import Run, check_promises
from support.publishing import adopting, check_sink
from support.shipped import Repeater, ShippedTree, restored

from cordwood.bucket.stores import MemoryStore
from cordwood.disk import MemoryFiles

#: After how many operations a piece is cut, on average.
STRIDE = 1 if os.environ.get("CORDWOOD_SWEEP_FULL") == "1" else 5


def cuts(recording: RecordingFiles) -> Iterator[CrashImage]:
    """Yield the disk that the bucket has after each cut, with what was promised before it."""
    shipped = ShippedTree(MemoryFiles(), MemoryStore())
    repeater, acknowledged = Repeater(shipped.files), tuple[object, ...]()
    for prefix, operation in enumerate(recording.history, 1):
        repeater.apply(operation)
        if isinstance(operation, Acknowledged):
            acknowledged += (operation.what,)
        if prefix < recording.began:
            continue
        # Pieces between cuts that are looked at, too: their sum must be the same.
        if prefix % 2:
            shipped.ship()
        if prefix % 31 == 0:
            shipped.own()
        if prefix % STRIDE == 0 or prefix == len(recording.history):
            shipped.ship()
            yield CrashImage(restored(shipped.store), "shipped", prefix, acknowledged, bytes([prefix % 256]))


def look_at(workloads: list[tuple[Run, Callable[[CrashImage], None]]], least: int) -> None:
    looked = 0
    for workload, check in workloads:
        recording = RecordingFiles(MemoryFiles())
        workload(recording)
        for image in cuts(recording):
            looked += 1
            try:
                check(image)
            except Exception as error:
                place = f"{workload.__name__}: shipped after {image.prefix} operations"
                raise AssertionError(f"{place}: {error}") from error
    print(f"{looked} cuts looked at")
    assert looked >= least


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Preallocate and sync the mark in steps that a small workload reaches."""
    test_crash_engine.small_steps.__wrapped__(monkeypatch)  # type: ignore[attr-defined]


def test_a_piece_cut_at_any_moment_has_what_was_acknowledged_before() -> None:
    runs = [*test_crash_engine.WORKLOADS, *test_crash_engine.PRODUCERS, *test_crash_engine.REPLACEMENTS]
    look_at([(run, test_crash_engine.check_of(run)) for run in runs], 400)


@pytest.mark.parametrize("name", ["frame", "rustlog", "kimberlite", "laminarmq"])
def test_so_has_one_of_a_topic_in_another_format(name: str) -> None:
    look_at([(test_crash_formats.a_life_of(name), check_promises)], 20)


def test_so_has_one_cut_during_retention_and_compaction() -> None:
    work = test_crash_maintenance
    with work.allowing_expiry(work.expiring):
        look_at([(work.expiring, work.check)], 10)
    look_at([(work.compacting, work.check), (work.cutting, work.check)], 20)


def test_so_has_one_of_the_shared_log_of_three_tenants() -> None:
    work = test_crash_shared
    runs = [work.coming_and_going, work.copying_forward, work.removing_from_the_middle, work.killed_writers]
    runs += [work.transactions_of_two_tenants, work.transactions_copied_forward]
    look_at([(run, work.check) for run in runs], 100)


def test_so_has_one_of_transactions() -> None:
    work = test_crash_transactions
    with snapshots_every(150):
        look_at([(run, work.check) for run in work.WORKLOADS], 100)


@pytest.mark.parametrize("way_in", test_crash_sink.WAYS_IN)
def test_so_has_one_of_a_batch_of_sparks_sink(way_in: str) -> None:
    """The staged files are there with the intent that promises them (E2)."""
    with adopting(test_crash_sink.WAYS_IN[way_in]):
        look_at([(run, check_sink) for run in test_crash_sink.WORKLOADS], 60)
