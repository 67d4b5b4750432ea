"""Cancellation of awaited calls at a chosen place: an await, one whose answer is there, or a disk call."""

from __future__ import annotations

import asyncio
import threading
import types
from collections.abc import Callable, Coroutine, Generator
from contextlib import suppress
from typing import Any, Literal, TypeVar

from cordwood.aio.engine import CALL_THREADS, LONG_THREADS, AsyncEngine
from cordwood.errors import LogClosed
from support.patience import SECONDS_MAX

Result = TypeVar("Result")
Kind = Literal["await", "late await", "disk call"]
KINDS: tuple[Kind, ...] = ("await", "late await", "disk call")


@types.coroutine
def _watched(coroutine: Coroutine[Any, Any, Result], note: Callable[[], None]) -> Generator[Any, Any, Result]:
    """Run *coroutine*, and call *note* whenever it suspends."""

    thrown: BaseException | None = None
    while True:
        try:
            awaited = coroutine.send(None) if thrown is None else coroutine.throw(thrown)
        except StopIteration as stop:
            result: Result = stop.value
            return result
        note()
        thrown = None
        try:
            yield awaited
        except BaseException as error:
            thrown = error


class Cancelling:
    """Cancels the step that runs at the *at*-th place of a kind; never if *at* is 0.

    ``await``: as soon as it suspends. ``late await``: when the threads have done what it waits for, and it
    was not told yet. ``disk call``: while a thread is about to make that call. ``places`` counts them.
    """

    def __init__(self, kind: Kind = "await", at: int = 0) -> None:
        self._kind = kind
        self._at = at
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[Any] | None = None
        self.places = 0
        self.cancelled = 0
        #: The engine of the log that is open, if one is.
        self.engine: AsyncEngine | None = None

    async def step(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        """Run a step that may be cancelled. If it is, CancelledError is raised once the threads are idle."""

        async def watched() -> Result:
            return await _watched(coroutine, self._suspended)

        self._task = task = asyncio.create_task(watched())
        try:
            return await task
        except asyncio.CancelledError:
            self._task = None
            self.drain()
            raise
        finally:
            self._task = None

    def _suspended(self) -> None:
        if self._kind != "disk call":
            self.places += 1
            if self.places == self._at:
                if self._kind == "late await":
                    self.drain()
                self._cancel()

    def before_disk_call(self, kind: str, path: str) -> None:
        """Count a disk call. In a thread, which goes on when the step was cancelled."""
        if self._kind != "disk call" or self._task is None:
            return
        self.places += 1
        if self.places == self._at:
            told = threading.Event()

            def cancel() -> None:
                if self._task is not None:
                    self._cancel()
                told.set()

            self._loop.call_soon_threadsafe(cancel)
            assert told.wait(SECONDS_MAX), "the loop does not go on"

    def _cancel(self) -> None:
        assert self._task is not None
        self.cancelled += 1
        self._task.cancel()

    def drain(self) -> None:
        """Block until the threads of the log have done everything that they were given."""
        if self.engine is None:
            return
        with suppress(LogClosed):
            # The second turn of the writer begins when the first one is synced and answered.
            for _ in range(2):
                written = threading.Event()
                turn = self.engine._appends.run(lambda frames, written=written: written.set())  # type: ignore[misc]
                turn.send(None)
                assert written.wait(SECONDS_MAX), "the writer does not go on"
                turn.close()
            for calls, count in ((self.engine._calls, CALL_THREADS), (self.engine._long, LONG_THREADS)):
                idle = threading.Barrier(count + 1)
                for _ in range(count):
                    calls.submit(lambda idle=idle: void(idle.wait(SECONDS_MAX)))  # type: ignore[misc]
                idle.wait(SECONDS_MAX)


def void(_: object) -> None:
    """Drop a result."""
