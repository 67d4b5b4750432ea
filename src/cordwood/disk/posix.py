"""The operating system's files, behind the contract of `cordwood.disk.files`."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import stat
import struct
import sys
from collections.abc import Sequence
from typing import NamedTuple

from cordwood.disk.files import (
    BUFFERS_PER_WRITE_MAX,
    Buffer,
    File,
    Lock,
    Mode,
    Names,
    WritableBuffer,
    check_only_name,
    os_error,
    parent,
)
from cordwood.errors import DirectoryLocked

_READ_UNCHECKED_BYTES_MAX = 1 << 20
_ZEROS_BYTES = 1 << 20
_HOLDER_BYTES_MAX = 4096
#: Locks of a range that belong to an open file, as a flock does, and that can be asked about: Linux has them.
_HAS_RANGE_LOCKS = hasattr(fcntl, "F_OFD_GETLK")


class _Descriptor:
    """An open file descriptor; used as ``with descriptor as number``, which names *path* in an OSError.

    It is closed when its last user is done. So closing a file under a reader in another thread cannot
    free the number, which the system would give to the next open and the reader would read from.
    """

    __slots__ = ("_close", "_path", "number")

    def __init__(self, path: str, flags: int, permissions: int = 0o600) -> None:
        # Kept here because at interpreter exit the os module may be gone before this object.
        self._close = os.close
        self._path = path
        self.number = -1
        self.number = os.open(path, flags, permissions)

    def __enter__(self) -> int:
        return self.number

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError) and error.filename is None:
            error.filename = self._path

    def __del__(self) -> None:
        if self.number >= 0:
            # Synced bytes are safe and nothing else was promised, so the error can be ignored.
            with contextlib.suppress(OSError):
                self._close(self.number)


class _PosixFile:
    """A `File` of the operating system."""

    __slots__ = ("_descriptor", "_path", "_writable")

    def __init__(self, path: str, descriptor: _Descriptor, *, writable: bool) -> None:
        self._path = path
        self._descriptor: _Descriptor | None = descriptor
        self._writable = writable

    @property
    def path(self) -> str:
        return self._path

    def _reading(self) -> _Descriptor:
        descriptor = self._descriptor
        if descriptor is None:
            raise ValueError(f"{self._path} is closed")
        return descriptor

    def _writing(self) -> _Descriptor:
        descriptor = self._reading()
        # Checked here because calls disagree: on Linux, ftruncate of a read-only descriptor is EINVAL.
        if not self._writable:
            raise os_error(errno.EBADF, self._path)
        return descriptor

    def write_at(self, position: int, buffers: Sequence[Buffer]) -> int:
        descriptor = self._writing()
        try:
            _refuse_negative(position)
            if not buffers:
                # macOS reports an error for an empty write.
                return 0
            if len(buffers) == 1:
                return os.pwrite(descriptor.number, buffers[0], position)
            return os.pwritev(descriptor.number, buffers[:BUFFERS_PER_WRITE_MAX], position)
        except OSError as error:
            # Without the context manager: this is the call of every append.
            error.filename = self._path
            raise

    def read_at(self, position: int, size: int) -> bytes:
        with self._reading() as number:
            if size > _READ_UNCHECKED_BYTES_MAX:
                # pread allocates what it is asked for, and the size may come from damaged bytes.
                size = min(size, max(0, os.fstat(number).st_size - position))
            data = os.pread(number, size, position)
            if len(data) == size or not data:
                return data
            parts = [data]
            done = len(data)
            while done < size and (data := os.pread(number, size - done, position + done)):
                parts.append(data)
                done += len(data)
            return b"".join(parts)

    def read_into(self, position: int, buffer: WritableBuffer) -> int:
        target = memoryview(buffer).cast("B")
        done = 0
        with self._reading() as number:
            _refuse_negative(position)
            while count := os.preadv(number, [target[done:]], position + done):
                done += count
                if done == len(target):
                    break
            return done

    def size(self) -> int:
        with self._reading() as number:
            return os.fstat(number).st_size

    def truncate(self, size: int) -> None:
        with self._writing() as number:
            os.ftruncate(number, size)

    def preallocate(self, size: int) -> None:
        with self._writing() as number:
            _refuse_negative(size)
            end = os.fstat(number).st_size
            if size > end:
                _reserve(number, end, size - end)

    def sync(self) -> None:
        with self._reading() as number:
            _sync_data(number)

    def drop_cache(self) -> None:
        with self._reading() as number:
            if sys.platform != "darwin":
                os.posix_fadvise(number, 0, 0, os.POSIX_FADV_DONTNEED)

    def map(self) -> memoryview:
        with self._reading() as number:
            # An empty file cannot be mapped.
            if os.fstat(number).st_size == 0:
                return memoryview(b"")
            return memoryview(mmap.mmap(number, 0, access=mmap.ACCESS_READ))

    def close(self) -> None:
        self._descriptor = None


def _refuse_negative(position: int) -> None:
    # To the vectored calls of Linux, -1 is the descriptor's own position: they would not refuse it.
    if position < 0:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))


if sys.platform == "darwin":

    def _sync_data(number: int) -> None:
        # On macOS fsync stops at the drive's cache, which a power cut empties.
        fcntl.fcntl(number, fcntl.F_FULLFSYNC)

    def _reserve(number: int, position: int, size: int) -> None:
        # macOS has no posix_fallocate. Zeros that were written have their space.
        zeros = bytes(min(size, _ZEROS_BYTES))
        end = position + size
        while position < end:
            position += os.pwrite(number, zeros[: end - position], position)

else:

    def _sync_data(number: int) -> None:
        # fdatasync leaves out only metadata that is not needed to read the bytes back, so not the size.
        os.fdatasync(number)

    def _reserve(number: int, position: int, size: int) -> None:
        os.posix_fallocate(number, position, size)


# The layout of ``struct flock``: type, whence, start, length, pid.
_RANGE = struct.Struct("@hhqqi0q")


def _lock_range(number: int, kind: int) -> None:
    """Lock or unlock the range of the lock file that `is_locked` asks about.

    Best effort: the flock is what excludes another writer. Network file systems turn a flock into a lock of
    the whole range, refuse this one, and then answer `is_locked` by the flock.
    """
    if _HAS_RANGE_LOCKS:
        with contextlib.suppress(OSError):
            fcntl.fcntl(number, fcntl.F_OFD_SETLK, _RANGE.pack(kind, os.SEEK_SET, 0, 0, 0))


def is_locked(path: str) -> bool:
    """Return whether a process holds the lock that `PosixFiles.lock` takes on the file at *path*.

    Only asks: a writer that opens the directory meanwhile is never refused because of this call. Where the
    system has no locks that can be asked about (outside Linux), it takes the lock shared for a moment.
    """
    try:
        number = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        if _HAS_RANGE_LOCKS:
            asked = _RANGE.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
            return bool(_RANGE.unpack(fcntl.fcntl(number, fcntl.F_OFD_GETLK, asked))[0] != fcntl.F_UNLCK)
        fcntl.flock(number, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(number)
    return False


class _PosixLock:
    """A `Lock` by flock, which the system releases when the process dies.

    A flock can be taken but not asked about, so the holder locks a range of the file too, for `is_locked`.
    """

    def __init__(self, path: str, descriptor: _Descriptor) -> None:
        self._path = path
        self._descriptor: _Descriptor | None = descriptor

    def describe(self, holder: str) -> None:
        descriptor = self._descriptor
        if descriptor is None:
            raise ValueError(f"{self._path} is not locked by this process")
        with descriptor as number:
            os.ftruncate(number, 0)
            try:
                os.pwrite(number, holder.encode()[:_HOLDER_BYTES_MAX], 0)
            except OSError as error:
                # The text is optional: a full disk must not prevent opening the log.
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise

    def held(self) -> bool:
        return self._descriptor is not None

    def release(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is None:
            return
        _locks.discard(self)
        with descriptor as number:
            try:
                os.ftruncate(number, 0)
            finally:
                # Closing alone would not do: a child between fork and exec shares the locks.
                _lock_range(number, fcntl.F_UNLCK)
                fcntl.flock(number, fcntl.LOCK_UN)

    def forget(self) -> None:
        """Close the forked child's copy. Unlocking it would unlock the parent, whose lock it is."""
        self._descriptor = None


