"""The context that request handlers share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

from cordwood.broker import FetchSessions, Node, Tenant
from cordwood.config import BrokerConfig, Endpoint, LayeredConfig
from cordwood.server.connections import Budget, Prepared
from cordwood.server.metering import RequestMeter
from cordwood.server.parking import Parking
from cordwood.server.pipeline import Pipeline
from cordwood.server.quotas import OrgQuotas
from cordwood.server.tenant_groups import TenantGroups
from cordwood.server.threads import Workers


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

    ``apply`` applies changed settings to the running server, on the loop.
    """

    node: Node
    apply: Callable[[], None]


@dataclass(slots=True)
class Context:
    """The context of handlers for clients of one org.

    ``tenant``, ``groups`` and ``layers`` contain only data of that org, so that no handler can return data of
    another. ``administration`` is None except for org 0. The other objects are shared by all orgs and take
    topics by `BrokerTopic.key` or ``BrokerTopic.entry``, which a handler gets only from ``tenant``.
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
    meter: RequestMeter
    quotas: OrgQuotas
    sessions: FetchSessions
    administration: Administration | None = None
    listing: Listing = field(default_factory=Listing)
    answering: set[asyncio.Task[None]] = field(default_factory=set)
    closing: bool = False

    @property
    def config(self) -> BrokerConfig:
        """The broker's settings that the org may see."""
        return self.layers.config

    def advertised(self, local: Endpoint) -> Endpoint:
        """Return the address to advertise to a client that connected to *local*.

        Without ``advertised.listeners`` it is *local*, an address that is routable for this client. A client
        on the IPv6 loopback gets a host name, because not all clients accept an IPv6 address. The address of
        another org's listener is never returned.
        """
        configured = self.config.advertised_listeners.each
        for endpoint in configured:
            if endpoint.name == local.name:
                return endpoint
        if configured:
            return configured[0]
        return local._replace(host="localhost") if local.host == "::1" else local
