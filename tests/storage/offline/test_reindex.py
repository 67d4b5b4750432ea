"""Indexes that were lost or damaged come back byte for byte, whatever happens on the way. Invariant R5."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Sequence
from dataclasses import replace

import pytest
from support.crashes import CrashCount, crash_images
from support.data_directory import Partition, envelope, flipped, frame, orders_partition, put
from support.disks import FaultPlan, FaultyFiles, RecordingFiles, image
from support.logs import DATA, SMALL, TickingClock, disk_of, frames_of, open_log, segment_file
from support.verifying import ROOT, one_partition

from cordwood.config.loading import BrokerConfig
from cordwood.disk.files import Files, join
from cordwood.disk.memory import MemoryFiles
from cordwood.errors import CordwoodError, DirectoryLocked, DirectoryRefused, StorageError, UnknownTopic
from cordwood.storage.directory.data_directory import DataDirectory, Opening
from cordwood.storage.offline.reindex import (
    ReindexReport,
    SegmentBuilt,
    SegmentWork,
    _Reindexing,
    build_indexes,
    reindex_directory,
)
from cordwood.verify import verify_directory

Content = dict[str, bytes]


def opening(files: Files, path: str = DATA) -> Opening:
    return Opening(files, path, BrokerConfig(), create=False, clock=TickingClock())


def reindex(files: Files, topic: str | None = None) -> ReindexReport:
    return reindex_directory(opening(files), topic)


def lived_in() -> MemoryFiles:
    """Return a directory with sealed segments, an active one, a truncation, an empty topic, one record."""
    files = MemoryFiles()
    with open_log(files) as log:
        orders = log.topic("orders", 2, SMALL)
        for i in range(16):
            orders.append_many([(b"k", b"v" * (i * 7 % 30))] * (1 + i % 3), partition=0)
        orders.truncate(0, 20)
        for _ in range(3):
            orders.append(b"after the truncation", partition=0)
        orders.append(b"one record", partition=1)
        log.topic("empty")
    return files


def segments(files: Files) -> Content:
    """Return the files of all segments, indexes included."""
    found = image(files, DATA)
    return {path: data for path, data in found.items() if "/segments/" in path and data is not None}


def indexes(files: Files) -> list[str]:
    return [path for path in segments(files) if path.endswith("idx")]


def damaged_in(how: str, data: bytes) -> bytes:
    return {
        "flipped": flipped(data, 77) if data else b"x",
        "cut": data[:-5] if data else b"x",
        "emptied": b"",
        "longer": data + b"x" * 16,
    }[how]


def test_sound_indexes_are_left_as_they_are() -> None:
    files = lived_in()
    before = segments(files)
    report = reindex(files)
    assert (report.rebuilt, report.damaged) == ((), ())
    assert (report.topics, report.partitions, report.segments) == (2, 2, len(before) // 3)
    assert report.bytes == sum(len(data) for path, data in before.items() if path.endswith(".log"))
    assert segments(files) == before
    assert report.segments >= 5


def test_any_index_comes_back_byte_for_byte_and_the_report_names_it() -> None:
    """Deleted, flipped, cut, emptied or longer: what verify calls an index finding is what is rebuilt."""
    original = lived_in()
    before, whole = segments(original), image(original, DATA)
    cases = 0
    for path in indexes(original):
        for how in ("deleted", "flipped", "cut", "emptied", "longer"):
            changed = {} if how == "deleted" else {path: damaged_in(how, before[path])}
            files = disk_of(whole, changed, [path] if how == "deleted" else [])
            found = [(f.path, f.severity) for f in verify_directory(files, DATA).findings if f.path == path]
            report = reindex(files)
            assert [(each.path, "index") for each in report.rebuilt] == found, (path, how)
            assert all(each.reason == ("missing" if how == "deleted" else "wrong") for each in report.rebuilt)
            assert report.damaged == ()
            assert segments(files) == before, (path, how)
            assert reindex(files).rebuilt == ()
            cases += 1
    print(f"{cases} damaged indexes, all as they were")
    assert cases >= 50


def test_all_indexes_lost_at_once_come_back() -> None:
    files = lived_in()
    before = segments(files)
    for path in indexes(files):
        files.unlink(path)
    report = reindex(files)
    # Where no entry is due, there is nothing to be missed.
    assert {each.path for each in report.rebuilt} >= {path for path in indexes(files) if before[path]}
    assert segments(files) == before
    assert verify_directory(files, DATA).sound


def test_an_index_that_is_behind_after_a_crash_is_not_called_wrong() -> None:
    recording = RecordingFiles(MemoryFiles())
    log = open_log(recording)
    topic = log.topic("orders", 1, SMALL)
    for i in range(12):
        topic.append(b"v%d" % i)
        killed = disk_of(image(recording, DATA))
        assert reindex(killed).rebuilt == ()
        assert verify_directory(killed, DATA).sound
    log.close()


def test_one_topic_alone_and_an_unknown_one() -> None:
    files = lived_in()
    with open_log(files) as log:
        log.topic("payments").append(b"v")
    files.unlink(segment_file("orders", 0, 0, "idx"))
    assert reindex(files, "payments").rebuilt == ()
    assert reindex(files, "empty") == ReindexReport(1, 0, 0, 0, (), ())
    with pytest.raises(UnknownTopic, match="there is no topic no-such"):
        reindex(files, "no-such")
    with pytest.raises(UnknownTopic):
        reindex(files, "../meta")
    assert [each.path for each in reindex(files, "orders").rebuilt] == [segment_file("orders", 0, 0, "idx")]


def test_a_directory_that_is_held_or_none_is_refused() -> None:
    files = lived_in()
    with open_log(files), pytest.raises(DirectoryLocked):
        reindex(files)
    files.make_directories("/elsewhere")
    with pytest.raises(DirectoryRefused):
        reindex_directory(opening(files, "/elsewhere"))


# --- what cannot be indexed ----------------------------------------------------------------------


@pytest.mark.parametrize("which", ["sealed", "active"])
def test_a_damaged_log_is_named_and_its_indexes_are_left_alone(which: str) -> None:
    files = lived_in()
    bases = sorted(int(path[-24:-4]) for path in segments(files) if "orders/0/" in path and "log" in path)
    base, other = (bases[1], bases[0]) if which == "sealed" else (bases[-1], bases[0])
    log = segment_file("orders", 0, base)
    data = segments(files)[log]
    position = frames_of(data)[1][0]
    put(files, log, flipped(data, 8 * (position + 70)))
    broken = segment_file("orders", 0, base, "idx")
    if which == "sealed":
        put(files, broken, b"rubbish")
    files.unlink(segment_file("orders", 0, other, "timeidx"))
    before = segments(files)
    report = reindex(files)
    (damage,) = report.damaged
    assert (damage.path, damage.position) == (log, position)
    assert "CRC-32C" in damage.reason
    # What is sound is rebuilt all the same.
    assert [each.path for each in report.rebuilt] == [segment_file("orders", 0, other, "timeidx")]
    after = segments(files)
    assert {path: after[path] for path in before} == before
    assert not files.list(join(DATA, "tmp"))


@pytest.mark.parametrize("which", [0, -1], ids=["sealed", "active"])
def test_a_log_that_is_gone_or_short_is_named(which: int) -> None:
    """Once: the segment that takes appends in place of an active one has no frames, so it needs no index."""
    whole = image(lived_in(), DATA)
    path = sorted(path for path in whole if "orders/0/segments" in path and path.endswith(".log"))[which]
    for files in (disk_of(whole, gone=[path]), disk_of(whole, {path: (whole[path] or b"")[:-1]})):
        (damage,) = reindex(files).damaged
        assert damage.path == path


def test_a_partition_that_cannot_be_opened_is_named_and_the_others_are_rebuilt() -> None:
    files = lived_in()
    state = join(DATA, "topics/orders/0/partition.json")
    put(files, state, b"rubbish")
    lost = segment_file("orders", 1, 0, "idx")
    files.unlink(lost)
    report = reindex(files)
    assert [each.path for each in report.damaged] == [state]
    assert [(each.path, each.reason) for each in report.rebuilt] == [(lost, "missing")]
    assert report.partitions == 1


def test_metadata_that_vouch_for_another_index_are_a_contradiction_and_nothing_is_written() -> None:
    partition = orders_partition()
    sealed = partition.body()["sealed"]
    sealed[1]["index_crc32c"] ^= 1
    partition.changes = {"sealed": sealed}
    files = one_partition(partition)
    path = partition.segment(ROOT, 12, "idx")
    put(files, path, b"rubbish")
    report = reindex_directory(opening(files, ROOT))
    assert [(each.path, each.reason) for each in report.damaged] == [
        (partition.segment(ROOT, 12, "log"), "gives other indexes than partition.json has the checksums of")
    ]
    assert image(files, ROOT)[path] == b"rubbish"
    assert not files.list(join(ROOT, "tmp"))
    assert verify_directory(files, ROOT).corrupt


@pytest.mark.parametrize("generation", [0, 1], ids=["never compacted", "compacted"])
def test_gaps_are_indexed_where_compaction_left_them_and_are_damage_elsewhere(generation: int) -> None:
    frames = [frame(0, [b"a" * 100, b"b"]), frame(10, [b"c"]), frame(11, [b"d"])]
    partition = Partition("orders", "id-orders", 0, [frames], [], 0, interval_bytes=0)
    partition.changes = {"sealed": [{**partition.sealed_entry(frames), "generation": generation}]}
    files = one_partition(partition)
    before = image(files, ROOT)
    assert verify_directory(files, ROOT).sound
    path = partition.segment(ROOT, 0, "idx")
    put(files, path, b"rubbish")
    report = reindex_directory(opening(files, ROOT))
    if generation:
        assert ([each.path for each in report.rebuilt], report.damaged) == ([path], ())
        assert image(files, ROOT)[path] == before[path]
    else:
        assert [each.path for each in report.damaged] == [partition.segment(ROOT, 0, "log")]
        assert image(files, ROOT)[path] == b"rubbish"


def test_records_below_the_log_start_leave_no_gap_in_the_indexes() -> None:
    files = lived_in()
    with open_log(files) as log:
        log.topic("orders").advance_log_start(0, 9)
    before = segments(files)
    for path in indexes(files):
        files.unlink(path)
    assert reindex(files).damaged == ()
    assert segments(files) == before


# --- crashes, failing disks, changes meanwhile ---------------------------------------------------


def broken() -> tuple[MemoryFiles, Content]:
    """Return a directory with four indexes missing or wrong, and its segments as they should be."""
    files = lived_in()
    before = segments(files)
    first, *others = sorted({path[-24:-4] for path in before if "orders/0/" in path and "log" in path})
    files.unlink(segment_file("orders", 0, int(first), "idx"))
    put(files, segment_file("orders", 0, int(first), "timeidx"), b"rubbish")
    files.unlink(segment_file("orders", 0, int(others[1]), "idx"))
    files.unlink(segment_file("orders", 0, int(others[-1]), "idx"))
    return files, before


def test_whatever_a_power_cut_leaves_the_next_run_finishes_and_nothing_stays_behind() -> None:
    files, before = broken()
    recording = RecordingFiles(files, DATA)
    report = reindex(recording)
    assert len(report.rebuilt) == 4
    count = CrashCount()
    for crashed in crash_images(recording, limit_per_prefix=6, count=count):
        assert reindex(crashed.files).damaged == (), f"{crashed.kind} after {crashed.prefix}"
        assert segments(crashed.files) == before, f"{crashed.kind} after {crashed.prefix}"
        tmp = join(DATA, "tmp")
        assert not crashed.files.exists(tmp) or not crashed.files.list(tmp)
    print("\n".join(count.report()))
    assert count.total > 60


def test_what_was_rebuilt_survives_a_power_cut_right_after() -> None:
    files, before = broken()
    recording = RecordingFiles(files, DATA)
    reindex(recording)
    last = [crashed for crashed in crash_images(recording) if crashed.prefix == len(recording.history)]
    assert last
    for crashed in last:
        assert segments(crashed.files) == before, crashed.kind


def test_whichever_call_fails_the_next_run_makes_it_good() -> None:
    """EIO at any one call: an error or a report, never a wrong index in place of a right one."""
    whole = image(broken()[0], DATA)
    before = broken()[1]
    fail_at = 0
    while True:
        fail_at += 1
        disk = disk_of(whole)
        faulty = FaultyFiles(
            disk,
            FaultPlan(
                fail_at, frozenset({"open", "read", "write", "sync", "rename", "sync_directory"}), errno.EIO
            ),
        )
        with contextlib.suppress(CordwoodError, OSError):
            reindex(faulty)
        if not faulty.failures:
            break
        healed = disk_of(image(disk, DATA))
        assert reindex(healed).damaged == (), fail_at
        assert segments(healed) == before, fail_at
    print(f"{fail_at - 1} failing calls, all made good")
    assert fail_at > 40


def test_a_segment_that_changed_since_it_was_planned_is_refused() -> None:
    files, _ = broken()
    with contextlib.closing(DataDirectory(opening(files))) as directory:
        run = _Reindexing(directory, files, {})
        work = run.plan("orders")
        built = [build_indexes(files, each) for each in work]
        log = directory.partitions.find("orders", 0)
        assert log is not None
        log.truncate(1)
        with pytest.raises(StorageError, match=r"changed while it was indexed; run it again"):
            run.settle(work[0], built[0])


def test_what_is_not_as_it_was_staged_is_refused() -> None:
    files, _ = broken()

    def build(work: Sequence[SegmentWork]) -> list[SegmentBuilt]:
        built = [build_indexes(files, each) for each in work]
        staged = next(index.staged for each in built for index in each.indexes if index.staged)
        put(files, staged, b"something else")
        return built

    with pytest.raises(StorageError, match=r"\.spool is not what was staged there"):
        reindex_directory(opening(files), build=build)
    # And what it left is gone with the next open.
    assert reindex(files).damaged == ()
    assert not files.list(join(DATA, "tmp"))


def test_building_is_read_only_but_for_tmp() -> None:
    files, _ = broken()
    with contextlib.closing(DataDirectory(opening(files))) as directory:
        work = _Reindexing(directory, files, {}).plan(None)
        before = image(files, DATA)
        for each in work:
            build_indexes(files, each)
            build_indexes(files, replace(each))
        after = image(files, DATA)
    added = after.keys() - before.keys()
    assert {path.rpartition("/")[0] for path in added} <= {DATA, join(DATA, "tmp")}
    assert {path: after[path] for path in before} == before
    assert len([path for path in added if path.endswith(".spool")]) == 6


def test_the_name_of_a_contradicting_topic_is_never_a_path() -> None:
    """What `partition.json` says of itself leads nowhere: the catalogue has the names."""
    partition = orders_partition()
    files = one_partition(partition)
    put(
        files, join(partition.directory(ROOT), "partition.json"), envelope({**partition.body(), "topic": "x"})
    )
    (damage,) = reindex_directory(opening(files, ROOT)).damaged
    assert damage.path == join(partition.directory(ROOT), "partition.json")
