"""The one seam to the operating system.

The engine knows files only through the protocols here, so the same code runs on a disk
(`posix_files`), in memory (`memory_files`), and in tests on disks that fail or lose what was never
synced. Paths are strings with ``/`` between names.

Failures are plain `OSError`, with ``errno`` and ``filename`` set and the same ``errno`` from every
implementation. Nothing is durable before `File.sync` (bytes and size) or `Files.sync_directory`
(names) returns; a sync that raised must not be tried again, because the kernel may have dropped
the bytes it could not write.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Sequence
from typing import Literal, Protocol, TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview
WritableBuffer: TypeAlias = bytearray | memoryview
Mode: TypeAlias = Literal["read", "write", "create", "create_private"]
# Inside a class that has a method called list, the builtin is out of reach for annotations.
Names: TypeAlias = list[str]

DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
"""Error numbers for a lack of space."""
NO_HANDLES = frozenset({errno.EMFILE, errno.ENFILE})
"""Error numbers for too many open files. Nothing was done."""
PASSING = NO_HANDLES | {errno.ENOMEM}
"""Error numbers that say nothing about the file, only that the process or the machine lacks a resource."""

BUFFERS_PER_WRITE_MAX = 1024
"""IOV_MAX of Linux and macOS: the largest number of buffers of one vectored write."""


class SyncFailed(OSError):
    """A sync failed: the bytes may be lost, even if a later sync succeeds."""


class ReadableFile(Protocol):
    """An open file, as its readers see it. Every method may be called from any thread.

    Positions and sizes are in bytes; a negative one is EINVAL.
    """

    @property
    def path(self) -> str:
        """The path the file was opened under; a later rename does not change it."""

    def read_at(self, position: int, size: int) -> bytes:
        """Return *size* bytes from *position*; fewer only where the file ends.

        Memory is allocated for the existing bytes and at most 1 MiB more, however large *size* is.
        """

    def size(self) -> int:
        """Return the length of the file in bytes."""

    def map(self) -> memoryview:
        """Return a read-only view of the file at its present size, valid after `close` and unlink.

        For files that no longer change: whether later writes show in the view is not defined, and
        touching bytes that a later `truncate` removed may kill the process. Costs one file
        descriptor for as long as the view lives.
        """

    def close(self) -> None:
        """Close the file without a sync. Any further call except `path` and `close` raises ValueError.

        May be called from any thread: a call under way in another one completes on this file first.
        """


class File(ReadableFile, Protocol):
    """An open file that may be changed.

    The calls that change the file (`write_at`, `truncate`, `preallocate`) come from one thread at a time,
    beside any number of readers. On a file opened to read, a change is EBADF.
    """

    def write_at(self, position: int, buffers: Sequence[Buffer]) -> int:
        """Write *buffers* one after the other in one call and return how many bytes were taken.

        The count may be short: at most `BUFFERS_PER_WRITE_MAX` buffers are used, and a full disk takes only a
        part. The caller decides what a short write means. A gap before *position* reads as zeros. Not durable
        before `sync`.
        """

    def read_into(self, position: int, buffer: WritableBuffer) -> int:
        """Fill *buffer* from *position* and return the bytes read; fewer only where the file ends."""

    def truncate(self, size: int) -> None:
        """Shorten the file to *size* bytes, or lengthen it with zeros. Not durable before `sync`."""

    def preallocate(self, size: int) -> None:
        """Make the file at least *size* bytes long, new bytes reading as zeros. Never shortens.

        The space of the new bytes is reserved: writing them later cannot end in ENOSPC. When it
        raises, the file may have grown part of the way. Not durable before `sync`.
        """

    def sync(self) -> None:
        """Return once every byte written before the call, and the size, is on the device.

        Covers the file, not its name. Allowed on a file opened to read. May be called beside a writer.
        """

    def drop_cache(self) -> None:
        """Drop cached bytes from the page cache, so that the next read comes from the device.

        Only synced bytes are dropped. Does nothing where the system offers no such call.
        """


class Lock(Protocol):
    """An exclusive lock on a path, until `release` or the end of the process.

    Deleting the object does not release it. Callable from any thread.
    """

    def describe(self, holder: str) -> None:
        """Replace the text that describes the holder. Raises ValueError if the lock is not held."""

    def held(self) -> bool:
        """Return whether this process holds the lock: no longer after `release`, never in a forked child."""

    def release(self) -> None:
        """Release the lock. Idempotent; in a forked child it leaves the parent's lock alone."""


class ReadableFiles(Protocol):
    """A tree of directories and files, as its readers see it. Any thread may call any method.

    Code that only reads asks for this, so that the files may lie elsewhere than on a local disk.
    """

    def open(self, path: str, mode: Literal["read"]) -> ReadableFile:
        """Open a file to read it."""

    def exists(self, path: str) -> bool:
        """Return whether *path* names anything. An error other than "not there" is raised, never False."""

    def is_directory(self, path: str) -> bool:
        """Return whether *path* is a directory. An error other than "not there" is raised, never False."""

    def list(self, path: str) -> Names:
        """Return the names in a directory, sorted."""

    def irregular(self, path: str) -> Names:
        """Return the names in a directory that are neither files nor directories, sorted.

        Those are links, pipes and devices; a link is one even where it leads to a file or a directory.
        """


