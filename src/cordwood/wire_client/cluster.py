"""A cluster by its brokers: who leads which partition, and requests to any broker or to a certain one."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from cordwood.errors import CordwoodError
from cordwood.protocol import NULL_ID, ApiKey
from cordwood.protocol.messages import MetadataRequest, MetadataResponse
from cordwood.wire_client.connection import BrokerConnection

_FIRST_PAUSE_SECONDS, _PAUSE_SECONDS_MAX = 0.05, 1.0
_NO_LEADER = -1


@dataclass(frozen=True, slots=True)
class ClusterTopic:
    """A topic of a cluster. ``leaders`` has the node of each partition, and its leader epoch; -1 for none.

    ``topic_id`` is written as a data directory writes it; None at brokers that have no ids.
    """

    name: str
    topic_id: str | None
    is_internal: bool
    error_code: int
    leaders: Mapping[int, tuple[int, int]] = field(default_factory=dict)

    @property
    def wire_id(self) -> bytes:
        """The id in messages."""
        return NULL_ID if self.topic_id is None else uuid.UUID(self.topic_id).bytes


class KafkaCluster:
    """The brokers behind an address. One thread; connections stay open until `close`."""

    def __init__(self, settings: Mapping[str, Any], seconds: float) -> None:
        """Take *settings* of the Kafka client with its address; *seconds* is the limit for an answer."""
        self.address = str(settings["bootstrap.servers"])
        self.seconds = seconds
        self.cluster_id: str | None = None
        self.topics: dict[str, ClusterTopic] = {}
        self._settings = dict(settings)
        self._named = [each.strip() for each in self.address.split(",") if each.strip()]
        self._brokers: dict[int, str] = {}
        self._connections: dict[str, BrokerConnection] = {}

    def close(self) -> None:
        """Close the connections."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    @property
    def nodes(self) -> list[int]:
        """The ids of the brokers, as of the last `refresh`."""
        return sorted(self._brokers)

    def leader(self, topic: str, partition: int) -> int | None:
        """Return the node that leads a partition, None without one, as of the last `refresh`."""
        found = self.topics.get(topic)
        node = _NO_LEADER if found is None else found.leaders.get(partition, (_NO_LEADER, 0))[0]
        return node if node in self._brokers else None

    def refresh(self) -> None:
        """Ask which brokers, topics and leaders there are.

        Raises:
            CordwoodError: If no broker answers for as long as the limit says.
        """
        request = MetadataRequest(topics=None, allow_auto_topic_creation=False)
        answer: MetadataResponse = self.ask_any(ApiKey.METADATA, request)
        if answer.cluster_id is not None:
            self.cluster_id = answer.cluster_id
        self._brokers = {each.node_id: f"{each.host}:{each.port}" for each in answer.brokers}
        self.topics = {
            each.name: ClusterTopic(
                each.name,
                None
                if bytes(each.topic_id) in (NULL_ID, b"")
                else str(uuid.UUID(bytes=bytes(each.topic_id))),
                each.is_internal,
                each.error_code,
                {one.partition_index: (one.leader_id, one.leader_epoch) for one in each.partitions},
            )
            for each in answer.topics
            if each.name is not None
        }

    def ask_any(self, api_key: ApiKey, body: Any, at_most: int | None = None) -> Any:
        """Return the answer of any broker; all are tried, again and again, until the limit is over.

        Raises:
            CordwoodError: If none answers; names the address.
        """
        for pause in self.pauses():
            error: OSError | None = None
            for address in dict.fromkeys((*self._connections, *self._named, *self._brokers.values())):
                try:
                    return self._ask(address, api_key, body, at_most, 0.0)
                except OSError as found:
                    error = found
            if pause is None:
                raise CordwoodError(f"{self.address} did not answer: {error}") from error
            time.sleep(pause)
        raise AssertionError

    def ask(
        self, node: int, api_key: ApiKey, body: Any, at_most: int | None = None, more_seconds: float = 0.0
    ) -> Any:
        """Return the answer of broker *node*, asked once.

        Raises:
            OSError: If it does not answer, or is not known.
            CordwoodError: If it does not know such requests, or answers with something else.
        """
        address = self._brokers.get(node)
        if address is None:
            raise ConnectionError(f"there is no broker {node}")
        return self._ask(address, api_key, body, at_most, more_seconds)

    def version(self, node: int, api_key: ApiKey) -> int:
        """Return the newest version of an API that broker *node* and we know, -1 for none."""
        address = self._brokers.get(node)
        if address is None:
            raise ConnectionError(f"there is no broker {node}")
        with self._used(address) as connection:
            return connection.version(api_key)

    def pauses(self) -> Iterator[float | None]:
        """Yield how long to wait before each further try, and at last, when the limit is over, None."""
        deadline, pause = time.monotonic() + self.seconds, _FIRST_PAUSE_SECONDS
        while time.monotonic() < deadline:
            yield pause
            pause = min(pause * 2, _PAUSE_SECONDS_MAX)
        yield None

    def _ask(self, address: str, api_key: ApiKey, body: Any, at_most: int | None, more_seconds: float) -> Any:
        with self._used(address) as connection:
            version = connection.version(api_key, at_most)
            if version < 0:
                raise CordwoodError(f"{address} has no version of {api_key.name} that is known here")
            return connection.ask(api_key, version, body, more_seconds)

    @contextlib.contextmanager
    def _used(self, address: str) -> Iterator[BrokerConnection]:
        """Open or reuse a connection. After any failure it is closed: its next answer may be to this one."""
        connection = self._connections.get(address)
        if connection is not None and connection.is_expiring:
            self._connections.pop(address).close()
            connection = None
        if connection is None:
            connection = self._connections[address] = BrokerConnection(address, self._settings, self.seconds)
        try:
            yield connection
        except BaseException:
            connection.close()
            # After Ctrl-C this may run when `close` has already forgotten it.
            self._connections.pop(address, None)
            raise
