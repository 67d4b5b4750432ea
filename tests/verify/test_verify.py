"""What verify accepts, what it only notes, and how it works beside a live writer. Invariants I3 and D17."""

from __future__ import annotations

import ast
import errno
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from support.clocks import HookedFiles
from support.crashes import CrashCount, crash_images
from support.data_directory import (
    Partition,
    catalogue_entry,
    compressed_partition,
    contents,
    envelope,
    flipped,
    frame,
    index_of,
    log_of,
    orders_partition,
    put,
    rising_frames,
    slot,
    topic_entry,
    write_catalogue,
    write_sound_directory,
)
from support.disks import FaultPlan, FaultyFiles, RecordingFiles
from support.producing import Sent, send, snapshots_every
from support.verifying import (
    CATALOGUE,
    PRODUCERS,
    ROOT,
    SNAPSHOT,
    notes,
    one_partition,
    orders_path,
    producing_directory,
    producing_partition,
    segment_file,
    serious,
    sound_directory,
    verify,
)

from cordwood import embedded
from cordwood.disk.files import File, Files, Mode, join, read_file
from cordwood.disk.memory import MemoryFiles
from cordwood.disk.posix import PosixFiles
from cordwood.errors import DirectoryRefused, UnknownTopic
from cordwood.verify import frame as verify_frame
from cordwood.verify import verify_directory
from cordwood.verify.segments import segment as verify_segment

ACTIVE = rising_frames(30, 5)


# --- what is sound -----------------------------------------------------------------------------


@pytest.mark.parametrize("disk", ["memory", "posix"])
def test_a_sound_directory_is_sound_and_the_report_says_how_much_was_checked(
    disk: str, tmp_path: Path
) -> None:
    files: Files = MemoryFiles() if disk == "memory" else PosixFiles()
    root = ROOT if disk == "memory" else str(tmp_path)
    orders, payments = write_sound_directory(files, root)
    report = verify(files, root)
    assert report.sound
    assert not report.corrupt
    assert (report.topics, report.partitions, report.segments) == (2, 3, 7)
    segments = [*orders.sealed, orders.active[:3], *payments.sealed, payments.active]
    marked = [each for frames in segments for each in frames]
    assert report.frames == len(marked)
    assert report.records == sum(each.record_count for each in marked)
    assert report.frames_unmarked == 2
    metadata = sum(
        len(data)
        for path, data in contents(files, root).items()
        if not path.endswith("30.log") and not path.endswith("catalogue.log")
    )
    assert report.bytes == metadata + len(log_of(orders.active[:3])) + len(
        read_file(files, join(root, "meta/catalogue.log"))
    )
    (torn,) = report.findings
    path = orders.segment(root, 30, "log")
    assert (torn.severity, torn.path, torn.what) == ("note", path, "torn tail")
    assert torn.position == len(log_of(orders.active))
    assert torn.found == "50 other bytes past the mark"


def test_verify_changes_nothing() -> None:
    files, _, _ = sound_directory()
    before = contents(files, ROOT)
    watched = RecordingFiles(files, ROOT)
    start = len(watched.history)
    verify(watched)
    assert watched.history[start:] == []
    assert contents(files, ROOT) == before


def test_one_topic_is_checked_alone() -> None:
    files, orders, _ = sound_directory()
    put(files, orders.segment(ROOT, 0, "log"), b"rubbish")
    assert verify_directory(files, ROOT, "payments").sound
    report = verify_directory(files, ROOT, "orders")
    assert report.corrupt
    assert (report.topics, report.partitions, report.segments) == (1, 1, 4)


def test_what_is_no_data_directory_and_an_unknown_topic_are_refused_by_name() -> None:
    files, _, _ = sound_directory()
    files.make_directories("/elsewhere")
    with pytest.raises(DirectoryRefused, match="/elsewhere"):
        verify_directory(files, "/elsewhere")
    with pytest.raises(DirectoryRefused, match="/nowhere"):
        verify_directory(files, "/nowhere")
    with pytest.raises(UnknownTopic, match="no-such"):
        verify_directory(files, ROOT, "no-such")


def test_progress_names_every_log() -> None:
    files, orders, _ = sound_directory()
    seen: list[tuple[str, int]] = []
    verify_directory(files, ROOT, progress=lambda path, position: seen.append((path, position)))
    assert (orders.segment(ROOT, 0, "log"), 0) in seen


