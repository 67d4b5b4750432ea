"""Staging: what a task has is in files of its own, in order, durable when it says so, and collected later."""

from __future__ import annotations

import errno

import pytest
from support.clocks import ManualClock
from support.disks import CHANGES, KINDS, FaultPlan, FaultyFiles
from support.logs import ends
from support.publishing import (
    DATA,
    FORMAT,
    NOW_MS,
    QUERY,
    SINK,
    adopting,
    frame_of,
    open_log,
    stage,
    staged_files,
    writer,
)

from cordwood.disk.files import join, parent, read_file
from cordwood.disk.memory import MemoryFiles
from cordwood.errors import CordwoodError, DiskFull, FrameError, RecordRefused, StorageError
from cordwood.formats import batch
from cordwood.storage.sink import ABANDONED_MS, staging
from cordwood.storage.sink.journal import journal_path
from cordwood.storage.sink.staging import (
    Section,
    Share,
    ShareWriter,
    StagedTarget,
    batch_directory,
    collect,
    collect_abandoned,
    query_key,
    read_frames,
    share_path,
)

A, B = StagedTarget("orders", "id-1", 0), StagedTarget("orders", "id-1", 1)
WEEK_MS = 7 * 24 * 3_600_000


def frames_for(
    files: MemoryFiles, shares: tuple[Share, ...], target: StagedTarget, number: int = 0
) -> list[bytes]:
    """Return the values staged for *target*, in the order they would be published."""
    found: list[bytes] = []
    for share in shares:
        path = share_path(DATA, QUERY, number, share.name)
        for section in share.sections:
            if section.target == target:
                for frame in read_frames(files, path, section, FORMAT, 1 << 20):
                    found += [record.value or b"" for record in FORMAT.decode(frame, 0)]
    return found


# --- What a writer leaves ---------------------------------------------------------------------------


def test_small_sections_share_one_file_and_each_counts_its_offsets_from_zero() -> None:
    files = MemoryFiles()
    staged = writer(files)
    for number in range(3):
        staged.append(A, frame_of(b"a%d" % number, b"a%d'" % number))
        staged.append(B, frame_of(b"b%d" % number))
    assert staged_files(files) == [], "something was written before there was a reason to"
    (share,) = staged.finish()
    assert [section.target for section in share.sections] == [A, B]
    first, second = share.sections
    assert (first.position, first.records, second.position, second.records) == (0, 6, first.size, 3)
    path = share_path(DATA, QUERY, 0, share.name)
    assert len(read_file(files, path)) == first.size + second.size
    offsets = [batch.read_header(f).base_offset for f in read_frames(files, path, first, FORMAT, 1 << 20)]
    assert offsets == [0, 2, 4]
    assert frames_for(files, (share,), A) == [b"a0", b"a0'", b"a1", b"a1'", b"a2", b"a2'"]
    assert frames_for(files, (share,), B) == [b"b0", b"b1", b"b2"]


def test_nothing_staged_is_no_share_and_no_file() -> None:
    files = MemoryFiles()
    assert writer(files).finish() == ()
    assert not files.exists(SINK)


def test_a_section_gets_a_file_of_its_own_from_the_threshold_on_and_not_before() -> None:
    size = len(frame_of(b"x"))
    for threshold, own in ((2 * size, True), (2 * size + 1, False)):
        files = MemoryFiles()
        with adopting(threshold):
            staged = writer(files)
            staged.append(B, frame_of(b"b"))
            staged.append(A, frame_of(b"x"))
            staged.append(A, frame_of(b"y"))
            shares = staged.finish()
        assert len(shares) == (2 if own else 1)
        assert [len(share.sections) for share in shares] == ([1, 1] if own else [2])
        if own:
            assert shares[0].sections[0].target == A
            assert len(read_file(files, share_path(DATA, QUERY, 0, shares[0].name))) == 2 * size
        assert frames_for(files, shares, A) == [b"x", b"y"]


