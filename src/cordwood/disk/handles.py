"""The limited file handles of a process: a reserve, and idle files that are closed when handles run out.

Partitions, chains and readers keep files open that they could open again. If the system has no more handles
(EMFILE, ENFILE), the least recently used ones are closed and the failed call is retried. Changes that must
not fail half-way may use the reserve.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from threading import Lock, local
from typing import Protocol, TypeVar

from cordwood.disk.files import NO_HANDLES, Buffer, File, Files, WritableBuffer

Result = TypeVar("Result")
Give = Callable[[int], int]
"""Closes about *count* files that can be opened again and returns the number closed. Never blocks."""
#: The number of handles closed at once: more are likely to be needed soon.
ROOM = 64
#: How many times a call is retried if other threads take the freed handles.
TRIES_MAX = 8


class Handles:
    """Callbacks that close idle files, and a reserve of handles. Any thread may call any method."""

    def __init__(self) -> None:
        self._givers: list[Give] = []
        self._reserve: list[File] = []
        self._open_spare: Callable[[], File]
        self._lock = Lock()
        self._here = local()

    def add(self, give: Give) -> None:
        """Call *give* when handles run out, after the callbacks added earlier."""
        self._givers.append(give)

    def make_room(self, count: int = ROOM) -> int:
        """Close about *count* handles; return the number closed. Never blocks."""
        given = 0
        for give in self._givers:
            if given < count:
                given += give(count - given)
        return given

    # --- the reserve ------------------------------------------------------------------------------

    def fill_reserve(self, files: Files, path: str, count: int) -> None:
        """Open *count* handles of the file at *path* as a reserve for calls that must not fail."""
        self._open_spare = lambda: files.open(path, "read")
        with contextlib.suppress(OSError):
            while len(self._reserve) < count:
                self._reserve.append(self._open_spare())

    def close(self) -> None:
        """Close the reserve."""
        with self._lock:
            reserve, self._reserve = self._reserve, []
        for file in reserve:
            file.close()

    @contextlib.contextmanager
    def urgently(self) -> Iterator[None]:
        """Allow this thread to use the reserve inside the block: a committed change must be finished."""
        before = getattr(self._here, "urgent", False)
        self._here.urgent = True
        try:
            yield
        finally:
            self._here.urgent = before

    # --- calls that need a handle -------------------------------------------------------------------

    def call(self, call: Callable[[], Result], *, urgent: bool = False) -> Result:
        """Return the result of *call*; if no handle is free, close some and retry.

        With *urgent*, for a call that needs a handle only while it runs, the reserve is used last.

        Raises:
            OSError: As *call* does.
        """
        for _ in range(TRIES_MAX):
            try:
                return call()
            except OSError as error:
                # The exception is not kept: its traceback would keep files on the stack open.
                if error.errno not in NO_HANDLES:
                    raise
            if not self.make_room():
                break
        if urgent or getattr(self._here, "urgent", False):
            return self._call_with_reserve(call)
        # Other threads close files too.
        return call()

    def _call_with_reserve(self, call: Callable[[], Result]) -> Result:
        with self._lock:
            spare = self._reserve.pop() if self._reserve else None
        if spare is None:
            return call()
        spare.close()
        try:
            return call()
        finally:
            with contextlib.suppress(OSError):
                again = self._open_spare()
                with self._lock:
                    self._reserve.append(again)


class Keeper(Protocol):
    """An owner of a file, in ``file``; a RestingFile while it is not needed."""

    file: File


class RestingFile:
    """A file that was closed to save its handle. It is opened again by the first call that needs it.

    *keeper* then gets the open file in place of this object. Every method may be called from any thread.
    """

    def __init__(self, files: Files, path: str, keeper: Keeper, *, synced: bool) -> None:
        self._files = files
        self._path = path
        self._keeper = keeper
        self._synced = synced
        self._closed = False
        self._lock = Lock()

    @property
    def path(self) -> str:
        """The path the file was opened under."""
        return self._path

    def _wake(self) -> File:
        """Return the file; open it unless another thread did.

        Raises:
            OSError: If it cannot be opened now. Nothing has changed.
        """
        with self._lock:
            if self._closed:
                raise ValueError(f"{self._path} is closed")
            # Not stored here: references to this object must not keep the file open.
            if self._keeper.file is self:
                self._keeper.file = self._files.open(self._path, "write")
            return self._keeper.file

    def write_at(self, position: int, buffers: Sequence[Buffer]) -> int:
        """See `File.write_at`."""
        return self._wake().write_at(position, buffers)

    def read_at(self, position: int, size: int) -> bytes:
        """See `File.read_at`."""
        return self._wake().read_at(position, size)

    def read_into(self, position: int, buffer: WritableBuffer) -> int:
        """See `File.read_into`."""
        return self._wake().read_into(position, buffer)

    def size(self) -> int:
        """See `File.size`."""
        return self._wake().size()

    def truncate(self, size: int) -> None:
        """See `File.truncate`."""
        self._wake().truncate(size)

    def preallocate(self, size: int) -> None:
        """See `File.preallocate`."""
        self._wake().preallocate(size)

    def sync(self) -> None:
        """See `File.sync`: bytes synced before the file was closed need no other sync."""
        if not self._synced or self._keeper.file is not self:
            self._wake().sync()

    def drop_cache(self) -> None:
        """See `File.drop_cache`."""
        self._wake().drop_cache()

    def map(self) -> memoryview:
        """See `File.map`."""
        return self._wake().map()

    def close(self) -> None:
        """See `File.close`."""
        with self._lock:
            self._closed = True
            kept = self._keeper.file
        if kept is not self:
            # Another thread has opened it.
            kept.close()
