"""Threads that call a function again and again while a log is open."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from threading import Event, Thread

from cordwood.errors import (
    LogClosed,
    ResourcesExhausted,
)


class Repeated:
    """A thread that does the same again and again, until the log is closed."""

    def __init__(self, seconds: float, name: str, call: Callable[[], object]) -> None:
        self._stopping = Event()
        self._seconds = seconds
        self._call = call
        self._thread = Thread(target=self._run, name=f"cordwood-{name}", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:
            reason = f"thread {self._thread.name} could not be started: {error}"
            raise ResourcesExhausted(reason) from error

    def _run(self) -> None:
        while not self._stopping.wait(self._seconds):
            # Closed, or a forked child: either way there is nothing left to do here.
            with contextlib.suppress(LogClosed):
                self._call()

    def stop(self) -> None:
        """End the thread; what is left is close's work."""
        self._stopping.set()
        self._thread.join()
