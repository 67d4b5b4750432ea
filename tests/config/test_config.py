"""What configuration promises: Kafka's names, typed values, and an error that says what to write instead."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cordwood.config.authentication import NameList
from cordwood.config.kinds import SyncMode, SyncPolicy, text_of
from cordwood.config.listeners import Endpoint, Endpoints, ProtocolMap, SecurityProtocol
from cordwood.config.loading import (
    BROKER_SETTINGS,
    TOPIC_SETTINGS,
    BrokerConfig,
    OrgQuota,
    Setting,
    TopicConfig,
    load_broker_config,
    reference_table,
    topic_config,
)
from cordwood.config.per_listener import LISTENER_SETTINGS, CipherSuites, ListenerConfig
from cordwood.config.properties import parse_properties
from cordwood.config.setting import Secret
from cordwood.config.tenant_rules import TenantRules
from cordwood.errors import ConfigError, InvalidSetting, UnknownSetting

# As in Kafka, the broker has no default for these.
ONLY_OF_TOPICS = {
    "leader.replication.throttled.replicas",
    "follower.replication.throttled.replicas",
    "remote.storage.enable",
    "remote.log.copy.disable",
    "remote.log.delete.on.disable",
    "cordwood.timestamp.precision",
    "cordwood.export.index.interval",
    "cordwood.export.time.index",
}
SETTINGS = [*TOPIC_SETTINGS.values(), *BROKER_SETTINGS.values(), *LISTENER_SETTINGS.values()]
every_setting = pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)

# The settings in the server.properties files that Kafka 3.9 and 4.x ship.
KAFKA_SERVER_PROPERTIES = """
############################# Server Basics #############################
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=localhost:9093
controller.quorum.voters=1@localhost:9093
listeners=PLAINTEXT://:9092,CONTROLLER://:9093
inter.broker.listener.name=PLAINTEXT
advertised.listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_SSL:SASL_SSL
num.network.threads=3
num.io.threads=8
socket.send.buffer.bytes=102400
socket.receive.buffer.bytes=102400
socket.request.max.bytes=104857600
log.dirs=/tmp/kraft-combined-logs
num.partitions=1
num.recovery.threads.per.data.dir=1
offsets.topic.replication.factor=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
#log.flush.interval.messages=10000
#log.flush.interval.ms=1000
log.retention.hours=168
#log.retention.bytes=1073741824
log.segment.bytes=536870912
log.retention.check.interval.ms=300000
zookeeper.connect=localhost:2181
zookeeper.connection.timeout.ms=18000
group.initial.rebalance.delay.ms=0
"""


def load(properties: Mapping[str, str] = MappingProxyType({})) -> BrokerConfig:
    return load_broker_config(properties, environment={})[0]


def refusal(act: Callable[[], object]) -> ConfigError | None:
    """Return the error by which *act* refused, None if it did not; any other error passes."""
    try:
        act()
    except ConfigError as refused:
        return refused
    return None


# Declarations


@every_setting
def test_every_setting_has_a_sentence_and_a_default_it_accepts_itself(setting: Setting) -> None:
    assert setting.sentence.endswith(".")
    assert "|" not in setting.sentence + setting.kind.expected, "would break the reference table"
    assert setting.parse(text_of(setting.default)) == setting.default
    assert setting.broker_kinds or setting.name in ONLY_OF_TOPICS, "no way to set it for the whole broker"


def test_every_attribute_is_a_declared_setting() -> None:
    undeclared = {"explicit", "topic_defaults", "listener_orgs", "org_quotas"}
    undeclared |= {"listener_defaults", "listener_configs"}
    for config, settings in (
        (TopicConfig, TOPIC_SETTINGS),
        (BrokerConfig, BROKER_SETTINGS),
        (ListenerConfig, LISTENER_SETTINGS),
    ):
        attributes = {declared.name for declared in fields(config)} - undeclared
        assert attributes == {setting.attribute for setting in settings.values()}
    assert len(SETTINGS) >= 89


def test_no_two_settings_share_a_name_in_the_brokers_properties() -> None:
    names = [name for setting in SETTINGS for name in setting.broker_kinds]
    assert len(names) == len(set(names))


def test_defaults_are_the_promised_ones() -> None:
    topic = topic_config()
    assert topic.segment_bytes == 1024**3
    assert topic.segment_ms == 60 * 60 * 1000
    assert topic.segment_index_bytes == 10 * 1024**2
    assert topic.index_interval_bytes == 4096
    assert topic.max_message_bytes == 16 * 1024**2
    assert topic.message_timestamp_type == "CreateTime"
    assert topic.preallocate is False
    assert topic.format == "batch"
    assert topic.sync == SyncPolicy("each")
    broker = load()
    assert (broker.node_id, broker.data_dir, broker.sync_max_ms) == (0, "data", 10)
    assert broker.topic_defaults == topic


@every_setting
def test_reference_table_has_a_row_for_every_setting(setting: Setting) -> None:
    table = reference_table(SETTINGS)
    (row,) = [line for line in table.splitlines() if line.startswith(f"| `{setting.name}` |")]
    assert f"| `{text_of(setting.default)}` |" in row
    assert row.endswith(f"| {setting.sentence} |")
    for name in setting.broker_kinds:
        assert f"`{name}`" in row
    assert row.count("|") == table.splitlines()[0].count("|")


# Topics


def test_a_topics_own_setting_wins_over_the_brokers_and_the_brokers_over_the_default() -> None:
    broker = load({"log.segment.bytes": "2000", "log.index.interval.bytes": "64"})
    topic = topic_config({"segment.bytes": "1000"}, broker)
    assert (topic.segment_bytes, topic.index_interval_bytes, topic.segment_index_bytes) == (
        1000,
        64,
        10 << 20,
    )


def test_a_topic_remembers_only_what_was_set_for_itself() -> None:
    """The stored configuration of a topic must not freeze what it has from the broker."""
    broker = load({"log.segment.bytes": "2000"})
    topic = topic_config({"preallocate": "TRUE", "cordwood.sync": "every:010"}, broker)
    assert topic.explicit == {"preallocate", "cordwood.sync"}
    assert topic.overrides() == {"preallocate": "true", "cordwood.sync": "every:10"}
    assert topic_config(topic.overrides(), broker) == topic


def test_defaults_made_from_a_topics_configuration_are_not_explicit_in_other_topics() -> None:
    broker = BrokerConfig(topic_defaults=topic_config({"segment.bytes": "100"}))
    topic = topic_config({}, broker)
    assert (topic.segment_bytes, topic.explicit, topic.overrides()) == (100, frozenset(), {})


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("localhost:9092", "localhost", 9092),
        ("PLAINTEXT://:0", "", 0),
        ("[::1]:1", "::1", 1),
        ("EXTERNAL://a.example:1", "a.example", 1),
    ],
)
def test_an_endpoint_is_read_with_and_without_its_name(text: str, host: str, port: int) -> None:
    endpoint = Endpoint.parse(text)
    assert (endpoint.host, endpoint.port) == (host, port)


@pytest.mark.parametrize("text", ["", "h", "h:", "h:65536", "h:1x", "a b:1", "SSL:h:1", "S$L://h:1"])
def test_what_is_no_endpoint_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="neither"):
        Endpoint.parse(text)


@pytest.mark.parametrize(
    ("listener", "protocol", "tls", "sasl"),
    [
        ("PLAINTEXT", SecurityProtocol.PLAINTEXT, False, False),
        ("SSL", SecurityProtocol.SSL, True, False),
        ("sasl_plaintext", SecurityProtocol.SASL_PLAINTEXT, False, True),
        ("SASL_SSL", SecurityProtocol.SASL_SSL, True, True),
        ("INSIDE", SecurityProtocol.PLAINTEXT, False, False),
    ],
)
def test_a_listener_has_the_protocol_of_its_name(
    listener: str, protocol: SecurityProtocol, tls: bool, sasl: bool
) -> None:
    config = load({"listeners": f"{listener}://h:1"})
    found = config.security_of(config.listeners.each[0].name)
    assert (found, found.tls, found.sasl) == (protocol, tls, sasl)


def test_a_map_gives_listeners_their_protocols_and_must_have_all_of_them() -> None:
    """A listener that the map forgets must not be a plain one."""
    listeners = {"listeners": "inside://h:1,Outside://h:2"}
    config = load({**listeners, "listener.security.protocol.map": "INSIDE:PLAINTEXT,OUTSIDE:SASL_SSL,X:SSL"})
    assert config.security_of("inside") is SecurityProtocol.PLAINTEXT
    assert config.security_of("Outside") is SecurityProtocol.SASL_SSL
    for protocols in ("INSIDE:PLAINTEXT", "", "INSIDE:PLAINTEXT,SSL:SSL"):
        with pytest.raises(InvalidSetting, match="listener Outside"):
            load({**listeners, "listener.security.protocol.map": protocols})


@pytest.mark.parametrize(
    "text", ["A", "A:", ":SSL", "A:TLS", "A:SSL,A:PLAINTEXT", "A:SSL,a:SSL", "A:SSL,", "A:B:SSL"]
)
def test_what_is_no_map_of_protocols_is_refused(text: str) -> None:
    with pytest.raises(InvalidSetting) as refused:
        load({"listener.security.protocol.map": text})
    assert refused.value.name == "listener.security.protocol.map"


@pytest.mark.parametrize("name", ["SSL_OUTSIDE", "public-tls", "SaslClients"])
def test_a_name_that_promises_security_is_not_a_plain_listener(name: str) -> None:
    with pytest.raises(InvalidSetting, match=name):
        load({"listeners": f"{name}://h:1"})
    with pytest.raises(InvalidSetting, match=r"cordwood\.metrics\.listen"):
        load({"cordwood.metrics.listen": f"{name}://h:1"})


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [
        ("segmnt.bytes", "segment.bytes"),
        ("max.messages.bytes", "max.message.bytes"),
        ("log.segment.bytes", "segment.bytes"),
        ("log.roll.hours", "segment.ms"),
        ("node.id", None),
        ("colour", None),
    ],
)
def test_unknown_topic_setting_is_refused_with_what_was_probably_meant(
    name: str, suggestion: str | None
) -> None:
    with pytest.raises(UnknownSetting) as refused:
        topic_config({name: "1"})
    assert (refused.value.name, refused.value.suggestion) == (name, suggestion)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("segment.bytes", "13", "a whole number of bytes from 14 to 2147483647"),
        ("segment.bytes", "2147483648", "a whole number of bytes from 14 to 2147483647"),
        ("segment.bytes", "1_000", "a whole number of bytes from 14 to 2147483647"),
        ("segment.bytes", "1k", "a whole number of bytes from 14 to 2147483647"),
        ("segment.ms", "0", "a whole number of milliseconds from 1 to 9223372036854775807"),
        ("message.timestamp.type", "createtime", "CreateTime or LogAppendTime"),
        ("preallocate", "yes", "true or false"),
        ("cordwood.format", "parquet", "batch or rustlog or kimberlite or laminarmq or frame"),
        ("cordwood.sync", "always", "each, every:N, ms:T or never, N and T from 1 to 2147483647"),
    ],
)
def test_invalid_value_is_refused_with_name_value_and_expectation(
    name: str, text: str, expected: str
) -> None:
    with pytest.raises(InvalidSetting) as refused:
        topic_config({name: text})
    assert (refused.value.name, refused.value.value, refused.value.expected) == (name, text, expected)
    assert str(refused.value) == f"{name}={text!r}: expected {expected}"


def test_bounds_themselves_are_valid() -> None:
    assert topic_config({"segment.bytes": "14"}).segment_bytes == 14
    assert topic_config({"segment.bytes": " +2147483647 "}).segment_bytes == 2**31 - 1


def test_values_set_in_code_obey_the_same_rules() -> None:
    assert TopicConfig(segment_bytes=100).segment_bytes == 100
    with pytest.raises(InvalidSetting, match=r"segment\.bytes"):
        TopicConfig(segment_bytes=13)
    with pytest.raises(InvalidSetting, match=r"segment\.bytes"):
        TopicConfig(segment_bytes=True)
    with pytest.raises(InvalidSetting, match=r"segment\.ms"):
        TopicConfig(segment_ms="5")  # type: ignore[arg-type]
    with pytest.raises(InvalidSetting, match=r"segment\.ms"):
        replace(TopicConfig(), segment_ms=0)
    with pytest.raises(InvalidSetting, match=r"node\.id"):
        BrokerConfig(node_id=-1)
    with pytest.raises(InvalidSetting, match=r"log\.dirs"):
        BrokerConfig(data_dir="")


def test_configurations_are_values() -> None:
    """They can be compared, put in sets and sent to another process."""
    topic = topic_config({"segment.bytes": "100"})
    assert topic == topic_config({"segment.bytes": "0100"}) != TopicConfig(segment_bytes=100)
    assert len({topic, topic_config({"segment.bytes": "100"})}) == 1
    assert pickle.loads(pickle.dumps(topic)) == topic


# Sync policies


@pytest.mark.parametrize("text", ["each", "every:1", "every:1000", "ms:5", "ms:2147483647", "never"])
def test_sync_policy_round_trips(text: str) -> None:
    policy = SyncPolicy.parse(text)
    assert str(policy) == text
    assert SyncPolicy.parse(str(policy)) == policy


@pytest.mark.parametrize(
    "text",
    [
        "",
        "each:",
        "each:1",
        "every",
        "every:",
        "every:0",
        "every:-1",
        "every:1.5",
        "ms:2147483648",
        "never:0",
    ],
)
def test_malformed_sync_policy_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        SyncPolicy.parse(text)


@pytest.mark.parametrize(("mode", "amount"), [("each", 1), ("never", 1), ("every", 0), ("ms", -1)])
def test_sync_policy_that_no_text_names_cannot_be_built(mode: SyncMode, amount: int) -> None:
    with pytest.raises(ValueError):
        SyncPolicy(mode, amount)


def test_only_each_calls_itself_durable() -> None:
    durable = [text for text in ("each", "every:1", "ms:1", "never") if SyncPolicy.parse(text).durable]
    assert durable == ["each"]


# Brokers


def test_server_properties_of_kafka_loads_with_warnings_only() -> None:
    properties = parse_properties(KAFKA_SERVER_PROPERTIES)
    config, warnings = load_broker_config(properties, environment={})
    applied = {
        "node.id": (config.node_id, 1),
        "listeners": (str(config.listeners), "PLAINTEXT://:9092"),
        "advertised.listeners": (str(config.advertised_listeners), "PLAINTEXT://localhost:9092"),
        "listener.security.protocol.map": (
            str(config.security_protocols),
            "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_SSL:SASL_SSL",
        ),
        "log.dirs": (config.data_dir, "/tmp/kraft-combined-logs"),
        "num.partitions": (config.num_partitions, 1),
        "offsets.topic.replication.factor": (config.offsets_replicas, 1),
        "transaction.state.log.replication.factor": (config.transactions_replicas, 1),
        "transaction.state.log.min.isr": (config.transactions_min_isr, 1),
        "group.initial.rebalance.delay.ms": (config.group_initial_rebalance_delay_ms, 0),
        "socket.request.max.bytes": (config.socket_request_max_bytes, 104857600),
        "log.segment.bytes": (config.topic_defaults.segment_bytes, 536870912),
        "log.retention.hours": (config.topic_defaults.retention_ms, 168 * 3_600_000),
        "log.retention.check.interval.ms": (config.retention_check_interval_ms, 300_000),
    }
    assert config.explicit == set(applied)
    assert all(found == expected for found, expected in applied.values())
    assert len(properties) == 28
    assert warnings == [
        f"{name} is a setting of Kafka that Cordwood does not apply."
        for name in properties
        if name not in applied
    ]


@pytest.mark.parametrize(
    "name",
    [
        "sasl.kerberos.service.name",
        "listener.name.internal.sasl.login.class",
        "listener.name.internal.plain.sasl.jaas.config",
        "listener.name.internal.ssl.keystore.password",
        "remote.log.reader.threads",
    ],
)
def test_open_families_of_kafka_settings_are_known_by_prefix(name: str) -> None:
    assert load_broker_config({name: "x"}, environment={})[1] == [
        f"{name} is a setting of Kafka that Cordwood does not apply."
    ]


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [
        ("log.segment.byte", "log.segment.bytes"),
        ("log.dri", "log.dir"),
        ("num.partition", "num.partitions"),
        ("cordwood.sync.max", "cordwood.sync.max.ms"),
        ("segment.bytes", "log.segment.bytes"),
        ("max.message.bytes", "message.max.bytes"),
        ("colour", None),
    ],
)
@pytest.mark.parametrize("as_override", [False, True])
def test_unknown_broker_setting_is_refused_with_what_was_probably_meant(
    name: str, suggestion: str | None, as_override: bool
) -> None:
    layers: list[dict[str, str]] = [{}, {name: "1"}] if as_override else [{name: "1"}, {}]
    with pytest.raises(UnknownSetting) as refused:
        load_broker_config(*layers)
    assert (refused.value.name, refused.value.suggestion) == (name, suggestion)


BROKER_SAMPLES: dict[str, tuple[str, Any]] = {
    "log.roll.jitter.ms": ("77", 77),
    "log.roll.jitter.hours": ("2", 7_200_000),
    "log.message.timestamp.before.max.ms": ("5", 5),
    "log.message.timestamp.after.max.ms": ("6", 6),
    "compression.type": ("zstd", "zstd"),
    "compression.gzip.level": ("9", 9),
    "compression.lz4.level": ("17", 17),
    "compression.zstd.level": ("-131072", -131072),
    "log.flush.interval.messages": ("1", 1),
    "log.flush.interval.ms": ("1000", 1000),
    "log.flush.scheduler.interval.ms": ("1001", 1001),
    "log.segment.delete.delay.ms": ("0", 0),
    "min.insync.replicas": ("1", 1),
    "default.replication.factor": ("1", 1),
    "offsets.topic.replication.factor": ("1", 1),
    "transaction.state.log.replication.factor": ("1", 1),
    "transaction.state.log.min.isr": ("1", 1),
    "unclean.leader.election.enable": ("true", True),
    "log.local.retention.ms": ("-1", -1),
    "log.local.retention.bytes": ("100", 100),
    "node.id": ("7", 7),
    "broker.id": ("7", 7),
    "log.dirs": ("/d", "/d"),
    "log.dir": ("/d", "/d"),
    "cordwood.sync.max.ms": ("7", 7),
    "cordwood.allow.plaintext": ("true", True),
    "cordwood.unauthenticated.connections.max": ("7", 7),
    "cordwood.authentication.timeout.ms": ("7", 7),
    "cordwood.metrics.token.file": ("/token", "/token"),
    "ssl.keystore.type": ("PEM", "PEM"),
    "ssl.keystore.location": ("/k.pem", "/k.pem"),
    "ssl.keystore.certificate.chain": ("certificate", "certificate"),
    "ssl.keystore.key": ("key", Secret("key")),
    "ssl.key.password": ("word", Secret("word")),
    "ssl.truststore.type": ("PEM", "PEM"),
    "ssl.truststore.location": ("/t.pem", "/t.pem"),
    "ssl.truststore.certificates": ("certificates", "certificates"),
    "cordwood.ssl.crl.location": ("/r.pem", "/r.pem"),
    "ssl.client.auth": ("required", "required"),
    "ssl.enabled.protocols": ("TLSv1.3", "TLSv1.3"),
    "ssl.cipher.suites": ("A, B", CipherSuites(("A", "B"))),
    "connection.failed.authentication.delay.ms": ("7", 7),
    "cordwood.principal.tenant.rules": ("RULE:a/7/", TenantRules.parse("RULE:a/7/")),
    "sasl.enabled.mechanisms": ("PLAIN, OAUTHBEARER", "OAUTHBEARER,PLAIN"),
    "connections.max.reauth.ms": ("7", 7),
    "sasl.oauthbearer.jwks.endpoint.url": ("https://a/keys", "https://a/keys"),
    "sasl.oauthbearer.jwks.endpoint.refresh.ms": ("7000", 7000),
    "sasl.oauthbearer.expected.audience": ("a, b", NameList(("a", "b"))),
    "sasl.oauthbearer.expected.issuer": ("a", "a"),
    "sasl.oauthbearer.clock.skew.seconds": ("7", 7),
    "sasl.oauthbearer.sub.claim.name": ("a", "a"),
    "sasl.oauthbearer.scope.claim.name": ("a", "a"),
    "ssl.principal.mapping.rules": ("RULE:^CN=(.*)$/$1/L,DEFAULT", "RULE:^CN=(.*)$/$1/L,DEFAULT"),
    "listeners": ("PLAINTEXT://h:7", Endpoints((Endpoint("h", 7),))),
    "advertised.listeners": ("h:7,[::1]:8", Endpoints((Endpoint("h", 7), Endpoint("::1", 8)))),
    "listener.security.protocol.map": (
        "plaintext:plaintext, A:SASL_SSL",
        ProtocolMap((("PLAINTEXT", SecurityProtocol.PLAINTEXT), ("A", SecurityProtocol.SASL_SSL))),
    ),
    "num.partitions": ("7", 7),
    "auto.create.topics.enable": ("false", False),
    "delete.topic.enable": ("false", False),
    "socket.request.max.bytes": ("77", 77),
    "queued.max.request.bytes": ("7777777", 7777777),
    "fetch.max.bytes": ("7777", 7777),
    "max.incremental.fetch.session.cache.slots": ("7", 7),
    "max.connections": ("7", 7),
    "connections.max.idle.ms": ("7", 7),
    "cordwood.client.stall.ms": ("7", 7),
    "authorizer.class.name": ("cordwood", "cordwood"),
    "super.users": (" User:a ;;User:CN=b,OU=c:d", "User:a;User:CN=b,OU=c:d"),
    "allow.everyone.if.no.acl.found": ("TRUE", True),
    "producer.id.expiration.ms": ("7", 7),
    "group.min.session.timeout.ms": ("7", 7),
    "group.max.session.timeout.ms": ("7", 7),
    "group.max.size": ("7", 7),
    "group.consumer.session.timeout.ms": ("46000", 46_000),
    "group.consumer.min.session.timeout.ms": ("7", 7),
    "group.consumer.max.session.timeout.ms": ("70000", 70_000),
    "group.consumer.heartbeat.interval.ms": ("6000", 6_000),
    "group.consumer.min.heartbeat.interval.ms": ("7", 7),
    "group.consumer.max.heartbeat.interval.ms": ("7000", 7_000),
    "group.consumer.assignment.interval.ms": ("7", 7),
    "group.consumer.min.assignment.interval.ms": ("7", 7),
    "group.consumer.max.assignment.interval.ms": ("7000", 7_000),
    "group.consumer.max.size": ("7", 7),
    "group.consumer.assignors": ("range, uniform", "range,uniform"),
    "group.consumer.regex.refresh.interval.ms": ("17000", 17_000),
    "group.consumer.migration.policy": ("upgrade", "upgrade"),
    "group.initial.rebalance.delay.ms": ("7", 7),
    "offsets.retention.minutes": ("7", 7),
    "offset.metadata.max.bytes": ("7", 7),
    "transaction.max.timeout.ms": ("7", 7),
    "transactional.id.expiration.ms": ("7", 7),
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": ("7", 7),
    "transaction.remove.expired.transaction.cleanup.interval.ms": ("7", 7),
    "log.flush.offset.checkpoint.interval.ms": ("7", 7),
    "cordwood.bucket": ("s3://logs/orders", "s3://logs/orders"),
    "cordwood.bucket.interval.ms": ("70", 70),
    "cordwood.bucket.lease.ms": ("7", 7),
    "log.retention.check.interval.ms": ("7", 7),
    "log.cleaner.enable": ("false", False),
    "log.cleaner.backoff.ms": ("7", 7),
    "log.cleaner.dedupe.buffer.size": ("7777", 7777),
    "log.cleaner.io.max.bytes.per.second": ("7", 7),
    "cordwood.scrub.bytes.per.second": ("0", 0),
    "cordwood.scrub.interval.ms": ("7", 7),
    "cordwood.clock.jump.ms": ("7", 7),
    "cordwood.clock.freeze.ms": ("7", 7),
    "cordwood.metrics.listen": ("h:7", Endpoints((Endpoint("h", 7),))),
    "cordwood.metrics.partitions": ("true", True),
    "cordwood.traces": ("true", True),
    "cordwood.audit.topic": ("__audit-eu", "__audit-eu"),
    "cordwood.audit.required": ("true", True),
    "log.cleanup.policy": ("compact", "compact"),
    "log.retention.ms": ("77", 77),
    "log.retention.minutes": ("77", 77 * 60_000),
    "log.retention.hours": ("77", 77 * 3_600_000),
    "log.retention.bytes": ("77", 77),
    "cordwood.retention.wait.for.groups": ("true", True),
    "cordwood.retention.clock": ("timestamp", "timestamp"),
    "cordwood.timestamp.order": ("lift", "lift"),
    "cordwood.remote.acks": ("true", True),
    "cordwood.chain": ("true", True),
    "cordwood.compaction.evidence.ms": ("3600000", 3_600_000),
    "log.cleaner.delete.retention.ms": ("7", 7),
    "log.cleaner.min.cleanable.ratio": ("0.25", 0.25),
    "log.cleaner.min.compaction.lag.ms": ("7", 7),
    "log.cleaner.max.compaction.lag.ms": ("7", 7),
    "log.segment.bytes": ("77", 77),
    "log.roll.ms": ("77", 77),
    "log.roll.hours": ("77", 77 * 3_600_000),
    "log.index.size.max.bytes": ("77", 77),
    "log.index.interval.bytes": ("77", 77),
    "cordwood.index.interval.records": ("77", 77),
    "cordwood.index.cache.segments": ("7", 7),
    "cordwood.file.mode": ("group", "group"),
    "cordwood.io": ("direct", "direct"),
    "message.max.bytes": ("77", 77),
    "log.message.timestamp.type": ("LogAppendTime", "LogAppendTime"),
    "log.preallocate": ("true", True),
    "cordwood.format": ("batch", "batch"),
    "cordwood.sync": ("ms:7", SyncPolicy("ms", 7)),
    "cordwood.verify": ("every", "every"),
    "cordwood.initial.offset": ("7", 7),
    "cordwood.storage": ("shared", "shared"),
}


def test_a_format_is_a_setting_of_a_topic_and_not_a_default_of_the_broker() -> None:
    """The default could be another one tomorrow, and the topic's files would not be."""
    assert topic_config({"cordwood.format": "rustlog"}).format == "rustlog"
    with pytest.raises(InvalidSetting, match="batch: other formats are set per topic"):
        load({"cordwood.format": "rustlog"})


