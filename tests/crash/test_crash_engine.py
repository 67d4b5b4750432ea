"""Crash enumeration: every disk that a power cut could leave, opened with the real engine.

`CORDWOOD_CRASH_LIMIT` sets how many images are looked at per power cut (default 3, 0 is all of them).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

import pytest
from support.crashes import CrashCount, CrashImage, again, crash_images, survives
from support.disks import FaultPlan, FaultyFiles, RecordingFiles
from support.producing import Sent, snapshots_every
from support.promises import (
    DATA,
    Promise,
    ReplacedTopic,
    Run,
    Seen,
    Workload,
    check_promises,
    check_replaced_topic,
    open_and_read,
)

from cordwood.bucket.attaching import note_attached, note_nonce
from cordwood.disk import store
from cordwood.disk.memory import MemoryFiles
from cordwood.errors import DiskFull
from cordwood.storage.log import mark_writer as mark_keeper

LIMIT = int(os.environ.get("CORDWOOD_CRASH_LIMIT", "3")) or None
SMALL = {"segment.bytes": "400", "index.interval.bytes": "100"}
PREALLOCATED = {**SMALL, "preallocate": "true"}


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Preallocate and sync the mark in steps that a small workload reaches."""
    monkeypatch.setattr(store, "PREALLOCATE_AFTER", 128)
    monkeypatch.setattr(store, "PREALLOCATE_STEP_MAX", 256)
    monkeypatch.setattr(mark_keeper, "MARK_SYNC_BYTES", 200)


def edges(data: bytes) -> list[int]:
    """Tear writes at the edges of a batch header too."""
    return [8, 12, 17, 21, 57, 61, len(data) - 1]


def appends_and_rolls(files: RecordingFiles) -> None:
    """Frames of one record and of several, over several segments."""
    work = Workload(files, SMALL)
    for i in range(10):
        work.append(*[20] * (1 + i % 3))
        work.clock.ms += 300
    work.partition.roll()
    work.append(100)
    work.close()


def unsynced_appends(files: RecordingFiles) -> None:
    """Several frames before each sync, so that a cut can keep any of them."""
    work = Workload(files, SMALL)
    for size in (5, 40, 5):
        work.write(size)
        work.write(size, size)
        work.write(size + 1)
        work.commit()
    work.write(7)
    work.reopen()
    work.write(9)
    work.commit()


def preallocated_segments(files: RecordingFiles) -> None:
    """Zeros ahead of the appends, trimmed at each seal and at close."""
    work = Workload(files, PREALLOCATED)
    for size in (8, 30, 8, 60, 8, 200, 8, 9):
        work.append(size)
    work.write(30)
    work.reopen()
    work.append(60)


def truncations(files: RecordingFiles) -> None:
    """Cuts in the active segment, inside a batch, and in a sealed segment; appends after each."""
    work = Workload(files, SMALL)
    for _ in range(4):
        work.append(40, 40)
    work.truncate(6)
    work.append(41)
    work.truncate(5)
    work.append(42)
    work.truncate(1)
    work.append(43)
    work.append(44, 45)
    work.close()


def taken_over(files: RecordingFiles) -> None:
    """Another machine appended meanwhile: the next append begins an epoch, and so does a truncation."""
    work = Workload(files, SMALL)
    work.append(40, 41)
    work.append(60)
    work.kill()
    for takeover in (3, 4, 7):
        note_takeover(files, takeover)
        work.kill()
        if takeover == 4:
            work.truncate(2)
        work.write(30)
        work.kill()
        work.append(31)
        work.append(90, 90)
        work.write(32)
        work.reopen()
    work.append(33)
    work.close()


def note_takeover(files: RecordingFiles, takeover: int) -> None:
    """Note that the directory of *files* has become what another machine shipped."""
    note_nonce(files, DATA, "broker", f"{takeover:032x}", attached=True)
    note_attached(files, DATA, takeover)


def log_start_moves(files: RecordingFiles) -> None:
    """The log start moves inside a segment and past several, which go."""
    work = Workload(files, SMALL)
    for _ in range(7):
        work.append(90, 90)
    work.advance(3)
    work.append(50)
    work.advance(9)
    work.append(51)
    work.reopen()
    work.append(52)


