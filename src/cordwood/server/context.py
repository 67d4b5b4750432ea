"""What the handlers of requests share."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

from cordwood.broker.tenants import Tenant
from cordwood.config import BrokerConfig
from cordwood.server.budget import Budget
from cordwood.server.connection import Exchange, Prepared
from cordwood.server.metrics_meter import RequestMeter
from cordwood.server.parking import Parking
from cordwood.server.pipeline import Pipeline
from cordwood.server.quotas import OrgQuotas
from cordwood.server.tenant_groups import TenantGroups
from cordwood.setting_kinds import Endpoint

Result = TypeVar("Result")
_LOGGER = logging.getLogger("cordwood.server")


class Workers:
    """Threads for what may block: reading files, changing the catalogue. Called on the loop."""

    def __init__(self, name: str, threads: int, post: Callable[[Callable[[], None]], None]) -> None:
        self._pool = ThreadPoolExecutor(threads, f"cordwood-{name}")
        self._post = post

    def run_for(self, call: Callable[[], Result], then: Callable[[Result | Exception], None]) -> None:
        """Run *call* in a thread, then *then* with its result, or with what it raised, on the loop."""

        def work() -> None:
            result: Result | Exception
            try:
                result = call()
            except Exception as error:
                result = error
            self._post(lambda: then(result))

        self._pool.submit(work)

    def run(self, exchange: Exchange, call: Callable[[], Result], then: Callable[[Result], None]) -> None:
        """Run *call* in a thread, then *then* with its result on the loop.

        What either raises is a bug: it is logged and costs the client of *exchange* its connection.
        """

        def work() -> None:
            try:
                result = call()
            except Exception:
                _LOGGER.exception("a %s request failed", exchange.request.api_key.name)
                self._post(lambda: exchange.fail("the request could not be handled"))
            else:
                self._post(lambda: exchange.attempt(lambda: then(result)))

        self._pool.submit(work)

    def close(self) -> None:
        """Finish what was begun. Not on the loop."""
        self._pool.shutdown()


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


@dataclass(slots=True)
class Context:
    """What the handlers of requests from clients of one org share.

    ``tenant``, ``groups`` and ``config`` have what is that org's and nothing else, so that no handler can
    forget whose request it answers. The rest is everybody's and names topics as the catalogue does, which a
    handler knows of a topic that ``tenant`` found.
    """

    loop: asyncio.AbstractEventLoop
    tenant: Tenant
    config: BrokerConfig
    pipeline: Pipeline
    parking: Parking
    budget: Budget
    readers: Workers
    changes: Workers
    publishing: Workers
    groups: TenantGroups
    meter: RequestMeter
    quotas: OrgQuotas
    listing: Listing = field(default_factory=Listing)
    closing: bool = False

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
