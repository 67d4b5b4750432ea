"""Disks for tests, each a wrapper around any `Files`: one remembers what was done, one fails on plan.

To have both, put the faults outside: ``FaultyFiles(RecordingFiles(MemoryFiles()), plan)``. Then a
short write reaches the recording as the short write it was.
"""

from __future__ import annotations

import contextlib
import errno
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import pytest

from cordwood.disk.files import (
    Buffer,
    File,
    Files,
    Lock,
    Mode,
    Names,
    WritableBuffer,
    join,
    os_error,
    parent,
    read_file,
)
from cordwood.disk.memory import MemoryFiles

Result = TypeVar("Result")


# --- What happened to a disk, in order ---------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Create:
    """A new, empty file under this name. *inode* is its identity whatever names it gets later."""

    path: str
    inode: int


@dataclass(frozen=True, slots=True)
class Write:
    """These bytes went to this position; after a short write, only the bytes that were taken."""

    inode: int
    position: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Truncate:
    """The file was cut, or lengthened with zeros, to *size* bytes."""

    inode: int
    size: int


@dataclass(frozen=True, slots=True)
class Preallocate:
    """The file was lengthened with zeros to *size* bytes if it was shorter."""

    inode: int
    size: int


@dataclass(frozen=True, slots=True)
class Sync:
    """Every earlier change to the bytes and size of this file is durable."""

    inode: int


@dataclass(frozen=True, slots=True)
class Rename:
    """A name moved, replacing what the target named."""

    source: str
    target: str


@dataclass(frozen=True, slots=True)
class Link:
    """The file under *source* got the second name *target*."""

    source: str
    target: str


@dataclass(frozen=True, slots=True)
class Unlink:
    """A name of a file went."""

    path: str


@dataclass(frozen=True, slots=True)
class MakeDirectory:
    """One new directory; its parent was there."""

    path: str


@dataclass(frozen=True, slots=True)
class RemoveDirectory:
    """One empty directory went."""

    path: str


@dataclass(frozen=True, slots=True)
class SyncDirectory:
    """Every earlier change to the names in this directory is durable."""

    path: str


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """The engine told someone that *what* is done: from here on it must survive."""

    what: object


Operation: TypeAlias = (
    Create
    | Write
    | Truncate
    | Preallocate
    | Sync
    | Rename
    | Link
    | Unlink
    | MakeDirectory
    | RemoveDirectory
    | SyncDirectory
    | Acknowledged
)


class Replay:
    """A disk that takes the operations of a history one by one, as if nothing was ever lost.

    Directories that were there before the recording began are made as needed.
    """

    def __init__(self) -> None:
        self.files = MemoryFiles()
        self._opened: dict[int, File] = {}

    def apply(self, operation: Operation) -> None:
        """Do *operation*, the next one of the history."""
        files, opened = self.files, self._opened
        match operation:
            case Create(path, inode):
                files.make_directories(parent(path))
                opened[inode] = files.open(path, "create")
            case Write(inode, position, data):
                opened[inode].write_at(position, [data])
            case Truncate(inode, size):
                opened[inode].truncate(size)
            case Preallocate(inode, size):
                opened[inode].preallocate(size)
            case Rename(source, target):
                files.rename(source, target)
            case Link(source, target):
                files.link(source, target)
            case Unlink(path):
                files.unlink(path)
            case MakeDirectory(path):
                files.make_directories(path)
            case RemoveDirectory(path):
                files.remove_directory(path)
            case Sync() | SyncDirectory() | Acknowledged():
                pass


def replay(history: Iterable[Operation]) -> MemoryFiles:
    """Return the disk after every operation of *history*; see `Replay`."""
    found = Replay()
    for operation in history:
        found.apply(operation)
    return found.files


def image(files: Files, directory: str) -> dict[str, bytes | None]:
    """Return every path below *directory* with its content; None stands for a directory."""
    found: dict[str, bytes | None] = {}
    for name in files.list(directory):
        path = join(directory, name)
        if files.is_directory(path):
            found[path] = None
            found |= image(files, path)
        else:
            found[path] = read_file(files, path)
    return found


