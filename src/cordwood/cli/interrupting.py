"""Work that Ctrl-C must not cut in half."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

#: How long work may take to end by itself after Ctrl-C.
_GRACE_SECONDS = 2.0


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
def noting_interrupts(grace_seconds: float = _GRACE_SECONDS) -> Iterator[Callable[[], bool]]:
    """Let work end between two steps: yield whether Ctrl-C was pressed, or SIGTERM came, in the block.

    A second Ctrl-C interrupts as usual. So does the first signal if the block goes on for *grace_seconds*
    after it: a step may wait for somebody else, and that for long.
    """
    noted, ended, sending = threading.Event(), threading.Event(), threading.Lock()

    def note(number: int, frame: FrameType | None) -> None:
        if noted.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        noted.set()

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    main = threading.get_ident()

    def insist() -> None:
        noted.wait()
        if not ended.wait(grace_seconds):
            with sending:
                if not ended.is_set():
                    signal.pthread_kill(main, signal.SIGINT)

    watcher = threading.Thread(target=insist, name="interrupts", daemon=True)
    watcher.start()
    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield noted.is_set
    finally:
        with sending:
            ended.set()
        for number, handler in before.items():
            signal.signal(number, handler)
        noted.set()
        watcher.join()
