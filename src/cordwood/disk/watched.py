"""Files that report failed syncs and retry calls which found no free file handle.

The engine gets this wrapper around the files of the operating system. Calls pass through unchanged, with two
exceptions: a failed sync raises `SyncFailed` and is reported to the owner of the directory, and a call that
found no free file handle is retried after idle handles were closed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from cordwood.disk.files import DISK_FULL, NO_HANDLES, File, Files, Lock, Mode, Names, SyncFailed
from cordwood.disk.handles import Handles

Result = TypeVar("Result")
Tell = Callable[[SyncFailed], None]
"""Called with a failed sync, in the thread that requested it."""


class WatchedFiles:
    """`Files` that report failed syncs. Every method may be called from any thread."""

    def __init__(self, inner: Files, tell: Tell, handles: Handles | None = None) -> None:
        self._inner = inner
        self._tell = tell
        self.handles = handles or Handles()

    def open(self, path: str, mode: Mode) -> File:
        """Open a file; see `Files.open`."""
        return WatchedFile(self.handles.call(lambda: self._inner.open(path, mode)), self._tell, self.handles)

    def sync_directory(self, path: str) -> None:
        """Make the names in a directory durable; see `Files.sync_directory`.

        Raises:
            SyncFailed: If the sync failed.
        """
        # Most of these syncs make a visible change durable, so they must not fail for lack of a handle.
        _sync(
            path,
            lambda: self.handles.call(lambda: self._inner.sync_directory(path), urgent=True),
            self._tell,
        )

    def lock(self, path: str, holder: str) -> Lock:
        """Lock the file at *path*; see `Files.lock`."""
        return self._inner.lock(path, holder)

    def list(self, path: str) -> Names:
        """Return the names in a directory, sorted."""
        return self.handles.call(lambda: self._inner.list(path), urgent=True)

    def irregular(self, path: str) -> Names:
        """Return the names that are neither files nor directories; see `Files.irregular`."""
        return self.handles.call(lambda: self._inner.irregular(path), urgent=True)

    def exists(self, path: str) -> bool:
        """Return whether *path* names anything; see `Files.exists`."""
        return self._inner.exists(path)

    def is_directory(self, path: str) -> bool:
        """Return whether *path* is a directory; see `Files.is_directory`."""
        return self._inner.is_directory(path)

    def make_directories(self, path: str) -> Names:
        """Create *path* and the parents it lacks; see `Files.make_directories`."""
        return self._inner.make_directories(path)

    def rename(self, source: str, target: str) -> None:
        """Give *source* the name *target* in one step; see `Files.rename`."""
        self._inner.rename(source, target)

    def link(self, source: str, target: str) -> None:
        """Give the file *source* a second name."""
        self._inner.link(source, target)

    def unlink(self, path: str) -> None:
        """Remove a file's name."""
        self._inner.unlink(path)

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory."""
        self._inner.remove_directory(path)

    def free_bytes(self, path: str) -> int:
        """Return the bytes an ordinary user can still write; see `Files.free_bytes`."""
        return self._inner.free_bytes(path)


class WatchedFile:
    """A file that reports failed syncs.

    The other calls are those of the wrapped file, bound once, so appends have no extra cost.
    """

    __slots__ = (
        "_handles",
        "_inner",
        "_tell",
        "close",
        "drop_cache",
        "preallocate",
        "read_at",
        "read_into",
        "size",
        "truncate",
        "write_at",
    )

    def __init__(self, inner: File, tell: Tell, handles: Handles) -> None:
        self._inner = inner
        self._tell = tell
        self._handles = handles
        self.write_at = inner.write_at
        self.read_at = inner.read_at
        self.read_into = inner.read_into
        self.size = inner.size
        self.truncate = inner.truncate
        self.preallocate = inner.preallocate
        self.drop_cache = inner.drop_cache
        self.close = inner.close

    @property
    def path(self) -> str:
        """The path the file was opened under."""
        return self._inner.path

    def map(self) -> memoryview:
        """Return a read-only view of the file; see `File.map`. It needs its own handle."""
        return self._handles.call(self._inner.map)

    def sync(self) -> None:
        """Return once every byte written before the call is on the device; see `File.sync`.

        Raises:
            SyncFailed: If the sync failed.
        """
        _sync(self._inner.path, self._inner.sync, self._tell)


def _sync(path: str, sync: Callable[[], None], tell: Tell) -> None:
    try:
        sync()
    except OSError as error:
        if error.errno in NO_HANDLES:
            # The directory could not be opened: nothing was synced, so nothing failed on the device.
            raise
        failed = SyncFailed(error.errno, error.strerror, error.filename or path)
        if error.errno not in DISK_FULL:
            tell(failed)
        raise failed from error
