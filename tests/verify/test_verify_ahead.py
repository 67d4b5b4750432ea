"""Segments checked ahead of the walk: the report is the same whoever reads them, and beside a live writer
none of its changes, whenever they come, is taken for corruption. Invariants I3 and D17."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from support.clocks import HookedFiles
from support.data_directory import (
    Partition,
    all_files,
    contents,
    envelope,
    flipped,
    frame,
    index_of,
    log_of,
    put,
    time_index_of,
    topic_entry,
    write_catalogue,
    write_sound_directory,
)
from support.disks import RecordingFiles
from support.verifying import (
    PRODUCERS,
    ROOT,
    SNAPSHOT,
    one_partition,
    orders_path,
    producing_directory,
    producing_partition,
    segment_file,
    serious,
    sound_directory,
    stamped,
)

from cordwood.disk.files import Files, read_file
from cordwood.disk.memory import MemoryFiles
from cordwood.disk.posix import PosixFiles
from cordwood.errors import DirectoryRefused, UnknownTopic
from cordwood.verify import Checker, SegmentCheck, SegmentResult, VerifyReport, run_check, verify_directory


def elsewhere(files: Files) -> Checker:
    """Return who runs checks as tasks do: what goes there and comes back is pickled, and in any order."""

    def check(checks: Sequence[SegmentCheck]) -> list[SegmentResult]:
        numbered = list(enumerate(pickle.loads(pickle.dumps(list(checks)))))
        found = {number: run_check(files, each) for number, each in reversed(numbered)}
        back: dict[int, SegmentResult] = pickle.loads(pickle.dumps(found))
        return [back[number] for number in range(len(checks))]

    return check


def ahead(files: Files, topic: str | None = None) -> VerifyReport:
    return verify_directory(files, ROOT, topic, check=elsewhere(files))


def test_the_report_is_the_same_whoever_reads_the_segments_and_each_is_read_once() -> None:
    for files in (sound_directory()[0], producing_directory(), MemoryFiles()):
        files.make_directories(f"{ROOT}/meta")
        assert ahead(files) == verify_directory(files, ROOT)
    files, _, _ = sound_directory()
    opened: list[str] = []
    hooked = HookedFiles(files)
    hooked.before = lambda kind, path: opened.append(path) if kind == "open" else None
    assert verify_directory(hooked, ROOT, check=elsewhere(files)) == verify_directory(files, ROOT)
    assert not [path for path in opened if "/segments/" in path]


def test_the_report_of_any_damage_is_the_same_whoever_reads_the_segments() -> None:
    """Every file, damaged in four ways: one flipped bit in a few places, cut, emptied, gone."""
    files, _, _ = sound_directory()
    producing_partition().write(files, ROOT)
    put(files, PRODUCERS, envelope(SNAPSHOT))
    cases = unsound = 0
    for path, whole in contents(files, ROOT).items():
        bits = range(5, 8 * len(whole), max(8 * len(whole) // 40, 1))
        changed = [*(flipped(whole, bit) for bit in bits), whole[: len(whole) // 2], b"", None]
        for data in changed:
            if data is None:
                files.unlink(path)
            else:
                put(files, path, data)
            here = verify_directory(files, ROOT)
            assert ahead(files) == here, path
            cases += 1
            unsound += not here.sound
        put(files, path, whole)
    print(f"{cases} damaged files, {unsound} of them not sound, all reported alike")
    assert unsound > 500


def test_frames_of_a_damaged_segment_that_say_a_producers_offset_are_seen_alike() -> None:
    """A frame in a segment where it does not belong says an offset that was not looked for there."""
    partition = producing_partition()
    files = one_partition(partition)
    put(files, PRODUCERS, envelope(SNAPSHOT))
    put(files, segment_file(0, "log"), stamped(partition.active[0], 99, 0, 0).data)
    put(files, segment_file(30, "log"), flipped(log_of(partition.active), 8 * 70))
    here = verify_directory(files, ROOT)
    assert [f.what for f in here.findings if f.path == PRODUCERS] == ["batch of a producer"]
    assert ahead(files) == here


def test_one_topic_and_what_is_refused() -> None:
    files, orders, _ = sound_directory()
    put(files, orders.segment(ROOT, 0, "log"), b"rubbish")
    for topic in ("orders", "payments"):
        assert ahead(files, topic) == verify_directory(files, ROOT, topic)
    with pytest.raises(UnknownTopic):
        ahead(files, "no-such")
    with pytest.raises(DirectoryRefused):
        verify_directory(files, "/nowhere", check=elsewhere(files))


# --- beside a live writer ------------------------------------------------------------------------

Act = Callable[[MemoryFiles, Partition], None]


def roll(files: MemoryFiles, orders: Partition) -> None:
    orders.sealed, orders.active = [*orders.sealed, orders.active], []
    orders.marked, orders.tail = 0, b""
    orders.write(files, ROOT)


def append(files: MemoryFiles, orders: Partition) -> None:
    orders.active, orders.tail = [*orders.active, frame(40, [b"more"])], b""
    orders.marked = len(orders.active)
    orders.write(files, ROOT)


def truncate(files: MemoryFiles, orders: Partition) -> None:
    kept = orders.active[:1]
    end = {"base": 30, "position": len(kept[0].data), "next_offset": 32}
    orders.active, orders.marked, orders.tail = [*kept, frame(32, [b"new"], epoch=1)], 2, b""
    orders.epochs, orders.epoch_start = [(0, 0), (1, 32)], end
    orders.write(files, ROOT)


def expire(files: MemoryFiles, orders: Partition) -> None:
    orders.sealed, orders.log_start = orders.sealed[2:], 20
    orders.write_state(files, ROOT)
    for base in (0, 12):
        for suffix in ("log", "idx", "timeidx"):
            files.unlink(segment_file(base, suffix))


def delete(files: MemoryFiles, orders: Partition) -> None:
    entries = [topic_entry("orders", "id-orders", 1), topic_entry("payments", "id-payments", 2)]
    write_catalogue(files, ROOT, [*entries, {"kind": "deleted", "id": "id-orders"}])
    files.make_directories(f"{ROOT}/tmp")
    files.rename(f"{ROOT}/topics/orders", f"{ROOT}/tmp/id-orders.deleted")


def create_again(files: MemoryFiles, orders: Partition) -> None:
    delete(files, orders)
    entries = [
        topic_entry("orders", "id-orders", 1),
        topic_entry("payments", "id-payments", 2),
        {"kind": "deleted", "id": "id-orders"},
        topic_entry("orders", "id-later", 1),
    ]
    write_catalogue(files, ROOT, entries)
    Partition("orders", "id-later", 0, [], [frame(0, [b"v"]), frame(1, [b"w"])], 2).write(files, ROOT)


def save_producers(files: MemoryFiles, orders: Partition) -> None:
    """Append batches of a producer, and save what is known of it: more than the segments had ahead."""
    append(files, orders)
    producers = [{"id": 7, "epoch": 0, "batches": [[0, 0, 40, 41]], "seen_ms": 5}]
    put(files, PRODUCERS, envelope({**SNAPSHOT, "next_offset": 41, "producers": producers}))


ACTS: list[Act] = [roll, append, truncate, expire, delete, create_again]


def acting(files: Files, moment: str, act: Callable[[], None]) -> Checker:
    """Run checks as tasks do, with a writer at work before them, after the first, or after the last."""

    def check(checks: Sequence[SegmentCheck]) -> list[SegmentResult]:
        results = []
        if moment == "before":
            act()
        for each in checks:
            results.append(run_check(files, each))
            if moment == "between" and len(results) == 1:
                act()
        if moment == "after":
            act()
        return results

    return check


@pytest.mark.parametrize("moment", ["before", "between", "after"])
@pytest.mark.parametrize("act", ACTS, ids=lambda act: act.__name__)
def test_nothing_that_a_writer_does_meanwhile_is_taken_for_corruption(act: Act, moment: str) -> None:
    """And what is found is true of what is there afterwards, as far as that was judged at all."""
    files, orders, _ = sound_directory()
    report = verify_directory(files, ROOT, check=acting(files, moment, lambda: act(files, orders)))
    assert report.sound, report.findings
    after = verify_directory(files, ROOT)
    assert report.frames in (after.frames, 28)
    assert (report.topics, report.partitions) == (after.topics, after.partitions)


@pytest.mark.parametrize("moment", ["before", "between", "after"])
def test_what_is_known_of_producers_is_held_against_a_log_that_was_read_after_it(moment: str) -> None:
    files, orders, _ = sound_directory()
    report = verify_directory(files, ROOT, check=acting(files, moment, lambda: save_producers(files, orders)))
    assert report.sound, report.findings


@pytest.mark.parametrize("moment", ["before", "between", "after"])
@pytest.mark.parametrize("act", [roll, append, truncate], ids=lambda act: act.__name__)
def test_no_change_meanwhile_hides_corruption(act: Act, moment: str) -> None:
    files, orders, _ = sound_directory()

    def damage() -> None:
        act(files, orders)
        for base in (0, 30):
            path = segment_file(base, "log")
            put(files, path, flipped(read_file(files, path), 8 * 70))

    report = verify_directory(files, ROOT, check=acting(files, moment, damage))
    wanted = (
        {segment_file(30, "log")} if moment != "before" else {segment_file(0, "log"), segment_file(30, "log")}
    )
    assert {f.path for f in serious(report)} >= wanted


def test_a_finding_about_a_topic_that_has_another_in_its_place_does_not_stand() -> None:
    """An empty topic that is deleted and created again has the same plan; the missing file is there."""
    empty = Partition("orders", "id-orders", 0, [], [], 0)
    files = one_partition(empty)
    path = segment_file(0, "log")

    def check(checks: Sequence[SegmentCheck]) -> list[SegmentResult]:
        files.unlink(path)
        results = [run_check(files, each) for each in checks]
        assert not all(result.tally.sound for result in results)
        later = Partition("orders", "id-later", 0, [], [], 0)
        entries = [
            topic_entry("orders", "id-orders", 2),
            {"kind": "deleted", "id": "id-orders"},
            topic_entry("orders", "id-later", 2),
        ]
        write_catalogue(files, ROOT, entries)
        later.write(files, ROOT)
        return results

    assert verify_directory(files, ROOT, check=check).sound


def test_checking_ahead_changes_nothing_and_needs_no_index_to_find_anything() -> None:
    files, _, _ = sound_directory()
    before = contents(files, ROOT)
    watched = RecordingFiles(files, ROOT)
    start = len(watched.history)
    verify_directory(watched, ROOT, check=elsewhere(watched))
    assert watched.history[start:] == []
    assert contents(files, ROOT) == before
    for path in [path for path in all_files(files, ROOT) if path.endswith("idx")]:
        files.unlink(path)
    report = ahead(files)
    assert not report.corrupt
    assert report.frames == 28


def test_the_hand_made_directory_is_on_a_real_disk_what_it_is_in_memory(tmp_path: Path) -> None:
    root = str(tmp_path)
    write_sound_directory(PosixFiles(), root)
    put(PosixFiles(), orders_path("mark").replace(ROOT, root), b"")
    here = verify_directory(PosixFiles(), root)
    assert verify_directory(PosixFiles(), root, check=elsewhere(PosixFiles())) == here
    assert here.corrupt


# --- a swap that is committed and not finished ---------------------------------------------------


@pytest.mark.parametrize("renamed", range(4))
def test_files_of_a_committed_swap_are_judged_under_the_names_they_have(renamed: int) -> None:
    """Compaction puts one segment in place of two; a crash left it before any, some or all of the renames."""
    files, orders, _ = sound_directory()
    compacted = [orders.sealed[0][0], orders.sealed[1][-1]]
    orders.sealed = [compacted, orders.sealed[2]]
    entries = [orders.sealed_entry(each) for each in orders.sealed]
    orders.changes = {"sealed": [{**entries[0], "generation": 1}, entries[1]], "swapping": 0}
    orders.write_state(files, ROOT)
    new = {
        "idx": index_of(compacted, orders.interval_bytes),
        "timeidx": time_index_of(compacted),
        "log": log_of(compacted),
    }
    for number, (suffix, data) in enumerate(new.items()):
        put(files, segment_file(0, suffix if number < renamed else f"{suffix}.swap"), data)
    report = verify_directory(files, ROOT)
    assert report.sound, report.findings
    assert ahead(files) == report
    name = "log" if renamed == 3 else "log.swap"
    put(files, segment_file(0, name), flipped(new["log"], 8 * 70))
    assert segment_file(0, name) in [finding.path for finding in serious(ahead(files))]
