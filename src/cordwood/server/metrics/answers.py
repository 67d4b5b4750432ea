"""The answers of a server to requests over HTTP: metrics and health."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cordwood.broker import Node
from cordwood.config import BrokerConfig
from cordwood.errors import LogClosed
from cordwood.server.metrics.lookup import Seen, look_up, see
from cordwood.server.metrics.text import exposition

if TYPE_CHECKING:
    from cordwood.server.server import Server


class ServerAnswers:
    """The source of the answers of a server's `MetricsEndpoint`."""

    def __init__(self, server: Server, node: Node, config: BrokerConfig) -> None:
        self._server = server
        self._node = node
        self._config = config

    def before(self) -> Seen | None:
        """Return the state that only the loop may read, or None before the start. On the loop."""
        server = self._server
        transactions = server.transactions
        if server.groups is None or transactions is None:
            return None
        server.meter.report()
        seen = see(
            server.groups.coordinator,
            server.endpoints[0],
            server.connections,
            server.sessions(),
            transactions.coordinator.ages(transactions.now_ms()),
        )
        return seen._replace(unauthenticated=len(server.doors.entrance), expiries=server.doors.expiries)

    def metrics(self, seen: Seen | None) -> str:
        """Return all metrics as text. In a thread.

        Raises:
            LogClosed: If the server has not started yet or is closed.
        """
        if seen is None:
            raise LogClosed("the server is not ready yet")
        looked_up = list(look_up(self._node, seen, partitions=self._config.metrics_partitions))
        return exposition([*self._node.directory.context.telemetry.collect(), *looked_up])

    def unready(self) -> str | None:
        """Return why the server is not ready, or None if it is. In a thread."""
        groups = self._server.groups
        if groups is None:
            return "the server is not ready yet"
        if self._server.closing:
            return "the server closes"
        if self._server.failure is not None:
            return f"nothing more is stored: {self._server.failure}"
        if self._node.directory.failures.first is not None:
            return f"nothing more is stored: {self._node.directory.failures.first}"
        transactions = self._server.transactions
        if transactions is not None and transactions.is_recovering:
            return "transactions that were left open are not finished yet"
        if not groups.coordinator.loaded:
            return "consumer groups are not loaded yet, or failed to load: see the log of the server"
        return None
