"""The append-only byte file under a segment."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from cordwood.disk.files import DISK_FULL, PASSING, Buffer, File, Files, SyncFailed, write_all
from cordwood.disk.handles import RestingFile
from cordwood.errors import DiskFull, LogFailed, ResourcesExhausted, StorageError

Finish: TypeAlias = Callable[[], tuple[Buffer, Buffer]]
PREALLOCATE_AFTER = 1 << 20
PREALLOCATE_STEP_MAX = 16 << 20


def as_storage_error(error: OSError, doing: str) -> StorageError:
    """Return the library's exception for *error*.

    DiskFull for a lack of space, ResourcesExhausted for a lack of file handles or memory, LogFailed for a
    failed sync.
    """
    kind: type[StorageError] = StorageError
    if error.errno in DISK_FULL:
        kind = DiskFull
    elif error.errno in PASSING:
        kind = ResourcesExhausted
    elif isinstance(error, SyncFailed):
        kind = LogFailed
    place = f"{error.filename}: " if error.filename else ""
    return kind(f"{place}{doing} failed: {error.strerror or error}")


class Store:
    """An append-only file that can be truncated.

    One appender at a time; reads from any thread. ``end`` is the position after the last byte appended;
    the file may be longer by preallocated zeros.
    """

    def __init__(self, file: File, end: int, *, preallocate: bool = False) -> None:
        #: A RestingFile while it is idle; see `rest`.
        self.file: File = file
        self.end = end
        self._allocated = file.size()
        self._preallocate = preallocate

    def append(self, buffers: Sequence[Buffer]) -> int:
        """Append *buffers* completely or not at all; return their start position. Not durable.

        Raises:
            DiskFull: There is no space. The store is as before.
            StorageError: The disk refused for another reason. The store is as before.
            LogFailed: The disk refused, and undoing the partial write failed too.
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
            raise as_storage_error(error, "append") from error
        position = self.end
        self.end += size
        return position

    def append_around(self, head_size: int, chunks: Iterable[Buffer], finish: Finish) -> int:
        """Append a head, *chunks* and a tail, completely or not at all; *finish* returns head and tail.

        The head is written last: until then there are zeros in its place, so a crash leaves a torn tail and
        never half a frame. Raises as `append` does.
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
            # For any exception, including Ctrl-C: no bytes may stay after the end.
            self._undo()
            if isinstance(error, OSError):
                raise as_storage_error(error, "append") from error
            raise
        start, self.end = self.end, position
        self._allocated = max(self._allocated, self.end)
        return start

    def _write_rest(self, buffers: Sequence[Buffer], written: int) -> None:
        """Finish a short write; its cause is not known yet."""
        write_all(self.file, self.end + written, memoryview(b"".join(buffers))[written:])

    def _undo(self) -> None:
        """Cut the bytes of a failed append: a partial frame must never precede a good one."""
        if isinstance(self.file, RestingFile):
            # The file could not be opened.
            return
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
            # The disk is nearly full: grow by the written bytes instead, as long as possible.
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
        """Release preallocated space. Not durable before `sync`."""
        if self._allocated != self.end:
            self.truncate(self.end)

    def rest(self, files: Files, *, synced: bool) -> int:
        """Close the file until it is needed again; return how many handles that gave back.

        The appender calls it. *synced* says that all bytes are durable.
        """
        if isinstance(self.file, RestingFile):
            return 0
        # Not closed here: a reader may use it, and it is closed with its last reader.
        self.file = RestingFile(files, self.file.path, self, synced=synced)
        return 1

    def close(self) -> None:
        """Close the file; syncs nothing."""
        self.file.close()
