"""MirrorMaker 2 between Apache Kafka and another broker, both ways at once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.cimpl import NewTopic
from interop.apache_kafka import apache_kafka
from interop.brokers import Broker, reported
from interop.copying import CommittedReader, Worker, working
from interop.frameworks import FIRST_TIME, SECTION, SMALL, feed, properties, until_read
from interop.kafka_jars import KAFKA_VERSION, java_command
from interop.report import Report
from support.patience import SECONDS_MAX, until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(1200)]

PARTITIONS = 3
RECORDS = 3000
GROUP = "readers"
HOW = "from and to Apache Kafka; MirrorMaker and broker killed"
MIRRORED_SECONDS_MAX = 300.0
#: The topics' own settings, which their mirrors get too.
SETTINGS = {"max.message.bytes": "2000000", "segment.jitter.ms": "1000", "retention.ms": "864000000"}
#: The clusters by their aliases, and what each has that is mirrored to the other.
THERE, HERE = "there", "here"
TOPICS = {THERE: "sold", HERE: "bought"}


def test_mirrormaker_both_ways_between_apache_kafka_and_the_broker(
    broker: Broker, report: Report, tmp_path: Path
) -> None:
    """Over kill -9 of both: every record in its partition and order, and the offsets of a group."""
    with apache_kafka(tmp_path / "there") as other:
        clusters = {THERE: other.bootstrap, HERE: broker.bootstrap}
        for alias, topic in TOPICS.items():
            _create(clusters[alias], topic)
        path = properties(tmp_path / "mirror.properties", _settings(clusters))
        command = java_command("org.apache.kafka.connect.mirror.MirrorMaker", [str(path)], SMALL)
        with (
            reported(report, broker, "MirrorMaker 2", KAFKA_VERSION, HOW, SECTION),
            working(command, tmp_path / "mirror.txt") as mirror,
        ):
            for alias, topic in TOPICS.items():
                feed(clusters[alias], topic, _records(0))
                _commit(clusters[alias], topic)
            _until_mirrored(clusters, RECORDS, mirror)
            for alias in TOPICS:
                _until_group_synced(clusters, alias, mirror)
                _until_settings_synced(clusters, alias, mirror)
            broker.restart(kill=True)
            for alias, topic in TOPICS.items():
                feed(clusters[alias], topic, _records(RECORDS))
            _until_mirrored(clusters, 2 * RECORDS, mirror)
            mirror.restart(kill=True)
            for alias, topic in TOPICS.items():
                feed(clusters[alias], topic, _records(2 * RECORDS))
            _until_mirrored(clusters, 3 * RECORDS, mirror)


def _create(bootstrap: str, topic: str) -> None:
    with AdminClient({"bootstrap.servers": bootstrap, "log_level": 0}) as admin:
        asked = NewTopic(topic, PARTITIONS, 1, config=SETTINGS)
        admin.create_topics([asked], operation_timeout=SECONDS_MAX)[topic].result(SECONDS_MAX)


def _settings(clusters: Mapping[str, str]) -> dict[str, str]:
    flows = {f"{THERE}->{HERE}": TOPICS[THERE], f"{HERE}->{THERE}": TOPICS[HERE]}
    # Each of these is 2 or 3 if not told otherwise; -1 is the broker's default.
    topics = ("", "checkpoints.topic.", "heartbeats.topic.", "offset-syncs.topic.")
    stores = ("offset.storage.", "status.storage.", "config.storage.")
    return {
        "clusters": ",".join(clusters),
        **{f"{alias}.bootstrap.servers": address for alias, address in clusters.items()},
        **{f"{flow}.enabled": "true" for flow in flows},
        **{f"{flow}.topics": topic for flow, topic in flows.items()},
        "groups": GROUP,
        **{f"{each}replication.factor": "-1" for each in (*topics, *stores)},
        "tasks.max": "2",
        "sync.group.offsets.enabled": "true",
        "sync.group.offsets.interval.seconds": "1",
        "emit.checkpoints.interval.seconds": "1",
        "refresh.groups.interval.seconds": "5",
        "refresh.topics.interval.seconds": "5",
        "sync.topic.configs.interval.seconds": "5",
        "offset.lag.max": "10",
        "offset.flush.interval.ms": "1000",
        "scheduled.rebalance.max.delay.ms": "1000",
        "session.timeout.ms": "10000",
    }


def _until_settings_synced(clusters: Mapping[str, str], alias: str, mirror: Worker) -> None:
    """Wait until the mirror of a topic has the topic's own settings."""
    name = f"{alias}.{TOPICS[alias]}"
    resource = ConfigResource(ConfigResource.Type.TOPIC, name)
    with AdminClient({"bootstrap.servers": clusters[_other(alias)], "log_level": 0}) as admin:

        def synced() -> bool:
            assert mirror.process.poll() is None, mirror.printed()[-5000:]
            (found,) = admin.describe_configs([resource]).values()
            settings = found.result(SECONDS_MAX)
            return all(settings[name].value == value for name, value in SETTINGS.items())

        until(synced, f"settings of {name}: {mirror.printed()[-3000:]}", MIRRORED_SECONDS_MAX, pause=0.5)