def test_where_a_topic_is_kept_is_settled_when_it_is_created() -> None:
    """The broker's setting may be another one tomorrow; the records of a topic stay where they are."""
    broker = load({"cordwood.storage": "shared"})
    assert topic_config({}, broker).storage == "own"
    assert topic_config({"cordwood.storage": "shared"}, load({})).storage == "shared"


@pytest.mark.parametrize(
    ("settings", "name"),
    [({"cleanup.policy": "compact"}, "cleanup.policy"), ({"cordwood.format": "frame"}, "cordwood.format")],
)
def test_what_the_shared_log_cannot_do_is_refused_by_name(settings: dict[str, str], name: str) -> None:
    topic_config(settings)
    with pytest.raises(InvalidSetting, match=r"cordwood\.storage=shared") as refused:
        topic_config({**settings, "cordwood.storage": "shared"})
    assert refused.value.name == name


TWO_LISTENERS = {"listeners": "INSIDE://localhost:1,ACME://localhost:2"}


def test_the_clients_of_a_listener_are_of_its_org_and_others_of_org_0() -> None:
    largest = str(2**64 - 1)
    config = load({**TWO_LISTENERS, "cordwood.listener.ACME.org": largest})
    assert (config.org_of("INSIDE"), config.org_of("ACME")) == (0, 2**64 - 1)
    assert load({}).org_of("PLAINTEXT") == 0


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("cordwood.listener.ACNE.org", "7", "the name of one of the listeners: ACME or INSIDE"),
        ("cordwood.listener.acme.org", "7", "the name of one of the listeners: ACME or INSIDE"),
        ("cordwood.listener.ACME.org", "07", "the number of an org"),
        ("cordwood.listener.ACME.org", "-1", "the number of an org"),
        ("cordwood.listener.ACME.org", str(2**64), "the number of an org"),
        ("cordwood.listener.ACME.org", "acme", "the number of an org"),
        ("cordwood.org.seven.stored.bytes", "5", "<org> in its name to be the number of an org"),
        ("cordwood.org.7.stored.bytes", "-1", "a whole number of bytes from 0"),
        ("cordwood.org.7.producer.byte.rate", "0", "a whole number of bytes from 1"),
        ("cordwood.org.7.consumer.byte.rate", "1e6", "a whole number of bytes from 1"),
    ],
)
def test_a_bad_org_or_quota_is_one_error_with_its_name(name: str, text: str, expected: str) -> None:
    with pytest.raises(InvalidSetting) as refused:
        load({**TWO_LISTENERS, name: text})
    assert refused.value.name == name
    assert refused.value.expected.startswith(expected)


