"""A standby's directory is the log in the bucket, whatever happened to the log and to the standby. Rule 2.

The workloads are those of the crash enumeration: rolls, compaction, truncation, deleted topics, the shared
log and transactions. Their histories of disk operations are repeated on a directory that is shipped.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from crash import test_crash_engine, test_crash_maintenance, test_crash_shared, test_crash_transactions
from support.crashes import crash_images
from support.disks import Acknowledged, RecordingFiles, Write
from support.producing import snapshots_every
from support.promises import Run
from support.shipped import SMALL_LIMITS, Repeater, ShippedTree, restored
from support.standbys import SteppedStandby, follow, shipped_part

from cordwood.bucket.attaching import read_record
from cordwood.bucket.shipping import ShippingLimits
from cordwood.bucket.stores import MemoryStore
from cordwood.disk import MemoryFiles

#: After how many operations a piece is shipped, and how many pieces a standby is behind at most.
STRIDE = 1 if os.environ.get("CORDWOOD_SWEEP_FULL") == "1" else 7
IMAGES_PER_CUT = 1
#: Pages are written after few pieces, and what they replace is there for a while.
KEPT = ShippingLimits(pieces_max=7)
#: Pages are never written, so a standby that starts again has all pieces.
ONLY_PIECES = ShippingLimits(pieces_max=1 << 30)
DATA = "/data"


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Preallocate and sync the mark in steps that a small workload reaches."""
    test_crash_engine.small_steps.__wrapped__(monkeypatch)  # type: ignore[attr-defined]


def shipping(workload: Run, shipped: ShippedTree) -> Iterator[None]:
    """Do *workload* on *shipped* and yield after some pieces."""
    recording = RecordingFiles(MemoryFiles())
    workload(recording)
    repeater = Repeater(shipped.files)
    for prefix, operation in enumerate(recording.history, 1):
        if isinstance(operation, Acknowledged):
            continue
        repeater.apply(operation)
        if prefix % STRIDE == 0:
            shipped.shipper.ship()
        if prefix % (STRIDE * 5) == 0:
            shipped.shipper.condense_if_due()
        if prefix % (STRIDE * 11) == 0:
            shipped.own()
        if prefix % (STRIDE * 3) == 0:
            yield
    shipped.ship()
    yield


def follow_all(workloads: list[Run], least: int) -> None:
    looks = 0
    for number, workload in enumerate(workloads):
        store, disk = MemoryStore(), MemoryFiles()
        # What a standby needs is gone in every third, and it must look at everything again.
        limits = KEPT if number % 3 else SMALL_LIMITS
        shipped = ShippedTree(MemoryFiles(), store, limits=limits)

        def steps(
            workload: Run = workload, shipped: ShippedTree = shipped, disk: MemoryFiles = disk
        ) -> Iterator[None]:
            nonlocal looks
            for number, _ in enumerate(shipping(workload, shipped)):
                yield
                looks += 1
                expected = shipped_part(restored(shipped.store))
                assert shipped_part(disk) == expected, f"{workload.__name__} at look {number}"

        follower = SteppedStandby(store, disk, steps())
        assert follower.run() is None
        compared = [each for each in follower.warnings if "compared" in each]
        assert limits is SMALL_LIMITS or not compared, f"{workload.__name__}: {compared}"
    print(f"{looks} copies looked at")
    assert looks >= least


def test_the_copy_is_the_log_through_rolls_truncations_and_deleted_topics() -> None:
    work = test_crash_engine
    follow_all([holes, *work.WORKLOADS, *work.PRODUCERS, *work.REPLACEMENTS], 100)


def test_the_copy_is_the_log_through_retention_and_compaction() -> None:
    work = test_crash_maintenance
    with work.allowing_expiry(work.expiring):
        follow_all([work.expiring, work.compacting, work.cutting], 10)


def test_the_copy_is_the_log_through_the_life_of_shared_topics() -> None:
    work = test_crash_shared
    runs = [work.coming_and_going, work.copying_forward, work.removing_from_the_middle, work.killed_writers]
    follow_all([*runs, work.transactions_of_two_tenants, work.transactions_copied_forward], 30)


def test_the_copy_is_the_log_through_transactions() -> None:
    with snapshots_every(150):
        follow_all(list(test_crash_transactions.WORKLOADS), 20)


def holes(files: RecordingFiles) -> None:
    """A file that is cut and lengthened within one piece, over and over: zeros between what is written."""
    files.make_directories(f"{DATA}/topics/t")
    file = files.open(f"{DATA}/topics/t/holes", "create")
    for number in range(1, 13):
        file.write_at(40 * number, [bytes([number]) * 100])
        file.sync()
        if number < 8:
            file.truncate(20 * number)
        file.preallocate(60 * number + 200)
        file.write_at(60 * number + 150, [bytes([number]) * 9])
        file.sync()
        for _ in range(STRIDE):
            files.sync_directory(f"{DATA}/topics/t")
    file.close()


CRASHED = [
    holes,
    *test_crash_engine.WORKLOADS[:3],
    test_crash_shared.coming_and_going,
    test_crash_maintenance.compacting,
]


@pytest.mark.parametrize("limits", [ONLY_PIECES, SMALL_LIMITS], ids=["pieces", "pages"])
@pytest.mark.parametrize("workload", CRASHED, ids=lambda run: run.__name__)
def test_a_standby_goes_on_after_a_power_cut_at_any_moment(workload: Run, limits: ShippingLimits) -> None:
    """Whatever part of the last pieces is on its disk, and whether or not all pieces are still there."""
    store, recording = MemoryStore(), RecordingFiles(MemoryFiles())
    shipped = ShippedTree(MemoryFiles(), store, limits=limits)
    assert follow(store, recording, shipping(workload, shipped)) is None
    expected = shipped_part(restored(store))
    assert shipped_part(recording) == expected
    images = went_on = 0
    for image in crash_images(recording, limit_per_prefix=None if workload is holes else IMAGES_PER_CUT):
        images += 1
        record = read_record(image.files, DATA) if image.files.exists(f"{DATA}/meta/bucket.json") else None
        copied = record is not None and record.copied is not None and record.copied.next_seq > 0
        watching = RecordingFiles(image.files, existing="/")
        try:
            assert follow(store, watching) is None
            assert shipped_part(image.files) == expected
        except Exception as error:
            place = f"power cut after {image.prefix} operations, {image.kind}"
            raise AssertionError(f"{workload.__name__}: {place}: {error!r}"[:3000]) from error
        went_on += copied
        if copied and limits is ONLY_PIECES:
            written = [each.data for each in watching.history[watching.began :] if isinstance(each, Write)]
            assert not any(b'"next_seq":0' in data for data in written), "everything was compared again"
    print(f"{images} disks, {went_on} of them went on")
    assert images > 20
    assert went_on > 10