@pytest.mark.parametrize("window", [1, 61, 100, 1000])
def test_frames_longer_than_a_window_are_checked_whole(window: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify_frame, "WINDOW_BYTES", window)
    monkeypatch.setattr(verify_segment, "WINDOW_BYTES", window)
    files, orders, _ = sound_directory()
    report = verify(files)
    assert report.sound
    assert report.frames == 28
    path = orders.segment(ROOT, 12, "log")
    put(files, path, flipped(read_file(files, path), 8 * 350))
    assert verify(files).corrupt


class CountingFiles(RecordingFiles):
    """Notes the largest read of a log."""

    largest = 0

    def open(self, path: str, mode: Mode) -> File:
        file = super().open(path, mode)
        read = file.read_at

        def read_at(position: int, size: int) -> bytes:
            if path.endswith(".log"):
                self.largest = max(self.largest, size)
            return read(position, size)

        file.read_at = read_at  # type: ignore[method-assign]
        return file


def test_a_length_that_lies_is_never_allocated(monkeypatch: pytest.MonkeyPatch) -> None:
    """A flipped bit can make a frame as long as its segment; its checksum is compared window by window."""
    monkeypatch.setattr(verify_frame, "WINDOW_BYTES", 1_000)
    frames = [frame(i, [b"v" * 100]) for i in range(200)]
    partition = Partition("orders", "id-orders", 0, [frames], [], 0)
    files = one_partition(partition)
    path, log = partition.segment(ROOT, 0, "log"), log_of(frames)
    put(files, path, log[:8] + struct.pack(">i", len(log) - 12) + log[12:])
    watched = CountingFiles(files)
    (finding, *_) = serious(verify(watched))
    assert (finding.path, finding.position, finding.what) == (path, 0, "CRC-32C")
    assert 0 < watched.largest <= 1_000


# --- a disk that refuses -----------------------------------------------------------------------


def test_whichever_read_fails_the_result_is_a_report_that_says_so() -> None:
    files, _, _ = sound_directory()
    fail_at, runs = 1, 0
    while True:
        faulty = FaultyFiles(
            files, FaultPlan(fail_at, frozenset({"open", "read", "size", "list", "irregular"}), errno.EIO)
        )
        report = verify(faulty)
        if not faulty.failures:
            break
        assert not report.sound, fail_at
        assert any("nput/output error" in finding.found for finding in report.findings), fail_at
        fail_at, runs = fail_at + 1, runs + 1
    print(f"{runs} failing calls, all reported")
    assert runs > 60


def test_a_file_we_may_not_read_is_not_called_corrupt() -> None:
    files, _, _ = sound_directory()
    faulty = FaultyFiles(files, FaultPlan(1, frozenset({"open"}), errno.EACCES, forever=True))
    report = verify(faulty)
    assert not report.sound
    assert not report.corrupt


# --- past the mark, after a crash --------------------------------------------------------------


def test_nothing_past_the_mark_is_corruption() -> None:
    orders = orders_partition()
    tails = {
        "nothing": b"",
        "zeros": bytes(5_000),
        "garbage": b"\xa5" * 5_000,
        "zeros, then garbage": bytes(3_000) + b"x",
        "stale frame": frame(2, [b"old"]).data,
        "frame of another epoch": frame(40, [b"x"], epoch=1).data,
        "bad checksum": flipped(frame(40, [b"x"]).data, 8 * 70),
        "half a header": frame(40, [b"x"]).data[:30],
    }
    for name, tail in tails.items():
        report = verify(one_partition(replace(orders, tail=tail)))
        assert report.sound, name
        assert report.frames_unmarked == 2, name
        torn = [finding for finding in report.findings if finding.what == "torn tail"]
        assert len(torn) == (0 if name in ("nothing", "zeros") else 1), name


def test_index_entries_past_the_mark_may_be_missing_or_there_and_wrong_ones_are_noted() -> None:
    files, orders, _ = sound_directory()
    marked = index_of(ACTIVE[:3], orders.interval_bytes)
    whole = index_of(ACTIVE, orders.interval_bytes)
    assert len(whole) > len(marked)
    path = segment_file(30, "idx")
    for data, noted in [(whole, 0), (whole + whole, 0), (marked + b"\1" * 16, 1), (whole[:-7], 0)]:
        put(files, path, data)
        report = verify(files)
        assert report.sound
        assert len([finding for finding in report.findings if finding.path == path]) == noted