def test_a_misspelt_quota_is_unknown() -> None:
    with pytest.raises(UnknownSetting):
        load({"cordwood.org.7.stored.byte": "5"})


def test_quotas_are_those_of_their_org_and_overrides_win() -> None:
    given = {
        "cordwood.org.7.producer.byte.rate": "10",
        "cordwood.org.7.stored.bytes": "30",
        "cordwood.org.0.consumer.byte.rate": "20",
    }
    config, warnings = load_broker_config(given, {"cordwood.org.7.stored.bytes": "40"}, environment={})
    assert warnings == ["The quotas of org 7 have no effect: no listener belongs to it."]
    assert config.quota_of(7) == OrgQuota(10, None, 40)
    assert config.quota_of(0) == OrgQuota(None, 20, None)
    assert config.quota_of(8) == OrgQuota()


def test_an_org_sees_no_listener_and_no_quota_of_another() -> None:
    config = load(
        {
            **TWO_LISTENERS,
            "advertised.listeners": "INSIDE://a:1,ACME://b:2",
            "listener.security.protocol.map": "INSIDE:PLAINTEXT,ACME:SSL",
            "cordwood.listener.ACME.org": "7",
            "cordwood.org.7.stored.bytes": "30",
        }
    )
    inside, acme = config.seen_by(0), config.seen_by(7)
    assert (str(inside.listeners), str(acme.listeners)) == ("INSIDE://localhost:1", "ACME://localhost:2")
    assert (str(inside.advertised_listeners), str(acme.advertised_listeners)) == (
        "INSIDE://a:1",
        "ACME://b:2",
    )
    assert (str(inside.security_protocols), str(acme.security_protocols)) == ("INSIDE:PLAINTEXT", "ACME:SSL")
    assert (dict(inside.org_quotas), dict(inside.listener_orgs)) == ({}, {})
    assert acme.quota_of(7).stored_bytes == 30


