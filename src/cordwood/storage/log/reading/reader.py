"""Reading the log that a writer has open, beside its appends and changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from cordwood.errors import CorruptRange, LogClosed, OffsetOutOfRange
from cordwood.storage.log.reading.view import View
from cordwood.telemetry import CORRUPT_RANGES

if TYPE_CHECKING:
    from cordwood.storage.log.log_core import LogCore

Result = TypeVar("Result")


class LogReader:
    """Reads the published view of a log. Every method may be called from any thread.

    A read takes no lock and never waits for an append. It is repeated if a change replaced the files
    while it read them.
    """

    def __init__(self, log: LogCore) -> None:
        self._log = log
        self._damaged: set[tuple[str, int]] = set()

    def with_view(self, call: Callable[[View], Result]) -> Result:
        """Return the result of *call* on the view; call it again if the view was replaced meanwhile.

        A segment may be removed, cut or closed while it is read, which then looks like damage.
        """
        log = self._log
        while True:
            log.check()
            swaps, view = log.swaps, log.shown
            try:
                found = call(view)
            except (CorruptRange, ValueError) as error:
                # A change of the segments that was under way has ended once the lock is free.
                with log.lock:
                    log.check()
                    now = log.shown
                if now.segments == view.segments and now.state is view.state:
                    self._count_damage(error)
                    raise
                continue
            if log.closed:
                # A topic of the same name may have its own files there by now.
                raise LogClosed(f"{log.directory} is closed")
            if swaps == log.swaps and not swaps & 1:
                return found
            # The bytes may be from the old file or from the new one, which the view does not fit.
            with log.lock:
                pass

    def _count_damage(self, error: Exception) -> None:
        """Count a range that cannot be read, once."""
        if isinstance(error, CorruptRange) and (error.path, error.position) not in self._damaged:
            self._damaged.add((error.path, error.position))
            self._log.context.telemetry.add(CORRUPT_RANGES)

    def wait_beyond(self, offset: int, *, committed: bool = False) -> int:
        """See `PartitionLog.wait_beyond`."""
        log = self._log
        with log.grown:
            log.followers += 1
            try:
                while True:
                    log.check()
                    view = log.shown
                    end = view.last_stable_offset if committed else view.high_watermark
                    if end > offset:
                        return end
                    if view.high_watermark < offset:
                        # Truncated below the caller: records appended there now are not the next ones.
                        raise OffsetOutOfRange(offset, log.log_start_offset, view.high_watermark)
                    log.grown.wait()
            finally:
                log.followers -= 1
                self.check_invariants()

    def check_invariants(self) -> None:
        """Check the number of threads that wait. With ``view_lock`` of the log held.

        Raises:
            AssertionError: If it is negative: a fault of this code.
        """
        assert self._log.followers >= 0, "more threads stopped waiting than began"

    def close(self) -> None:
        """Subtract the damaged ranges of this log from the gauge: a closed log is not read."""
        self._log.context.telemetry.add(CORRUPT_RANGES, -len(self._damaged))
        self._damaged.clear()
