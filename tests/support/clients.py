"""Three Kafka clients, librdkafka, aiokafka and kafka-python, behind one small face, so that one scenario
runs on each of them. Every wait has an end; everything that is opened is closed by its context."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from threading import Thread
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar

import aiokafka
import aiokafka.admin
import aiokafka.codec
import confluent_kafka
import confluent_kafka.admin
import kafka
import kafka.codec
from kafka.net.inet import KafkaNetSocket

from support.patience import SECONDS_MAX, Limit

T = TypeVar("T")
Headers = tuple[tuple[str, bytes | None], ...]

#: What a client waits for at most, as far as clients accept it.
_MS_MAX = min(int(SECONDS_MAX * 1000), 300_000)
#: A server that restarts is found again this soon.
_RECONNECT_MS = 50
#: Records that are sent together end up in one batch.
_LINGER_MS = 20
#: A consumer that turns to other offsets first waits for the answer to what it asked before.
_FETCH_WAIT_MS = 20
CREATE_TIME, APPEND_TIME = "create", "append"
COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd")


class Outgoing(NamedTuple):
    """A record to send."""

    partition: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    timestamp: int = 0


class Stored(NamedTuple):
    """A record as a consumer is given it."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp: int
    timestamp_type: str


class Producer(Protocol):
    """Sends records to one topic."""

    def send(self, records: Sequence[Outgoing]) -> None:
        """Hand records over, without waiting for any of them."""

    def flush(self) -> list[int]:
        """Wait until all are acknowledged; return their offsets in the order in which they were sent."""


class Consumer(Protocol):
    """Reads all partitions of one topic, which it is assigned by hand."""

    def begin(self, topic: str, partitions: int) -> None:
        """Read this topic from now on, from the beginning."""

    def take(self, count: int) -> list[Stored]:
        """Return the next *count* records, partition by partition in the order in which they came."""

    def seek(self, offsets: Mapping[int, int]) -> None:
        """Go on at these offsets, by partition."""

    def seek_to_end(self) -> dict[int, int]:
        """Go on at the end of each partition; return where that was found to be."""

    def offsets_at(self, timestamp: int) -> dict[int, int | None]:
        """Return the first offset at or after a time of each partition, None where there is none."""

    def bounds(self) -> dict[int, tuple[int, int]]:
        """Return the first offset and the one after the last of each partition."""

    def topics(self) -> set[str]:
        """Return the names of all topics there are."""


class Client(Protocol):
    """One Kafka client."""

    name: ClassVar[str]
    #: Whether it can send a header whose value is null, and a record without key and value.
    sends_null_headers: ClassVar[bool]
    sends_nothing: ClassVar[bool]

    def missing(self, compression: str) -> str | None:
        """Return the package that it needs for *compression* and that is not installed."""

    def create_topic(self, bootstrap: str, topic: str, partitions: int) -> None:
        """Create a topic with the client's own admin."""

    def producing(
        self, bootstrap: str, topic: str, compression: str = "none"
    ) -> AbstractContextManager[Producer]:
        """Run an idempotent producer."""

    def consuming(self, bootstrap: str) -> AbstractContextManager[Consumer]:
        """Run a consumer."""


# --- librdkafka ---------------------------------------------------------------------------------------


class Confluent:
    """confluent-kafka."""

    name: ClassVar[str] = "confluent-kafka"
    sends_null_headers: ClassVar[bool] = True
    sends_nothing: ClassVar[bool] = True

    def missing(self, compression: str) -> str | None:
        """Return None: librdkafka brings all of them."""

    def create_topic(self, bootstrap: str, topic: str, partitions: int) -> None:
        """Create a topic."""
        with confluent_kafka.admin.AdminClient(_confluent_settings(bootstrap)) as admin:
            asked = [confluent_kafka.cimpl.NewTopic(topic, partitions, 1)]
            created = admin.create_topics(asked, operation_timeout=SECONDS_MAX, request_timeout=SECONDS_MAX)
            created[topic].result(SECONDS_MAX)

    @contextmanager
    def producing(self, bootstrap: str, topic: str, compression: str = "none") -> Iterator[Producer]:
        """Run an idempotent producer."""
        settings = {
            **_confluent_settings(bootstrap),
            "compression.type": compression,
            "enable.idempotence": True,
            "linger.ms": _LINGER_MS,
            "message.timeout.ms": _MS_MAX,
            "retry.backoff.ms": _RECONNECT_MS,
            "retry.backoff.max.ms": 2 * _RECONNECT_MS,
        }
        with confluent_kafka.Producer(settings) as producer:
            yield _ConfluentProducer(producer, topic)

    @contextmanager
    def consuming(self, bootstrap: str) -> Iterator[Consumer]:
        """Run a consumer."""
        settings = {
            **_confluent_settings(bootstrap),
            # It will not start without a name for its group, which it then makes no use of.
            "group.id": "unused",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "fetch.wait.max.ms": _FETCH_WAIT_MS,
            "fetch.error.backoff.ms": 0,
        }
        consumer = confluent_kafka.Consumer(settings)
        try:
            yield _ConfluentConsumer(consumer)
        finally:
            consumer.close()


