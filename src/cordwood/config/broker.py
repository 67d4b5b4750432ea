"""The settings of a broker or an embedded log, and the settings that exist per listener or per org."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, NamedTuple, get_args

from cordwood import tenancy
from cordwood.config.kinds import (
    INT_MAX,
    LONG_MAX,
    Endpoint,
    Endpoints,
    SettingKind,
    integer,
    limit,
    one_of,
    parse_boolean,
    parse_only_path,
    parse_path,
)
from cordwood.config.setting import Setting, check_values, declare, declared_in
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
_ENDPOINTS = SettingKind(
    Endpoints.parse, "a comma-separated list of PLAINTEXT://HOST:PORT (TLS and SASL are not offered)", "list"
)
_METRICS = SettingKind(
    Endpoints.parse, "a comma-separated list of HOST:PORT (port 0 means any free port), or nothing"
)
_ORG = SettingKind(tenancy.parse_org, f"the number of an org, from 0 to {tenancy.ORG_MAX}")
_BYTES_PER_SECOND = integer(1, LONG_MAX, unit="bytes")


class OrgQuota(NamedTuple):
    """The limits of all clients of an org together; None means no limit."""

    producer_byte_rate: int | None = None
    consumer_byte_rate: int | None = None
    stored_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """The settings of one broker or one embedded log. Every instance holds valid values.

    ``topic_defaults`` is the configuration of a topic without settings of its own. ``explicit`` holds the
    names that were set, as they were written. ``listener_orgs`` maps the name of a listener to its org,
    ``org_quotas`` maps an org to its limits.
    """

    node_id: int = declare(
        "node.id",
        _NUMBER,
        0,
        "The id of this broker.",
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
    group_min_session_timeout_ms: int = declare(
        "group.min.session.timeout.ms",
        integer(1, unit="milliseconds"),
        6_000,
        "The shortest session timeout that a member of a consumer group may request.",
    )
    group_max_session_timeout_ms: int = declare(
        "group.max.session.timeout.ms",
        integer(1, unit="milliseconds"),
        1_800_000,
        "The longest session timeout that a member of a consumer group may request.",
    )
    group_max_size: int = declare(
        "group.max.size",
        integer(1),
        INT_MAX,
        "The maximum number of members of a consumer group.",
    )
    group_initial_rebalance_delay_ms: int = declare(
        "group.initial.rebalance.delay.ms",
        integer(0, unit="milliseconds"),
        0,
        "How long the first member of a consumer group waits for others before partitions are assigned.",
    )
    offsets_retention_minutes: int = declare(
        "offsets.retention.minutes",
        integer(1, unit="minutes"),
        7 * 24 * 60,
        "How long the committed offsets of a consumer group without members are kept.",
    )
    offset_metadata_max_bytes: int = declare(
        "offset.metadata.max.bytes",
        integer(0, unit="bytes"),
        4096,
        "The longest metadata string that may be committed with an offset.",
    )
    producer_id_expiration_ms: int = declare(
        "producer.id.expiration.ms",
        integer(1, unit="milliseconds"),
        24 * _HOUR_MS,
        "The state of an idempotent producer that sends nothing for this long may be removed.",
    )
    index_cache_segments: int = declare(
        "cordwood.index.cache.segments",
        limit("segments"),
        -1,
        "The number of sealed segments, the most recently used, whose indexes stay in memory; -1 means all.",
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
        "The addresses that serve /metrics, /healthz and /readyz over HTTP; if empty, none.",
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
    topic_defaults: TopicConfig = field(default_factory=TopicConfig)
    explicit: frozenset[str] = frozenset()
    listener_orgs: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    org_quotas: Mapping[int, OrgQuota] = field(default_factory=lambda: MappingProxyType({}))

    def __post_init__(self) -> None:
        check_values(self)
        names = sorted({endpoint.name for endpoint in self.listeners.each})
        for name, org in self.listener_orgs.items():
            if name not in names:
                # A misspelt listener name must not put its clients into another org.
                expected = f"the name of one of the listeners: {' or '.join(names)}"
                raise InvalidSetting(f"cordwood.listener.{name}.org", org, expected)

    def org_of(self, listener: str) -> int:
        """Return the org of all clients that connect to *listener*."""
        return self.listener_orgs.get(listener, tenancy.DEFAULT_ORG)

    def quota_of(self, org: int) -> OrgQuota:
        """Return the limits of *org*."""
        return self.org_quotas.get(org, OrgQuota())

    def seen_by(self, org: int) -> BrokerConfig:
        """Return the configuration that clients of *org* may see: no listeners or limits of other orgs."""

        def own(endpoints: Endpoints) -> Endpoints:
            return Endpoints(tuple(each for each in endpoints.each if self.org_of(each.name) == org))

        return dataclasses.replace(
            self,
            listeners=own(self.listeners),
            advertised_listeners=own(self.advertised_listeners),
            listener_orgs=MappingProxyType({n: o for n, o in self.listener_orgs.items() if o == org}),
            org_quotas=MappingProxyType({o: quota for o, quota in self.org_quotas.items() if o == org}),
        )


#: Every setting of a broker by its name, in the order of declaration.
BROKER_SETTINGS: Mapping[str, Setting] = declared_in(BrokerConfig)


@dataclass(frozen=True, slots=True)
class Family:
    """Settings of a broker whose names differ in one part only, such as ``<org>`` in the pattern."""

    pattern: str
    kind: SettingKind[int]
    sentence: str

    def variable_in(self, name: str) -> str | None:
        """Return the variable part of *name*, or None if *name* does not belong to the family."""
        before, _, after = re.split(r"(<\w+>)", self.pattern)
        fits = name.startswith(before) and name.endswith(after) and len(name) > len(before) + len(after)
        return name[len(before) : len(name) - len(after)] if fits else None

    def parse(self, text: str, name: str) -> int:
        """Return the value of *text*, given under *name*.

        Raises:
            InvalidSetting: If the setting does not accept *text*.
        """
        try:
            return self.kind.parse(text.strip())
        except ValueError:
            raise InvalidSetting(name, text, self.kind.expected) from None


LISTENER_ORG = Family(
    "cordwood.listener.<name>.org",
    _ORG,
    "The org of every client that connects to the listener of that name; the default is org 0.",
)
ORG_FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "producer_byte_rate": Family(
            "cordwood.org.<org>.producer.byte.rate",
            _BYTES_PER_SECOND,
            "The most bytes per second that all producers of an org may send; above it they are throttled.",
        ),
        "consumer_byte_rate": Family(
            "cordwood.org.<org>.consumer.byte.rate",
            _BYTES_PER_SECOND,
            "The most bytes per second that all consumers of an org may fetch; above it they are throttled.",
        ),
        "stored_bytes": Family(
            "cordwood.org.<org>.stored.bytes",
            integer(0, LONG_MAX, unit="bytes"),
            "The most bytes that the partitions of an org may hold; batches beyond that are refused.",
        ),
    }
)
#: Settings that exist once per listener or per org.
FAMILIES = (LISTENER_ORG, *ORG_FAMILIES.values())
