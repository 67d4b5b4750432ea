"""The `.oidx` files of the shared log: read, completed from the log, and written as it grows."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator
from typing import NamedTuple

from cordwood.disk import File, Files, parent, write_all, write_atomically
from cordwood.errors import CorruptRange
from cordwood.formats.shared import (
    ENTRY_SIZE,
    EnvelopeTable,
    Expected,
    OwnerEntry,
    find_entry,
    find_read_entry,
    pack_entry,
    sound_entries,
    unpack_entry,
)
from cordwood.kernels import Buffer
from cordwood.storage.log import (
    REINDEX_WINDOW_BYTES,
    Bounds,
    Segment,
    SegmentSource,
    Window,
    segment_path,
    walk,
)

SUFFIX = "oidx"
#: The file is synced after this many written bytes.
_SYNC_BYTES = 1 << 20
#: The largest number of bytes that wait in memory.
_TAIL_BYTES = 64 << 10
#: The number of entries read at a time.
_CHUNK_BYTES = 4096 * ENTRY_SIZE


def index_path(directory: str, base: int) -> str:
    """Return the path of the index of a segment of the shared log."""
    return segment_path(directory, base, SUFFIX)


def entries_of(window: Window, segment: int) -> Iterator[bytes]:
    """Yield the entry of each frame in a window of a segment."""
    table = window.table
    assert isinstance(table, EnvelopeTable)
    for frame in range(len(table)):
        position = window.position + table.position(frame)
        yield pack_entry(table.envelope(frame), table.content(frame), segment, position)


class Walked(NamedTuple):
    """How far a segment's frames are known: the number of entries, and the next (id, position)."""

    segment: int
    generation: int
    entries: int
    next_id: int
    position: int

    @classmethod
    def begin(cls, segment: Segment) -> Walked:
        """Return the start of a segment; a rewritten segment is walked again."""
        return cls(segment.base, segment.info.generation, 0, segment.base, 0)


def saved_entries(segment: Segment, bounds: Bounds, walked: Walked | None = None) -> Iterator[OwnerEntry]:
    """Yield what the file has of a segment, as far as it can be right; nothing if there is no file.

    Only entries after *walked*, which must be of that segment.
    """
    walked = walked or Walked.begin(segment)
    path = index_path(segment.directory, segment.base)
    return sound_entries(
        entry_chunks(segment.source, path, walked.entries * ENTRY_SIZE),
        Expected(segment.base, walked.next_id, walked.position, bounds.dense, bounds.next_offset, bounds.end),
    )


def entry_chunks(source: SegmentSource, path: str, position: int = 0) -> Iterator[bytes]:
    """Yield the whole entries of a file from *position* on, as far as it can be read."""
    # The file is derived: it can be built again if it cannot be read.
    with contextlib.suppress(OSError), contextlib.closing(source.open(path)) as file:
        while True:
            data = file.read_at(position, _CHUNK_BYTES)
            whole = len(data) // ENTRY_SIZE * ENTRY_SIZE
            if not whole:
                return
            yield data[:whole]
            position += whole


def missing_entries(
    segment: Segment, bounds: Bounds, start: tuple[int, int]
) -> Iterator[bytes | CorruptRange]:
    """Yield entries made from the log's frames from *start* on, an (id, position), and damaged ranges."""
    index = segment.indexes()
    for found in walk(segment, bounds, start, REINDEX_WINDOW_BYTES, index and index[0]):
        if isinstance(found, CorruptRange):
            yield found
        else:
            yield from entries_of(found, segment.base)


def index_size(source: SegmentSource, path: str) -> int:
    """Return the bytes of an index, -1 if it cannot be read."""
    try:
        with contextlib.closing(source.open(path)) as file:
            return file.size()
    except OSError:
        return -1


