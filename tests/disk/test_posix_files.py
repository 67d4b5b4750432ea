"""What the operating system adds to the contract of every `Files`: descriptors, processes, real failures."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.disks import fails

from cordwood.disk.files import read_file, write_atomically
from cordwood.disk.posix import PosixFiles
from cordwood.errors import DirectoryLocked


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="no /proc to look into")
def test_descriptors_are_closed_with_the_file_and_not_inherited(tmp_path: Path) -> None:
    path = str(tmp_path / "file")
    file = PosixFiles().open(path, "create")
    (number,) = descriptors_of(path)
    assert fcntl.fcntl(number, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
    file.close()
    assert descriptors_of(path) == []
    lock = PosixFiles().lock(path, "me")
    assert len(descriptors_of(path)) == 1
    with pytest.raises(DirectoryLocked):
        PosixFiles().lock(path, "another")
    assert len(descriptors_of(path)) == 1, "a refusal leaves nothing open"
    lock.release()
    assert descriptors_of(path) == []


def descriptors_of(path: str) -> list[int]:
    """Return this process's descriptors of the file."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        # The listing's own descriptor is closed by now.
        with contextlib.suppress(FileNotFoundError):
            if os.readlink(f"/proc/self/fd/{name}") == path:
                found.append(int(name))
    return found


def test_reads_that_the_system_cuts_short_are_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Linux returns at most 2 GiB a call, and less when a signal comes."""
    path = str(tmp_path / "file")
    write_atomically(PosixFiles(), path, b"abcdefg")
    pread, preadv = os.pread, os.preadv
    monkeypatch.setattr(os, "pread", lambda fd, size, at: pread(fd, min(size, 2), at))
    monkeypatch.setattr(os, "preadv", lambda fd, into, at: preadv(fd, [into[0][:2]], at))
    with contextlib.closing(PosixFiles().open(path, "read")) as file:
        assert file.read_at(1, 5) == b"bcdef"
        assert file.read_at(1, 50) == b"bcdefg"
        buffer = bytearray(5)
        assert file.read_into(1, buffer) == 5
        assert buffer == b"bcdef"
        assert file.read_into(4, buffer) == 3


def test_closing_a_file_under_a_reader_never_shows_it_another_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Descriptor numbers are reused at once. A read that another thread's close overtakes keeps its own."""
    files = PosixFiles()
    for name in ("mine", "other"):
        write_atomically(files, str(tmp_path / name), name.encode())
    mine = files.open(str(tmp_path / "mine"), "read")
    others = []
    pread = os.pread

    def overtaken(number: int, size: int, position: int) -> bytes:
        mine.close()
        others.append(files.open(str(tmp_path / "other"), "read"))
        return pread(number, size, position)

    with monkeypatch.context() as racing:
        racing.setattr(os, "pread", overtaken)
        assert mine.read_at(0, 4) == b"mine"
    with pytest.raises(ValueError, match="closed"):
        mine.read_at(0, 4)
    for other in others:
        other.close()


def test_preallocated_space_is_reserved_on_the_disk(tmp_path: Path) -> None:
    file = PosixFiles().open(str(tmp_path / "file"), "create")
    file.truncate(1 << 20)
    assert os.stat(file.path).st_blocks * 512 < 1 << 20
    file.preallocate(2 << 20)
    assert os.stat(file.path).st_blocks * 512 >= 1 << 20
    file.close()


def test_an_error_other_than_absence_is_not_taken_for_absence(tmp_path: Path) -> None:
    """A name we may not look at could be anything; "not there" would start an empty log over it (R6)."""
    with fails(errno.ENAMETOOLONG, str(tmp_path / ("n" * 300))):
        PosixFiles().exists(str(tmp_path / ("n" * 300)))
    os.symlink(tmp_path / "loop", tmp_path / "loop")
    with fails(errno.ELOOP, str(tmp_path / "loop")):
        PosixFiles().is_directory(str(tmp_path / "loop"))


