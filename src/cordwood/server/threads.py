"""Threads for blocking calls, all started with the server.

A thread that is started on demand may fail to start, because the system limits threads and memory. A request
would then get no answer, or an append no sync. So the server starts all threads before it listens, or does
not start.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from cordwood.host import Host, StartedThread
from cordwood.server.connections import Exchange

Item = TypeVar("Item")
Result = TypeVar("Result")
Post = Callable[[Callable[[], None]], None]
"""Schedules a call on the event loop. May be called from any thread."""
_LOGGER = logging.getLogger("cordwood.server")


class Crew:
    """Threads that run calls from one queue, in order. Every method may be called from any thread."""

    def __init__(self, name: str, threads: int, host: Host) -> None:
        """Start *threads* threads.

        Raises:
            ResourcesExhausted: If a thread cannot be started. The started ones are ended.
        """
        self._host = host
        self._calls = host.new_queue()
        self._threads: list[StartedThread] = []
        self._closed = False
        with closing_on_failure(self):
            for number in range(threads):
                self._threads.append(host.start_thread(self._work, f"{name}_{number}"))

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            try:
                call()
            except Exception:
                # A bug: calls must handle their exceptions. The thread is still needed.
                _LOGGER.exception("a call in a thread failed")
            # Otherwise the thread would keep the call's objects, such as a request, until the next call.
            del call

    def submit(self, call: Callable[[], None]) -> None:
        """Run *call* in one of the threads. It must not raise.

        Raises:
            RuntimeError: If the crew is closed.
        """
        if self._closed:
            raise RuntimeError("the threads have ended")
        self._calls.put(call)

    def map(self, function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        """Return the results of *function* for *items*, computed concurrently. It must not raise."""
        results: dict[int, Result] = {}
        done = self._host.new_queue()

        def run(at: int) -> None:
            try:
                results[at] = function(items[at])
            finally:
                done.put(at)

        for at in range(len(items)):
            self.submit(lambda at=at: run(at))  # type: ignore[misc]
        for _ in items:
            done.get()
        return [results[at] for at in range(len(items))]

    def close(self) -> None:
        """Finish all submitted calls and end the threads. Idempotent; not on the loop."""
        self._closed = True
        threads, self._threads = self._threads, []
        for _ in threads:
            self._calls.put(None)
        for thread in threads:
            thread.join()


class Workers:
    """A crew that returns the result of each call to the event loop. Called on the loop."""

    def __init__(self, name: str, threads: int, post: Post, host: Host) -> None:
        """Start the threads. Raises like `Crew`."""
        self._crew = Crew(name, threads, host)
        self._post = post

    def run_for(self, call: Callable[[], Result], then: Callable[[Result | Exception], None]) -> None:
        """Run *call* in a thread, then *then* with its result or exception on the loop."""

        def work() -> None:
            result: Result | Exception
            try:
                result = call()
            except Exception as error:
                result = error
            self._post(lambda: then(result))

        self._crew.submit(work)

    async def call(self, call: Callable[[], Result]) -> Result:
        """Run *call* in a thread and return its result. Exceptions of *call* propagate."""
        done: asyncio.Future[Result] = asyncio.get_running_loop().create_future()

        def settle(result: Result | Exception) -> None:
            if done.done():
                # The caller no longer waits.
                return
            if isinstance(result, Exception):
                done.set_exception(result)
            else:
                done.set_result(result)

        self.run_for(call, settle)
        return await done

    def run(self, exchange: Exchange, call: Callable[[], Result], then: Callable[[Result], None]) -> None:
        """Run *call* in a thread, then *then* with its result on the loop.

        An exception of either is a bug: it is logged, and the connection of *exchange* is closed.
        """

        def work() -> None:
            try:
                result = call()
            except Exception:
                _LOGGER.exception("a %s request failed", exchange.request.api_key.name)
                self._post(lambda: exchange.fail("the request could not be handled"))
            else:
                self._post(lambda: exchange.attempt(lambda: then(result)))

        self._crew.submit(work)

    def close(self) -> None:
        """Finish what was begun. Idempotent; not on the loop."""
        self._crew.close()


class ServerThreads:
    """The threads of a server, by what they do; those that append and sync are the pipeline's."""

    #: Threads that read files for fetches.
    READERS = 4

    def __init__(self, post: Post, host: Host) -> None:
        """Start all of them.

        Raises:
            ResourcesExhausted: If a thread cannot be started. The started ones are ended.
        """
        self._all: list[Workers] = []
        self._post = post
        self._host = host
        with closing_on_failure(self):
            self.readers = self._start("reader", self.READERS)
            self.changes = self._start("changes")
            self.publishing = self._start("publishing")
            self.counting = self._start("counting")
            self.maintenance = self._start("maintenance")
            self.following = self._start("following")
            self.scrubbing = self._start("scrubbing")
            self.metrics = self._start("metrics")
            #: For calls that wait for the other threads to end.
            self.closing = self._start("closing")

    def _start(self, name: str, threads: int = 1) -> Workers:
        workers = Workers(name, threads, self._post, self._host)
        self._all.append(workers)
        return workers

    def close(self) -> None:
        """Finish all calls and end all threads. Idempotent; not on the loop while threads have work."""
        for workers in self._all:
            workers.close()


@contextlib.contextmanager
def closing_on_failure(resource: Crew | ServerThreads) -> Iterator[None]:
    """Close *resource* if the block, which initialises it, fails."""
    try:
        yield
    except BaseException:
        resource.close()
        raise