@contextlib.contextmanager
def fails(code: int, path: str) -> Iterator[None]:
    """The block raises an OSError with this errno, about this path."""
    with pytest.raises(OSError) as caught:
        yield
    assert errno.errorcode[caught.value.errno or 0] == errno.errorcode[code]
    assert caught.value.filename == path


# --- A disk that remembers -----------------------------------------------------------------------


class RecordingFiles:
    """Passes everything on to *inner* and notes in ``history`` every change that succeeded, in order.

    What was below *existing* before is noted first, as made, written and synced, so that a history is
    always complete; ``began`` is the number of those operations. Names in the history are normal:
    no empty or ``.`` parts. Of a lock, only the creation of its file is noted: its text is never
    synced and no recovery reads it. Changes are made one at a time, whoever calls.
    """

    def __init__(self, inner: Files, existing: str | None = None) -> None:
        self.inner = inner
        self.history: list[Operation] = []
        self.guard = threading.RLock()
        self._inodes: dict[str, int] = {}
        self._inodes_made = 0
        if existing is not None:
            self._note_existing(_normal(existing))
        self.began = len(self.history)

    def acknowledge(self, what: object) -> None:
        """Note that *what* was promised to someone at this point of the history."""
        with self.guard:
            self.history.append(Acknowledged(what))

    def inode(self, path: str) -> int:
        """Return the identity of the file that *path* names now."""
        with self.guard:
            number = self._inodes.get(_normal(path))
            assert number is not None, f"{path} was there before the recording: name its root as existing="
            return number

    def open(self, path: str, mode: Mode) -> File:
        with self.guard:
            file = self.inner.open(path, mode)
            if mode in {"create", "create_private"}:
                return RecordingFile(self, file, self._note_create(path))
            return RecordingFile(
                self, file, self.inode(path) if mode == "write" else self._inodes.get(_normal(path))
            )

    def exists(self, path: str) -> bool:
        return self.inner.exists(path)

    def is_directory(self, path: str) -> bool:
        return self.inner.is_directory(path)

    def list(self, path: str) -> Names:
        return self.inner.list(path)

    def irregular(self, path: str) -> Names:
        return self.inner.irregular(path)

    def make_directories(self, path: str) -> Names:
        with self.guard:
            missing = []
            above = path
            while not self.inner.exists(above):
                missing.append(above)
                above = parent(above)
            if not missing:
                return self.inner.make_directories(path)
            changed: Names = []
            # One at a time, so that a failure half-way leaves the history true.
            for directory in reversed(missing):
                changed += self.inner.make_directories(directory)
                self.history.append(MakeDirectory(_normal(directory)))
            return changed

    def rename(self, source: str, target: str) -> None:
        with self.guard:
            self.inner.rename(source, target)
            source, target = _normal(source), _normal(target)
            self.history.append(Rename(source, target))
            if not self.inner.is_directory(target) and self.inode(source) == self._inodes.get(target):
                return
            # A directory takes along what is below it.
            for path in [path for path in self._inodes if path == source or path.startswith(f"{source}/")]:
                self._inodes[target + path[len(source) :]] = self._inodes.pop(path)

    def link(self, source: str, target: str) -> None:
        with self.guard:
            self.inner.link(source, target)
            self.history.append(Link(_normal(source), _normal(target)))
            self._inodes[_normal(target)] = self.inode(source)

    def unlink(self, path: str) -> None:
        with self.guard:
            self.inner.unlink(path)
            self.history.append(Unlink(_normal(path)))
            self.inode(path)
            del self._inodes[_normal(path)]

    def remove_directory(self, path: str) -> None:
        with self.guard:
            self.inner.remove_directory(path)
            self.history.append(RemoveDirectory(_normal(path)))

    def sync_directory(self, path: str) -> None:
        with self.guard:
            self.inner.sync_directory(path)
            self.history.append(SyncDirectory(_normal(path)))

    def lock(self, path: str, holder: str) -> Lock:
        with self.guard:
            there = self.inner.exists(path)
            lock = self.inner.lock(path, holder)
            if not there:
                self._note_create(path)
            return lock

    def free_bytes(self, path: str) -> int:
        return self.inner.free_bytes(path)

    def _note_create(self, path: str) -> int:
        self._inodes_made += 1
        self._inodes[_normal(path)] = self._inodes_made
        self.history.append(Create(_normal(path), self._inodes_made))
        return self._inodes_made

    def _note_existing(self, directory: str) -> None:
        for name in self.inner.list(directory):
            path = join(directory, name)
            if self.inner.is_directory(path):
                self.history.append(MakeDirectory(path))
                self._note_existing(path)
            else:
                inode = self._note_create(path)
                self.history += [Write(inode, 0, read_file(self.inner, path)), Sync(inode)]
        self.history.append(SyncDirectory(directory))


