"""The append-only byte file under a segment."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from cordwood.errors import DiskFull, LogFailed, StorageError
from cordwood.storage.files import Buffer, File, write_all

DISK_FULL = {errno.ENOSPC, errno.EDQUOT}
Finish: TypeAlias = Callable[[], tuple[Buffer, Buffer]]
PREALLOCATE_AFTER = 1 << 20
PREALLOCATE_STEP_MAX = 16 << 20


def as_storage_error(error: OSError, doing: str) -> StorageError:
    """Return *error* as one of the library's own: DiskFull where there was no space."""
    kind = DiskFull if error.errno in DISK_FULL else StorageError
    place = f"{error.filename}: " if error.filename else ""
    return kind(f"{place}{doing} failed: {error.strerror or error}")


class Store:
    """Bytes that only grow at the end, until they are truncated.

    One appender at a time; reads from any thread. ``end`` is the position after the last byte appended;
    the file may be longer by preallocated zeros.
    """

    def __init__(self, file: File, end: int, *, preallocate: bool = False) -> None:
        self.file = file
        self.end = end
        self._allocated = file.size()
        self._preallocate = preallocate

    def append(self, buffers: Sequence[Buffer]) -> int:
        """Append *buffers* whole or not at all and return the position where they start. Not durable.

        Raises:
            DiskFull: There is no space. The store is as before.
            StorageError: The disk refused for another reason. The store is as before.
            LogFailed: The disk refused, and undoing what it had taken failed too.
        """
        size = sum(map(len, buffers))
        if self._preallocate:
            self._reserve(self.end + size)
        try:
            written = self.file.write_at(self.end, buffers)
            if written != size:
                self._write_rest(buffers, written)
        except OSError as error:
            self._undo()
            if error.errno in DISK_FULL:
                raise DiskFull(f"{self.file.path}: no space left for {size} bytes") from error
            raise StorageError(f"{self.file.path}: append failed: {error.strerror}") from error
        position = self.end
        self.end += size
        return position

    def append_around(self, head_size: int, chunks: Iterable[Buffer], finish: Finish) -> int:
        """Append a head, *chunks* and a tail, whole or not at all, where only *finish* knows head and tail.

        The head is written last: until then the place where a frame would start is zeros, so a crash
        leaves a torn tail and never half a frame. Raises as `append` does.
        """
        position = self.end + head_size
        try:
            for chunk in chunks:
                write_all(self.file, position, chunk)
                position += len(chunk)
            head, tail = finish()
            write_all(self.file, position, tail)
            position += len(tail)
            write_all(self.file, self.end, head)
        except BaseException as error:
            # Whatever it was, Ctrl-C included: nothing may stay behind the end.
            self._undo()
            if isinstance(error, OSError):
                raise as_storage_error(error, "append") from error
            raise
        start, self.end = self.end, position
        self._allocated = max(self._allocated, self.end)
        return start

    def _write_rest(self, buffers: Sequence[Buffer], written: int) -> None:
        """Finish a write that was cut short, which says nothing yet about why it was."""
        write_all(self.file, self.end + written, memoryview(b"".join(buffers))[written:])

    def _undo(self) -> None:
        """Cut off what a failed append left: a partial frame must never lie under a later good one."""
        try:
            self.file.truncate(self.end)
            self._allocated = self.end
        except OSError as error:
            raise LogFailed(f"{self.file.path}: a failed append could not be undone: {error}") from error

    def _reserve(self, end: int) -> None:
        """Preallocate ahead of the appends: later ones then change no file size and sync faster."""
        if end <= self._allocated or end < PREALLOCATE_AFTER:
            return
        step = min(max(self._allocated, PREALLOCATE_AFTER), PREALLOCATE_STEP_MAX)
        try:
            self.file.preallocate(max(end, self._allocated + step))
        except OSError:
            # A nearly full disk: grow by what is written instead, for as long as that works.
            self._preallocate = False
        self._allocated = self.file.size()

    def read_at(self, position: int, size: int) -> bytes:
        """Return up to *size* bytes from *position*, fewer where the file ends."""
        return self.file.read_at(position, size)

    def sync(self) -> None:
        """Make everything appended before the call durable."""
        self.file.sync()

    def truncate(self, end: int) -> None:
        """Drop everything from *end* on, preallocated zeros included. Not durable before `sync`."""
        self.file.truncate(end)
        self.end = self._allocated = end

    def trim(self) -> None:
        """Give back preallocated space. Not durable before `sync`."""
        if self._allocated != self.end:
            self.truncate(self.end)

    def close(self) -> None:
        """Close the file; syncs nothing."""
        self.file.close()