class Files(ReadableFiles, Protocol):
    """A tree of directories and files that may be changed. Any thread may call any method."""

    def open(self, path: str, mode: Mode) -> File:
        """Open a file: ``read`` (read only), ``write`` (read and write), or ``create`` (must not exist).

        ``create_private`` creates one that only its owner can ever open. A file with a second name cannot be
        opened for writing: EMLINK. Only sealed files are ever linked, and those are never changed.

        A created file's name is durable only after `sync_directory` of its parent.
        """

    def make_directories(self, path: str) -> Names:
        """Create *path* and the parents it lacks; return the directories that gained a name, top first.

        The new names are durable once each returned directory is synced. A directory that was there already
        is not returned, even if its creator crashed before syncing the parent.
        """

    def rename(self, source: str, target: str) -> None:
        """Give *source* the name *target*, replacing a file there in one step.

        Two names of one file stay as they are. Durable after `sync_directory` of both parents.
        """

    def link(self, source: str, target: str) -> None:
        """Give the file *source* a second name; EEXIST if *target* is taken."""

    def unlink(self, path: str) -> None:
        """Remove a file's name. The bytes live on while the file is open or mapped."""

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory; ENOTEMPTY otherwise."""

    def sync_directory(self, path: str) -> None:
        """Return once every name added to or removed from the directory before the call is on the device."""

    def lock(self, path: str, holder: str) -> Lock:
        """Lock the file at *path* for this process, creating it if needed, and write *holder* into it.

        *holder* is text for people and is never synced. The file is never removed: between its removal and
        its recreation two processes could each lock one.

        Raises:
            DirectoryLocked: If it is locked, also by this process. Carries the holder's text, which is empty
                while the holder is writing it.
        """

    def free_bytes(self, path: str) -> int:
        """Return the bytes an ordinary user can still write to the file system that holds *path*."""


def os_error(code: int, path: str, target: str | None = None) -> OSError:
    """Return the OSError the operating system would raise about *path* for the errno *code*."""
    return OSError(code, os.strerror(code), path, None, target)


def check_only_name(path: str, names: int) -> None:
    """Refuse to change a file that has more than one name.

    In a directory from elsewhere, the other name may be a file outside of it.
    """
    if names > 1:
        raise OSError(errno.EMLINK, "it is linked from elsewhere and is not changed", path)


def join(directory: str, *names: str) -> str:
    """Return the path of *names* below *directory*. A name never leads out by starting with ``/``."""
    path = directory
    for name in names:
        path = f"{path.rstrip('/')}/{name}" if path else name
    return path


def parent(path: str) -> str:
    """Return the directory that holds the name *path*: ``/`` or ``.`` when only one name is left."""
    head = path.rstrip("/").rpartition("/")[0]
    return head or ("/" if path.startswith("/") else ".")


def read_file(files: ReadableFiles, path: str) -> bytes:
    """Return the whole content of a file."""
    with contextlib.closing(files.open(path, "read")) as file:
        return file.read_at(0, file.size())


def write_all(file: File, position: int, data: Buffer) -> None:
    """Write all of *data*, in several calls if needed. If this raises, any part may be written."""
    rest = memoryview(data).cast("B")
    while rest:
        written = file.write_at(position, [rest])
        if written == 0:
            raise os_error(errno.ENOSPC, file.path)
        position += written
        rest = rest[written:]


def write_atomically(files: Files, path: str, data: bytes) -> None:
    """Replace the content of *path*, or create it. Durable on return.

    After a crash, or when this raises, the file holds the old content or *data*, never a mixture; a
    failed call may leave ``<path>.tmp``, which the next one replaces. One caller at a time per path.
    """
    temporary = f"{path}.tmp"
    try:
        file = files.open(temporary, "create")
    except FileExistsError:
        files.unlink(temporary)
        file = files.open(temporary, "create")
    with contextlib.closing(file):
        write_all(file, 0, data)
        # The rename must not reach the device before the bytes it publishes.
        file.sync()
    files.rename(temporary, path)
    try:
        files.sync_directory(parent(path))
    except OSError as error:
        # The new content is already visible but may not be durable, so this error is never a plain lack of
        # space.
        raise SyncFailed(errno.EIO, os.strerror(errno.EIO), path) from error


def remove_tree(files: Files, path: str) -> None:
    """Remove a directory with everything in it. Not durable: a crash may leave any part of it.

    A symbolic link is removed, never its target.
    """
    name = path.rstrip("/").rpartition("/")[2]
    _remove(files, path, is_irregular=name in files.irregular(parent(path)))


def _remove(files: Files, path: str, *, is_irregular: bool) -> None:
    if is_irregular or not files.is_directory(path):
        files.unlink(path)
        return
    irregular = set(files.irregular(path))
    for name in files.list(path):
        _remove(files, join(path, name), is_irregular=name in irregular)
    files.remove_directory(path)