def _confluent_settings(bootstrap: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": bootstrap,
        "socket.timeout.ms": _MS_MAX,
        "reconnect.backoff.ms": _RECONNECT_MS,
        "reconnect.backoff.max.ms": 2 * _RECONNECT_MS,
        "allow.auto.create.topics": False,
        # That a server which restarts is gone for a while is no news, and would be written to stderr.
        "log_level": 0,
    }


class _ConfluentProducer:
    def __init__(self, producer: Any, topic: str) -> None:
        self._producer = producer
        self._topic = topic
        self._offsets: list[int] = []
        self._errors: list[object] = []

    def send(self, records: Sequence[Outgoing]) -> None:
        for record in records:
            self._producer.produce(
                self._topic,
                partition=record.partition,
                key=record.key,
                value=record.value,
                headers=list(record.headers),
                timestamp=record.timestamp,
                on_delivery=self._acknowledge(len(self._offsets)),
            )
            self._offsets.append(-1)

    def _acknowledge(self, number: int) -> Any:
        def acknowledge(error: object, message: Any) -> None:
            if error is not None:
                self._errors.append(error)
            self._offsets[number] = message.offset()

        return acknowledge

    def flush(self) -> list[int]:
        assert self._producer.flush(SECONDS_MAX) == 0
        assert not self._errors
        offsets, self._offsets = self._offsets, []
        return offsets


class _ConfluentConsumer:
    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        self._topic = ""
        self._partitions = range(0)

    def begin(self, topic: str, partitions: int) -> None:
        self._topic, self._partitions = topic, range(partitions)
        # What it is not told, it finds out half a second later.
        self._consumer.list_topics(topic, SECONDS_MAX)
        self._assign(dict.fromkeys(self._partitions, confluent_kafka.OFFSET_BEGINNING))

    def _assign(self, offsets: Mapping[int, int]) -> None:
        places = [confluent_kafka.TopicPartition(self._topic, *each) for each in offsets.items()]
        self._consumer.assign(places)

    def _poll(self, limit: Limit) -> Any:
        while True:
            left = limit.left()
            assert left, "the consumer was given nothing"
            message = self._consumer.poll(left)
            if message is not None:
                return message

    def take(self, count: int) -> list[Stored]:
        limit = Limit()
        found: list[Stored] = []
        while len(found) < count:
            message = self._poll(limit)
            error = message.error()
            if error is None:
                found.append(_confluent_record(message))
            elif error.code() != confluent_kafka.KafkaError._PARTITION_EOF:
                raise AssertionError(error)
        return _by_partition(found)

    def seek(self, offsets: Mapping[int, int]) -> None:
        self._assign(offsets)

    def seek_to_end(self) -> dict[int, int]:
        self._assign(dict.fromkeys(self._partitions, confluent_kafka.OFFSET_END))
        limit = Limit()
        ends: dict[int, int] = {}
        while len(ends) < len(self._partitions):
            message = self._poll(limit)
            assert message.error() is not None
            assert message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF
            ends[message.partition()] = message.offset()
        return ends

    def offsets_at(self, timestamp: int) -> dict[int, int | None]:
        asked = [confluent_kafka.TopicPartition(self._topic, p, timestamp) for p in self._partitions]
        found = self._consumer.offsets_for_times(asked, SECONDS_MAX)
        assert not any(place.error for place in found)
        return {place.partition: place.offset if place.offset >= 0 else None for place in found}

    def bounds(self) -> dict[int, tuple[int, int]]:
        places = [confluent_kafka.TopicPartition(self._topic, p) for p in self._partitions]
        return {place.partition: self._consumer.get_watermark_offsets(place, SECONDS_MAX) for place in places}

    def topics(self) -> set[str]:
        return set(self._consumer.list_topics(timeout=SECONDS_MAX).topics)


