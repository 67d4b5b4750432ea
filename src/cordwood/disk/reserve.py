"""Reserved disk space, so that deletions work on a full disk.

On a full disk, even the few bytes of metadata that record a deletion cannot be written. So a file reserves
some space. A deletion that finds no space removes the file and is retried; then the file is created again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from threading import Lock, local
from typing import TypeVar

from cordwood.disk.files import DISK_FULL, Files, join
from cordwood.errors import DiskFull
from cordwood.host import Clock

#: Enough for the metadata of many deletions and for a new segment of the shared log with its indexes.
RESERVE_BYTES = 1 << 20
#: How often appends try to create the missing file again.
RETRY_NS = 1_000_000_000

Result = TypeVar("Result")


class _Depth(local):
    """The number of nested calls that free space in this thread."""

    depth = 0


class Reserve:
    """The reserved space of a data directory. Every method may be called from any thread.

    While the space is released, appends are refused: they would use the space that the next deletion needs.
    With *size* 0 nothing is reserved.
    """

    def __init__(self, files: Files, data: str, clock: Clock, size: int) -> None:
        self._files = files
        self._path = reserve_path(data)
        self._clock = clock
        self._size = size
        self._guard = Lock()
        self._is_kept = False
        #: Whether the space was released and could not be reserved again yet.
        self._is_spent = False
        self._tried_ns = 0
        self._freeing = _Depth()

    def keep(self) -> bool:
        """Reserve the space if needed; return whether it is reserved. Failures are retried later."""
        if not self._size:
            return True
        with self._guard:
            return self._keep()

    def _keep(self) -> bool:
        if not self._is_kept:
            try:
                self._make()
            except OSError:
                with contextlib.suppress(OSError):
                    self._files.unlink(self._path)
            else:
                self._is_kept, self._is_spent = True, False
        return self._is_kept

    def _make(self) -> None:
        # A file left by a killed process counts: its space is reserved already.
        file = self._files.open(self._path, "write" if self._files.exists(self._path) else "create")
        try:
            file.preallocate(self._size)
        finally:
            file.close()

    def check(self) -> None:
        """Refuse an append while the reserved space is released.

        Raises:
            DiskFull: If the space is released and could not be reserved again.
        """
        if not self._is_spent or self._freeing.depth:
            return
        with self._guard:
            now_ns = self._clock.monotonic_ns()
            if self._is_spent and now_ns - self._tried_ns >= RETRY_NS:
                self._tried_ns = now_ns
                self._keep()
            if self._is_spent:
                raise DiskFull(f"{self._path}: no space left; what is reserved is for deletions")

    def freeing(self, call: Callable[[], Result]) -> Result:
        """Return the result of *call*, which frees space; release the reserved space if it finds none.

        *call* is then retried, so if it raises for lack of space, it must have changed nothing or be able to
        continue.
        """
        self._freeing.depth += 1
        try:
            try:
                return call()
            except (DiskFull, OSError) as error:
                is_full = isinstance(error, DiskFull) or error.errno in DISK_FULL
                if not is_full or not self._spend():
                    raise
            try:
                return call()
            finally:
                self.keep()
        finally:
            self._freeing.depth -= 1

    def _spend(self) -> bool:
        """Release the space; return whether there was any."""
        with self._guard:
            if not self._is_kept:
                return False
            try:
                self._files.unlink(self._path)
            except OSError:
                return False
            self._is_kept, self._is_spent = False, True
            self._tried_ns = self._clock.monotonic_ns()
            return True

    def close(self) -> None:
        """Remove the file: a closed directory has none."""
        with self._guard:
            if self._is_kept:
                with contextlib.suppress(OSError):
                    self._files.unlink(self._path)
                self._is_kept = False


def reserve_path(data: str) -> str:
    """Return the path of the file that reserves space for the data directory *data*."""
    return join(data, "meta", "reserve")
