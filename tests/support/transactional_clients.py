"""Transactional producers of three Kafka clients behind one interface."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar, Protocol

import aiokafka
import aiokafka.errors
import confluent_kafka
import kafka
import kafka.errors

# Imported for what it changes as well: kafka-python closes the sockets that it could not connect.
import support.clients  # noqa: F401
from support.patience import SECONDS_MAX

TIMEOUT_MS = 60_000


class Transactional(Protocol):
    """A transactional producer of some client. ``FENCED`` is what it raises when it is fenced."""

    FENCED: ClassVar[Any]

    def init(self) -> None:
        """Take the transactional id over."""

    def begin(self) -> None:
        """Begin a transaction."""

    def send(self, topic: str, value: bytes) -> None:
        """Send a record and wait for its acknowledgement."""

    def commit(self) -> None:
        """Commit."""

    def abort(self) -> None:
        """Abort."""

    def close(self) -> None:
        """Disconnect."""


class ConfluentTransactional:
    """librdkafka."""

    #: Raised when a producer is fenced.
    FENCED: ClassVar[Any] = confluent_kafka.KafkaException

    def __init__(self, bootstrap: str, transactional_id: str, timeout_ms: int = TIMEOUT_MS) -> None:
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap,
                "transactional.id": transactional_id,
                "transaction.timeout.ms": timeout_ms,
                "message.timeout.ms": min(timeout_ms, 30_000),
                "reconnect.backoff.max.ms": 100,
                "linger.ms": 0,
            }
        )

    def init(self) -> None:
        self._producer.init_transactions(SECONDS_MAX)

    def begin(self) -> None:
        self._producer.begin_transaction()

    def send(self, topic: str, value: bytes) -> None:
        self._producer.produce(topic, value, partition=0)
        assert self._producer.flush(SECONDS_MAX) == 0

    def commit(self) -> None:
        self._producer.commit_transaction(SECONDS_MAX)

    def abort(self) -> None:
        self._producer.abort_transaction(SECONDS_MAX)

    def close(self) -> None:
        self._producer.purge()


class AioKafkaTransactional:
    """aiokafka, on an event loop of its own."""

    #: Raised when a producer is fenced.
    FENCED: ClassVar[Any] = aiokafka.errors.KafkaError

    def __init__(self, bootstrap: str, transactional_id: str, timeout_ms: int = TIMEOUT_MS) -> None:
        self._loop = asyncio.new_event_loop()
        self._settings: dict[str, Any] = {
            "bootstrap_servers": bootstrap,
            "transactional_id": transactional_id,
            "transaction_timeout_ms": timeout_ms,
        }
        self._producer: Any = None

    def _run(self, call: Any) -> Any:
        return self._loop.run_until_complete(asyncio.wait_for(call, SECONDS_MAX))

    def init(self) -> None:
        async def start() -> None:
            self._producer = aiokafka.AIOKafkaProducer(**self._settings)
            await self._producer.start()

        self._run(start())

    def begin(self) -> None:
        self._run(self._producer.begin_transaction())

    def send(self, topic: str, value: bytes) -> None:
        self._run(self._producer.send_and_wait(topic, value, partition=0))

    def commit(self) -> None:
        self._run(self._producer.commit_transaction())

    def abort(self) -> None:
        self._run(self._producer.abort_transaction())

    def close(self) -> None:
        if self._producer is not None:
            self._run(self._producer.stop())
        self._loop.close()


class KafkaPythonTransactional:
    """kafka-python."""

    #: Raised when a producer is fenced.
    FENCED: ClassVar[Any] = kafka.errors.KafkaError

    def __init__(self, bootstrap: str, transactional_id: str, timeout_ms: int = TIMEOUT_MS) -> None:
        self._producer = kafka.KafkaProducer(
            bootstrap_servers=bootstrap,
            transactional_id=transactional_id,
            transaction_timeout_ms=timeout_ms,
        )

    def init(self) -> None:
        self._producer.init_transactions()

    def begin(self) -> None:
        self._producer.begin_transaction()

    def send(self, topic: str, value: bytes) -> None:
        self._producer.send(topic, value, partition=0).get(SECONDS_MAX)

    def commit(self) -> None:
        self._producer.commit_transaction()

    def abort(self) -> None:
        self._producer.abort_transaction()

    def close(self) -> None:
        self._producer.close(SECONDS_MAX)


#: The clients by name.
CLIENTS: dict[str, Any] = {
    "confluent-kafka": ConfluentTransactional,
    "aiokafka": AioKafkaTransactional,
    "kafka-python": KafkaPythonTransactional,
}