@every_setting
def test_every_name_of_a_setting_reaches_its_attribute_and_no_other(setting: Setting) -> None:
    for name in setting.broker_kinds:
        text, value = BROKER_SAMPLES[name]
        changed: dict[str, Any] = {setting.attribute: value}
        if setting.name in TOPIC_SETTINGS:
            changed = {"topic_defaults": replace(TopicConfig(), **changed)}
        elif setting.name in LISTENER_SETTINGS:
            listener = replace(ListenerConfig(), **changed, explicit=frozenset({name}))
            changed = {"listener_defaults": listener}
        assert load({name: text}) == replace(BrokerConfig(), **changed, explicit=frozenset({name}))


@pytest.mark.parametrize("name", ["log.retention.ms", "log.retention.minutes", "log.retention.hours"])
def test_no_limit_is_the_same_number_in_every_unit(name: str) -> None:
    assert load({name: "-1"}).topic_defaults.retention_ms == -1


def test_invalid_value_is_reported_under_the_name_and_unit_it_was_given_in() -> None:
    with pytest.raises(
        InvalidSetting, match=r"^log\.roll\.hours='0': expected a whole number of hours from 1 to "
    ):
        load({"log.roll.hours": "0"})


def test_the_more_precise_name_wins_and_the_other_is_named_as_ignored() -> None:
    config, warnings = load_broker_config({"log.roll.hours": "2", "log.roll.ms": "1500"}, environment={})
    assert config.topic_defaults.segment_ms == 1500
    assert warnings == ["log.roll.hours is ignored because log.roll.ms is set."]


