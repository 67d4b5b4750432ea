"""Spooling of streams of unknown length before they are appended to the log.

Chunks are written to a file in ``tmp/`` as they arrive, in constant memory. When the stream is complete, its
bytes are copied to the log after a header with their length and checksum. Other appends never wait for a slow
stream, and a stream that fails leaves nothing behind.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator

from cordwood.disk import File, Files, as_storage_error, join, remove_tree, write_all
from cordwood.errors import RecordRefused, StreamTooLong
from cordwood.kernels import Buffer

COPY_BYTES = 1 << 20

#: The suffix of spool files in ``tmp/``. After a crash they can be deleted.
SUFFIX = ".spool"


class Spool:
    """The bytes of one stream. For one thread at a time; `close` removes the file."""

    def __init__(self, files: Files, file: File, size: int) -> None:
        self._files = files
        self._file = file
        self.size = size

    def take(self, data: Buffer) -> None:
        """Add *data*, one byte an item.

        Raises:
            DiskFull, StorageError: If the write fails. The spool is unusable afterwards.
        """
        try:
            write_all(self._file, self.size, data)
        except OSError as error:
            raise as_storage_error(error, "spooling") from error
        self.size += len(data)

    def chunks(self) -> Iterator[bytes]:
        """Yield the bytes in order, in chunks of at most 1 MiB."""
        for position in range(0, self.size, COPY_BYTES):
            yield self._file.read_at(position, min(COPY_BYTES, self.size - position))

    def close(self) -> None:
        """Remove the spool. A file that cannot be removed is removed when the directory is next opened."""
        self._file.close()
        with contextlib.suppress(OSError):
            self._files.unlink(self._file.path)


def spool(files: Files, data: str, name: str, chunks: Iterable[Buffer], max_bytes: int) -> Spool:
    """Write all *chunks* to the file *name* in ``tmp/`` of the data directory.

    Raises:
        StreamTooLong: As soon as there are more than *max_bytes*. The file is removed.
        DiskFull: If there is no space. The file is removed.

    An exception of *chunks* propagates; the file is removed.
    """
    spooled = begin_spool(files, data, name)
    try:
        for chunk in chunks:
            data_bytes = bytes_of_chunk(chunk)
            if spooled.size + len(data_bytes) > max_bytes:
                raise StreamTooLong(max_bytes)
            spooled.take(data_bytes)
    except BaseException:
        spooled.close()
        raise
    return spooled


def begin_spool(files: Files, data: str, name: str) -> Spool:
    """Return an empty spool: the file *name* in ``tmp/`` of the data directory.

    Raises:
        DiskFull, StorageError: If it cannot be created.
    """
    try:
        files.make_directories(join(data, "tmp"))
        return Spool(files, files.open(join(data, "tmp", name), "create"), 0)
    except OSError as error:
        raise as_storage_error(error, "spooling") from error


def bytes_of_chunk(chunk: Buffer) -> memoryview:
    """Return the bytes of a chunk of a stream. A view may have items that are wider than a byte.

    Raises:
        RecordRefused: If it is no buffer.
    """
    try:
        return memoryview(chunk).cast("B")
    except TypeError:
        raise RecordRefused(f"a chunk must be bytes, not {type(chunk).__name__}") from None


def remove_spools(files: Files, data: str) -> None:
    """Remove the files that streams and staging jobs of an earlier process left. None is part of the log."""
    directory = join(data, "tmp")
    if files.exists(directory):
        for name in files.list(directory):
            if name.endswith(SUFFIX):
                path = join(directory, name)
                remove_tree(files, path) if files.is_directory(path) else files.unlink(path)


Pace = Callable[[int], None]


def no_pace(size: int) -> None:
    """Return at once: no rate limit."""
