"""Transactional producers of three Kafka clients behind one small interface."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from functools import cache
from threading import Event, Thread
from typing import Any, Protocol

import aiokafka
import aiokafka.errors
import confluent_kafka
import kafka
import kafka.errors

import support.clients  # noqa: F401 - mends kafka-python, which leaves the sockets of failed connections open
from support.patience import SECONDS_MAX, Limit

#: (topic, partition, value)
Outgoing = tuple[str, int, str]
#: Offsets to commit, by (topic, partition).
Offsets = Mapping[tuple[str, int], int]
#: A client that got no answer for this long does not get one any more: every restart is much shorter.
_MS_MAX = min(int(SECONDS_MAX * 1000), 300_000)
_RECONNECT_MS = 50
#: The time that a call is given before it is made again. One whose request was lost with the connection waits
#: for the whole of it. A call that ends takes a hundredth of that.
_CALL_SECONDS = 2.0
#: The pause between two looks at a call that has not ended.
_PAUSE_SECONDS = 0.002
#: Longer than any restart, so that transactions survive it.
_TRANSACTION_MS = 120_000
_TIMED_OUT = confluent_kafka.KafkaError(confluent_kafka.KafkaError._TIMED_OUT)
ClientError = (confluent_kafka.KafkaException, aiokafka.errors.KafkaError, kafka.errors.KafkaError)


class Producer(Protocol):
    """A transactional producer that has its id. Errors of its client are raised as `ClientError`."""

    def begin(self) -> None:
        """Begin a transaction."""

    def send(self, records: Sequence[Outgoing]) -> list[int]:
        """Send records and return their offsets, once all of them are acknowledged."""

    def send_offsets(self, group: str, offsets: Offsets) -> None:
        """Add offsets of a group to the transaction."""

    def commit(self) -> None:
        """Commit the transaction."""

    def abort(self) -> None:
        """Abort the transaction."""

    def close(self) -> None:
        """End the producer, whatever state it is in, without waiting for a server."""


# --- confluent-kafka ----------------------------------------------------------------------------------


def confluent_settings(bootstrap: str) -> dict[str, Any]:
    """Return what producers and consumers of confluent-kafka have in common."""
    return {
        "bootstrap.servers": bootstrap,
        "reconnect.backoff.ms": _RECONNECT_MS,
        "reconnect.backoff.max.ms": 2 * _RECONNECT_MS,
        "retry.backoff.ms": _RECONNECT_MS,
        # That a server which is killed is gone is no news.
        "log_level": 0,
    }


class Confluent:
    """A producer of confluent-kafka."""

    def __init__(self, bootstrap: str, transactional_id: str) -> None:
        self._producer = confluent_kafka.Producer(
            {
                **confluent_settings(bootstrap),
                "transactional.id": transactional_id,
                "transaction.timeout.ms": _TRANSACTION_MS,
                "message.timeout.ms": _TRANSACTION_MS,
                "linger.ms": 1,
            }
        )
        self._abandoned = False
        self._retrying(self._producer.init_transactions, _CALL_SECONDS)

    @staticmethod
    def _retrying(call: Callable[..., object], *arguments: object) -> None:
        """Call until it succeeds, or fails with an error that librdkafka does not let a caller retry."""
        limit = Limit()
        while True:
            try:
                call(*arguments)
                return
            except confluent_kafka.KafkaException as error:
                if not error.args[0].retriable() or limit.passed():
                    raise

    def begin(self) -> None:
        self._producer.begin_transaction()

    def send(self, records: Sequence[Outgoing]) -> list[int]:
        offsets: dict[int, int] = {}
        errors: list[confluent_kafka.KafkaError] = []

        def told(number: int) -> Any:
            def note(error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message) -> None:
                if error is not None:
                    errors.append(error)
                else:
                    offsets[number] = message.offset() or 0

            return note

        for number, (topic, partition, value) in enumerate(records):
            self._producer.produce(topic, value.encode(), partition=partition, on_delivery=told(number))
        left = self._producer.flush(SECONDS_MAX)
        if errors or left:
            raise confluent_kafka.KafkaException(errors[0] if errors else _TIMED_OUT)
        return [offsets[number] for number in range(len(records))]

    def send_offsets(self, group: str, offsets: Offsets) -> None:
        places = [confluent_kafka.TopicPartition(*place, at) for place, at in offsets.items()]
        arguments = (places, _metadata_of(group), _CALL_SECONDS)
        try:
            _abandoning(self._retrying, self._producer.send_offsets_to_transaction, *arguments)
        except _Abandoned:
            self._abandoned = True
            raise

    def commit(self) -> None:
        self._retrying(self._producer.commit_transaction, _CALL_SECONDS)

    def abort(self) -> None:
        if self._abandoned:
            raise _Abandoned(_TIMED_OUT)
        self._retrying(self._producer.abort_transaction, _CALL_SECONDS)

    def close(self) -> None:
        self._producer.purge()
        self._producer.flush(0)


class _Abandoned(confluent_kafka.KafkaException):
    """A call that did not end; its producer is of no use any more."""


def _abandoning(call: Callable[..., object], *arguments: object) -> None:
    """Call, and raise `_Abandoned` if that does not end within twice the time that the call is given.

    In librdkafka 2.16 a commit of offsets whose connection broke may outlast its time limit by minutes.
    """
    ended = Event()
    errors: list[BaseException] = []

    def run() -> None:
        try:
            call(*arguments)
        except BaseException as error:
            errors.append(error)
        ended.set()

    Thread(target=run, daemon=True, name="a call of librdkafka").start()
    limit = Limit(2 * _CALL_SECONDS)
    while not ended.wait(0.5):
        if limit.passed():
            raise _Abandoned(_TIMED_OUT)
    if errors:
        raise errors[0]


@cache
def _metadata_of(group: str) -> object:
    """Return the metadata of a consumer that is no member of its group: it has no more than the name."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": "localhost:1", "group.id": group, "log_level": 0}
    )
    try:
        return consumer.consumer_group_metadata()
    finally:
        consumer.close()


