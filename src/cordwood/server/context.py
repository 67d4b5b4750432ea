"""What the handlers of requests share."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from cordwood.broker.node import Node
from cordwood.config import BrokerConfig, Endpoint
from cordwood.server.budget import Budget
from cordwood.server.connection import Exchange
from cordwood.server.groups import Groups
from cordwood.server.metrics_meter import RequestMeter
from cordwood.server.parking import Parking
from cordwood.server.pipeline import Pipeline

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


@dataclass(slots=True)
class Context:
    """What the handlers of requests share."""

    loop: asyncio.AbstractEventLoop
    node: Node
    config: BrokerConfig
    pipeline: Pipeline
    parking: Parking
    budget: Budget
    readers: Workers
    changes: Workers
    publishing: Workers
    groups: Groups
    meter: RequestMeter
    closing: bool = False

    def advertised(self, local: Endpoint) -> Endpoint:
        """Return where a client that reached us at *local* is to connect.

        Unless told otherwise, that is where it did: an address that it has shown to be routable. A client of
        the IPv6 loopback gets a name, since not all of them take an IPv6 address for one.
        """
        configured = self.config.advertised_listeners.each
        for endpoint in configured:
            if endpoint.name == local.name:
                return endpoint
        if configured:
            return configured[0]
        return local._replace(host="localhost") if local.host == "::1" else local
