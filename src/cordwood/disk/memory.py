"""A file system in memory: what ``cordwood.open(":memory:")`` runs on.

It keeps the contract of `cordwood.disk.files`, errnos included, and loses everything with the
process. Syncing is allowed and does nothing. A forked child works on a copy of its own.
"""

from __future__ import annotations

import contextlib
import errno
import threading
from collections.abc import Iterator, Sequence
from typing import TypeAlias

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


class MemoryInode:
    """The bytes of one file, which may have several names.

    ``data`` holds the file up to the last byte written; from there to ``size`` it reads as zeros, so a
    preallocated file takes no memory before it is filled. Both are touched only under ``guard``;
    ``names`` counts its names, and belongs to the directories.
    """

    __slots__ = ("data", "guard", "lock", "names", "size")

    def __init__(self) -> None:
        self.data = bytearray()
        self.size = 0
        self.names = 1
        self.lock: _MemoryLock | None = None
        self.guard = threading.Lock()

    def write(self, position: int, buffer: Buffer) -> int:
        """Write *buffer* at *position*; return its size in bytes."""
        source = memoryview(buffer).cast("B")
        if position > len(self.data) and source:
            self._extend(bytes(position - len(self.data)))
        over = max(0, min(len(self.data) - position, len(source)))
        if over:
            with memoryview(self.data) as target:
                target[position : position + over] = source[:over]
        if over < len(source):
            self._extend(source[over:])
        self.size = max(self.size, len(self.data))
        return len(source)

    def read_into(self, position: int, target: memoryview) -> int:
        """Read into *target*; return how many bytes there were."""
        count = max(0, min(len(target), self.size - position))
        stored = max(0, min(count, len(self.data) - position))
        with memoryview(self.data) as source:
            target[:stored] = source[position : position + stored]
        target[stored:count] = bytes(count - stored)
        return count

    def read(self, position: int, size: int) -> bytes:
        """Return up to *size* bytes from *position*."""
        count = max(0, min(size, self.size - position))
        with memoryview(self.data) as source:
            data = bytes(source[position : position + count])
        return data if len(data) == count else data.ljust(count, b"\0")

    def resize(self, size: int) -> None:
        """Cut the file, or lengthen it with zeros."""
        if size < len(self.data):
            try:
                del self.data[size:]
            except BufferError:
                self.data = self.data[:size]
        self.size = size

    def sync(self) -> None:
        """Do nothing: memory has nothing to write to."""

    def view(self) -> memoryview:
        """Return the bytes of the file as they are now, without a copy."""
        self._extend(bytes(self.size - len(self.data)))
        return memoryview(self.data).toreadonly()

    def _extend(self, more: Buffer) -> None:
        try:
            self.data += more
        except BufferError:
            # A map() of these bytes is alive and pins them. The map keeps them; the file continues with a
            # copy.
            self.data = self.data + more


class MemoryDirectory:
    """Names and their files or directories."""

    __slots__ = ("entries",)

    def __init__(self) -> None:
        self.entries: dict[str, _Node] = {}


_Node: TypeAlias = MemoryInode | MemoryDirectory


