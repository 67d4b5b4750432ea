"""The server: assembles sockets, connections and threads, and shuts them down."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from cordwood.broker import FetchSessions, Node
from cordwood.broker.transactions import TransactionCoordinator, TransactionLimits
from cordwood.config import BrokerConfig, Endpoint
from cordwood.errors import InvalidSetting, LogFailed
from cordwood.host import Host, process
from cordwood.protocol import SMALL
from cordwood.security import Principal
from cordwood.server.audit import LoginWatch, check_audit, open_audit
from cordwood.server.connections import (
    TRIM_SECONDS,
    Acceptor,
    Budget,
    Connection,
    RequestService,
    find_trim,
    listen,
)
from cordwood.server.context import Context, OrgContexts, ServerMeans
from cordwood.server.groups import Groups, new_coordinator
from cordwood.server.maintenance import ChainFollowing, PeriodicMaintenance, Scrubber, SealHashing
from cordwood.server.metering import RequestMeter
from cordwood.server.parking import Parking
from cordwood.server.pipeline import PartitionAdvanced, Pipeline
from cordwood.server.quotas import load_client_quotas
from cordwood.server.security import (
    AdmittedClient,
    Authentication,
    Doors,
    FairWorkers,
    PrincipalService,
    SaslService,
    StoredUsers,
    ensure_decoys,
    load_acls,
)
from cordwood.server.service import Service
from cordwood.server.threads import ServerThreads, Workers
from cordwood.server.transactions import Transactions

if TYPE_CHECKING:
    from cordwood.server.metrics import MetricsEndpoint

#: The interval at which connections are checked for idle or slow clients.
CHECK_SECONDS = 1.0
#: The time for pending requests to be answered when the server closes.
GRACE_SECONDS = 5.0
#: A quarter of the process's file handles, and at least this many, are not used for connections.
HANDLES_FOR_FILES_MIN = 40
_RECEIVE_BYTES = 4 * SMALL
_LOGGER = logging.getLogger("cordwood.server")


class Server:
    """A broker on the network. Created, used and closed on its event loop."""

    def __init__(
        self,
        node: Node,
        config: BrokerConfig,
        host: Host,
        make_service: Callable[[Context], RequestService] = Service,
    ) -> None:
        """Create the server. *make_service* returns what answers the requests of one new connection.

        Raises:
            InvalidSetting: If the certificates of a listener cannot be used.
            StorageError: If clients authenticate by SASL, and the secret for that cannot be stored.
        """
        self.failed: asyncio.Event = asyncio.Event()
        self.failure: LogFailed | None = None
        self.endpoints: list[Endpoint] = []
        self._node = node
        self._config = config
        self._host = host
        self._make_service = make_service
        self._clock = host.clock
        self._loop = asyncio.get_running_loop()
        self._connections: set[Connection] = set()
        self._budget = Budget(config.queued_max_request_bytes)
        self._shared = bytearray(_RECEIVE_BYTES)
        self.doors = Doors(config, self._loop, host.clock, self._budget, node.directory.context.telemetry)
        self._refreshing = False
        self._parking = Parking(node.last_stable_offset)
        self._acceptor: Acceptor | None = None
        self._checker: asyncio.TimerHandle | None = None
        self._trim = find_trim()
        self._trim_due_ns = 0
        self._summarizing = False
        if any(config.security_of(endpoint.name).sasl for endpoint in config.listeners.each):
            ensure_decoys(node.directory.security)
        self._users = StoredUsers(node.directory.security)
        self._authentication: Authentication | None = None
        self._contexts: OrgContexts | None = None
        self._threads: ServerThreads | None = None
        self._password_checks: FairWorkers | None = None
        self.groups: Groups | None = None
        self.transactions: Transactions | None = None
        self.meter = RequestMeter(node.directory.context.telemetry, host.clock)
        self.closing = False
        self._maintenance: PeriodicMaintenance | None = None
        self._following: ChainFollowing | None = None
        self._hashing: SealHashing | None = None
        self._scrubber: Scrubber | None = None
        self._metrics: MetricsEndpoint | None = None

    def start(self) -> None:
        """Listen and serve.

        Raises:
            ListenFailed: If an address is in use or not local. Nothing was started.
            MetadataDamaged: If a stored ACL or client quota cannot be applied. Nothing was started.
            InvalidSetting: If there is no address, a listener has a protocol that is not served, or an audit
                log is required and has no topic.
            ResourcesExhausted: If a thread cannot be started. Nothing was started.
        """
        if not self._config.listeners.each:
            raise InvalidSetting("listeners", "", "at least one HOST:PORT for clients")
        check_audit(self._config)
        telemetry = self._node.directory.context.telemetry
        self._authentication = Authentication(self._config, self._users.found, self._clock, telemetry)
        self._acls_of = load_acls(self._config, self._node.directory)
        self._client_quotas_of = load_client_quotas(self._node.directory)
        sockets: list[tuple[socket.socket, str]] = []
        threads = self._threads = ServerThreads(self._post, self._host)
        self._password_checks = FairWorkers(threads.authentication, threads.AUTHENTICATING)
        try:
            for endpoint in self._config.listeners.each:
                sockets += [(made, endpoint.name) for made in listen(endpoint)]
                port = sockets[-1][0].getsockname()[1]
                self.endpoints.append(endpoint._replace(port=port))
            if self._config.metrics_listen.each:
                self._metrics = self._listen_for_metrics(threads.metrics)
            pipeline = Pipeline(self._node, self._host, self._post, self._advanced, self._fail)
        except BaseException:
            for made, _ in sockets:
                made.close()
            if self._metrics is not None:
                self._metrics.close()
            threads.close()
            raise
        self._begin(pipeline, threads)
        self._acceptor = Acceptor(
            self._loop,
            sockets,
            self._connect,
            self.doors.warn,
            self._node.directory.handles.make_room,
            self.doors.make_room,
        )
        self._checker = self._loop.call_later(CHECK_SECONDS, self._check_time)

    def _begin(self, pipeline: Pipeline, threads: ServerThreads) -> None:
        """Start the background work that does not depend on clients."""
        loop, node, config = self._loop, self._node, self._config
        for sentence in node.directory.settings.warnings:
            _LOGGER.warning("%s", sentence)
        node.directory.failures.on_failure = pipeline.fail
        if node.directory.failures.first is not None:
            pipeline.fail(node.directory.failures.first)
        coordinator = new_coordinator(node, config, self._clock)
        groups = Groups(coordinator, node, pipeline, loop, self._clock, threads.changes.run_for)
        transactions = Transactions(
            TransactionCoordinator(_transaction_limits(config), node.admission),
            node,
            pipeline,
            loop,
            threads.changes.run_for,
            groups.now_ms,
            groups.transaction_ended,
            config,
        )
        audit = open_audit(config, node, pipeline, threads.changes.run_for, loop, self._clock)
        means = ServerMeans(
            loop,
            node,
            pipeline,
            self._parking,
            self._budget,
            threads,
            groups,
            transactions,
            self.meter,
            self._clock,
            audit,
            self._users,
            self._acls_of,
            self._client_quotas_of,
            self._apply_settings,
        )
        self._contexts, self.groups, self.transactions = OrgContexts(means, config), groups, transactions
        assert self._authentication is not None
        self._authentication.start(threads.token_keys)
        if audit is not None:
            logins = LoginWatch(audit, config)
            self._authentication.observers.append(logins.note)
            self.doors.observers.append(logins.note_certificate)
        # Before the groups, in the same thread: they find the ends of all transactions in their topic.
        transactions.start()
        groups.start()
        threads.publishing.run_for(node.collect_abandoned, _note_leftovers)
        self._maintenance = PeriodicMaintenance(
            node, config, self._host, loop, threads.maintenance, coordinator.needed_from
        )
        self._maintenance.start()
        self._following = ChainFollowing(node, self._host, loop, threads.following)
        self._following.start()
        self._hashing = SealHashing(node, config, self._host, loop, threads.maintenance)
        self._hashing.start()
        self._scrubber = Scrubber(node, config, self._host, loop, threads.scrubbing)
        self._scrubber.start()

    def _apply_settings(self) -> None:
        """Apply the node's current settings, which may have changed at run time."""
        layers = self._node.directory.settings.layers
        if layers.config is self._config:
            return
        self._config = layers.config
        if self._contexts is not None:
            self._contexts.reconfigure(layers)
        self.doors.reconfigure(layers.config)
        if self._maintenance is not None:
            self._maintenance.reconfigure(layers.config)
        if self._hashing is not None:
            self._hashing.reconfigure(layers.config)

    def _listen_for_metrics(self, workers: Workers) -> MetricsEndpoint:
        # Imported here: most servers in tests have no metrics, and start faster.
        from cordwood.server.metrics import BearerToken, MetricsEndpoint, ServerAnswers

        answers = ServerAnswers(self, self._node, self._config)
        path = self._config.metrics_token_file
        return MetricsEndpoint(
            self._loop,
            self._config.metrics_listen.each,
            answers,
            workers,
            self.doors.protocol_of_metrics,
            self.doors.warn,
            BearerToken(path) if path else None,
        )

    @property
    def metrics_url(self) -> str | None:
        """The URL of the metrics on this machine, or None if they are disabled."""
        if self._metrics is None:
            return None
        scheme = "https" if self._metrics.endpoints[0].name == "SSL" else "http"
        return f"{scheme}://{shown(self._metrics.endpoints)}/metrics"

    @property
    def operators_address(self) -> str:
        """The address for requests about the whole directory: a listener of org 0 if there is one."""
        of_none = [each for each in self.endpoints if not self._config.org_of(each.name)]
        return shown(of_none or self.endpoints)

    def orgs(self) -> list[tuple[Endpoint, int]]:
        """Return each listening address and its org."""
        return [(each, self._config.org_of(each.name)) for each in self.endpoints]

    @property
    def connections(self) -> int:
        """The number of connected clients."""
        return len(self._connections)

    def sessions(self) -> list[FetchSessions]:
        """Return the fetch sessions of each org."""
        return [] if self._contexts is None else [context.sessions for context in self._contexts]

    def _post(self, call: Callable[[], None]) -> None:
        # If the loop is closed, there is nothing left to notify.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(call)

    def _connect(self, listener: str) -> asyncio.BaseProtocol | None:
        full = self._full()
        if full is not None and not self.doors.make_room():
            self.doors.warn(f"{full}; a new connection is closed")
            return None
        if not self.doors.has_room(listener):
            return None
        assert self._contexts is not None
        context = self._contexts[self._config.org_of(listener)]
        connection = Connection(
            self._service_of(listener, self._make_service(context)),
            self._budget,
            self._clock,
            self._shared,
            self._config.socket_request_max_bytes,
            listener,
            self._connections,
            context.quotas.owed_ms,
            self.doors.door(listener),
        )
        # Counted now, not when its transport is created: many connections may be accepted in between.
        self._connections.add(connection)
        return self.doors.protocol_of(listener, connection)

    def _full(self) -> str | None:
        """Return why there is no room for another connection, or None if there is."""
        if len(self._connections) >= self._config.max_connections:
            return "max.connections is reached"
        if len(self._connections) >= connections_max(process.handle_limit()):
            return "file handles run out (ulimit -n)"
        return None

    def _service_of(self, listener: str, service: RequestService) -> RequestService:
        """Return what serves a new client of *listener*; *service* answers clients of the listener's org."""
        security, admit = self._config.security_of(listener), partial(self._admit, listener)
        if security.sasl:
            assert self._authentication is not None
            assert self._password_checks is not None
            assert self._threads is not None
            checks, keys = self._password_checks, self._threads.token_keys
            return SaslService(self._authentication, listener, service, admit, checks, keys)
        if security.tls and self._config.tenant_rules.each:
            return PrincipalService(service, admit)
        return service

    def _admit(self, listener: str, principal: Principal) -> AdmittedClient:
        """Return what serves a client of *listener* that is *principal*. Raises ValueError for none."""
        assert self._contexts is not None
        org = self._config.tenant_rules.org_of(principal.name)
        context = self._contexts[self._config.org_of(listener) if org is None else org]
        return AdmittedClient(self._make_service(context), context.quotas.owed_ms)

    def refresh_certificates(self, *, force: bool = False) -> None:
        """Load the certificates of listeners again whose files have changed, or all if *force*."""
        if self._threads is None or self._refreshing:
            return
        self._refreshing = True
        self._threads.counting.run_for(lambda: self.doors.refresh(force=force), self._refreshed)

    def _refreshed(self, result: Exception | None) -> None:
        self._refreshing = False
        if result is not None:
            _LOGGER.error("certificates could not be loaded again", exc_info=result)

    def _advanced(self, advance: PartitionAdvanced) -> None:
        self._parking.advance((advance.topic, advance.partition), advance.size)

    def _fail(self, error: LogFailed) -> None:
        """Note that a sync failed: nothing more is stored, and the process should end."""
        _LOGGER.critical("a sync failed; nothing more is stored: %s", error)
        self.failure = error
        self.failed.set()

    def _check_time(self) -> None:
        now_ns = self._clock.monotonic_ns()
        idle_ns = self._config.connections_max_idle_ms * 1_000_000
        stall_ns = self._config.client_stall_ms * 1_000_000
        for connection in list(self._connections):
            connection.check_time(now_ns, idle_ns, stall_ns)
        self.refresh_certificates()
        if now_ns >= self._trim_due_ns:
            self._trim_due_ns = now_ns + int(TRIM_SECONDS * 1e9)
            assert self._threads is not None
            self._threads.counting.run_for(self._trim, lambda result: None)
        if self._node.directory.summary.is_due and not self._summarizing:
            assert self._threads is not None
            self._summarizing = True
            self._threads.counting.run_for(self._node.directory.save_summary, self._summarized)
        self._checker = self._loop.call_later(CHECK_SECONDS, self._check_time)

    def _summarized(self, result: bool | Exception) -> None:
        self._summarizing = False
        if isinstance(result, Exception) and not self.closing:
            _LOGGER.warning("meta/checkpoint.json could not be written: %s", result)

    @property
    def is_maintaining(self) -> bool:
        """Whether retention or compaction is due or running."""
        return self._maintenance is not None and self._maintenance.is_busy

    def disconnect(self) -> None:
        """Stop listening and abort every connection: clients get no more answers. `close` comes next."""
        if self._acceptor is not None:
            self._acceptor.close()
            self._acceptor = None
        for connection in list(self._connections):
            connection.refuse("the server was told to disconnect its clients")

    async def close(self) -> None:
        """Answer pending requests, sync and close.

        Raises:
            StorageError: If a log failed, now or before.
        """
        assert self._threads is not None
        in_thread = self._threads.closing.call
        if self._checker is not None:
            self._checker.cancel()
        if self._acceptor is not None:
            self._acceptor.close()
        if self._node.shipped is not None:
            # What waits for the bucket waits for a limited time from now on.
            self._node.shipped.closing()
        for work in self._background():
            work.close()
        if self._authentication is not None:
            self._authentication.close()
        if self._contexts is not None:
            await self._end_requests(self._contexts)
        for work in self._background():
            await in_thread(work.join)
        if self._metrics is not None:
            # Until here /readyz reports why the server is not ready.
            self._metrics.close()
            await in_thread(self._metrics.join)
        try:
            await in_thread(self._node.directory.close)
        finally:
            self._threads.close()

    def _background(self) -> list[PeriodicMaintenance | SealHashing | ChainFollowing | Scrubber]:
        """Return the background work that was started."""
        work = (self._maintenance, self._hashing, self._following, self._scrubber)
        return [each for each in work if each is not None]

    async def _end_requests(self, contexts: OrgContexts) -> None:
        """Answer all pending requests, and end the request threads."""
        means = contexts.means
        in_thread = means.threads.closing.call
        self.closing = contexts.closing = True
        for context in contexts:
            context.closing = True
        for connection in list(self._connections):
            connection.drain()
        means.groups.close()
        means.transactions.close()
        self._parking.wake_all()
        await self._until(lambda: not any(connection.busy for connection in self._connections))
        if means.audit is not None:
            means.audit.close()
        await in_thread(means.pipeline.close)
        for connection in list(self._connections):
            connection.close()
        await self._until(lambda: not self._connections)
        for connection in list(self._connections):
            connection.refuse("the server closes")
        for context in contexts:
            for task in context.answering:
                task.cancel()
        for workers in means.threads.of_requests():
            await in_thread(workers.close)

    async def _until(self, done: Callable[[], bool]) -> None:
        """Return when *done* returns True or the grace period is over."""
        deadline = self._loop.time() + GRACE_SECONDS
        while not done() and self._loop.time() < deadline:
            await asyncio.sleep(0.002)


def _note_leftovers(result: Exception | None) -> None:
    if result is not None:
        _LOGGER.warning("leftovers of queries could not be removed: %s", result)


def connections_max(handles: int) -> int:
    """Return the maximum number of connections of a process with *handles* file handles.

    The other handles are for files: a connected client must be served.
    """
    return max(handles - max(handles // 4, HANDLES_FOR_FILES_MIN), 1)


def _transaction_limits(config: BrokerConfig) -> TransactionLimits:
    return TransactionLimits(config.transaction_max_timeout_ms, config.transactional_id_expiration_ms)


def shown(endpoints: Sequence[Endpoint]) -> str:
    """Return the endpoint to show: one that works on this machine."""
    first = endpoints[0]
    return str(first._replace(host="127.0.0.1") if first.host in ("", "localhost") else first)
