"""The operating system's files with direct I/O, behind the contract of `cordwood.disk.files`.

Direct I/O bypasses the page cache and moves whole blocks between the device and aligned memory, while callers
write and read any bytes. So a write completes its first and last block with the bytes of the file there, and
then sets the size to the end of the caller's bytes. A crash between the two leaves zeros behind the last
byte, up to the end of its block; recovery takes them for preallocated space and cuts them.
"""

from __future__ import annotations

import contextlib
import errno
import io
import mmap
import os
import threading
import weakref
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from cordwood.disk.files import BUFFERS_PER_WRITE_MAX, Buffer, File, Mode, WritableBuffer
from cordwood.disk.posix import PosixFiles, _Descriptor, _PosixFile, _refuse_negative

BLOCK_BYTES_MIN = 4096
"""Memory, positions and sizes of direct I/O are multiples of this, or of a file system's larger block."""

READ_BUFFER_BYTES = 1 << 19
"""Longer reads go through a buffer of this size piece by piece."""


class _Tail(NamedTuple):
    """The last block of the latest write, so that the next append need not read it."""

    position: int
    file_size: int
    block: memoryview


class _DirectInode:
    """State shared by all handles of one file. Exists as long as one of their descriptors."""

    def __init__(self) -> None:
        # Belongs to the one thread that may change the file.
        self.tail: _Tail | None = None
        self._pinned_size: int | None = None

    def size(self, number: int) -> int:
        """Return the size of the file, never counting the zeros a write under way puts behind its bytes."""
        with _guard:
            return os.fstat(number).st_size if self._pinned_size is None else self._pinned_size

    @contextlib.contextmanager
    def size_pinned(self, size: int) -> Iterator[None]:
        """Show *size* to every reader until the block ends, whatever the operating system says."""
        with _guard:
            self._pinned_size = size
        try:
            yield
        finally:
            with _guard:
                self._pinned_size = None


_guard = threading.Lock()
_inodes: weakref.WeakValueDictionary[tuple[int, int], _DirectInode] = weakref.WeakValueDictionary()


def _renew_guard() -> None:
    global _guard
    _guard = threading.Lock()


# The thread that held the lock at the fork does not exist in the child and would never release it.
os.register_at_fork(after_in_child=_renew_guard)


class _DirectDescriptor(_Descriptor):
    """A descriptor for direct I/O, with the block size of its file system."""

    __slots__ = ("block", "inode")

    def __init__(self, path: str, flags: int) -> None:
        super().__init__(path, flags)
        self.block = max(BLOCK_BYTES_MIN, os.fstatvfs(self.number).f_frsize)
        found = os.fstat(self.number)
        with _guard:
            self.inode = _inodes.setdefault((found.st_dev, found.st_ino), _DirectInode())

    def __del__(self) -> None:
        # Released first: after closing, the inode number of an unlinked file may be given to a new file,
        # which has no tail.
        if hasattr(self, "inode"):
            del self.inode
        super().__del__()


class _DirectFile(_PosixFile):
    """A `File` read and written with direct I/O; calls that move no bytes are those of `_PosixFile`."""

    __slots__ = ()

    def _reading(self) -> _DirectDescriptor:
        descriptor = super()._reading()
        assert isinstance(descriptor, _DirectDescriptor)
        return descriptor

    def _writing(self) -> _DirectDescriptor:
        descriptor = super()._writing()
        assert isinstance(descriptor, _DirectDescriptor)
        return descriptor

    def write_at(self, position: int, buffers: Sequence[Buffer]) -> int:
        descriptor = self._writing()
        block = descriptor.block
        with descriptor as number:
            _refuse_negative(position)
            views = [memoryview(buffer).cast("B") for buffer in buffers[:BUFFERS_PER_WRITE_MAX]]
            wanted = sum(map(len, views))
            if wanted == 0:
                return 0
            # No write is under way, so this is the true size.
            size = os.fstat(number).st_size
            end = position + wanted
            first, last = _floor(position, block), _floor(end - 1, block)
            staged = _aligned(last + block - first)
            for at in {first, last}:
                if at < min(position, size) or end < min(at + block, size):
                    staged[at - first : at - first + block] = _block_of(descriptor, at, size)
            cursor = position - first
            for view in views:
                staged[cursor : cursor + len(view)] = view
                cursor += len(view)

            descriptor.inode.tail = None
            with descriptor.inode.size_pinned(size):
                written_end = first + os.pwrite(number, staged, first)
                taken = max(0, min(written_end, end) - position)
                new_size = max(size, position + taken) if taken else size
                if max(size, written_end) > new_size:
                    # A crash before this leaves zeros behind the last byte, which recovery treats as
                    # preallocated space. Never anything else: the rest of the last block is zeros.
                    os.ftruncate(number, new_size)
            if taken == wanted:
                # A copy, because the buffer of a long write is not worth keeping for its last block.
                descriptor.inode.tail = _Tail(last, new_size, memoryview(bytes(staged[-block:])))
            return taken

    def read_at(self, position: int, size: int) -> bytes:
        descriptor = self._reading()
        with descriptor as number:
            _refuse_negative(position)
            _refuse_negative(size)
            size = max(0, min(size, descriptor.inode.size(number) - position))
            # The only object that can be filled in place and returned as bytes without a second copy.
            data = io.BytesIO(bytes(size))
            with data.getbuffer() as target:
                count = _fill(descriptor, position, target)
            data.truncate(count)
            return data.getvalue()

    def read_into(self, position: int, buffer: WritableBuffer) -> int:
        target = memoryview(buffer).cast("B")
        descriptor = self._reading()
        with descriptor as number:
            _refuse_negative(position)
            size = max(0, descriptor.inode.size(number) - position)
            return _fill(descriptor, position, target[:size])

    def size(self) -> int:
        descriptor = self._reading()
        with descriptor as number:
            return descriptor.inode.size(number)

    def truncate(self, size: int) -> None:
        # Bytes that were cut off must not come back with the next append.
        self._writing().inode.tail = None
        super().truncate(size)

    def map(self) -> memoryview:
        descriptor = self._reading()
        with descriptor as number:
            size = descriptor.inode.size(number)
            if size == 0:
                return memoryview(b"")
            return memoryview(mmap.mmap(number, size, access=mmap.ACCESS_READ))


