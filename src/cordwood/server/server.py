"""The server: assembles sockets, connections and threads, and shuts them down."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import uuid
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from cordwood.broker import PARTITIONS_MAX, FetchSessions, Node, Tenant
from cordwood.broker.groups import Coordinator, GroupLimits
from cordwood.config import BrokerConfig, Endpoint
from cordwood.errors import InvalidSetting, LogFailed
from cordwood.host import Host, process
from cordwood.protocol import SMALL
from cordwood.server.connections import TRIM_SECONDS, Acceptor, Budget, Connection, find_trim, listen
from cordwood.server.context import Administration, Context
from cordwood.server.groups import Groups
from cordwood.server.maintenance import ChainFollowing, PeriodicMaintenance, Scrubber
from cordwood.server.metering import RequestMeter
from cordwood.server.parking import Parking
from cordwood.server.pipeline import PartitionAdvanced, Pipeline
from cordwood.server.quotas import OrgQuotas
from cordwood.server.service import Service
from cordwood.server.tenant_groups import TenantGroups
from cordwood.server.threads import ServerThreads, Workers

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


class _Means(NamedTuple):
    """The objects that handlers of all orgs share."""

    pipeline: Pipeline
    groups: Groups
    threads: ServerThreads


class Server:
    """A broker on the network. Created, used and closed on its event loop."""

    def __init__(self, node: Node, config: BrokerConfig, host: Host) -> None:
        self.failed: asyncio.Event = asyncio.Event()
        self.failure: LogFailed | None = None
        self.endpoints: list[Endpoint] = []
        self._node = node
        self._config = config
        self._host = host
        self._clock = host.clock
        self._loop = asyncio.get_running_loop()
        self._connections: set[Connection] = set()
        self._budget = Budget(config.queued_max_request_bytes)
        self._shared = bytearray(_RECEIVE_BYTES)
        self._parking = Parking()
        self._acceptor: Acceptor | None = None
        self._checker: asyncio.TimerHandle | None = None
        self._trim = find_trim()
        self._trim_due_ns = 0
        #: The context of each org that has a listener.
        self._contexts: dict[int, Context] = {}
        self._threads: ServerThreads | None = None
        self.groups: Groups | None = None
        self.meter = RequestMeter(node.directory.context.telemetry, host.clock)
        self.closing = False
        self._means: _Means | None = None
        self._maintenance: PeriodicMaintenance | None = None
        self._following: ChainFollowing | None = None
        self._scrubber: Scrubber | None = None
        self._metrics: MetricsEndpoint | None = None

    def start(self) -> None:
        """Listen and serve.

        Raises:
            ListenFailed: If an address is in use or not local. Nothing was started.
            InvalidSetting: If there is no address.
            ResourcesExhausted: If a thread cannot be started. Nothing was started.
        """
        if not self._config.listeners.each:
            raise InvalidSetting("listeners", "", "at least one HOST:PORT for clients")
        sockets: list[tuple[socket.socket, str]] = []
        threads = self._threads = ServerThreads(self._post, self._host)
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
        self._acceptor = Acceptor(self._loop, sockets, self._connect, self._node.directory.handles.make_room)
        self._checker = self._loop.call_later(CHECK_SECONDS, self._check_time)

    def _begin(self, pipeline: Pipeline, threads: ServerThreads) -> None:
        """Start the background work that does not depend on clients."""
        loop, node, config = self._loop, self._node, self._config
        for sentence in node.directory.settings.warnings:
            _LOGGER.warning("%s", sentence)
        node.directory.failures.on_failure = pipeline.fail
        if node.directory.failures.first is not None:
            pipeline.fail(node.directory.failures.first)
        coordinator = Coordinator(_limits(config), lambda name: f"{name}-{uuid.uuid4()}")
        groups = Groups(coordinator, node, pipeline, loop, self._clock, threads.changes.run_for)
        means = _Means(pipeline, groups, threads)
        orgs = sorted({config.org_of(endpoint.name) for endpoint in config.listeners.each})
        for org in orgs:
            self._contexts[org] = self._context_of(org, means, len(orgs))
        self._means, self.groups = means, groups
        groups.start()
        threads.publishing.run_for(node.collect_abandoned, _note_leftovers)
        self._maintenance = PeriodicMaintenance(
            node, config, self._host, loop, threads.maintenance, coordinator.needed_from
        )
        self._maintenance.start()
        self._following = ChainFollowing(node, self._host, loop, threads.following)
        self._following.start()
        self._scrubber = Scrubber(node, config, self._host, loop, threads.scrubbing)
        self._scrubber.start()

    def _context_of(self, org: int, means: _Means, orgs: int) -> Context:
        """Return the context of handlers for clients of *org*; *orgs* is the number of orgs."""
        config, threads = self._config, means.threads
        tenant = Tenant(self._node, config, org)
        return Context(
            loop=self._loop,
            tenant=tenant,
            node=self._node,
            layers=self._node.directory.settings.layers.seen_by(org),
            pipeline=means.pipeline,
            parking=self._parking,
            budget=self._budget,
            readers=threads.readers,
            changes=threads.changes,
            publishing=threads.publishing,
            groups=TenantGroups(means.groups, org, self._loop),
            meter=self.meter,
            quotas=OrgQuotas(
                config.quota_of(org), org, tenant.stored_bytes, threads.counting.run_for, self._clock
            ),
            # An equal share for each org: consumers of one org cannot evict the sessions of another.
            sessions=FetchSessions(
                -(-config.fetch_session_slots // orgs),
                process.new_session_id,
                lambda: self._clock.monotonic_ns() // 1_000_000,
                PARTITIONS_MAX // orgs,
            ),
            administration=None if org else Administration(self._node, self._apply_settings),
        )

    def _apply_settings(self) -> None:
        """Apply the node's current settings, which may have changed at run time."""
        layers = self._node.directory.settings.layers
        if layers.config is self._config:
            return
        self._config = layers.config
        for org, context in self._contexts.items():
            context.layers = layers.seen_by(org)
            context.quotas.reconfigure(layers.config.quota_of(org))
        if self._maintenance is not None:
            self._maintenance.reconfigure(layers.config)

    def _listen_for_metrics(self, workers: Workers) -> MetricsEndpoint:
        # Imported here: most servers in tests have no metrics, and start faster.
        from cordwood.server.metrics import MetricsEndpoint, ServerAnswers

        answers = ServerAnswers(self, self._node, self._config)
        return MetricsEndpoint(self._loop, self._config.metrics_listen.each, answers, workers)

    @property
    def metrics_url(self) -> str | None:
        """The URL of the metrics on this machine, or None if they are disabled."""
        return None if self._metrics is None else f"http://{shown(self._metrics.endpoints)}/metrics"

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
        return [context.sessions for context in self._contexts.values()]

    def _post(self, call: Callable[[], None]) -> None:
        # If the loop is closed, there is nothing left to notify.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(call)

    def _connect(self, listener: str) -> Connection | None:
        if len(self._connections) >= self._config.max_connections:
            _LOGGER.warning("max.connections is reached; a new connection is closed")
            return None
        if len(self._connections) >= connections_max(process.handle_limit()):
            _LOGGER.warning("file handles run out (ulimit -n); a new connection is closed")
            return None
        context = self._contexts[self._config.org_of(listener)]
        connection = Connection(
            Service(context),
            self._budget,
            self._clock,
            self._shared,
            self._config.socket_request_max_bytes,
            listener,
            self._connections,
            context.quotas.owed_ms,
        )
        # Counted now, not when its transport is created: many connections may be accepted in between.
        self._connections.add(connection)
        return connection

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
        if now_ns >= self._trim_due_ns:
            self._trim_due_ns = now_ns + int(TRIM_SECONDS * 1e9)
            assert self._threads is not None
            self._threads.counting.run_for(self._trim, lambda result: None)
        self._checker = self._loop.call_later(CHECK_SECONDS, self._check_time)

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
        for work in (self._maintenance, self._following, self._scrubber):
            if work is not None:
                work.close()
        if self._means is not None:
            await self._end_requests(self._means)
        for work in (self._maintenance, self._following, self._scrubber):
            if work is not None:
                await in_thread(work.join)
        if self._metrics is not None:
            # Until here /readyz reports why the server is not ready.
            self._metrics.close()
            await in_thread(self._metrics.join)
        try:
            await in_thread(self._node.directory.close)
        finally:
            self._threads.close()

    async def _end_requests(self, means: _Means) -> None:
        """Answer all pending requests, and end the request threads."""
        in_thread = means.threads.closing.call
        self.closing = True
        for context in self._contexts.values():
            context.closing = True
        for connection in list(self._connections):
            connection.drain()
        means.groups.close()
        self._parking.wake_all()
        await self._until(lambda: not any(connection.busy for connection in self._connections))
        await in_thread(means.pipeline.close)
        for connection in list(self._connections):
            connection.close()
        await self._until(lambda: not self._connections)
        for connection in list(self._connections):
            connection.refuse("the server closes")
        for context in self._contexts.values():
            for task in context.answering:
                task.cancel()
        threads = means.threads
        for workers in (threads.readers, threads.publishing, threads.changes, threads.counting):
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


def _limits(config: BrokerConfig) -> GroupLimits:
    return GroupLimits(
        config.group_min_session_timeout_ms,
        config.group_max_session_timeout_ms,
        config.group_max_size,
        config.group_initial_rebalance_delay_ms,
        config.offsets_retention_minutes * 60_000,
    )


def shown(endpoints: Sequence[Endpoint]) -> str:
    """Return the endpoint to show: one that works on this machine."""
    first = endpoints[0]
    return str(first._replace(host="127.0.0.1") if first.host in ("", "localhost") else first)
