"""A thread that follows a log, for tests that compare what came with what was appended."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

from cordwood.records import Record
from support.patience import SECONDS_MAX


class Follower:
    """A thread that follows; what it got comes out of `take`, in the order it came."""

    def __init__(self, read: Callable[[], Iterator[Record]]) -> None:
        self.records: list[Record] = []
        self.error: BaseException | None = None
        self.seconds = 0.0
        self._came = threading.Condition()
        self._thread = threading.Thread(target=self._run, args=(read,), daemon=True)
        self._thread.start()

    def _run(self, read: Callable[[], Iterator[Record]]) -> None:
        try:
            for record in read():
                with self._came:
                    self.records.append(record)
                    self._came.notify_all()
        except BaseException as error:
            self.error = error
        self.seconds = time.thread_time()
        with self._came:
            self._came.notify_all()

    def wait_for(self, count: int) -> list[bytes | None]:
        """Return the values once *count* records have come."""
        with self._came:
            came = self._came.wait_for(
                lambda: len(self.records) >= count or self.error is not None, SECONDS_MAX
            )
        if self.error is not None:
            raise self.error
        assert came, f"only {len(self.records)} of {count} records came"
        return [record.value for record in self.records]

    def end(self) -> list[Record]:
        """Wait until the iteration has ended, and return what came."""
        self._thread.join(SECONDS_MAX)
        assert not self._thread.is_alive(), "the follower does not end"
        if self.error is not None:
            raise self.error
        return self.records