def _records(first: int) -> list[tuple[str, str, int]]:
    return [
        (f"k{number % 10}", f"v{number}", FIRST_TIME + number) for number in range(first, first + RECORDS)
    ]


def _commit(bootstrap: str, topic: str) -> None:
    """Have the group at the end of each partition, which is where the mirror's group has to come to."""
    with CommittedReader(bootstrap, topic, PARTITIONS) as reader:
        reader.read_to_end()
        ends = [TopicPartition(topic, number, len(part)) for number, part in enumerate(reader.values)]
    with AdminClient({"bootstrap.servers": bootstrap, "log_level": 0}) as admin:
        asked = [ConsumerGroupTopicPartitions(GROUP, ends)]
        for done in admin.alter_consumer_group_offsets(asked).values():
            done.result(SECONDS_MAX)


def _other(alias: str) -> str:
    return HERE if alias == THERE else THERE


def _until_mirrored(clusters: Mapping[str, str], count: int, mirror: Worker) -> None:
    """Wait until both topics are in the other cluster, and compare keys and values of each partition."""
    for alias, topic in TOPICS.items():
        with (
            CommittedReader(clusters[alias], topic, PARTITIONS) as original,
            CommittedReader(clusters[_other(alias)], f"{alias}.{topic}", PARTITIONS) as copy,
        ):
            original.read(count)
            until_read(copy, count, mirror)
            # What is not committed when MirrorMaker is killed is mirrored again.
            assert _once(copy) == _once(original), topic


def _once(read: CommittedReader) -> list[list[tuple[bytes, bytes]]]:
    """Return the keys and values of each partition, those that were repeated once."""
    return [list(dict.fromkeys(zip(*part, strict=True))) for part in zip(read.keys, read.values, strict=True)]


def _until_group_synced(clusters: Mapping[str, str], alias: str, mirror: Worker) -> None:
    """Wait until the group has offsets in the mirror, none of them beyond what it read."""
    topic = f"{alias}.{TOPICS[alias]}"
    partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    with AdminClient({"bootstrap.servers": clusters[_other(alias)], "log_level": 0}) as admin:

        def synced() -> bool:
            assert mirror.process.poll() is None, mirror.printed()[-5000:]
            asked = ConsumerGroupTopicPartitions(GROUP, partitions)
            (found,) = admin.list_consumer_group_offsets([asked]).values()
            offsets = [one.offset for one in found.result(SECONDS_MAX).topic_partitions]
            return len(offsets) == PARTITIONS and min(offsets) > 0

        until(synced, f"offsets of {topic}: {mirror.printed()[-3000:]}", MIRRORED_SECONDS_MAX, pause=0.5)