def test_a_stale_mark_of_a_sealed_segment_leaves_the_active_one_unjudged() -> None:
    files, _, _ = sound_directory()
    put(files, orders_path("mark"), slot(base=20, position=100, next_offset=21) + bytes(512))
    report = verify(files)
    assert report.sound
    assert report.frames_unmarked == 5


def test_the_start_of_an_epoch_is_a_bound_when_no_mark_is_of_that_epoch() -> None:
    """A crash after a truncation was committed leaves marks of the epoch before only."""
    payments = compressed_partition()
    files = one_partition(payments)
    mark = join(payments.directory(ROOT), "mark")
    put(files, mark, slot(epoch=1, base=13, position=10_000, next_offset=99) + bytes(512))
    assert verify(files).sound
    path = payments.segment(ROOT, 13, "log")
    put(files, path, flipped(read_file(files, path), 8 * 65))
    assert verify(files).corrupt
    put(files, path, log_of(payments.active)[: len(payments.active[0].data)] + b"torn")
    assert verify(files).sound


def truncating(*, copied: bool) -> tuple[MemoryFiles, Partition]:
    """Return a directory where a truncation to offset 14 is committed and nothing more was done."""
    kept = rising_frames(12, 1)[0]
    end = {"base": 12, "position": len(kept.data), "next_offset": 14}
    partition = orders_partition()
    files = one_partition(partition)
    partition.sealed, partition.active = partition.sealed[:1], [kept]
    partition.epochs = [(0, 0), (1, 14)]
    partition.epoch_start, partition.truncating = end, {**end, "copied": copied}
    partition.write_state(files, ROOT)
    return files, partition


def test_leftovers_of_a_truncation_under_way_are_notes() -> None:
    files, _ = truncating(copied=False)
    report = verify(files)
    assert report.sound
    leftovers = [f.path for f in notes(report) if f.what == "leftover of a truncation under way"]
    names = [segment_file(base, suffix) for base in (20, 30) for suffix in ("idx", "log", "timeidx")]
    assert leftovers == names
    (under_way,) = [f for f in notes(report) if f.what == "truncation under way"]
    assert under_way.path == segment_file(12, "log")
    put(files, segment_file(12, "log"), flipped(read_file(files, segment_file(12, "log")), 8 * 70))
    assert verify(files).corrupt


def test_the_copy_that_a_truncation_prepared_is_judged_in_place_of_the_log() -> None:
    files, partition = truncating(copied=True)
    put(files, segment_file(12, "log"), b"no longer of interest")
    put(files, segment_file(12, "log.cut"), log_of(partition.active))
    assert verify(files).sound
    put(files, segment_file(12, "log.cut"), flipped(log_of(partition.active), 8 * 70))
    (finding,) = serious(verify(files))
    assert finding.path == segment_file(12, "log.cut")


def test_files_of_no_segment_are_noted() -> None:
    files, _, _ = sound_directory()
    put(files, orders_path("segments/00000000000000000099.log"), b"x")
    put(files, orders_path("segments/readme"), b"x")
    put(files, f"{ROOT}/topics/orders/first/readme", b"x")
    put(files, f"{ROOT}/topics/a b", b"x")
    report = verify(files)
    assert report.sound
    assert [f.path.removeprefix(f"{ROOT}/topics/") for f in notes(report) if f.what != "torn tail"] == [
        "a b",
        "orders/0/segments/00000000000000000099.log",
        "orders/0/segments/readme",
        "orders/first",
    ]


def test_what_a_crash_at_creation_or_deletion_leaves_is_noted() -> None:
    files, orders, _ = sound_directory()
    # A partition that was never committed, and one whose topic was deleted before its files were.
    put(files, f"{ROOT}/topics/payments/0/segments/00000000000000000000.log", bytes(100))
    put(files, f"{ROOT}/topics/gone/0/segments/00000000000000000000.log", orders.active[0].data)
    report = verify(files)
    assert report.sound
    assert {f.what for f in notes(report)} == {"torn tail", "unfinished partition", "deleted topic"}


def test_a_first_start_that_was_not_finished_is_noted() -> None:
    files = MemoryFiles()
    write_catalogue(files, ROOT, [])
    report = verify(files)
    assert report.sound
    assert [f.what for f in report.findings] == ["first start was not finished"]