class SealedOwners:
    """The index of a sealed segment, mapped into memory. Any thread."""

    def __init__(self, source: SegmentSource, path: str) -> None:
        with contextlib.closing(source.open(path)) as file:
            self._entries: Buffer = file.map() if file.size() else b""

    def find(self, id_: int) -> OwnerEntry | None:
        """Return the entry of the frame with *id_*."""
        return find_entry(self._entries, len(self._entries) // ENTRY_SIZE, id_)


class FollowedOwners:
    """The index of a segment that another process may extend. Any thread.

    Read, not mapped, because the file may become shorter after a crash.
    """

    def __init__(self, source: SegmentSource, path: str) -> None:
        self._file = source.open(path)

    def find(self, id_: int) -> OwnerEntry | None:
        """Return the entry of the frame with *id_*, None if there is none yet."""
        try:
            return find_read_entry(self._read, self._file.size() // ENTRY_SIZE, id_)
        except struct.error:
            # The file became shorter in the meantime.
            return None

    def _read(self, number: int) -> bytes:
        return self._file.read_at(number * ENTRY_SIZE, ENTRY_SIZE)


class ActiveOwners:
    """The index of the active segment; entries that are not in the file yet are in memory.

    One writer; any thread may call `find`.
    """

    def __init__(self, files: Files, directory: str, base: int, kept: int) -> None:
        """Continue after the first *kept* entries of the file; later ones are cut, durably.

        Raises:
            OSError: If the file exists and cannot be cut. A missing file is created at the first write.
        """
        self.base = base
        self.path = index_path(directory, base)
        self._files = files
        self._opened: File | None = None
        written = kept * ENTRY_SIZE
        if files.exists(self.path) and self._file().size() > written:
            # These entries are of frames lost in a crash. They must not reappear for the frames that replace
            # them.
            self._file().truncate(written)
            self._file().sync()
        self._unsynced = 0
        self._closed = False
        self._mapped: Buffer = b""
        #: (bytes in the file, entries after those): replaced together, so that `find` sees a consistent pair.
        self._state = (written, bytearray())

    def _file(self) -> File:
        """Return the file, opened or created on first use."""
        if self._opened is None:
            self._opened = _open(self._files, self.path)
        return self._opened

    def append(self, entry: bytes) -> None:
        """Add the entry of a frame that was appended."""
        tail = self._state[1]
        tail += entry
        self.check_invariants()
        if len(tail) >= _TAIL_BYTES:
            # Entries that cannot be written now stay in memory and are retried.
            with contextlib.suppress(OSError):
                self.flush()

    def flush(self) -> None:
        """Write the entries in memory to the file, so that little must be rebuilt after a crash.

        Raises:
            OSError: If they could not be written. The index can still be rebuilt.
        """
        written, tail = self._state
        if tail:
            write_all(self._file(), written, bytes(tail))
            self._unsynced += len(tail)
            self._state = (written + len(tail), bytearray())
            self.check_invariants()
            if self._unsynced >= _SYNC_BYTES:
                self.sync()

    def check_invariants(self) -> None:
        """Check that file and memory hold whole entries. Takes constant time; called by the writer.

        Raises:
            AssertionError: If they do not: a fault of this code.
        """
        written, tail = self._state
        assert written % ENTRY_SIZE == 0, "the file ends within an entry"
        assert len(tail) % ENTRY_SIZE == 0, "memory ends within an entry"
        assert self._unsynced >= 0, "a negative number of bytes is unsynced"

    def sync(self) -> None:
        """Sync the entries that were flushed."""
        self._file().sync()
        self._unsynced = 0

    def find(self, id_: int) -> OwnerEntry | None:
        """Return the entry of the frame with *id_*, None if it is unknown now."""
        written, tail = self._state
        recent = bytes(tail)
        if recent and id_ >= unpack_entry(recent, 0).first_id:
            return find_entry(recent, len(recent) // ENTRY_SIZE, id_)
        mapped = self._mapped
        if len(mapped) < written:
            try:
                mapped = self._mapped = self._file().map()[:written]
            except (OSError, ValueError):
                # Unreadable, or closed because the segment was rolled.
                return None
        return find_entry(mapped, written // ENTRY_SIZE, id_)

    def close(self) -> None:
        """Flush and close. Idempotent."""
        if self._closed:
            return
        self._closed = True
        with contextlib.suppress(OSError):
            self.flush()
            if self._opened is not None:
                self.sync()
        if self._opened is not None:
            self._opened.close()


def rewrite_index(files: Files, directory: str, base: int, entries: Buffer) -> None:
    """Replace the index of a segment. Durable on return."""
    write_atomically(files, index_path(directory, base), bytes(entries))


def _open(files: Files, path: str) -> File:
    try:
        return files.open(path, "write")
    except FileNotFoundError:
        created = files.open(path, "create")
        files.sync_directory(parent(path))
        return created
