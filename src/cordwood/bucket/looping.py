"""The loop of the thread that ships: one piece an interval, as long as something becomes durable."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from cordwood.bucket.shipping import Shipper
from cordwood.errors import CordwoodError, LogClosed, OwnerFenced

_LOGGER = logging.getLogger("cordwood.bucket")


class ShippingLoop:
    """Drives a `Shipper`. `run` is called in a thread of its own; the others by any."""

    def __init__(
        self,
        shipper: Shipper,
        interval_ms: int,
        lease_ms: int,
        on_failure: Callable[[CordwoodError], None] = lambda error: None,
    ) -> None:
        """*on_failure* is told in that thread why nothing more is shipped, unless `stop` was called."""
        self._shipper = shipper
        self._interval_seconds = interval_ms / 1000
        #: A piece is created at least so often where a standby waits for them to end.
        self._alive_seconds = lease_ms / 3000 if lease_ms else None
        self._on_failure = on_failure
        self._wanted = threading.Event()
        self._stopping = threading.Event()

    def hurry(self) -> None:
        """Ship now: somebody waits for it."""
        self._wanted.set()

    def run(self) -> None:
        """Ship until `stop` is called, or the log was taken over."""
        idle = 0.0
        try:
            while not self._stopping.is_set():
                alive = self._alive_seconds is not None and idle >= self._alive_seconds
                shipped = self._shipper.ship(keep_alive=alive)
                idle = 0.0 if shipped else idle + self._interval_seconds
                self._shipper.condense_if_due()
                self._wanted.wait(self._interval_seconds)
                self._wanted.clear()
        except LogClosed as error:
            self._shipper.fail(error)
        except CordwoodError as error:
            if isinstance(error, OwnerFenced):
                _LOGGER.error("%s; nothing more is shipped", error)
            else:
                _LOGGER.exception("shipping to the bucket failed")
            self._shipper.fail(error)
            self._on_failure(error)

    def finish(self) -> None:
        """Ship what is left, in the calling thread, after `run` ended. Raises as `Shipper.ship` does."""
        self._shipper.ship()

    def stop(self) -> None:
        """Let `run` end after the piece that it works on."""
        self._stopping.set()
        self._wanted.set()
