"""Crash enumeration of the shared log: three tenants, and no power cut mixes them up or loses anything.

Checked on every disk: D1, O1, O3, O4, O6, R1 to R3, R5, R7, T1, C3, X1, X2. `CORDWOOD_CRASH_LIMIT` sets how
many images are looked at per power cut (0 is all of them); by default a few.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Container, Iterable, Iterator
from typing import Any
from unittest.mock import patch

import pytest
from support.crashes import (
    ALL_KINDS,
    CrashCount,
    CrashImage,
    Violation,
    again,
    crash_images,
    survives,
    violation_of,
)
from support.disks import Acknowledged, RecordingFiles
from support.shared import TENANTS, bases, index_files, left_by, open_data
from support.tenants import Promise, Tenants, check_tenants

from cordwood.disk.memory import MemoryFiles
from cordwood.errors import CordwoodError
from cordwood.formats.shared import owners
from cordwood.formats.shared.envelope import (
    ENVELOPE_SIZE,
    MAGIC,
    EnvelopeKind,
    content_of,
    read_envelope,
    seal,
)
from cordwood.storage.directory.topics import DirectoryTopics
from cordwood.storage.log.producers import Producers
from cordwood.storage.maintenance import rewriting
from cordwood.storage.shared import log as shared_log
from cordwood.storage.shared import maintenance as shared_maintenance
from cordwood.storage.shared import owner_index
from cordwood.storage.shared.log import SharedLog
from cordwood.storage.shared.offsets import VirtualPartition, VirtualTopics

LIMIT = int(os.environ.get("CORDWOOD_CRASH_LIMIT", "1")) or None
#: Every so many of the cuts get a second one, while what they left is opened and used.
STRIDE = 1 if LIMIT is None else 60
#: An index that outlives the frames it speaks of, or the other way round.
APART = ("none", "drop one", "keep one")
ORG_0, ORG_7, ORG_8 = TENANTS
Run = Callable[[RecordingFiles], Any]


def edges(data: bytes) -> Iterable[int]:
    """Return where an envelope or a frame of the shared log begins or ends in a write."""
    magic, at = MAGIC.to_bytes(4, "little"), -1
    while (at := data.find(magic, at + 1)) >= 4:
        yield from (at - 4, at - 4 + ENVELOPE_SIZE)
    if len(data) % owners.ENTRY_SIZE == 0:
        yield from range(owners.ENTRY_SIZE, len(data), owners.ENTRY_SIZE)


def tenants_of(files: RecordingFiles, **broker: str) -> Tenants:
    settings = {name.replace("_", "."): value for name, value in broker.items()}
    return Tenants(files, files.acknowledge, broker={"log.segment.bytes": "900", **settings})


def coming_and_going(files: RecordingFiles) -> None:
    """Creations, appends of all kinds, rolls, starts, a deletion and a new topic of the name, a clean end."""
    work = tenants_of(files)
    work.create(*TENANTS)
    for name in TENANTS:
        work.append(name, 2)
        work.produce(name)
    stored = [work.write(ORG_0), work.write(ORG_7), work.write(ORG_8, 2)]
    work.data.partitions.shared.log().commit()
    for each in stored:
        files.acknowledge(each)
    work.advance(ORG_7, 2)
    work.append(ORG_0, 1, 200)
    work.append(ORG_8)
    work.delete(ORG_7)
    work.create(ORG_7)
    work.append(ORG_7, 2)
    work.advance(ORG_0, 3)
    work.close()
    work.open()
    work.produce(ORG_7)
    work.append(ORG_0)
    work.delete(ORG_8)
    work.close()


def copying_forward(files: RecordingFiles) -> None:
    """Segments most of which is dead: below a start, or of a topic that was deleted and made again."""
    work = tenants_of(files)
    work.create(*TENANTS)
    for _ in range(2):
        work.append(ORG_7, 1, 150)
        work.append(ORG_0, 1, 10)
        work.produce(ORG_8, 9, 1, 100)
        work.append(ORG_7, 1, 10)
        work.roll()
    work.delete(ORG_7)
    work.create(ORG_7)
    work.append(ORG_7, 1)
    work.advance(ORG_8, 2)
    work.roll()
    work.maintain()
    work.append(ORG_0)
    work.append(ORG_7)
    work.advance(ORG_0, 3)
    work.roll()
    work.maintain()
    work.append(ORG_8)
    work.close()
    work.open()
    work.maintain()
    work.append(ORG_7)


def removing_from_the_middle(files: RecordingFiles) -> None:
    """Dead frames go from the second segment, and stay in the first one, most of which is alive."""
    work = tenants_of(files)
    work.create(*TENANTS)
    work.append(ORG_7)
    work.append(ORG_8)
    work.append(ORG_0, 1, 300)
    work.roll()
    work.append(ORG_8, 1, 120)
    work.delete(ORG_7)
    work.append(ORG_8, 1, 120)
    work.append(ORG_0)
    work.roll()
    work.append(ORG_8)
    work.advance(ORG_8, 3)
    assert len(bases(work.data)) == 3
    work.maintain()
    work.create(ORG_7)
    work.append(ORG_7)


def killed_writers(files: RecordingFiles) -> None:
    """Processes that die between an append and its sync, over and over; the next one goes on."""
    work = tenants_of(files)
    work.create(*TENANTS)
    for turn in range(3):
        for name in TENANTS[turn:] + TENANTS[:turn]:
            work.append(name)
        lost = [work.write(ORG_7), work.write(ORG_0, 2)]
        work.kill()
        # Whoever opens the log shows what it found there, so it is durable by then.
        for stored in lost:
            if work.log(stored.name).high_watermark >= stored.base + len(stored.values):
                files.acknowledge(stored)
        if turn == 1:
            work.delete(ORG_8)
            work.kill()
            work.create(ORG_8)
        work.produce(ORG_7)


def transactions_of_two_tenants(files: RecordingFiles) -> None:
    """Transactions of the same producers in the topics of two tenants, ended, cut off and deleted."""
    work = tenants_of(files)
    work.create(*TENANTS)
    work.transact(ORG_0, 5, 2)
    work.transact(ORG_7, 5)
    work.append(ORG_0)
    work.transact(ORG_0, 5)
    work.end(ORG_7, 5, committed=True)
    work.transact(ORG_7, 6)
    work.end(ORG_0, 5, committed=False)
    work.transact(ORG_0, 5)
    work.append(ORG_8)
    work.end(ORG_0, 5, committed=True, durable=False)
    work.append(ORG_7)
    work.kill()
    work.transact(ORG_7, 5)
    work.delete(ORG_7)
    work.create(ORG_7)
    work.append(ORG_7)
    work.transact(ORG_7, 6)
    work.close()
    work.open()
    work.end(ORG_7, 6, committed=False)


def transactions_copied_forward(files: RecordingFiles) -> None:
    """A batch stays in a segment that is mostly alive, and its marker is in one that is mostly dead."""
    work = tenants_of(files)
    work.create(*TENANTS)
    work.append(ORG_7, 1, 300)
    work.transact(ORG_0, 5)
    work.append(ORG_7, 1, 100)
    work.roll()
    work.append(ORG_0, 1, 200)
    work.end(ORG_0, 5, committed=False)
    work.append(ORG_0, 1, 150)
    work.append(ORG_7)
    work.roll()
    work.transact(ORG_0, 6)
    work.transact(ORG_7, 5)
    work.append(ORG_0)
    work.advance(ORG_0, 4)
    work.roll()
    work.maintain()
    work.append(ORG_0)
    work.end(ORG_7, 5, committed=True)
    work.kill()
    work.end(ORG_0, 6, committed=True)


WORKLOADS: list[Run] = [
    coming_and_going,
    copying_forward,
    removing_from_the_middle,
    killed_writers,
    transactions_of_two_tenants,
    transactions_copied_forward,
]


def check(image: CrashImage) -> None:
    """Hold what is left to everything promised before the cut."""
    promise, upkeep = Promise.of(image.acknowledged), LIMIT is None or image.digest[0] % 4 == 0
    check_tenants(image.files, promise, {"log.segment.bytes": "900"}, upkeep=upkeep)


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.__name__)
def test_no_power_cut_loses_or_mixes_up_what_tenants_were_promised(workload: Run) -> None:
    count = CrashCount()
    violation = survives(
        workload, check, images_max=1 << 30, limit_per_prefix=LIMIT, edges=edges, count=count
    )
    print("\n".join(count.report()))
    assert violation is None, violation
    count.require(120, kinds=())


# --- a second cut ---------------------------------------------------------------------------------------


def appending(files: RecordingFiles) -> None:
    """A few frames of the same size, the last of them not acknowledged: what a cut may leave in the index."""
    work = tenants_of(files)
    work.create(*TENANTS)
    for name in TENANTS:
        work.append(name)
    files.began = len(files.history)
    work.append(ORG_7)
    work.append(ORG_8)


def go_on(files: RecordingFiles) -> None:
    """Open what a cut left, and append frames of the same size, of others, where those were that it took."""
    work = tenants_of(files)
    work.written = 500
    for name, entry in work.data.topics.items():
        if name in TENANTS:
            work.lives[name] = int(entry.id.rpartition("-")[2])
    for name in (ORG_8, ORG_0):
        if name in work.lives:
            work.append(name)


def second_cuts(
    workload: Run, count: CrashCount, limit: int | None, stride: int, kinds: Container[str] = ALL_KINDS
) -> Iterator[CrashImage]:
    """Yield what a second power cut leaves, while the log is opened after a first one, and used."""
    recording = RecordingFiles(MemoryFiles())
    workload(recording)
    first = crash_images(recording, limit_per_prefix=limit, kinds=kinds, edges=edges)
    for number, image in enumerate(first):
        if number % stride == 0:
            second = again(image)
            go_on(second)
            yield from crash_images(second, limit_per_prefix=limit, kinds=kinds, edges=edges, count=count)


@pytest.mark.parametrize("workload", [appending, *WORKLOADS], ids=lambda workload: workload.__name__)
def test_no_power_cut_after_another_does_either(workload: Run) -> None:
    """R3: recovery can be cut too, and what was cut off never comes back under something else."""
    count = CrashCount()
    limit, stride = (2, 12) if workload is appending and LIMIT else (LIMIT, STRIDE)
    for image in second_cuts(workload, count, limit, stride):
        try:
            check(image)
        except Exception as error:
            raise AssertionError(
                f"{workload.__name__}: {violation_of(error, image.kind, image.prefix)}"
            ) from error
    print("\n".join(count.report()))
    count.require(30, kinds=())


def test_the_check_accepts_what_was_never_cut() -> None:
    """A check that refuses everything would catch every canary."""
    for workload in WORKLOADS:
        recording = RecordingFiles(MemoryFiles())
        workload(recording)
        said = [operation.what for operation in recording.history if isinstance(operation, Acknowledged)]
        check_tenants(left_by(recording.inner), Promise.of(said), {"log.segment.bytes": "900"})


def test_the_workloads_do_what_they_are_there_for() -> None:
    """Segments are copied forward, and on some disks an index is longer than its log."""
    for workload in (coming_and_going, copying_forward):
        recording = RecordingFiles(MemoryFiles())
        workload(recording)
        copied = [op for op in recording.history if "oidx.swap" in str(getattr(op, "source", ""))]
        assert bool(copied) == (workload is copying_forward)
    longer = 0
    recording = RecordingFiles(MemoryFiles())
    appending(recording)
    for image in crash_images(recording, limit_per_prefix=6, edges=edges):
        before = index_files(image.files)
        data = open_data(image.files, broker={"log.segment.bytes": "900", "cordwood.chain": "false"})
        data.partitions.open_all()
        if data.topics:
            data.partitions.find(ORG_0, 0)
        longer += any(len(index_files(image.files)[path]) < len(was) for path, was in before.items())
    print(f"{longer} disks with an index that was cut")
    assert longer >= 3


# --- Canaries -------------------------------------------------------------------------------------------


@contextlib.contextmanager
def entries_past_the_end_of_the_log_are_trusted() -> Iterator[None]:
    def sound(chunks: Any, expected: Any) -> Any:
        return owners.sound_entries(chunks, expected._replace(end=1 << 62, end_id=1 << 62))

    with patch.object(owner_index, "sound_entries", sound):
        yield


@contextlib.contextmanager
def the_index_is_not_cut_before_anything_is_appended() -> Iterator[None]:
    real = owner_index._open

    class Uncut:
        """A file that nothing is cut from."""

        def __init__(self, file: Any) -> None:
            self._file = file

        def __getattr__(self, name: str) -> Any:
            return getattr(self._file, name)

        def truncate(self, size: int) -> None:
            pass

    with patch.object(owner_index, "_open", lambda files, path: Uncut(real(files, path))):
        yield


@contextlib.contextmanager
def a_start_counts_before_it_is_synced() -> Iterator[None]:
    def set_starts(self: SharedLog, starts: Any) -> None:
        for part, offset in list(starts):
            part.start_at(offset, self._append_control(EnvelopeKind.LOG_START, part.owner, offset))

    with patch.object(SharedLog, "set_starts", set_starts):
        yield


@contextlib.contextmanager
def the_end_of_a_topic_is_dropped_while_frames_of_it_remain() -> Iterator[None]:
    real = shared_maintenance._kept

    def kept(shared: Any, group: Any, staying: Any) -> Any:
        stays = real(shared, group, staying)
        for load in group:
            for entry in load.entries():
                if entry.kind == EnvelopeKind.ENDED:
                    stays.discard(entry.first_id)
        return stays

    with patch.object(shared_maintenance, "_kept", kept):
        yield


@contextlib.contextmanager
def frames_are_copied_with_new_ids() -> Iterator[None]:
    real = rewriting.rewrite_whole

    def rewrite(work: Any, old: Any, stays: Any, target: Any) -> Any:
        next_id = old[0].base
        put = rewriting._Output.put

        def renumbered(self: Any, data: Any) -> None:
            nonlocal next_id
            said = read_envelope(data)
            content = content_of(data, 0, said)
            put(self, seal(said.kind, said.owner, next_id, *said[3:-1], content))
            next_id += said.id_count

        with patch.object(rewriting._Output, "put", renumbered):
            return real(work, old, stays, target)

    with patch.object(shared_maintenance, "rewrite_whole", rewrite):
        yield


@contextlib.contextmanager
def a_new_topic_inherits_the_records_of_the_one_before() -> Iterator[None]:
    with patch.object(SharedLog, "end", lambda self, owners: None):
        yield


@contextlib.contextmanager
def that_a_topic_ended_is_not_synced() -> Iterator[None]:
    def end(self: SharedLog, owners: Any) -> None:
        for owner in owners:
            if self.topics.find(owner) is not None:
                self._append_control(EnvelopeKind.ENDED, owner, 0)
                self.topics.end(owner)

    with patch.object(SharedLog, "end", end):
        yield


@contextlib.contextmanager
def a_crash_between_a_deletion_and_its_frame_is_forgotten() -> Iterator[None]:
    with (
        patch.object(DirectoryTopics, "finish_shared_deletions", lambda self: None),
        patch.object(DirectoryTopics, "_clear_the_way", lambda self, name: None),
    ):
        yield


@contextlib.contextmanager
def a_segment_is_swapped_without_its_index() -> Iterator[None]:
    with patch.object(shared_maintenance, "_write_index", lambda *arguments: None):
        yield


@contextlib.contextmanager
def what_the_index_does_not_have_is_not_looked_for() -> Iterator[None]:
    with patch.object(shared_log, "missing_entries", lambda *arguments: iter(())):
        yield


@contextlib.contextmanager
def a_commit_writes_the_index_only() -> Iterator[None]:
    def commit(self: SharedLog, id_: int | None = None) -> None:
        self._active.flush()
        self.log.show(self.log.end)

    with patch.object(SharedLog, "commit", commit):
        yield


@contextlib.contextmanager
def segments_go_though_something_in_them_is_alive() -> Iterator[None]:
    with patch.object(SharedLog, "is_dead", lambda self, entry: True):
        yield


@contextlib.contextmanager
def the_newest_batch_of_a_producer_goes_with_its_records() -> Iterator[None]:
    with patch.object(Producers, "is_newest", lambda self, producer_id, base_offset: False):
        yield


@contextlib.contextmanager
def a_gap_is_a_contradiction_also_after_frames_were_removed() -> Iterator[None]:
    real = VirtualTopics.apply

    def apply(self: VirtualTopics, entry: Any, *, sparse: bool, path: str) -> None:
        self._sparse = False
        real(self, entry, sparse=sparse, path=path)

    with patch.object(VirtualTopics, "apply", apply):
        yield


@contextlib.contextmanager
def every_marker_in_the_index_is_a_commit() -> Iterator[None]:
    with patch.object(owners, "_read_control", lambda content, sequence: (owners.Role.COMMIT, 0)):
        yield


@contextlib.contextmanager
def a_marker_goes_though_a_batch_of_its_transaction_stays() -> Iterator[None]:
    real = shared_maintenance._Staying.needs

    def needs(self: Any, entry: Any) -> bool:
        return entry.kind == EnvelopeKind.ENDED and real(self, entry)

    with patch.object(shared_maintenance._Staying, "needs", needs):
        yield


@contextlib.contextmanager
def open_transactions_are_stable() -> Iterator[None]:
    with patch.object(VirtualPartition, "stable_below", lambda self, end: end):
        yield


@contextlib.contextmanager
def the_transactions_of_a_deleted_topic_go_on_in_the_next_one() -> Iterator[None]:
    real, left = VirtualTopics.use, dict[Any, Any]()
    end = VirtualTopics.end

    def ended(self: VirtualTopics, owner: Any) -> None:
        left[owner] = getattr(self._found.get(owner), "transactions", None)
        end(self, owner)

    def use(self: VirtualTopics, owner: Any, start: int, next_id: int) -> VirtualPartition:
        part = real(self, owner, start, next_id)
        part.transactions = part.transactions or left.get(owner)
        return part

    with patch.object(VirtualTopics, "end", ended), patch.object(VirtualTopics, "use", use):
        yield


CANARIES: list[tuple[Callable[[], Any], Run]] = [
    (entries_past_the_end_of_the_log_are_trusted, appending),
    (the_index_is_not_cut_before_anything_is_appended, appending),
    (a_start_counts_before_it_is_synced, coming_and_going),
    (the_end_of_a_topic_is_dropped_while_frames_of_it_remain, removing_from_the_middle),
    (frames_are_copied_with_new_ids, copying_forward),
    (a_new_topic_inherits_the_records_of_the_one_before, coming_and_going),
    (that_a_topic_ended_is_not_synced, coming_and_going),
    (a_crash_between_a_deletion_and_its_frame_is_forgotten, coming_and_going),
    (a_segment_is_swapped_without_its_index, copying_forward),
    (what_the_index_does_not_have_is_not_looked_for, coming_and_going),
    (a_commit_writes_the_index_only, coming_and_going),
    (segments_go_though_something_in_them_is_alive, copying_forward),
    (the_newest_batch_of_a_producer_goes_with_its_records, copying_forward),
    (a_gap_is_a_contradiction_also_after_frames_were_removed, removing_from_the_middle),
    (every_marker_in_the_index_is_a_commit, transactions_of_two_tenants),
    (a_marker_goes_though_a_batch_of_its_transaction_stays, transactions_copied_forward),
    (open_transactions_are_stable, transactions_of_two_tenants),
    (the_transactions_of_a_deleted_topic_go_on_in_the_next_one, transactions_of_two_tenants),
]


def first_violation(workload: Run) -> Violation | None:
    """Return what the first image that breaks a promise breaks, after one cut or after two."""
    if workload is not appending:
        return survives(workload, check, images_max=1 << 30, seed=0, limit_per_prefix=LIMIT, edges=edges)
    # First a sample of the disks, which finds most; then many more.
    for limit, stride in ((4, 1), (None, 1)):
        for image in second_cuts(workload, CrashCount(), limit, stride, APART):
            try:
                check(image)
            except Exception as error:
                return violation_of(error, image.kind, image.prefix)
    return None


@pytest.mark.parametrize(("planted", "workload"), CANARIES, ids=[c[0].__name__ for c in CANARIES])
def test_a_planted_bug_of_the_shared_log_is_caught(planted: Callable[[], Any], workload: Run) -> None:
    violation: Violation | None
    with planted():
        try:
            violation = first_violation(workload)
        except (CordwoodError, AssertionError) as error:  # The workload itself may meet the bug.
            violation = violation_of(error)
    assert violation is not None, f"{planted.__name__} survived"
    print(f"caught: {planted.__name__.replace('_', ' ')}: {violation}")
