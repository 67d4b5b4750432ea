"""The thread that ships: one piece an interval, as long as something becomes durable."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from cordwood.bucket.session import BucketSession
from cordwood.errors import CordwoodError, LogClosed, OwnerFenced
from cordwood.host import StartedThread

#: How long a close waits for the store. What is not shipped by then stays in the directory.
CLOSE_SECONDS = 10.0
_LOGGER = logging.getLogger("cordwood.bucket")


class ShippingThread:
    """Ships the directory of a session from `start` to `close`. Any thread may call any method."""

    def __init__(
        self,
        session: BucketSession,
        start_thread: Callable[[Callable[[], None], str], StartedThread],
        on_failure: Callable[[CordwoodError], None] = lambda error: None,
    ) -> None:
        """*on_failure* is told in that thread why nothing more is shipped."""
        self.shipper = session.shipper
        self._interval_seconds = session.options.interval_ms / 1000
        self._lease_ms = session.shipper.lease_ms
        self._start_thread = start_thread
        self._on_failure = on_failure
        self._wanted = threading.Event()
        self._stopping = threading.Event()
        self._thread: StartedThread | None = None

    def start(self) -> None:
        """Ship from now on.

        Raises:
            ResourcesExhausted: If there is no thread for it.
        """
        self._thread = self._start_thread(self._run, "shipping")

    def hurry(self) -> None:
        """Ship now: somebody waits for it."""
        self._wanted.set()

    def close(self) -> None:
        """Ship what is left, for a limited time, and end the thread. Idempotent."""
        self._stopping.set()
        self._wanted.set()
        thread, self._thread = self._thread, None
        if thread is None:
            return
        limit = threading.Timer(CLOSE_SECONDS, self.shipper.stop)
        limit.daemon = True
        limit.start()
        thread.join()
        limit.cancel()
        self.shipper.stop()

    def _run(self) -> None:
        # A standby takes over if there are no pieces for a while, so there are some even without changes.
        alive_rounds = max(self._lease_ms / 3000 / self._interval_seconds, 1) if self._lease_ms else None
        idle = 0
        try:
            while True:
                stopping = self._stopping.is_set()
                keep_alive = alive_rounds is not None and idle + 1 >= alive_rounds
                idle = 0 if self.shipper.ship(keep_alive=keep_alive) else idle + 1
                if stopping:
                    return
                self.shipper.condense_if_due()
                self._wanted.wait(self._interval_seconds)
                self._wanted.clear()
        except LogClosed:
            _LOGGER.warning("the store did not answer in time; what it lacks is shipped after the next start")
        except CordwoodError as error:
            self._failed(error)
        except Exception as error:
            # A fault of this code. Nothing may wait for ever for what is not shipped any more.
            _LOGGER.exception("shipping to the bucket failed")
            self._failed(CordwoodError(f"shipping to the bucket failed: {error}"))

    def _failed(self, error: CordwoodError) -> None:
        if isinstance(error, OwnerFenced):
            _LOGGER.error("%s; nothing more is shipped or acknowledged", error)
        else:
            _LOGGER.error("shipping to the bucket failed: %s", error)
        self.shipper.fail(error)
        self._on_failure(error)