def _confluent_record(message: Any) -> Stored:
    kind, timestamp = message.timestamp()
    kinds = {
        confluent_kafka.TIMESTAMP_CREATE_TIME: CREATE_TIME,
        confluent_kafka.TIMESTAMP_LOG_APPEND_TIME: APPEND_TIME,
    }
    return Stored(
        message.partition(),
        message.offset(),
        message.key(),
        message.value(),
        tuple(message.headers() or ()),
        timestamp,
        kinds[kind],
    )


# --- aiokafka -----------------------------------------------------------------------------------------


class AioKafka:
    """aiokafka, on an event loop in a thread of its own: it sees a server go while the test does not look."""

    name: ClassVar[str] = "aiokafka"
    sends_null_headers: ClassVar[bool] = True
    sends_nothing: ClassVar[bool] = False

    def missing(self, compression: str) -> str | None:
        """Return cramjam, if that is so."""
        there = compression == "none" or getattr(aiokafka.codec, f"has_{compression}")()
        return None if there else "cramjam"

    def create_topic(self, bootstrap: str, topic: str, partitions: int) -> None:
        """Create a topic."""
        with _running_loop() as loop:
            loop.run(self._create_topic(bootstrap, topic, partitions))

    async def _create_topic(self, bootstrap: str, topic: str, partitions: int) -> None:
        admin = aiokafka.admin.AIOKafkaAdminClient(bootstrap_servers=bootstrap, request_timeout_ms=_MS_MAX)
        await admin.start()
        try:
            response = await admin.create_topics([aiokafka.admin.NewTopic(topic, partitions, 1)])
            assert [error[1] for error in response.topic_errors] == [0]
        finally:
            await admin.close()

    @contextmanager
    def producing(self, bootstrap: str, topic: str, compression: str = "none") -> Iterator[Producer]:
        """Run an idempotent producer."""
        with _running_loop() as loop:
            producer = loop.run(self._start_producer(bootstrap, compression))
            try:
                yield _AioProducer(loop, producer, topic)
            finally:
                loop.run(producer.stop())

    async def _start_producer(self, bootstrap: str, compression: str) -> Any:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=bootstrap,
            compression_type=None if compression == "none" else compression,
            enable_idempotence=True,
            linger_ms=_LINGER_MS,
            request_timeout_ms=_MS_MAX,
            retry_backoff_ms=_RECONNECT_MS,
        )
        await producer.start()
        return producer

    @contextmanager
    def consuming(self, bootstrap: str) -> Iterator[Consumer]:
        """Run a consumer."""
        with _running_loop() as loop:
            consumer = loop.run(self._start_consumer(bootstrap))
            try:
                yield _AioConsumer(loop, consumer)
            finally:
                loop.run(consumer.stop())

    async def _start_consumer(self, bootstrap: str) -> Any:
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=bootstrap,
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="none",
            request_timeout_ms=_MS_MAX,
            fetch_max_wait_ms=_FETCH_WAIT_MS,
            retry_backoff_ms=_RECONNECT_MS,
        )
        await consumer.start()
        return consumer


class _Loop:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        running: Future[T] = asyncio.run_coroutine_threadsafe(work, self._loop)
        return running.result(SECONDS_MAX)


@contextmanager
def _running_loop() -> Iterator[_Loop]:
    loop = asyncio.new_event_loop()
    thread = Thread(target=loop.run_forever, name="aiokafka")
    thread.start()
    try:
        yield _Loop(loop)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


