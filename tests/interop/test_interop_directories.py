"""Apache Kafka's own directories: what a broker wrote is imported, what we export a broker serves."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]
from interop.apache_kafka import ApacheKafka, apache_kafka
from interop.kafka_jars import run_tool
from support.commands import said

import cordwood

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

DUMP = "org.apache.kafka.tools.DumpLogSegments"
Seen = list[tuple[int, int, bytes | None, bytes | None]]


@pytest.fixture
def kafka(tmp_path: Path) -> Iterator[ApacheKafka]:
    with apache_kafka(tmp_path / "kafka") as broker:
        yield broker


def consumed(bootstrap: str, topic: str, end: int) -> Seen:
    """Return offset, timestamp, key and value of what a careful consumer sees below *end*."""
    settings = {"bootstrap.servers": bootstrap, "group.id": "g", "isolation.level": "read_committed"}
    consumer = Consumer({**settings, "enable.auto.commit": False, "enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: Seen = []
    while True:
        message = consumer.poll(30)
        assert message is not None
        if message.error():
            break
        offset = message.offset()
        assert offset is not None
        found.append((offset, message.timestamp()[1], message.key(), message.value()))
    consumer.close()
    assert found[-1][0] < end
    return found


def kept(data: Path, topic: str) -> Seen:
    with cordwood.open(data, read_only=True) as log:
        return [(each.offset, each.timestamp, each.key, each.value) for each in log.topic(topic).read()]


def make_topic(kafka: ApacheKafka, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    for made in admin.create_topics([NewTopic(name, 1, 1, config={"segment.bytes": "1048576"})]).values():
        made.result(30)


def test_a_topic_of_a_broker_is_imported_as_a_careful_consumer_sees_it(
    kafka: ApacheKafka, tmp_path: Path
) -> None:
    make_topic(kafka, "t")
    make_topic(kafka, "other")
    producer = Producer(
        {"bootstrap.servers": kafka.bootstrap, "transactional.id": "x", "compression.type": "zstd"}
    )
    producer.init_transactions(30)
    for number in range(6):
        producer.begin_transaction()
        for i in range(50):
            producer.produce("t", b"%d %d " % (number, i) + bytes(1_000), b"k%d" % i)
        if number % 3 == 1:
            producer.flush(30)
            producer.abort_transaction(30)
        else:
            producer.commit_transaction(30)
    expected = consumed(kafka.bootstrap, "t", 400)
    assert len(expected) == 200
    kafka.stop()
    text = said("import", "--data", tmp_path / "data", "--from", "kafka", kafka.directory / "data", "-t", "t")
    assert "imported 200 records of kafka into topic t" in text
    assert "transactions that were aborted" in text
    assert kept(tmp_path / "data", "t") == expected
    assert "sound" in said("verify", "--data", tmp_path / "data")


def test_a_topic_that_is_exported_is_served_by_a_broker(kafka: ApacheKafka, tmp_path: Path) -> None:
    make_topic(kafka, "t")
    with cordwood.open(tmp_path / "data") as log:
        topic = log.topic("t")
        for i in range(300):
            rows = [(b"k%d" % j, bytes(200), (), 1_700_000_000_000 + 10 * i + j) for j in range(5)]
            topic.append_many(rows)
    command = ("export", "--data", tmp_path / "data", "-t", "t", "--to", "kafka", tmp_path / "out")
    said(*command, "--segment-bytes", "100000")
    made = tmp_path / "out" / "t-0"
    logs = sorted(made.glob("*.log"))
    assert len(logs) == 4
    for suffix in ("index", "timeindex"):
        names = ",".join(str(path.with_suffix(f".{suffix}")) for path in logs)
        dumped = run_tool(DUMP, "--index-sanity-check", "--files", names)
        assert len(re.findall("passed sanity check", dumped)) == 4, dumped
    names = ",".join(str(path.with_suffix(".index")) for path in logs)
    assert "Mismatches" not in run_tool(DUMP, "--verify-index-only", "--files", names)
    kafka.stop()
    place = kafka.directory / "data" / "t-0"
    for path in place.iterdir():
        if path.name != "partition.metadata":
            path.unlink()
    shutil.copytree(made, place, dirs_exist_ok=True)
    kafka.start()
    found = consumed(kafka.bootstrap, "t", 1_500)
    assert found == kept(tmp_path / "data", "t")
    assert len(found) == 1_500
