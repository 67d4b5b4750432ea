"""Calls for strangers, which take turns by their addresses: a flood from one does not keep others waiting."""

from __future__ import annotations

import ipaddress
import logging
from collections import OrderedDict, deque
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Protocol

from cordwood.server.connections import Exchange

_LOGGER = logging.getLogger("cordwood.server")


class CallRunner(Protocol):
    """Threads; `Workers` is one."""

    def run_for(self, call: Callable[[], Any], then: Callable[[Any], None]) -> None:
        """Run *call* in a thread, then *then* with its result or exception on the loop."""


class _WaitingCall(NamedTuple):
    exchange: Exchange
    call: Callable[[], Any]
    then: Callable[[Any], None]


class FairWorkers:
    """Runs calls in threads, *at_once* at a time, and the next one of each address in turn. On the loop.

    The calls of one address run in their order.
    """

    def __init__(self, workers: CallRunner, at_once: int) -> None:
        self._workers = workers
        self._left = at_once
        self._waiting: OrderedDict[str, deque[_WaitingCall]] = OrderedDict()

    def run(self, exchange: Exchange, call: Callable[[], Any], then: Callable[[Any], None]) -> None:
        """Run *call* in a thread when it is its turn, then *then* with its result on the loop.

        An exception of either is a bug: it is logged, and the connection of *exchange* is closed.
        """
        queue = self._waiting.setdefault(_place_of(exchange.peer), deque())
        queue.append(_WaitingCall(exchange, call, then))
        self._start()

    def _start(self) -> None:
        while self._left and self._waiting:
            address, queue = self._waiting.popitem(last=False)
            exchange, call, then = queue.popleft()
            if queue:
                # Behind all others.
                self._waiting[address] = queue
            counted = call if exchange.time is None else partial(exchange.time.work, call)
            try:
                self._workers.run_for(counted, partial(self._ended, exchange, then))
            except RuntimeError:
                exchange.fail("the server is closing")
            else:
                self._left -= 1

    def _ended(self, exchange: Exchange, then: Callable[[Any], None], result: Any) -> None:
        self._left += 1
        if isinstance(result, Exception):
            _LOGGER.error("a %s request failed", exchange.request.api_key.name, exc_info=result)
            exchange.fail("the request could not be handled")
        else:
            exchange.attempt(lambda: then(result))
        self._start()


def _place_of(peer: str) -> str:
    """Return the address of a client; of IPv6 the network, of which one machine has all addresses."""
    address = peer.removeprefix("/")
    if ":" not in address:
        return address
    try:
        return str(int(ipaddress.IPv6Address(address)) >> 64)
    except ValueError:
        return address
