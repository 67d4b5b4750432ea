"""A file system in memory that can lose what was not synced: the disk of a broker for tests.

`VolatileFiles.after_crash` returns the disk that a power cut at this moment would leave if the system had
written nothing on its own. A machine may keep more than that; it never keeps less.
"""

from __future__ import annotations

import threading
from typing import TypeAlias

from cordwood.disk.files import Buffer
from cordwood.disk.memory import MemoryDirectory, MemoryFiles, MemoryInode

#: Behind the end of every file.
_FOR_EVER = 1 << 63


class _VolatileInode(MemoryInode):
    """A file with a copy of its synced bytes. ``synced`` and ``synced_size`` are changed under *syncing*."""

    __slots__ = ("_dirty_from", "_dirty_to", "_syncing", "synced", "synced_size")

    def __init__(self, syncing: threading.Lock) -> None:
        super().__init__()
        self._syncing = syncing
        self.synced = bytearray()
        self.synced_size = 0
        # The bytes written since the last sync lie between these two positions.
        self._dirty_from, self._dirty_to = 0, 0

    def write(self, position: int, buffer: Buffer) -> int:
        # A write behind the end also writes the zeros between.
        start = min(position, len(self.data))
        written = super().write(position, buffer)
        self._soil(start, position + written)
        return written

    def resize(self, size: int) -> None:
        super().resize(size)
        # Whatever is there later, it is not what was cut off.
        self._soil(len(self.data), _FOR_EVER)

    def _soil(self, start: int, stop: int) -> None:
        if self._dirty_from == self._dirty_to:
            self._dirty_from, self._dirty_to = start, stop
        else:
            self._dirty_from, self._dirty_to = min(start, self._dirty_from), max(stop, self._dirty_to)

    def sync(self) -> None:
        with self._syncing, self.guard:
            start, stop = self._dirty_from, min(self._dirty_to, len(self.data))
            del self.synced[min(len(self.data), len(self.synced)) :]
            if start < stop:
                # Zeros that no write brought are in ``data`` once the file was mapped.
                self.synced += bytes(max(0, start - len(self.synced)))
                with memoryview(self.data) as source:
                    self.synced[start:stop] = source[start:stop]
            self.synced_size = self.size
            self._dirty_from = self._dirty_to = 0


class _VolatileDirectory(MemoryDirectory):
    """A directory with a copy of its names at the last sync."""

    __slots__ = ("synced",)

    def __init__(self) -> None:
        super().__init__()
        self.synced: dict[str, MemoryInode | MemoryDirectory] = {}


_Name: TypeAlias = tuple[MemoryDirectory, str]


def _synced(directory: MemoryDirectory) -> dict[str, MemoryInode | MemoryDirectory]:
    assert isinstance(directory, _VolatileDirectory)
    return directory.synced


def _sync_name(directory: MemoryDirectory, name: str) -> None:
    """Make one name of a directory, or that there is none, survive a crash."""
    if name in directory.entries:
        _synced(directory)[name] = directory.entries[name]
    else:
        _synced(directory).pop(name, None)


class VolatileFiles(MemoryFiles):
    """`MemoryFiles` that know what was synced. Twice the memory, and each sync copies the bytes it syncs."""

    def __init__(self) -> None:
        super().__init__()
        # Held by each sync, so that a crash comes before or after it, for all files alike.
        self._syncing = threading.Lock()
        # The two directories and names of each rename from one directory to another, until one is synced.
        self._moves: list[tuple[_Name, _Name]] = []

    def rename(self, source: str, target: str) -> None:
        """Give *source* the name *target* in one step, also for a crash; see `Files.rename`."""
        with self._syncing:
            super().rename(source, target)
            with self._guard:
                move = self._place(source), self._place(target)
            if move[0][0] is not move[1][0]:
                self._moves.append(move)

    def sync_directory(self, path: str) -> None:
        """Make the names in a directory survive a crash."""
        with self._syncing, self._guard:
            directory = self._directory(path)
            for move in [each for each in self._moves if directory in (each[0][0], each[1][0])]:
                # A rename survives whole or not at all.
                self._moves.remove(move)
                for other, name in move:
                    _sync_name(other, name)
            _synced(directory).clear()
            _synced(directory).update(directory.entries)

    def after_crash(self) -> VolatileFiles:
        """Return a new disk with everything that is synced now and nothing else. Nothing is locked there."""
        disk = VolatileFiles()
        made: dict[int, _VolatileInode] = {}
        with self._syncing, self._guard:
            self._copy(self._root, disk._root, disk, made)
        return disk

    def _copy(
        self,
        source: MemoryDirectory,
        target: MemoryDirectory,
        disk: VolatileFiles,
        made: dict[int, _VolatileInode],
    ) -> None:
        for name, node in _synced(source).items():
            copy: MemoryInode | MemoryDirectory
            if isinstance(node, _VolatileDirectory):
                copy = disk._new_directory()
                self._copy(node, copy, disk, made)
            else:
                assert isinstance(node, _VolatileInode)
                # A file with two names is one file there too.
                found = made.get(id(node))
                copy = found or made.setdefault(id(node), disk._new_inode())
                copy.names += found is not None
                copy.data, copy.size = bytearray(node.synced), node.synced_size
                copy.synced, copy.synced_size = bytearray(node.synced), node.synced_size
            target.entries[name] = copy
        _synced(target).update(target.entries)

    def _new_inode(self) -> _VolatileInode:
        return _VolatileInode(self._syncing)

    def _new_directory(self) -> _VolatileDirectory:
        return _VolatileDirectory()
