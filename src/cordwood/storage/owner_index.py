"""The `.oidx` files of the shared log: read, completed from the log, and written as it grows."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator
from typing import NamedTuple

from cordwood.errors import CorruptRange
from cordwood.formats.envelope import EnvelopeTable
from cordwood.formats.owners import (
    ENTRY_SIZE,
    Expected,
    OwnerEntry,
    find_entry,
    find_read_entry,
    pack_entry,
    sound_entries,
    unpack_entry,
)
from cordwood.kernels import Buffer
from cordwood.storage.files import File, Files, parent, write_all, write_atomically
from cordwood.storage.reading import REINDEX_WINDOW_BYTES, Bounds, Window, walk
from cordwood.storage.segment import Segment, segment_path

SUFFIX = "oidx"
#: What was written to the file since its last sync is synced when it comes to so much.
_SYNC_BYTES = 1 << 20
#: So much of it waits in memory at most.
_TAIL_BYTES = 64 << 10
#: So many entries are read at a time.
_CHUNK_BYTES = 4096 * ENTRY_SIZE


def index_path(directory: str, base: int) -> str:
    """Return where the index of a segment of the shared log is."""
    return segment_path(directory, base, SUFFIX)


def entries_of(window: Window, segment: int) -> Iterator[bytes]:
    """Yield the entry of each frame in a window of a segment."""
    table = window.table
    assert isinstance(table, EnvelopeTable)
    for frame in range(len(table)):
        position = window.position + table.position(frame)
        yield pack_entry(table.envelope(frame), table.content(frame), segment, position)


class Walked(NamedTuple):
    """How far the frames of a segment are known: so many entries, and the (id, position) that comes next."""

    segment: int
    generation: int
    entries: int
    next_id: int
    position: int

    @classmethod
    def begin(cls, segment: Segment) -> Walked:
        """Return the beginning of a segment as it is: one that was rewritten is walked again."""
        return cls(segment.base, segment.info.generation, 0, segment.base, 0)


def saved_entries(
    files: Files, segment: Segment, bounds: Bounds, walked: Walked | None = None
) -> Iterator[OwnerEntry]:
    """Yield what the file has of a segment, as far as it can be right; nothing if there is no file.

    Only what comes after *walked*, which must be of that segment.
    """
    walked = walked or Walked.begin(segment)
    chunks = entry_chunks(files, index_path(segment.directory, segment.base), walked.entries * ENTRY_SIZE)
    return sound_entries(
        chunks,
        Expected(segment.base, walked.next_id, walked.position, bounds.dense, bounds.next_offset, bounds.end),
    )


def entry_chunks(files: Files, path: str, position: int = 0) -> Iterator[bytes]:
    """Yield the whole entries of a file from *position* on; what cannot be read ends it."""
    # Derived, so whatever is wrong with it, it can be built again.
    with contextlib.suppress(OSError), contextlib.closing(files.open(path, "read")) as file:
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
    """Yield the entries of frames from *start*, an (id, position), on, from the log; and what is damaged."""
    index = segment.indexes()
    for found in walk(segment, bounds, start, REINDEX_WINDOW_BYTES, index and index[0]):
        if isinstance(found, CorruptRange):
            yield found
        else:
            yield from entries_of(found, segment.base)


def index_size(files: Files, path: str) -> int:
    """Return the bytes of an index, -1 if that cannot be told."""
    try:
        with contextlib.closing(files.open(path, "read")) as file:
            return file.size()
    except OSError:
        return -1


class SealedOwners:
    """The index of a sealed segment, mapped. From any thread."""

    def __init__(self, files: Files, path: str) -> None:
        with contextlib.closing(files.open(path, "read")) as file:
            self._entries: Buffer = file.map() if file.size() else b""

    def find(self, id_: int) -> OwnerEntry | None:
        """Return the entry of the frame that has *id_*."""
        return find_entry(self._entries, len(self._entries) // ENTRY_SIZE, id_)


class FollowedOwners:
    """The index of a segment that another process may be adding to. From any thread.

    Read, not mapped: after a crash the file may become shorter.
    """

    def __init__(self, files: Files, path: str) -> None:
        self._file = files.open(path, "read")

    def find(self, id_: int) -> OwnerEntry | None:
        """Return the entry of the frame that has *id_*, None if there is none, or none yet."""
        try:
            return find_read_entry(self._read, self._file.size() // ENTRY_SIZE, id_)
        except struct.error:
            # It became shorter meanwhile.
            return None

    def _read(self, number: int) -> bytes:
        return self._file.read_at(number * ENTRY_SIZE, ENTRY_SIZE)


class ActiveOwners:
    """The index of the segment that takes appends: what is not in the file yet is in memory.

    One writer; `find` from any thread.
    """

    def __init__(self, files: Files, directory: str, base: int, kept: int) -> None:
        """Go on after the first *kept* entries that are in the file; what lies beyond is cut, durably."""
        self.base = base
        self.path = index_path(directory, base)
        self._file = _open(files, self.path)
        written = kept * ENTRY_SIZE
        if self._file.size() > written:
            # Entries of frames that a crash took. They must not come back under those that take their place.
            self._file.truncate(written)
            self._file.sync()
        self._unsynced = 0
        self._closed = False
        self._mapped: Buffer = b""
        #: (bytes in the file, entries after those): replaced together, so that `find` sees both or neither.
        self._state = (written, bytearray())

    def append(self, entry: bytes) -> None:
        """Add the entry of a frame that was appended."""
        tail = self._state[1]
        tail += entry
        if len(tail) >= _TAIL_BYTES:
            # What cannot be written now stays where it is, and is tried again.
            with contextlib.suppress(OSError):
                self.flush()

    def flush(self) -> None:
        """Write what is in memory to the file, so that a process that is killed leaves little to read again.

        Raises:
            OSError: If it could not be written. Nothing is lost by that but time.
        """
        written, tail = self._state
        if tail:
            write_all(self._file, written, bytes(tail))
            self._unsynced += len(tail)
            self._state = (written + len(tail), bytearray())
            if self._unsynced >= _SYNC_BYTES:
                self.sync()

    def sync(self) -> None:
        """Make what was flushed durable."""
        self._file.sync()
        self._unsynced = 0

    def find(self, id_: int) -> OwnerEntry | None:
        """Return the entry of the frame that has *id_*, None if that cannot be told now."""
        written, tail = self._state
        recent = bytes(tail)
        if recent and id_ >= unpack_entry(recent, 0).first_id:
            return find_entry(recent, len(recent) // ENTRY_SIZE, id_)
        mapped = self._mapped
        if len(mapped) < written:
            try:
                mapped = self._mapped = self._file.map()[:written]
            except (OSError, ValueError):
                # Unreadable, or closed meanwhile because the segment was rolled.
                return None
        return find_entry(mapped, written // ENTRY_SIZE, id_)

    def close(self) -> None:
        """Flush and let go. Idempotent."""
        if self._closed:
            return
        self._closed = True
        with contextlib.suppress(OSError):
            self.flush()
            self.sync()
        self._file.close()


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
