"""Administration over the wire: settings, partitions, records, directories, and topics without number.

Asked for with a client of bytes where every field counts, and with the three clients' own admins.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import aiokafka
import aiokafka.admin
import aiokafka.errors
import confluent_kafka
import confluent_kafka.admin
import kafka
import kafka.admin
import kafka.errors
import pytest
from support.patience import SECONDS_MAX, Limit
from support.serving import RawClient, ServerProcess, serving

import cordwood
from cordwood import Broker
from cordwood.config.dynamic import DYNAMIC_SETTINGS
from cordwood.config.kinds import text_of
from cordwood.config.loading import (
    BROKER_SETTINGS,
    FIXED_SETTINGS,
    LISTENER_SETTINGS,
    TOPIC_SETTINGS,
    load_broker_config,
)
from cordwood.disk.memory import MemoryFiles
from cordwood.formats import batch
from cordwood.protocol.apis import APIS, ApiKey
from cordwood.protocol.error_codes import ErrorCode
from cordwood.protocol.messages.cluster import (
    DescribableLogDirTopic,
    DescribeClusterRequest,
    DescribeLogDirsRequest,
    DescribeTopicPartitionsRequest,
    TopicCursor,
    TopicRequest,
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
from cordwood.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from cordwood.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from cordwood.protocol.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from cordwood.protocol.messages.produce import ProducePartition, ProduceRequest, ProduceTopic
from cordwood.protocol.messages.topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from cordwood.protocol.wire import NULL_ID
from cordwood.server.broker import open_node

T = TypeVar("T")
#: The library says of some of these names only at run time that they are there.
LIBRDKAFKA: Any = confluent_kafka.admin
NONE = ErrorCode.NONE
TOPIC, BROKER = 2, 4
FROM_TOPIC, FROM_BROKER, FROM_DEFAULT = 1, 4, 5
SET, DELETE, APPEND, SUBTRACT = range(4)
EARLIEST, LATEST = -2, -1
#: One setting of topics is set for the whole broker, so that there are three sources to tell apart.
SETTINGS = {"log.index.interval.bytes": "8192", "auto.create.topics.enable": "false"}
ADMIN_APIS = (
    ApiKey.CREATE_TOPICS,
    ApiKey.DELETE_TOPICS,
    ApiKey.DELETE_RECORDS,
    ApiKey.CREATE_PARTITIONS,
    ApiKey.DESCRIBE_CONFIGS,
    ApiKey.ALTER_CONFIGS,
    ApiKey.INCREMENTAL_ALTER_CONFIGS,
    ApiKey.DESCRIBE_LOG_DIRS,
    ApiKey.DESCRIBE_CLUSTER,
    ApiKey.DESCRIBE_TOPIC_PARTITIONS,
)


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(config=SETTINGS) as running:
        yield running


@pytest.fixture
def client(broker: Broker) -> Iterator[RawClient]:
    with RawClient(broker.bootstrap) as connected:
        yield connected


# --- asking -------------------------------------------------------------------------------------------


def create(
    client: RawClient,
    name: str,
    partitions: int = 2,
    config: Mapping[str, str] | None = None,
    version: int | None = None,
) -> Any:
    configs = [CreatableTopicConfig(name=key, value=value) for key, value in (config or {}).items()]
    asked = CreatableTopic(name=name, num_partitions=partitions, replication_factor=1, configs=configs)
    (made,) = client.ask(ApiKey.CREATE_TOPICS, CreateTopicsRequest(topics=[asked]), version).topics
    assert made.error_code == NONE, made.error_message
    return made


def delete(client: RawClient, name: str, version: int | None = None) -> ErrorCode:
    asked = DeleteTopicsRequest(topics=[DeleteTopicState(name=name)], topic_names=[name])
    (result,) = client.ask(ApiKey.DELETE_TOPICS, asked, version).responses
    return ErrorCode(result.error_code)


def describe(
    client: RawClient,
    name: str,
    kind: int = TOPIC,
    names: Sequence[str] | None = None,
    version: int | None = None,
) -> dict[str, Any]:
    """Return all settings by name, with their synonyms and sentences."""
    resource = DescribeConfigsResource(
        resource_type=kind, resource_name=name, configuration_keys=None if names is None else list(names)
    )
    request = DescribeConfigsRequest(resources=[resource], include_synonyms=True, include_documentation=True)
    (result,) = client.ask(ApiKey.DESCRIBE_CONFIGS, request, version).results
    assert (result.error_code, result.resource_type, result.resource_name) == (NONE, kind, name)
    return {one.name: one for one in result.configs}


def values(client: RawClient, name: str) -> dict[str, str]:
    return {setting: one.value for setting, one in describe(client, name).items()}


def alter(
    client: RawClient,
    name: str,
    settings: Mapping[str, str | None],
    *,
    check: bool = False,
    version: int | None = None,
) -> tuple[ErrorCode, str]:
    """Replace all settings of a topic."""
    configs = [AlterableConfig(name=key, value=value) for key, value in settings.items()]
    resource = AlterConfigsResource(resource_type=TOPIC, resource_name=name, configs=configs)
    request = AlterConfigsRequest(resources=[resource], validate_only=check)
    (response,) = client.ask(ApiKey.ALTER_CONFIGS, request, version).responses
    return ErrorCode(response.error_code), response.error_message or ""


def change(
    client: RawClient,
    name: str,
    *changes: tuple[str, int, str | None],
    check: bool = False,
    kind: int = TOPIC,
    version: int | None = None,
) -> tuple[ErrorCode, str]:
    """Change settings one by one."""
    configs = [
        IncrementalAlterableConfig(name=key, config_operation=operation, value=value)
        for key, operation, value in changes
    ]
    resource = IncrementalAlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)
    request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=check)
    (response,) = client.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, request, version).responses
    return ErrorCode(response.error_code), response.error_message or ""


def produce(
    client: RawClient,
    topic: str,
    *rows: tuple[bytes | None, bytes],
    partition: int = 0,
    timestamp: int = 1_000,
) -> tuple[ErrorCode, str]:
    data = memoryview(batch.encode_records(rows, timestamp))
    asked = ProduceTopic(topic, NULL_ID, [ProducePartition(partition, data)])
    (answer,) = client.ask(ApiKey.PRODUCE, ProduceRequest(None, -1, 10_000, [asked]), 9).topics
    (part,) = answer.partitions
    return ErrorCode(part.error_code), part.error_message or ""


def fetch(client: RawClient, topic: str, partition: int = 0, offset: int = 0) -> tuple[ErrorCode, list[Any]]:
    """Return the records of a partition from an offset on."""
    asked = FetchTopic(topic, NULL_ID, [FetchPartition(partition, fetch_offset=offset, max_bytes=1 << 25)])
    (answer,) = client.ask(
        ApiKey.FETCH, FetchRequest(-1, 0, 0, 1 << 26, 0, 0, -1, [asked], [], ""), 11
    ).topics
    (part,) = answer.partitions
    data = b"".join(bytes(piece) for piece in part.records)
    found = [record for header in batch.scan(data).headers() for record in batch.decode_records(data, header)]
    return ErrorCode(part.error_code), [record for record in found if record.offset >= offset]


def offsets(client: RawClient, topic: str, partition: int = 0) -> tuple[int, int]:
    """Return the first offset of a partition and the one after its last."""
    found = []
    for timestamp in (EARLIEST, LATEST):
        part = ListOffsetsPartition(partition_index=partition, timestamp=timestamp)
        asked = ListOffsetsRequest(topics=[ListOffsetsTopic(name=topic, partitions=[part])])
        (answer,) = client.ask(ApiKey.LIST_OFFSETS, asked, 7).topics
        found.append(answer.partitions[0].offset)
    return found[0], found[1]


def delete_records(
    client: RawClient, topic: str, offset: int, partition: int = 0, version: int | None = None
) -> tuple[ErrorCode, int]:
    part = DeleteRecordsPartition(partition_index=partition, offset=offset)
    asked = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name=topic, partitions=[part])])
    (answer,) = client.ask(ApiKey.DELETE_RECORDS, asked, version).topics
    (result,) = answer.partitions
    assert (answer.name, result.partition_index) == (topic, partition)
    return ErrorCode(result.error_code), result.low_watermark


def grow(
    client: RawClient,
    topic: str,
    count: int,
    *,
    brokers: Sequence[Sequence[int]] | None = None,
    check: bool = False,
    version: int | None = None,
) -> tuple[ErrorCode, str]:
    given = None if brokers is None else [CreatePartitionsAssignment(broker_ids=list(one)) for one in brokers]
    asked = CreatePartitionsTopic(name=topic, count=count, assignments=given)
    request = CreatePartitionsRequest(topics=[asked], validate_only=check)
    (result,) = client.ask(ApiKey.CREATE_PARTITIONS, request, version).results
    assert result.name == topic
    return ErrorCode(result.error_code), result.error_message or ""


def partitions(client: RawClient, topic: str) -> int:
    request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)
    (found,) = client.ask(ApiKey.METADATA, request).topics
    return len(found.partitions)


def log_dirs(client: RawClient, asked: Mapping[str, Sequence[int]] | None, version: int | None = None) -> Any:
    topics = (
        None
        if asked is None
        else [DescribableLogDirTopic(topic=topic, partitions=list(parts)) for topic, parts in asked.items()]
    )
    (result,) = client.ask(ApiKey.DESCRIBE_LOG_DIRS, DescribeLogDirsRequest(topics=topics), version).results
    assert result.error_code == NONE
    return result


def sizes(client: RawClient, asked: Mapping[str, Sequence[int]] | None = None) -> dict[tuple[str, int], int]:
    found = log_dirs(client, asked)
    return {
        (topic.name, part.partition_index): part.partition_size
        for topic in found.topics
        for part in topic.partitions
    }


# --- the three admins ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def confluent(broker: Broker) -> Iterator[Any]:
    with LIBRDKAFKA.AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0}) as admin:
        yield admin


@pytest.fixture(scope="module")
def kafka_python(broker: Broker) -> Iterator[Any]:
    with kafka.KafkaAdminClient(bootstrap_servers=broker.bootstrap) as admin:
        yield admin


def with_aiokafka(bootstrap: str, use: Callable[[Any], Awaitable[T]]) -> T:
    async def run() -> T:
        admin = aiokafka.admin.AIOKafkaAdminClient(bootstrap_servers=bootstrap)
        await admin.start()
        try:
            return await use(admin)
        finally:
            await admin.close()

    return asyncio.run(run())


def done(futures: Mapping[Any, Any]) -> Any:
    """Return the result of the only future, or raise what it raises."""
    (future,) = futures.values()
    return future.result(SECONDS_MAX)


# --- every version ------------------------------------------------------------------------------------


def administer(client: RawClient, number: int, versions: Mapping[ApiKey, int]) -> None:
    """Make a topic, change everything about it, and delete it, in the given versions."""
    name = f"version-{number}"
    made = create(client, name, 1, {"segment.bytes": "100000"}, versions[ApiKey.CREATE_TOPICS])
    if versions[ApiKey.CREATE_TOPICS] >= 5:
        assert {one.name: one.value for one in made.configs} == values(client, name)
    told = describe(client, name, version=versions[ApiKey.DESCRIBE_CONFIGS])
    assert told.keys() == TOPIC_SETTINGS.keys()
    assert told["segment.bytes"].value == "100000"
    assert alter(client, name, {"segment.ms": "5000"}, version=versions[ApiKey.ALTER_CONFIGS])[0] == NONE
    version = versions[ApiKey.INCREMENTAL_ALTER_CONFIGS]
    assert change(client, name, ("segment.bytes", SET, "200000"), version=version)[0] == NONE
    assert values(client, name) == {**default_values(), "segment.ms": "5000", "segment.bytes": "200000"}
    assert grow(client, name, 3, version=versions[ApiKey.CREATE_PARTITIONS]) == (NONE, "")
    assert partitions(client, name) == 3
    assert produce(client, name, (None, b"a"), (None, b"b"), partition=2)[0] == NONE
    version = versions[ApiKey.DELETE_RECORDS]
    assert delete_records(client, name, 1, 2, version) == (NONE, 1)
    version = versions[ApiKey.DESCRIBE_LOG_DIRS]
    (found,) = log_dirs(client, {name: [0, 2]}, version).topics
    assert [part.partition_index for part in found.partitions] == [0, 2]
    assert found.partitions[0].partition_size == 0 < found.partitions[1].partition_size
    request = DescribeClusterRequest(include_cluster_authorized_operations=True)
    cluster = client.ask(ApiKey.DESCRIBE_CLUSTER, request, versions[ApiKey.DESCRIBE_CLUSTER])
    (one,) = cluster.brokers
    assert (one.broker_id, one.port, cluster.controller_id) == (0, client.socket.getpeername()[1], 0)
    assert cluster.cluster_authorized_operations > 0
    asked = DescribeTopicPartitionsRequest(topics=[TopicRequest(name=name)])
    (topic,) = client.ask(ApiKey.DESCRIBE_TOPIC_PARTITIONS, asked).topics
    assert len(topic.partitions) == 3
    assert delete(client, name, versions[ApiKey.DELETE_TOPICS]) is NONE
    assert partitions(client, name) == 0


def default_values() -> dict[str, str]:
    config, _ = load_broker_config(SETTINGS, environment={})
    return {name: text_of(getattr(config.topic_defaults, s.attribute)) for name, s in TOPIC_SETTINGS.items()}


def test_a_topic_is_administered_in_every_version_of_every_api(client: RawClient) -> None:
    ranges = {api: APIS[api].advertised for api in ADMIN_APIS}
    tried: set[tuple[ApiKey, int]] = set()
    newest = max(each.last for each in ranges.values())
    for number in range(newest + 1):
        versions = {api: min(max(number, each.first), each.last) for api, each in ranges.items()}
        administer(client, number, versions)
        tried |= set(versions.items())
    print(f"{len(tried)} versions of {len(ADMIN_APIS)} APIs")
    assert tried == {(api, v) for api, each in ranges.items() for v in range(each.first, each.last + 1)}
    assert len(tried) >= 30


# --- settings: reading --------------------------------------------------------------------------------


def test_every_setting_of_a_topic_is_listed_with_where_its_value_comes_from(client: RawClient) -> None:
    create(client, "listed", config={"segment.bytes": "123456", "cleanup.policy": "compact"})
    listed = describe(client, "listed")
    assert listed.keys() == TOPIC_SETTINGS.keys()
    sources = {name: one.config_source for name, one in listed.items() if one.config_source != FROM_DEFAULT}
    assert sources == {
        "segment.bytes": FROM_TOPIC,
        "cleanup.policy": FROM_TOPIC,
        "index.interval.bytes": FROM_BROKER,
    }
    for name, one in listed.items():
        setting = TOPIC_SETTINGS[name]
        assert one.documentation == setting.sentence
        assert one.read_only is (name in FIXED_SETTINGS)
        assert not one.is_sensitive
        # The first synonym is the value; the last is the default, under the name it has in the broker's file.
        assert (one.synonyms[0].value, one.synonyms[0].source) == (one.value, one.config_source)
        last = one.synonyms[-1]
        expected = (setting.broker_name, text_of(setting.default), FROM_DEFAULT)
        assert (last.name, last.value, last.source) == expected
    chain = [(one.name, one.value, one.source) for one in listed["segment.bytes"].synonyms]
    assert chain == [
        ("segment.bytes", "123456", FROM_TOPIC),
        ("log.segment.bytes", "1073741824", FROM_DEFAULT),
    ]
    assert [one.source for one in listed["index.interval.bytes"].synonyms] == [FROM_BROKER, FROM_DEFAULT]
    assert describe(client, "listed", names=["cordwood.sync", "nothing"]).keys() == {"cordwood.sync"}
    assert describe(client, "listed", names=[]) == listed, "no names ask for all, as in Kafka"


def test_every_setting_of_the_broker_is_listed(client: RawClient) -> None:
    listed = describe(client, "0", BROKER)
    every = (*BROKER_SETTINGS.values(), *LISTENER_SETTINGS.values(), *TOPIC_SETTINGS.values())
    assert listed.keys() == {setting.broker_name for setting in every if setting.broker_kinds}
    assert {name for name, one in listed.items() if not one.read_only} == DYNAMIC_SETTINGS.keys()
    assert (listed["log.index.interval.bytes"].value, listed["log.index.interval.bytes"].config_source) == (
        "8192",
        FROM_BROKER,
    )
    assert listed["auto.create.topics.enable"].value == "false"
    assert listed["node.id"].config_source == FROM_DEFAULT


@pytest.mark.parametrize(
    ("kind", "name", "code"),
    [
        (TOPIC, "nowhere", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (BROKER, "7", ErrorCode.INVALID_REQUEST),
        (8, "7", ErrorCode.INVALID_REQUEST),
        (16, "0", ErrorCode.INVALID_REQUEST),
    ],
)
def test_settings_of_what_is_not_there_are_refused_with_a_reason(
    client: RawClient, kind: int, name: str, code: ErrorCode
) -> None:
    asked = DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=None)
    (result,) = client.ask(ApiKey.DESCRIBE_CONFIGS, DescribeConfigsRequest(resources=[asked])).results
    assert result.error_code == code
    assert result.error_message
    assert change(client, name, ("segment.ms", SET, "5"), kind=kind)[0] == code


def test_all_three_admins_read_all_settings(
    broker: Broker, client: RawClient, confluent: Any, kafka_python: Any
) -> None:
    create(client, "read-by-all", config={"segment.bytes": "123456"})
    expected = values(client, "read-by-all")
    entries = done(
        confluent.describe_configs(
            [LIBRDKAFKA.ConfigResource(LIBRDKAFKA.ConfigResource.Type.TOPIC, "read-by-all")]
        )
    )
    assert {name: entry.value for name, entry in entries.items()} == expected
    assert [name for name, entry in entries.items() if not entry.is_default] == [
        "segment.bytes",
        "index.interval.bytes",
    ]
    resource = kafka.admin.ConfigResource(kafka.admin.ConfigResourceType.TOPIC, "read-by-all")
    found = kafka_python.describe_configs([resource], include_synonyms=True, config_filter="all")
    assert {name: one["value"] for name, one in found["topic"]["read-by-all"].items()} == expected
    asked = aiokafka.admin.config_resource.ConfigResource(
        aiokafka.admin.config_resource.ConfigResourceType.TOPIC, "read-by-all"
    )
    (response,) = with_aiokafka(broker.bootstrap, lambda admin: admin.describe_configs([asked]))
    ((_, _, _, _, listed),) = response.resources
    assert {entry[0]: entry[1] for entry in listed} == expected


# --- settings: changing -------------------------------------------------------------------------------


def test_reading_all_settings_changing_one_and_writing_all_back_changes_that_one(client: RawClient) -> None:
    """As older tools do it: what they write back are defaults too, and settings that cannot be changed."""
    create(client, "written-back", config={"segment.bytes": "123456", "cordwood.initial.offset": "7"})
    before = values(client, "written-back")
    assert alter(client, "written-back", before) == (NONE, "")
    assert values(client, "written-back") == before
    assert alter(client, "written-back", {**before, "segment.ms": "5000"}) == (NONE, "")
    assert values(client, "written-back") == {**before, "segment.ms": "5000"}
    # What is not written goes back to the default, but for what the files depend on.
    code, message = alter(client, "written-back", {"segment.ms": "5000"})
    assert (code, message) == (
        ErrorCode.INVALID_CONFIG,
        "cordwood.initial.offset='0': expected 7: it cannot be changed",
    )
    kept = {"segment.ms": "5000", "cordwood.initial.offset": "7", "segment.bytes": None}
    assert alter(client, "written-back", kept) == (NONE, "")
    assert values(client, "written-back")["segment.bytes"] == str(1 << 30)


def test_settings_are_changed_one_by_one_and_the_others_stay(client: RawClient) -> None:
    create(client, "changed", config={"segment.bytes": "123456"})
    before = values(client, "changed")
    assert change(client, "changed", ("segment.ms", SET, "5000"), ("preallocate", SET, "true")) == (NONE, "")
    assert values(client, "changed") == {**before, "segment.ms": "5000", "preallocate": "true"}
    assert change(client, "changed", ("segment.bytes", DELETE, None), ("segment.ms", DELETE, None)) == (
        NONE,
        "",
    )
    assert values(client, "changed") == {**default_values(), "preallocate": "true"}
    assert change(client, "changed", ("segment.index.bytes", DELETE, None)) == (NONE, "")
    policies = []
    for operation, value in (
        (APPEND, "compact"),
        (APPEND, "compact"),
        (SUBTRACT, "delete"),
        (APPEND, "delete"),
    ):
        assert change(client, "changed", ("cleanup.policy", operation, value)) == (NONE, "")
        policies.append(values(client, "changed")["cleanup.policy"])
    assert policies == ["compact,delete", "compact,delete", "compact", "compact,delete"]


REFUSED: Sequence[tuple[tuple[str, int, str | None], ErrorCode, str]] = (
    (("segment.bytes", SET, "13"), ErrorCode.INVALID_CONFIG, "from 14 to"),
    (("segment.bytes", SET, "many"), ErrorCode.INVALID_CONFIG, "a whole number of bytes"),
    (("segment.bites", SET, "100"), ErrorCode.INVALID_CONFIG, "segment.bytes"),
    (("log.segment.bytes", SET, "100000"), ErrorCode.INVALID_CONFIG, "segment.bytes"),
    (("cleanup.policy", SET, "burn"), ErrorCode.INVALID_CONFIG, "delete or compact"),
    (("cleanup.policy", SUBTRACT, "delete"), ErrorCode.INVALID_CONFIG, "delete or compact"),
    (("cordwood.sync", SET, "sometimes"), ErrorCode.INVALID_CONFIG, "each, every:N, ms:T or never"),
    (("cordwood.format", SET, "frame"), ErrorCode.INVALID_CONFIG, "batch"),
    (("cordwood.initial.offset", SET, "5"), ErrorCode.INVALID_CONFIG, "cannot be changed"),
    (("segment.bytes", APPEND, "5"), ErrorCode.INVALID_CONFIG, "is not a list"),
    (("segment.bytes", SET, None), ErrorCode.INVALID_REQUEST, "segment.bytes"),
    (("segment.bytes", 9, "5"), ErrorCode.INVALID_REQUEST, "9"),
)


@pytest.mark.parametrize(
    ("asked", "code", "reason"), REFUSED, ids=[f"{c[0]} {c[1]} {c[2]}" for c, _, _ in REFUSED]
)
def test_a_change_that_cannot_be_is_refused_with_a_reason_and_none_of_its_request_is_done(
    client: RawClient, asked: tuple[str, int, str | None], code: ErrorCode, reason: str
) -> None:
    name = f"refused-{REFUSED.index((asked, code, reason))}"
    create(client, name)
    before = values(client, name)
    told, message = change(client, name, ("segment.ms", SET, "5000"), asked)
    assert told == code
    assert reason in message
    assert values(client, name) == before
    if asked[1] == SET and asked[2] is not None:
        assert alter(client, name, {asked[0]: asked[2]})[0] == code
        assert values(client, name) == before


def test_a_setting_that_is_named_twice_is_refused(client: RawClient) -> None:
    create(client, "twice")
    told, message = change(client, "twice", ("segment.ms", SET, "5"), ("segment.ms", SET, "6"))
    assert (told, message) == (ErrorCode.INVALID_REQUEST, "a setting is named more than once")


def test_checking_alone_changes_nothing_and_refuses_what_would_be_refused(client: RawClient) -> None:
    create(client, "checked", 2)
    before = values(client, "checked")
    assert alter(client, "checked", {"segment.ms": "5000"}, check=True) == (NONE, "")
    assert change(client, "checked", ("segment.ms", SET, "5000"), check=True) == (NONE, "")
    assert change(client, "checked", ("cordwood.initial.offset", SET, "1"), check=True)[0] != NONE
    assert alter(client, "checked", {"segment.ms": "0"}, check=True)[0] == ErrorCode.INVALID_CONFIG
    assert grow(client, "checked", 5, check=True) == (NONE, "")
    assert grow(client, "checked", 2, check=True)[0] == ErrorCode.INVALID_PARTITIONS
    asked = CreatableTopic(name="unmade", num_partitions=1, replication_factor=1)
    request = CreateTopicsRequest(topics=[asked], validate_only=True)
    (made,) = client.ask(ApiKey.CREATE_TOPICS, request).topics
    assert made.error_code == NONE
    assert values(client, "checked") == before
    assert (partitions(client, "checked"), partitions(client, "unmade")) == (2, 0)


def test_all_three_admins_change_settings_and_nothing_else(
    broker: Broker, client: RawClient, confluent: Any, kafka_python: Any
) -> None:
    create(client, "changed-by-all", config={"segment.bytes": "123456", "cleanup.policy": "compact"})
    expected = values(client, "changed-by-all")

    entry = LIBRDKAFKA.ConfigEntry(
        "segment.ms", "1000", incremental_operation=LIBRDKAFKA.AlterConfigOpType.SET
    )
    resource = LIBRDKAFKA.ConfigResource(
        LIBRDKAFKA.ConfigResource.Type.TOPIC, "changed-by-all", incremental_configs=[entry]
    )
    done(confluent.incremental_alter_configs([resource]))
    expected["segment.ms"] = "1000"
    assert values(client, "changed-by-all") == expected

    bad = LIBRDKAFKA.ConfigEntry("segment.ms", "-1", incremental_operation=LIBRDKAFKA.AlterConfigOpType.SET)
    resource = LIBRDKAFKA.ConfigResource(
        LIBRDKAFKA.ConfigResource.Type.TOPIC, "changed-by-all", incremental_configs=[bad]
    )
    with pytest.raises(confluent_kafka.KafkaException, match=r"segment\.ms=.*: expected a whole number"):
        done(confluent.incremental_alter_configs([resource]))

    for incremental, value in ((True, "2000"), (False, "3000")):
        # Without the incremental request it reads what was set and writes that back with the change.
        asked = kafka.admin.ConfigResource(
            kafka.admin.ConfigResourceType.TOPIC, "changed-by-all", {"segment.ms": value}
        )
        told = kafka_python.alter_configs([asked], incremental=incremental)
        assert told == {"topic": {"changed-by-all": "OK"}}
        expected["segment.ms"] = value
        assert values(client, "changed-by-all") == expected

    own = {"segment.bytes": "123456", "cleanup.policy": "compact", "segment.ms": "4000"}
    replaced = aiokafka.admin.config_resource.ConfigResource(
        aiokafka.admin.config_resource.ConfigResourceType.TOPIC, "changed-by-all", own
    )
    (response,) = with_aiokafka(broker.bootstrap, lambda admin: admin.alter_configs([replaced]))
    assert [one[0] for one in response.resources] == [0]
    expected["segment.ms"] = "4000"
    assert values(client, "changed-by-all") == expected


# --- settings: what they do ---------------------------------------------------------------------------


def test_a_smaller_limit_refuses_larger_batches_at_once_and_a_larger_one_takes_them(
    client: RawClient,
) -> None:
    create(client, "limits")
    large = (None, bytes(2_000))
    assert produce(client, "limits", large)[0] == NONE
    assert change(client, "limits", ("max.message.bytes", SET, "1000")) == (NONE, "")
    assert produce(client, "limits", large)[0] == ErrorCode.MESSAGE_TOO_LARGE
    assert produce(client, "limits", (None, bytes(500)))[0] == NONE
    assert change(client, "limits", ("max.message.bytes", DELETE, None)) == (NONE, "")
    assert produce(client, "limits", large)[0] == NONE
    code, found = fetch(client, "limits")
    assert (code, [len(record.value) for record in found]) == (NONE, [2_000, 500, 2_000])


def test_a_producer_of_a_real_client_is_told_that_its_record_is_too_large(
    broker: Broker, client: RawClient
) -> None:
    create(client, "limits-of-clients")
    errors: list[int | None] = []
    settings = {"bootstrap.servers": broker.bootstrap, "log_level": 0, "linger.ms": 0}
    with confluent_kafka.Producer(settings) as producer:
        for limit, _ in (("16777216", 0), ("1000", 1)):
            assert change(client, "limits-of-clients", ("max.message.bytes", SET, limit)) == (NONE, "")
            producer.produce(
                "limits-of-clients",
                bytes(2_000),
                partition=0,
                on_delivery=lambda error, _: errors.append(None if error is None else error.code()),
            )
            assert producer.flush(SECONDS_MAX) == 0
    assert errors == [None, confluent_kafka.KafkaError.MSG_SIZE_TOO_LARGE]


def test_timestamps_become_those_of_the_append_and_back_while_the_topic_lives(client: RawClient) -> None:
    create(client, "times")
    assert produce(client, "times", (None, b"old"), timestamp=1_000)[0] == NONE
    assert change(client, "times", ("message.timestamp.type", SET, "LogAppendTime")) == (NONE, "")
    before = int(time.time() * 1000)
    assert produce(client, "times", (None, b"now"), timestamp=1_000)[0] == NONE
    assert change(client, "times", ("message.timestamp.type", SET, "CreateTime")) == (NONE, "")
    assert produce(client, "times", (None, b"old"), timestamp=1_000)[0] == NONE
    _, found = fetch(client, "times")
    assert [record.timestamp == 1_000 for record in found] == [True, False, True]
    assert before - 1 <= found[1].timestamp <= int(time.time() * 1000)


def test_a_record_without_a_key_is_refused_where_keys_are_needed(client: RawClient) -> None:
    create(client, "keyed", config={"cleanup.policy": "compact"})
    for rows in ([(None, b"v")], [(b"k", b"v"), (None, b"v")]):
        code, message = produce(client, "keyed", *rows)
        assert code == ErrorCode.INVALID_RECORD
        assert message.endswith(
            f"record {len(rows) - 1}: a record without a key in a topic that is compacted"
        )
    assert produce(client, "keyed", (b"", b"v"), (b"k", b"v"))[0] == NONE
    assert change(client, "keyed", ("cleanup.policy", SET, "delete")) == (NONE, "")
    assert produce(client, "keyed", (None, b"v"))[0] == NONE
    assert change(client, "keyed", ("cleanup.policy", APPEND, "compact")) == (NONE, "")
    assert produce(client, "keyed", (None, b"v"))[0] == ErrorCode.INVALID_RECORD
    assert offsets(client, "keyed") == (0, 3)


def test_how_safe_a_topic_is_can_be_seen_and_changed(client: RawClient) -> None:
    create(client, "sync")
    assert values(client, "sync")["cordwood.sync"] == "each"
    for policy in ("every:10", "ms:5", "never", "each"):
        assert change(client, "sync", ("cordwood.sync", SET, policy)) == (NONE, "")
        assert values(client, "sync")["cordwood.sync"] == policy
        assert produce(client, "sync", (None, policy.encode()))[0] == NONE
    code, found = fetch(client, "sync")
    assert (code, [record.value for record in found]) == (NONE, [b"every:10", b"ms:5", b"never", b"each"])


@pytest.mark.parametrize("kill", [False, True], ids=["SIGTERM", "kill -9"])
def test_settings_partitions_and_the_start_of_a_log_survive_a_restart(tmp_path: Path, kill: bool) -> None:
    """And what was stored under a larger limit is read under a smaller one."""
    with serving(tmp_path, SETTINGS) as server:
        with RawClient(server.address) as client:
            create(client, "topic", 1, {"segment.bytes": "123456", "segment.ms": "77777"})
            for number in range(10):
                assert produce(client, "topic", (b"k", bytes([number]) * 50_000))[0] == NONE
            changes = [
                ("max.message.bytes", SET, "1000"),
                ("segment.ms", DELETE, None),
                ("cleanup.policy", SET, "compact"),
                ("message.timestamp.type", SET, "LogAppendTime"),
            ]
            assert change(client, "topic", *changes) == (NONE, "")
            assert grow(client, "topic", 3) == (NONE, "")
            assert delete_records(client, "topic", 4) == (NONE, 4)
            expected = values(client, "topic")
        server.restart(kill=kill)
        with RawClient(server.address) as client:
            assert values(client, "topic") == expected
            assert partitions(client, "topic") == 3
            assert offsets(client, "topic") == (4, 10)
            assert fetch(client, "topic", offset=3)[0] == ErrorCode.OFFSET_OUT_OF_RANGE
            read: list[Any] = []
            while 4 + len(read) < 10:
                code, found = fetch(client, "topic", offset=4 + len(read))
                assert code == NONE
                read += found
            assert [record.value for record in read] == [bytes([number]) * 50_000 for number in range(4, 10)]
            assert produce(client, "topic", (b"k", bytes(2_000)))[0] == ErrorCode.MESSAGE_TOO_LARGE
            assert produce(client, "topic", (None, b"v"))[0] == ErrorCode.INVALID_RECORD
            assert produce(client, "topic", (b"k", b"v"), partition=2)[0] == NONE
            assert fetch(client, "topic", 2)[1][0].timestamp > 1_000
        server.restart(kill=kill)
        with RawClient(server.address) as client:
            assert offsets(client, "topic", 2) == (0, 1)


def test_a_limit_that_batches_on_the_disk_exceed_is_refused(client: RawClient) -> None:
    """Above the default, what is stored could not be told from damage if the limit went down again."""
    create(client, "raised", config={"max.message.bytes": str(32 << 20)})
    told, message = change(client, "raised", ("max.message.bytes", SET, "1000"))
    assert told == ErrorCode.INVALID_CONFIG
    assert "no less than" in message
    assert change(client, "raised", ("max.message.bytes", SET, str(64 << 20))) == (NONE, "")


# --- partitions ---------------------------------------------------------------------------------------


def test_a_topic_gets_more_partitions_and_never_fewer(client: RawClient) -> None:
    create(client, "grown", 2)
    assert grow(client, "grown", 4) == (NONE, "")
    assert partitions(client, "grown") == 4
    for count in (4, 3, 1, 0, -1, 10_001):
        code, message = grow(client, "grown", count)
        assert code == ErrorCode.INVALID_PARTITIONS
        assert "more than the current 4" in message
    assert grow(client, "nowhere", 4)[0] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert grow(client, "grown", 5, brokers=[[1]])[0] == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert grow(client, "grown", 5, brokers=[[0]]) == (NONE, "")
    assert [produce(client, "grown", (None, b"v"), partition=index)[0] for index in range(5)] == [NONE] * 5
    assert produce(client, "grown", (None, b"v"), partition=5)[0] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_producers_and_consumers_that_run_see_new_partitions(
    broker: Broker, client: RawClient, confluent: Any, kafka_python: Any
) -> None:
    create(client, "lively", 1)
    settings = {
        "bootstrap.servers": broker.bootstrap,
        "log_level": 0,
        "topic.metadata.refresh.interval.ms": 50,
    }
    consumer = confluent_kafka.Consumer({**settings, "group.id": "unused", "enable.auto.commit": False})
    try:
        with confluent_kafka.Producer(settings) as producer:
            producer.produce("lively", b"first", partition=0)
            assert producer.flush(SECONDS_MAX) == 0
            done(confluent.create_partitions([LIBRDKAFKA.NewPartitions("lively", 3)]))
            kafka_python.create_partitions({"lively": 4})
            limit = Limit()
            placed: list[int] = []

            def note(error: object, message: Any) -> None:
                if error is None:
                    placed.append(message.partition())

            while not placed:
                assert not limit.passed()
                try:
                    producer.produce("lively", b"second", partition=3, on_delivery=note)
                except confluent_kafka.KafkaException:
                    producer.poll(0.02)
                producer.flush(SECONDS_MAX)
            assert placed == [3]
        consumer.assign([confluent_kafka.TopicPartition("lively", 3, 0)])
        message = consumer.poll(SECONDS_MAX)
        assert message is not None
        assert (message.error(), message.value()) == (None, b"second")
    finally:
        consumer.close()
    with pytest.raises(confluent_kafka.KafkaException, match="more than the current 4"):
        done(confluent.create_partitions([LIBRDKAFKA.NewPartitions("lively", 4)]))
    with pytest.raises(kafka.errors.InvalidPartitionsError):
        kafka_python.create_partitions({"lively": 2})
    more = {"lively": aiokafka.admin.NewPartitions(5)}
    response = with_aiokafka(broker.bootstrap, lambda admin: admin.create_partitions(more))
    assert [(topic, code) for topic, code, _ in response.topic_errors] == [("lively", 0)]
    assert partitions(client, "lively") == 5


# --- records ------------------------------------------------------------------------------------------


def test_records_are_deleted_up_to_an_offset_or_all_of_them(client: RawClient) -> None:
    create(client, "cut")
    for number in range(10):
        assert produce(client, "cut", (None, bytes([number])))[0] == NONE
    assert delete_records(client, "cut", 3) == (NONE, 3)
    assert offsets(client, "cut") == (3, 10)
    # What is gone stays gone; asking for less is no mistake.
    assert delete_records(client, "cut", 1) == (NONE, 3)
    assert delete_records(client, "cut", 11) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
    assert fetch(client, "cut", offset=2)[0] == ErrorCode.OFFSET_OUT_OF_RANGE
    assert [record.value for record in fetch(client, "cut", offset=3)[1]] == [
        bytes([n]) for n in range(3, 10)
    ]
    assert delete_records(client, "cut", -1) == (NONE, 10)
    assert offsets(client, "cut") == (10, 10)
    assert produce(client, "cut", (None, b"next"))[0] == NONE
    assert offsets(client, "cut") == (10, 11)
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert delete_records(client, "cut", 0, 9) == delete_records(client, "nowhere", 0) == (unknown, -1)


@pytest.mark.parametrize("storage", ["own", "shared"])
def test_records_up_to_an_offset_that_cannot_be_are_not_deleted(client: RawClient, storage: str) -> None:
    """Only -1 stands for the high watermark, in a partition with records as in one without."""
    for name in ("filled", "empty"):
        create(client, f"{name}-{storage}", config={"cordwood.storage": storage})
    for number in range(3):
        assert produce(client, f"filled-{storage}", (None, bytes([number])))[0] == NONE
    for name, end in (("filled", 3), ("empty", 0)):
        for offset in (-(2**63), -5, -2, end + 1, 2**63 - 1):
            refused = delete_records(client, f"{name}-{storage}", offset)
            assert refused == (ErrorCode.OFFSET_OUT_OF_RANGE, -1), (name, offset)
        assert offsets(client, f"{name}-{storage}") == (0, end)
    assert delete_records(client, f"filled-{storage}", -1) == (NONE, 3)


def test_records_of_a_partition_that_never_had_any_are_deleted_without_making_it(client: RawClient) -> None:
    create(client, "unused")
    assert delete_records(client, "unused", -1) == (NONE, 0)
    assert delete_records(client, "unused", 0) == (NONE, 0)
    assert delete_records(client, "unused", 1) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)


def test_all_three_admins_delete_records(
    broker: Broker, client: RawClient, confluent: Any, kafka_python: Any
) -> None:
    create(client, "cut-by-all", 1)
    for _ in range(10):
        assert produce(client, "cut-by-all", (None, b"v"))[0] == NONE
    result = done(confluent.delete_records([confluent_kafka.TopicPartition("cut-by-all", 0, 2)]))
    assert result.low_watermark == 2
    place = kafka.TopicPartition("cut-by-all", 0)
    assert kafka_python.delete_records({place: 4})[place]["low_watermark"] == 4
    asked = {
        aiokafka.TopicPartition("cut-by-all", 0): aiokafka.admin.RecordsToDelete(before_offset=6),
    }
    with_aiokafka(broker.bootstrap, lambda admin: admin.delete_records(asked))
    assert offsets(client, "cut-by-all") == (6, 10)
    with pytest.raises(confluent_kafka.KafkaException):
        done(confluent.delete_records([confluent_kafka.TopicPartition("cut-by-all", 0, 99)]))


# --- the cluster and its disks ------------------------------------------------------------------------


def test_sizes_of_partitions_are_those_of_their_files(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker, RawClient(broker.bootstrap) as client:
        create(client, "sized", 3, {"segment.bytes": "3000"})
        assert set(sizes(client, {"sized": [0, 1, 2]}).values()) == {0}
        for _ in range(10):
            assert produce(client, "sized", (None, bytes(1_000)), partition=1)[0] == NONE
        found = sizes(client)
        files = (tmp_path / "topics" / "sized" / "1").rglob("*.log")
        assert found == {
            ("sized", 0): 0,
            ("sized", 1): sum(file.stat().st_size for file in files),
            ("sized", 2): 0,
        }
        assert found["sized", 1] > 10_000
        assert sizes(client, {"sized": [1], "nowhere": [0]}) == {("sized", 1): found["sized", 1]}
        assert sizes(client, {}) == {}
        told = log_dirs(client, None)
        assert told.log_dir == str(tmp_path)
        assert 0 < told.usable_bytes <= told.total_bytes
        assert delete_records(client, "sized", -1, 1)[0] == NONE
        assert sizes(client, {"sized": [1]})["sized", 1] < found["sized", 1]


def test_all_three_admins_describe_the_cluster(broker: Broker, confluent: Any, kafka_python: Any) -> None:
    port = int(broker.bootstrap.rpartition(":")[2])
    told = confluent.describe_cluster().result(SECONDS_MAX)
    assert [(node.id, node.port) for node in told.nodes] == [(0, port)]
    cluster = kafka_python.describe_cluster()
    assert [(node["broker_id"], node["port"]) for node in cluster["brokers"]] == [(0, port)]
    assert cluster["cluster_id"] == told.cluster_id
    found = with_aiokafka(broker.bootstrap, lambda admin: admin.describe_cluster())
    assert [(node["node_id"], node["port"]) for node in found["brokers"]] == [(0, port)]


def test_controllers_are_not_here(client: RawClient) -> None:
    response = client.ask(ApiKey.DESCRIBE_CLUSTER, DescribeClusterRequest(endpoint_type=2))
    assert response.error_code == ErrorCode.UNSUPPORTED_ENDPOINT_TYPE


def pages(client: RawClient, names: Sequence[str], limit: int) -> list[list[tuple[str, int]]]:
    """Return topics and partitions page by page."""
    found, cursor = [], None
    while True:
        request = DescribeTopicPartitionsRequest(
            topics=[TopicRequest(name=name) for name in names], response_partition_limit=limit, cursor=cursor
        )
        response = client.ask(ApiKey.DESCRIBE_TOPIC_PARTITIONS, request)
        assert all(topic.error_code == NONE for topic in response.topics)
        found.append(
            [(topic.name, part.partition_index) for topic in response.topics for part in topic.partitions]
        )
        cursor = response.next_cursor
        if cursor is None:
            return found
        assert len(found) < 100


def test_partitions_are_described_page_by_page_each_once_and_in_order() -> None:
    with Broker() as broker, RawClient(broker.bootstrap) as client:
        counts = {"b": 3, "a": 1, "d": 5, "c": 2}
        for name, count in counts.items():
            create(client, name, count)
        everything = [(name, index) for name in sorted(counts) for index in range(counts[name])]
        tried = 0
        for names in ([], ["d", "b"], ["c"]):
            expected = [place for place in everything if not names or place[0] in names]
            for limit in (1, 2, 3, 5, len(expected), 2_000):
                found = pages(client, names, limit)
                assert [place for page in found for place in page] == expected
                assert all(len(page) <= limit for page in found)
                assert len(found) == -(-len(expected) // limit)
                tried += 1
        assert tried == 18
        # However little is asked for, a page has something on it; and never more than the broker's limit.
        for limit in (0, -5):
            assert pages(client, ["c"], limit) == [[("c", 0)], [("c", 1)]]


@pytest.mark.parametrize(
    ("topic", "partition", "expected"),
    [
        ("b", 1, [("b", 1), ("b", 2), ("c", 0)]),
        ("b", -7, [("b", 0), ("b", 1), ("b", 2), ("c", 0)]),
        ("b", 3, [("c", 0)]),
        ("b", 1_000_000, [("c", 0)]),
        ("aa", 2, [("b", 0), ("b", 1), ("b", 2), ("c", 0)]),
        ("zzz", 0, []),
    ],
)
def test_a_cursor_may_point_anywhere(topic: str, partition: int, expected: list[tuple[str, int]]) -> None:
    with Broker() as broker, RawClient(broker.bootstrap) as client:
        for name, count in {"a": 1, "b": 3, "c": 1}.items():
            create(client, name, count)
        cursor = TopicCursor(topic_name=topic, partition_index=partition)
        request = DescribeTopicPartitionsRequest(topics=[], response_partition_limit=4, cursor=cursor)
        response = client.ask(ApiKey.DESCRIBE_TOPIC_PARTITIONS, request)
        found = [(one.name, part.partition_index) for one in response.topics for part in one.partitions]
        assert found == expected
        assert response.next_cursor is None


def test_topics_that_are_not_there_are_told_so_beside_those_that_are(client: RawClient) -> None:
    create(client, "here", 1)
    request = DescribeTopicPartitionsRequest(topics=[TopicRequest(name="here"), TopicRequest(name="gone")])
    found = client.ask(ApiKey.DESCRIBE_TOPIC_PARTITIONS, request).topics
    assert [(one.name, one.error_code) for one in found] == [
        ("gone", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("here", NONE),
    ]


# --- epochs -------------------------------------------------------------------------------------------


def epoch_ends(client: RawClient, topic: str, epochs: Sequence[int], version: int) -> list[tuple[int, int]]:
    """Return the epoch and its end that each of *epochs* is answered with."""
    asked = [OffsetForLeaderPartition(partition=0, leader_epoch=epoch) for epoch in epochs]
    topics = [OffsetForLeaderTopic(topic=topic, partitions=asked)]
    request = OffsetForLeaderEpochRequest(topics=topics)
    (answer,) = client.ask(ApiKey.OFFSET_FOR_LEADER_EPOCH, request, version).topics
    assert [part.error_code for part in answer.partitions] == [NONE] * len(epochs)
    return [(part.leader_epoch, part.end_offset) for part in answer.partitions]


def test_where_an_epoch_ended_is_told_after_a_truncation(tmp_path: Path) -> None:
    """A truncation begins an epoch; who read past it can find out up to where its records still count."""
    with cordwood.open(tmp_path) as log:
        topic = log.topic("cut", partitions=1)
        for number in range(10):
            topic.append(b"%d" % number)
        topic.truncate(0, 6)
        for number in range(3):
            topic.append(b"again %d" % number)
        topic.truncate(0, 8)
        topic.append(b"last")
    with Broker(tmp_path) as broker, RawClient(broker.bootstrap) as client:
        for version in range(2, 5):
            ends = epoch_ends(client, "cut", [0, 1, 2, 3, 99, -1, -7], version)
            assert ends == [(0, 6), (1, 8), (2, 9), (-1, -1), (-1, -1), (-1, -1), (-1, -1)]
        assert produce(client, "cut", (None, b"more"))[0] == NONE
        assert epoch_ends(client, "cut", [2], 4) == [(2, 10)]
        create(client, "fresh", 1)
        assert epoch_ends(client, "fresh", [0, 1], 4) == [(0, 0), (-1, -1)]


# --- topics that go and come back ---------------------------------------------------------------------


def test_a_topic_that_is_deleted_and_created_anew_by_clients_is_another_one(
    broker: Broker, client: RawClient, confluent: Any, kafka_python: Any
) -> None:
    new_topic = LIBRDKAFKA.NewTopic("again", 2, 1)

    def confluent_creates() -> None:
        done(confluent.create_topics([new_topic]))

    def kafka_python_creates() -> None:
        kafka_python.create_topics({"again": {"num_partitions": 2, "replication_factor": 1}})

    def aiokafka_creates() -> None:
        asked = [aiokafka.admin.NewTopic("again", 2, 1)]
        with_aiokafka(broker.bootstrap, lambda admin: admin.create_topics(asked))

    deletes: list[Callable[[], object]] = [
        lambda: done(confluent.delete_topics(["again"])),
        lambda: kafka_python.delete_topics(["again"]),
        lambda: with_aiokafka(broker.bootstrap, lambda admin: admin.delete_topics(["again"])),
    ]
    ids = set()
    for makes, deletes_it in zip(
        (confluent_creates, kafka_python_creates, aiokafka_creates), deletes, strict=True
    ):
        makes()
        request = MetadataRequest(topics=[MetadataRequestTopic(name="again")])
        (found,) = client.ask(ApiKey.METADATA, request).topics
        ids.add(found.topic_id)
        assert offsets(client, "again") == (0, 0)
        for number in range(3):
            assert produce(client, "again", (None, b"%d" % number))[0] == NONE
        assert offsets(client, "again") == (0, 3)
        deletes_it()
        assert produce(client, "again", (None, b"late"))[0] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert len(ids) == 3
    with pytest.raises(kafka.errors.UnknownTopicOrPartitionError):
        kafka_python.delete_topics(["again"])


# --- very many topics ---------------------------------------------------------------------------------


def seconds_of_metadata(count: int) -> float:
    """Return the processor time that it takes to be told of *count* topics, at best."""
    files = MemoryFiles()
    config, _ = load_broker_config({}, environment={})
    node = open_node("/data", config, files)
    try:
        for number in range(count):
            node.topics.create(f"topic-{number:06}", 1)
    finally:
        node.directory.close()
    best = float("inf")
    with Broker("/data", files=files) as broker, RawClient(broker.bootstrap) as client:
        # In a version of its own each time: an answer is kept for who asks for the same again.
        for version in range(8, 13):
            started = time.process_time()
            client.send(ApiKey.METADATA, version, MetadataRequest(topics=None))
            frame = client.receive_frame()
            best = min(best, time.process_time() - started)
        assert frame.count(b"topic-") == count
        one = MetadataRequest(topics=[MetadataRequestTopic(name=f"topic-{count // 2:06}")])
        (found,) = client.ask(ApiKey.METADATA, one, 12).topics
        assert found.error_code == NONE
    return best


def test_being_told_of_ten_thousand_topics_costs_ten_times_as_much_as_of_a_thousand() -> None:
    """Not a hundred times, which is what anything quadratic costs."""
    few, many = 1_000, 10_000
    small, large = seconds_of_metadata(few), seconds_of_metadata(many)
    print(f"{1e6 * small / few:.1f} and {1e6 * large / many:.1f} µs a topic, of {few} and of {many}")
    assert large < 40 * small
    assert large / many < 1e-3


def test_servers_of_their_own_answer_admins_as_the_one_in_this_process_does(tmp_path: Path) -> None:
    """The command runs the same server: what an admin does to it is there when it is started again."""
    with serving(tmp_path, SETTINGS) as server:
        admin_settings = {"bootstrap.servers": server.bootstrap, "log_level": 0}
        with LIBRDKAFKA.AdminClient(admin_settings) as admin:
            done(admin.create_topics([LIBRDKAFKA.NewTopic("served", 1, 1, config={"segment.ms": "5"})]))
            entry = LIBRDKAFKA.ConfigEntry(
                "segment.bytes", "100000", incremental_operation=LIBRDKAFKA.AlterConfigOpType.SET
            )
            resource = LIBRDKAFKA.ConfigResource(
                LIBRDKAFKA.ConfigResource.Type.TOPIC, "served", incremental_configs=[entry]
            )
            done(admin.incremental_alter_configs([resource]))
            done(admin.create_partitions([LIBRDKAFKA.NewPartitions("served", 2)]))
        server.restart(kill=True)
        check_served(server)


def check_served(server: ServerProcess) -> None:
    with RawClient(server.address) as client:
        told = values(client, "served")
        assert (told["segment.ms"], told["segment.bytes"], partitions(client, "served")) == ("5", "100000", 2)
