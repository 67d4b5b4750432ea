"""Tasks that wait for records to come. None of them holds a thread."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Sequence
from threading import Lock
from typing import NamedTuple

from cordwood.aio.calls import AwaitedCalls, post
from cordwood.errors import LogClosed

PartitionKey = tuple[str, int]

#: How often a directory that another process writes is looked at.
POLL_SECONDS = 0.02


class WaitingTask(NamedTuple):
    """A task that waits for the end to be another than ``offset``.

    The end is the last stable offset for a reader of ``committed`` records, else the high watermark.
    """

    offset: int
    committed: bool
    woken: asyncio.Future[None]


class PartitionEnds(NamedTuple):
    """Where a partition ends, for readers of committed records and for all others."""

    last_stable_offset: int
    high_watermark: int

    def is_past(self, waiter: WaitingTask) -> bool:
        """Return whether the end is another than the one that *waiter* knows."""
        return waiter.offset != (self.last_stable_offset if waiter.committed else self.high_watermark)


class Waiters:
    """The tasks that wait, by partition. Used on the loop, but for `notify`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: dict[PartitionKey, set[WaitingTask]] = {}
        self._guard = Lock()
        self._told: set[PartitionKey] = set()

    @contextlib.contextmanager
    def waiting(
        self, keys: Sequence[PartitionKey], offset: int, *, committed: bool = False
    ) -> Iterator[asyncio.Future[None]]:
        """Register a task for the block; the future is done when a partition of *keys* may have grown.

        Look for records after registering: what comes in between wakes the task.
        """
        waiter = WaitingTask(offset, committed, self._loop.create_future())
        for key in keys:
            self._waiting.setdefault(key, set()).add(waiter)
        try:
            yield waiter.woken
        finally:
            waiter.woken.cancel()
            for key in keys:
                if (others := self._waiting.get(key)) is not None:
                    others.discard(waiter)
                    if not others:
                        del self._waiting[key]

    def notify(self, topic: str, partition: int) -> None:
        """Wake those who wait for a partition. From any thread, also with locks of the log held."""
        key = (topic, partition)
        # A task registers before it looks for records, so it is seen here or has seen the records.
        if key not in self._waiting:
            return
        with self._guard:
            if key in self._told:
                return
            self._told.add(key)
        post(self._loop, lambda: self._wake_told(key))

    def _wake_told(self, key: PartitionKey) -> None:
        with self._guard:
            self._told.discard(key)
        self._wake(self._waiting.get(key, ()))

    def wake_all(self) -> None:
        """Wake everybody: the log is closed."""
        for waiters in list(self._waiting.values()):
            self._wake(waiters)

    def _wake(self, waiters: Sequence[WaitingTask] | set[WaitingTask]) -> None:
        for waiter in waiters:
            if not waiter.woken.done():
                waiter.woken.set_result(None)

    def __len__(self) -> int:
        return sum(len(waiters) for waiters in self._waiting.values())


class PollingWaiters(Waiters):
    """The tasks that wait beside a writer in another process, which sends no notification.

    One call in a thread looks at all partitions that somebody waits for, and a timer starts the next.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        calls: AwaitedCalls,
        ends_of: Callable[[str, int], PartitionEnds],
    ) -> None:
        super().__init__(loop)
        self._calls = calls
        self._ends_of = ends_of
        self._timer: asyncio.TimerHandle | None = None

    @contextlib.contextmanager
    def waiting(
        self, keys: Sequence[PartitionKey], offset: int, *, committed: bool = False
    ) -> Iterator[asyncio.Future[None]]:
        """Register a task; see `Waiters.waiting`."""
        with super().waiting(keys, offset, committed=committed) as woken:
            self._look_later()
            yield woken

    def _look_later(self) -> None:
        if self._timer is None and self._waiting:
            self._timer = self._loop.call_later(POLL_SECONDS, self._look)

    def _look(self) -> None:
        keys = list(self._waiting)
        with contextlib.suppress(LogClosed):
            self._calls.submit(lambda: self._find_ends(keys))

    def _find_ends(self, keys: Sequence[PartitionKey]) -> None:
        """Find the ends of partitions. In a thread."""
        ends: dict[PartitionKey, PartitionEnds | None] = {}
        for key in keys:
            try:
                ends[key] = self._ends_of(*key)
            except Exception:
                # The task finds the same when it is woken, and raises it.
                ends[key] = None
        post(self._loop, lambda: self._wake_grown(ends))

    def _wake_grown(self, ends: dict[PartitionKey, PartitionEnds | None]) -> None:
        for key, each in ends.items():
            waiting = self._waiting.get(key, ())
            self._wake({waiter for waiter in waiting if each is None or each.is_past(waiter)})
        self._timer = None
        self._look_later()
