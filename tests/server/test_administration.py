"""Topics administered over the wire: settings, partitions, records, directories."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from support.asking import Asking

import cordwood
from cordwood.config import BROKER_SETTINGS, TOPIC_SETTINGS
from cordwood.formats.batch import encode_records
from cordwood.protocol.apis import ApiKey
from cordwood.protocol.error_codes import ErrorCode
from cordwood.protocol.messages.cluster import (
    Cursor,
    DescribeClusterRequest,
    DescribeLogDirsRequest,
    DescribeTopicPartitionsRequest,
)
from cordwood.protocol.messages.configs import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
)
from cordwood.protocol.messages.metadata import MetadataRequest
from cordwood.protocol.messages.offsets import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from cordwood.protocol.messages.topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)

TOPIC, BROKER = 2, 4
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3
FROM_TOPIC, FROM_FILE, FROM_NOWHERE = 1, 4, 5


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[cordwood.Broker]:
    with cordwood.Broker(tmp_path / "data", config={"log.segment.bytes": "65536"}) as running:
        yield running


@pytest.fixture
def client(broker: cordwood.Broker) -> Iterator[Asking]:
    with Asking(broker.bootstrap) as asking:
        yield asking


def create(client: Asking, name: str, partitions: int = 1, **config: str) -> Any:
    settings = [
        CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in config.items()
    ]
    topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=1, configs=settings)
    (result,) = client.ask(ApiKey.CREATE_TOPICS, CreateTopicsRequest(topics=[topic])).topics
    return result


def describe(client: Asking, kind: int, name: str, names: list[str] | None = None) -> Any:
    resource = DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=names)
    request = DescribeConfigsRequest(resources=[resource], include_synonyms=True, include_documentation=True)
    (result,) = client.ask(ApiKey.DESCRIBE_CONFIGS, request).results
    return result


def settings_of(client: Asking, topic: str) -> dict[str, Any]:
    return {one.name: one for one in describe(client, TOPIC, topic).configs}


def change(client: Asking, topic: str, *changes: tuple[str, int, str | None], check: bool = False) -> Any:
    configs = [
        IncrementalAlterableConfig(name=name, config_operation=operation, value=value)
        for name, operation, value in changes
    ]
    resource = IncrementalAlterConfigsResource(resource_type=TOPIC, resource_name=topic, configs=configs)
    request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=check)
    (result,) = client.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, request).responses
    return result


def replace_all(client: Asking, kind: int, name: str, settings: dict[str, str | None]) -> Any:
    configs = [AlterableConfig(name=key, value=value) for key, value in settings.items()]
    resource = AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)
    (result,) = client.ask(ApiKey.ALTER_CONFIGS, AlterConfigsRequest(resources=[resource])).responses
    return result


def batch_of(*values: bytes | None, key: bytes | None = b"k") -> bytearray:
    return encode_records([(key, value) for value in values], 1_000)


# Settings


def test_every_setting_is_listed_with_its_default_and_where_its_value_comes_from(client: Asking) -> None:
    """Trap 7. Clients read, modify and write back: what is not listed would be lost."""
    create(client, "t", max_message_bytes="2000000")
    found = settings_of(client, "t")
    assert set(found) == set(TOPIC_SETTINGS)
    own, broker_wide, default = (found[name] for name in ("max.message.bytes", "segment.bytes", "segment.ms"))
    assert (own.value, own.config_source) == ("2000000", FROM_TOPIC)
    assert [(s.value, s.source) for s in own.synonyms] == [
        ("2000000", FROM_TOPIC),
        ("16777216", FROM_NOWHERE),
    ]
    assert (broker_wide.value, broker_wide.config_source) == ("65536", FROM_FILE)
    assert (default.value, default.config_source) == ("3600000", FROM_NOWHERE)
    assert all(one.documentation == TOPIC_SETTINGS[one.name].sentence for one in found.values())
    assert found["cordwood.format"].read_only
    assert not own.read_only


def test_the_broker_lists_its_own_settings_and_the_defaults_of_topics(client: Asking) -> None:
    found = {one.name: one for one in describe(client, BROKER, "0").configs}
    names = {next(iter(s.broker_kinds)) for s in (*BROKER_SETTINGS.values(), *TOPIC_SETTINGS.values())}
    assert set(found) == names
    assert found["log.segment.bytes"].config_source == FROM_FILE
    assert describe(client, BROKER, "7").error_code == ErrorCode.INVALID_REQUEST
    assert describe(client, TOPIC, "none").error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_what_was_read_and_written_back_changes_nothing_else(client: Asking) -> None:
    """Trap 7, in one round."""
    create(client, "t", segment_ms="123456")
    before = settings_of(client, "t")
    given = {one.name: one.value for one in before.values() if one.config_source == FROM_TOPIC} | {
        "max.message.bytes": "5000000"
    }
    assert replace_all(client, TOPIC, "t", given).error_code == 0
    after = settings_of(client, "t")
    changed = {name for name in before if before[name].value != after[name].value}
    assert changed == {"max.message.bytes"}
    assert after["segment.ms"].config_source == FROM_TOPIC


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ([("segment.byte", SET, "1")], "segment.bytes"),
        ([("segment.bytes", SET, "many")], "whole number"),
        ([("cordwood.format", SET, "rustlog")], "cordwood.format"),
        ([("cordwood.initial.offset", SET, "7")], "cannot be changed"),
        ([("segment.ms", APPEND, "1")], "not a list"),
        ([("cleanup.policy", APPEND, "burn")], "cleanup.policy"),
        ([("segment.ms", SET, "1000"), ("segment.ms", DELETE, None)], "more than once"),
        ([("segment.ms", 9, "1000")], "no such change"),
    ],
)
def test_a_change_that_cannot_be_made_is_explained_and_leaves_everything_as_it_was(
    client: Asking, changes: list[tuple[str, int, str | None]], says: str
) -> None:
    create(client, "t")
    before = settings_of(client, "t")
    result = change(client, "t", *changes)
    assert result.error_code in (ErrorCode.INVALID_CONFIG, ErrorCode.INVALID_REQUEST)
    assert says in (result.error_message or "")
    assert settings_of(client, "t") == before


def test_settings_change_one_by_one_and_only_when_meant(client: Asking) -> None:
    create(client, "t")
    assert change(client, "t", ("segment.ms", SET, "5000"), check=True).error_code == 0
    assert settings_of(client, "t")["segment.ms"].value == "3600000"
    assert (
        change(client, "t", ("segment.ms", SET, "5000"), ("cleanup.policy", APPEND, "compact")).error_code
        == 0
    )
    found = settings_of(client, "t")
    assert (found["segment.ms"].value, found["cleanup.policy"].value) == ("5000", "compact,delete")
    assert (
        change(client, "t", ("segment.ms", DELETE, None), ("cleanup.policy", SUBTRACT, "delete")).error_code
        == 0
    )
    found = settings_of(client, "t")
    assert (found["segment.ms"].value, found["cleanup.policy"].value) == ("3600000", "compact")
    assert found["segment.ms"].config_source == FROM_NOWHERE


def test_settings_take_effect_at_once_and_survive_a_restart(tmp_path: Path) -> None:
    with cordwood.Broker(tmp_path / "data") as broker, Asking(broker.bootstrap) as client:
        create(client, "t")
        client.produce("t", batch_of(b"x" * 5_000))
        assert change(client, "t", ("max.message.bytes", SET, "1000")).error_code == 0
        assert change(client, "t", ("message.timestamp.type", SET, "LogAppendTime")).error_code == 0
        refused = client.produce("t", batch_of(b"x" * 5_000))
        stamped = client.produce("t", batch_of(b"y"))
    assert refused.error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert stamped.log_append_time_ms > 1_000
    with cordwood.Broker(tmp_path / "data") as broker, Asking(broker.bootstrap) as client:
        assert settings_of(client, "t")["max.message.bytes"].value == "1000"
    # What was stored under the higher limit is still whole.
    with cordwood.open(tmp_path / "data") as log:
        assert [len(record.value or b"") for record in log.topic("t").read(0)] == [5_000, 1]


def test_settings_of_the_broker_are_told_to_be_read_at_its_start(client: Asking) -> None:
    result = replace_all(client, BROKER, "0", {"log.segment.bytes": "99999"})
    assert (result.error_code, "read when it starts" in result.error_message) == (
        ErrorCode.INVALID_REQUEST,
        True,
    )


def test_librdkafkas_admin_reads_and_changes_settings(broker: cordwood.Broker) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    with Asking(broker.bootstrap) as client:
        create(client, "t")
    entry = ConfigEntry("segment.ms", "4321", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, "t", incremental_configs=[entry])
    for done in admin.incremental_alter_configs([resource]).values():
        done.result(10)
    (found,) = admin.describe_configs([ConfigResource(ResourceType.TOPIC, "t")]).values()
    assert found.result(10)["segment.ms"].value == "4321"


# Partitions and records


def test_partitions_are_added_and_never_taken(client: Asking) -> None:
    create(client, "t", 2)

    def ask(count: int, check: bool = False) -> int:
        topic = CreatePartitionsTopic(name="t", count=count, assignments=None)
        request = CreatePartitionsRequest(topics=[topic], validate_only=check)
        (result,) = client.ask(ApiKey.CREATE_PARTITIONS, request).results
        assert result.name == "t"
        return int(result.error_code)

    assert ask(5, check=True) == 0
    assert client.produce("t", batch_of(b"x"), 4).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert ask(5) == 0
    assert client.produce("t", batch_of(b"x"), 4).error_code == 0
    assert [ask(count) for count in (5, 3, 0, -1)] == [ErrorCode.INVALID_PARTITIONS] * 4


def test_records_are_deleted_up_to_an_offset_and_stay_deleted(tmp_path: Path) -> None:
    def delete(client: Asking, offset: int) -> tuple[int, int]:
        part = DeleteRecordsPartition(partition_index=0, offset=offset)
        request = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name="t", partitions=[part])])
        (topic,) = client.ask(ApiKey.DELETE_RECORDS, request).topics
        (result,) = topic.partitions
        return result.error_code, result.low_watermark

    with cordwood.Broker(tmp_path / "data") as broker, Asking(broker.bootstrap) as client:
        create(client, "t")
        assert delete(client, -1) == (0, 0)
        client.produce("t", batch_of(*[b"%d" % number for number in range(10)]))
        assert delete(client, 4) == (0, 4)
        assert delete(client, 2) == (0, 4)
        assert delete(client, 11) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
    with cordwood.Broker(tmp_path / "data") as broker, Asking(broker.bootstrap) as client:
        assert delete(client, 0) == (0, 4)
        assert delete(client, -1) == (0, 10)


def test_a_record_without_a_key_is_refused_by_a_compacted_topic(client: Asking) -> None:
    """Trap 8. The batch is refused whole, compressed or not."""
    create(client, "t", cleanup_policy="compact")
    assert client.produce("t", batch_of(b"x")).error_code == 0
    assert client.produce("t", batch_of(b"x", None, key=b"")).error_code == 0
    refused = client.produce("t", batch_of(b"x", key=None))
    assert (refused.error_code, "key" in (refused.error_message or "")) == (ErrorCode.INVALID_RECORD, True)
    mixed = encode_records([(b"k", b"1"), (None, b"2")], 1_000)
    assert client.produce("t", mixed).error_code == ErrorCode.INVALID_RECORD
    assert client.produce("t", batch_of(b"y")).base_offset == 3


def test_where_an_epoch_ends_is_told_after_a_truncation(tmp_path: Path) -> None:
    with cordwood.open(tmp_path / "data") as log:
        topic = log.topic("t")
        topic.append_many([(None, b"x")] * 10, partition=0)
        topic.truncate(0, 6)
        topic.append_many([(None, b"y")] * 3, partition=0)
    with cordwood.Broker(tmp_path / "data") as broker, Asking(broker.bootstrap) as client:
        found = []
        for epoch in (0, 1, 2):
            part = OffsetForLeaderPartition(partition=0, leader_epoch=epoch)
            request = OffsetForLeaderEpochRequest(topics=[OffsetForLeaderTopic(topic="t", partitions=[part])])
            (answer,) = client.ask(ApiKey.OFFSET_FOR_LEADER_EPOCH, request).topics
            (one,) = answer.partitions
            found.append((one.error_code, one.leader_epoch, one.end_offset))
    assert found == [(0, 0, 6), (0, 1, 9), (0, -1, -1)]


# The cluster


def test_the_cluster_is_the_broker_that_was_reached(client: Asking, broker: cordwood.Broker) -> None:
    found = client.ask(ApiKey.DESCRIBE_CLUSTER, DescribeClusterRequest())
    (one,) = found.brokers
    assert f"{one.host}:{one.port}" == broker.bootstrap
    assert found.controller_id == one.broker_id == 0


def test_directories_are_as_large_as_what_was_stored(client: Asking) -> None:
    create(client, "t", 2)
    size = len(batch_of(b"x" * 1_000))
    client.produce("t", batch_of(b"x" * 1_000), 1)
    (found,) = client.ask(ApiKey.DESCRIBE_LOG_DIRS, DescribeLogDirsRequest(topics=None)).results
    (topic,) = found.topics
    assert {part.partition_index: part.partition_size for part in topic.partitions} == {0: 0, 1: size}
    assert found.usable_bytes > 0


def test_topics_are_described_page_by_page_each_partition_once(client: Asking) -> None:
    for name, partitions in (("a", 3), ("b", 1), ("c", 4)):
        create(client, name, partitions)
    seen: list[tuple[str, int]] = []
    cursor: Cursor | None = None
    pages = 0
    while pages == 0 or cursor is not None:
        request = DescribeTopicPartitionsRequest(response_partition_limit=2, cursor=cursor)
        page = client.ask(ApiKey.DESCRIBE_TOPIC_PARTITIONS, request)
        seen += [(topic.name, part.partition_index) for topic in page.topics for part in topic.partitions]
        cursor, pages = page.next_cursor, pages + 1
    assert seen == [("a", 0), ("a", 1), ("a", 2), ("b", 0), ("c", 0), ("c", 1), ("c", 2), ("c", 3)]
    assert pages == 4


def test_listing_ten_times_the_topics_takes_about_ten_times_as_long(broker: cordwood.Broker) -> None:
    """Trap 14. Metadata of all topics is asked for all the time; it must not grow faster than they do."""

    def best_seconds() -> float:
        with Asking(broker.bootstrap) as client:
            times = []
            for _ in range(5):
                started = time.perf_counter()
                client.ask(ApiKey.METADATA, MetadataRequest(topics=None))
                times.append(time.perf_counter() - started)
            return min(times)

    topics = broker._node.topics
    for number in range(500):
        topics.create(f"t{number}")
    few = best_seconds()
    for number in range(500, 5_000):
        topics.create(f"t{number}")
    many = best_seconds()
    print(f"500 topics in {few * 1000:.1f} ms, 5,000 in {many * 1000:.1f} ms")
    assert many < 30 * few + 0.05