class _AioProducer:
    def __init__(self, loop: _Loop, producer: Any, topic: str) -> None:
        self._loop = loop
        self._producer = producer
        self._topic = topic
        self._sent: list[Any] = []

    def send(self, records: Sequence[Outgoing]) -> None:
        self._loop.run(self._send(records))

    async def _send(self, records: Sequence[Outgoing]) -> None:
        for record in records:
            sent = await self._producer.send(
                self._topic,
                partition=record.partition,
                key=record.key,
                value=record.value,
                headers=list(record.headers),
                timestamp_ms=record.timestamp,
            )
            self._sent.append(sent)

    def flush(self) -> list[int]:
        sent, self._sent = self._sent, []
        return self._loop.run(self._flush(sent))

    async def _flush(self, sent: Sequence[Any]) -> list[int]:
        return [(await future).offset for future in sent]


class _AioConsumer:
    def __init__(self, loop: _Loop, consumer: Any) -> None:
        self._loop = loop
        self._consumer = consumer
        self._places: list[Any] = []

    def begin(self, topic: str, partitions: int) -> None:
        self._places = [aiokafka.TopicPartition(topic, partition) for partition in range(partitions)]
        self._loop.run(self._begin())

    async def _begin(self) -> None:
        self._consumer.assign(self._places)
        await self._consumer.seek_to_beginning(*self._places)

    def take(self, count: int) -> list[Stored]:
        return self._loop.run(self._take(count))

    async def _take(self, count: int) -> list[Stored]:
        found: list[Stored] = []
        while len(found) < count:
            batches = await self._consumer.getmany(timeout_ms=_MS_MAX, max_records=count - len(found))
            found += [_python_record(record) for records in batches.values() for record in records]
        return _by_partition(found)

    def seek(self, offsets: Mapping[int, int]) -> None:
        self._loop.run(self._seek(offsets))

    async def _seek(self, offsets: Mapping[int, int]) -> None:
        for place in self._places:
            if place.partition in offsets:
                self._consumer.seek(place, offsets[place.partition])

    def seek_to_end(self) -> dict[int, int]:
        return self._loop.run(self._seek_to_end())

    async def _seek_to_end(self) -> dict[int, int]:
        await self._consumer.seek_to_end(*self._places)
        return {place.partition: await self._consumer.position(place) for place in self._places}

    def offsets_at(self, timestamp: int) -> dict[int, int | None]:
        asked = dict.fromkeys(self._places, timestamp)
        return _offsets_found(self._loop.run(self._consumer.offsets_for_times(asked)))

    def bounds(self) -> dict[int, tuple[int, int]]:
        starts = self._loop.run(self._consumer.beginning_offsets(self._places))
        ends = self._loop.run(self._consumer.end_offsets(self._places))
        return {place.partition: (starts[place], ends[place]) for place in self._places}

    def topics(self) -> set[str]:
        found: set[str] = self._loop.run(self._consumer.topics())
        return found


# --- kafka-python -------------------------------------------------------------------------------------

_sock_connect = KafkaNetSocket.sock_connect


async def _sock_connect_or_close(self: Any, net: Any, sock: Any, *where: Any, **until: Any) -> Any:
    """Connect, and close the socket if that fails, which kafka-python leaves to the garbage collector."""
    try:
        return await _sock_connect(self, net, sock, *where, **until)
    except BaseException:
        sock.close()
        raise


KafkaNetSocket.sock_connect = _sock_connect_or_close


class KafkaPython:
    """kafka-python."""

    name: ClassVar[str] = "kafka-python"
    sends_null_headers: ClassVar[bool] = False
    sends_nothing: ClassVar[bool] = False

    def missing(self, compression: str) -> str | None:
        """Return the package that is not installed, if that is so."""
        packages = {"snappy": "python-snappy", "lz4": "lz4", "zstd": "zstandard"}
        there = compression == "none" or getattr(kafka.codec, f"has_{compression}")()
        return None if there else packages[compression]

    def create_topic(self, bootstrap: str, topic: str, partitions: int) -> None:
        """Create a topic."""
        with kafka.KafkaAdminClient(**_kafka_python_settings(bootstrap)) as admin:
            asked = {topic: {"num_partitions": partitions, "replication_factor": 1}}
            admin.create_topics(asked, timeout_ms=_MS_MAX)

    @contextmanager
    def producing(self, bootstrap: str, topic: str, compression: str = "none") -> Iterator[Producer]:
        """Run an idempotent producer."""
        producer = kafka.KafkaProducer(
            **_kafka_python_settings(bootstrap),
            compression_type=None if compression == "none" else compression,
            enable_idempotence=True,
            linger_ms=_LINGER_MS,
            delivery_timeout_ms=2 * _MS_MAX,
        )
        try:
            yield _KafkaPythonProducer(producer, topic)
        finally:
            producer.close(SECONDS_MAX)

    @contextmanager
    def consuming(self, bootstrap: str) -> Iterator[Consumer]:
        """Run a consumer."""
        consumer = kafka.KafkaConsumer(
            **_kafka_python_settings(bootstrap),
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="none",
            fetch_max_wait_ms=_FETCH_WAIT_MS,
        )
        try:
            yield _KafkaPythonConsumer(consumer)
        finally:
            consumer.close(autocommit=False, timeout_ms=_MS_MAX)


