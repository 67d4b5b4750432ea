"""The disks of the test suite do what the crash and fault tests rely on."""

from __future__ import annotations

import contextlib
import errno
from pathlib import Path

import pytest
from support.disks import (
    CHANGES,
    KINDS,
    Acknowledged,
    Create,
    FaultPlan,
    FaultyFiles,
    Link,
    MakeDirectory,
    Preallocate,
    RecordingFiles,
    RemoveDirectory,
    Rename,
    Sync,
    SyncDirectory,
    Truncate,
    Unlink,
    Write,
    fails,
    image,
    replay,
)

from cordwood.disk.files import BUFFERS_PER_WRITE_MAX, Files, join, read_file, write_atomically
from cordwood.disk.memory import MemoryFiles
from cordwood.disk.posix import PosixFiles

# --- A disk that remembers -----------------------------------------------------------------------


def test_the_history_is_every_change_in_order_by_inode() -> None:
    files = RecordingFiles(MemoryFiles())
    files.make_directories("/data/topic")
    first = files.open("/data/topic/a", "create")
    first.write_at(0, [b"ab", b"c"])
    first.preallocate(9)
    first.sync()
    files.sync_directory("/data//topic/")
    files.rename("/data/topic/a", "/data/topic/b")
    second = files.open("/data/topic/a", "create")
    first.truncate(2)
    second.write_at(0, [b"d"])
    files.open("/data/topic/b", "write").write_at(2, [b"e"])
    files.link("/data/topic/b", "/data/topic/c")
    files.unlink("/data/topic/b")
    files.open("/data/topic/c", "read").sync()
    files.acknowledge("offset 1")
    files.make_directories("/data/gone")
    files.remove_directory("/data/gone")
    assert files.history == [
        MakeDirectory("/data"),
        MakeDirectory("/data/topic"),
        Create("/data/topic/a", 1),
        Write(1, 0, b"abc"),
        Preallocate(1, 9),
        Sync(1),
        SyncDirectory("/data/topic"),
        Rename("/data/topic/a", "/data/topic/b"),
        Create("/data/topic/a", 2),
        Truncate(1, 2),
        Write(2, 0, b"d"),
        Write(1, 2, b"e"),
        Link("/data/topic/b", "/data/topic/c"),
        Unlink("/data/topic/b"),
        Sync(1),
        Acknowledged("offset 1"),
        MakeDirectory("/data/gone"),
        RemoveDirectory("/data/gone"),
    ]
    assert image(replay(files.history), "/") == image(files, "/")


def test_reading_looking_and_failing_leave_no_trace() -> None:
    files = RecordingFiles(MemoryFiles())
    file = files.open("/a", "create")
    before = list(files.history)
    file.read_at(0, 1)
    file.read_into(0, bytearray(1))
    file.write_at(0, [])
    assert file.size() == len(file.map()) == 0
    file.drop_cache()
    files.open("/a", "read").close()
    assert (files.exists("/a"), files.is_directory("/a"), files.list("/")) == (True, False, ["a"])
    assert files.make_directories("/") == []
    for refused in (
        lambda: files.open("/a", "create"),
        lambda: files.rename("/b", "/c"),
        lambda: files.make_directories("/a/b"),
        lambda: files.open("/a", "read").truncate(0),
    ):
        with pytest.raises(OSError):
            refused()
    assert files.history == before


def test_a_short_write_is_recorded_as_the_bytes_that_were_taken() -> None:
    recording = RecordingFiles(MemoryFiles())
    file = FaultyFiles(recording, FaultPlan(2, frozenset({"write"}), error=None, short=3)).open(
        "/a", "create"
    )
    assert [file.write_at(0, [b"abcdef"]), file.write_at(6, [b"gh", b"ij"])] == [6, 3]
    assert recording.history[1:] == [Write(1, 0, b"abcdef"), Write(1, 6, b"ghi")]
    recording.open("/b", "create").write_at(0, [b"x"] * (BUFFERS_PER_WRITE_MAX + 1))
    assert recording.history[-1] == Write(2, 0, b"x" * BUFFERS_PER_WRITE_MAX)


def test_a_renamed_directory_takes_its_inodes_along() -> None:
    files = RecordingFiles(MemoryFiles())
    files.make_directories("/a/b")
    files.open("/a/b/file", "create")
    files.open("/ab", "create")
    files.rename("/a", "/c")
    assert (files.inode("/c/b/file"), files.inode("/ab")) == (1, 2)
    assert image(replay(files.history), "/") == image(files, "/")


def test_renaming_onto_another_name_of_the_same_file_keeps_both_in_the_history() -> None:
    files = RecordingFiles(MemoryFiles())
    files.open("/a", "create")
    files.link("/a", "/b")
    files.rename("/a", "/b")
    assert files.inode("/a") == files.inode("/b") == 1
    assert image(replay(files.history), "/") == image(files, "/")


def test_what_was_there_before_is_recorded_as_synced(tmp_path: Path) -> None:
    """A crash inside recovery starts from a disk with files on it."""
    root = str(tmp_path)
    inner = PosixFiles()
    inner.make_directories(join(root, "topic"))
    write_atomically(inner, join(root, "topic", "segment"), b"abc")
    files = RecordingFiles(inner, existing=root)
    assert files.history == [
        MakeDirectory(join(root, "topic")),
        Create(join(root, "topic", "segment"), 1),
        Write(1, 0, b"abc"),
        Sync(1),
        SyncDirectory(join(root, "topic")),
        SyncDirectory(root),
    ]
    assert files.began == 6
    with contextlib.closing(files.open(join(root, "topic", "segment"), "write")) as file:
        file.truncate(1)
    assert files.history[files.began :] == [Truncate(1, 1)]
    assert image(replay(files.history), root) == image(files, root)


