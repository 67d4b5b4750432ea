"""Kafka's clients for Python over TLS, as whom they are told to be: each does one round of everything."""

from __future__ import annotations

import asyncio
import gc
import logging
import ssl
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Protocol

import aiokafka
import aiokafka.abc
import aiokafka.admin
import confluent_kafka
import confluent_kafka.admin
import kafka
from kafka.net.sasl.oauth import AbstractTokenProvider

from support.authority import Issued
from support.patience import SECONDS_MAX

_MS_MAX = min(int(SECONDS_MAX * 1000), 300_000)
#: A token is good for longer than any test.
_TOKEN_SECONDS = 3600.0
CODES = confluent_kafka.KafkaError


@dataclass(frozen=True)
class Login:
    """How a client connects: what it trusts, and as whom. Without a mechanism there is no SASL."""

    ca: Path
    mechanism: str | None = None
    user: str = ""
    password: str = ""
    token: str = ""
    own: Issued | None = None

    @property
    def protocol(self) -> str:
        """The security protocol."""
        return "SSL" if self.mechanism is None else "SASL_SSL"

    def but(self, **changes: Any) -> Login:
        """Return another one with *changes*."""
        return replace(self, **changes)


class SecureClient(Protocol):
    """A client library."""

    name: ClassVar[str]

    def round(self, address: str, login: Login, topic: str, values: Sequence[bytes]) -> list[bytes]:
        """Create the topic, send, read back and list topics; return the values that were read."""

    def refusal(self, address: str, login: Login) -> str:
        """Try to connect in vain; return what the client says."""


@contextmanager
def logged(name: str) -> Iterator[list[str]]:
    """Collect what a library logs: some say only there why a broker did not let them in."""
    said: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage())

    logger, handler = logging.getLogger(name), Handler()
    logger.addHandler(handler)
    before, logger.propagate = logger.propagate, False
    try:
        yield said
    finally:
        logger.removeHandler(handler)
        logger.propagate = before


class SecureConfluent:
    """confluent-kafka."""

    name: ClassVar[str] = "confluent-kafka"

    def _settings(self, address: str, login: Login) -> dict[str, Any]:
        found: dict[str, Any] = {
            "bootstrap.servers": address,
            "security.protocol": login.protocol,
            "ssl.ca.location": str(login.ca),
            "log_level": 0,
        }
        if login.own is not None:
            found |= {
                "ssl.certificate.location": str(login.own.certificate),
                "ssl.key.location": str(login.own.key),
            }
        if login.mechanism == "OAUTHBEARER":
            found["oauth_cb"] = lambda _: (login.token, time.time() + _TOKEN_SECONDS)
        elif login.mechanism is not None:
            found |= {"sasl.username": login.user, "sasl.password": login.password}
        if login.mechanism is not None:
            found["sasl.mechanism"] = login.mechanism
        return found

    def round(self, address: str, login: Login, topic: str, values: Sequence[bytes]) -> list[bytes]:
        """See `SecureClient`."""
        settings: dict[str, Any] = self._settings(address, login)
        admin = confluent_kafka.admin.AdminClient(settings)
        new = confluent_kafka.cimpl.NewTopic(topic, 1, 1)
        admin.create_topics([new])[topic].result(SECONDS_MAX)
        assert topic in admin.list_topics(timeout=SECONDS_MAX).topics
        producer = confluent_kafka.Producer({**settings, "enable.idempotence": True, "linger.ms": 0})
        for value in values:
            producer.produce(topic, value)
        assert producer.flush(SECONDS_MAX) == 0
        consumer = confluent_kafka.Consumer(
            {**settings, "group.id": topic, "auto.offset.reset": "earliest", "fetch.wait.max.ms": 10}
        )
        with closing(consumer):
            consumer.subscribe([topic])
            messages: list[Any] = []
            while len(messages) < len(values):
                messages += consumer.consume(len(values) - len(messages), 0.1)
            consumer.commit(asynchronous=False)
        assert [message.error() for message in messages] == [None] * len(messages)
        return [message.value() for message in messages]

    def refusal(self, address: str, login: Login) -> str:
        """See `SecureClient`."""
        said: list[str] = []
        settings = {**self._settings(address, login), "error_cb": lambda error: said.append(str(error))}
        admin = confluent_kafka.admin.AdminClient(settings)
        while not said:
            try:
                admin.list_topics(timeout=0.1)
            except confluent_kafka.KafkaException:
                admin.poll(0)
            else:
                raise AssertionError("it was let in")
        return said[0]


class _AsyncToken(aiokafka.abc.AbstractTokenProvider):  # type: ignore[misc]
    def __init__(self, token: str) -> None:
        self._token = token

    async def token(self) -> str:
        return self._token