def lost_indexes(files: RecordingFiles) -> None:
    """Index files that are gone when the log is opened are built again."""
    work = Workload(files, SMALL)
    for _ in range(6):
        work.append(80)
    work.close()
    segments = f"{DATA}/topics/t/0/segments"
    for name in files.list(segments):
        if not name.endswith(".log"):
            files.unlink(f"{segments}/{name}")
    files.sync_directory(segments)
    work.log = work._open()
    work.topic = work.log.topic("t")
    work.append(81)
    work.close()


def full_disk(files: RecordingFiles) -> None:
    """The disk fills up in the middle of a frame, twice, and has space again."""
    plans = [
        FaultPlan(fail_at=n, kinds=frozenset({"write"}), error=errno.ENOSPC, short=short)
        for n, short in ((14, 30), (23, 1))
    ]
    work = Workload(files, SMALL, FaultyFiles(files, *plans))
    refused = 0
    for size in (40, 41, 42, 43, 44, 45, 46, 47):
        try:
            work.append(size)
        except DiskFull:
            refused += 1
            work.append(size)
    assert refused, "no append met the full disk"
    work.close()


def frames_over_many_sectors(files: RecordingFiles) -> None:
    """Frames larger than a sector, several of them before a sync."""
    work = Workload(files, {"segment.bytes": "6000", "index.interval.bytes": "1000"})
    for size in (700, 1_500, 600):
        work.append(size)
        work.write(size, size)
        work.write(30)
        work.commit()
    work.reopen()
    work.append(1_100)
    work.write(900)


def a_life(files: RecordingFiles) -> None:
    """Everything in turn: rolls, cuts, moves of the log start, a clean close, and on."""
    work = Workload(files, PREALLOCATED)
    for i in range(3):
        work.append(30, 31)
        work.write(60)
        work.append(90)
        work.truncate(work.partition.log_end_offset - 2)
        work.append(33)
        work.clock.ms += 1_500
        work.append(150)
        if i:
            work.advance(work.partition.log_start_offset + 2)
        work.reopen()
    work.append(34)


def killed_writers(files: RecordingFiles) -> None:
    """kill -9 leaves unsynced frames in the cache; the next writer shows them, so it must sync them first."""
    work = Workload(files, SMALL)
    for size in (20, 70, 120):
        work.append(size)
        work.write(size)
        work.write(size + 1)
        work.kill()
        work.write(5)
    work.commit()


class Client:
    """A producer that numbers its batches."""

    def __init__(self, producer: int) -> None:
        self.producer = producer
        self.sequence = 0

    def batch(self, *sizes: int) -> Sent:
        """Return its next batch, with a record of each size."""
        numbers = [self.sequence + i for i in range(len(sizes))]
        values = tuple(
            b"%d/%d" % (self.producer, n) + b"." * size for n, size in zip(numbers, sizes, strict=True)
        )
        sent = Sent(self.producer, 0, self.sequence, values)
        self.sequence = sent.next_sequence
        return sent


def idempotent_producers(files: RecordingFiles) -> None:
    """Batches sent once and again, before and after their sync, over rolls, snapshots, kills and a close."""
    with snapshots_every(250):
        work, one, two = Workload(files, SMALL), Client(1), Client(2)
        for size in (10, 60, 90):
            first, second, third = one.batch(size), two.batch(size, 5), one.batch(5)
            work.send(first)
            work.produce(first)
            work.send(second)
            work.write(size)
            work.send(third)
            work.produce(second, third, third)
        lost = [one.batch(20), two.batch(70), one.batch(9, 9)]
        for sent in lost:
            work.send(sent)
        work.kill()
        work.produce(*lost, two.batch(30))
        work.reopen()
        work.produce(lost[2], one.batch(40))
        work.send(two.batch(8))


def producers_of_a_truncated_log(files: RecordingFiles) -> None:
    """What was cut is sent again and stored again, though a snapshot knew of it."""
    with snapshots_every(150):
        work, one, two = Workload(files, SMALL), Client(1), Client(2)
        kept = [one.batch(20), two.batch(20)]
        gone = [one.batch(30), two.batch(40), one.batch(50)]
        work.produce(*kept, *gone)
        work.truncate(2)
        work.append(35)
        work.produce(*gone[:2])
        work.kill()
        work.produce(gone[2], one.batch(20))
        work.truncate(5)
        work.send(gone[2])
        work.kill()
        work.produce(gone[2])


