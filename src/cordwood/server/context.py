"""The context that request handlers share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field

from cordwood.broker import PARTITIONS_MAX, FetchSessions, Node, Tenant
from cordwood.config import BrokerConfig, Endpoint, LayeredConfig, SecurityProtocol
from cordwood.host import Clock, process
from cordwood.server.audit import Audit, RequestWatch
from cordwood.server.connections import Budget, Exchange, Prepared
from cordwood.server.groups import Groups, TenantGroups
from cordwood.server.metering import RequestMeter
from cordwood.server.parking import Parking
from cordwood.server.pipeline import Pipeline
from cordwood.server.quotas import OrgQuotas, StoredQuotas
from cordwood.server.security import Authorization, Rights, StoredAcls, StoredUsers
from cordwood.server.threads import ServerThreads, Workers
from cordwood.server.transactions import TenantTransactions, Transactions

#: For how many orgs there is a share if the names of principals say their orgs.
ORGS_BY_NAME = 16


class Listing:
    """A cache of encoded answers that list all topics, valid until the topics change. On the loop only.

    It holds few answers: clients of one org use one or two versions, and an answer may be many megabytes.
    """

    KEPT_MAX = 2

    def __init__(self) -> None:
        self._changes = -1
        self._kept: dict[Hashable, Prepared] = {}

    def find(self, changes: int, asked: Hashable) -> Prepared | None:
        """Return the cached answer to *asked* if the topics have not changed since, else None."""
        return self._kept.get(asked) if changes == self._changes else None

    def keep(self, changes: int, asked: Hashable, answer: Prepared) -> None:
        """Cache an answer that was started when the topics' change number was *changes*."""
        if changes != self._changes:
            self._kept.clear()
            self._changes = changes
        while len(self._kept) >= self.KEPT_MAX:
            del self._kept[next(iter(self._kept))]
        self._kept[asked] = answer


@dataclass(frozen=True, slots=True)
class Administration:
    """Operations on the whole broker, for operators only.

    ``apply`` applies changed settings to the running server, on the loop. ``users`` are changed in the thread
    for changes.
    """

    node: Node
    apply: Callable[[], None]
    users: StoredUsers


@dataclass(slots=True)
class Context:
    """The context of handlers for clients of one org.

    ``tenant``, ``groups``, ``transactions`` and ``layers`` contain only data of that org, so that no handler
    can return data of another. ``administration`` is None except for org 0. The other objects are shared by
    all orgs and take topics by `BrokerTopic.key` or ``BrokerTopic.entry``, which a handler gets only from
    ``tenant``. ``authorization`` decides by ``acls``; both are None if no authorizer is configured. ``audit``
    and ``watch`` are None if there is no audit log.
    """

    loop: asyncio.AbstractEventLoop
    tenant: Tenant
    node: Node
    layers: LayeredConfig
    pipeline: Pipeline
    parking: Parking
    budget: Budget
    readers: Workers
    changes: Workers
    publishing: Workers
    groups: TenantGroups
    transactions: TenantTransactions
    meter: RequestMeter
    quotas: OrgQuotas
    client_quotas: StoredQuotas
    sessions: FetchSessions
    administration: Administration | None = None
    authorization: Authorization | None = None
    #: The addresses to advertise to clients of each listener, also of one that clients of several orgs share.
    advertised_listeners: Sequence[Endpoint] = ()
    audit: Audit | None = None
    watch: RequestWatch | None = None
    acls: StoredAcls | None = None
    listing: Listing = field(default_factory=Listing)
    answering: set[asyncio.Task[None]] = field(default_factory=set)
    closing: bool = False

    @property
    def config(self) -> BrokerConfig:
        """The broker's settings that the org may see."""
        return self.layers.config

    def rights(self, exchange: Exchange) -> Rights:
        """Return what the client of *exchange* may do."""
        return Rights(self.authorization, exchange)

    def advertised(self, local: Endpoint) -> Endpoint:
        """Return the address to advertise to a client that connected to *local*.

        Without ``advertised.listeners`` it is *local*, an address that is routable for this client. A client
        on the IPv6 loopback gets a host name, because not all clients accept an IPv6 address. The address of
        a listener of another org is never returned, unless the client came by it, nor that of a plain
        listener to a client of a secure one.
        """
        for endpoint in self.advertised_listeners:
            if endpoint.name == local.name:
                return endpoint
        configured = self.config.advertised_listeners.each
        if configured and self.config.security_of(local.name) is SecurityProtocol.PLAINTEXT:
            return configured[0]
        return local._replace(host="localhost") if local.host == "::1" else local


