"""The server behind a broker for tests: it can stand still, crash, and run ahead in time."""

from __future__ import annotations

from concurrent.futures import Future
from threading import Event

from cordwood.broker import Node
from cordwood.disk import VolatileFiles
from cordwood.embedded import Log
from cordwood.host import Host
from cordwood.server import Broker, Server
from cordwood.testing.faults import Faults, FaultyService
from cordwood.testing.moving import MovableClock, movable_host


class FaultyBroker(Broker):
    """A `cordwood.Broker` whose requests meet *faults*. It listens when the constructor returns."""

    def __init__(
        self, files: VolatileFiles, listen: str, config: dict[str, str], faults: Faults, clock: MovableClock
    ) -> None:
        self._faults = faults
        self._files = files
        self._paused: Event | None = None
        self._crashed: Future[VolatileFiles] | None = None
        super().__init__(listen=listen, config=config, files=files, host=movable_host(clock))

    def own_log(self) -> Log:
        """Return a log over the broker's own directory, to read from. The broker closes it."""
        return Log(owned=self._node.directory)

    def _new_server(self, node: Node, host: Host) -> Server:
        return Server(
            node,
            node.directory.settings.config,
            host,
            make_service=lambda context: FaultyService(context, self._faults),
        )

    def pause(self) -> None:
        """Block the event loop until `resume`, as SIGSTOP would: clients can connect, and get no answer."""
        resumed, blocked = Event(), Event()

        def block() -> None:
            blocked.set()
            resumed.wait()
            if self._crashed is not None:
                # Before anything else runs on the loop: a stopped process that is killed answers nothing.
                self._crash_now(self._crashed)

        self._paused = resumed
        self._loop.call_soon_threadsafe(block)
        blocked.wait()

    def resume(self) -> None:
        """Continue after `pause`."""
        if self._paused is not None:
            self._paused.set()
            self._paused = None

    def crash(self) -> VolatileFiles:
        """Disconnect all clients without an answer, and return the disk with what is synced by then.

        The threads of the broker end on the old disk, which nobody reads any more.
        """
        crashed: Future[VolatileFiles] = Future()
        if self._paused is not None:
            self._crashed = crashed
            self.resume()
        else:
            self._loop.call_soon_threadsafe(lambda: self._crash_now(crashed))
        disk = crashed.result()
        super().close()
        return disk

    def _crash_now(self, crashed: Future[VolatileFiles]) -> None:
        """Crash in one step of the loop: no answer is sent for a record that the returned disk lacks."""
        assert self._server is not None
        self._faults.crashed = True
        self._server.disconnect()
        crashed.set_result(self._files.after_crash())

    def close(self) -> None:
        """Close cleanly; see `Broker.close`."""
        self.resume()
        super().close()

    def catch_up(self) -> None:
        """Return when everything that is due by the clock is done: timers, retention and compaction."""
        done: Future[None] = Future()

        def look(rounds: int) -> None:
            # Timers that became due run in the next round of the loop.
            assert self._server is not None
            if rounds:
                self._loop.call_soon(look, rounds - 1)
            elif self._server.is_maintaining:
                self._loop.call_later(0.001, look, 2)
            else:
                done.set_result(None)

        self._loop.call_soon_threadsafe(look, 2)
        done.result()
