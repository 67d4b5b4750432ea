"""Cancellation of awaited calls at a chosen place: an await, one whose answer is there, or a disk call."""

from __future__ import annotations

import asyncio
import threading
import types
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Literal, TypeVar

from support.scheduling import Scheduler

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
    was not told yet. ``disk call``: while a thread is about to make that call. ``places`` counts them. How
    far the threads have come at an ``await`` is up to the scheduler, which also runs the event loop.
    """

    def __init__(self, scheduler: Scheduler, kind: Kind = "await", at: int = 0) -> None:
        self._scheduler = scheduler
        self._kind = kind
        self._at = at
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[Any] | None = None
        self.places = 0
        self.cancelled = 0

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
            self._scheduler.wait_for_test(told.is_set)

    def _cancel(self) -> None:
        assert self._task is not None
        self.cancelled += 1
        self._task.cancel()

    def drain(self) -> None:
        """Let the threads do everything that they were given."""
        self._scheduler.quiesce()
