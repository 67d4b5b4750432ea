"""`cordwood.Broker`: the Kafka server in this process, on a thread of its own."""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import Mapping
from concurrent.futures import Future
from types import TracebackType

from cordwood.broker import Node
from cordwood.config import BrokerConfig, Endpoints, load_broker_config
from cordwood.disk import RESERVE_BYTES, Files, MemoryFiles, as_storage_error, files_of
from cordwood.errors import DirectoryLocked, InvalidSetting, LogFailed, MetadataDamaged
from cordwood.host import Clock, Host, SystemClock, process
from cordwood.server.server import Server, shown
from cordwood.storage.directory import DataDirectory, Opening
from cordwood.storage.meta import catalogue_path
from cordwood.telemetry import Tracer, no_tracing

MEMORY = "/memory"


def open_node(
    path: str | os.PathLike[str] | None,
    config: BrokerConfig,
    files: Files | None = None,
    clock: Clock | None = None,
) -> Node:
    """Open the data directory at *path*, created if it is missing, or one in memory if *path* is None.

    Raises:
        StorageError: If it is locked, not a data directory, or cannot be read.
        ConfigError: If ``cordwood.traces`` is set and tracing is not available.
    """
    # Before the directory is locked: this may fail.
    tracer = _tracer(config)
    data = MEMORY if path is None else os.path.abspath(path)
    opening = Opening(
        files or (MemoryFiles() if path is None else files_of(data, config)),
        data,
        config,
        # Memory-mapped files cause page faults, which would block the event loop.
        mapped=False,
        dynamic=True,
        reserve_bytes=RESERVE_BYTES if files is None and path is not None else 0,
        handles=process.handle_limit(),
        clock=clock or SystemClock(),
    )
    try:
        directory = DataDirectory(opening)
        try:
            _check_ids(directory)
        except BaseException:
            directory.close()
            raise
        return Node(directory, config, tracer)
    except OSError as error:
        raise as_storage_error(error, "opening the data directory") from error


def _check_ids(directory: DataDirectory) -> None:
    """Check that the id of every topic is a UUID, as Kafka's clients need.

    Raises:
        MetadataDamaged: If one is not.
    """
    for entry in directory.topics.values():
        try:
            uuid.UUID(entry.id)
        except ValueError:
            reason = f"topic {entry.name} has the id {entry.id!r}: expected a UUID, which a broker needs"
            raise MetadataDamaged(catalogue_path(directory.path), reason) from None


def _tracer(config: BrokerConfig) -> Tracer:
    if not config.traces:
        return no_tracing
    from cordwood.server.tracing import open_tracer

    return open_tracer()


def describe(node: Node, address: str) -> None:
    """Write the broker's address into the lock file, for processes that find the directory locked."""
    node.directory.describe(f"{process.holder()}, {DirectoryLocked.LISTENING} {address}")


class Broker:
    """A Kafka broker in this process, ready when the constructor returns.

    The data is in the directory *path*, created if it is missing; without *path* it is in memory and lost
    when the broker closes. *listen* is ``HOST:PORT`` (the default is a free port on both loopback addresses)
    or a comma-separated list of ``NAME://HOST:PORT``. *config* holds settings as in ``server.properties``.

    ``bootstrap`` is the first address; ``addresses`` maps the name of each listener to its address.

    Raises:
        DirectoryLocked: If another process has locked the directory; names that process.
        ListenFailed: If the address is in use.
        ConfigError: If a setting is unknown or its value is invalid.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        listen: str = "localhost:0",
        config: Mapping[str, str] | None = None,
        files: Files | None = None,
        clock: Clock | None = None,
    ) -> None:
        try:
            listeners = Endpoints.parse(listen)
        except ValueError:
            listeners = Endpoints(())
        if not listeners.each:
            raise InvalidSetting("listen", listen, "HOST:PORT")
        self._config, _ = load_broker_config(config or {}, {"listeners": str(listeners)})
        self._host = Host() if clock is None else Host(clock)
        self._node = open_node(path, self._config, files, self._host.clock)
        self._stopping: asyncio.Event | None = None
        self._server: Server | None = None
        self._loop = self._host.new_event_loop()
        self._ended: Future[None] = Future()
        started: Future[Server] = Future()
        try:
            self._thread = self._host.start_thread(lambda: self._run(started), "broker")
        except BaseException:
            self._loop.close()
            self._node.directory.close()
            raise
        try:
            server = started.result()
        except BaseException:
            self._thread.join()
            self._node.directory.close()
            raise
        self.bootstrap = shown(server.endpoints)
        self.addresses = {each.name: shown([each]) for each in server.endpoints}
        describe(self._node, server.operators_address)

    def __enter__(self) -> Broker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def failure(self) -> LogFailed | None:
        """The failure after which the broker stores nothing, or None."""
        return None if self._server is None else self._server.failure

    @property
    def metrics_url(self) -> str | None:
        """The URL of the metrics, or None if ``cordwood.metrics.listen`` is empty."""
        return None if self._server is None else self._server.metrics_url

    def close(self) -> None:
        """Answer pending requests, sync and close. Idempotent.

        Raises:
            LogFailed: If a partition failed, now or before.
        """
        if self._thread.is_alive() and self._stopping is not None:
            self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join()
        ended, self._ended = self._ended, Future()
        self._ended.set_result(None)
        ended.result()

    def _run(self, started: Future[Server]) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve(started))
        except BaseException as error:
            self._ended.set_exception(error)
        else:
            self._ended.set_result(None)
        finally:
            self._loop.close()

    async def _serve(self, started: Future[Server]) -> None:
        self._stopping = asyncio.Event()
        self._server = Server(self._node, self._node.directory.settings.config, self._host)
        try:
            self._server.start()
        except BaseException as error:
            started.set_exception(error)
            return
        started.set_result(self._server)
        await self._stopping.wait()
        await self._server.close()
        if self._server.failure is not None:
            raise self._server.failure