def test_the_catalogue_past_its_mark_counts_when_whole_and_is_noted_when_torn() -> None:
    files, _, _ = sound_directory()
    entries = [topic_entry("orders", "id-orders", 1), topic_entry("payments", "id-payments", 2)]
    for tail, noted in [
        (b"", False),
        (bytes(100), False),
        (b"\0\0\0\5", True),
        (flipped(catalogue_entry(topic_entry("x", "id-x", 1)), 100), True),
    ]:
        write_catalogue(files, ROOT, entries, marked=1, tail=tail)
        report = verify(files)
        assert report.sound
        assert report.topics == 2
        assert any(f.path == CATALOGUE for f in report.findings) == noted
    # Whole, with its checksum, and no entry: nothing that a crash leaves.
    write_catalogue(files, ROOT, entries, marked=1, tail=catalogue_entry({"kind": "deleted"}))
    assert [f.path for f in serious(verify(files))] == [CATALOGUE]


def test_topics_without_a_directory_are_one_note() -> None:
    files, _, _ = sound_directory()
    empty = [topic_entry(f"empty-{i}", f"id-{i}", 1) for i in range(100)]
    write_catalogue(
        files,
        ROOT,
        [topic_entry("orders", "id-orders", 1), topic_entry("payments", "id-payments", 2), *empty],
    )
    report = verify(files)
    assert report.sound
    assert report.topics == 102
    (note,) = [f for f in report.findings if f.what == "topics"]
    assert note.found == "none for 100 that nothing was appended to: empty-0, empty-1, empty-10, …"


# --- idempotent producers ----------------------------------------------------------------------


def test_a_snapshot_of_producers_that_the_log_bears_out_is_sound() -> None:
    """It is read and counted; one that covers less, or of producers whose records are gone, is as good."""
    without = verify(one_partition(producing_partition()))
    files = producing_directory()
    report = verify(files)
    assert report.sound
    assert report.bytes == without.bytes + len(read_file(files, PRODUCERS))
    assert notes(report) == notes(without)
    older = [{"id": 3, "epoch": 0, "batches": [[0, 4, 0, 5]], "seen_ms": 0}]
    for changes in (
        {"next_offset": 0, "producers": []},
        {"next_offset": 40},
        {"producers": SNAPSHOT["producers"][1:]},
    ):
        assert verify(producing_directory(**changes)).sound
    partition = producing_partition()
    partition.sealed, partition.log_start = partition.sealed[2:], 20
    files = one_partition(partition)
    put(files, PRODUCERS, envelope({**SNAPSHOT, "producers": [*SNAPSHOT["producers"], *older]}))
    assert verify(files).sound


