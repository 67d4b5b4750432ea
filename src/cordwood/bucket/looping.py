"""The thread that ships: one piece an interval, as long as something becomes durable."""

from __future__ import annotations

from collections.abc import Callable

from cordwood.bucket.session import BucketSession
from cordwood.errors import CordwoodError, LogClosed, StoreUnavailable
from cordwood.host import Host, StartedThread

#: How long a close waits for the store. What is not shipped by then stays in the directory.
CLOSE_SECONDS = 10.0


class ShippingThread:
    """Ships the directory of a session from `start` to `close`. Any thread may call any method."""

    def __init__(
        self,
        session: BucketSession,
        host: Host,
        on_failure: Callable[[CordwoodError], None],
        warn: Callable[[str], None],
    ) -> None:
        """*on_failure* is told in that thread why nothing more is shipped, *warn* of what to look after."""
        self.shipper = session.shipper
        self._lease_ms = session.shipper.lease_ms
        self._interval_seconds = session.options.interval_ms / 1000
        if self._lease_ms:
            self._interval_seconds = min(self._interval_seconds, self._lease_ms / 3000)
        self._host = host
        self._on_failure = on_failure
        self._warn = warn
        self._due = host.new_condition()
        self._is_stopping = False
        self._thread: StartedThread | None = None

    def start(self) -> None:
        """Ship from now on.

        Raises:
            ResourcesExhausted: If there is no thread for it.
        """
        self._thread = self._host.start_thread(self._run, "shipping")

    def close(self) -> None:
        """Ship what is left, for a limited time, and end the thread. Idempotent."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        self.shipper.give_up_after(CLOSE_SECONDS)
        with self._due:
            self._is_stopping = True
            self._due.notify()
        thread.join()
        self.shipper.stop()

    def _run(self) -> None:
        # A standby takes over if there are no pieces for a while, so there are some even without changes.
        rounds = max(self._lease_ms / 3000 / self._interval_seconds, 1) if self._lease_ms else None
        idle = 0
        try:
            while True:
                stopping = self._is_stopping
                keep_alive = rounds is not None and idle + 1 >= rounds
                idle = 0 if self.shipper.ship(keep_alive=keep_alive) else idle + 1
                if stopping:
                    return
                self.shipper.condense_if_due()
                self._wait()
        except (LogClosed, StoreUnavailable) as error:
            self._warn(f"{error}; what the bucket lacks is shipped after the next start")
            self.shipper.fail(error)
        except CordwoodError as error:
            self._fail(error)
        except Exception as error:
            # A fault of this code or of the disk. Nothing may wait for ever for what is not shipped any more.
            self._fail(CordwoodError(f"{type(error).__name__}: {error}"))

    def _wait(self) -> None:
        with self._due:
            if not self._is_stopping:
                self._due.wait(self._interval_seconds)

    def _fail(self, error: CordwoodError) -> None:
        self._warn(f"nothing more is shipped to the bucket: {error}")
        self.shipper.fail(error)
        self._on_failure(error)
