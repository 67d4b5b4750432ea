"""Ctrl-C for what runs in this process, and for nothing else: not for the tests after it."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def interrupted_after(ready: Callable[[], object]) -> Iterator[None]:
    """Send SIGINT to this process once *ready* has returned, as long as the block still runs.

    *ready* runs in a thread of its own. Where it raises, the block is interrupted as well, and the error is
    raised after it. The signal does nothing but what the block itself has it do.
    """
    failures: list[BaseException] = []
    ended, sending = threading.Event(), threading.Lock()

    def watch() -> None:
        try:
            ready()
        except BaseException as error:
            failures.append(error)
        # Again and again: the first may come before the block handles it.
        while not ended.is_set():
            with sending:
                if not ended.is_set():
                    os.kill(os.getpid(), signal.SIGINT)
            ended.wait(0.1)

    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield
    finally:
        with sending:
            ended.set()
        signal.signal(signal.SIGINT, before)
        watcher.join()
    if failures:
        raise failures[0]
