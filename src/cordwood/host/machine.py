"""Clock, event loops and threads, as an argument: a server is given them and makes none itself.

A test gives a `Host` of its own and decides which thread runs when.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import SimpleQueue
from threading import Condition, Event, Thread
from typing import Any, Protocol

from cordwood.errors import ResourcesExhausted
from cordwood.host.clock import Clock, SystemClock


class StartedThread(Protocol):
    """A thread that was started."""

    def join(self) -> None:
        """Return when it has ended."""

    def is_alive(self) -> bool:
        """Return whether it has not ended."""


class WaitQueue(Protocol):
    """A queue between threads, in order."""

    def put(self, item: Any, /) -> None:
        """Append *item*."""

    def get(self) -> Any:
        """Remove the first item and return it, once there is one."""


class WaitCondition(Protocol):
    """A lock, and a place to wait for a change of what it guards; see `threading.Condition`."""

    def __enter__(self) -> bool: ...

    def __exit__(self, *raised: Any) -> None: ...

    def wait(self, timeout: float | None = None) -> bool:
        """Give the lock up until notified, or until *timeout* seconds have passed."""

    def notify(self) -> None:
        """Wake one that waits."""


class WaitEvent(Protocol):
    """Something that happens once; see `threading.Event`."""

    def set(self) -> None:
        """Let it happen."""

    def is_set(self) -> bool:
        """Return whether it has happened."""

    def wait(self, timeout: float | None = None) -> bool:
        """Return whether it happens within *timeout* seconds."""


def start_thread(target: Callable[[], None], name: str) -> Thread:
    """Start a thread that runs *target*, and does not keep the process from ending.

    Raises:
        ResourcesExhausted: If the system has no more threads, or no memory for one.
    """
    thread = Thread(target=target, name=f"cordwood-{name}", daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        raise ResourcesExhausted(f"thread {thread.name} could not be started: {error}") from error
    return thread


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return uvloop's event loop where it is installed, else asyncio's own."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


@dataclass(frozen=True, slots=True)
class Host:
    """The host of a server. It creates every object with which one thread waits for another."""

    clock: Clock = field(default_factory=SystemClock)
    new_event_loop: Callable[[], asyncio.AbstractEventLoop] = new_event_loop
    start_thread: Callable[[Callable[[], None], str], StartedThread] = start_thread
    new_queue: Callable[[], WaitQueue] = SimpleQueue
    new_condition: Callable[[], WaitCondition] = Condition
    new_event: Callable[[], WaitEvent] = Event
