"""The file of aborted transactions of the active segment, which grows with the log."""

from __future__ import annotations

import contextlib
from typing import NamedTuple

import google_crc32c

from cordwood.disk import Files, parent, write_all, write_atomically
from cordwood.index import ABORTED_ENTRY_SIZE, AbortedIndex


class WrittenEntries(NamedTuple):
    """How many entries are in the file, and their checksum."""

    entries: int
    crc: int


NOTHING_WRITTEN = WrittenEntries(0, 0)


class AbortedFile:
    """The index of aborted transactions in memory, and its file, which may be behind.

    Entries are added by the appender; `write` and `sync` are called by the holder of the right to sync.
    """

    def __init__(self, files: Files, path: str) -> None:
        self.index = AbortedIndex()
        self.written = NOTHING_WRITTEN
        self._synced_count = 0
        self._files = files
        self._path = path

    def take(self, index: AbortedIndex) -> None:
        """Go on with an index that was learnt. The file is written again."""
        if not len(index):
            # Entries of before a crash or a truncation.
            with contextlib.suppress(FileNotFoundError):
                self._files.unlink(self._path)
        self.index = index
        self.written, self._synced_count = NOTHING_WRITTEN, 0

    @property
    def vouched(self) -> WrittenEntries:
        """What mark and state say of the file. With doubts, nothing that it can be: so the log is read again.

        Else the doubts would be forgotten at the next start.
        """
        if not self.index.has_doubts:
            return self.written
        return WrittenEntries(max(self.written.entries, 1), self.written.crc ^ 0xFFFFFFFF)

    def write(self, end_offset: int) -> WrittenEntries:
        """Bring the file up to the markers below *end_offset*; return what is vouched for. Not durable."""
        if not self.index.entries:
            return self.vouched
        count, (written, crc) = self.index.count_below(end_offset), self.written
        if count > written:
            start = written * ABORTED_ENTRY_SIZE
            new = bytes(self.index.entries[start : count * ABORTED_ENTRY_SIZE])
            try:
                file = self._files.open(self._path, "write")
            except FileNotFoundError:
                file = self._files.open(self._path, "create")
            with contextlib.closing(file):
                # Entries beyond are from before a crash or a truncation.
                file.truncate(start)
                write_all(file, start, new)
            self.written = WrittenEntries(count, google_crc32c.extend(crc, new))
        return self.vouched

    def sync(self, count: int) -> None:
        """Make the first *count* entries durable, and the name of the file."""
        if count <= self._synced_count or self.index.has_doubts:
            return
        if count > self.written.entries:
            self.write(self.index.end_of(count))
        written = self.written.entries
        with contextlib.closing(self._files.open(self._path, "write")) as file:
            file.sync()
        self._files.sync_directory(parent(self._path))
        self._synced_count = written

    def rewrite(self) -> None:
        """Replace the file by what is in memory. Durable on return."""
        if self.index.entries:
            entries = bytes(self.index.entries)
            write_atomically(self._files, self._path, entries)
            self.written = WrittenEntries(len(self.index), google_crc32c.value(entries))
            self._synced_count = len(self.index)
