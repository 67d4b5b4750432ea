"""`cordwood.Broker`: the Kafka server in this process, on a thread of its own."""

from __future__ import annotations

import asyncio
import logging
import os
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING

from cordwood.broker import Node
from cordwood.config import BrokerConfig, Endpoints, load_broker_config
from cordwood.disk import RESERVE_BYTES, Files, MemoryFiles, as_storage_error, files_of
from cordwood.errors import (
    CordwoodError,
    DirectoryLocked,
    InvalidSetting,
    LogClosed,
    LogFailed,
    MetadataDamaged,
    OwnerFenced,
)
from cordwood.host import Clock, Host, SystemClock, process
from cordwood.server.connections import check_free
from cordwood.server.security import EmbeddedTls, TlsFiles, ensure_users
from cordwood.server.server import Server, shown
from cordwood.storage.directory import DataDirectory, Opening
from cordwood.storage.meta import catalogue_path, identity
from cordwood.telemetry import Tracer, no_tracing

if TYPE_CHECKING:
    from cordwood.bucket import ShippedDirectory, Standing
    from cordwood.embedded import Log

_LOGGER = logging.getLogger("cordwood.bucket")
MEMORY = "/memory"


def open_node(
    path: str | os.PathLike[str] | None,
    config: BrokerConfig,
    files: Files | None = None,
    clock: Clock | None = None,
    *,
    listens: bool = False,
    host: Host | None = None,
    standing: Standing | None = None,
) -> Node:
    """Open the data directory at *path*, created if it is missing, or one in memory if *path* is None.

    *listens* says that the addresses of *config* will be listened at. *standing* is a takeover of the log in
    the bucket for this directory, by a standby.

    Raises:
        StorageError: If it is locked, not a data directory, or cannot be read.
        ListenFailed: If it *listens*, there is no data directory yet and an address is in use. Nothing was
            created.
        ConfigError: If ``cordwood.traces`` is set and tracing is not available.
        BucketError: If ``cordwood.bucket`` is set, and it cannot be used or is another log's.
    """
    # Before the directory is locked: these may fail.
    tracer = _tracer(config)
    data = MEMORY if path is None else os.path.abspath(path)
    files_used = files or (MemoryFiles() if path is None else files_of(data, config))
    if listens and identity.is_first_boot(files_used, data):
        # A server that cannot listen leaves no new directory behind. An existing one is opened first: if
        # another server has it, who that is says more than an address in use.
        check_free([*config.listeners.each, *config.metrics_listen.each])
    host = host or Host(clock or SystemClock())
    opened: list[DataDirectory] = []
    opening = Opening(
        files_used,
        data,
        config,
        # Memory-mapped files cause page faults, which would block the event loop.
        mapped=False,
        dynamic=True,
        node_id=config.node_id,
        reserve_bytes=RESERVE_BYTES if files is None and path is not None else 0,
        handles=process.handle_limit(),
        clock=host.clock,
    )
    shipped = _shipped(opening, host, opened, standing)
    try:
        directory = DataDirectory(opening if shipped is None else shipped.opening)
        opened.append(directory)
        try:
            _check_ids(directory)
            if shipped is not None:
                shipped.start(directory.identity)
        except BaseException:
            directory.close()
            raise
        return Node(directory, config, tracer, shipped)
    except OSError as error:
        raise as_storage_error(error, "opening the data directory") from error


def _bucket_failed(opened: Sequence[DataDirectory], error: CordwoodError) -> None:
    """Stop the broker if another one owns its log: what it acknowledged from now on would be lost."""
    if isinstance(error, OwnerFenced):
        for directory in opened:
            directory.failures.report(LogFailed(str(error)))


def _shipped(
    opening: Opening, host: Host, opened: Sequence[DataDirectory], standing: Standing | None
) -> ShippedDirectory | None:
    bucket = opening.config.bucket
    if not bucket:
        return None
    # Imported here: few brokers have a bucket.
    from cordwood.bucket import ShippedDirectory

    return ShippedDirectory(bucket, opening, host, partial(_bucket_failed, opened), _LOGGER.warning, standing)


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


def _named(listen: str, *, tls: bool, sasl: bool) -> str:
    """Return *listen* with the name of a security protocol for each address without a name."""
    if not tls and not sasl:
        return listen
    name = ("SASL_" if sasl else "") + ("SSL" if tls else "PLAINTEXT")
    return ",".join(part if "://" in part else f"{name}://{part.strip()}" for part in listen.split(","))