def test_override_wins_over_properties_under_any_name_of_the_setting() -> None:
    config, warnings = load_broker_config(
        {"node.id": "1", "log.roll.ms": "1500"}, {"broker.id": "2", "log.roll.hours": "1"}, environment={}
    )
    assert (config.node_id, config.topic_defaults.segment_ms, warnings) == (2, 3_600_000, [])


def test_data_directory_comes_from_override_then_properties_then_environment_then_default() -> None:
    override, properties, variable = {"log.dirs": "/o"}, {"log.dir": "/p"}, {"CORDWOOD_DATA_DIR": "/e"}
    assert load_broker_config(properties, override, variable)[0].data_dir == "/o"
    assert load_broker_config(properties, {}, variable)[0].data_dir == "/p"
    assert load_broker_config({}, {}, variable)[0].data_dir == "/e"
    assert load_broker_config({}, {}, {"CORDWOOD_DATA_DIR": ""})[0].data_dir == "data"


def test_the_process_environment_is_read_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CORDWOOD_DATA_DIR", "/from/the/environment")
    assert load_broker_config()[0].data_dir == "/from/the/environment"


def test_a_list_of_directories_is_refused_where_kafka_takes_one() -> None:
    """A comma in a path that is not Kafka's list is part of the path."""
    with pytest.raises(InvalidSetting, match="one directory"):
        load({"log.dirs": "/a,/b"})
    assert load({"log.dir": "/a,b"}).data_dir == "/a,b"
    assert BrokerConfig(data_dir="/a,b").data_dir == "/a,b"


