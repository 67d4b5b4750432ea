"""Typed configuration under Kafka's names; the only reader of the environment.

Each setting is declared once, as a field of :class:`TopicConfig` or :class:`BrokerConfig`. The
declaration holds its name, default, accepted values and sentence, and everything else follows from it:
the typed attribute, parsing, validation, the broker-wide default and the reference table.

A topic's value is the first there is of: the topic's own setting, the broker's setting (where
``segment.bytes`` is called ``log.segment.bytes``, as in Kafka), the default.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, TypeVar, get_args

from cordwood import kafka_settings, tenancy
from cordwood.errors import InvalidSetting, UnknownSetting
from cordwood.setting_kinds import (
    INT_MAX,
    LONG_MAX,
    Endpoint,
    Endpoints,
    Kind,
    SyncPolicy,
    integer,
    limit,
    one_of,
    parse_boolean,
    parse_only_path,
    parse_path,
    parse_ratio,
    text_of,
)

T = TypeVar("T")

TimestampType = Literal["CreateTime", "LogAppendTime"]
RecordFormat = Literal["batch", "rustlog", "kimberlite", "laminarmq", "frame"]
#: The format of the log that topics share. None but that can have it.
SHARED_FORMAT = "shared"
Storage = Literal["own", "shared"]

_HOUR_MS = 3_600_000
_MESSAGE_BYTES = 16 << 20
_NOTHING: Mapping[str, str] = MappingProxyType({})


# How text becomes a value

_BOOLEAN = Kind(parse_boolean, "true or false")
_MILLISECONDS = integer(1, LONG_MAX, unit="milliseconds")
_HOURS = integer(1, unit="hours", scale=_HOUR_MS)
_LAG = integer(0, LONG_MAX, unit="milliseconds")
_KEPT_MS, _KEPT_BYTES = limit("milliseconds"), limit("bytes")
_RATIO = Kind(parse_ratio, "a number from 0 to 1")
_NUMBER = integer(0)
_PATH = Kind(parse_path, "the path of a directory")
_ONLY_PATH = Kind(parse_only_path, "the path of one directory (Cordwood keeps all its data in one)")
_BYTES = integer(1, unit="bytes")
_ENDPOINTS = Kind(Endpoints.parse, "PLAINTEXT://HOST:PORT (TLS and SASL are not offered), more after commas")
_METRICS = Kind(Endpoints.parse, "HOST:PORT, where port 0 picks one, more after commas, or nothing")
_ORG = Kind(tenancy.parse_org, f"the number of an org, from 0 to {tenancy.ORG_MAX}")
_BYTES_PER_SECOND = integer(1, LONG_MAX, unit="bytes")
_SYNC = Kind(SyncPolicy.parse, f"each, every:N, ms:T or never, N and T from 1 to {INT_MAX}")


# What a setting is


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: what it is called, what it takes, and what it does.

    ``broker_kinds`` maps each name the broker's properties know it by, most important first, to how the
    text is read there: ``log.roll.hours`` counts hours where ``segment.ms`` counts milliseconds.
    ``environment`` is the variable asked when no property is set, if there is one.
    """

    name: str
    kind: Kind[Any]
    default: Any
    sentence: str
    broker_kinds: Mapping[str, Kind[Any]]
    environment: str = ""
    attribute: str = ""

    def parse(self, text: str, name: str = "") -> Any:
        """Return the value of *text*, given under *name* (the setting's own if omitted).

        Raises:
            InvalidSetting: With the name, the text and what was expected.
        """
        kind = self.broker_kinds.get(name, self.kind)
        try:
            return kind.parse(text.strip())
        except ValueError:
            raise InvalidSetting(name or self.name, text, kind.expected) from None


