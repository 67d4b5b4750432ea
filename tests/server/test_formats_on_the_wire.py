"""Topics of every record format, used by a stock client: decoded and encoded again on the way in and out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]
from support.patience import SECONDS_MAX

import cordwood
from cordwood.embedded.reading import records_between
from cordwood.formats.registry import FORMATS

NOON = 1_700_000_000_000
COUNT = 60
SMALL = {"segment.bytes": "1200", "cordwood.index.interval.records": "7"}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[cordwood.Broker]:
    with cordwood.Broker(tmp_path_factory.mktemp("data")) as running:
        yield running


def create(broker: cordwood.Broker, topic: str, **config: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    new = NewTopic(topic, num_partitions=1, config=config)
    admin.create_topics([new])[topic].result(SECONDS_MAX)


def row(name: str, number: int) -> dict[str, Any]:
    """Return a record with everything that the format can hold."""
    holds = FORMATS[name].holds
    made: dict[str, Any] = {"value": b"%d" % number * (number % 5), "timestamp": NOON + 10 * number}
    if holds.keys and number % 3:
        made["key"] = b"k%d" % (number % 4) if number % 2 else b""
    if holds.headers and number % 2:
        made["headers"] = [("trace", b"%d" % number), ("empty", b"")]
    if holds.null_values and number % 11 == 7:
        made["value"] = None
    return made


def send(broker: cordwood.Broker, topic: str, rows: list[dict[str, Any]], **settings: Any) -> list[Any]:
    """Send rows and return, for each, its offset or the error that came back."""
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 5, **settings})
    told: dict[int, Any] = {}
    for number, each in enumerate(rows):

        def note(error: Any, message: Any, number: int = number) -> None:
            told[number] = error if error is not None else message.offset()

        producer.produce(topic, partition=0, on_delivery=note, **each)
    assert producer.flush(SECONDS_MAX) == 0
    return [told[number] for number in range(len(rows))]


def received(broker: cordwood.Broker, topic: str, start: int, stop: int) -> list[Any]:
    """Return the messages of offsets [start, stop)."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g", "fetch.wait.max.ms": 20})
    try:
        consumer.assign([TopicPartition(topic, 0, start)])
        found: list[Any] = []
        while not found or found[-1].offset() < stop - 1:
            message = consumer.poll(SECONDS_MAX)
            assert message is not None, f"nothing after {len(found)} messages"
            assert message.error() is None, message.error()
            found.append(message)
        return found
    finally:
        consumer.close()


@pytest.mark.parametrize("name", FORMATS)
def test_a_stock_client_reads_back_what_it_sent_in_any_format(broker: cordwood.Broker, name: str) -> None:
    """By an idempotent producer, by one that compresses, and by one that does neither."""
    topic = f"all-{name}"
    create(broker, topic, **{"cordwood.format": name, **SMALL})
    rows = [row(name, number) for number in range(COUNT)]
    settings: list[dict[str, Any]] = [
        {"enable.idempotence": True},
        {"compression.type": "zstd", "enable.idempotence": True},
        {"acks": 1},
    ]
    offsets: list[Any] = []
    for part, each in enumerate(settings):
        offsets += send(broker, topic, rows[part * 20 : part * 20 + 20], **each)
    assert offsets == list(range(COUNT))
    for start in (0, 1, 33, COUNT - 1):
        for offset, message in enumerate(received(broker, topic, start, COUNT), start=start):
            sent = rows[offset]
            assert message.offset() == offset
            assert (message.key(), message.value()) == (sent.get("key"), sent["value"])
            assert message.timestamp()[1] == sent["timestamp"]
            assert (message.headers() or []) == sent.get("headers", [])


@pytest.mark.parametrize("name", FORMATS)
def test_what_a_format_cannot_hold_comes_back_as_an_invalid_record(
    broker: cordwood.Broker, name: str
) -> None:
    """Refused whole and by name; nothing of the batch is stored, and nothing is dropped from a record."""
    topic, holds = f"refused-{name}", FORMATS[name].holds
    create(broker, topic, **{"cordwood.format": name})
    asked = (
        (holds.keys, {"key": b"k", "value": b"v"}),
        (holds.headers, {"value": b"v", "headers": [("h", b"1")]}),
        (holds.null_values, {"value": None}),
    )
    stored = 0
    for held, each in asked:
        (told,) = send(broker, topic, [each])
        if held:
            assert told == stored
            stored += 1
        else:
            assert isinstance(told, KafkaError)
            assert told.code() == KafkaError.INVALID_RECORD
    assert send(broker, topic, [{"value": b"last"}]) == [stored]
    assert len(received(broker, topic, 0, stored + 1)) == stored + 1