class SecureAioKafka:
    """aiokafka."""

    name: ClassVar[str] = "aiokafka"

    def _settings(self, address: str, login: Login) -> dict[str, Any]:
        context = ssl.create_default_context(cafile=login.ca)
        if login.own is not None:
            context.load_cert_chain(login.own.certificate, login.own.key)
        found: dict[str, Any] = {
            "bootstrap_servers": address,
            "security_protocol": login.protocol,
            "ssl_context": context,
            "request_timeout_ms": _MS_MAX,
        }
        if login.mechanism is not None:
            found["sasl_mechanism"] = login.mechanism
        if login.mechanism == "OAUTHBEARER":
            found["sasl_oauth_token_provider"] = _AsyncToken(login.token)
        elif login.mechanism is not None:
            found |= {"sasl_plain_username": login.user, "sasl_plain_password": login.password}
        return found

    def round(self, address: str, login: Login, topic: str, values: Sequence[bytes]) -> list[bytes]:
        """See `SecureClient`."""
        return asyncio.run(self._round(address, login, topic, values))

    async def _round(self, address: str, login: Login, topic: str, values: Sequence[bytes]) -> list[bytes]:
        settings = self._settings(address, login)
        admin = aiokafka.admin.AIOKafkaAdminClient(**settings)
        await admin.start()
        try:
            answer = await admin.create_topics([aiokafka.admin.NewTopic(topic, 1, 1)])
            assert [each[1] for each in answer.topic_errors] == [0]
            assert topic in await admin.list_topics()
        finally:
            await admin.close()
        producer = aiokafka.AIOKafkaProducer(**settings, enable_idempotence=True)
        await producer.start()
        try:
            for value in values:
                await producer.send_and_wait(topic, value)
        finally:
            await producer.stop()
        consumer = aiokafka.AIOKafkaConsumer(
            topic, **settings, group_id=topic, auto_offset_reset="earliest", fetch_max_wait_ms=10
        )
        await consumer.start()
        try:
            return [(await consumer.getone()).value for _ in values]
        finally:
            await consumer.stop()

    def refusal(self, address: str, login: Login) -> str:
        """See `SecureClient`."""

        async def attempt() -> str:
            producer = aiokafka.AIOKafkaProducer(**self._settings(address, login))
            try:
                await producer.start()
            except aiokafka.errors.KafkaError as error:
                return f"{type(error).__name__}: {error}"
            finally:
                await producer.stop()
            raise AssertionError("it was let in")

        with logged("aiokafka") as said:
            return " ".join((asyncio.run(attempt()), *said))


class _Token(AbstractTokenProvider):  # type: ignore[misc]
    def __init__(self, token: str) -> None:
        super().__init__()
        self._token = token

    def token(self) -> str:
        """Return the token."""
        return self._token

    def extensions(self) -> dict[str, str]:
        """Return none."""
        return {}


class SecureKafkaPython:
    """kafka-python."""

    name: ClassVar[str] = "kafka-python"

    def _settings(self, address: str, login: Login) -> dict[str, Any]:
        found: dict[str, Any] = {
            "bootstrap_servers": address,
            "security_protocol": login.protocol,
            "ssl_cafile": str(login.ca),
            "request_timeout_ms": _MS_MAX,
        }
        if login.own is not None:
            found |= {"ssl_certfile": str(login.own.certificate), "ssl_keyfile": str(login.own.key)}
        if login.mechanism is not None:
            found["sasl_mechanism"] = login.mechanism
        if login.mechanism == "OAUTHBEARER":
            found["sasl_oauth_token_provider"] = _Token(login.token)
        elif login.mechanism is not None:
            found |= {"sasl_plain_username": login.user, "sasl_plain_password": login.password}
        return found

    def round(self, address: str, login: Login, topic: str, values: Sequence[bytes]) -> list[bytes]:
        """See `SecureClient`."""
        settings = self._settings(address, login)
        with kafka.KafkaAdminClient(**settings) as admin:
            admin.create_topics({topic: {"num_partitions": 1, "replication_factor": 1}}, timeout_ms=_MS_MAX)
            assert topic in admin.list_topics()
        longer = {"enable_idempotence": True, "delivery_timeout_ms": 2 * _MS_MAX}
        with closing(kafka.KafkaProducer(**settings, **longer)) as producer:
            for sent in [producer.send(topic, value) for value in values]:
                sent.get(SECONDS_MAX)
        consumer = kafka.KafkaConsumer(
            topic, **settings, group_id=topic, auto_offset_reset="earliest", fetch_max_wait_ms=10
        )
        with closing(consumer):
            return [next(consumer).value for _ in values]

    def refusal(self, address: str, login: Login) -> str:
        """See `SecureClient`."""
        made: list[Any] = []

        def make(**given: Any) -> Any:
            made.append(kafka.KafkaAdminClient.DEFAULT_CONFIG["kafka_client"](**given))
            return made[0]

        settings = {**self._settings(address, login), "bootstrap_timeout_ms": 300, "kafka_client": make}
        with warnings.catch_warnings(), logged("kafka") as said:
            # It forgets sockets on which it was refused.
            warnings.simplefilter("ignore", ResourceWarning)
            try:
                with kafka.KafkaAdminClient(**settings):
                    raise AssertionError("it was let in")
            except kafka.errors.KafkaError as error:
                said.insert(0, f"{type(error).__name__}: {error}")
            # A client that does not start leaves its thread and its connections behind.
            made[0].close()
            made.pop()._manager._net.stop()
            gc.collect()
        return " ".join(said)


SECURE_CLIENTS: tuple[SecureClient, ...] = (SecureConfluent(), SecureAioKafka(), SecureKafkaPython())
