"""`cordwood.testing.KafkaBroker`: a broker that fails when a test says so."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient
from support.patience import SECONDS_MAX, in_time, until

import cordwood
from cordwood.errors import LogClosed, UnknownSetting, UnknownTopic
from cordwood.testing import BrokerRefused, KafkaBroker

QUIET = {"log_level": 2}


@pytest.fixture
def broker() -> Iterator[KafkaBroker]:
    with KafkaBroker() as started:
        yield started


def producer_of(broker: KafkaBroker, **settings: Any) -> Producer:
    return Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 0, **QUIET, **settings})


def send(producer: Producer, topic: str, value: bytes) -> Future[Message]:
    """Produce a record; the result is its report."""
    done: Future[Message] = Future()

    def report(error: KafkaError | None, message: Message) -> None:
        if error is None:
            done.set_result(message)
        else:
            done.set_exception(Exception(error.name()))

    producer.produce(topic, value, on_delivery=report)
    return done


def store(producer: Producer, topic: str, *values: bytes) -> None:
    """Produce records and wait until each is acknowledged."""
    sent = [send(producer, topic, value) for value in values]
    assert producer.flush(SECONDS_MAX) == 0
    for each in sent:
        each.result(0)


def values(broker: KafkaBroker, topic: str) -> list[bytes | None]:
    return [record.value for record in broker.records(topic)]


# --- starting and stopping ------------------------------------------------------------------------


def test_it_starts_with_the_first_use_and_keeps_port_and_data_over_restarts() -> None:
    broker = KafkaBroker(config={"num.partitions": "2"})
    assert not broker.is_running
    with pytest.raises(LogClosed, match="never started"):
        print(broker.bootstrap)
    with broker:
        address = broker.bootstrap
        store(producer_of(broker), "orders", b"axe")
        broker.restart()
        assert (broker.bootstrap, values(broker, "orders")) == (address, [b"axe"])
        assert "running" in repr(broker)
    assert not broker.is_running
    assert values(broker, "orders") == [b"axe"]
    with broker:
        assert broker.bootstrap == address
        assert broker.log.topic("orders").partitions == 2


def test_two_brokers_in_one_process_know_nothing_of_each_other(broker: KafkaBroker) -> None:
    with KafkaBroker() as other:
        other.create_topic("elsewhere")
        assert (broker.topics, other.topics) == ([], ["elsewhere"])


def test_a_second_broker_is_ready_at_once(broker: KafkaBroker) -> None:
    """What a first one takes is mostly importing; see the test of the plugin."""
    started = time.perf_counter()
    with KafkaBroker():
        taken = time.perf_counter() - started
    print(f"ready after {taken * 1000:.0f} ms")
    assert in_time(taken, 0.3)


# --- crashing -------------------------------------------------------------------------------------


def test_a_crash_kills_connections_and_loses_nothing_that_was_acknowledged(broker: KafkaBroker) -> None:
    producer = producer_of(broker)
    store(producer, "orders", b"axe", b"saw")
    host, port = broker.bootstrap.split(":")
    with socket.create_connection((host, int(port)), SECONDS_MAX) as connection:
        broker.crash()
        with contextlib.suppress(ConnectionError):
            assert connection.recv(1) == b""
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((host, int(port)), SECONDS_MAX)
    assert not broker.is_running
    broker.start()
    assert values(broker, "orders") == [b"axe", b"saw"]
    store(producer, "orders", b"oak")
    assert values(broker, "orders") == [b"axe", b"saw", b"oak"]


def test_a_crash_loses_what_was_never_synced() -> None:
    """A topic that promises no sync shows that the broker does not save its data on the way down."""
    with KafkaBroker() as broker:
        broker.create_topic("weak", config={"cordwood.sync": "never"})
        store(producer_of(broker), "weak", b"gone")
        assert values(broker, "weak") == [b"gone"]
        broker.crash()
        broker.start()
        assert broker.topics == ["weak"]
        assert values(broker, "weak") == []


def test_crashes_under_load_lose_no_acknowledged_record_and_store_none_twice(broker: KafkaBroker) -> None:
    """An idempotent producer goes on through five crashes, and each of its records is there once."""
    producer = producer_of(
        broker, **{"enable.idempotence": True, "reconnect.backoff.ms": 1, "reconnect.backoff.max.ms": 50}
    )
    broker.create_topic("orders")
    sent: list[Future[Message]] = []
    stopping = threading.Event()

    def run() -> None:
        while not stopping.is_set():
            if len(producer) < 1000:
                sent.append(send(producer, "orders", b"%d" % len(sent)))
            producer.poll(0.0005)

    thread = threading.Thread(target=run)
    thread.start()
    for number in range(5):
        until(lambda seen=number: sum(one.done() for one in sent) > 50 * (seen + 1), "records")  # type: ignore[misc]
        broker.crash()
        broker.start()
    stopping.set()
    thread.join()
    assert producer.flush(SECONDS_MAX) == 0
    acknowledged = [one.result(0).value() for one in sent]
    print(f"{len(acknowledged)} records acknowledged over 5 crashes")
    assert values(broker, "orders") == acknowledged


def test_offsets_of_a_group_survive_a_crash(broker: KafkaBroker) -> None:
    store(producer_of(broker), "orders", b"axe", b"saw")

    def consume() -> bytes | None:
        consumer = Consumer(
            {
                "bootstrap.servers": broker.bootstrap,
                "group.id": "shop",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                **QUIET,
            }
        )
        consumer.subscribe(["orders"])
        message = consumer.poll(SECONDS_MAX)
        assert message is not None
        consumer.commit(message=message, asynchronous=False)
        consumer.close()
        return message.value()

    assert consume() == b"axe"
    broker.crash()
    broker.start()
    assert consume() == b"saw"


# --- pausing, failing, slowness -------------------------------------------------------------------


def test_a_paused_broker_accepts_connections_and_answers_after_it_resumes(broker: KafkaBroker) -> None:
    producer = producer_of(broker)
    store(producer, "orders", b"axe")
    broker.pause()
    sent = send(producer, "orders", b"saw")
    host, port = broker.bootstrap.split(":")
    socket.create_connection((host, int(port)), SECONDS_MAX).close()
    assert producer.flush(0.2) == 1
    assert values(broker, "orders") == [b"axe"]
    with pytest.raises(LogClosed, match=r"resume\(\)"):
        broker.create_topic("other")
    broker.resume()
    assert producer.flush(SECONDS_MAX) == 0
    assert sent.result(0).offset() == 1


def test_a_broker_that_crashes_while_it_is_paused_answers_nothing_of_what_waited(broker: KafkaBroker) -> None:
    producer = producer_of(broker, **{"message.timeout.ms": 60_000})
    store(producer, "orders", b"axe")
    broker.pause()
    send(producer, "orders", b"saw")
    assert producer.flush(0.1) == 1
    broker.crash()
    with pytest.raises(LogClosed, match=r"has crashed: call start\(\) first"):
        broker.records("orders")
    broker.start()
    assert values(broker, "orders") == [b"axe"]
    assert producer.flush(SECONDS_MAX) == 0
    assert values(broker, "orders") == [b"axe", b"saw"]


def test_a_failed_produce_stores_nothing_and_its_client_retries(broker: KafkaBroker) -> None:
    producer = producer_of(broker, **{"retry.backoff.ms": 1})
    store(producer, "orders", b"axe")
    broker.fail("PRODUCE", "NOT_LEADER_OR_FOLLOWER", times=3)
    store(producer, "orders", b"saw")
    assert values(broker, "orders") == [b"axe", b"saw"]


def test_an_error_that_is_not_retried_reaches_the_application_once(broker: KafkaBroker) -> None:
    producer = producer_of(broker)
    store(producer, "orders", b"axe")
    broker.fail("Produce", "policy_violation")
    refused = send(producer, "orders", b"saw")
    producer.flush(SECONDS_MAX)
    with pytest.raises(Exception, match="POLICY_VIOLATION"):
        refused.result(0)
    store(producer, "orders", b"oak")
    assert values(broker, "orders") == [b"axe", b"oak"]


@pytest.mark.parametrize(
    ("api", "error"),
    [
        ("FETCH", "NOT_LEADER_OR_FOLLOWER"),
        ("LIST_OFFSETS", "LEADER_NOT_AVAILABLE"),
        ("METADATA", "LEADER_NOT_AVAILABLE"),
        ("FIND_COORDINATOR", "COORDINATOR_NOT_AVAILABLE"),
        ("JOIN_GROUP", "COORDINATOR_LOAD_IN_PROGRESS"),
        ("SYNC_GROUP", "REBALANCE_IN_PROGRESS"),
        ("OFFSET_FETCH", "COORDINATOR_LOAD_IN_PROGRESS"),
    ],
)
def test_a_consumer_overcomes_two_errors_of_each_kind(broker: KafkaBroker, api: str, error: str) -> None:
    store(producer_of(broker), "orders", b"axe")
    broker.fail(api, error, times=2)

    async def consume() -> bytes | None:
        consumer = AIOKafkaConsumer(
            "orders",
            bootstrap_servers=broker.bootstrap,
            group_id="shop",
            auto_offset_reset="earliest",
            retry_backoff_ms=10,
        )
        await consumer.start()
        try:
            value: bytes | None = (await asyncio.wait_for(consumer.getone(), SECONDS_MAX)).value
            return value
        finally:
            await consumer.stop()

    assert asyncio.run(consume()) == b"axe"


def test_names_that_kafka_does_not_have_get_the_one_that_was_meant(broker: KafkaBroker) -> None:
    with pytest.raises(UnknownSetting, match=r"^unknown API PRODUCT; did you mean PRODUCE\?$"):
        broker.fail("PRODUCT", "NOT_LEADER_OR_FOLLOWER")
    with pytest.raises(
        UnknownSetting, match=r"^unknown error NOT_LEADER; did you mean NOT_LEADER_OR_FOLLOWER"
    ):
        broker.fail("PRODUCE", "NOT_LEADER")
    with pytest.raises(UnknownSetting, match="did you mean HEARTBEAT"):
        broker.slow(5, "heartbeats")
    with pytest.raises(cordwood.errors.InvalidSetting):
        broker.fail("FETCH", "NONE")
    with pytest.raises(cordwood.errors.InvalidSetting):
        broker.fail("FETCH", "UNKNOWN_SERVER_ERROR", times=0)


def test_a_slow_api_takes_that_long_and_requests_stay_in_order(broker: KafkaBroker) -> None:
    """An idempotent producer notices when one of its batches overtakes another."""
    producer = producer_of(broker, **{"enable.idempotence": True, "batch.num.messages": 1})
    store(producer, "orders", b"first")
    broker.slow(150, "PRODUCE")
    started = time.monotonic()
    sent = [send(producer, "orders", b"%d" % number) for number in range(3)]
    producer.poll(0.02)
    broker.slow(0)
    broker.slow(0, "PRODUCE")
    sent += [send(producer, "orders", b"%d" % number) for number in range(3, 9)]
    assert producer.flush(SECONDS_MAX) == 0
    assert time.monotonic() - started >= 0.14
    assert [one.result(0).offset() for one in sent] == list(range(1, 10))


def test_heal_ends_every_fault(broker: KafkaBroker) -> None:
    broker.fail("METADATA", "UNKNOWN_SERVER_ERROR", times=None)
    broker.slow(100_000)
    broker.pause()
    broker.heal()
    store(producer_of(broker), "orders", b"axe")
    broker.crash()
    broker.heal()
    assert broker.is_running
    broker.stop()
    broker.heal()
    assert values(broker, "orders") == [b"axe"]


def test_requests_of_the_test_itself_meet_no_fault(broker: KafkaBroker) -> None:
    broker.fail("CREATE_TOPICS", "NOT_CONTROLLER", times=None)
    broker.slow(100_000)
    broker.create_topic("orders", partitions=3, config={"retention.ms": "1000"})
    assert broker.log.topic("orders").partitions == 3
    broker.delete_topic("orders")
    broker.delete_topic("orders")
    assert broker.topics == []
    with pytest.raises(BrokerRefused, match="topic a b was not created"):
        broker.create_topic("a b")


# --- what is stored -------------------------------------------------------------------------------


def test_records_are_those_of_all_partitions_or_of_one(broker: KafkaBroker) -> None:
    broker.create_topic("orders", partitions=2)
    producer = producer_of(broker)
    for partition, value in ((1, b"b"), (0, b"a"), (1, b"c")):
        producer.produce("orders", value, key=b"k", partition=partition, headers=[("h", b"1")])
        producer.flush(SECONDS_MAX)
    assert values(broker, "orders") == [b"a", b"b", b"c"]
    (first, second) = broker.records("orders", 1)
    assert (first.offset, first.key, first.value, first.headers) == (0, b"k", b"b", (("h", b"1"),))
    assert second.offset == 1
    assert [row["value"] for row in _rows(broker)] == [b"a", b"b", b"c"]
    with pytest.raises(UnknownTopic):
        broker.records("other")


def _rows(broker: KafkaBroker) -> list[dict[str, Any]]:
    import pyarrow as pa

    with broker.log as log:
        rows: list[dict[str, Any]] = pa.table(log.scan("orders")).to_pylist()
    return rows


def test_records_can_be_waited_for(broker: KafkaBroker) -> None:
    producer = producer_of(broker)

    def later() -> None:
        until(lambda: waiting.is_set(), "the start")
        store(producer, "orders", b"axe", b"saw")

    waiting = threading.Event()
    thread = threading.Thread(target=later)
    thread.start()
    waiting.set()
    assert len(broker.records("orders", at_least=2, timeout=SECONDS_MAX)) == 2
    thread.join()
    with pytest.raises(TimeoutError, match="2 records of orders after 0 s, not 3"):
        broker.records("orders", at_least=3, timeout=0)


def test_topics_are_those_that_clients_made(broker: KafkaBroker) -> None:
    test_offsets_of_a_group_survive_a_crash(broker)
    assert broker.topics == ["orders"]
    assert "__consumer_offsets" in broker.log.topics


# --- time -----------------------------------------------------------------------------------------


def test_moved_time_expires_records(broker: KafkaBroker) -> None:
    broker.create_topic("short", config={"retention.ms": "3600000"})
    broker.create_topic("long")
    producer = producer_of(broker)
    for topic in ("short", "long"):
        store(producer, topic, b"axe")
    broker.advance(1800)
    assert values(broker, "short") == [b"axe"]
    broker.advance(7200)
    assert (values(broker, "short"), values(broker, "long")) == ([], [b"axe"])
    store(producer, "short", b"saw")
    assert [record.offset for record in broker.records("short")] == [1]


def test_moved_time_ends_the_session_of_a_silent_member(broker: KafkaBroker) -> None:
    broker.create_topic("orders")
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "shop",
            "session.timeout.ms": 300_000,
            "heartbeat.interval.ms": 290_000,
            "max.poll.interval.ms": 600_000,
            **QUIET,
        }
    )
    consumer.subscribe(["orders"])
    until(lambda: consumer.poll(0.01) or consumer.assignment(), "the assignment")
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, **QUIET})

    def members() -> int:
        (described,) = admin.describe_consumer_groups(["shop"]).values()
        return len(described.result(SECONDS_MAX).members)

    broker.advance(200)
    assert members() == 1
    broker.advance(200)
    assert members() == 0
    consumer.close()


def test_moved_time_stays_moved_over_a_crash(broker: KafkaBroker) -> None:
    broker.advance(1_000_000)
    broker.crash()
    broker.start()
    broker.create_topic("orders", config={"message.timestamp.type": "LogAppendTime"})
    store(producer_of(broker), "orders", b"axe")
    (record,) = broker.records("orders")
    assert record.timestamp / 1000 - time.time() > 900_000


# --- asyncio --------------------------------------------------------------------------------------


def test_asyncio_clients_and_the_broker_share_a_process(broker: KafkaBroker) -> None:
    async def send_and_crash() -> None:
        async with AIOKafkaProducer(bootstrap_servers=broker.bootstrap, retry_backoff_ms=10) as producer:
            await producer.send_and_wait("orders", b"axe")
            broker.crash()
            broker.start()
            await producer.send_and_wait("orders", b"saw")

    asyncio.run(send_and_crash())
    assert values(broker, "orders") == [b"axe", b"saw"]
