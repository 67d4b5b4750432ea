"""A stream of unknown length on its way into the log: spooled first, so that nobody waits for it.

Chunks go to a file in ``tmp/`` as they come, in constant memory. Only when the stream has ended well, its
bytes are copied behind a header that knows their length and checksum. Other appends never wait for a slow
stream, and one that fails leaves nothing behind.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator

from cordwood.disk import File, Files, as_storage_error, join, remove_tree, write_all
from cordwood.errors import RecordRefused, StreamTooLong
from cordwood.kernels import Buffer

COPY_BYTES = 1 << 20

#: What is called so in ``tmp/`` is on its way somewhere, and nobody's after a crash.
SUFFIX = ".spool"


class Spool:
    """The bytes of one stream, complete. One user; `close` removes the file."""

    def __init__(self, files: Files, file: File, size: int) -> None:
        self._files = files
        self._file = file
        self.size = size

    def take(self, data: Buffer) -> None:
        """Add *data*.

        Raises:
            DiskFull, StorageError: If the disk refused. The spool is of no use any more.
        """
        try:
            write_all(self._file, self.size, data)
        except OSError as error:
            raise as_storage_error(error, "spooling") from error
        self.size += len(data)

    def chunks(self) -> Iterator[bytes]:
        """Yield the bytes again, in order, in pieces of at most 1 MiB."""
        for position in range(0, self.size, COPY_BYTES):
            yield self._file.read_at(position, min(COPY_BYTES, self.size - position))

    def close(self) -> None:
        """Remove the spool. What cannot be removed now goes when the directory is opened next."""
        self._file.close()
        with contextlib.suppress(OSError):
            self._files.unlink(self._file.path)


def spool(files: Files, data: str, name: str, chunks: Iterable[Buffer], max_bytes: int) -> Spool:
    """Write all *chunks* to the file *name* in ``tmp/`` of the data directory.

    Raises:
        StreamTooLong: As soon as more than *max_bytes* came. What the stream itself raises goes through.
            Either way nothing is left.
        DiskFull: There is no space; nothing is left.
    """
    try:
        files.make_directories(join(data, "tmp"))
        spooled = Spool(files, files.open(join(data, "tmp", name), "create"), 0)
    except OSError as error:
        raise as_storage_error(error, "spooling") from error
    try:
        for chunk in chunks:
            # In bytes: a view may count in wider items.
            try:
                data_bytes = memoryview(chunk).cast("B")
            except TypeError:
                raise RecordRefused(f"a chunk must be bytes, not {type(chunk).__name__}") from None
            if spooled.size + len(data_bytes) > max_bytes:
                raise StreamTooLong(max_bytes)
            spooled.take(data_bytes)
    except BaseException:
        spooled.close()
        raise
    return spooled


def remove_spools(files: Files, data: str) -> None:
    """Remove what streams, and jobs that stage files, of an earlier process left: none is part of the log."""
    directory = join(data, "tmp")
    if files.exists(directory):
        for name in files.list(directory):
            if name.endswith(SUFFIX):
                path = join(directory, name)
                remove_tree(files, path) if files.is_directory(path) else files.unlink(path)


Pace = Callable[[int], None]


def no_pace(size: int) -> None:
    """Go on at once."""