# --- aiokafka -----------------------------------------------------------------------------------------


class AioKafka:
    """A producer of aiokafka, whose event loop runs while it is called."""

    def __init__(self, bootstrap: str, transactional_id: str) -> None:
        self._runner = asyncio.Runner()
        try:
            self._producer = self._runner.run(self._start(bootstrap, transactional_id))
        except BaseException:
            self._runner.close()
            raise

    @staticmethod
    async def _start(bootstrap: str, transactional_id: str) -> Any:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=bootstrap,
            transactional_id=transactional_id,
            transaction_timeout_ms=_TRANSACTION_MS,
            request_timeout_ms=_MS_MAX,
            retry_backoff_ms=_RECONNECT_MS,
            linger_ms=1,
        )
        try:
            await producer.start()
        except BaseException:
            await producer.stop()
            raise
        return producer

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            self._runner.run(work)
        except AssertionError as error:
            # What aiokafka says of a producer that had a fatal error.
            raise aiokafka.errors.KafkaError(str(error)) from error

    def begin(self) -> None:
        self._run(self._producer.begin_transaction())

    def send(self, records: Sequence[Outgoing]) -> list[int]:
        return self._runner.run(self._send(records))

    async def _send(self, records: Sequence[Outgoing]) -> list[int]:
        sent = [
            await self._producer.send(topic, value.encode(), partition=partition)
            for topic, partition, value in records
        ]
        return [(await one).offset for one in sent]

    def send_offsets(self, group: str, offsets: Offsets) -> None:
        places = {aiokafka.TopicPartition(*place): at for place, at in offsets.items()}
        self._run(self._producer.send_offsets_to_transaction(places, group))

    def commit(self) -> None:
        self._run(self._producer.commit_transaction())

    def abort(self) -> None:
        self._run(self._producer.abort_transaction())

    def close(self) -> None:
        with suppress(*ClientError):
            self._runner.run(self._producer.stop())
        self._runner.close()


# --- kafka-python -------------------------------------------------------------------------------------


class KafkaPython:
    """A producer of kafka-python.

    Its calls wait for their requests without a limit. In version 3.0 one whose connection broke may never be
    made again: the coordinator is found, and nothing connects to it. So requests are waited for here.
    """

    def __init__(self, bootstrap: str, transactional_id: str) -> None:
        self._abandoned = False
        self._producer = kafka.KafkaProducer(
            bootstrap_servers=bootstrap,
            transactional_id=transactional_id,
            transaction_timeout_ms=_TRANSACTION_MS,
            request_timeout_ms=_MS_MAX // 2,
            delivery_timeout_ms=_MS_MAX,
            max_block_ms=_MS_MAX,
            retry_backoff_ms=_RECONNECT_MS,
            reconnect_backoff_ms=_RECONNECT_MS,
            reconnect_backoff_max_ms=2 * _RECONNECT_MS,
            linger_ms=1,
        )
        try:
            self._producer.init_transactions()
        except BaseException:
            self._producer.close(0)
            raise

    def begin(self) -> None:
        self._producer.begin_transaction()

    def send(self, records: Sequence[Outgoing]) -> list[int]:
        sent = [
            self._producer.send(topic, value.encode(), partition=partition)
            for topic, partition, value in records
        ]
        self._until(lambda: all(one.is_done for one in sent))
        return [one.get(_CALL_SECONDS).offset for one in sent]

    def send_offsets(self, group: str, offsets: Offsets) -> None:
        places = {
            kafka.TopicPartition(*place): kafka.OffsetAndMetadata(at, "", -1) for place, at in offsets.items()
        }
        self._wait(self._producer._transaction_manager.send_offsets_to_transaction(places, group))

    def commit(self) -> None:
        self._wait(self._producer._transaction_manager.begin_commit())

    def abort(self) -> None:
        if self._abandoned:
            raise kafka.errors.KafkaTimeoutError("a call before did not end")
        self._wait(self._producer._transaction_manager.begin_abort())

    def _wait(self, result: Any) -> None:
        """Wait for a request; raise its error, or `KafkaTimeoutError` if it is not answered in time."""
        self._producer._sender.wakeup()
        self._until(lambda: result.is_done)
        result.wait(0)

    def _until(self, done: Callable[[], bool]) -> None:
        """Wait until *done*; give the producer up if that takes too long."""
        limit = Limit(2 * _CALL_SECONDS)
        while not done():
            if limit.passed():
                self._abandoned = True
                raise kafka.errors.KafkaTimeoutError("a call did not end")
            time.sleep(_PAUSE_SECONDS)

    def close(self) -> None:
        if self._abandoned:
            # Closing would wait for the records of the call that did not end.
            self._producer._sender.force_close()
            self._producer._sender.join(SECONDS_MAX)
        self._producer.close(0)


PRODUCERS: dict[str, Callable[[str, str], Producer]] = {
    "confluent-kafka": Confluent,
    "aiokafka": AioKafka,
    "kafka-python": KafkaPython,
}
