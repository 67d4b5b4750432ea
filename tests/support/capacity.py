"""A disk of a few kilobytes: whatever would take more of it than there is finds no space."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import Any

from cordwood.disk.files import Buffer, Mode, os_error
from cordwood.disk.memory import MemoryFiles
from support.data_directory import all_files

#: A file takes whole blocks, and one for its name.
BLOCK = 512


class CappedFiles(MemoryFiles):
    """Files in memory that take *capacity* bytes together; change it to make the disk larger or smaller."""

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self.capacity = capacity
        #: Whether others take the space of everything that goes, but for what was reserved.
        self.crowded = False

    def used(self) -> int:
        """Return the bytes that all files take."""
        return sum(_blocks(self._size(path)) for path in all_files(self, "/"))

    def free_bytes(self, path: str) -> int:
        return max(self.capacity - self.used(), 0)

    def fill(self) -> None:
        """Leave no byte free."""
        self.capacity = self.used()

    def need(self, path: str, size: int) -> None:
        """Refuse to let the file at *path* become *size* bytes long if there is no space for it."""
        before = _blocks(self._size(path)) if self.exists(path) else 0
        if _blocks(size) > before and self.used() - before + _blocks(size) > self.capacity:
            raise os_error(errno.ENOSPC, path)

    def _size(self, path: str) -> int:
        file = super().open(path, "read")
        try:
            return file.size()
        finally:
            file.close()

    def unlink(self, path: str) -> None:
        before = self.used()
        super().unlink(path)
        self._crowd(before, path)

    def rename(self, source: str, target: str) -> None:
        before = self.used()
        super().rename(source, target)
        self._crowd(before, target)

    def _crowd(self, before: int, path: str) -> None:
        if self.crowded and not path.endswith("/meta/reserve"):
            self.capacity -= before - self.used()

    def open(self, path: str, mode: Mode) -> Any:
        if mode in ("create", "create_private") and not self.exists(path):
            self.need(path, 1)
        return _CappedFile(self, super().open(path, mode))


class _CappedFile:
    def __init__(self, files: CappedFiles, inner: Any) -> None:
        self._files = files
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def write_at(self, position: int, buffers: Sequence[Buffer]) -> int:
        self._files.need(self._inner.path, position + sum(memoryview(each).nbytes for each in buffers))
        written: int = self._inner.write_at(position, buffers)
        return written

    def preallocate(self, size: int) -> None:
        self._files.need(self._inner.path, size)
        self._inner.preallocate(size)


def _blocks(size: int) -> int:
    return BLOCK * (1 + -(-size // BLOCK))
