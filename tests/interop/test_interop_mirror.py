"""Leaving Apache Kafka: its topics and groups are mirrored, served, and its clients go on where they were."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]
from interop.apache_kafka import ApacheKafka, apache_kafka
from support.commands import refused, said
from support.patience import Limit
from support.serving import serving

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

Seen = list[tuple[int, int, tuple[int, int], bytes | None, bytes | None, object]]
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
SETTINGS = {
    "log.cleaner.backoff.ms": "200",
    "transaction.state.log.num.partitions": "1",
    "log.initial.task.delay.ms": "0",
    "log.retention.check.interval.ms": "500",
}


@pytest.fixture
def kafka(tmp_path: Path) -> Iterator[ApacheKafka]:
    with apache_kafka(tmp_path / "kafka", SETTINGS) as broker:
        yield broker


def client(bootstrap: str, **more: Any) -> dict[str, Any]:
    return {"bootstrap.servers": bootstrap, "log_level": 0, **more}


def consumed(bootstrap: str, topic: str, partitions: int, isolation: str) -> Seen:
    """Return everything that a consumer sees of a topic."""
    settings = client(bootstrap, **{"group.id": "look", "isolation.level": isolation})
    consumer = Consumer({**settings, "enable.auto.commit": False, "enable.partition.eof": True})
    places = []
    for each in range(partitions):
        start, _ = consumer.get_watermark_offsets(TopicPartition(topic, each), timeout=30)
        places.append(TopicPartition(topic, each, start))
    consumer.assign(places)
    found: Seen = []
    ended = 0
    while ended < partitions:
        message = consumer.poll(30)
        assert message is not None
        if message.error():
            ended += 1
            continue
        number, offset = message.partition(), message.offset()
        assert number is not None
        assert offset is not None
        place = (number, offset, message.timestamp())
        found.append((*place, message.key(), message.value(), message.headers()))
    consumer.close()
    return sorted(found, key=lambda each: each[:2])


def make(bootstrap: str, name: str, partitions: int = 1, **config: str) -> None:
    settings = {key.replace("_", "."): value for key, value in config.items()}
    admin = AdminClient(client(bootstrap))
    admin.create_topics([NewTopic(name, partitions, 1, config=settings)])[name].result(30)


def produce(bootstrap: str, topic: str, count: int, **settings: Any) -> None:
    named = {key.replace("_", "."): value for key, value in settings.items()}
    producer = Producer(client(bootstrap, **named))
    for i in range(count):
        producer.produce(topic, b"value %d" % i * 20, key=b"key %d" % (i % 10), headers=[("n", b"%d" % i)])
    assert producer.flush(60) == 0


def transact(bootstrap: str, topic: str, outcomes: str) -> Producer:
    """Run a transaction for each letter: c is committed, a aborted, o stays open."""
    producer = Producer(client(bootstrap, **{"transactional.id": "till"}))
    producer.init_transactions(60)
    for number, outcome in enumerate(outcomes):
        producer.begin_transaction()
        for i in range(20):
            producer.produce(topic, b"%s %d %d" % (outcome.encode(), number, i), partition=i % 2)
        producer.flush(60)
        if outcome == "c":
            producer.commit_transaction(60)
        elif outcome == "a":
            producer.abort_transaction(60)
    return producer


def wait_until_compacted(kafka: ApacheKafka, topic: str, keys: int) -> None:
    limit = Limit()
    while len(consumed(kafka.bootstrap, topic, 1, "read_committed")) > keys + 1:
        assert not limit.passed(), "the source does not compact"
        produce(kafka.bootstrap, topic, 1, linger_ms=0)
        time.sleep(0.2)


def test_topics_and_groups_of_apache_kafka_are_mirrored_and_served(
    kafka: ApacheKafka, tmp_path: Path
) -> None:
    """Gaps, transactions, compression, a log start above 0, committed offsets; and clients go on."""
    source, data = kafka.bootstrap, tmp_path / "data"
    for codec in CODECS:
        make(source, f"by-{codec}", 2, retention_ms="3600000")
        produce(source, f"by-{codec}", 500, compression_type=codec, enable_idempotence=codec == "zstd")
    make(source, "stamped", message_timestamp_type="LogAppendTime", max_message_bytes="2000000")
    produce(source, "stamped", 100)
    make(source, "paid", 2, min_insync_replicas="1")
    till = transact(source, "paid", "cacaco")
    make(source, "latest", cleanup_policy="compact", segment_ms="100", min_cleanable_dirty_ratio="0.001")
    produce(source, "latest", 300, linger_ms=0, batch_num_messages=7)
    wait_until_compacted(kafka, "latest", 10)
    admin = AdminClient(client(source))
    for cut in admin.delete_records([TopicPartition("by-none", 0, 33)]).values():
        cut.result(30)
    group = Consumer(client(source, **{"group.id": "billing"}))
    group.commit(offsets=[TopicPartition("by-zstd", 0, 17, "so far")], asynchronous=False)
    group.close()

    mirror = ("mirror", "--from", source, "--data", data, "--groups", "*")
    report = json.loads(said(*mirror, "--verify", "--json"))
    assert report["whole"], report
    # The source may compact between copy and comparison.
    assert report["check"]["identical"] > 30
    by_name = {each["topic"]: each for each in report["topics"]}
    assert set(by_name) == {*(f"by-{codec}" for codec in CODECS), "stamped", "paid", "latest"}
    assert sum(each["open_transactions"] for each in by_name["paid"]["partitions"]) == 2
    assert by_name["latest"]["partitions"][0]["filled"] > 0
    assert by_name["by-none"]["partitions"][0]["start"] == 33
    assert [each["group"] for each in report["groups"]] == ["billing"]
    assert '"corruption"' not in said("verify", "--data", data, "--json")

    till.commit_transaction(60)
    produce(source, "by-gzip", 50)
    assert json.loads(said(*mirror, "--verify", "--json"))["whole"]
    again = json.loads(said(*mirror, "--json"))
    assert all(not each["batches"] for topic in again["topics"] for each in topic["partitions"])
    assert said("verify", "--data", data).count("sound") == 1

    with serving(data) as ours:
        for name, topic in by_name.items():
            for isolation in ("read_committed", "read_uncommitted"):
                count = len(topic["partitions"])
                theirs = consumed(source, name, count, isolation)
                assert consumed(ours.bootstrap, name, count, isolation) == theirs, name
                assert theirs
        group = Consumer(client(ours.bootstrap, **{"group.id": "billing"}))
        (committed,) = group.committed([TopicPartition("by-zstd", 0)], timeout=30)
        group.close()
        assert (committed.offset, committed.metadata) == (17, "so far")
        before = len(consumed(ours.bootstrap, "paid", 2, "read_committed"))
        transact(ours.bootstrap, "paid", "ac")
        produce(ours.bootstrap, "by-zstd", 10, enable_idempotence=True)
        assert len(consumed(ours.bootstrap, "paid", 2, "read_committed")) == before + 20
        assert ours.stop() == 0


def test_a_mirror_goes_on_over_kills_of_apache_kafka(kafka: ApacheKafka, tmp_path: Path) -> None:
    """The source is killed and started again between two runs, and deletes a topic that comes again."""
    make(kafka.bootstrap, "orders", 2)
    mirror = ("mirror", "--from", kafka.bootstrap, "--data", tmp_path / "data", "--timeout", "60", "--verify")
    for _ in range(2):
        produce(kafka.bootstrap, "orders", 200)
        assert "0 partitions different" in said(*mirror)
        kafka.restart(kill=True)
    assert "0 partitions different" in said(*mirror)
    admin = AdminClient(client(kafka.bootstrap))
    admin.delete_topics(["orders"])["orders"].result(30)
    make(kafka.bootstrap, "orders", 2)
    assert "is not a mirror of it" in refused(*mirror)
