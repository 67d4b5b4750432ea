"""Whether a data directory is open for writing, closed cleanly, or damaged by a failed sync."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock

from cordwood.disk import Files, Reserve, SyncFailed, as_storage_error
from cordwood.disk import Lock as FileLock
from cordwood.errors import LogClosed, LogFailed
from cordwood.storage.meta import identity


class FailureWatch:
    """Remembers the first failure after which a write can no longer be made durable. From any thread."""

    def __init__(self) -> None:
        self.first: LogFailed | None = None
        #: Called with the first failure, in the thread that met it.
        self.on_failure: Callable[[LogFailed], None] = lambda error: None

    def report(self, error: LogFailed) -> None:
        """Remember *error* and call ``on_failure``, unless there was a failure before."""
        if self.first is None:
            self.first = error
            self.on_failure(error)

    def report_sync(self, error: SyncFailed) -> None:
        """Report a sync that failed; see `WatchedFiles`."""
        self.report(LogFailed(f"{error.filename}: sync failed: {error.strerror}"))


class Lifecycle:
    """The state of a data directory that this process writes. Every method may be called from any thread.

    *is_clean* says whether the last writer closed the directory cleanly and nothing has changed since.
    """

    def __init__(self, files: Files, path: str, lock: FileLock, reserve: Reserve, *, is_clean: bool) -> None:
        self._files = files
        self._path = path
        self._lock = lock
        self._reserve = reserve
        self._guard = Lock()
        self._is_closed = False
        self.is_clean = is_clean
        #: Whether the next open has files of a deleted topic to remove, or a transaction to finish.
        self.has_leftovers = False
        #: Whether partitions may have open transactions that no coordinator knows: after a crash or a
        #: restore, until a coordinator has looked for them, and again after a truncation.
        self.may_have_orphans = not is_clean

    def check_open(self) -> None:
        """Raise LogClosed if the directory is closed, or belongs to the parent of a forked process."""
        if self._is_closed:
            raise LogClosed(f"{self._path} is closed")
        self.check_alive()

    def check_alive(self) -> None:
        """Raise LogClosed in a forked child: its parent has the lock. A closed directory passes."""
        if not self._lock.held() and not self._is_closed:
            raise LogClosed(f"{self._path} was opened by the process this one was forked from")

    def before_change(self) -> None:
        """Remove the marker of a clean close. Call it before anything on disk changes. Durable on return.

        Raises:
            StorageError: If the marker cannot be removed. Then nothing may change.
        """
        if self.is_clean:
            # A lock of its own: a thread that closes the directory waits for appends, which come here.
            with self._guard:
                if self.is_clean:
                    try:
                        identity.mark_unclean(self._files, self._path)
                    except OSError as error:
                        raise as_storage_error(error, "preparing a change") from error
                    self.is_clean = False
                    self._reserve.keep()

    def begin_close(self) -> bool:
        """Refuse every later call. Return False if the directory was closed before, or in a forked child."""
        is_ours = not self._is_closed and self._lock.held()
        self._is_closed = True
        return is_ours

    def mark_clean(self) -> None:
        """Write the marker of a clean close, unless it is there. Durable on return."""
        if not self.is_clean:
            identity.mark_clean(self._files, self._path)