def _kafka_python_settings(bootstrap: str) -> dict[str, Any]:
    return {
        "bootstrap_servers": bootstrap,
        "request_timeout_ms": _MS_MAX,
        "retry_backoff_ms": _RECONNECT_MS,
        "reconnect_backoff_ms": _RECONNECT_MS,
        "reconnect_backoff_max_ms": 2 * _RECONNECT_MS,
    }


class _KafkaPythonProducer:
    def __init__(self, producer: Any, topic: str) -> None:
        self._producer = producer
        self._topic = topic
        self._sent: list[Any] = []

    def send(self, records: Sequence[Outgoing]) -> None:
        self._sent += [
            self._producer.send(
                self._topic,
                partition=record.partition,
                key=record.key,
                value=record.value,
                headers=list(record.headers),
                timestamp_ms=record.timestamp,
            )
            for record in records
        ]

    def flush(self) -> list[int]:
        self._producer.flush(SECONDS_MAX)
        sent, self._sent = self._sent, []
        return [future.get(SECONDS_MAX).offset for future in sent]


class _KafkaPythonConsumer:
    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        self._places: list[Any] = []

    def begin(self, topic: str, partitions: int) -> None:
        self._places = [kafka.TopicPartition(topic, partition) for partition in range(partitions)]
        self._consumer.assign(self._places)
        self._consumer.seek_to_beginning(*self._places)

    def take(self, count: int) -> list[Stored]:
        limit = Limit()
        found: list[Stored] = []
        while len(found) < count:
            left = limit.left()
            assert left, "the consumer was given too little"
            batches = self._consumer.poll(timeout_ms=int(left * 1000), max_records=count - len(found))
            found += [_python_record(record) for records in batches.values() for record in records]
        return _by_partition(found)

    def seek(self, offsets: Mapping[int, int]) -> None:
        for place in self._places:
            if place.partition in offsets:
                self._consumer.seek(place, offsets[place.partition])

    def seek_to_end(self) -> dict[int, int]:
        self._consumer.seek_to_end(*self._places)
        return {place.partition: self._consumer.position(place, _MS_MAX) for place in self._places}

    def offsets_at(self, timestamp: int) -> dict[int, int | None]:
        return _offsets_found(
            self._consumer.offsets_for_times(dict.fromkeys(self._places, timestamp), _MS_MAX)
        )

    def bounds(self) -> dict[int, tuple[int, int]]:
        starts = self._consumer.beginning_offsets(self._places, _MS_MAX)
        ends = self._consumer.end_offsets(self._places, _MS_MAX)
        return {place.partition: (starts[place], ends[place]) for place in self._places}

    def topics(self) -> set[str]:
        return set(self._consumer.topics())


# --- what is alike ------------------------------------------------------------------------------------


def _python_record(record: Any) -> Stored:
    """Return a record of aiokafka or kafka-python, which call everything the same."""
    return Stored(
        record.partition,
        record.offset,
        record.key,
        record.value,
        tuple(tuple(header) for header in record.headers),
        record.timestamp,
        {0: CREATE_TIME, 1: APPEND_TIME}[record.timestamp_type],
    )


def _offsets_found(found: Mapping[Any, Any]) -> dict[int, int | None]:
    return {place.partition: None if at is None else at.offset for place, at in found.items()}


def _by_partition(records: Sequence[Stored]) -> list[Stored]:
    """Put partition after partition, the records of each in the order in which they came."""
    return sorted(records, key=lambda record: record.partition)


CLIENTS: tuple[Client, ...] = (Confluent(), AioKafka(), KafkaPython())
