"""Files open to read, and what of them was checked since."""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable
from contextlib import AbstractContextManager
from itertools import count
from threading import Lock
from typing import Protocol

from cordwood.kernels import Buffer
from cordwood.storage.files import File, Files


class CheckedRanges:
    """Byte ranges whose checksums were compared since the segment was opened. Callable from any thread.

    Two threads that check the same range at once both do the work; neither result is lost.
    """

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._lock = Lock()

    def end_from(self, position: int) -> int:
        """Return the end of the checked range that *position* lies in, or *position* itself."""
        with self._lock:
            found = bisect_right(self._starts, position) - 1
            return max(self._ends[found], position) if found >= 0 else position

    def add(self, start: int, end: int) -> None:
        """Note that [start, end) was checked, merging it with its neighbours."""
        with self._lock:
            low = bisect_right(self._ends, start - 1)
            high = bisect_right(self._starts, end)
            if low < high:
                start, end = min(start, self._starts[low]), max(end, self._ends[high - 1])
            self._starts[low:high] = [start]
            self._ends[low:high] = [end]


class Loaded(Protocol):
    """Something that keeps indexes in memory and can let go of them."""

    def forget_indexes(self) -> None:
        """Let go of them; whoever asks next loads them again."""


class LoadedIndexes:
    """Who has indexes in memory: at most *limit*, the one used longest ago lets go first; -1 for no limit.

    Callable from any thread.
    """

    def __init__(self, limit: int = -1) -> None:
        self._limit = limit
        self._loaded: OrderedDict[int, Loaded] = OrderedDict()
        self._lock = Lock()

    def use(self, number: int, holder: Loaded) -> None:
        """Take note that *holder*, known by *number*, has its indexes and needed them just now."""
        if self._limit < 0:
            return
        with self._lock:
            self._loaded[number] = holder
            self._loaded.move_to_end(number)
            while len(self._loaded) > self._limit:
                self._loaded.popitem(last=False)[1].forget_indexes()

    def forget(self, number: int) -> None:
        """Let *number* be no more."""
        with self._lock:
            self._loaded.pop(number, None)

    def __len__(self) -> int:
        return len(self._loaded)


class OpenFiles:
    """Files and maps open to read, at most *limit* of them; the one used longest ago goes first.

    Kept by a number of the segment's own, not by path: after a truncation the same path is another file,
    and a reader that was slow to open the old one must not leave it here in the new one's place. What was
    let go is closed when its last reader is done with it. *mapped* says whether sealed
    segments are mapped: no copy, but a device that fails to read then ends the process, so it is for
    embedded use and local scans. Callable from any thread.
    """

    def __init__(
        self,
        files: Files,
        *,
        mapped: bool,
        limit: int = 256,
        indexes_max: int = -1,
        rebuilding: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext,
    ) -> None:
        self.files = files
        self.mapped = mapped
        #: What building an index from the log is done in.
        self.rebuilding = rebuilding
        #: Of the segments that read through this.
        self.indexes = LoadedIndexes(indexes_max)
        self._limit = limit
        self._open: OrderedDict[int, File | memoryview] = OrderedDict()
        self._numbers = count()
        self._lock = Lock()

    def number(self) -> int:
        """Return a number that nobody else was given."""
        return next(self._numbers)

    def read_at(self, number: int, path: str, position: int, size: int, *, sealed: bool) -> Buffer:
        """Return up to *size* bytes from *position*; only a *sealed* file is ever mapped."""
        found = self._get(number, path, mapped=sealed and self.mapped)
        if isinstance(found, memoryview):
            return found[position : position + size]
        return found.read_at(position, size)

    def _get(self, number: int, path: str, *, mapped: bool) -> File | memoryview:
        with self._lock:
            found = self._open.get(number)
            if found is not None:
                self._open.move_to_end(number)
                return found
        file = self.files.open(path, "read")
        opened = file.map() if mapped else file
        with self._lock:
            self._open[number] = opened
            while len(self._open) > self._limit:
                self._open.popitem(last=False)
        return opened

    def forget(self, number: int) -> None:
        """Let go of a segment's files."""
        with self._lock:
            self._open.pop(number, None)
            self._open.pop(sidecar_number(number), None)
        self.indexes.forget(number)

    def __len__(self) -> int:
        return len(self._open)


def sidecar_number(number: int) -> int:
    """Return the number under which the sidecar of the segment of this *number* is open."""
    return ~number