def _floor(position: int, block: int) -> int:
    return position - position % block


def _aligned(size: int) -> memoryview:
    """Return *size* zeros that start on a page.

    Mapped shared, which is Python's default: after a fork, the device may write into a private page that
    belongs to the other process by then.
    """
    return memoryview(mmap.mmap(-1, size))


def _fill(descriptor: _DirectDescriptor, position: int, target: memoryview) -> int:
    """Fill *target*, which lies within the file, and return the number of bytes that could be read."""
    if not target:
        return 0
    block, end = descriptor.block, position + len(target)
    blocks_bytes = end + -end % block - _floor(position, block)
    buffer = _aligned(min(blocks_bytes, max(_floor(READ_BUFFER_BYTES, block), block)))
    done = 0
    while done < len(target):
        # A read that ended inside a block continues at the start of that block.
        skip = (position + done) % block
        rest = skip + len(target) - done
        count = os.preadv(descriptor.number, [buffer[: rest + -rest % block]], position + done - skip)
        taken = min(count - skip, len(target) - done)
        if taken <= 0:
            # Either the file was shortened in the meantime, or this is not its end. Treating it as the end
            # would cut a record as torn, or write back a block with zeros in it.
            if os.fstat(descriptor.number).st_size > position + done:
                raise OSError(errno.EIO, f"reading stops short at {position + done}")
            break
        target[done : done + taken] = buffer[skip : skip + taken]
        done += taken
    return done


def _block_of(descriptor: _DirectDescriptor, position: int, file_size: int) -> memoryview:
    """Return the block at *position* of a file of *file_size* bytes, zeros from the end of the file on."""
    tail = descriptor.inode.tail
    # The size is compared in case another process changed the file.
    if tail is not None and (tail.position, tail.file_size) == (position, file_size):
        return tail.block
    found = memoryview(bytearray(descriptor.block))
    _fill(descriptor, position, found[: file_size - position])
    return found


class DirectFiles(PosixFiles):
    """The file system of the operating system, its files read and written past the page cache.

    ``cordwood.io=direct`` chooses it, for machines whose page cache is needed for something else. Every
    append rewrites the block it starts in, so small appends cost more than with `PosixFiles`. While a file is
    open here, it may be changed only through a `DirectFiles` of this process. A map goes through the page
    cache, so a log that is opened with direct I/O maps no segments.
    """

    def open(self, path: str, mode: Mode) -> File:
        """Open a file; see `Files.open`. The handle is not inherited across exec.

        Raises:
            OSError: EOPNOTSUPP if the operating system or the file system has no direct I/O. It is never
                replaced by buffered I/O, and a file that was to be created is not left behind.
        """
        direct: int = getattr(os, "O_DIRECT", 0)
        if not direct:
            raise _not_supported(path)
        # In two steps, because a system that refuses may have created the file before, and reports the same
        # error for a directory. A file created by the first step is removed.
        super().open(path, mode).close()
        try:
            descriptor = _DirectDescriptor(path, direct | (os.O_RDONLY if mode == "read" else os.O_RDWR))
        except OSError as error:
            if mode in {"create", "create_private"}:
                self.unlink(path)
            if error.errno == errno.EINVAL:
                raise _not_supported(path) from error
            raise
        return _DirectFile(path, descriptor, writable=mode != "read")


def _not_supported(path: str) -> OSError:
    return OSError(errno.EOPNOTSUPP, "direct I/O is not supported there", path)