def a_topic_replaced_by_another(files: RecordingFiles) -> None:
    """Deleted and created again under the same name, with the same producers, three times over."""
    with snapshots_every(200):
        work = ReplacedTopic(files, SMALL)
        work.create("id-1", partitions=2)
        work.produce(Client(1).batch(30))
        work.log.data_directory.partitions.writable("t", 1).append([(None, b"of the other partition")])
        work.delete()
        work.create("id-2")
        client = Client(1)
        work.produce(client.batch(31))
        work.write(5)
        work.produce(client.batch(90), client.batch(100))
        work.kill()
        work.append(200)
        work.delete()
        work.kill()
        work.create("id-3")
        work.delete()
        work.create("id-4")
        work.append(40)
        work.close()


WORKLOADS: list[Run] = [
    killed_writers,
    a_life,
    frames_over_many_sectors,
    appends_and_rolls,
    unsynced_appends,
    preallocated_segments,
    truncations,
    taken_over,
    log_start_moves,
    lost_indexes,
    full_disk,
]
PRODUCERS: list[Run] = [idempotent_producers, producers_of_a_truncated_log]
#: Workloads whose topic is not one for all their time.
REPLACEMENTS: list[Run] = [a_topic_replaced_by_another]


def check_of(workload: Run) -> Callable[[CrashImage], None]:
    """Return what holds the images of a workload to its promises."""
    return check_replaced_topic if workload in REPLACEMENTS else check_promises


def cut_everywhere(workloads: list[Run]) -> CrashCount:
    """Look at every image of every workload; return how many there were."""
    count = CrashCount()
    for workload in workloads:
        before = count.total
        recording = RecordingFiles(MemoryFiles())
        workload(recording)
        check = check_of(workload)
        for image in crash_images(recording, limit_per_prefix=LIMIT, edges=edges, count=count):
            try:
                check(image)
            except Exception as error:
                place = f"{workload.__name__}: cut after {image.prefix} operations, {image.kind}"
                raise AssertionError(f"{place}: {error}") from error
        print(f"{workload.__name__}: {count.total - before} distinct images")
    print("\n".join(count.report()))
    return count


def test_no_power_cut_loses_what_was_acknowledged() -> None:
    """Every image of every workload keeps every promise made before its cut."""
    cut_everywhere(WORKLOADS).require(3_000)


def test_no_power_cut_stores_a_batch_twice_or_loses_one() -> None:
    """Producers that send again after it, from the first batch they are not sure of, end with each once.

    Those that were acknowledged are where it was said, duplicates included (O6, D4).
    """
    cut_everywhere(PRODUCERS).require(900)


def test_no_power_cut_brings_a_deleted_topic_back_or_harms_its_successor() -> None:
    """Under one name there is one topic, whole: the one that was created last, or none (D1, R1)."""
    cut_everywhere(REPLACEMENTS).require(450)


def recover_on(image: CrashImage) -> RecordingFiles:
    """Open the image with the engine, on a recording disk, and note what a reader saw."""
    recording = again(image)
    log, _ = open_and_read(recording, Promise())
    if "t" in log.topics:
        recording.acknowledge(Seen(log.topic("t").high_watermark(0)))
    return recording


def test_no_power_cut_during_recovery_loses_anything_either() -> None:
    """Recovery is crash-safe: cut it anywhere, and the next one keeps every promise."""
    count = CrashCount()
    recovered = 0
    for workload in (*WORKLOADS, *PRODUCERS, *REPLACEMENTS):
        check = check_of(workload)
        recording = RecordingFiles(MemoryFiles())
        workload(recording)
        for n, image in enumerate(crash_images(recording, limit_per_prefix=LIMIT, edges=edges)):
            if n % 47:
                continue
            recovered += 1
            for second in crash_images(recover_on(image), limit_per_prefix=LIMIT, count=count):
                check(second)
    print(f"{recovered} recoveries cut")
    print("\n".join(count.report()))
    assert recovered >= 100
    assert count.total >= 500


def test_a_workload_that_breaks_a_promise_is_caught() -> None:
    """The harness can fail: a log that never syncs loses what it acknowledged."""

    def careless(files: RecordingFiles) -> None:
        work = Workload(files, SMALL)
        for _ in range(3):
            work.write(40)
            files.acknowledge(work._unacknowledged)

    violation = survives(careless, check_promises, images_max=5_000, edges=edges)
    assert violation is not None
    assert violation.invariant == "D1"
