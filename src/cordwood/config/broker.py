"""The settings of a broker or an embedded log, and the settings that exist per listener or per org."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, get_args

from cordwood import tenancy
from cordwood.config.broker_groups import BrokerGroupConfig
from cordwood.config.kinds import (
    LONG_MAX,
    ONE_COPY,
    SettingKind,
    integer,
    limit,
    one_of,
    parse_audit_topic,
    parse_authorizer,
    parse_boolean,
    parse_bucket,
    parse_only_path,
    parse_path,
    parse_principals,
)
from cordwood.config.listeners import (
    SAME_NAMES,
    Endpoint,
    Endpoints,
    ProtocolMap,
    SecurityProtocol,
    protocol_of,
)
from cordwood.config.per_listener import FILE, METRICS, ListenerConfig, listener_name
from cordwood.config.setting import Setting, check_values, declare, declared_in
from cordwood.config.tenant_rules import OrgQuota, TenantRules
from cordwood.config.topic import TopicConfig
from cordwood.errors import InvalidSetting

FilePermissions = Literal["private", "group"]
InputOutput = Literal["buffered", "direct"]

_HOUR_MS = 3_600_000
_BOOLEAN = SettingKind(parse_boolean, "true or false", "boolean")
_MILLISECONDS = integer(1, LONG_MAX, unit="milliseconds")
_LAG = integer(0, LONG_MAX, unit="milliseconds")
_NUMBER = integer(0)
_PATH = SettingKind(parse_path, "the path of a directory")
_ONLY_PATH = SettingKind(parse_only_path, "the path of one directory (Cordwood keeps all its data in one)")
_BYTES = integer(1, unit="bytes")
_AUTHORIZER = SettingKind(
    parse_authorizer,
    "cordwood or org.apache.kafka.metadata.authorizer.StandardAuthorizer, or nothing",
)
_PRINCIPALS = SettingKind(
    parse_principals, "principals such as User:alice, separated by semicolons, or nothing"
)
_ENDPOINTS = SettingKind(
    Endpoints.parse, "a comma-separated list of PROTOCOL://HOST:PORT or NAME://HOST:PORT", "list"
)
_METRICS = SettingKind(
    Endpoints.parse_http,
    "a comma-separated list of HOST:PORT or https://HOST:PORT (port 0 means any free port), or nothing",
)
_PROTOCOL_MAP = SettingKind(
    ProtocolMap.parse,
    "a comma-separated list of NAME:PROTOCOL, with PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL as PROTOCOL",
)
_BUCKET = SettingKind(
    parse_bucket, "s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or az://CONTAINER/PREFIX, or nothing"
)
_AUDIT_TOPIC = SettingKind(parse_audit_topic, "the name of a topic that begins with __audit, or nothing")


def _one_copy(name: str, which: str) -> int:
    return declare(name, ONE_COPY, 1, f"The replicas {which}. There is one broker, so 1.", kafka_kind=_NUMBER)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig(BrokerGroupConfig):
    """The settings of one broker or one embedded log. Every instance holds valid values.

    ``topic_defaults`` is the configuration of a topic without settings of its own. ``explicit`` holds the
    names that were set, as they were written. ``listener_orgs`` maps the name of a listener to its org,
    ``org_quotas`` maps an org to its limits. ``listener_defaults`` is the configuration of a listener without
    settings of its own, and ``listener_configs`` maps the names of the others, in capitals, to theirs.
    """

    node_id: int = declare(
        "node.id",
        _NUMBER,
        0,
        "The id of this broker. A data directory belongs to the first one that serves it.",
        broker={"node.id": _NUMBER, "broker.id": _NUMBER},
    )
    data_dir: str = declare(
        "log.dirs",
        _PATH,
        "data",
        "The directory that holds all data.",
        environment="CORDWOOD_DATA_DIR",
        broker={"log.dirs": _ONLY_PATH, "log.dir": _PATH},
    )
    sync_max_ms: int = declare(
        "cordwood.sync.max.ms",
        integer(1, unit="milliseconds"),
        10,
        "The longest time an append stays unsynced under cordwood.sync=each, with any value of acks.",
    )
    listeners: Endpoints = declare(  # noqa: RUF009 - a field, as every other one
        "listeners",
        _ENDPOINTS,
        Endpoints((Endpoint("localhost", 9092),)),
        "The addresses to listen on; localhost means both loopback addresses, an empty host every interface.",
    )
    advertised_listeners: Endpoints = declare(  # noqa: RUF009 - a field, as every other one
        "advertised.listeners",
        _ENDPOINTS,
        Endpoints(()),
        "The addresses that clients are told to connect to; if empty, the address that they connected to.",
    )
    security_protocols: ProtocolMap = declare(  # noqa: RUF009 - a field, as every other one
        "listener.security.protocol.map",
        _PROTOCOL_MAP,
        SAME_NAMES,
        "The security protocol of each listener by its name: SSL and SASL_SSL are encrypted, clients of "
        "SASL_PLAINTEXT and SASL_SSL authenticate by SASL. Without it, other names are plain listeners.",
    )
    file_mode: FilePermissions = declare(  # noqa: RUF009 - a field, as every other one
        "cordwood.file.mode",
        one_of(*get_args(FilePermissions)),
        "private",
        "The permissions of files in the data directory: private is for the owner only (0600, directories "
        "0700); group is also for the directory's group (0660 and 2770), as for Spark tasks of another user.",
        environment="CORDWOOD_FILE_MODE",
    )
    io: InputOutput = declare(  # noqa: RUF009 - a field, as every other one
        "cordwood.io",
        one_of(*get_args(InputOutput)),
        "buffered",
        "How files in the data directory are read and written: buffered uses the page cache of the operating "
        "system; direct bypasses it, for machines that need their memory for other processes.",
        environment="CORDWOOD_IO",
    )
    num_partitions: int = declare(
        "num.partitions",
        integer(1, 100_000),
        1,
        "The number of partitions of a topic that is created without a partition count.",
    )
    default_replicas: int = _one_copy("default.replication.factor", "of a topic created without one")
    offsets_replicas: int = _one_copy("offsets.topic.replication.factor", "of the topic of committed offsets")
    transactions_replicas: int = _one_copy("transaction.state.log.replication.factor", "of transactions")
    transactions_min_isr: int = _one_copy("transaction.state.log.min.isr", "that must have a transaction")
    auto_create_topics: bool = declare(
        "auto.create.topics.enable",
        _BOOLEAN,
        True,
        "Whether a missing topic is created when a client asks for it, if the client allows it.",
    )
    delete_topics: bool = declare(
        "delete.topic.enable",
        _BOOLEAN,
        True,
        "Whether clients may delete topics.",
    )
    socket_request_max_bytes: int = declare(
        "socket.request.max.bytes",
        _BYTES,
        100 << 20,
        "The largest request; a client that sends a larger one is disconnected.",
    )
    queued_max_request_bytes: int = declare(
        "queued.max.request.bytes",
        integer(1 << 20, LONG_MAX, unit="bytes"),
        256 << 20,
        "The memory for requests and responses of all clients; above it, the broker pauses reading requests.",
    )
    fetch_max_bytes: int = declare(
        "fetch.max.bytes",
        integer(1024, unit="bytes"),
        55 << 20,
        "The most bytes that a fetch returns, with any limits of its client; a larger first batch is whole.",
    )
    fetch_session_slots: int = declare(
        "max.incremental.fetch.session.cache.slots",
        integer(0),
        1000,
        "The number of fetch sessions, in which only changes are sent; 0 disables fetch sessions.",
    )
    max_connections: int = declare(
        "max.connections",
        integer(1),
        10_000,
        "The maximum number of connections; further ones are closed at once.",
    )
    connections_max_idle_ms: int = declare(
        "connections.max.idle.ms",
        _MILLISECONDS,
        600_000,
        "A client that sends no request for this long is disconnected.",
    )
    client_stall_ms: int = declare(
        "cordwood.client.stall.ms",
        _MILLISECONDS,
        30_000,
        "A client whose request or response stays incomplete for this long is disconnected.",
    )
    authorizer: str = declare(
        "authorizer.class.name",
        _AUTHORIZER,
        "",
        "What decides which client may do what: nothing lets every client do everything; each of the names "
        "decides by ACLs, as Kafka's StandardAuthorizer does.",
    )
    super_users: str = declare(
        "super.users",
        _PRINCIPALS,
        "",
        "The principals that may do everything, whatever ACLs say.",
    )
    allow_without_acl: bool = declare(
        "allow.everyone.if.no.acl.found",
        _BOOLEAN,
        False,
        "Whether every client may use a resource that no ACL covers.",
    )
    producer_id_expiration_ms: int = declare(
        "producer.id.expiration.ms",
        integer(1, unit="milliseconds"),
        24 * _HOUR_MS,
        "The state of an idempotent producer that sends nothing for this long may be removed.",
    )
    transaction_max_timeout_ms: int = declare(
        "transaction.max.timeout.ms",
        integer(1, unit="milliseconds"),
        900_000,
        "The longest timeout that a transactional producer may request.",
    )
    transactional_id_expiration_ms: int = declare(
        "transactional.id.expiration.ms",
        integer(1, unit="milliseconds"),
        7 * 24 * _HOUR_MS,
        "How long a transactional id that no producer uses is kept.",
    )
    transaction_abort_interval_ms: int = declare(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        integer(1, unit="milliseconds"),
        10_000,
        "The interval at which transactions that are open for longer than their timeouts are aborted.",
    )
    transaction_expiry_interval_ms: int = declare(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        integer(1, unit="milliseconds"),
        _HOUR_MS,
        "The interval at which expired transactional ids are removed.",
    )
    index_cache_segments: int = declare(
        "cordwood.index.cache.segments",
        limit("segments"),
        -1,
        "The number of sealed segments, the most recently used, whose indexes stay in memory; -1 means all.",
    )
    summary_interval_ms: int = declare(
        "log.flush.offset.checkpoint.interval.ms",
        _MILLISECONDS,
        60_000,
        "The interval at which meta/checkpoint.json is written again if something changed. It is a summary "
        "for people and tools; recovery does not need it.",
    )
    bucket: str = declare(
        "cordwood.bucket",
        _BUCKET,
        "",
        "The URL of a bucket or of a prefix in it, such as s3://bucket/prefix, that the log is shipped to; "
        "empty to ship nothing.",
    )
    bucket_interval_ms: int = declare(
        "cordwood.bucket.interval.ms",
        integer(10, LONG_MAX, unit="milliseconds"),
        1_000,
        "How often what became durable is shipped to the bucket: one request for all partitions.",
    )
    bucket_lease_ms: int = declare(
        "cordwood.bucket.lease.ms",
        limit("milliseconds"),
        -1,
        "How long the owner of the log in the bucket may acknowledge after it sent its last piece, so that a "
        "standby can take over after one and a half times as long; 0 where no standby takes over by itself, "
        "-1 as it was before.",
    )
    retention_check_interval_ms: int = declare(
        "log.retention.check.interval.ms",
        _MILLISECONDS,
        300_000,
        "The interval at which the server looks for segments to delete by retention.",
    )
    cleaner_enable: bool = declare(
        "log.cleaner.enable",
        _BOOLEAN,
        True,
        "Whether the server compacts topics in the background.",
    )
    cleaner_backoff_ms: int = declare(
        "log.cleaner.backoff.ms",
        _MILLISECONDS,
        15_000,
        "The interval at which the server looks for logs to compact.",
    )
    cleaner_map_bytes: int = declare(
        "log.cleaner.dedupe.buffer.size",
        integer(1 << 10, LONG_MAX, unit="bytes"),
        128 << 20,
        "The memory for the keys of a compaction; if it is too small for all keys, there are several passes.",
    )
    cleaner_bytes_per_second: int = declare(
        "log.cleaner.io.max.bytes.per.second",
        integer(1, LONG_MAX, unit="bytes"),
        LONG_MAX,
        "The maximum rate at which the server reads and writes for compaction.",
    )
    scrub_bytes_per_second: int = declare(
        "cordwood.scrub.bytes.per.second",
        integer(0, LONG_MAX, unit="bytes"),
        8 << 20,
        "The rate at which the server rereads all data to find damage and tampering; 0 disables it.",
    )
    scrub_interval_ms: int = declare(
        "cordwood.scrub.interval.ms",
        _MILLISECONDS,
        24 * _HOUR_MS,
        "The pause after the server has reread all data.",
    )
    clock_jump_ms: int = declare(
        "cordwood.clock.jump.ms",
        _MILLISECONDS,
        60_000,
        "A wall clock that deviates by more than this between two checks has jumped: deletion pauses.",
    )
    clock_freeze_ms: int = declare(
        "cordwood.clock.freeze.ms",
        _LAG,
        _HOUR_MS,
        "The time after a jump of the wall clock during which nothing is deleted.",
    )
    metrics_listen: Endpoints = declare(  # noqa: RUF009 - a field, as every other one
        "cordwood.metrics.listen",
        _METRICS,
        Endpoints(()),
        "The addresses that serve /metrics, /healthz and /readyz over HTTP; if empty, none. Those with "
        "https:// have the keys of ssl.keystore.location, or of listener.name.metrics.ssl.keystore.location.",
    )
    metrics_token_file: str = declare(
        "cordwood.metrics.token.file",
        FILE,
        "",
        "The file with the bearer token that clients of the metrics must send; if empty, they need none.",
    )
    metrics_partitions: bool = declare(
        "cordwood.metrics.partitions",
        _BOOLEAN,
        False,
        "Whether metrics have series for each topic and partition. A scrape then opens every partition.",
    )
    traces: bool = declare(
        "cordwood.traces",
        _BOOLEAN,
        False,
        "Whether the server records OpenTelemetry spans. Requires cordwood[traces].",
    )
    allow_plaintext: bool = declare(
        "cordwood.allow.plaintext",
        _BOOLEAN,
        False,
        "Whether cordwood serve may listen without encryption on addresses that other machines can reach.",
    )
    unauthenticated_max: int = declare(
        "cordwood.unauthenticated.connections.max",
        integer(1),
        1000,
        "The maximum number of connections of clients that have not authenticated yet; beyond it, the one "
        "that has been silent for longest is closed.",
    )
    authentication_timeout_ms: int = declare(
        "cordwood.authentication.timeout.ms",
        _MILLISECONDS,
        10_000,
        "A client that has not finished its TLS handshake and its authentication by then is disconnected.",
    )
    audit_topic: str = declare(
        "cordwood.audit.topic",
        _AUDIT_TOPIC,
        "",
        "The topic that records who did what with which answer; if empty, nothing is recorded.",
        environment="CORDWOOD_AUDIT_TOPIC",
    )
    audit_required: bool = declare(
        "cordwood.audit.required",
        _BOOLEAN,
        False,
        "Whether a change is refused if the audit log cannot record it, and answered only after its record "
        "is durable.",
    )
    failed_authentication_delay_ms: int = declare(
        "connection.failed.authentication.delay.ms",
        integer(0, unit="milliseconds"),
        100,
        "How long the answer to a failed attempt to authenticate is delayed.",
    )
    tenant_rules: TenantRules = declare(  # noqa: RUF009 - a field, as every other one
        "cordwood.principal.tenant.rules",
        SettingKind(TenantRules.parse, "a comma-separated list of RULE:regex/org/ and DEFAULT"),
        TenantRules(),
        "The org of a client by the name of its principal: that of the first rule whose regular expression "
        "matches the whole name, or for DEFAULT and without a match that of the listener.",
    )
    topic_defaults: TopicConfig = field(default_factory=TopicConfig)
    explicit: frozenset[str] = frozenset()
    listener_orgs: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    org_quotas: Mapping[int, OrgQuota] = field(default_factory=lambda: MappingProxyType({}))
    listener_defaults: ListenerConfig = field(default_factory=ListenerConfig)
    listener_configs: Mapping[str, ListenerConfig] = field(default_factory=lambda: MappingProxyType({}))

    def __post_init__(self) -> None:
        check_values(self)
        self.check_consumer_groups()
        names = sorted({endpoint.name for endpoint in self.listeners.each})
        for name, org in self.listener_orgs.items():
            if name not in names:
                # A misspelt listener name must not put its clients into another org.
                expected = f"the name of one of the listeners: {' or '.join(names)}"
                raise InvalidSetting(f"cordwood.listener.{name}.org", org, expected)
        for name, config in self.listener_configs.items():
            # Kafka's files may have settings of its controller, which are left out as its listener is.
            if name not in {*map(str.upper, names), "CONTROLLER", METRICS}:
                full = listener_name(min(config.explicit, default=""), name)
                raise InvalidSetting(full, "...", f"the name of one of the listeners: {' or '.join(names)}")
        for name in names:
            if protocol_of(name, self.security_protocols) is None:
                expected = f"the security protocol of the listener {name} in it"
                raise InvalidSetting("listener.security.protocol.map", str(self.security_protocols), expected)

    def security_of(self, listener: str) -> SecurityProtocol:
        """Return the security protocol of *listener*, one of the listeners."""
        found = protocol_of(listener, self.security_protocols)
        assert found is not None, f"{listener} is no listener of this configuration"
        return found

    def listener(self, name: str) -> ListenerConfig:
        """Return the configuration of the listener of that name."""
        return self.listener_configs.get(name.upper(), self.listener_defaults)

    def org_of(self, listener: str) -> int:
        """Return the org of all clients that connect to *listener*."""
        return self.listener_orgs.get(listener, tenancy.DEFAULT_ORG)

    def quota_of(self, org: int) -> OrgQuota:
        """Return the limits of *org*."""
        return self.org_quotas.get(org, OrgQuota())

    def seen_by(self, org: int) -> BrokerConfig:
        """Return the configuration that clients of *org* may see: nothing of other orgs.

        Only org 0 is told who may do everything.
        """

        def own(endpoints: Endpoints) -> Endpoints:
            return Endpoints(tuple(each for each in endpoints.each if self.org_of(each.name) == org))

        hidden = {each.name.upper() for each in self.listeners.each if self.org_of(each.name) != org}
        return dataclasses.replace(
            self,
            super_users="" if org else self.super_users,
            listeners=own(self.listeners),
            advertised_listeners=own(self.advertised_listeners),
            security_protocols=self.security_protocols.without(hidden),
            listener_configs=MappingProxyType(
                {name: each for name, each in self.listener_configs.items() if name not in hidden}
            ),
            listener_orgs=MappingProxyType({n: o for n, o in self.listener_orgs.items() if o == org}),
            # They name other orgs.
            tenant_rules=self.tenant_rules if org == tenancy.DEFAULT_ORG else TenantRules(),
            org_quotas=MappingProxyType({o: quota for o, quota in self.org_quotas.items() if o == org}),
        )


_OF_GROUPS = declared_in(BrokerGroupConfig)
#: Every setting of a broker by its name, in the order of declaration; those of groups are the last.
BROKER_SETTINGS: Mapping[str, Setting] = MappingProxyType(
    {
        **{name: each for name, each in declared_in(BrokerConfig).items() if name not in _OF_GROUPS},
        **_OF_GROUPS,
    }
)