class _MemoryFile:
    """A `File` on an inode."""

    __slots__ = ("_inode", "_path", "_writable")

    def __init__(self, path: str, inode: MemoryInode, *, writable: bool) -> None:
        self._path = path
        self._inode: MemoryInode | None = inode
        self._writable = writable

    @property
    def path(self) -> str:
        return self._path

    def _opened(self) -> MemoryInode:
        inode = self._inode
        if inode is None:
            raise ValueError(f"{self._path} is closed")
        return inode

    def _reading(self, position: int, size: int = 0) -> MemoryInode:
        inode = self._opened()
        if position < 0 or size < 0:
            raise os_error(errno.EINVAL, self._path)
        return inode

    def _writing(self, position: int) -> MemoryInode:
        inode = self._opened()
        if not self._writable:
            raise os_error(errno.EBADF, self._path)
        if position < 0:
            raise os_error(errno.EINVAL, self._path)
        return inode

    def write_at(self, position: int, buffers: Sequence[Buffer]) -> int:
        inode = self._writing(position)
        start = position
        # One lock for all buffers: a reader sees the whole write or nothing of it.
        with inode.guard:
            for buffer in buffers[:BUFFERS_PER_WRITE_MAX]:
                position += inode.write(position, buffer)
        return position - start

    def read_at(self, position: int, size: int) -> bytes:
        inode = self._reading(position, size)
        with inode.guard:
            return inode.read(position, size)

    def read_into(self, position: int, buffer: WritableBuffer) -> int:
        inode = self._reading(position)
        with inode.guard:
            return inode.read_into(position, memoryview(buffer).cast("B"))

    def size(self) -> int:
        inode = self._opened()
        with inode.guard:
            return inode.size

    def truncate(self, size: int) -> None:
        inode = self._writing(size)
        with inode.guard:
            inode.resize(size)

    def preallocate(self, size: int) -> None:
        inode = self._writing(size)
        with inode.guard:
            inode.resize(max(size, inode.size))

    def sync(self) -> None:
        self._opened().sync()

    def drop_cache(self) -> None:
        self._opened()

    def map(self) -> memoryview:
        inode = self._opened()
        with inode.guard:
            return inode.view()

    def close(self) -> None:
        self._inode = None


class _MemoryLock:
    """A `Lock` among the users of one `MemoryFiles`."""

    def __init__(self, path: str, inode: MemoryInode) -> None:
        self._path = path
        self._inode = inode

    def describe(self, holder: str) -> None:
        with self._inode.guard:
            if self._inode.lock is not self:
                raise ValueError(f"{self._path} is not locked by this process")
            self._inode.resize(0)
            self._inode.write(0, holder.encode())

    def held(self) -> bool:
        return self._inode.lock is self

    def release(self) -> None:
        with self._inode.guard:
            if self._inode.lock is self:
                self._inode.resize(0)
                self._inode.lock = None


