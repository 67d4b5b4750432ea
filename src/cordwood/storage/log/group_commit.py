"""Group commit: appends from many threads share one sync and are acknowledged only after it.

No thread is started. The first waiter that finds no sync under way syncs for all threads that have appended
by then; a thread that arrives meanwhile waits for that sync to end and for one more. If the round before was
shared, the syncing thread waits a moment for the others to append again: with many threads their turns take
longer than a sync, and each would otherwise be synced almost alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Condition, Lock

from cordwood.errors import LogFailed

#: The longest time that a syncing thread waits for the threads that shared the sync before.
LINGER_SECONDS = 0.0025


class GroupCommit:
    """The right to sync, held by one thread at a time, and the offset up to which everything is synced."""

    def __init__(self, synced_offset: int) -> None:
        lock = Lock()
        self._condition = Condition(lock)
        self._gathered = Condition(lock)
        self._busy = False
        self._waiting = 0
        self._expected = 0
        self._failure: LogFailed | None = None
        self.synced_offset = synced_offset

    @contextmanager
    def exclusively(self) -> Iterator[None]:
        """Hold the right to sync: no other thread syncs, seals or moves the mark meanwhile."""
        with self._condition:
            while self._busy:
                self._condition.wait()
            self._busy = True
        try:
            yield
        finally:
            self._let_go()

    @contextmanager
    def exclusively_now(self) -> Iterator[bool]:
        """Hold the right to sync if it is free; yield whether it was. Never blocks."""
        with self._condition:
            free = not self._busy
            self._busy = True
        try:
            yield free
        finally:
            if free:
                self._let_go()

    def _let_go(self) -> None:
        with self._condition:
            assert self._busy, "the right to sync was given back twice"
            self._busy = False
            self.check_invariants()
            self._condition.notify_all()

    def check_invariants(self) -> None:
        """Check the counts of threads. With the lock held.

        Raises:
            AssertionError: If they cannot be right: a fault of this code.
        """
        assert self._waiting >= 0, "more threads stopped waiting than began"
        assert self._expected >= 0, "a negative number of threads is expected"

    def wait(self, offset: int, sync: Callable[[], int], end: Callable[[], int] | None = None) -> None:
        """Return once every offset below *offset*, or below the log end that *end* returns, is synced.

        The log end may be below *offset*: a truncation may remove records that a thread waits for.

        *sync* makes everything appended so far durable and returns the offset that this reaches. If it
        raises LogFailed, so does every waiter, now and later. Anything else it raises is its caller's
        alone, and the next waiter syncs.
        """

        def needed() -> int:
            return offset if end is None else min(offset, end())

        while True:
            with self._condition:
                self._waiting += 1
                try:
                    if self._waiting + 1 >= self._expected:
                        self._gathered.notify()
                    while self._busy and self.synced_offset < needed() and self._failure is None:
                        self._condition.wait()
                finally:
                    self._waiting -= 1
                if self.synced_offset >= needed():
                    return
                if self._failure is not None:
                    raise self._failure
                self._busy = True
                self._linger()
            try:
                self.synced_offset = sync()
            except LogFailed as error:
                self._failure = error
                raise
            finally:
                self._let_go()

    def _linger(self) -> None:
        """Wait, with the lock and the right to sync held, for the threads that shared the round before."""
        if self._expected > 1 and self._waiting + 1 < self._expected:
            self._gathered.wait_for(lambda: self._waiting + 1 >= self._expected, LINGER_SECONDS)
        self._expected = self._waiting + 1

    def fail(self, error: LogFailed) -> None:
        """Raise *error* in every thread that waits, now and later."""
        with self._condition:
            self._failure = error
            self._condition.notify_all()
