"""The server put together: sockets, connections, threads, and their end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from cordwood.broker.coordinator import Coordinator, Limits
from cordwood.broker.node import Node
from cordwood.broker.tenants import Tenant
from cordwood.clock import Clock
from cordwood.config import BrokerConfig
from cordwood.errors import InvalidSetting, LogFailed
from cordwood.protocol.frames import SMALL
from cordwood.server.budget import Budget
from cordwood.server.connection import Connection
from cordwood.server.context import Context, Workers
from cordwood.server.following import Following
from cordwood.server.groups import Groups
from cordwood.server.listening import Acceptor, listen
from cordwood.server.memory import TRIM_SECONDS, find_trim
from cordwood.server.metrics_meter import RequestMeter
from cordwood.server.parking import Parking
from cordwood.server.pipeline import Advance, Pipeline
from cordwood.server.quotas import OrgQuotas
from cordwood.server.scrubbing import Scrubber
from cordwood.server.service import Service
from cordwood.server.tenant_groups import TenantGroups
from cordwood.server.upkeep import Upkeep
from cordwood.setting_kinds import Endpoint

if TYPE_CHECKING:
    from cordwood.server.metrics import MetricsEndpoint

#: Threads that read files for fetches.
READERS = 4
#: How often clients are looked at for being idle or slow.
CHECK_SECONDS = 1.0
#: How long requests under way get to be answered when the server closes.
GRACE_SECONDS = 5.0
_RECEIVE_BYTES = 4 * SMALL
_LOGGER = logging.getLogger("cordwood.server")


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return uvloop's event loop where it is installed, else asyncio's own."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


class _Means(NamedTuple):
    """What requests of all orgs are answered with."""

    pipeline: Pipeline
    readers: Workers
    changes: Workers
    publishing: Workers
    groups: Groups


class Server:
    """A broker on the network. Made, used and closed on its event loop."""

    def __init__(self, node: Node, config: BrokerConfig, clock: Clock) -> None:
        self.failed: asyncio.Event = asyncio.Event()
        self.failure: LogFailed | None = None
        self.endpoints: list[Endpoint] = []
        self._node = node
        self._config = config
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._connections: set[Connection] = set()
        self._budget = Budget(config.queued_max_request_bytes)
        self._shared = bytearray(_RECEIVE_BYTES)
        self._parking = Parking()
        self._acceptor: Acceptor | None = None
        self._checker: asyncio.TimerHandle | None = None
        self._trim = find_trim()
        self._trim_due_ns = 0
        #: Of each org that has a listener.
        self._contexts: dict[int, Context] = {}
        self._counting: Workers | None = None
        self.groups: Groups | None = None
        self.meter = RequestMeter(node.telemetry, clock)
        self.closing = False
        self._means: _Means | None = None
        self._upkeep: Upkeep | None = None
        self._following: Following | None = None
        self._scrubber: Scrubber | None = None
        self._metrics: MetricsEndpoint | None = None

    def start(self) -> None:
        """Listen, and serve from now on.

        Raises:
            ListenFailed: If an address is taken or not ours. Nothing was started.
            InvalidSetting: If there is no address at all.
        """
        if not self._config.listeners.each:
            raise InvalidSetting("listeners", "", "at least one HOST:PORT for clients")
        sockets = []
        try:
            for endpoint in self._config.listeners.each:
                sockets += [(made, endpoint.name) for made in listen(endpoint)]
                port = sockets[-1][0].getsockname()[1]
                self.endpoints.append(endpoint._replace(port=port))
            if self._config.metrics_listen.each:
                self._metrics = self._listen_for_metrics()
        except BaseException:
            for made, _ in sockets:
                made.close()
            raise
        loop, post, node, config = self._loop, self._post, self._node, self._config
        pipeline = Pipeline(node, self._clock, post, self._advanced, self._fail)
        changes = Workers("changes", 1, post)
        coordinator = Coordinator(_limits(config), lambda name: f"{name}-{uuid.uuid4()}")
        groups = Groups(coordinator, node, pipeline, loop, self._clock, changes.run_for)
        means = _Means(
            pipeline,
            Workers("reader", READERS, post),
            changes,
            Workers("publishing", 1, post),
            groups,
        )
        self._counting = Workers("counting", 1, post)
        for org in sorted({config.org_of(endpoint.name) for endpoint in config.listeners.each}):
            self._contexts[org] = self._context_of(org, means)
        self._means, self.groups = means, groups
        groups.start()
        means.publishing.run_for(node.collect_abandoned, _note_leftovers)
        self._upkeep = Upkeep(
            node, config, self._clock, loop, Workers("upkeep", 1, post), coordinator.needed_from
        )
        self._upkeep.start()
        self._following = Following(node, loop, Workers("following", 1, post))
        self._following.start()
        self._scrubber = Scrubber(node, config, loop, Workers("scrubbing", 1, post))
        self._scrubber.start()
        self._acceptor = Acceptor(loop, sockets, self._connect)
        self._checker = loop.call_later(CHECK_SECONDS, self._check_time)

    def _context_of(self, org: int, means: _Means) -> Context:
        """Return what handlers may use to answer clients of *org*."""
        assert self._counting is not None
        config = self._config
        tenant = Tenant(self._node, config, org)
        return Context(
            loop=self._loop,
            tenant=tenant,
            config=config.seen_by(org),
            pipeline=means.pipeline,
            parking=self._parking,
            budget=self._budget,
            readers=means.readers,
            changes=means.changes,
            publishing=means.publishing,
            groups=TenantGroups(means.groups, org),
            meter=self.meter,
            quotas=OrgQuotas(
                config.quota_of(org), org, tenant.stored_bytes, self._counting.run_for, self._clock
            ),
        )

    def _listen_for_metrics(self) -> MetricsEndpoint:
        # Imported by who wants it: most servers in tests do not, and start sooner.
        from cordwood.server.metrics import MetricsEndpoint
        from cordwood.server.metrics_answers import ServerAnswers

        answers = ServerAnswers(self, self._node, self._config)
        workers = Workers("metrics", 1, self._post)
        return MetricsEndpoint(self._loop, self._config.metrics_listen.each, answers, workers)

    @property
    def metrics_url(self) -> str | None:
        """Where the metrics are, for people and programs on this machine; None where they are not."""
        return None if self._metrics is None else f"http://{shown(self._metrics.endpoints)}/metrics"

    @property
    def operators_address(self) -> str:
        """Where to ask for what concerns the whole directory: a listener of org 0, if there is one."""
        of_none = [each for each in self.endpoints if not self._config.org_of(each.name)]
        return shown(of_none or self.endpoints)

    def orgs(self) -> list[tuple[Endpoint, int]]:
        """Return where is listened, and the org of who connects there."""
        return [(each, self._config.org_of(each.name)) for each in self.endpoints]

    @property
    def connections(self) -> int:
        """How many clients are connected."""
        return len(self._connections)

    def _post(self, call: Callable[[], None]) -> None:
        # A loop that was closed meanwhile has nobody left to tell.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(call)

    def _connect(self, listener: str) -> Connection | None:
        if len(self._connections) >= self._config.max_connections:
            _LOGGER.warning("max.connections is reached; a client is turned away")
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
        # From now on, not from when its transport is made: many may be accepted in between.
        self._connections.add(connection)
        return connection

    def _advanced(self, advance: Advance) -> None:
        self._parking.advance((advance.topic, advance.partition), advance.size)

    def _fail(self, error: LogFailed) -> None:
        """Take note that a sync failed: nothing is stored any more, and who runs us should end."""
        _LOGGER.critical("a sync failed; nothing is stored any more: %s", error)
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
            self._loop.run_in_executor(None, self._trim)
        self._checker = self._loop.call_later(CHECK_SECONDS, self._check_time)

    async def close(self) -> None:
        """Answer what was asked, make everything durable, let go.

        Raises:
            StorageError: If a log failed, now or before.
        """
        if self._checker is not None:
            self._checker.cancel()
        if self._acceptor is not None:
            self._acceptor.close()
        for work in (self._upkeep, self._following, self._scrubber):
            if work is not None:
                work.close()
        if self._means is not None:
            await self._end_requests(self._means)
        for work in (self._upkeep, self._following, self._scrubber):
            if work is not None:
                await self._loop.run_in_executor(None, work.join)
        if self._metrics is not None:
            # Until here /readyz says why nobody should come.
            self._metrics.close()
            await self._loop.run_in_executor(None, self._metrics.join)
        await self._loop.run_in_executor(None, self._node.close)

    async def _end_requests(self, means: _Means) -> None:
        """Answer what was asked, and end the threads that did it."""
        self.closing = True
        for context in self._contexts.values():
            context.closing = True
        for connection in list(self._connections):
            connection.drain()
        means.groups.close()
        self._parking.wake_all()
        await self._until(lambda: not any(connection.busy for connection in self._connections))
        await self._loop.run_in_executor(None, means.pipeline.close)
        for connection in list(self._connections):
            connection.close()
        await self._until(lambda: not self._connections)
        for connection in list(self._connections):
            connection.refuse("the server closes")
        assert self._counting is not None
        for workers in (means.readers, means.publishing, means.changes, self._counting):
            await self._loop.run_in_executor(None, workers.close)

    async def _until(self, done: Callable[[], bool]) -> None:
        """Return when *done*, or when the time for it is over."""
        deadline = self._loop.time() + GRACE_SECONDS
        while not done() and self._loop.time() < deadline:
            await asyncio.sleep(0.002)


def _note_leftovers(result: Exception | None) -> None:
    if result is not None:
        _LOGGER.warning("what queries left could not be collected: %s", result)


def _limits(config: BrokerConfig) -> Limits:
    return Limits(
        config.group_min_session_timeout_ms,
        config.group_max_session_timeout_ms,
        config.group_max_size,
        config.group_initial_rebalance_delay_ms,
        config.offsets_retention_minutes * 60_000,
    )


def shown(endpoints: Sequence[Endpoint]) -> str:
    """Return the endpoint that people and programs are told: one that works on this machine."""
    first = endpoints[0]
    return str(first._replace(host="127.0.0.1") if first.host in ("", "localhost") else first)
