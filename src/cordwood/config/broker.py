"""The settings of a broker or of an embedded log, and the families of settings for each listener or org."""

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
    Endpoints.parse, "PLAINTEXT://HOST:PORT (TLS and SASL are not offered), more after commas", "list"
)
_METRICS = SettingKind(Endpoints.parse, "HOST:PORT, where port 0 picks one, more after commas, or nothing")
_ORG = SettingKind(tenancy.parse_org, f"the number of an org, from 0 to {tenancy.ORG_MAX}")
_BYTES_PER_SECOND = integer(1, LONG_MAX, unit="bytes")


class OrgQuota(NamedTuple):
    """What all clients of an org together may do; None is no limit."""

    producer_byte_rate: int | None = None
    consumer_byte_rate: int | None = None
    stored_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """The settings of one broker, or of one embedded log. Every instance holds valid values.

    ``topic_defaults`` is the configuration of a topic that sets nothing itself. ``explicit`` holds the
    names that were set, as they were written. ``listener_orgs`` has the org of each listener that was given
    one, ``org_quotas`` the limits of each org that has any.
    """

    node_id: int = declare(
        "node.id",
        _NUMBER,
        0,
        "The number by which clients know this broker.",
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
        "The longest an append stays unsynced under cordwood.sync=each, whatever acks its producer asks for.",
    )
    listeners: Endpoints = declare(  # noqa: RUF009 - a field, as every other one
        "listeners",
        _ENDPOINTS,
        Endpoints((Endpoint("localhost", 9092),)),
        "Where clients connect: localhost is both loopback addresses, no host at all every interface.",
    )
    advertised_listeners: Endpoints = declare(  # noqa: RUF009 - a field, as every other one
        "advertised.listeners",
        _ENDPOINTS,
        Endpoints(()),
        "Where clients are told to connect; if empty, the address that they reached.",
    )
    file_mode: FilePermissions = declare(  # noqa: RUF009 - a field, as every other one
        "cordwood.file.mode",
        one_of(*get_args(FilePermissions)),
        "private",
        "Who may use the files of the data directory: private is their owner only (0600, directories 0700), "
        "group also the group of the directory (0660 and 2770), such as tasks of Spark under another user.",
        environment="CORDWOOD_FILE_MODE",
    )
    io: InputOutput = declare(  # noqa: RUF009 - a field, as every other one
        "cordwood.io",
        one_of(*get_args(InputOutput)),
        "buffered",
        "How files of the data directory are read and written: buffered is through the page cache of the "
        "operating system, direct is past it, for machines that need their memory for something else.",
        environment="CORDWOOD_IO",
    )
    num_partitions: int = declare(
        "num.partitions",
        integer(1, 100_000),
        1,
        "How many partitions a topic gets that is created without saying so.",
    )
    auto_create_topics: bool = declare(
        "auto.create.topics.enable",
        _BOOLEAN,
        True,
        "Whether a topic that a client asks for is created, if the client allows it.",
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
        "The largest request; whoever sends a larger one is disconnected.",
    )
    queued_max_request_bytes: int = declare(
        "queued.max.request.bytes",
        integer(1 << 20, LONG_MAX, unit="bytes"),
        256 << 20,
        "Requests and responses of all clients together may take this much memory before reading pauses.",
    )
    fetch_max_bytes: int = declare(
        "fetch.max.bytes",
        integer(1024, unit="bytes"),
        55 << 20,
        "The most a fetch returns, whatever its client asks for; a larger first batch comes whole.",
    )
    fetch_session_slots: int = declare(
        "max.incremental.fetch.session.cache.slots",
        integer(0),
        1000,
        "How many consumers may have a fetch session, in which only news is sent; 0 switches sessions off.",
    )
    max_connections: int = declare(
        "max.connections",
        integer(1),
        10_000,
        "How many clients may be connected; further ones are turned away.",
    )
    connections_max_idle_ms: int = declare(
        "connections.max.idle.ms",
        _MILLISECONDS,
        600_000,
        "A client that asks for nothing for this long is disconnected.",
    )
    client_stall_ms: int = declare(
        "cordwood.client.stall.ms",
        _MILLISECONDS,
        30_000,
        "A client that lets a request or a response stand half sent for this long is disconnected.",
    )
    group_min_session_timeout_ms: int = declare(
        "group.min.session.timeout.ms",
        integer(1, unit="milliseconds"),
        6_000,
        "The shortest session that a member of a consumer group may ask for.",
    )
    group_max_session_timeout_ms: int = declare(
        "group.max.session.timeout.ms",
        integer(1, unit="milliseconds"),
        1_800_000,
        "The longest session that a member of a consumer group may ask for.",
    )
    group_max_size: int = declare(
        "group.max.size",
        integer(1),
        INT_MAX,
        "How many members a consumer group may have.",
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
        "The longest note that may be committed with an offset.",
    )
    producer_id_expiration_ms: int = declare(
        "producer.id.expiration.ms",
        integer(1, unit="milliseconds"),
        24 * _HOUR_MS,
        "An idempotent producer that sends nothing for this long may be forgotten.",
    )
    index_cache_segments: int = declare(
        "cordwood.index.cache.segments",
        limit("segments"),
        -1,
        "How many sealed segments have their indexes in memory, those used last; -1 is all of them.",
    )
    retention_check_interval_ms: int = declare(
        "log.retention.check.interval.ms",
        _MILLISECONDS,
        300_000,
        "How often the server looks for segments that retention no longer keeps.",
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
        "How often the server looks for logs to compact.",
    )
    cleaner_map_bytes: int = declare(
        "log.cleaner.dedupe.buffer.size",
        integer(1 << 10, LONG_MAX, unit="bytes"),
        128 << 20,
        "Memory for the keys of a compaction; one with more of them is done in several passes.",
    )
    cleaner_bytes_per_second: int = declare(
        "log.cleaner.io.max.bytes.per.second",
        integer(1, LONG_MAX, unit="bytes"),
        LONG_MAX,
        "How fast the server reads and writes to compact, at most.",
    )
    scrub_bytes_per_second: int = declare(
        "cordwood.scrub.bytes.per.second",
        integer(0, LONG_MAX, unit="bytes"),
        8 << 20,
        "How fast the server reads everything again to find what rots or was changed; 0 is never.",
    )
    scrub_interval_ms: int = declare(
        "cordwood.scrub.interval.ms",
        _MILLISECONDS,
        24 * _HOUR_MS,
        "How long the server rests after it has read everything again.",
    )
    clock_jump_ms: int = declare(
        "cordwood.clock.jump.ms",
        _MILLISECONDS,
        60_000,
        "A wall clock that runs off by more than this between two looks has jumped: nothing is deleted then.",
    )
    clock_freeze_ms: int = declare(
        "cordwood.clock.freeze.ms",
        _LAG,
        _HOUR_MS,
        "How long nothing is deleted after the wall clock has jumped.",
    )
    metrics_listen: Endpoints = declare(  # noqa: RUF009 - a field, as every other one
        "cordwood.metrics.listen",
        _METRICS,
        Endpoints(()),
        "Where /metrics, /healthz and /readyz are answered by HTTP; if empty, nowhere.",
    )
    metrics_partitions: bool = declare(
        "cordwood.metrics.partitions",
        _BOOLEAN,
        False,
        "Whether metrics have series for each topic and partition, which opens all of them.",
    )
    traces: bool = declare(
        "cordwood.traces",
        _BOOLEAN,
        False,
        "Whether the server opens OpenTelemetry's spans, which needs cordwood[traces].",
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
                # Whoever misspells a listener must not have its clients in another org.
                expected = f"the name of one of the listeners: {' or '.join(names)}"
                raise InvalidSetting(f"cordwood.listener.{name}.org", org, expected)

    def org_of(self, listener: str) -> int:
        """Return the org of everyone who connects to *listener*."""
        return self.listener_orgs.get(listener, tenancy.DEFAULT_ORG)

    def quota_of(self, org: int) -> OrgQuota:
        """Return the limits of *org*."""
        return self.org_quotas.get(org, OrgQuota())

    def seen_by(self, org: int) -> BrokerConfig:
        """Return the configuration as far as clients of *org* may know it: nothing of another's listeners."""

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
    """Settings of a broker that are alike but for one part of their name, as ``<org>`` in the pattern."""

    pattern: str
    kind: SettingKind[int]
    sentence: str

    def variable_in(self, name: str) -> str | None:
        """Return what *name* has in the place of the variable part, None if it is none of the family."""
        before, _, after = re.split(r"(<\w+>)", self.pattern)
        fits = name.startswith(before) and name.endswith(after) and len(name) > len(before) + len(after)
        return name[len(before) : len(name) - len(after)] if fits else None

    def parse(self, text: str, name: str) -> int:
        """Return the value of *text*, given under *name*.

        Raises:
            InvalidSetting: With the name, the text and what was expected.
        """
        try:
            return self.kind.parse(text.strip())
        except ValueError:
            raise InvalidSetting(name, text, self.kind.expected) from None


LISTENER_ORG = Family(
    "cordwood.listener.<name>.org",
    _ORG,
    "The org of every client that connects to the listener of that name; without it they are of org 0.",
)
ORG_FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "producer_byte_rate": Family(
            "cordwood.org.<org>.producer.byte.rate",
            _BYTES_PER_SECOND,
            "How much all producers of an org may send in a second; who sends more is made to wait.",
        ),
        "consumer_byte_rate": Family(
            "cordwood.org.<org>.consumer.byte.rate",
            _BYTES_PER_SECOND,
            "How much all consumers of an org may fetch in a second; who fetches more is made to wait.",
        ),
        "stored_bytes": Family(
            "cordwood.org.<org>.stored.bytes",
            integer(0, LONG_MAX, unit="bytes"),
            "How much the partitions of an org may hold; batches beyond that are refused.",
        ),
    }
)
#: Settings that are there once for each listener or org, by their attribute.
FAMILIES = (LISTENER_ORG, *ORG_FAMILIES.values())