def _setting(
    name: str,
    broker: str | Mapping[str, Kind[T]],
    kind: Kind[T],
    default: T,
    sentence: str,
    environment: str = "",
) -> T:
    """Declare a setting as a dataclass field; *broker* is what the broker's properties call it.

    Like :func:`dataclasses.field` it claims to return the default, so that the type checker holds
    attribute, kind and default to one type.
    """
    kinds = {broker: kind} if isinstance(broker, str) else broker
    declared = Setting(name, kind, default, sentence, MappingProxyType(dict(kinds)), environment)
    declaration: T = field(default=default, metadata={"setting": declared})
    return declaration


def _declared(config: type[Any]) -> Mapping[str, Setting]:
    """Return the settings declared in *config* by name, each knowing its attribute."""
    found = [(f.name, f.metadata["setting"]) for f in dataclasses.fields(config) if "setting" in f.metadata]
    return MappingProxyType({s.name: dataclasses.replace(s, attribute=attribute) for attribute, s in found})


def _check_values(config: TopicConfig | BrokerConfig) -> None:
    """Hold values set in code to the rules for text; raise InvalidSetting for the first that breaks them."""
    for declared in dataclasses.fields(config):
        if "setting" in declared.metadata:
            setting, value = declared.metadata["setting"], getattr(config, declared.name)
            try:
                valid = setting.kind.parse(text_of(value)) == value
            except ValueError:
                valid = False
            if not valid:
                raise InvalidSetting(setting.name, value, setting.kind.expected)