def test_a_history_that_would_be_incomplete_is_refused() -> None:
    inner = MemoryFiles()
    inner.open("/a", "create")
    with pytest.raises(AssertionError, match="before the recording"):
        RecordingFiles(inner).open("/a", "write")


def test_of_a_lock_only_the_creation_of_its_file_is_recorded() -> None:
    files = RecordingFiles(MemoryFiles())
    files.lock("/lock", "me").release()
    files.lock("/lock", "me")
    assert files.history == [Create("/lock", 1)]


# --- A disk that fails ---------------------------------------------------------------------------


def workload(files: Files) -> None:
    """Make every kind of call at least once."""
    lock = files.lock("/lock", "me")
    try:
        files.make_directories("/data/old")
        write_atomically(files, "/data/meta", b"meta")
        with contextlib.closing(files.open("/data/a", "create")) as file:
            file.preallocate(8)
            file.write_at(0, [b"abc", b"def"])
            file.truncate(6)
            file.sync()
            assert (file.read_at(0, 6), file.size(), bytes(file.map())) == (b"abcdef", 6, b"abcdef")
            file.read_into(0, bytearray(3))
        files.link("/data/a", "/data/b")
        files.unlink("/data/a")
        files.remove_directory("/data/old")
        assert files.exists("/data/b")
        assert not files.is_directory("/data/b")
        assert files.list("/data") == ["b", "meta"]
        assert files.irregular("/data") == []
        assert files.free_bytes("/data") > 0
        assert read_file(files, "/data/meta") == b"meta"
    finally:
        lock.release()


def test_a_sweep_fails_every_call_once_and_then_ends() -> None:
    untouched = FaultyFiles(MemoryFiles())
    workload(untouched)
    assert set(untouched.calls) == KINDS, "the workload makes every kind of call"
    at = 0
    while True:
        at += 1
        files = FaultyFiles(MemoryFiles(), FaultPlan(at))
        with contextlib.suppress(OSError):
            workload(files)
        if files.failures == 0:
            break
        assert files.failures == 1
        assert files.calls[:at] == untouched.calls[:at], "calls before the fault are not disturbed"
    print(f"each of {at - 1} calls failed once")
    assert at - 1 == len(untouched.calls)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_failed_call_has_no_effect(kind: str) -> None:
    complete = RecordingFiles(MemoryFiles())
    workload(complete)
    recording = RecordingFiles(MemoryFiles())
    with pytest.raises(OSError):
        workload(FaultyFiles(recording, FaultPlan(1, frozenset({kind}))))
    done = len(recording.history)
    assert recording.history == complete.history[:done]
    if kind in CHANGES:
        # What comes next in the complete run is the change that failed here.
        name = type(complete.history[done]).__name__.lower()
        assert name == {"make_directories": "makedirectory"}.get(kind, kind.replace("_", ""))


def test_a_plan_counts_only_calls_of_its_kinds_and_fails_once() -> None:
    files = FaultyFiles(MemoryFiles(), FaultPlan(2, frozenset({"sync"}), error=errno.ENOSPC))
    file = files.open("/a", "create")
    file.sync()
    file.write_at(0, [b"abc"])
    with fails(errno.ENOSPC, "/a"):
        file.sync()
    file.sync()
    assert files.calls == ["create", "sync", "write", "sync", "sync"]
    assert files.failures == 1


def test_a_lasting_fault_lasts_until_the_disk_is_healed() -> None:
    files = FaultyFiles(MemoryFiles(), FaultPlan(2, frozenset({"write"}), forever=True))
    file = files.open("/a", "create")
    file.write_at(0, [b"a"])
    for _ in range(3):
        with fails(errno.EIO, "/a"):
            file.write_at(1, [b"b"])
    files.heal()
    assert file.write_at(1, [b"b"]) == 1
    assert file.read_at(0, 100) == b"ab"
    assert files.failures == 3


def test_a_write_can_fail_after_part_of_it_arrived() -> None:
    files = FaultyFiles(MemoryFiles(), FaultPlan(1, frozenset({"write"}), error=errno.ENOSPC, short=3))
    file = files.open("/a", "create")
    with fails(errno.ENOSPC, "/a"):
        file.write_at(0, [b"ab", b"cd"])
    assert file.read_at(0, 100) == b"abc"


def test_a_disk_that_fills_up_takes_what_fits_and_then_nothing() -> None:
    writes = frozenset({"write", "preallocate"})
    files = FaultyFiles(
        MemoryFiles(),
        FaultPlan(2, writes, error=None, short=1),
        FaultPlan(3, writes, error=errno.ENOSPC, forever=True),
    )
    file = files.open("/a", "create")
    assert [file.write_at(0, [b"abc"]), file.write_at(3, [b"def"])] == [3, 1]
    with fails(errno.ENOSPC, "/a"):
        file.write_at(4, [b"ef"])
    with fails(errno.ENOSPC, "/a"):
        file.preallocate(100)
    assert file.read_at(0, 100) == b"abcd"


def test_a_plan_for_an_unknown_call_is_refused() -> None:
    with pytest.raises(AssertionError, match="wirte"):
        FaultPlan(1, frozenset({"wirte"}))