def test_the_holder_of_a_lock_is_named_across_processes_until_it_dies(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    program = (
        "import sys; from cordwood.disk import PosixFiles\n"
        "lock = PosixFiles().lock(sys.argv[1], 'pid of the other')\n"
        "print('locked', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "locked\n"
        with pytest.raises(DirectoryLocked, match="pid of the other"):
            PosixFiles().lock(path, "me")
        other.kill()
    lock = PosixFiles().lock(path, "me")
    assert read_file(PosixFiles(), path) == b"me", "the text of the dead holder is gone"
    lock.release()


def in_a_forked_child(check: Callable[[], bool]) -> bool:
    """Fork, run *check* in the child, and return what it returned."""
    child = os.fork()
    if child == 0:
        passed = False
        try:
            passed = check()
        finally:
            os._exit(0 if passed else 1)
    return os.waitpid(child, 0)[1] == 0


def test_a_fork_kills_the_childs_handle_and_leaves_the_parents_lock(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    lock = PosixFiles().lock(path, "parent")

    def child() -> bool:
        if lock.held():
            return False
        lock.release()
        with pytest.raises(ValueError, match="not locked"):
            lock.describe("child")
        with pytest.raises(DirectoryLocked, match="parent"):
            PosixFiles().lock(path, "child")
        return True

    assert in_a_forked_child(child)
    assert lock.held()
    with pytest.raises(DirectoryLocked, match="parent"):
        PosixFiles().lock(path, "another")
    lock.release()


def test_a_child_that_outlives_its_parent_does_not_keep_the_lock(tmp_path: Path) -> None:
    """A worker left behind by a killed broker must not keep the next broker from starting (R1)."""
    path = str(tmp_path / "lock")
    program = (
        "import os, sys; from cordwood.disk import PosixFiles\n"
        "lock = PosixFiles().lock(sys.argv[1], 'the parent')\n"
        "if os.fork() == 0: print('alive', flush=True); sys.stdin.read()\n"
        "else: sys.stdin.readline(); os._exit(0)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent_process:
        assert parent_process.stdin is not None
        assert parent_process.stdout is not None
        assert parent_process.stdout.readline() == "alive\n"
        parent_process.kill()
        parent_process.wait()
        lock = PosixFiles().lock(path, "me")
        lock.release()


def failing(code: int) -> Callable[..., int]:
    """Return a system call that fails, as the os module reports it: without a path."""

    def call(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    return call


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_does_not_keep_a_lock_from_being_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """The text is a courtesy. A log on a full disk must open, so that its owner can free space (P4)."""
    path = str(tmp_path / "lock")
    write_atomically(PosixFiles(), path, b"a process that is gone")
    monkeypatch.setattr(os, "pwrite", failing(code))
    lock = PosixFiles().lock(path, "me")
    assert lock.held()
    assert read_file(PosixFiles(), path) == b"", "better no name than a wrong one"
    lock.release()


def test_a_lock_that_cannot_be_described_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "lock")
    with monkeypatch.context() as broken:
        broken.setattr(os, "pwrite", failing(errno.EIO))
        with fails(errno.EIO, path):
            PosixFiles().lock(path, "me")
    PosixFiles().lock(path, "me").release()


def test_a_failed_sync_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "file")
    with contextlib.closing(PosixFiles().open(path, "create")) as file:
        monkeypatch.setattr(fcntl, "fcntl", failing(errno.EIO))
        monkeypatch.setattr(os, "fdatasync", failing(errno.EIO))
        monkeypatch.setattr(os, "fsync", failing(errno.EIO))
        with fails(errno.EIO, path):
            file.sync()
        with fails(errno.EIO, str(tmp_path)):
            PosixFiles().sync_directory(str(tmp_path))


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")
def test_a_full_device_is_enospc_with_its_name() -> None:
    with (
        contextlib.closing(PosixFiles().open("/dev/full", "write")) as full,
        fails(errno.ENOSPC, "/dev/full"),
    ):
        full.write_at(0, [b"x"])