# Properties files


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=1\nb = 2\n  c:3\nd : 4\ne 5\nf\t6", {"a": "1", "b": "2", "c": "3", "d": "4", "e": "5", "f": "6"}),
        ("# comment\n! comment\n  # comment\na=1 # no comment", {"a": "1 # no comment"}),
        ("# no continuation \\\na=1", {"a": "1"}),
        ("a=1\r\nb=2\rc=3", {"a": "1", "b": "2", "c": "3"}),
        ("a=one,\\\n    two,\\\n\tthree\nb=2", {"a": "one,two,three", "b": "2"}),
        ("a=1\\\n# part of the value", {"a": "1# part of the value"}),
        ("a=ends in a backslash\\\\\nb=2", {"a": "ends in a backslash\\", "b": "2"}),
        ("a=\\\n\nb=2", {"a": "", "b": "2"}),
        ("a=1\\", {"a": "1"}),
        ("a=\\t\\n\\r\\f\\u00e9\\q", {"a": "\t\n\r\fé" + "q"}),
        ("a=\\ud83e\\udeb5", {"a": "\U0001fab5"}),
        ("a\\=b\\:c\\ d=1", {"a=b:c d": "1"}),
        ("a==b=c", {"a": "=b=c"}),
        ("a=:b", {"a": ":b"}),
        ("a=1\na=2", {"a": "2"}),
        ("a", {"a": ""}),
        ("a=", {"a": ""}),
        ("a=1  ", {"a": "1  "}),
        ("a=\u2028b\x0bc", {"a": "\u2028b\x0bc"}),
        ("\n \t\n\f\n", {}),
        ("", {}),
    ],
)
def test_properties_are_read_as_java_reads_them(text: str, expected: dict[str, str]) -> None:
    assert parse_properties(text) == expected