def test_a_file_is_cut_at_its_largest_size_and_the_order_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    size = len(frame_of(b"00"))
    monkeypatch.setattr(staging, "FILE_BYTES_MAX", 4 * size)
    files = MemoryFiles()
    with adopting(2 * size):
        staged = writer(files)
        for number in range(23):
            staged.append(A, frame_of(b"%02d" % number))
            staged.append(B, frame_of(b"%02d" % number))
        shares = staged.finish()
    wanted = [b"%02d" % number for number in range(23)]
    assert frames_for(files, shares, A) == frames_for(files, shares, B) == wanted
    sizes = [section.size for share in shares for section in share.sections if section.target == A]
    assert sizes == [4 * size] * 5 + [3 * size]
    assert len({share.name for share in shares}) == len(shares)
    for share in shares:
        path = share_path(DATA, QUERY, 0, share.name)
        assert len(read_file(files, path)) == sum(section.size for section in share.sections)


@pytest.mark.parametrize("partitions", [1, 3, 40])
def test_what_a_task_holds_in_memory_is_bounded(monkeypatch: pytest.MonkeyPatch, partitions: int) -> None:
    """However many partitions it writes to, and the largest section is what goes."""
    monkeypatch.setattr(staging, "HELD_BYTES_MAX", 2_000)
    files = MemoryFiles()
    staged = writer(files)
    targets = [StagedTarget("orders", "id-1", number) for number in range(partitions)]
    largest = 0
    for number in range(200):
        staged.append(targets[number % partitions], frame_of(b"%03d" % number))
        held = sum(len(frame) for section in staged._held.values() for frame in section.frames)
        assert held == staged._held_bytes
        largest = max(largest, held)
    assert largest <= 2_000
    shares = staged.finish()
    for place, target in enumerate(targets):
        assert frames_for(files, shares, target) == [b"%03d" % n for n in range(place, 200, partitions)]


def test_a_name_has_the_time_the_task_and_a_number() -> None:
    files = MemoryFiles()
    with adopting(1):
        staged = writer(files, task="3-attempt-7")
        staged.append(A, frame_of(b"a"))
        staged.append(B, frame_of(b"b"))
        names = [share.name for share in staged.finish()]
    assert names == [f"{NOW_MS}-3-attempt-7-1.share", f"{NOW_MS}-3-attempt-7-2.share"]
    assert [parent(path) for path in staged_files(files)] == [batch_directory(DATA, QUERY, 0)] * 2


def test_a_task_never_writes_into_what_another_one_staged() -> None:
    """Two attempts under one name: the second is refused, and the first one's bytes stay."""
    files = MemoryFiles()
    first, second = writer(files), writer(files)
    first.append(A, frame_of(b"first"))
    shares = first.finish()
    second.append(A, frame_of(b"second"))
    with pytest.raises(StorageError):
        second.finish()
    assert frames_for(files, shares, A) == [b"first"]


@pytest.mark.parametrize("threshold", [1, 1 << 40])
def test_discard_leaves_no_file(threshold: int) -> None:
    files = MemoryFiles()
    with adopting(threshold):
        for finished in (False, True):
            staged = writer(files, task=f"{finished}")
            for _ in range(3):
                staged.append(A, frame_of(b"a"))
                staged.append(B, frame_of(b"b"))
            if finished:
                staged.finish()
            staged.discard()
            assert staged_files(files) == []


@pytest.mark.parametrize("data", ["/data", "/data/", "data", "."])
def test_staging_ends_whatever_the_directory_is_called(data: str) -> None:
    files = MemoryFiles()
    files.make_directories(data)
    staged = ShareWriter(files, data, QUERY, 0, "t", NOW_MS, FORMAT)
    staged.append(A, frame_of(b"a"))
    with ends():
        assert len(staged.finish()) == 1


def test_a_name_that_leads_out_of_the_directory_is_refused() -> None:
    for name in ("../1-a-1.share", "1-a-1.share/../../x", "/etc/passwd", "", ".", "..", "a-1.share"):
        with pytest.raises(RecordRefused):
            share_path(DATA, QUERY, 0, name)
    for name in (
        "1-a-1.share\n",
        "1-a-1.share\0",
        "1-ä-1.share",
        "1-a-1",
        f"1-{'a' * 200}.share",
        "-1.share",
    ):
        with pytest.raises(RecordRefused):
            share_path(DATA, QUERY, 0, name)
    assert share_path(DATA, QUERY, 5, "1-a-1.share") == join(SINK, query_key(QUERY), "5", "1-a-1.share")


