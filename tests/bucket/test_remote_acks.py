"""cordwood.remote.acks: records are acknowledged and visible once the bucket has them. K1, rule 5."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from support.patience import until
from support.roads import Road
from support.shipped import files_in

import cordwood
from cordwood.bucket.ownership import Create
from cordwood.disk import read_file
from cordwood.errors import LogFailed, RecordRefused

REMOTE = {"cordwood.remote.acks": "true"}
#: Every 20 ms there is a piece, so that tests wait little.
SOON = {"cordwood.bucket.interval.ms": "20"}


@pytest.fixture
def road(monkeypatch: pytest.MonkeyPatch) -> Iterator[Road]:
    """What every URL of a bucket leads to."""
    found = Road()
    found.lead(monkeypatch)
    yield found
    found.open.set()


def test_an_append_returns_once_the_bucket_has_the_record(tmp_path: Path, road: Road) -> None:
    with cordwood.open(tmp_path / "a", bucket=road.store) as log:
        topic = log.topic("orders", config=REMOTE)
        for number in range(3):
            topic.append(b"value %d" % number)
            assert road.has("orders", b"value %d" % number)


def test_a_record_that_the_bucket_lacks_is_not_visible_and_other_topics_go_on(
    tmp_path: Path, road: Road
) -> None:
    with cordwood.open(tmp_path / "a", bucket=road.store) as log:
        orders, local = log.topic("orders", config=REMOTE), log.topic("local")
        orders.append(b"first")
        local.append(b"first")
        road.open.clear()
        thread = threading.Thread(target=lambda: orders.append(b"second"))
        thread.start()
        until(lambda: orders.log_end_offset(0) == 2, "the record is written")
        assert local.append(b"second").offset == 1
        assert [record.value for record in local.read(0)] == [b"first", b"second"]
        assert orders.high_watermark(0) == 1
        assert [record.value for record in orders.read(0)] == [b"first"]
        assert thread.is_alive()
        road.open.set()
        thread.join()
        assert road.has("orders", b"second")
        assert orders.high_watermark(0) == 2


def test_a_roll_waits_for_the_bucket_too(tmp_path: Path, road: Road) -> None:
    """What a roll seals is visible after it, so the bucket must have it."""
    with cordwood.open(tmp_path / "a", bucket=road.store) as log:
        topic = log.topic("orders", config={**REMOTE, "segment.bytes": "300"})
        for number in range(12):
            topic.append(b"value %d" % number + bytes(50))
        assert len(log.data_directory.partitions.readable("orders", 0).epochs) == 1
        values = b"".join(
            read_file(files_in(road.inner), f"topics/orders/0/segments/{name}")
            for name in files_in(road.inner).list("topics/orders/0/segments")
            if name.endswith(".log")
        )
        assert all(b"value %d" % number in values for number in range(12))


def produced(producer: Producer, topic: str, value: bytes) -> threading.Event:
    """Send *value*, and return what is set once it is acknowledged."""
    acknowledged = threading.Event()

    def done(error: object, message: object) -> None:
        if error is None:
            acknowledged.set()

    producer.produce(topic, value, on_delivery=done)
    return acknowledged


def test_a_server_answers_for_other_topics_while_the_store_is_away(tmp_path: Path, road: Road) -> None:
    config = {**SOON, "cordwood.bucket": "s3://bucket/log"}
    with cordwood.Broker(tmp_path / "a", config=config) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        topics = [NewTopic("orders", 1, config=REMOTE), NewTopic("local", 1)]
        for future in admin.create_topics(topics).values():
            future.result()
        producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 0})
        # A connection of its own: answers of one come in the order of the requests.
        other = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 0})
        assert_acknowledged(producer, produced(producer, "orders", b"first"))
        assert road.has("orders", b"first")
        assert_acknowledged(other, produced(other, "local", b"first"))
        road.open.clear()
        waiting = produced(producer, "orders", b"second")
        producer.poll(0)
        assert_acknowledged(other, produced(other, "local", b"second"))
        assert_acknowledged(other, produced(other, "local", b"third"))
        assert not waiting.is_set()
        assert end_of(broker.bootstrap, "orders") == 1
        assert end_of(broker.bootstrap, "local") == 3
        road.open.set()
        assert_acknowledged(producer, waiting)
        assert road.has("orders", b"second")
        assert end_of(broker.bootstrap, "orders") == 2


def assert_acknowledged(producer: Producer, acknowledged: threading.Event) -> None:
    def polled() -> bool:
        producer.poll(0.05)
        return acknowledged.is_set()

    until(polled, "the record is acknowledged")


def end_of(bootstrap: str, topic: str) -> int:
    from confluent_kafka import Consumer

    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "nobody"})
    try:
        return int(consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=30)[1])
    finally:
        consumer.close()


def test_pieces_are_one_an_interval_whatever_the_number_of_partitions(tmp_path: Path, road: Road) -> None:
    with cordwood.open(tmp_path / "a", bucket=road.store) as log:
        topic = log.topic("many", partitions=50)
        for partition in range(50):
            topic.append(b"x", partition=partition)
    pieces = [each for each in road.store.requests(Create) if each.key.startswith("w/")]  # type: ignore[union-attr]
    assert len(pieces) < 25, f"{len(pieces)} pieces for 50 partitions"


def test_a_weak_sync_policy_does_not_acknowledge_before_the_bucket(tmp_path: Path, road: Road) -> None:
    for policy in ("never", "every:1000", "ms:60000"):
        with cordwood.open(tmp_path / policy.partition(":")[0], bucket=Road().store) as log:
            topic = log.topic("orders", config={**REMOTE, "cordwood.sync": policy})
            assert topic.append(b"first").offset == 0
            assert log.bucket_lag() is not None
            assert topic.high_watermark(0) == 1
    with cordwood.open(tmp_path / "a", bucket=road.store) as log:
        topic = log.topic("orders", config={**REMOTE, "cordwood.sync": "never"})
        for number in range(3):
            topic.append(b"value %d" % number)
            assert road.has("orders", b"value %d" % number)


def test_without_its_bucket_a_topic_that_acknowledges_by_one_takes_nothing(tmp_path: Path) -> None:
    with cordwood.open(tmp_path / "a") as log:
        topic = log.topic("orders", config=REMOTE)
        with pytest.raises(RecordRefused, match=r"cordwood\.remote\.acks"):
            topic.append(b"first")
        log.topic("local").append(b"first")


def test_a_log_that_was_taken_over_takes_no_append_any_more(tmp_path: Path, road: Road) -> None:
    """Not even in topics that do not wait for the bucket: nobody would ever have their records."""
    with cordwood.open(tmp_path / "a", bucket=road.store) as log:
        topic = log.topic("local")
        topic.append(b"first")
        with cordwood.open(tmp_path / "b", bucket=road.store) as other:
            other.topic("local").append(b"second")
        until(lambda: fails(topic, b"lost"), "the log knows that it was taken over")
        with pytest.raises(LogFailed):
            log.topic("new").append(b"lost")
        with contextlib.suppress(LogFailed):
            log.close()


def fails(topic: cordwood.Topic, value: bytes) -> bool:
    try:
        topic.append(value)
    except LogFailed:
        return True
    return False