@pytest.mark.parametrize("escape", ["\\u12", "\\u12g4", "\\u", "\\u+123", "\\ud83e", "\\u 123"])
def test_malformed_escape_is_refused_with_its_line(escape: str) -> None:
    with pytest.raises(ConfigError, match=r"^line 4: b: ") as refused:
        parse_properties(f"a=1,\\\n  2\n\nb={escape}\n")
    assert refused.value.name == "b"


def test_value_without_a_name_is_refused_with_its_line() -> None:
    with pytest.raises(ConfigError, match=r"^line 2: a value without a name$"):
        parse_properties("a=1\n = 2")


# Anything at all


@given(st.text() | st.text(alphabet="ab=: \\\n\r\t\fu0d8#!"))
def test_any_properties_text_is_read_or_refused(text: str) -> None:
    refused = refusal(lambda: parse_properties(text))
    assert str(refused).startswith("line ") if refused else all(parse_properties(text))


@given(st.dictionaries(st.text(min_size=1), st.text()))
def test_properties_escaped_as_java_does_come_back(settings: dict[str, str]) -> None:
    def escape(text: str) -> str:
        units = text.encode("utf-16-be")
        return "".join(f"\\u{units[i] << 8 | units[i + 1]:04x}" for i in range(0, len(units), 2))

    lines = [f"{escape(name)}={escape(value)}" for name, value in settings.items()]
    assert parse_properties("\n".join(lines)) == settings


VALUES = (
    st.text()
    | st.integers().map(str)
    | st.sampled_from(["true", "each", "every:5", "CreateTime", "batch", " 100 ", "٣", "9" * 5000])
    | st.from_regex(r"(every|ms):-?[0-9]{1,12}", fullmatch=True)
)


@given(setting=st.sampled_from(SETTINGS), text=VALUES)
@example(setting=TOPIC_SETTINGS["segment.bytes"], text="9" * 5000)
def test_any_value_of_any_setting_is_taken_or_refused_by_name(setting: Setting, text: str) -> None:
    """What is taken survives being stored as text."""
    for name in setting.broker_kinds:
        refused = refusal(lambda name=name: setting.parse(text, name))  # type: ignore[misc]
        if isinstance(refused, InvalidSetting):
            assert (refused.name, refused.value) == (name, text)
        else:
            value = setting.parse(text, name)
            assert setting.secret or setting.parse(text_of(value)) == value


@given(
    st.dictionaries(
        st.sampled_from([*TOPIC_SETTINGS, *(name for setting in SETTINGS for name in setting.broker_kinds)])
        | st.text(),
        VALUES,
    )
)
def test_any_configuration_is_taken_or_refused(properties: dict[str, str]) -> None:
    for refused in (refusal(lambda: load(properties)), refusal(lambda: topic_config(properties))):
        assert refused is None or refused.name in properties


# Kafka's settings

