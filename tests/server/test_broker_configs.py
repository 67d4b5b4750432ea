"""Settings of brokers, groups and loggers over the wire, as Kafka's tools and three clients ask for them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import aiokafka.admin
import aiokafka.admin.config_resource
import confluent_kafka.admin
import kafka.admin
import pytest
from support.asking import Asking
from support.serving import RawClient, serving

from cordwood import Broker
from cordwood.formats import batch
from cordwood.formats.compression import Compression
from cordwood.protocol.apis import ApiKey
from cordwood.protocol.error_codes import ErrorCode
from cordwood.protocol.messages.configs import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
)

TOPIC, BROKER, LOGGER, GROUP = 2, 4, 8, 32
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3
#: Where values come from.
OF_TOPIC, OF_BROKER, OF_ALL, OF_FILE, DEFAULT, OF_LOGGER = range(1, 7)
NONE = (ErrorCode.NONE, None)
Settings = dict[str, DescribeConfigsResourceResult]


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(config={"log.segment.bytes": "1000000"}) as running:
        yield running


@pytest.fixture
def raw(broker: Broker) -> Iterator[Asking]:
    with Asking(broker.bootstrap) as connection:
        yield connection


def describe(
    client: RawClient, kind: int, name: str, keys: Sequence[str] | None = None
) -> tuple[int, Settings]:
    resource = DescribeConfigsResource(
        resource_type=kind, resource_name=name, configuration_keys=None if keys is None else list(keys)
    )
    request = DescribeConfigsRequest(resources=[resource], include_synonyms=True, include_documentation=True)
    (result,) = client.ask(ApiKey.DESCRIBE_CONFIGS, request).results
    return result.error_code, {one.name: one for one in result.configs}


def alter(
    client: RawClient, kind: int, name: str, *steps: tuple[str, int, str | None], validate_only: bool = False
) -> tuple[int, str | None]:
    configs = [
        IncrementalAlterableConfig(name=setting, config_operation=operation, value=value)
        for setting, operation, value in steps
    ]
    resource = IncrementalAlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)
    request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=validate_only)
    (result,) = client.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, request).responses
    return result.error_code, result.error_message


def replace(client: RawClient, kind: int, name: str, settings: Mapping[str, str]) -> tuple[int, str | None]:
    configs = [AlterableConfig(name=setting, value=value) for setting, value in settings.items()]
    resource = AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)
    (result,) = client.ask(ApiKey.ALTER_CONFIGS, AlterConfigsRequest(resources=[resource])).responses
    return result.error_code, result.error_message


def told(settings: Settings, name: str) -> tuple[str | None, int]:
    return settings[name].value, settings[name].config_source


# --- the settings of a broker -------------------------------------------------------------------------


def test_how_many_replicas_there_are_is_told_as_by_a_kafka_of_one_broker(raw: Asking) -> None:
    """Debezium, ksqlDB and consoles read these before they create topics."""
    names = [
        *("default.replication.factor", "offsets.topic.replication.factor", "min.insync.replicas"),
        *("transaction.state.log.replication.factor", "transaction.state.log.min.isr"),
    ]
    _, settings = describe(raw, BROKER, "0", names)
    assert {name: told(settings, name) for name in names} == dict.fromkeys(names, ("1", DEFAULT))


def test_a_setting_changes_at_once_and_tells_where_it_comes_from(raw: Asking) -> None:
    raw.create("orders")
    assert alter(raw, BROKER, "", ("log.retention.ms", SET, "5000")) == NONE
    assert (
        alter(raw, BROKER, "0", ("log.retention.ms", SET, "7000"), ("log.segment.bytes", SET, "9000")) == NONE
    )
    _, settings = describe(raw, BROKER, "0")
    assert told(settings, "log.retention.ms") == ("7000", OF_BROKER)
    assert [(one.value, one.source) for one in settings["log.retention.ms"].synonyms] == [
        ("7000", OF_BROKER),
        ("5000", OF_ALL),
        ("-1", DEFAULT),
    ]
    assert [one.source for one in settings["log.segment.bytes"].synonyms] == [OF_BROKER, OF_FILE, DEFAULT]
    assert told(describe(raw, TOPIC, "orders")[1], "retention.ms") == ("7000", OF_BROKER)
    assert alter(raw, BROKER, "0", ("log.retention.ms", DELETE, None)) == NONE
    assert told(describe(raw, TOPIC, "orders")[1], "retention.ms") == ("5000", OF_ALL)
    # Under the empty name there is what all brokers were given, and nothing else.
    _, shared = describe(raw, BROKER, "")
    assert {name: told(shared, name) for name in shared} == {"log.retention.ms": ("5000", OF_ALL)}
    assert replace(raw, BROKER, "", {}) == NONE
    assert describe(raw, BROKER, "")[1] == {}
    assert told(describe(raw, TOPIC, "orders")[1], "retention.ms") == ("-1", DEFAULT)


def test_what_can_change_and_what_cannot_is_told(raw: Asking) -> None:
    _, settings = describe(raw, BROKER, "0")
    assert not settings["log.retention.ms"].read_only
    assert not settings["max.connections"].read_only
    assert settings["node.id"].read_only
    assert settings["num.partitions"].read_only
    # A list without names asks for all, as one that is not there does.
    assert describe(raw, BROKER, "0", [])[1].keys() == settings.keys()
    assert describe(raw, BROKER, "0", ["node.id"])[1].keys() == {"node.id"}


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("node.id", "4", "node.id cannot be changed at run time"),
        ("listeners", "PLAINTEXT://:1", "listeners cannot be changed at run time"),
        ("num.io.threads", "4", "num.io.threads is a setting of Kafka that Cordwood does not apply"),
        ("log.retention.mss", "4", "did you mean log.retention.ms?"),
        ("log.retention.ms", "soon", "log.retention.ms='soon': expected a whole number"),
        ("min.insync.replicas", "2", "expected 1: one broker"),
    ],
)
def test_what_a_broker_cannot_do_is_refused_by_name(raw: Asking, name: str, value: str, said: str) -> None:
    code, message = alter(raw, BROKER, "0", ("log.segment.bytes", SET, "5000"), (name, SET, value))
    assert code == ErrorCode.INVALID_REQUEST
    assert said in (message or "")
    assert told(describe(raw, BROKER, "0")[1], "log.segment.bytes") == ("1000000", OF_FILE), "all or nothing"
    assert replace(raw, BROKER, "0", {name: value})[0] == ErrorCode.INVALID_REQUEST


def test_only_this_broker_can_be_told(raw: Asking) -> None:
    for name in ("1", "x", "00"):
        assert alter(raw, BROKER, name, ("log.retention.ms", SET, "1"))[0] == ErrorCode.INVALID_REQUEST
        assert describe(raw, BROKER, name)[0] == ErrorCode.INVALID_REQUEST
    twice = [("log.retention.ms", SET, "1"), ("log.retention.ms", SET, "2")]
    assert alter(raw, BROKER, "0", *twice)[0] == ErrorCode.INVALID_REQUEST
    assert alter(raw, BROKER, "0", ("log.retention.ms", APPEND, "1"))[0] == ErrorCode.INVALID_REQUEST
    assert alter(raw, BROKER, "0", ("log.cleanup.policy", APPEND, "compact")) == NONE
    assert told(describe(raw, BROKER, "0")[1], "log.cleanup.policy") == ("compact,delete", OF_BROKER)


def test_what_is_only_validated_does_not_change(raw: Asking) -> None:
    assert alter(raw, BROKER, "0", ("log.retention.ms", SET, "1"), validate_only=True) == NONE
    assert told(describe(raw, BROKER, "0")[1], "log.retention.ms") == ("-1", DEFAULT)
    code, _ = alter(raw, BROKER, "0", ("log.retention.ms", SET, "x"), validate_only=True)
    assert code == ErrorCode.INVALID_REQUEST


def test_a_setting_that_a_topic_cannot_follow_is_refused(raw: Asking) -> None:
    """What is stored must stay readable, and a topic in the shared log cannot be compacted."""
    raw.create("packed", cordwood_storage="shared")
    code, message = alter(raw, BROKER, "", ("log.cleanup.policy", SET, "compact"))
    assert (code, "cordwood.storage=shared" in (message or "")) == (ErrorCode.INVALID_REQUEST, True)
    assert alter(raw, BROKER, "", ("message.max.bytes", SET, str(32 << 20))) == NONE
    code, _ = alter(raw, BROKER, "", ("message.max.bytes", SET, str(20 << 20)))
    assert code == ErrorCode.INVALID_REQUEST
    raw.produce("packed", batch.encode_records([(None, b"still taken")], 1_000))


def test_open_partitions_follow_a_change(raw: Asking) -> None:
    raw.create("orders")
    data = batch.encode_records([(None, b"value " * 100)], 1_000)
    assert raw.produce("orders", bytearray(data)).error_code == ErrorCode.NONE
    assert (
        alter(raw, BROKER, "", ("compression.type", SET, "zstd"), ("message.max.bytes", SET, "500")) == NONE
    )
    assert raw.produce("orders", bytearray(data)).error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert alter(raw, BROKER, "", ("message.max.bytes", DELETE, None)) == NONE
    assert raw.produce("orders", bytearray(data)).error_code == ErrorCode.NONE
    stored = b"".join(bytes(piece) for piece in raw.fetch("orders").records)
    assert [header.compression for header in batch.scan(stored).headers()] == [
        Compression.NONE,
        Compression.ZSTD,
    ]


def test_connections_are_limited_from_the_change_on(broker: Broker, raw: Asking) -> None:
    assert alter(raw, BROKER, "0", ("max.connections", SET, "1")) == NONE
    with Asking(broker.bootstrap) as another:
        another.send(ApiKey.DESCRIBE_CONFIGS, 4, DescribeConfigsRequest(resources=[]))
        assert another.receive_frame() == b"", "turned away"
    assert alter(raw, BROKER, "0", ("max.connections", DELETE, None)) == NONE
    with Asking(broker.bootstrap) as another:
        assert describe(another, BROKER, "0")[0] == ErrorCode.NONE


@pytest.mark.parametrize("kill", [False, True], ids=["SIGTERM", "kill -9"])
def test_settings_survive_a_restart_and_win_over_the_file(tmp_path: Path, kill: bool) -> None:
    with serving(tmp_path, {"log.retention.ms": "1000", "log.segment.bytes": "4000"}) as server:
        with Asking(server.address) as raw:
            raw.create("orders")
            assert alter(raw, BROKER, "0", ("log.retention.ms", SET, "2000")) == NONE
            assert alter(raw, BROKER, "", ("message.max.bytes", SET, str(20 << 20))) == NONE
            # Larger than what would be taken for a batch without that setting: recovery must know of it.
            large = batch.encode_records([(None, bytes(18 << 20))], 1_000, size_max=1 << 30)
            assert raw.produce("orders", large).error_code == ErrorCode.NONE
        server.restart(kill=kill)
        with Asking(server.address) as raw:
            _, settings = describe(raw, TOPIC, "orders")
            assert told(settings, "retention.ms") == ("2000", OF_BROKER)
            assert told(settings, "max.message.bytes") == (str(20 << 20), OF_ALL)
            assert told(settings, "segment.bytes") == ("4000", OF_FILE)
            assert raw.offset_at("orders", -1).offset == 1


# --- orgs ---------------------------------------------------------------------------------------------


@contextmanager
def two_orgs() -> Iterator[tuple[Asking, Asking]]:
    """Clients of org 0, whose broker it is, and of org 7."""
    listeners = "INSIDE://localhost:0,ACME://localhost:0"
    settings = {"listeners": listeners, "cordwood.listener.ACME.org": "7"}
    with Broker(listen=listeners, config=settings) as broker:
        assert broker._server is not None
        addresses = [f"127.0.0.1:{endpoint.port}" for endpoint in broker._server.endpoints]
        with Asking(addresses[0]) as inside, Asking(addresses[1]) as acme:
            yield inside, acme


def test_only_operators_change_the_broker_and_a_limit_holds_at_once() -> None:
    with two_orgs() as (inside, acme):
        name = "cordwood.org.7.stored.bytes"
        refused = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        assert alter(acme, BROKER, "0", (name, SET, "100000000"))[0] == refused
        assert alter(acme, LOGGER, "0", ("cordwood", SET, "DEBUG"))[0] == refused
        assert replace(acme, BROKER, "", {})[0] == refused
        acme.create("orders")
        data = batch.encode_records([(None, bytes(1000))], 1_000)
        assert acme.produce("orders", bytearray(data)).error_code == ErrorCode.NONE
        assert (
            alter(inside, BROKER, "", (name, SET, "1500"), ("cordwood.org.9.stored.bytes", SET, "5")) == NONE
        )
        assert acme.produce("orders", bytearray(data)).error_code == ErrorCode.POLICY_VIOLATION
        assert told(describe(acme, BROKER, "0")[1], name) == ("1500", OF_ALL)
        assert "cordwood.org.9.stored.bytes" not in describe(acme, BROKER, "0")[1]
        assert told(describe(inside, BROKER, "0")[1], "cordwood.org.9.stored.bytes") == ("5", OF_ALL)
        assert alter(inside, BROKER, "", (name, SET, "1000000")) == NONE
        assert acme.produce("orders", bytearray(data)).error_code == ErrorCode.NONE
        assert alter(inside, BROKER, "", (name, DELETE, None)) == NONE
        assert acme.produce("orders", bytearray(data)).error_code == ErrorCode.NONE


# --- groups and loggers -------------------------------------------------------------------------------


def test_the_settings_of_a_group_are_listed_with_their_defaults(raw: Asking) -> None:
    code, settings = describe(raw, GROUP, "any")
    assert code == ErrorCode.NONE
    assert told(settings, "consumer.session.timeout.ms") == ("45000", DEFAULT)
    assert told(settings, "share.auto.offset.reset") == ("latest", DEFAULT)
    assert told(settings, "streams.num.standby.replicas") == ("0", DEFAULT)
    assert len(settings) == 17
    assert describe(raw, GROUP, "")[0] == ErrorCode.INVALID_REQUEST
    code, _ = alter(raw, GROUP, "any", ("share.auto.offset.reset", SET, "earliest"))
    assert code == ErrorCode.INVALID_CONFIG
    assert describe(raw, 16, "metrics")[0] == ErrorCode.INVALID_REQUEST


def test_levels_of_loggers_are_told_and_set(raw: Asking, request: pytest.FixtureRequest) -> None:
    server, root = logging.getLogger("cordwood.server"), logging.getLogger("cordwood")
    for logger in (server, root):
        request.addfinalizer(partial(logger.setLevel, logger.level))
    assert alter(raw, LOGGER, "0", ("cordwood", SET, "WARN")) == NONE
    code, levels = describe(raw, LOGGER, "0")
    assert code == ErrorCode.NONE
    assert {"cordwood", "cordwood.server", "cordwood.maintenance"} <= levels.keys()
    assert all(name == "cordwood" or name.startswith("cordwood.") for name in levels)
    assert told(levels, "cordwood.server") == ("WARN", OF_LOGGER)
    for level, number in (("DEBUG", 10), ("TRACE", 5), ("FATAL", 50), ("ERROR", 40), ("INFO", 20)):
        assert alter(raw, LOGGER, "0", ("cordwood.server", SET, level)) == NONE
        assert told(describe(raw, LOGGER, "0")[1], "cordwood.server") == (level, OF_LOGGER)
        assert server.level == number
    assert alter(raw, LOGGER, "0", ("cordwood.server", DELETE, None)) == NONE
    assert told(describe(raw, LOGGER, "0")[1], "cordwood.server") == ("WARN", OF_LOGGER)


@pytest.mark.parametrize(
    ("step", "code"),
    [
        (("cordwood.server", SET, "LOUD"), ErrorCode.INVALID_CONFIG),
        (("cordwood.nobody", SET, "INFO"), ErrorCode.INVALID_CONFIG),
        (("kafka", SET, "INFO"), ErrorCode.INVALID_CONFIG),
        (("cordwood", DELETE, None), ErrorCode.INVALID_REQUEST),
        (("cordwood.server", APPEND, "INFO"), ErrorCode.INVALID_REQUEST),
    ],
)
def test_what_is_no_logger_level_or_change_is_refused_and_changes_nothing(
    raw: Asking, step: tuple[str, int, str | None], code: ErrorCode
) -> None:
    levels = describe(raw, LOGGER, "0")[1]
    assert alter(raw, LOGGER, "0", ("cordwood.maintenance", SET, "TRACE"), step)[0] == code
    assert describe(raw, LOGGER, "0")[1] == levels
    assert replace(raw, LOGGER, "0", {"cordwood": "INFO"})[0] == ErrorCode.INVALID_REQUEST
    assert describe(raw, LOGGER, "7")[0] == ErrorCode.INVALID_REQUEST


# --- clients ------------------------------------------------------------------------------------------


def test_librdkafkas_admin_sets_and_lists(broker: Broker) -> None:
    module: Any = confluent_kafka.admin
    admin = module.AdminClient({"bootstrap.servers": broker.bootstrap})
    entry = module.ConfigEntry(
        "log.retention.ms", "12345", incremental_operation=module.AlterConfigOpType.SET
    )
    resource = module.ConfigResource(module.ResourceType.BROKER, "0", incremental_configs=[entry])
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(30)
    asked = module.ConfigResource(module.ResourceType.BROKER, "0")
    found = admin.describe_configs([asked])[asked].result(30)["log.retention.ms"]
    assert (found.value, found.source) == ("12345", module.ConfigSource.DYNAMIC_BROKER_CONFIG.value)
    new = module.NewTopic("every", 1, 1, config={"compression.type": "lz4", "flush.ms": "5"})
    admin.create_topics([new])["every"].result(30)
    asked = module.ConfigResource(module.ResourceType.TOPIC, "every")
    settings = admin.describe_configs([asked])[asked].result(30)
    assert (settings["compression.type"].value, settings["flush.ms"].value) == ("lz4", "5")
    own = {
        name
        for name, found in settings.items()
        if found.source == module.ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    }
    assert own == {"compression.type", "flush.ms"}


def test_kafka_pythons_admin_lists_and_sets(broker: Broker) -> None:
    admin = kafka.admin.KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    try:
        kinds = kafka.admin.ConfigResourceType
        admin.alter_configs([kafka.admin.ConfigResource(kinds.BROKER, "0", {"log.retention.ms": "777"})])
        found: Any = admin.describe_configs([kafka.admin.ConfigResource(kinds.BROKER, "0")])
        assert "777" in str(found)
    finally:
        admin.close()


def test_aiokafkas_admin_lists_and_sets(broker: Broker) -> None:
    async def ask() -> str:
        admin = aiokafka.admin.AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap)
        await admin.start()
        try:
            module = aiokafka.admin.config_resource
            kind = module.ConfigResourceType.BROKER
            await admin.alter_configs([module.ConfigResource(kind, "0", {"log.retention.ms": "888"})])
            return str(await admin.describe_configs([module.ConfigResource(kind, "0")]))
        finally:
            await admin.close()

    assert "888" in asyncio.run(ask())