class RecordingFile:
    """A file of `RecordingFiles`."""

    def __init__(self, files: RecordingFiles, inner: File, inode: int | None) -> None:
        self._files = files
        self._inner = inner
        self._inode = inode

    @property
    def path(self) -> str:
        return self._inner.path

    def _note(self, make: Callable[[int], Operation]) -> None:
        assert self._inode is not None, f"{self.path} was there before the recording"
        self._files.history.append(make(self._inode))

    def write_at(self, position: int, buffers: Sequence[Buffer]) -> int:
        with self._files.guard:
            written = self._inner.write_at(position, buffers)
            if written:
                data = b"".join(buffers)[:written]
                self._note(lambda inode: Write(inode, position, data))
            return written

    def read_at(self, position: int, size: int) -> bytes:
        return self._inner.read_at(position, size)

    def read_into(self, position: int, buffer: WritableBuffer) -> int:
        return self._inner.read_into(position, buffer)

    def size(self) -> int:
        return self._inner.size()

    def truncate(self, size: int) -> None:
        with self._files.guard:
            self._inner.truncate(size)
            self._note(lambda inode: Truncate(inode, size))

    def preallocate(self, size: int) -> None:
        with self._files.guard:
            self._inner.preallocate(size)
            self._note(lambda inode: Preallocate(inode, size))

    def sync(self) -> None:
        with self._files.guard:
            self._inner.sync()
            self._note(lambda inode: Sync(inode))

    def drop_cache(self) -> None:
        self._inner.drop_cache()

    def map(self) -> memoryview:
        return self._inner.map()

    def close(self) -> None:
        self._inner.close()


def _normal(path: str) -> str:
    names = [name for name in path.split("/") if name not in ("", ".")]
    return ("/" if path.startswith("/") else "") + "/".join(names)


# --- A disk that fails ---------------------------------------------------------------------------


CHANGES = frozenset(
    {"create", "write", "truncate", "preallocate", "sync", "rename", "link", "unlink"}
    | {"make_directories", "remove_directory", "sync_directory"}
)
READS = frozenset({"open", "read", "size", "map", "stat", "list", "irregular", "free_bytes"})
KINDS = CHANGES | READS | {"lock"}
"""Everything that can fail, by its name in ``FaultyFiles.calls``; ``open`` is one that creates nothing."""


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """Fail the *fail_at*-th call (the first is 1) of the given *kinds*; with *forever*, each later one too.

    A failing call raises *error* and does nothing, with one exception: with *short*, a failing write
    first writes that many bytes. When *error* is None it then returns the short count instead of raising,
    and calls that are not writes are left alone.
    """

    fail_at: int
    kinds: frozenset[str] = KINDS
    error: int | None = errno.EIO
    forever: bool = False
    short: int | None = None

    def __post_init__(self) -> None:
        # A misspelt kind would plan a fault that never comes, and the test would pass.
        assert self.kinds <= KINDS, f"no such calls: {sorted(self.kinds - KINDS)}"
        assert self.fail_at >= 1
        assert self.error is not None or self.short is not None