_locks: set[_PosixLock] = set()


def _forget_locks_of_parent() -> None:
    while _locks:
        _locks.pop().forget()


# A child that kept its copy would hold the lock on behalf of a parent that has died.
os.register_at_fork(after_in_child=_forget_locks_of_parent)


class FileMode(NamedTuple):
    """The permissions of created files and directories.

    ``exact`` permissions ignore the umask of the process; others are reduced by it.
    """

    file: int
    directory: int
    exact: bool = False


#: For their owner only.
PRIVATE = FileMode(0o600, 0o700)
#: For the owner and for the group of the parent directory, which new files inherit.
GROUP = FileMode(0o660, 0o2770, exact=True)
#: As the umask allows, like the files of other programs: for files that are given to others.
BY_UMASK = FileMode(0o644, 0o777)


class PosixFiles:
    """The file system of the operating system: Linux and macOS. *mode* has the permissions of new files."""

    def __init__(self, mode: FileMode = PRIVATE) -> None:
        self.mode = mode

    def open(self, path: str, mode: Mode) -> File:
        """Open a file; see `Files.open`. The handle is not inherited across exec."""
        flags = {"read": os.O_RDONLY, "write": os.O_RDWR}.get(mode, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        # Created with these permissions, not restricted afterwards, so that a private file is never open to
        # others.
        descriptor = _Descriptor(path, flags, 0o600 if mode == "create_private" else self.mode.file)
        with descriptor as number:
            if mode == "create" and self.mode.exact:
                os.fchmod(number, self.mode.file)
            found = os.fstat(number)
            # Opening a directory to read succeeds, and only the first read would tell.
            if stat.S_ISDIR(found.st_mode):
                raise os_error(errno.EISDIR, path)
            if mode == "write":
                check_only_name(path, found.st_nlink)
        return _PosixFile(path, descriptor, writable=mode != "read")

    def exists(self, path: str) -> bool:
        """Return whether *path* names anything; see `Files.exists`."""
        return mode_of(path) is not None

    def is_directory(self, path: str) -> bool:
        """Return whether *path* is a directory; see `Files.is_directory`."""
        mode = mode_of(path)
        return mode is not None and stat.S_ISDIR(mode)

    def list(self, path: str) -> Names:
        """Return the names in a directory, sorted."""
        return sorted(os.listdir(path))

    def irregular(self, path: str) -> Names:
        """Return the names that are neither files nor directories; see `Files.irregular`."""
        with os.scandir(path) as entries:
            return sorted(
                entry.name
                for entry in entries
                if not entry.is_file(follow_symlinks=False) and not entry.is_dir(follow_symlinks=False)
            )

    def make_directories(self, path: str) -> Names:
        """Create *path* and the parents it lacks; see `Files.make_directories`."""
        missing = []
        while not self.exists(path):
            missing.append(path)
            path = parent(path)
        if not missing and not self.is_directory(path):
            raise os_error(errno.EEXIST, path)
        changed = []
        for directory in reversed(missing):
            try:
                os.mkdir(directory, self.mode.directory & 0o777)
                if self.mode.exact:
                    os.chmod(directory, self.mode.directory)
            except FileExistsError:
                # Another process has just created it. It may not sync it, so the directory is returned as
                # new.
                if not self.is_directory(directory):
                    raise
            changed.append(parent(directory))
        return changed

    def rename(self, source: str, target: str) -> None:
        """Give *source* the name *target* in one step; see `Files.rename`."""
        os.replace(source, target)

    def link(self, source: str, target: str) -> None:
        """Give the file *source* a second name."""
        os.link(source, target)

    def unlink(self, path: str) -> None:
        """Remove a file's name."""
        os.unlink(path)

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory."""
        os.rmdir(path)

    def sync_directory(self, path: str) -> None:
        """Make the names in a directory durable; see `Files.sync_directory`."""
        with _Descriptor(path, os.O_RDONLY | os.O_DIRECTORY) as number:
            os.fsync(number)

    def lock(self, path: str, holder: str) -> Lock:
        """Lock the file at *path* for this process; see `Files.lock`."""
        try:
            descriptor = _Descriptor(path, os.O_RDWR)
        except FileNotFoundError:
            descriptor = _Descriptor(path, os.O_RDWR | os.O_CREAT, self.mode.file)
            if self.mode.exact:
                os.fchmod(descriptor.number, self.mode.file)
        with descriptor as number:
            check_only_name(path, os.fstat(number).st_nlink)
            try:
                fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                text = os.pread(number, _HOLDER_BYTES_MAX, 0).decode(errors="replace")
                raise DirectoryLocked(path, text) from None
            _lock_range(number, fcntl.F_WRLCK)
        lock = _PosixLock(path, descriptor)
        _locks.add(lock)
        try:
            lock.describe(holder)
        except OSError:
            lock.release()
            raise
        return lock

    def free_bytes(self, path: str) -> int:
        """Return the bytes an ordinary user can still write; see `Files.free_bytes`."""
        found = os.statvfs(path)
        return found.f_bavail * found.f_frsize


def mode_of(path: str) -> int | None:
    """Return the permissions of the file or directory at *path*, None if there is none."""
    try:
        return os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None
