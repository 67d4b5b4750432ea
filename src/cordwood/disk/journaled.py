"""Files that note in a journal what becomes durable."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cordwood.disk.changes import FileTrack
from cordwood.disk.files import Buffer, File, Files, Lock, Mode, Names
from cordwood.disk.journal import DiskJournal


class JournaledFiles:
    """`Files` that note in a journal what becomes durable. Every method may be called from any thread."""

    def __init__(self, inner: Files, journal: DiskJournal, *, at_once: Callable[[str], bool]) -> None:
        """*at_once* says of which files a write counts without a sync: small ones, overwritten in place."""
        self._inner = inner
        self._journal = journal
        self._at_once = at_once

    def open(self, path: str, mode: Mode) -> File:
        """Open a file; see `Files.open`."""
        file = self._inner.open(path, mode)
        relative = self._journal.relative(path)
        if relative is None:
            return file
        if mode == "read":
            return _ReadFile(file, self._journal, relative)
        created = mode != "write"
        track = self._journal.opened(relative, 0 if created else file.size(), created=created)
        return JournaledFile(file, self._journal, track, at_once=self._at_once(relative))

    def make_directories(self, path: str) -> Names:
        """Create *path* and the parents it lacks; see `Files.make_directories`."""
        gained = self._inner.make_directories(path)
        relative = self._journal.relative(path)
        if gained and relative is not None:
            self._journal.made(relative)
        return gained

    def rename(self, source: str, target: str) -> None:
        """Give *source* the name *target* in one step; see `Files.rename`."""
        is_directory = self._inner.is_directory(source)
        journal = self._journal
        old, new = journal.relative(source), journal.relative(target)
        with journal.renaming(old, new):
            self._inner.rename(source, target)
            journal.renamed(old, new, target, is_directory=is_directory)

    def link(self, source: str, target: str) -> None:
        """Give the file *source* a second name; see `Files.link`."""
        self._inner.link(source, target)
        relative = self._journal.relative(target)
        if relative is not None:
            self._journal.include(relative)

    def unlink(self, path: str) -> None:
        """Remove a file's name."""
        self._inner.unlink(path)
        self._gone(path, is_directory=False)

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory."""
        self._inner.remove_directory(path)
        self._gone(path, is_directory=True)

    def _gone(self, path: str, *, is_directory: bool) -> None:
        relative = self._journal.relative(path)
        if relative is not None:
            self._journal.unlinked(relative, is_directory=is_directory)

    def sync_directory(self, path: str) -> None:
        """Make the names in a directory durable; see `Files.sync_directory`."""
        self._inner.sync_directory(path)
        relative = self._journal.relative(path)
        if relative is not None:
            self._journal.wait(relative)

    def exists(self, path: str) -> bool:
        """Return whether *path* names anything; see `Files.exists`."""
        return self._inner.exists(path)

    def is_directory(self, path: str) -> bool:
        """Return whether *path* is a directory; see `Files.is_directory`."""
        return self._inner.is_directory(path)

    def list(self, path: str) -> Names:
        """Return the names in a directory, sorted."""
        return self._inner.list(path)

    def irregular(self, path: str) -> Names:
        """Return the names that are neither files nor directories; see `Files.irregular`."""
        return self._inner.irregular(path)

    def lock(self, path: str, holder: str) -> Lock:
        """Lock the file at *path*; see `Files.lock`."""
        return self._inner.lock(path, holder)

    def free_bytes(self, path: str) -> int:
        """Return the bytes an ordinary user can still write; see `Files.free_bytes`."""
        return self._inner.free_bytes(path)


class _PassedOn:
    """The calls of a file that change nothing."""

    def __init__(self, inner: File) -> None:
        self._inner = inner
        self.read_at = inner.read_at
        self.read_into = inner.read_into
        self.size = inner.size
        self.map = inner.map
        self.drop_cache = inner.drop_cache

    @property
    def path(self) -> str:
        """The path the file was opened under."""
        return self._inner.path


class _ReadFile(_PassedOn):
    """A file that was opened to read. A sync through it covers what others wrote."""

    def __init__(self, inner: File, journal: DiskJournal, path: str) -> None:
        super().__init__(inner)
        self._journal, self._relative = journal, path
        self.write_at = inner.write_at
        self.truncate = inner.truncate
        self.preallocate = inner.preallocate
        self.close = inner.close

    def sync(self) -> None:
        """Return once every byte written before the call is on the device; see `File.sync`."""
        self._journal.sync_of(self._relative, self._inner.sync)


class JournaledFile(_PassedOn):
    """A file that was opened to be written."""

    def __init__(self, inner: File, journal: DiskJournal, track: FileTrack, *, at_once: bool) -> None:
        super().__init__(inner)
        self._journal = journal
        self._track = track
        self._is_at_once = at_once
        self._closed = False

    def write_at(self, position: int, buffers: Sequence[Buffer]) -> int:
        """Write *buffers*; see `File.write_at`."""
        track = self._track
        track.in_flight = position
        try:
            written = self._inner.write_at(position, buffers)
            self._journal.written(track, position, buffers, written, at_once=self._is_at_once)
        finally:
            track.in_flight = None
        return written

    def truncate(self, size: int) -> None:
        """Shorten or lengthen the file; see `File.truncate`."""
        track = self._track
        track.in_flight = size
        try:
            self._inner.truncate(size)
            self._journal.truncated(track, size, at_once=self._is_at_once)
        finally:
            track.in_flight = None

    def preallocate(self, size: int) -> None:
        """Make the file longer; see `File.preallocate`."""
        try:
            self._inner.preallocate(size)
        finally:
            self._journal.lengthened(self._track, self._inner.size())

    def sync(self) -> None:
        """Return once every byte written before the call is on the device; see `File.sync`."""
        serial = self._journal.syncing(self._track)
        self._inner.sync()
        self._journal.synced(self._track, serial)
        if self._track.path is not None:
            self._journal.wait(self._track.path)

    def close(self) -> None:
        """Close the file without a sync; see `File.close`."""
        self._inner.close()
        if not self._closed:
            self._closed = True
            self._journal.closed(self._track)
