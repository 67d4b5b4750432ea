"""Calls that block, run in a few threads and awaited on the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from enum import Enum
from threading import Lock
from typing import Any, Generic, TypeVar

from cordwood.errors import LogClosed
from cordwood.host import Crew, Host

Result = TypeVar("Result")
_LOGGER = logging.getLogger("cordwood.aio")


def post(loop: asyncio.AbstractEventLoop, call: Callable[[], object]) -> bool:
    """Run *call* on *loop*, from any thread; return False if the loop is closed and nobody waits there."""
    try:
        loop.call_soon_threadsafe(call)
    except RuntimeError:
        return False
    return True


def settle_future(future: asyncio.Future[Any], result: object) -> None:
    """Give *future* a result or an exception, unless its task no longer waits. On the loop."""
    if future.done():
        return
    if isinstance(result, StopIteration):
        # A coroutine cannot raise it; as PEP 479 does for generators.
        error = RuntimeError("a call raised StopIteration")
        error.__cause__ = result
        future.set_exception(error)
    elif isinstance(result, BaseException):
        future.set_exception(result)
    else:
        future.set_result(result)


def retrieve(future: asyncio.Future[Any]) -> None:
    """Tell asyncio that an exception of *future* is known, so that it does not log it as forgotten."""
    if future.done() and not future.cancelled():
        future.exception()


class CallState(Enum):
    """How far a call is."""

    WAITING = 1
    RUNNING = 2
    DONE = 3
    WITHDRAWN = 4


class _AwaitedCall(Generic[Result]):
    """One call, and who waits for it."""

    __slots__ = ("call", "dropped", "future", "outcome", "state")

    def __init__(
        self,
        call: Callable[[], Result],
        future: asyncio.Future[Result],
        dropped: Callable[[Result], None] | None,
    ) -> None:
        self.call = call
        self.future = future
        self.dropped = dropped
        self.state = CallState.WAITING
        self.outcome: Any = None

    def drop(self) -> None:
        """Release the result of a call that nobody waits for any more. In a thread."""
        if self.dropped is not None and not isinstance(self.outcome, BaseException):
            try:
                self.dropped(self.outcome)
            except Exception:
                _LOGGER.exception("the result of a cancelled call could not be released")


class AwaitedCalls:
    """Threads that run calls for the tasks of one event loop.

    A call that is cancelled while it waits for a thread is never run. One that runs is run to its end, and
    its result is dropped.
    """

    def __init__(self, name: str, threads: int, loop: asyncio.AbstractEventLoop, host: Host) -> None:
        """Start the threads. Raises as `Crew` does."""
        self._loop = loop
        self._crew = Crew(name, threads, host)
        self._guard = Lock()

    async def run(
        self, call: Callable[[], Result], *, dropped: Callable[[Result], None] | None = None
    ) -> Result:
        """Run *call* in a thread and return its result; its exceptions propagate.

        *dropped* is called, in a thread, with a result that nobody waits for because the task was cancelled.

        Raises:
            LogClosed: If the threads have ended.
        """
        future: asyncio.Future[Result] = self._loop.create_future()
        job = _AwaitedCall(call, future, dropped)
        self.submit(lambda: self._perform(job))
        try:
            return await future
        except asyncio.CancelledError:
            self._withdraw(job)
            retrieve(future)
            raise

    def submit(self, call: Callable[[], None]) -> None:
        """Run *call* in a thread, awaited by nobody. It must not raise.

        Raises:
            LogClosed: If the threads have ended.
        """
        try:
            self._crew.submit(call)
        except RuntimeError:
            raise LogClosed("the log is closed") from None

    def _perform(self, job: _AwaitedCall[Result]) -> None:
        with self._guard:
            if job.state is CallState.WITHDRAWN:
                return
            job.state = CallState.RUNNING
        try:
            job.outcome = job.call()
        except BaseException as error:
            job.outcome = error
        with self._guard:
            wanted = job.state is CallState.RUNNING
            job.state = CallState.DONE
        if not (wanted and post(self._loop, lambda: settle_future(job.future, job.outcome))):
            job.drop()

    def _withdraw(self, job: _AwaitedCall[Result]) -> None:
        with self._guard:
            done = job.state is CallState.DONE
            job.state = CallState.WITHDRAWN
        if done and job.dropped is not None:
            with contextlib.suppress(LogClosed):
                self.submit(job.drop)

    def stop(self) -> None:
        """Let the threads end after what was submitted. Idempotent, and does not wait."""
        self._crew.stop()

    def close(self) -> None:
        """Finish what was submitted and end the threads. Idempotent; not on the loop."""
        self._crew.close()
