"""Rebuild ``.oidx`` files: compare them with entries made from the log, and stage a new file on a difference.

The index may be half as large as the log, so no more than a window of it is in memory.
"""

from __future__ import annotations

import contextlib

import google_crc32c

from cordwood.disk import File, Files, parent, read_marks, write_all
from cordwood.formats.shared import ENTRY_SIZE, Expected, sound_entries
from cordwood.storage.log import LocalSegments, Window, mark_path, newest_mark, read_state, synced_bound
from cordwood.storage.shared.owner_index import entries_of, entry_chunks, index_path

_WINDOW_BYTES = 1 << 20
#: Larger than any position or id.
_NO_END = 1 << 63


class OwnerBuilder:
    """Takes the frames of a segment at *base*, and compares the file at *path* with their entries.

    At the first difference, a new file at *target* is begun with the entries before it, and takes all later
    ones. One user; must be closed. ``crc32c`` is of all entries, ``there`` is whether the old file exists;
    ``staged`` whether a new file was made, and ``differs`` whether it differs in more than entries missing at
    the end.
    """

    def __init__(self, files: Files, path: str, base: int, target: str) -> None:
        self.crc32c = 0
        self.differs = False
        self.there = True
        self.staged = False
        self._files = files
        self._base = base
        self._target = target
        self._pending = bytearray()
        self._position = 0
        self._old: File | None = None
        self._new: File | None = None
        try:
            self._old = files.open(path, "read")
        except FileNotFoundError:
            self.there = False
        except OSError:
            # The index is derived, so a damaged one is replaced.
            self.differs = True

    def add(self, window: Window) -> None:
        """Take the next frames."""
        for entry in entries_of(window, self._base):
            self._pending += entry
        if len(self._pending) >= _WINDOW_BYTES:
            self._pass()

    def _pass(self) -> None:
        entries, self._pending = bytes(self._pending), bytearray()
        self.crc32c = google_crc32c.extend(self.crc32c, entries)
        if self._new is None:
            found = self._read(self._position, len(entries))
            if found != entries:
                self.differs = self.differs or not entries.startswith(found)
                self._stage()
        if self._new is not None:
            write_all(self._new, self._position, entries)
        self._position += len(entries)
        self.check_invariants()

    def check_invariants(self) -> None:
        """Check that whole entries were taken, and that a staged file is open. Takes constant time.

        Raises:
            AssertionError: If that is not so: a fault of this code.
        """
        assert self._position % ENTRY_SIZE == 0, "the entries end within one"
        assert not self.staged or self._new is not None, "a staged file that was never opened"

    def finish(self) -> None:
        """Compare the rest of the file after the last frame; a staged file is synced on return."""
        if self._pending:
            self._pass()
        if self._new is None and self._old is not None and self._old.size() > self._position:
            self.differs = True
            self._stage()
        if self._new is not None:
            self._new.sync()

    def _read(self, position: int, size: int) -> bytes:
        try:
            return b"" if self._old is None else self._old.read_at(position, size)
        except OSError:
            self.differs = True
            return b""

    def _stage(self) -> None:
        """Begin the new file with the correct entries so far."""
        self._files.make_directories(parent(self._target))
        self._new = self._files.open(self._target, "create")
        self.staged = True
        for at in range(0, self._position, _WINDOW_BYTES):
            write_all(self._new, at, self._read(at, min(_WINDOW_BYTES, self._position - at)))

    def discard(self) -> None:
        """Remove the staged file."""
        if self.staged:
            self.staged = False
            with contextlib.suppress(OSError):
                self._files.unlink(self._target)

    def close(self) -> None:
        """Close the files."""
        for file in (self._old, self._new):
            if file is not None:
                file.close()


def unsound_indexes(files: Files, directory: str) -> dict[str, bool]:
    """Return the damaged ``.oidx`` files of a shared log, judged by these alone, and those that exist.

    Opening the log rebuilds damaged ones without a report.
    """
    state = read_state(files, directory)
    mark = newest_mark(state, read_marks(files, mark_path(directory)), directory)
    bound = synced_bound(state, mark)
    found: dict[str, bool] = {}
    segments = [(each.base, each.size, each.generation) for each in state.sealed]
    for base, size, generation in (*segments, (state.active_base, bound.position, state.active_generation)):
        path = index_path(directory, base)
        there = files.exists(path)
        sound = _reaches(files, path, base, size, dense=not generation) if there else not size
        if not sound:
            found[path] = there
    return found


def _reaches(files: Files, path: str, base: int, end: int, *, dense: bool) -> bool:
    """Return whether all entries of an index are sound, and reach to the position *end* of the log."""
    expected = Expected(base, base, 0, dense, _NO_END, _NO_END)
    position = count = 0
    for entry in sound_entries(entry_chunks(LocalSegments(files), path), expected):
        position, count = entry.end, count + 1
    with contextlib.suppress(OSError), contextlib.closing(files.open(path, "read")) as file:
        return position >= end and file.size() == count * ENTRY_SIZE
    return False