#: Every topic setting of Kafka 4.3: its type, its default, values it takes, and values that it does not take.
KAFKA_TOPIC_SETTINGS = {
    "cleanup.policy": ("list", "delete", ["compact", "delete, compact", "compact,delete"], ["", "shred"]),
    "compression.gzip.level": ("int", "-1", ["1", "9"], ["0", "10"]),
    "compression.lz4.level": ("int", "9", ["1", "17"], ["0", "18"]),
    "compression.type": (
        "string",
        "producer",
        ["gzip", "snappy", "lz4", "zstd", "uncompressed"],
        ["none", "ZSTD", ""],
    ),
    "compression.zstd.level": ("int", "3", ["-131072", "22"], ["23", "-131073"]),
    "delete.retention.ms": ("long", "86400000", ["0"], ["-1"]),
    "file.delete.delay.ms": ("long", "60000", ["0"], ["-1"]),
    "flush.messages": ("long", str(2**63 - 1), ["1"], ["0"]),
    "flush.ms": ("long", str(2**63 - 1), ["0"], ["-1"]),
    "follower.replication.throttled.replicas": ("list", "", ["*", "0:1", "0:1,7:2"], ["0", "0:", "*,0:1"]),
    "index.interval.bytes": ("int", "4096", ["0"], ["-1"]),
    "leader.replication.throttled.replicas": ("list", "", ["*", "0:1", "0:1,7:2"], ["x:y"]),
    "local.retention.bytes": ("long", "-2", ["-1", "0"], ["-3"]),
    "local.retention.ms": ("long", "-2", ["-1", "0"], ["-3"]),
    "max.compaction.lag.ms": ("long", str(2**63 - 1), ["1"], ["0"]),
    "max.message.bytes": ("int", "16777216", ["0"], ["-1"]),
    "message.timestamp.after.max.ms": ("long", "3600000", ["0", str(2**63 - 1)], ["-1"]),
    "message.timestamp.before.max.ms": ("long", str(2**63 - 1), ["0"], ["-1"]),
    "message.timestamp.type": ("string", "CreateTime", ["LogAppendTime"], ["createtime"]),
    "min.cleanable.dirty.ratio": ("double", "0.5", ["0", "1"], ["1.1"]),
    "min.compaction.lag.ms": ("long", "0", ["5"], ["-1"]),
    "min.insync.replicas": ("int", "1", ["1"], ["0", "2"]),
    "preallocate": ("boolean", "false", ["true"], ["yes"]),
    "remote.log.copy.disable": ("boolean", "false", ["true"], ["no"]),
    "remote.log.delete.on.disable": ("boolean", "false", ["true"], ["no"]),
    "remote.storage.enable": ("boolean", "false", ["FALSE"], ["true", "no"]),
    "retention.bytes": ("long", "-1", ["0"], ["x"]),
    "retention.ms": ("long", "-1", ["0"], ["-2"]),
    "segment.bytes": ("int", "1073741824", ["1048576"], ["x"]),
    "segment.index.bytes": ("int", "10485760", ["1024"], ["x"]),
    "segment.jitter.ms": ("long", "0", ["5"], ["-1"]),
    "segment.ms": ("long", "3600000", ["1"], ["0"]),
    "unclean.leader.election.enable": ("boolean", "false", ["true"], ["x"]),
}


@pytest.mark.parametrize("name", KAFKA_TOPIC_SETTINGS)
def test_every_topic_setting_of_kafka_is_taken_with_its_default_and_every_value_that_can_be_honoured(
    name: str,
) -> None:
    kind, default, taken, refused = KAFKA_TOPIC_SETTINGS[name]
    setting = TOPIC_SETTINGS[name]
    assert (setting.kind.type, text_of(setting.default)) == (kind, default)
    for text in (default, *taken):
        config = topic_config({name: text})
        # What is stored comes back as the same setting.
        assert topic_config(config.overrides()) == config
        assert config.explicit == {name}
    for text in refused:
        with pytest.raises(InvalidSetting) as caught:
            topic_config({name: text})
        assert caught.value.name == name


@pytest.mark.parametrize(
    "text", ["user:admin", "Group:ops", "User:a,User:b", "User:a, User:b", "admin", "User:"]
)
def test_super_users_that_no_client_can_be_are_refused(text: str) -> None:
    """As with commas between them: Kafka takes that for one user with a long name."""
    with pytest.raises(InvalidSetting, match="separated by semicolons"):
        load({"super.users": text})


def test_a_list_of_policies_is_kept_in_one_order() -> None:
    assert topic_config({"cleanup.policy": "delete, compact"}).cleanup_policy == "compact,delete"
    assert topic_config({"cleanup.policy": "delete,delete"}).cleanup_policy == "delete"


def test_more_copies_than_one_are_refused_for_a_topic_and_warned_of_in_the_file() -> None:
    """A server.properties of three brokers loads as it is; a topic must not promise what is not there."""
    with pytest.raises(InvalidSetting, match="1: one broker holds the only copy of each record"):
        topic_config({"min.insync.replicas": "2"})
    config, warnings = load_broker_config({"min.insync.replicas": "2"}, environment={})
    assert config.topic_defaults.min_insync_replicas == 1
    assert warnings == [
        "min.insync.replicas=2 has no effect: expected 1: one broker holds the only copy of each record."
    ]
    with pytest.raises(InvalidSetting):
        load({"min.insync.replicas": "many"})
    for name in ("default.replication.factor", "offsets.topic.replication.factor"):
        _, (warning,) = load_broker_config({name: "3"}, environment={})
        assert warning.startswith(f"{name}=3 has no effect: expected 1: ")
        assert load_broker_config({name: "1"}, environment={})[1] == []


@pytest.mark.parametrize(
    ("name", "value", "refused"),
    [
        ("group.consumer.session.timeout.ms", "44999", "group.consumer.session.timeout.ms"),
        ("group.consumer.session.timeout.ms", "60001", "group.consumer.session.timeout.ms"),
        ("group.consumer.heartbeat.interval.ms", "4999", "group.consumer.heartbeat.interval.ms"),
        ("group.consumer.max.assignment.interval.ms", "999", "group.consumer.assignment.interval.ms"),
        ("group.consumer.assignors", "sticky", "group.consumer.assignors"),
        ("group.consumer.assignors", "range,range", "group.consumer.assignors"),
        ("group.consumer.migration.policy", "sometimes", "group.consumer.migration.policy"),
    ],
)
def test_a_default_of_groups_that_contradicts_its_bounds_is_refused(
    name: str, value: str, refused: str
) -> None:
    with pytest.raises(InvalidSetting, match=re.escape(refused)):
        load({name: value})


def test_a_heartbeat_interval_must_be_shorter_than_the_session() -> None:
    short = {"group.consumer.min.session.timeout.ms": "1", "group.consumer.session.timeout.ms": "5000"}
    with pytest.raises(InvalidSetting, match=r"group\.consumer\.heartbeat\.interval\.ms"):
        load(short)


def test_assignors_may_be_named_as_kafkas_classes() -> None:
    package = "org.apache.kafka.coordinator.group.assignor"
    found = load({"group.consumer.assignors": f"{package}.RangeAssignor,uniform"})
    assert found.group_assignors == "range,uniform"
