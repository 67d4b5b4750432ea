"""The threads of a log that is used with asyncio, and what its objects share."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from threading import Lock
from typing import TypeVar

from cordwood.aio.appending import AppendQueue, WrittenFrames
from cordwood.aio.calls import AwaitedCalls, post, retrieve, settle_future
from cordwood.aio.waiting import PartitionEnds, PartitionKey, PollingWaiters, Waiters
from cordwood.embedded import Log
from cordwood.errors import LogClosed, WrongEventLoop
from cordwood.host import Host
from cordwood.storage.directory import DataDirectory
from cordwood.storage.log import Partition
from cordwood.storage.meta import SHARED_TOPIC, is_shared

Result = TypeVar("Result")

#: Threads for calls that take moments: reads, offsets, creating a topic.
CALL_THREADS = 4
#: Threads for calls that may take minutes, or wait for such: maintenance, truncation, replay.
LONG_THREADS = 2


class AsyncEngine:
    """An open log and its threads. Used by the tasks of one event loop; `LogClosed` once `close` is called.

    The threads are started when the log is opened and end when it is closed: one writer, two that sync, and
    those for calls.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, host: Host) -> None:
        """Start the threads.

        Raises:
            ResourcesExhausted: If one cannot be started. None is left then.
        """
        self._loop = loop
        self._process = os.getpid()
        self._log: Log | None = None
        self._waiters = Waiters(loop)
        self._closing: asyncio.Future[None] | None = None
        self._guard = Lock()
        self._held: set[Callable[[], None]] = set()
        self._calls = AwaitedCalls("aio-call", CALL_THREADS, loop, host)
        try:
            self._long = AwaitedCalls("aio-long", LONG_THREADS, loop, host)
            try:
                self._appends = AppendQueue(loop, host, self._end)
            except BaseException:
                self._long.stop()
                raise
        except BaseException:
            self._calls.stop()
            raise

    async def open(self, make: Callable[[], Log]) -> Log:
        """Return the log that *make* opens, in a thread. If that fails or is cancelled, all threads end."""
        try:
            self._log = log = await self._calls.run(make, dropped=Log.close)
        except BaseException:
            self._closing = self._loop.create_future()
            self._appends.end()
            raise
        if isinstance(log.directory, DataDirectory):
            log.directory.context.growth.watcher = self._waiters.notify
        else:
            self._waiters = PollingWaiters(self._loop, self._calls, self._ends_of)
        return log

    @property
    def log(self) -> Log:
        """The log that was opened."""
        assert self._log is not None, "the log is not open"
        return self._log

    @property
    def waiters(self) -> Waiters:
        """The tasks that wait for records."""
        return self._waiters

    def check(self) -> None:
        """Refuse a call from another event loop, in a forked child, or after `close`.

        Raises:
            WrongEventLoop, LogClosed: If it is one.
        """
        if self._is_forked():
            raise LogClosed("the log was opened by the process that this one was forked from")
        self._check_loop()
        if self._closing is not None:
            raise LogClosed("the log is closed")

    def _is_forked(self) -> bool:
        return os.getpid() != self._process

    def _check_loop(self) -> None:
        running = None
        with suppress(RuntimeError):
            running = asyncio.get_running_loop()
        if running is not self._loop:
            raise WrongEventLoop("the log was opened on another event loop: open it on the one that uses it")

    async def call(
        self, call: Callable[[], Result], *, dropped: Callable[[Result], None] | None = None
    ) -> Result:
        """Run a call that takes moments; see `AwaitedCalls.run`."""
        self.check()
        return await self._calls.run(call, dropped=dropped)

    async def call_long(self, call: Callable[[], Result]) -> Result:
        """Run a call that may take long; see `AwaitedCalls.run`."""
        self.check()
        return await self._long.run(call)

    async def append(self, write: Callable[[WrittenFrames], Result]) -> Result:
        """Append in the writer thread, with a shared sync; see `AppendQueue.run`."""
        self.check()
        return await self._appends.run(write)

    def hold(self, free: Callable[[], None]) -> None:
        """Note how to free what a task holds, a file for example: `release` does, or else closing the log.

        In a thread. *free* may be called twice, from any thread, and must not raise.
        """
        with self._guard:
            self._held.add(free)

    def free(self, free: Callable[[], None]) -> None:
        """Free what was held. In a thread."""
        free()
        with self._guard:
            self._held.discard(free)

    def release(self, free: Callable[[], None]) -> asyncio.Future[None]:
        """Free what a task holds, in a thread. The future is done afterwards.

        Cancelling the future does not keep it from being freed.
        """
        done: asyncio.Future[None] = self._loop.create_future()

        def work() -> None:
            self.free(free)
            post(self._loop, lambda: settle_future(done, None))

        try:
            self._calls.submit(work)
        except LogClosed:
            closing = self._closing
            assert closing is not None, "the threads ended before the log was closed"
            closing.add_done_callback(lambda closed: settle_future(done, None))
        return done

    def readable(self, topic: str, partition: int) -> Partition:
        """Return a partition to read. In a thread."""
        return self.log.directory.readable(topic, partition)

    def _ends_of(self, topic: str, partition: int) -> PartitionEnds:
        log = self.readable(topic, partition)
        return PartitionEnds(log.last_stable_offset, log.high_watermark)

    def growth_keys(self, topic: str, partition: int) -> list[PartitionKey]:
        """Return the partitions whose growth is that of a partition: the shared log's, if it is there.

        In a thread.
        """
        keys = [(topic, partition)]
        directory = self.log.directory
        if isinstance(directory, DataDirectory):
            entry = directory.topics.get(topic)
            if entry is not None and is_shared(entry):
                keys.append((SHARED_TOPIC, 0))
        return keys

    # --- closing ----------------------------------------------------------------------------------

    async def close(self) -> None:
        """Finish every append and call that was begun, end the threads, and close the log. Idempotent.

        Does nothing in a forked child. A task that is cancelled here does not stop the closing.

        Raises:
            LogFailed: If a partition failed, now or before.
        """
        if self._is_forked():
            return
        self._check_loop()
        if self._closing is None:
            self._closing = self._loop.create_future()
            # Nobody may be there any more to hear of a failure.
            self._closing.add_done_callback(retrieve)
            self._waiters.wake_all()
            self._appends.end()
        elif self._closing.done():
            return
        await asyncio.shield(self._closing)

    def _end(self) -> None:
        """End the other threads and close the log. The last call of the writer thread."""
        outcome: BaseException | None = None
        self._calls.close()
        self._long.close()
        for free in self._held:
            free()
        if self._log is not None:
            try:
                self._log.close()
            except BaseException as error:
                outcome = error
        closing = self._closing
        assert closing is not None, "the writer ended before the log was closed"
        post(self._loop, lambda: settle_future(closing, outcome))
