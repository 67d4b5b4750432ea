"""Threads for blocking calls, all started before the server listens, or the server does not start."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from cordwood.host import Crew, Host, closing_on_failure
from cordwood.server.connections import Exchange

Result = TypeVar("Result")
Post = Callable[[Callable[[], None]], None]
"""Schedules a call on the event loop. May be called from any thread."""
_LOGGER = logging.getLogger("cordwood.server")


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
        counted = call if exchange.time is None else partial(exchange.time.work, call)

        def work() -> None:
            try:
                result = counted()
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
    #: Threads that check passwords.
    AUTHENTICATING = 2

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
            self.authentication = self._start("authentication", self.AUTHENTICATING)
            #: Reads keys of tokens, from addresses that may be slow: nothing else waits for them.
            self.token_keys = self._start("token-keys")
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

    def of_requests(self) -> tuple[Workers, ...]:
        """Return the threads that work for requests, in the order in which they are closed."""
        return (
            self.authentication,
            self.token_keys,
            self.readers,
            self.publishing,
            self.changes,
            self.counting,
        )

    def close(self) -> None:
        """Finish all calls and end all threads. Idempotent; not on the loop while threads have work."""
        for workers in self._all:
            workers.close()