def test_an_event_type_is_a_header_for_clients_and_a_malformed_one_is_an_invalid_record(
    broker: cordwood.Broker,
) -> None:
    """In the format kimberlite, which stores it in a field of its own; data has no header."""
    header = "cordwood.event_type"
    create(broker, "event-types", **{"cordwood.format": "kimberlite"})
    rows: list[dict[str, Any]] = [
        {"value": b"data"},
        {"value": b"made up", "headers": [(header, b"7")]},
        {"value": b"state", "headers": [(header, b"1")]},
        {"value": None, "headers": [(header, b"2")]},
        {"value": b"last", "headers": [(header, b"65535")]},
    ]
    assert send(broker, "event-types", rows) == [0, 1, 2, 3, 4]
    for headers in ([(header, b"65536")], [(header, b"7"), (header, b"8")], [(header, b"x")], [("h", b"7")]):
        (told,) = send(broker, "event-types", [{"value": b"v", "headers": headers}])
        assert isinstance(told, KafkaError)
        assert told.code() == KafkaError.INVALID_RECORD
    found = [(each.value(), each.headers() or []) for each in received(broker, "event-types", 0, 5)]
    # A null value says that it is a tombstone.
    rows[3]["headers"] = []
    assert found == [(each["value"], each.get("headers", [])) for each in rows]


@pytest.mark.parametrize("name", FORMATS)
def test_times_and_ends_are_found_by_a_client_in_any_format(broker: cordwood.Broker, name: str) -> None:
    topic = f"times-{name}"
    create(broker, topic, **{"cordwood.format": name, **SMALL})
    send(broker, topic, [{"value": b"%d" % n, "timestamp": NOON + 10 * n} for n in range(30)])
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g"})
    try:
        assert consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=SECONDS_MAX) == (0, 30)
        for time, offset in ((NOON, 0), (NOON + 95, 10), (NOON + 290, 29)):
            (found,) = consumer.offsets_for_times([TopicPartition(topic, 0, time)], timeout=SECONDS_MAX)
            assert found.offset == offset
    finally:
        consumer.close()


def test_a_format_is_chosen_at_creation_and_only_then(broker: cordwood.Broker) -> None:
    with pytest.raises(KafkaException, match=r"cordwood\.format"):
        create(broker, "unknown", **{"cordwood.format": "csv"})
    with pytest.raises(KafkaException, match="have no keys"):
        create(broker, "keyless", **{"cordwood.format": "rustlog", "cleanup.policy": "compact"})


def test_an_idempotent_producer_goes_on_after_a_restart_and_repeats_nothing(tmp_path: Path) -> None:
    """A clean close keeps who sent what; records of these formats do not say."""
    for name in ("rustlog", "kimberlite"):
        data = tmp_path / name
        with cordwood.Broker(data) as running:
            create(running, "t", **{"cordwood.format": name})
            port = running.bootstrap.rpartition(":")[2]
            quickly = {"reconnect.backoff.ms": 10, "reconnect.backoff.max.ms": 50}
            settings = {"bootstrap.servers": running.bootstrap, "enable.idempotence": True, **quickly}
            producer = Producer(settings)
            for number in range(5):
                producer.produce("t", b"%d" % number, partition=0)
            assert producer.flush(SECONDS_MAX) == 0
        with cordwood.Broker(data, listen=f"127.0.0.1:{port}") as running:
            producer.produce("t", b"5", partition=0)
            assert producer.flush(SECONDS_MAX) == 0
            assert [message.value() for message in received(running, "t", 0, 6)] == [
                b"%d" % number for number in range(6)
            ]


@pytest.mark.parametrize("name", sorted(set(FORMATS) - {"batch"}))
def test_one_batch_of_a_client_that_exceeds_segment_bytes_goes_to_several_segments(
    broker: cordwood.Broker, name: str
) -> None:
    """Each offset once and in order, from an idempotent producer, and no segment is larger than allowed."""
    topic = f"spread-{name}"
    create(broker, topic, **{"cordwood.format": name, **SMALL})
    rows = [{"value": b"%03d" % number + bytes(40), "timestamp": NOON + number} for number in range(200)]
    settings = {"enable.idempotence": True, "linger.ms": 500, "batch.num.messages": 200}
    assert send(broker, topic, rows, **settings) == list(range(200))
    partition = broker._node.directory.partitions.own(topic, 0)
    assert len(partition.state.sealed) > 5
    assert max(info.size for info in partition.state.sealed) <= int(SMALL["segment.bytes"])
    assert [record.value for record in records_between(partition, 0, 200)] == [each["value"] for each in rows]