class Broker:
    """A Kafka broker in this process, ready when the constructor returns.

    The data is in the directory *path*, created if it is missing; without *path* it is in memory and lost
    when the broker closes. *listen* is ``HOST:PORT`` (the default is a free port on both loopback addresses)
    or a comma-separated list of ``NAME://HOST:PORT``. *config* holds settings as in ``server.properties``.
    *tls* encrypts addresses without a name: True makes a certificate for this broker alone, whose authority
    clients find in ``ca_pem`` and in the file ``ca_path``; a mapping has the paths of the PEM files
    ``certificate`` and ``key``, which may be one, and of ``ca`` if clients must present certificates.
    *users* maps names to passwords: these users can authenticate by PLAIN and SCRAM, and on addresses
    without a name only they can connect.

    ``bootstrap`` is the first address; ``addresses`` maps the name of each listener to its address.
    ``topics`` and ``log`` show what it has stored, without a consumer.

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
        tls: bool | TlsFiles = False,
        users: Mapping[str, str] | None = None,
        files: Files | None = None,
        clock: Clock | None = None,
        host: Host | None = None,
    ) -> None:
        self._host = host or (Host() if clock is None else Host(clock))
        self._tls = EmbeddedTls(tls, self._host.clock)
        if users:
            config = {"sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512", **(config or {})}
        try:
            listeners = Endpoints.parse(_named(listen, tls=bool(tls), sasl=bool(users)))
        except ValueError:
            listeners = Endpoints(())
        if not listeners.each:
            raise InvalidSetting("listen", listen, "HOST:PORT")
        self._config, _ = load_broker_config(
            {**(config or {}), **self._tls.settings}, {"listeners": str(listeners)}
        )
        self._node = open_node(path, self._config, files, self._host.clock, listens=True)
        self._create_users(users or {})
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

    def _create_users(self, users: Mapping[str, str]) -> None:
        try:
            ensure_users(self._node.directory.security, users)
        except BaseException as error:
            self._node.directory.close()
            if isinstance(error, ValueError):
                raise InvalidSetting("users", ", ".join(map(repr, users)), str(error)) from None
            raise

    def __enter__(self) -> Broker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        path = self._node.directory.path
        where = "in memory" if path == MEMORY else repr(path)
        state = "closed" if not self._thread.is_alive() else "failed" if self.failure else "running"
        return f"<cordwood.Broker {where} at {self.bootstrap}, {state}>"

    @property
    def topics(self) -> list[str]:
        """The names of all topics, sorted, without those of the broker itself.

        Raises:
            LogClosed: If the broker is closed.
        """
        with self.log as log:
            return [name for name in log.topics if not name.startswith("__")]

    @property
    def log(self) -> Log:
        """What is synced, as a `cordwood.Log` open to read only: topics, records, `Log.scan` for columns.

        A new one each time, beside the running broker.

        Raises:
            LogClosed: If the broker is closed.
        """
        # Brokers that nobody asks need no library beside them.
        from cordwood import embedded

        if not self._thread.is_alive():
            raise LogClosed("the broker is closed")
        directory = self._node.directory
        return embedded.open(directory.path, read_only=True, files=directory.files)

    @property
    def failure(self) -> LogFailed | None:
        """The failure after which the broker stores nothing, or None."""
        return None if self._server is None else self._server.failure

    @property
    def ca_pem(self) -> str | None:
        """The authority of a certificate that was made for this broker, as PEM text, or None."""
        return self._tls.ca_pem

    @property
    def ca_path(self) -> str | None:
        """The path of a file with `ca_pem`, which exists until the broker is closed, or None."""
        return self._tls.ca_path

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
        self._tls.close()
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

    def _new_server(self, node: Node, host: Host) -> Server:
        return Server(node, node.directory.settings.config, host)

    async def _serve(self, started: Future[Server]) -> None:
        self._stopping = asyncio.Event()
        try:
            self._server = self._new_server(self._node, self._host)
            self._server.start()
        except BaseException as error:
            started.set_exception(error)
            return
        started.set_result(self._server)
        await self._stopping.wait()
        await self._server.close()
        if self._server.failure is not None:
            raise self._server.failure