def test_a_query_of_any_name_stays_in_its_directory() -> None:
    for query in ("../../x", "a/b", "", ".", "\0", "q" * 5_000, "ä ✓"):
        assert parent(parent(batch_directory(DATA, query, 0))) == SINK
        assert len(query_key(query)) == 32
        assert query_key(query).isalnum()
        assert parent(journal_path(DATA, query)) == join(DATA, "meta", "sink")


# --- A disk that refuses ----------------------------------------------------------------------------


@pytest.mark.parametrize("threshold", [1, 1 << 40])
@pytest.mark.parametrize("fault", ["EIO once", "EIO for ever", "ENOSPC once", "ENOSPC for ever", "short"])
def test_whichever_call_of_staging_fails_the_error_is_ours_and_nothing_is_visible(
    fault: str, threshold: int
) -> None:
    """And another try, under another name, gives all of it once the disk is well again."""
    error = errno.ENOSPC if "ENOSPC" in fault else errno.EIO
    n = refused = full = 0
    while True:
        n += 1
        disk = MemoryFiles()
        kinds = frozenset({"write"}) if fault == "short" else CHANGES if error == errno.ENOSPC else KINDS
        plan = FaultPlan(n, kinds=kinds, error=error, forever="for ever" in fault)
        if fault == "short":
            plan = FaultPlan(n, kinds=kinds, error=None, short=7)
        files = FaultyFiles(disk, plan)
        with open_log(disk) as log, adopting(threshold):
            data = log.data_directory
            data.topics.create("orders", "id-1", 2, {})
            contents = {("orders", 0): [[b"a"], [b"b"]], ("orders", 1): [[b"c"]]}
            try:
                shares = stage(files, data, contents)
            except CordwoodError as failure:
                refused += 1
                full += isinstance(failure, DiskFull)
                assert data.readable("orders", 0).high_watermark == 0
                files.heal()
                shares = stage(files, data, contents, task="0-b")
            assert data.publisher.publish(QUERY, 0, shares)
            assert [data.readable("orders", p).high_watermark for p in (0, 1)] == [2, 1]
            assert staged_files(disk) == []
        if not files.failures:
            break
    print(f"{fault}: {n - 1} calls failed, {refused} refused")
    assert n > 3
    assert refused > 3 or fault == "short"
    assert full == (refused if error == errno.ENOSPC else 0)


@pytest.mark.parametrize("threshold", [1, 1 << 40])
def test_discard_after_a_failure_leaves_no_file(threshold: int) -> None:
    """What is left of a file that could not be finished takes the space that was missing."""
    left = []
    for n in range(1, 30):
        disk = MemoryFiles()
        files = FaultyFiles(disk, FaultPlan(n, kinds=CHANGES, error=errno.ENOSPC))
        staged = writer(files)
        with adopting(threshold):
            try:
                staged.append(A, frame_of(b"a"))
                staged.append(B, frame_of(b"b"))
                staged.finish()
            except DiskFull:
                staged.discard()
                if staged_files(disk):
                    left.append(n)
        if not files.failures:
            break
    assert not left


# --- Reading frames ----------------------------------------------------------------------------------


def test_frames_are_read_only_where_the_section_says() -> None:
    files = MemoryFiles()
    staged = writer(files)
    staged.append(A, frame_of(b"a"))
    staged.append(B, frame_of(b"b", b"c"))
    (share,) = staged.finish()
    path = share_path(DATA, QUERY, 0, share.name)
    first, second = share.sections
    size = first.size + second.size
    for section in (
        Section(*A, position=0, size=first.size - 1, records=1),
        Section(*A, position=1, size=first.size, records=1),
        Section(*B, position=first.size, size=second.size + 1, records=2),
        Section(*A, position=size, size=10, records=1),
        Section(*A, position=0, size=size + 10, records=3),
    ):
        with pytest.raises(RecordRefused, match="share"):
            list(read_frames(files, path, section, FORMAT, 1 << 20))
    with pytest.raises(RecordRefused):
        list(read_frames(files, path, first, FORMAT, first.size - 1))
    with pytest.raises(RecordRefused, match="missing"):
        list(read_frames(files, f"{path}x", first, FORMAT, 1 << 20))
    assert len(list(read_frames(files, path, Section(*A, 0, size, 3), FORMAT, 1 << 20))) == 2


