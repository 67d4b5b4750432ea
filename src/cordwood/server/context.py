"""What the handlers of requests share."""

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
    """Answers that list all topics, encoded, until the topics change. On the loop only.

    A few of them: clients of one org ask in one version or two, and an answer may be many megabytes.
    """

    KEPT_MAX = 2

    def __init__(self) -> None:
        self._changes = -1
        self._kept: dict[Hashable, Prepared] = {}

    def find(self, changes: int, asked: Hashable) -> Prepared | None:
        """Return the answer to *asked*, if it was made when the topics were what they are now."""
        return self._kept.get(asked) if changes == self._changes else None

    def keep(self, changes: int, asked: Hashable, answer: Prepared) -> None:
        """Keep an answer that was begun when *changes* was the topics' number."""
        if changes != self._changes:
            self._kept.clear()
            self._changes = changes
        while len(self._kept) >= self.KEPT_MAX:
            del self._kept[next(iter(self._kept))]
        self._kept[asked] = answer


@dataclass(frozen=True, slots=True)
class Administration:
    """What operators may do to the broker as a whole, beyond what each org may do to what it has.

    ``apply`` brings everything that serves requests in line with the settings, on the loop.
    """

    node: Node
    apply: Callable[[], None]


@dataclass(slots=True)
class Context:
    """What the handlers of requests from clients of one org share.

    ``tenant``, ``groups`` and ``layers`` contain only what belongs to that org, so that no handler can
    forget whose request it answers. ``administration`` is there for clients of org 0 only. The rest is
    shared by all orgs and takes topics by `BrokerTopic.key` or ``BrokerTopic.entry``, which a handler has
    only of a topic that ``tenant`` found.
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
        """The broker's settings, as far as the org may know them."""
        return self.layers.config

    def advertised(self, local: Endpoint) -> Endpoint:
        """Return where a client that reached us at *local* is to connect.

        Unless told otherwise, that is where it did: an address that it has shown to be routable. A client of
        the IPv6 loopback gets a name, since not all of them take an IPv6 address for one. It is never sent to
        a listener of another org: there it would be another's client.
        """
        configured = self.config.advertised_listeners.each
        for endpoint in configured:
            if endpoint.name == local.name:
                return endpoint
        if configured:
            return configured[0]
        return local._replace(host="localhost") if local.host == "::1" else local
