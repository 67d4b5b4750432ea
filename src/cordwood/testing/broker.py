"""`KafkaBroker`: a Kafka broker for tests, in memory, in this process."""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import TracebackType

from cordwood import embedded
from cordwood.disk import VolatileFiles
from cordwood.embedded import Log, Topic
from cordwood.errors import LogClosed, UnknownTopic
from cordwood.records import Record
from cordwood.testing.asking import create_topic, delete_topic
from cordwood.testing.containers import ContainerMethods
from cordwood.testing.faults import EXEMPT, Faults
from cordwood.testing.moving import MovableClock
from cordwood.testing.server import FaultyBroker

#: What differs from the defaults of a server. A connection lives as long as its client, however far the time
#: is moved, and no disk has to be read again.
_CONFIG = {
    "connections.max.idle.ms": str(2**62 // 1_000_000),
    "cordwood.client.stall.ms": str(2**62 // 1_000_000),
}
_POLL_SECONDS = 0.002


class KafkaBroker(ContainerMethods):
    """A Kafka broker for tests, with its data in memory, in this process.

    It starts with `start` or ``with``, on a free port unless *listen* says another address, and then keeps
    its port. *config* holds settings as in ``server.properties``. Its methods may be called from any thread,
    one at a time.

    Beside what a broker does it fails on request: `crash`, `pause`, `fail`, `slow`; `heal` ends all of that.
    `records`, `topics` and `log` show what it has stored, without a consumer. `advance` moves its time.
    """

    # pytest must not take it for a class of tests.
    __test__ = False

    def __init__(self, *, listen: str = "localhost:0", config: Mapping[str, str] | None = None) -> None:
        self._listen = listen
        self._config = {**_CONFIG, **(config or {})}
        self._files = VolatileFiles()
        self._clock = MovableClock()
        self._faults = Faults()
        self._running: FaultyBroker | None = None
        self._address: str | None = None
        self._paused = False

    # --- starting and stopping --------------------------------------------------------------------

    def start(self, timeout: float = 30) -> KafkaBroker:
        """Start, or start again with the same data on the same port; return this broker.

        *timeout* is accepted as testcontainers has it: the broker is ready on return. Nothing happens if it
        is running.

        Raises:
            ListenFailed: If the address is in use.
            ConfigError: If a setting is unknown or its value is invalid.
        """
        if self._running is None:
            self._faults.crashed = False
            self._running = FaultyBroker(self._files, self._listen, self._config, self._faults, self._clock)
            self._address = self._running.bootstrap
            self._listen = f"{self._listen.rpartition(':')[0]}:{self._address.rpartition(':')[2]}"
        return self

    def stop(self, force: bool = True, delete_volume: bool = True) -> None:
        """Stop cleanly: answer pending requests, then close. The data stays as long as this object.

        *force* and *delete_volume* are accepted as testcontainers has them and change nothing.
        """
        running, self._running, self._paused = self._running, None, False
        if running is not None:
            running.close()

    def restart(self) -> None:
        """Stop cleanly if it is running, and start again with the same data on the same port."""
        self.stop()
        self.start()

    def __enter__(self) -> KafkaBroker:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        state = "stopped" if self._running is None else "paused" if self._paused else "running"
        return f"<KafkaBroker {self._listen}, {state}>"

    @property
    def bootstrap(self) -> str:  # type: ignore[override]
        """The address for ``bootstrap.servers``, as ``127.0.0.1:PORT``.

        Raises:
            LogClosed: If it was never started.
        """
        if self._address is None:
            raise LogClosed("the broker was never started: call start(), or use it in a with statement")
        return self._address

    @property
    def is_running(self) -> bool:
        """Whether it is started, and neither stopped nor crashed."""
        return self._running is not None

    # --- faults -----------------------------------------------------------------------------------

    def crash(self) -> None:
        """Crash as in a power cut: connections die, and only what was synced is there after `start`.

        Every acknowledged record was synced. Clients cannot connect until `start` or `heal`.
        """
        self._files = self._started().crash()
        self._running, self._paused = None, False

    def pause(self) -> None:
        """Stop answering until `resume`, as a process does after SIGSTOP: connections stay open."""
        if not self._paused:
            self._started().pause()
            self._paused = True

    def resume(self) -> None:
        """Continue after `pause`."""
        if self._paused:
            self._started().resume()
            self._paused = False

    def fail(self, api: str, error: str, times: int | None = 1) -> None:
        """Answer the next *times* requests of *api* with *error*, all of them with None.

        Both have Kafka's names: ``fail("PRODUCE", "NOT_LEADER_OR_FOLLOWER", times=3)``. Requests that fail
        have no effect. Errors of several calls for one API come one after another.

        Raises:
            UnknownSetting: If there is no such API or error; suggests one.
        """
        self._faults.fail(api, error, times)

    def slow(self, milliseconds: float, api: str | None = None) -> None:
        """Wait *milliseconds* before each request of *api*, or of every API; 0 ends it.

        Raises:
            UnknownSetting: If there is no such API; suggests one.
        """
        self._faults.slow(milliseconds, api)

    def heal(self) -> None:
        """End all faults: resume, forget `fail` and `slow`, start again after `crash` or `stop`."""
        self.resume()
        self._faults.clear()
        self.start()

    def advance(self, seconds: float) -> None:
        """Move the broker's time forward, and return when everything that is due by then is done.

        Sessions of consumer groups time out, retention deletes, long polls end. The time of clients does not
        move, and nothing moves it back.
        """
        self._answering()
        self._clock.advance(seconds)
        self._started().catch_up()

    # --- topics and records -----------------------------------------------------------------------

    def create_topic(self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> None:
        """Create a topic.

        Raises:
            BrokerRefused: If it exists, or its name or a setting is not allowed.
        """
        create_topic(self._answering(), EXEMPT, name, partitions, dict(config or {}))

    def delete_topic(self, name: str) -> None:
        """Delete a topic, if it exists."""
        delete_topic(self._answering(), EXEMPT, name)

    @property
    def topics(self) -> list[str]:
        """The names of all topics, sorted, without those of the broker itself."""
        with self.log as log:
            return [name for name in log.topics if not name.startswith("__")]

    @property
    def log(self) -> Log:
        """What is synced, as a `cordwood.Log` open to read only: topics, records, `Log.scan` for columns.

        A new one each time, beside the running broker or after `stop`.

        Raises:
            LogClosed: If the broker was never started, or has crashed: starting it is what recovers its data.
        """
        if self._running is None and self._faults.crashed:
            raise LogClosed("the broker has crashed: call start() first")
        _ = self.bootstrap
        return embedded.open(":memory:", read_only=True, files=self._files)

    def records(
        self, topic: str, partition: int | None = None, *, at_least: int = 0, timeout: float = 10.0
    ) -> list[Record]:
        """Return the records of *topic*, by partition and offset; those of one *partition* if it is given.

        With *at_least* wait until there are that many.

        Raises:
            UnknownTopic: If there is no such topic or partition.
            LogClosed: As `log`.
            TimeoutError: If there are fewer than *at_least* after *timeout* seconds.
        """
        deadline = time.monotonic() + timeout
        while True:
            try:
                found = self._records_now(topic, partition)
            except UnknownTopic:
                # A producer may create it soon.
                if not at_least or time.monotonic() >= deadline:
                    raise
            else:
                if len(found) >= at_least:
                    return found
                if time.monotonic() >= deadline:
                    wanted = f"{len(found)} records of {topic} after {timeout:g} s, not {at_least}"
                    raise TimeoutError(wanted)
            time.sleep(_POLL_SECONDS)

    def _records_now(self, topic: str, partition: int | None) -> list[Record]:
        # Of a running broker, what consumers see: with a weaker ``cordwood.sync``, more than what is synced.
        log = self.log if self._running is None else self._running.own_log()
        entry = log.entry(topic)
        numbers = range(entry.partitions) if partition is None else [partition]
        opened = Topic(log, entry)
        return [record for number in numbers for record in opened.read(partition=number)]

    def _started(self) -> FaultyBroker:
        if self._running is None:
            raise LogClosed("the broker is not running: call start() first")
        return self._running

    def _answering(self) -> str:
        """Return the address of the broker, which must not be paused."""
        if self._paused:
            raise LogClosed("the broker is paused: call resume() first")
        return self._started().bootstrap


class KafkaContainer(KafkaBroker):
    """A `KafkaBroker` that is created as testcontainers' class of this name is.

    *image* and *port* are accepted and have no effect: the broker is this package, on a free port.
    """

    def __init__(self, image: str = "", port: int = 9093, **kwargs: object) -> None:
        super().__init__()