class FaultyFiles:
    """Passes everything on to *inner*, except the calls that one of *plans* lets fail.

    ``calls`` names every call in order, ``failures`` counts those a plan touched: a sweep over
    ``fail_at`` = 1, 2, 3 … is through when a run ends with no failures. ``heal`` ends all faults.
    A disk that fills up is two plans: a short write at n, then ENOSPC for ever from n + 1.
    """

    def __init__(self, inner: Files, *plans: FaultPlan) -> None:
        self.inner = inner
        self.calls: list[str] = []
        self.failures = 0
        self._guard = threading.Lock()
        self.plan(*plans)

    def plan(self, *plans: FaultPlan) -> None:
        """Replace the plans. Each counts calls from now on."""
        with self._guard:
            self._plans = list(plans)
            self._matched = [0] * len(plans)

    def heal(self) -> None:
        """Let every later call succeed."""
        self.plan()

    def fault(self, kind: str) -> FaultPlan | None:
        """Count a call, and return the plan by which it fails, if one does."""
        assert kind in KINDS
        with self._guard:
            self.calls.append(kind)
            due = None
            for number, plan in enumerate(self._plans):
                if kind not in plan.kinds:
                    continue
                self._matched[number] += 1
                seen = self._matched[number]
                hit = seen == plan.fail_at or (plan.forever and seen > plan.fail_at)
                if hit and (plan.error is not None or kind == "write"):
                    due = due or plan
            self.failures += due is not None
            return due

    def call(self, kind: str, path: str, perform: Callable[[], Result]) -> Result:
        """Count a call about *path* and perform it, unless it fails."""
        plan = self.fault(kind)
        if plan is not None and plan.error is not None:
            raise os_error(plan.error, path)
        return perform()

    def open(self, path: str, mode: Mode) -> File:
        kind = "create" if mode in {"create", "create_private"} else "open"
        return FaultyFile(self, self.call(kind, path, lambda: self.inner.open(path, mode)))

    def exists(self, path: str) -> bool:
        return self.call("stat", path, lambda: self.inner.exists(path))

    def is_directory(self, path: str) -> bool:
        return self.call("stat", path, lambda: self.inner.is_directory(path))

    def list(self, path: str) -> Names:
        return self.call("list", path, lambda: self.inner.list(path))

    def irregular(self, path: str) -> Names:
        return self.call("irregular", path, lambda: self.inner.irregular(path))

    def make_directories(self, path: str) -> Names:
        return self.call("make_directories", path, lambda: self.inner.make_directories(path))

    def rename(self, source: str, target: str) -> None:
        self.call("rename", source, lambda: self.inner.rename(source, target))

    def link(self, source: str, target: str) -> None:
        self.call("link", source, lambda: self.inner.link(source, target))

    def unlink(self, path: str) -> None:
        self.call("unlink", path, lambda: self.inner.unlink(path))

    def remove_directory(self, path: str) -> None:
        self.call("remove_directory", path, lambda: self.inner.remove_directory(path))

    def sync_directory(self, path: str) -> None:
        self.call("sync_directory", path, lambda: self.inner.sync_directory(path))

    def lock(self, path: str, holder: str) -> Lock:
        return self.call("lock", path, lambda: self.inner.lock(path, holder))

    def free_bytes(self, path: str) -> int:
        return self.call("free_bytes", path, lambda: self.inner.free_bytes(path))


class FaultyFile:
    """A file of `FaultyFiles`. `close` and `drop_cache` never fail and are not counted."""

    def __init__(self, files: FaultyFiles, inner: File) -> None:
        self._files = files
        self._inner = inner

    @property
    def path(self) -> str:
        return self._inner.path

    def write_at(self, position: int, buffers: Sequence[Buffer]) -> int:
        plan = self._files.fault("write")
        if plan is None:
            return self._inner.write_at(position, buffers)
        written = 0
        if plan.short is not None:
            written = self._inner.write_at(position, [b"".join(buffers)[: plan.short]])
        if plan.error is not None:
            raise os_error(plan.error, self.path)
        return written

    def read_at(self, position: int, size: int) -> bytes:
        return self._files.call("read", self.path, lambda: self._inner.read_at(position, size))

    def read_into(self, position: int, buffer: WritableBuffer) -> int:
        return self._files.call("read", self.path, lambda: self._inner.read_into(position, buffer))

    def size(self) -> int:
        return self._files.call("size", self.path, self._inner.size)

    def truncate(self, size: int) -> None:
        self._files.call("truncate", self.path, lambda: self._inner.truncate(size))

    def preallocate(self, size: int) -> None:
        self._files.call("preallocate", self.path, lambda: self._inner.preallocate(size))

    def sync(self) -> None:
        self._files.call("sync", self.path, self._inner.sync)

    def drop_cache(self) -> None:
        self._inner.drop_cache()

    def map(self) -> memoryview:
        return self._files.call("map", self.path, self._inner.map)

    def close(self) -> None:
        self._inner.close()