# The settings


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """The settings of one topic. Every instance holds valid values, however it was made.

    ``explicit`` names the settings given for the topic itself; all others came from the broker's
    configuration or are defaults, and change with them.
    """

    segment_bytes: int = _setting(
        "segment.bytes",
        "log.segment.bytes",
        integer(14, unit="bytes"),
        1 << 30,
        "A segment is sealed before an append would make its store larger than this.",
    )
    segment_ms: int = _setting(
        "segment.ms",
        {"log.roll.ms": _MILLISECONDS, "log.roll.hours": _HOURS},
        _MILLISECONDS,
        _HOUR_MS,
        "A segment is sealed when it has been active for this long, however small it is.",
    )
    # The smallest index holds one 16-byte entry: with less, every append would seal a segment.
    segment_index_bytes: int = _setting(
        "segment.index.bytes",
        "log.index.size.max.bytes",
        integer(16, unit="bytes"),
        10 << 20,
        "A segment is sealed when one of its indexes has no room left below this size.",
    )
    index_interval_bytes: int = _setting(
        "index.interval.bytes",
        "log.index.interval.bytes",
        integer(0, unit="bytes"),
        4096,
        "The offset index gets an entry for a frame that starts at least this far after the last one in it.",
    )
    index_interval_records: int = _setting(
        "cordwood.index.interval.records",
        "cordwood.index.interval.records",
        integer(1),
        100,
        "In formats with a frame for each record the offset index gets an entry for every one of so many.",
    )
    max_message_bytes: int = _setting(
        "max.message.bytes",
        "message.max.bytes",
        integer(0, unit="bytes"),
        _MESSAGE_BYTES,
        "The largest batch that is stored, and the largest record in one.",
    )
    message_timestamp_type: TimestampType = _setting(  # noqa: RUF009 - a field, as every other one
        "message.timestamp.type",
        "log.message.timestamp.type",
        one_of(*get_args(TimestampType)),
        "CreateTime",
        "Whether a record keeps its producer's timestamp or gets the time at which it was appended.",
    )
    cleanup_policy: str = _setting(
        "cleanup.policy",
        "log.cleanup.policy",
        one_of("delete", "compact", "compact,delete"),
        "delete",
        "Which old records may go: whole segments, or those whose key has a later one, so each needs a key.",
    )
    retention_ms: int = _setting(
        "retention.ms",
        {
            "log.retention.ms": _KEPT_MS,
            "log.retention.minutes": limit("minutes", 60_000),
            "log.retention.hours": limit("hours", _HOUR_MS),
        },
        _KEPT_MS,
        -1,
        "Segments whose newest record is older than this are deleted, where cleanup.policy has delete.",
    )
    retention_bytes: int = _setting(
        "retention.bytes",
        "log.retention.bytes",
        _KEPT_BYTES,
        -1,
        "The oldest segments of a partition are deleted while the others hold at least this much.",
    )
    retention_waits_for_groups: bool = _setting(
        "cordwood.retention.wait.for.groups",
        "cordwood.retention.wait.for.groups",
        _BOOLEAN,
        False,
        "Whether retention leaves what a consumer group with committed offsets has not committed past.",
    )
    chain: bool = _setting(
        "cordwood.chain",
        "cordwood.chain",
        _BOOLEAN,
        True,
        "Whether frames get leaves in the chain and the tree that make tampering evident.",
    )
    delete_retention_ms: int = _setting(
        "delete.retention.ms",
        "log.cleaner.delete.retention.ms",
        _LAG,
        24 * _HOUR_MS,
        "How long compaction keeps a tombstone after it removed what that deletes.",
    )
    min_cleanable_dirty_ratio: float = _setting(
        "min.cleanable.dirty.ratio",
        "log.cleaner.min.cleanable.ratio",
        _RATIO,
        0.5,
        "How much of a log must not have been compacted yet before it is compacted again.",
    )
    min_compaction_lag_ms: int = _setting(
        "min.compaction.lag.ms",
        "log.cleaner.min.compaction.lag.ms",
        _LAG,
        0,
        "A segment with a record younger than this is not compacted.",
    )
    max_compaction_lag_ms: int = _setting(
        "max.compaction.lag.ms",
        "log.cleaner.max.compaction.lag.ms",
        _MILLISECONDS,
        LONG_MAX,
        "A record older than this is compacted, however little of the log there is to compact.",
    )
    preallocate: bool = _setting(
        "preallocate",
        "log.preallocate",
        _BOOLEAN,
        False,
        "Whether space for a segment is reserved ahead of the appends, in steps of up to 16 MiB.",
    )
    format: str = _setting(
        "cordwood.format",
        "cordwood.format",
        one_of(*get_args(RecordFormat), unsaid=SHARED_FORMAT),
        "batch",
        "How records are laid out in the store: batch is Kafka's record batch, version 2; the other formats "
        "are those of other systems and have a frame for each record.",
    )
    storage: Storage = _setting(  # noqa: RUF009 - a field, as every other one
        "cordwood.storage",
        "cordwood.storage",
        one_of(*get_args(Storage)),
        "own",
        "Whether a new topic gets files of its own or is kept in the log that many topics share.",
    )
    sync: SyncPolicy = _setting(  # noqa: RUF009 - a field, as every other one
        "cordwood.sync",
        "cordwood.sync",
        _SYNC,
        SyncPolicy("each"),
        "When records are synced: before each acknowledgement (appends share a sync), every N records, "
        "every T milliseconds, or never; all but each can lose acknowledged records in a power cut.",
    )
    initial_offset: int = _setting(
        "cordwood.initial.offset",
        "cordwood.initial.offset",
        integer(0, LONG_MAX),
        0,
        "The first offset of each partition of a new topic.",
    )
    explicit: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        _check_values(self)
        if self.storage == "shared":
            if "compact" in self.cleanup_policy:
                expected = "delete: a topic with cordwood.storage=shared cannot be compacted"
                raise InvalidSetting("cleanup.policy", self.cleanup_policy, expected)
            if self.format != "batch":
                expected = "batch: a topic with cordwood.storage=shared has no other format"
                raise InvalidSetting("cordwood.format", self.format, expected)

    @property
    def stored_bytes_max(self) -> int:
        """The largest batch that is taken for one on reading.

        No less than the default limit: whoever lowers ``max.message.bytes`` must still be able to read what
        was stored before, and recovery must not take that for damage.
        """
        return max(self.max_message_bytes, _MESSAGE_BYTES)

    def overrides(self) -> dict[str, str]:
        """Return the topic's own settings as text: what to store, and what ``topic_config`` takes back."""
        own = [setting for setting in TOPIC_SETTINGS.values() if setting.name in self.explicit]
        return {setting.name: text_of(getattr(self, setting.attribute)) for setting in own}


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

    node_id: int = _setting(
        "node.id",
        {"node.id": _NUMBER, "broker.id": _NUMBER},
        _NUMBER,
        0,
        "The number by which clients know this broker.",
    )
    data_dir: str = _setting(
        "log.dirs",
        {"log.dirs": _ONLY_PATH, "log.dir": _PATH},
        _PATH,
        "data",
        "The directory that holds all data.",
        environment="CORDWOOD_DATA_DIR",
    )
    sync_max_ms: int = _setting(
        "cordwood.sync.max.ms",
        "cordwood.sync.max.ms",
        integer(1, unit="milliseconds"),
        10,
        "The longest an append stays unsynced under cordwood.sync=each, whatever acks its producer asks for.",
    )
    listeners: Endpoints = _setting(  # noqa: RUF009 - a field, as every other one
        "listeners",
        "listeners",
        _ENDPOINTS,
        Endpoints((Endpoint("localhost", 9092),)),
        "Where clients connect: localhost is both loopback addresses, no host at all every interface.",
    )
    advertised_listeners: Endpoints = _setting(  # noqa: RUF009 - a field, as every other one
        "advertised.listeners",
        "advertised.listeners",
        _ENDPOINTS,
        Endpoints(()),
        "Where clients are told to connect; if empty, the address that they reached.",
    )
    num_partitions: int = _setting(
        "num.partitions",
        "num.partitions",
        integer(1, 100_000),
        1,
        "How many partitions a topic gets that is created without saying so.",
    )
    auto_create_topics: bool = _setting(
        "auto.create.topics.enable",
        "auto.create.topics.enable",
        _BOOLEAN,
        True,
        "Whether a topic that a client asks for is created, if the client allows it.",
    )
    delete_topics: bool = _setting(
        "delete.topic.enable",
        "delete.topic.enable",
        _BOOLEAN,
        True,
        "Whether clients may delete topics.",
    )
    socket_request_max_bytes: int = _setting(
        "socket.request.max.bytes",
        "socket.request.max.bytes",
        _BYTES,
        100 << 20,
        "The largest request; whoever sends a larger one is disconnected.",
    )
    queued_max_request_bytes: int = _setting(
        "queued.max.request.bytes",
        "queued.max.request.bytes",
        integer(1 << 20, LONG_MAX, unit="bytes"),
        256 << 20,
        "Requests and responses of all clients together may take this much memory before reading pauses.",
    )
    fetch_max_bytes: int = _setting(
        "fetch.max.bytes",
        "fetch.max.bytes",
        integer(1024, unit="bytes"),
        55 << 20,
        "The most a fetch returns, whatever its client asks for; a larger first batch comes whole.",
    )
    max_connections: int = _setting(
        "max.connections",
        "max.connections",
        integer(1),
        10_000,
        "How many clients may be connected; further ones are turned away.",
    )
    connections_max_idle_ms: int = _setting(
        "connections.max.idle.ms",
        "connections.max.idle.ms",
        _MILLISECONDS,
        600_000,
        "A client that asks for nothing for this long is disconnected.",
    )
    client_stall_ms: int = _setting(
        "cordwood.client.stall.ms",
        "cordwood.client.stall.ms",
        _MILLISECONDS,
        30_000,
        "A client that lets a request or a response stand half sent for this long is disconnected.",
    )
    group_min_session_timeout_ms: int = _setting(
        "group.min.session.timeout.ms",
        "group.min.session.timeout.ms",
        integer(1, unit="milliseconds"),
        6_000,
        "The shortest session that a member of a consumer group may ask for.",
    )
    group_max_session_timeout_ms: int = _setting(
        "group.max.session.timeout.ms",
        "group.max.session.timeout.ms",
        integer(1, unit="milliseconds"),
        1_800_000,
        "The longest session that a member of a consumer group may ask for.",
    )
    group_max_size: int = _setting(
        "group.max.size",
        "group.max.size",
        integer(1),
        INT_MAX,
        "How many members a consumer group may have.",
    )
    group_initial_rebalance_delay_ms: int = _setting(
        "group.initial.rebalance.delay.ms",
        "group.initial.rebalance.delay.ms",
        integer(0, unit="milliseconds"),
        0,
        "How long the first member of a consumer group waits for others before partitions are assigned.",
    )
    offsets_retention_minutes: int = _setting(
        "offsets.retention.minutes",
        "offsets.retention.minutes",
        integer(1, unit="minutes"),
        7 * 24 * 60,
        "How long the committed offsets of a consumer group without members are kept.",
    )
    offset_metadata_max_bytes: int = _setting(
        "offset.metadata.max.bytes",
        "offset.metadata.max.bytes",
        integer(0, unit="bytes"),
        4096,
        "The longest note that may be committed with an offset.",
    )
    producer_id_expiration_ms: int = _setting(
        "producer.id.expiration.ms",
        "producer.id.expiration.ms",
        integer(1, unit="milliseconds"),
        24 * _HOUR_MS,
        "An idempotent producer that sends nothing for this long may be forgotten.",
    )
    index_cache_segments: int = _setting(
        "cordwood.index.cache.segments",
        "cordwood.index.cache.segments",
        limit("segments"),
        -1,
        "How many sealed segments have their indexes in memory, those used last; -1 is all of them.",
    )
    retention_check_interval_ms: int = _setting(
        "log.retention.check.interval.ms",
        "log.retention.check.interval.ms",
        _MILLISECONDS,
        300_000,
        "How often the server looks for segments that retention no longer keeps.",
    )
    cleaner_enable: bool = _setting(
        "log.cleaner.enable",
        "log.cleaner.enable",
        _BOOLEAN,
        True,
        "Whether the server compacts topics in the background.",
    )
    cleaner_backoff_ms: int = _setting(
        "log.cleaner.backoff.ms",
        "log.cleaner.backoff.ms",
        _MILLISECONDS,
        15_000,
        "How often the server looks for logs to compact.",
    )
    cleaner_map_bytes: int = _setting(
        "log.cleaner.dedupe.buffer.size",
        "log.cleaner.dedupe.buffer.size",
        integer(1 << 10, LONG_MAX, unit="bytes"),
        128 << 20,
        "Memory for the keys of a compaction; one with more of them is done in several passes.",
    )
    cleaner_bytes_per_second: int = _setting(
        "log.cleaner.io.max.bytes.per.second",
        "log.cleaner.io.max.bytes.per.second",
        integer(1, LONG_MAX, unit="bytes"),
        LONG_MAX,
        "How fast the server reads and writes to compact, at most.",
    )
    scrub_bytes_per_second: int = _setting(
        "cordwood.scrub.bytes.per.second",
        "cordwood.scrub.bytes.per.second",
        integer(0, LONG_MAX, unit="bytes"),
        8 << 20,
        "How fast the server reads everything again to find what rots or was changed; 0 is never.",
    )
    scrub_interval_ms: int = _setting(
        "cordwood.scrub.interval.ms",
        "cordwood.scrub.interval.ms",
        _MILLISECONDS,
        24 * _HOUR_MS,
        "How long the server rests after it has read everything again.",
    )
    clock_jump_ms: int = _setting(
        "cordwood.clock.jump.ms",
        "cordwood.clock.jump.ms",
        _MILLISECONDS,
        60_000,
        "A wall clock that runs off by more than this between two looks has jumped: nothing is deleted then.",
    )
    clock_freeze_ms: int = _setting(
        "cordwood.clock.freeze.ms",
        "cordwood.clock.freeze.ms",
        _LAG,
        _HOUR_MS,
        "How long nothing is deleted after the wall clock has jumped.",
    )
    metrics_listen: Endpoints = _setting(  # noqa: RUF009 - a field, as every other one
        "cordwood.metrics.listen",
        "cordwood.metrics.listen",
        _METRICS,
        Endpoints(()),
        "Where /metrics, /healthz and /readyz are answered by HTTP; if empty, nowhere.",
    )
    metrics_partitions: bool = _setting(
        "cordwood.metrics.partitions",
        "cordwood.metrics.partitions",
        _BOOLEAN,
        False,
        "Whether metrics have series for each topic and partition, which opens all of them.",
    )
    traces: bool = _setting(
        "cordwood.traces",
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
        _check_values(self)
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


#: Settings of a topic that its files depend on: they hold from its creation on.
FIXED_SETTINGS = frozenset({"cordwood.format", "cordwood.initial.offset", "cordwood.storage"})
#: … and those of them that a topic has of its own or not at all: the broker's is for new topics only.
CREATION_SETTINGS = frozenset({"cordwood.storage"})

#: Every setting by its name, in the order of declaration.
TOPIC_SETTINGS: Mapping[str, Setting] = _declared(TopicConfig)
BROKER_SETTINGS: Mapping[str, Setting] = _declared(BrokerConfig)

_SETTINGS = (*BROKER_SETTINGS.values(), *TOPIC_SETTINGS.values())
_BROKER_NAMES = {name: setting for setting in _SETTINGS for name in setting.broker_kinds}
_TOPIC_DEFAULTS = TopicConfig()


@dataclass(frozen=True, slots=True)
class Family:
    """Settings of a broker that are alike but for one part of their name, as ``<org>`` in the pattern."""

    pattern: str
    kind: Kind[int]
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


# Loading


def load_broker_config(
    properties: Mapping[str, str] = _NOTHING,
    overrides: Mapping[str, str] = _NOTHING,
    environment: Mapping[str, str] = os.environ,
) -> tuple[BrokerConfig, list[str]]:
    """Return the broker's configuration and one sentence for each property that has no effect.

    *overrides* win over *properties*, also under another name of the same setting; *environment* is
    asked only where both say nothing, and an empty variable says nothing.

    Raises:
        UnknownSetting: For a name that neither Cordwood nor Kafka knows.
        InvalidSetting: For a value its setting does not take.
    """
    warnings = []
    for name in {**properties, **overrides}:
        if name in _BROKER_NAMES or any(family.variable_in(name) is not None for family in FAMILIES):
            continue
        if name not in kafka_settings.NAMES and not name.startswith(kafka_settings.PREFIXES):
            if name in TOPIC_SETTINGS:
                raise UnknownSetting(name, next(iter(TOPIC_SETTINGS[name].broker_kinds)))
            raise UnknownSetting(name, _nearest(name, {*_BROKER_NAMES, *kafka_settings.NAMES}))
        warnings.append(f"{name} is a setting of Kafka that Cordwood does not apply.")

    values: dict[str, dict[str, Any]] = {"topic": {}, "broker": {}}
    explicit = set()
    for setting in (*TOPIC_SETTINGS.values(), *BROKER_SETTINGS.values()):
        given = _given(setting, overrides, properties, environment)
        if given:
            (name, text), *ignored = given
            level = "topic" if setting.name in TOPIC_SETTINGS else "broker"
            values[level][setting.attribute] = setting.parse(text, name)
            explicit.add(name)
            warnings += [f"{other} is ignored because {name} is set." for other, _ in ignored]
    defaults = TopicConfig(**values["topic"])
    if defaults.format != _TOPIC_DEFAULTS.format:
        # A topic that does not say so itself could not be read again once the default is another one.
        raise InvalidSetting("cordwood.format", defaults.format, "batch: others are set for a topic")
    families = {name: text for name, text in {**properties, **overrides}.items() if name not in _BROKER_NAMES}
    config = BrokerConfig(
        **values["broker"],
        topic_defaults=defaults,
        explicit=frozenset(explicit),
        listener_orgs=_listener_orgs(families),
        org_quotas=_org_quotas(families),
    )
    orgs = {config.org_of(endpoint.name) for endpoint in config.listeners.each}
    warnings += [
        f"The quotas of org {org} have no effect: no listener is of it."
        for org in config.org_quotas
        if org not in orgs
    ]
    return config, warnings


def _listener_orgs(given: Mapping[str, str]) -> Mapping[str, int]:
    named = [(LISTENER_ORG.variable_in(name), name, text) for name, text in given.items()]
    found = {listener: LISTENER_ORG.parse(text, name) for listener, name, text in named if listener}
    return MappingProxyType(found)


def _org_quotas(given: Mapping[str, str]) -> Mapping[int, OrgQuota]:
    found: dict[int, OrgQuota] = {}
    for name, text in given.items():
        for attribute, family in ORG_FAMILIES.items():
            number = family.variable_in(name)
            if number is not None:
                try:
                    org = tenancy.parse_org(number)
                except ValueError:
                    raise InvalidSetting(name, text, f"<org> in its name to be {_ORG.expected}") from None
                found[org] = found.get(org, OrgQuota())._replace(**{attribute: family.parse(text, name)})
    return MappingProxyType(found)


def _given(
    setting: Setting,
    overrides: Mapping[str, str],
    properties: Mapping[str, str],
    environment: Mapping[str, str],
) -> list[tuple[str, str]]:
    """Return each name and text for *setting* in the first source that has any; the first of them counts."""
    for layer in (overrides, properties):
        given = [(name, layer[name]) for name in setting.broker_kinds if name in layer]
        if given:
            return given
    variable = environment.get(setting.environment) if setting.environment else None
    return [(setting.environment, variable)] if variable else []


def topic_config(overrides: Mapping[str, str] = _NOTHING, broker: BrokerConfig | None = None) -> TopicConfig:
    """Return the configuration of a topic with these settings of its own, on this broker.

    Raises:
        UnknownSetting: For a name that is no setting of a topic.
        InvalidSetting: For a value its setting does not take.
    """
    defaults = broker.topic_defaults if broker else _TOPIC_DEFAULTS
    if not overrides and not defaults.explicit and defaults.storage == _TOPIC_DEFAULTS.storage:
        return defaults
    return _topic_config(defaults, tuple(overrides.items()))


# Kept, so that topics that set the same few things, as most of 100,000 do, share one configuration.
@functools.lru_cache(maxsize=1024)
def _topic_config(defaults: TopicConfig, overrides: tuple[tuple[str, str], ...]) -> TopicConfig:
    values: dict[str, Any] = {
        TOPIC_SETTINGS[name].attribute: TOPIC_SETTINGS[name].default for name in CREATION_SETTINGS
    }
    for name, text in overrides:
        if name not in TOPIC_SETTINGS:
            meant = _BROKER_NAMES[name].name if name in _BROKER_NAMES else None
            raise UnknownSetting(name, meant if meant in TOPIC_SETTINGS else _nearest(name, TOPIC_SETTINGS))
        values[TOPIC_SETTINGS[name].attribute] = TOPIC_SETTINGS[name].parse(text)
    return dataclasses.replace(defaults, **values, explicit=frozenset(name for name, _ in overrides))


def _nearest(name: str, known: Iterable[str]) -> str | None:
    # Strict, since many names share their last word: segment.ms is no help to who wrote retention.ms.
    return next(iter(difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.8)), None)


def reference_table(settings: Iterable[Setting]) -> str:
    """Return the Markdown table that documents *settings*."""
    rows = ["| Name | Default | Takes | In server.properties | Meaning |", "|---|---|---|---|---|"]
    for setting in settings:
        names = ", ".join(f"`{name}`" for name in setting.broker_kinds)
        names += f"; `{setting.environment}` in the environment" if setting.environment else ""
        rows.append(
            f"| `{setting.name}` | `{text_of(setting.default)}` | {setting.kind.expected} "
            f"| {names} | {setting.sentence} |"
        )
    return "\n".join(rows) + "\n"


def family_table(families: Iterable[Family]) -> str:
    """Return the Markdown table that documents *families*."""
    rows = ["| Name | Takes | Meaning |", "|---|---|---|"]
    rows += [f"| `{each.pattern}` | {each.kind.expected} | {each.sentence} |" for each in families]
    return "\n".join(rows) + "\n"