def test_what_the_engine_saves_of_its_producers_is_borne_out_by_the_log() -> None:
    """Over rolls, a cut inside a batch, a moved log start, and a second life: R5 as others see it."""
    files = MemoryFiles()
    with snapshots_every(300):
        for life in range(3):
            with embedded.open(ROOT, files=files) as log:
                topic = log.topic("orders", config={"segment.bytes": "500", "index.interval.bytes": "100"})
                partition = log.data_directory.partitions.own("orders", 0)
                for i in range(20):
                    sent = Sent(i % 3, life, 2 * (i // 3), (b"one", b"two"))
                    partition.commit(send(partition, sent)[1])
                    report = verify(files)
                    assert report.sound, report.findings
                topic.truncate(0, topic.log_end_offset(0) - 3)
                assert verify(files).sound
                topic.advance_log_start(0, topic.log_end_offset(0) - 15)
                assert verify(files).sound
            report = verify(files)
            assert report.sound
            assert report.findings == ()


def test_a_snapshot_from_before_a_truncation_is_noted() -> None:
    """A crash before the next one was saved: nobody believes it, and it says nothing about the log."""
    kept = rising_frames(30, 2)
    partition = producing_partition()
    partition.active, partition.marked, partition.tail = [*kept, frame(34, [b"new"], epoch=1)], 3, b""
    partition.epochs = [(0, 0), (1, 34)]
    partition.epoch_start = {"base": 30, "position": len(log_of(kept)), "next_offset": 34}
    files = one_partition(partition)
    put(files, PRODUCERS, envelope(SNAPSHOT))
    (note,) = verify(files).findings
    assert (note.severity, note.path, note.what) == ("note", PRODUCERS, "outdated snapshot")
    put(files, PRODUCERS, envelope({**SNAPSHOT, "leader_epoch": 1, "next_offset": 34, "producers": []}))
    assert verify(files).findings == ()


def test_a_snapshot_that_is_replaced_meanwhile_is_not_judged() -> None:
    files = producing_directory(next_offset=50)
    assert [f.severity for f in serious(verify(files))] == ["index"]

    def save() -> None:
        put(files, PRODUCERS, envelope(SNAPSHOT))

    report = verify(Beside(files, segment_file(30, "log"), save))
    assert report.sound
    assert [f.what for f in notes(report) if f.path == PRODUCERS] == ["not judged"]


def test_a_file_of_producers_that_cannot_be_read_is_an_index_finding() -> None:
    files = producing_directory()
    fail_at = found = 0
    while True:
        fail_at += 1
        faulty = FaultyFiles(files, FaultPlan(fail_at, frozenset({"open", "read", "size"}), errno.EIO))
        report = verify(faulty)
        if not faulty.failures:
            break
        assert not report.sound
        about = [f for f in serious(report) if f.path == PRODUCERS]
        found += len(about)
        assert all(f.severity == "index" for f in about)
    assert found == 3


# --- deleted topics ----------------------------------------------------------------------------

DELETED = f"{ROOT}/tmp/id-gone.deleted"


def test_what_is_left_of_a_deleted_topic_is_noted() -> None:
    """In ``tmp/``, where it is about to be removed, whatever is in it; other names there are others'."""
    files, orders, _ = sound_directory()
    put(files, f"{DELETED}/0/segments/00000000000000000000.log", orders.active[0].data[:30])
    put(files, f"{ROOT}/tmp/1.spool", b"half a stream")
    report = verify(files)
    assert report.sound
    assert [(f.path, f.what) for f in notes(report) if f.what != "torn tail"] == [(DELETED, "deleted topic")]
    assert verify_directory(files, ROOT, "payments").findings == ()


@pytest.mark.parametrize("topic_id", ["id-orders", "id-never"])
def test_a_topic_that_was_moved_away_though_it_is_not_deleted_is_corruption(topic_id: str) -> None:
    """The catalogue says so first: no crash leaves it otherwise."""
    files, _, _ = sound_directory()
    path = f"{ROOT}/tmp/{topic_id}.deleted"
    files.make_directories(path)
    (finding,) = serious(verify(files))
    assert (finding.severity, finding.path, finding.what) == ("corruption", path, "moved topic")


def test_ids_of_producers_and_settings_of_brokers_are_known_to_the_catalogue() -> None:
    files, _, _ = sound_directory()
    entries = [
        topic_entry("orders", "id-orders", 1),
        {"kind": "producer-ids", "next_id": 1000},
        topic_entry("payments", "id-payments", 2),
        {"kind": "producer-ids", "next_id": 2000},
        {"kind": "broker-settings", "broker": "", "config": {"log.retention.ms": "1000"}},
        {"kind": "broker-settings", "broker": "0", "config": {}},
        {
            "kind": "group-settings",
            "org": 0,
            "group": "g",
            "config": {"consumer.session.timeout.ms": "46000"},
        },
    ]
    write_catalogue(files, ROOT, entries)
    assert [f.what for f in verify(files).findings] == ["torn tail"]
    write_catalogue(files, ROOT, [*entries, {"kind": "of a later version"}])
    assert [f.what for f in verify(files).findings] == ["kind of entry", "torn tail"]


def move_away(files: MemoryFiles, *, noted: bool) -> None:
    """Do what a writer does to the topic of orders when it is deleted."""
    entries = [topic_entry("orders", "id-orders", 1), topic_entry("payments", "id-payments", 2)]
    if noted:
        write_catalogue(files, ROOT, [*entries, {"kind": "deleted", "id": "id-orders"}])
    files.make_directories(f"{ROOT}/tmp")
    files.rename(f"{ROOT}/topics/orders", f"{ROOT}/tmp/id-orders.deleted")


PLACES = [
    orders_path("partition.json"),
    orders_path("mark"),
    segment_file(0, "log"),
    segment_file(12, "idx"),
    segment_file(30, "log"),
    segment_file(30, "timeidx"),
]


@pytest.mark.parametrize("trigger", PLACES)
def test_a_topic_that_is_deleted_meanwhile_is_not_missed(trigger: str) -> None:
    files, _, _ = sound_directory()
    report = verify(Beside(files, trigger, lambda: move_away(files, noted=True)))
    assert report.sound, report.findings
    assert not verify(files).corrupt


def test_a_topic_that_goes_meanwhile_and_was_not_deleted_is_corruption() -> None:
    files, _, _ = sound_directory()

    def lose() -> None:
        move_away(files, noted=False)
        files.rename(f"{ROOT}/tmp/id-orders.deleted", "/elsewhere")

    report = verify(Beside(files, segment_file(30, "timeidx"), lose))
    assert report.corrupt


def create_again(files: MemoryFiles) -> None:
    """Do what a writer does when another topic of that name is created and written to."""
    entries = [
        topic_entry("orders", "id-orders", 1),
        topic_entry("payments", "id-payments", 2),
        {"kind": "deleted", "id": "id-orders"},
        topic_entry("orders", "id-later", 1),
    ]
    write_catalogue(files, ROOT, entries)
    later = Partition("orders", "id-later", 0, [], [frame(0, [b"v"]), frame(1, [b"w"])], 2)
    later.write(files, ROOT)


@pytest.mark.parametrize("trigger", PLACES)
def test_a_topic_that_is_replaced_meanwhile_is_no_contradiction(trigger: str) -> None:
    files, _, _ = sound_directory()

    def replace_topic() -> None:
        move_away(files, noted=True)
        create_again(files)

    report = verify(Beside(files, trigger, replace_topic))
    assert report.sound, report.findings
    after = verify(files)
    assert after.sound
    assert after.frames == 2 + 10


@pytest.mark.parametrize("gone_at", [f"{ROOT}/topics/orders", orders_path("segments")])
def test_a_topic_that_was_gone_and_is_there_again_is_read_again(gone_at: str) -> None:
    """What the walk did not find is no finding about the topic that has the name by the time it looks."""
    files, _, _ = sound_directory()
    hooked = HookedFiles(files)
    stage = [0]

    def act(kind: str, path: str) -> None:
        if stage[0] == 0 and (kind, path) == ("list", gone_at):
            stage[0] = 1
            move_away(files, noted=True)
        elif stage[0] == 1 and (kind, path) == ("stat", f"{ROOT}/topics/orders"):
            stage[0] = 2
            create_again(files)

    hooked.before = act
    report = verify(hooked)
    assert stage == [2]
    assert report.sound, report.findings
    assert report.frames == 2 + 10


# --- beside a live writer ----------------------------------------------------------------------


class Beside(RecordingFiles):
    """Lets a writer act once, just before verify opens *trigger*."""

    def __init__(self, inner: Files, trigger: str, act: Callable[[], None]) -> None:
        super().__init__(inner)
        self._trigger = trigger
        self._act: Callable[[], None] | None = act

    def open(self, path: str, mode: Mode) -> File:
        if path == self._trigger and self._act is not None:
            act, self._act = self._act, None
            act()
        return super().open(path, mode)


def test_segments_that_retention_removes_meanwhile_are_not_missed() -> None:
    files, orders, _ = sound_directory()

    def expire() -> None:
        orders.sealed, orders.log_start = orders.sealed[2:], 20
        orders.write_state(files, ROOT)
        for base in (0, 12):
            for suffix in ("log", "idx", "timeidx"):
                files.unlink(segment_file(base, suffix))

    report = verify(Beside(files, segment_file(0, "log"), expire))
    assert report.sound
    assert [f.path for f in notes(report) if f.what == "segment"] == [
        segment_file(0, "log"),
        segment_file(12, "log"),
    ]


def test_a_truncation_meanwhile_is_not_taken_for_corruption() -> None:
    files, orders, _ = sound_directory()

    def truncate() -> None:
        kept = orders.active[:1]
        end = {"base": 30, "position": len(kept[0].data), "next_offset": 32}
        orders.active, orders.marked, orders.tail = [*kept, frame(32, [b"new"], epoch=1)], 2, b""
        orders.epochs, orders.epoch_start = [(0, 0), (1, 32)], end
        orders.write(files, ROOT)

    report = verify(Beside(files, segment_file(30, "log"), truncate))
    assert report.sound
    assert report.frames == 15 + 2 + 10


def test_a_roll_meanwhile_hides_no_corruption() -> None:
    """The damaged segment was active when the walk began and is sealed when it is looked at again."""
    files, orders, _ = sound_directory()

    def roll() -> None:
        orders.sealed, orders.active, orders.marked, orders.tail = [*orders.sealed, ACTIVE], [], 0, b""
        orders.write(files, ROOT)
        put(files, segment_file(30, "log"), flipped(log_of(ACTIVE), 8 * 70))

    report = verify(Beside(files, segment_file(30, "log"), roll))
    assert segment_file(30, "log") in [f.path for f in serious(report)]


def test_a_roll_between_the_two_metadata_files_is_not_taken_for_a_contradiction() -> None:
    files, orders, _ = sound_directory()

    def roll() -> None:
        orders.sealed, orders.active, orders.marked, orders.tail = [*orders.sealed, ACTIVE], [], 0, b""
        orders.write(files, ROOT)

    assert verify(Beside(files, orders_path("mark"), roll)).sound


def test_a_topic_created_meanwhile_is_no_stranger() -> None:
    files, _, _ = sound_directory()
    fresh = Partition("fresh", "id-fresh", 0, [], [frame(0, [b"v"])], 1)

    def create() -> None:
        entries = [
            topic_entry("orders", "id-orders", 1),
            topic_entry("payments", "id-payments", 2),
            topic_entry("fresh", "id-fresh", 1),
        ]
        write_catalogue(files, ROOT, entries)
        fresh.write(files, ROOT)

    assert verify(Beside(files, orders_path("partition.json"), create)).sound


# --- verify and the engine --------------------------------------------------------------------


def test_verify_shares_no_code_with_the_writer() -> None:
    """I3: of the seam it knows only files to read; other rooms decompress and check signatures."""
    modules = sorted(Path(verify_frame.__file__).parent.rglob("*.py"))
    allowed = {
        "disk": {"ReadableFile", "ReadableFiles", "join", "parent", "read_file"},
        "formats": {"Compression", "decompress"},
        "host": {"process"},
        # What a sentence suggests, not what bytes mean.
        "tenancy": {"suggest"},
        "integrity": {"Checkpoint", "VerifierKey", "open_checkpoint", "unverified"},
    }
    for module in modules:
        for node in ast.walk(ast.parse(module.read_text())):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("cordwood."):
                room = str(node.module).split(".")[1]
                names = {alias.name for alias in node.names}
                shared = room in {"verify", "kernels", "errors"} or names <= allowed.get(room, set())
                assert shared, f"{module.name} imports {names} from {node.module}"
    assert len(modules) >= 25


def test_no_power_cut_leaves_the_engine_with_what_verify_calls_corruption() -> None:
    """Verify and recovery agree on what a crash explains, though they share no code."""
    recording = RecordingFiles(MemoryFiles())
    with snapshots_every(300), embedded.open(ROOT, files=recording) as log:
        gone = log.topic("gone")
        gone.append(b"deleted soon")
        log.data_directory.topics.delete("gone")
        log.data_directory.producer_ids.reserve(100)
        topic = log.topic("orders", config={"segment.bytes": "400", "index.interval.bytes": "100"})
        partition = log.data_directory.partitions.own("orders", 0)
        for i in range(6):
            partition.commit(send(partition, Sent(7, 0, i, (b"v" * 50,)))[1])
            topic.append(b"v" * 50, key=b"k")
        topic.truncate(partition=0, end_offset=8)  # between two frames, and below within one
        topic.append(b"x" * 80)
        topic.truncate(partition=0, end_offset=3)
        topic.append(b"y" * 80)
        partition.commit(send(partition, Sent(7, 1, 0, (b"z",)))[1])
    with embedded.open(ROOT, files=recording) as log:
        log.topic("orders").append(b"z")
    count = CrashCount()
    for image in crash_images(recording, limit_per_prefix=12, count=count):
        if image.files.exists(join(ROOT, "meta")):
            report = verify(image.files)
            found = "; ".join(map(str, serious(report)))
            assert not report.corrupt, f"I3: {found} ({image.kind} after {image.prefix} operations)"
            wrong = [f for f in serious(report) if f.path.endswith("producers.json")]
            assert not wrong, f"R5: {found} ({image.kind} after {image.prefix} operations)"
    print("\n".join(count.report()))
    count.require(800)
    assert verify(recording).sound