# --- Renumbering --------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 300])
def test_renumber_sets_offset_and_epoch_and_tells_size_and_next_offset(count: int) -> None:
    frame = frame_of(*[b"%d" % n for n in range(count)])
    whole = bytes(frame)
    assert FORMAT.renumber(frame, 12_345_678_901, 7) == (len(frame), 12_345_678_901 + count)
    header = batch.read_header(frame)
    assert (header.base_offset, header.record_count) == (12_345_678_901, count)
    assert frame[12:16] == (7).to_bytes(4, "big")
    # Nothing else changed, so the checksum still holds.
    assert bytes(frame[8:12] + frame[16:]) == whole[8:12] + whole[16:]
    assert [record.value for record in FORMAT.decode(frame, 0)] == [b"%d" % n for n in range(count)]
    head = bytearray(whole[: FORMAT.place_size])
    assert FORMAT.renumber(head, 12_345_678_901, 7) == (len(frame), 12_345_678_901 + count)
    assert head == frame[: FORMAT.place_size]


def test_renumber_refuses_what_is_no_header_and_changes_nothing() -> None:
    sound = frame_of(b"a", b"b")[: FORMAT.place_size]
    bad = [bytearray(sound[:length]) for length in range(FORMAT.place_size)]
    bad.append(bytearray(FORMAT.place_size))
    for at, value in ((16, 1), (16, 0), (23, 0x80), (8, 0xFF)):
        changed = bytearray(sound)
        changed[at] = value
        bad.append(changed)
    short = bytearray(sound)
    short[8:12] = bytes(4)
    bad.append(short)
    for head in bad:
        before = bytes(head)
        with pytest.raises(FrameError):
            FORMAT.renumber(head, 5, 1)
        assert bytes(head) == before


# --- Collecting ----------------------------------------------------------------------------------------


def put_shares(files: MemoryFiles, query: str, batch_number: int, *times: int) -> None:
    """Stage a share for each time."""
    for number, now_ms in enumerate(times):
        staged = writer(files, batch_number, f"{number}", query=query, now_ms=now_ms)
        staged.append(A, frame_of(b"x"))
        staged.finish()


def test_collect_takes_batches_up_to_one_of_one_query() -> None:
    files = MemoryFiles()
    for number in (1, 2, 10):
        put_shares(files, QUERY, number, 5, 6)
    put_shares(files, "another", 1, 5)
    collect(files, DATA, QUERY, 2)
    assert files.list(join(SINK, query_key(QUERY))) == ["10"]
    assert len(staged_files(files)) == 3
    collect(files, DATA, QUERY, 10)
    assert files.list(SINK) == [query_key("another")]
    collect(files, DATA, "never staged", 10)


def test_abandoned_shares_go_after_a_week_and_not_before() -> None:
    files, clock = MemoryFiles(), ManualClock(NOW_MS)
    with open_log(files, clock) as log:
        data = log.data_directory
        put_shares(files, QUERY, 1, NOW_MS, NOW_MS + 1)
        put_shares(files, "another", 4, NOW_MS)
        assert ABANDONED_MS == WEEK_MS
        assert data.publisher.collect_abandoned() == 0
        clock.advance(WEEK_MS)
        assert data.publisher.collect_abandoned() == 0
        clock.advance(1)
        assert data.publisher.collect_abandoned() == 2
        assert [path.rpartition("/")[2] for path in staged_files(files)] == [f"{NOW_MS + 1}-1-1.share"]
        assert files.list(SINK) == [query_key(QUERY)]
        clock.advance(1)
        assert data.publisher.collect_abandoned() == 1
        assert files.list(SINK) == []


def test_what_is_not_a_share_is_nobodys_to_collect() -> None:
    files = MemoryFiles()
    put_shares(files, QUERY, 1, 5)
    files.open(join(batch_directory(DATA, QUERY, 1), "notes.txt"), "create").close()
    assert collect_abandoned(files, DATA, NOW_MS, ()) == 1
    assert [path.rpartition("/")[2] for path in staged_files(files)] == ["notes.txt"]


def test_shares_of_a_query_that_is_kept_stay() -> None:
    files = MemoryFiles()
    put_shares(files, QUERY, 1, 5)
    put_shares(files, "another", 1, 5)
    assert collect_abandoned(files, DATA, NOW_MS, {query_key(QUERY)}) == 1
    assert files.list(SINK) == [query_key(QUERY)]