@dataclass(frozen=True, slots=True)
class ServerMeans:
    """The objects that handlers of all orgs share.

    ``acls_of`` returns the ACLs of an org, ``client_quotas_of`` the quotas of its clients, ``apply`` applies
    changed settings to the running server.
    """

    loop: asyncio.AbstractEventLoop
    node: Node
    pipeline: Pipeline
    parking: Parking
    budget: Budget
    threads: ServerThreads
    groups: Groups
    transactions: Transactions
    meter: RequestMeter
    clock: Clock
    audit: Audit | None
    users: StoredUsers
    acls_of: Callable[[int], StoredAcls | None]
    client_quotas_of: Callable[[int], StoredQuotas]
    apply: Callable[[], None]


class OrgContexts:
    """The context of each org that has a listener or, by the rules for principals, had a client."""

    def __init__(self, means: ServerMeans, config: BrokerConfig) -> None:
        """Create the contexts of all orgs with a listener."""
        self.means = means
        self.closing = False
        self._config = config
        orgs = {config.org_of(endpoint.name) for endpoint in config.listeners.each}
        by_rule = config.tenant_rules.orgs()
        # What there is divides by the number of orgs, as far as it is known.
        self._shares = len(orgs) + ORGS_BY_NAME if by_rule is None else len(orgs | by_rule)
        self._of: dict[int, Context] = {org: self._new(org) for org in sorted(orgs)}

    def __iter__(self) -> Iterator[Context]:
        return iter(list(self._of.values()))

    def __getitem__(self, org: int) -> Context:
        """Return the context of handlers for clients of *org*, created for its first client."""
        if org not in self._of:
            self._of[org] = self._new(org)
        return self._of[org]

    def reconfigure(self, layers: LayeredConfig) -> None:
        """Apply *layers*."""
        self._config = layers.config
        for org, context in self._of.items():
            context.layers = layers.seen_by(org)
            context.quotas.reconfigure(layers.config.quota_of(org))

    def _new(self, org: int) -> Context:
        config, means, threads = self._config, self.means, self.means.threads
        tenant, acls = Tenant(means.node, config, org), means.acls_of(org)
        client_quotas = means.client_quotas_of(org)
        return Context(
            loop=means.loop,
            tenant=tenant,
            node=means.node,
            layers=means.node.directory.settings.layers.seen_by(org),
            pipeline=means.pipeline,
            parking=means.parking,
            budget=means.budget,
            readers=threads.readers,
            changes=threads.changes,
            publishing=threads.publishing,
            groups=TenantGroups(means.groups, org, means.loop),
            transactions=TenantTransactions(
                means.transactions,
                org,
                means.loop,
                lambda: threads.changes.call(means.node.new_producer_id),
            ),
            meter=means.meter,
            quotas=OrgQuotas(
                config.quota_of(org),
                org,
                client_quotas.limits,
                tenant.stored_bytes,
                threads.counting.run_for,
                means.clock,
            ),
            client_quotas=client_quotas,
            # An equal share for each org: consumers of one org cannot evict the sessions of another.
            sessions=FetchSessions(
                -(-config.fetch_session_slots // self._shares),
                process.new_session_id,
                lambda: means.clock.monotonic_ns() // 1_000_000,
                PARTITIONS_MAX // self._shares,
            ),
            audit=means.audit,
            watch=None if means.audit is None else RequestWatch(means.audit, tenant),
            administration=None if org else Administration(means.node, means.apply, means.users),
            authorization=acls,
            acls=acls,
            advertised_listeners=config.advertised_listeners.each,
            closing=self.closing,
        )
