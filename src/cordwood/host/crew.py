"""Threads that are started once and run calls from one queue.

A thread that is started on demand may fail to start, because the system limits threads and memory. A caller
would then get no answer, or an append no sync. So all threads are started before the first call, or none.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeVar

from cordwood.host.machine import Host, StartedThread

Item = TypeVar("Item")
Result = TypeVar("Result")
_LOGGER = logging.getLogger("cordwood.threads")


class Closable(Protocol):
    """An object that is closed when it is no longer used."""

    def close(self) -> None:
        """Release what it holds."""


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

    def stop(self) -> Sequence[StartedThread]:
        """Let the threads end after all submitted calls, without waiting; return them. Idempotent."""
        self._closed = True
        threads, self._threads = self._threads, []
        for _ in threads:
            self._calls.put(None)
        return threads

    def close(self) -> None:
        """Finish all submitted calls and end the threads. Idempotent; not on an event loop."""
        for thread in self.stop():
            thread.join()


@contextlib.contextmanager
def closing_on_failure(resource: Closable) -> Iterator[None]:
    """Close *resource* if the block, which initialises it, fails."""
    try:
        yield
    except BaseException:
        resource.close()
        raise