class MemoryFiles:
    """Directories and files in memory, starting with an empty root.

    ``/a``, ``a`` and ``./a`` are the same path, since there is no working directory; ``..`` is EINVAL.
    Appending costs time in the bytes appended, not in the size of the file.
    """

    def __init__(self) -> None:
        self._root = self._new_directory()
        self._guard = threading.Lock()

    def open(self, path: str, mode: Mode) -> File:
        """Open a file; see `Files.open`."""
        with self._guard:
            created = mode in {"create", "create_private"}
            inode = self._create(path) if created else self._file(path)
            if mode == "write":
                check_only_name(path, inode.names)
        return _MemoryFile(path, inode, writable=mode != "read")

    def exists(self, path: str) -> bool:
        """Return whether *path* names anything."""
        with self._guard:
            return self._found(path) is not None

    def is_directory(self, path: str) -> bool:
        """Return whether *path* is a directory."""
        with self._guard:
            return isinstance(self._found(path), MemoryDirectory)

    def list(self, path: str) -> Names:
        """Return the names in a directory, sorted."""
        with self._guard:
            return sorted(self._directory(path).entries)

    def irregular(self, path: str) -> Names:
        """Return an empty list: there are only files and directories."""
        with self._guard:
            self._directory(path)
        return []

    def make_directories(self, path: str) -> Names:
        """Create *path* and the parents it lacks; see `Files.make_directories`."""
        with self._guard:
            missing = []
            while self._found(path) is None:
                missing.append(path)
                path = parent(path)
            if not missing and not isinstance(self._found(path), MemoryDirectory):
                raise os_error(errno.EEXIST, path)
            for directory in reversed(missing):
                holder, name = self._place(directory)
                holder.entries[name] = self._new_directory()
            return [parent(directory) for directory in reversed(missing)]

    def rename(self, source: str, target: str) -> None:
        """Give *source* the name *target* in one step; see `Files.rename`."""
        with self._guard, _about(source, target):
            node = self._node(source)
            holder, name = self._place(source)
            target_holder, target_name = self._place(target)
            replaced = target_holder.entries.get(target_name)
            if replaced is node:
                return
            if isinstance(node, MemoryDirectory):
                if _names(target)[: len(_names(source))] == _names(source):
                    raise os_error(errno.EINVAL, source)
                if isinstance(replaced, MemoryInode):
                    raise os_error(errno.ENOTDIR, source)
                if replaced is not None and replaced.entries:
                    raise os_error(errno.ENOTEMPTY, source)
            elif isinstance(replaced, MemoryDirectory):
                raise os_error(errno.EISDIR, source)
            if isinstance(replaced, MemoryInode):
                replaced.names -= 1
            target_holder.entries[target_name] = node
            del holder.entries[name]

    def link(self, source: str, target: str) -> None:
        """Give the file *source* a second name."""
        with self._guard, _about(source, target):
            node = self._node(source)
            holder, name = self._place(target)
            if name in holder.entries:
                raise os_error(errno.EEXIST, source)
            if isinstance(node, MemoryDirectory):
                raise os_error(errno.EPERM, source)
            holder.entries[name] = node
            node.names += 1

    def unlink(self, path: str) -> None:
        """Remove a file's name."""
        with self._guard:
            self._file(path).names -= 1
            holder, name = self._place(path)
            del holder.entries[name]

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory."""
        with self._guard:
            if self._directory(path).entries:
                raise os_error(errno.ENOTEMPTY, path)
            holder, name = self._place(path)
            del holder.entries[name]

    def sync_directory(self, path: str) -> None:
        """Check that the directory is there; there is nothing to sync."""
        with self._guard:
            self._directory(path)

    def lock(self, path: str, holder: str) -> Lock:
        """Lock the file at *path* against other users of this object; see `Files.lock`."""
        with self._guard:
            inode = self._file(path) if self._found(path) else self._create(path)
            check_only_name(path, inode.names)
            with inode.guard:
                if inode.lock is not None:
                    raise DirectoryLocked(path, bytes(inode.data).decode())
                lock = inode.lock = _MemoryLock(path, inode)
        lock.describe(holder)
        return lock

    def free_bytes(self, path: str) -> int:
        """Return the largest number a file size can have: there is no known limit."""
        with self._guard:
            self._node(path)
        return (1 << 63) - 1

    def _node(self, path: str) -> _Node:
        return self._walk(_names(path), path)

    def _walk(self, names: Names, path: str) -> _Node:
        """Follow *names* from the root; ENOENT about *path*, or ENOTDIR when they lead through a file."""
        node: _Node = self._root
        for name in names:
            if isinstance(node, MemoryInode):
                raise os_error(errno.ENOTDIR, path)
            if name not in node.entries:
                raise os_error(errno.ENOENT, path)
            node = node.entries[name]
        return node

    def _found(self, path: str) -> _Node | None:
        try:
            return self._node(path)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def _file(self, path: str) -> MemoryInode:
        node = self._node(path)
        if isinstance(node, MemoryDirectory):
            raise os_error(errno.EISDIR, path)
        return node

    def _directory(self, path: str) -> MemoryDirectory:
        node = self._node(path)
        if isinstance(node, MemoryInode):
            raise os_error(errno.ENOTDIR, path)
        return node

    def _place(self, path: str) -> tuple[MemoryDirectory, str]:
        """Return the directory that holds, or would hold, the last name of *path*, and that name."""
        names = _names(path)
        if not names:
            # The root has no name and no holder, and can be neither replaced nor removed.
            raise os_error(errno.EBUSY, path)
        holder = self._walk(names[:-1], path)
        if isinstance(holder, MemoryInode):
            raise os_error(errno.ENOTDIR, path)
        return holder, names[-1]

    def _new_inode(self) -> MemoryInode:
        return MemoryInode()

    def _new_directory(self) -> MemoryDirectory:
        return MemoryDirectory()

    def _create(self, path: str) -> MemoryInode:
        if self._found(path) is not None:
            raise os_error(errno.EEXIST, path)
        holder, name = self._place(path)
        inode = holder.entries[name] = self._new_inode()
        return inode


def _names(path: str) -> Names:
    names = [name for name in path.split("/") if name not in ("", ".")]
    if not path:
        raise os_error(errno.ENOENT, path)
    if ".." in names:
        raise os_error(errno.EINVAL, path)
    return names


@contextlib.contextmanager
def _about(source: str, target: str) -> Iterator[None]:
    """Name both paths in an OSError, as the operating system does for calls that take two."""
    try:
        yield
    except OSError as error:
        error.filename, error.filename2 = source, target
        raise
