"""Work that Ctrl-C must not cut in half."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType


@contextlib.contextmanager
def holding_interrupts() -> Iterator[None]:
    """Delay Ctrl-C until the block ends; processes that start in the block never get it.

    For starting processes that this one ends: a terminal sends Ctrl-C to all of them.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def noting_interrupts() -> Iterator[Callable[[], bool]]:
    """Let work end between two steps: yield whether Ctrl-C was pressed, or SIGTERM came, in the block.

    A second Ctrl-C interrupts as usual.
    """
    noted = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal noted
        if noted and number == signal.SIGINT:
            raise KeyboardInterrupt
        noted = True

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: noted
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
