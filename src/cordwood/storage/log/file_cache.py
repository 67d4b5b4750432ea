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

from cordwood.disk import Files, ReadableFile
from cordwood.kernels import Buffer
from cordwood.storage.log.segment_source import LocalSegments, SegmentSource


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
            around = bisect_right(self._starts, start) - 1
            if around >= 0 and end <= self._ends[around]:
                return
            low = bisect_right(self._ends, start - 1)
            high = bisect_right(self._starts, end)
            if low < high:
                start, end = min(start, self._starts[low]), max(end, self._ends[high - 1])
            self._starts[low:high] = [start]
            self._ends[low:high] = [end]
            self.check_invariants(low)

    def check_invariants(self, changed: int) -> None:
        """Check that the range numbered *changed* touches neither of its neighbours. With the lock held.

        Raises:
            AssertionError: If it does: a fault of this code.
        """
        starts, ends = self._starts, self._ends
        assert len(starts) == len(ends), "a range has no end"
        assert starts[changed] <= ends[changed], "a range ends before it starts"
        assert changed == 0 or ends[changed - 1] < starts[changed], "a range touches the one before it"
        assert changed + 1 == len(starts) or ends[changed] < starts[changed + 1], "ranges touch each other"


class Loaded(Protocol):
    """A holder of indexes in memory, which can be dropped and loaded again."""

    def forget_indexes(self) -> None:
        """Drop the indexes; they are loaded again at their next use."""


class LoadedIndexes:
    """The holders of indexes in memory, at most *limit*: the least recently used is evicted; -1: no limit.

    Callable from any thread.
    """

    def __init__(self, limit: int = -1) -> None:
        self._limit = limit
        self._loaded: OrderedDict[int, Loaded] = OrderedDict()
        self._lock = Lock()

    def use(self, number: int, holder: Loaded) -> None:
        """Note that *holder*, known by *number*, used its indexes just now."""
        if self._limit < 0:
            return
        with self._lock:
            self._loaded[number] = holder
            self._loaded.move_to_end(number)
            while len(self._loaded) > self._limit:
                self._loaded.popitem(last=False)[1].forget_indexes()
            self.check_invariants()

    def forget(self, number: int) -> None:
        """Evict *number* from the index cache."""
        with self._lock:
            self._loaded.pop(number, None)
            self.check_invariants()

    def check_invariants(self) -> None:
        """Check that no more indexes are in memory than allowed. With the lock held.

        Raises:
            AssertionError: If there are: a fault of this code.
        """
        assert 0 <= len(self._loaded) <= self._limit or self._limit < 0, "too many indexes in memory"

    def __len__(self) -> int:
        return len(self._loaded)


class OpenFiles:
    """Files and maps open to read, at most *limit* of them; the one used longest ago goes first.

    Files are kept by a number of the segment, not by path: after a truncation the same path is another file,
    and a reader that was slow to open the old file must not leave it here in the place of the new one. A file
    that is dropped is closed when its last reader is done. With *mapped*, sealed segments are mapped: that
    saves a copy, but a device that fails to read then ends the process, so it is for embedded use and local
    scans. *source* opens the files of sealed segments, which are local files unless it is given. Callable
    from any thread.
    """

    def __init__(
        self,
        files: Files,
        *,
        mapped: bool,
        limit: int = 256,
        indexes_max: int = -1,
        rebuilding: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext,
        source: SegmentSource | None = None,
    ) -> None:
        self.files = files
        #: Opens files of segments that are not sealed.
        self.local = LocalSegments(files)
        #: Opens files of sealed segments.
        self.source = self.local if source is None else source
        self.mapped = mapped
        #: The context in which an index is built from the log.
        self.rebuilding = rebuilding
        #: The indexes in memory of segments that read through this.
        self.indexes = LoadedIndexes(indexes_max)
        self._limit = limit
        self._open: OrderedDict[int, ReadableFile | memoryview] = OrderedDict()
        self._numbers = count()
        self._lock = Lock()

    def number(self) -> int:
        """Return a number that was not returned before."""
        return next(self._numbers)

    def read_at(self, number: int, path: str, position: int, size: int, *, sealed: bool) -> Buffer:
        """Return up to *size* bytes from *position*; only the file of a *sealed* segment is ever mapped."""
        found = self._get(number, path, sealed)
        if isinstance(found, memoryview):
            return found[position : position + size]
        return found.read_at(position, size)

    def _get(self, number: int, path: str, sealed: bool) -> ReadableFile | memoryview:
        with self._lock:
            found = self._open.get(number)
            if found is not None:
                self._open.move_to_end(number)
                return found
        file = (self.source if sealed else self.local).open(path)
        opened = file.map() if sealed and self.mapped else file
        with self._lock:
            self._open[number] = opened
            while len(self._open) > self._limit:
                self._open.popitem(last=False)
            self.check_invariants()
        return opened

    def forget(self, number: int) -> None:
        """Drop the files of a segment; they are closed when their last reader is done."""
        with self._lock:
            self._open.pop(number, None)
            self._open.pop(sidecar_number(number), None)
        self.indexes.forget(number)

    def check_invariants(self) -> None:
        """Check that no more files are open than allowed. With the lock held, after one was opened.

        Raises:
            AssertionError: If there are: a fault of this code.
        """
        assert len(self._open) <= self._limit, "too many files are open"

    def give_back(self, count: int) -> int:
        """Close the *count* files used longest ago; return how many were. Never blocks."""
        if not self._lock.acquire(blocking=False):
            return 0
        try:
            count = min(count, len(self._open))
            for _ in range(count):
                self._open.popitem(last=False)
            return count
        finally:
            self._lock.release()

    @property
    def mapped_bytes(self) -> int:
        """The bytes of all files that are mapped now."""
        with self._lock:
            return sum(len(opened) for opened in self._open.values() if isinstance(opened, memoryview))

    def __len__(self) -> int:
        return len(self._open)


def sidecar_number(number: int) -> int:
    """Return the number under which the sidecar of the segment of this *number* is open."""
    return ~number