# --- A disk that has few handles ---------------------------------------------------------------------


OPENINGS = frozenset({"open", "create", "sync_directory", "list"})
"""The calls that need a handle, by their names in ``FaultyFiles.calls``."""


class LimitedFiles:
    """Passes everything on to *inner* as long as fewer than ``limit`` files are open, else EMFILE.

    ``opened`` counts files from their opening until they are closed or nobody knows them any more.
    `take_all_at` lets somebody else take all handles that are left, at a call that needs one.
    """

    def __init__(self, inner: Files, limit: int = 1 << 30) -> None:
        self.inner = inner
        self.limit = limit
        self.opened = 0
        self.most = 0
        #: How many calls needed a handle.
        self.needed = 0
        #: How many of them got none.
        self.refused = 0
        self._take_all_at: int | None = None
        self._guard = threading.RLock()

    def take_all_at(self, call: int | None) -> None:
        """Leave none from the *call*-th call on that needs one, counted from now; None to give all back."""
        with self._guard:
            self._take_all_at = None if call is None else self.needed + call
            if call is None:
                self.limit = 1 << 30

    def _need(self, path: str) -> None:
        with self._guard:
            self.needed += 1
            if self.needed == self._take_all_at:
                self.limit = self.opened
            if self.opened >= self.limit:
                self.refused += 1
                raise os_error(errno.EMFILE, path)
            self.most = max(self.most, self.opened + 1)

    def open(self, path: str, mode: Mode) -> File:
        with self._guard:
            self._need(path)
            file = LimitedFile(self, self.inner.open(path, mode))
            self.opened += 1
            return file

    def release(self) -> None:
        """Take note that a file was closed."""
        with self._guard:
            self.opened -= 1

    def list(self, path: str) -> Names:
        self._need(path)
        return self.inner.list(path)

    def irregular(self, path: str) -> Names:
        self._need(path)
        return self.inner.irregular(path)

    def sync_directory(self, path: str) -> None:
        self._need(path)
        self.inner.sync_directory(path)

    def exists(self, path: str) -> bool:
        return self.inner.exists(path)

    def is_directory(self, path: str) -> bool:
        return self.inner.is_directory(path)

    def make_directories(self, path: str) -> Names:
        return self.inner.make_directories(path)

    def rename(self, source: str, target: str) -> None:
        self.inner.rename(source, target)

    def link(self, source: str, target: str) -> None:
        self.inner.link(source, target)

    def unlink(self, path: str) -> None:
        self.inner.unlink(path)

    def remove_directory(self, path: str) -> None:
        self.inner.remove_directory(path)

    def lock(self, path: str, holder: str) -> Lock:
        return self.inner.lock(path, holder)

    def free_bytes(self, path: str) -> int:
        return self.inner.free_bytes(path)


class LimitedFile:
    """A file of `LimitedFiles`."""

    def __init__(self, files: LimitedFiles, inner: File) -> None:
        self._release: Callable[[], None] | None = files.release
        self._inner = inner
        self.write_at = inner.write_at
        self.read_at = inner.read_at
        self.read_into = inner.read_into
        self.size = inner.size
        self.truncate = inner.truncate
        self.preallocate = inner.preallocate
        self.sync = inner.sync
        self.drop_cache = inner.drop_cache
        self.map = inner.map

    @property
    def path(self) -> str:
        return self._inner.path

    def close(self) -> None:
        release, self._release = self._release, None
        if release is not None:
            release()
        self._inner.close()

    def __del__(self) -> None:
        # As the descriptor of a file of the operating system does.
        if self._release is not None:
            self._release()
