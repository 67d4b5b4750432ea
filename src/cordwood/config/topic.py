"""The settings of a topic: Kafka's under Kafka's names, ours under ``cordwood.``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from cordwood.config.kinds import (
    INT_MAX,
    LONG_MAX,
    ONE_COPY,
    SettingKind,
    SyncPolicy,
    integer,
    limit,
    one_of,
    parse_boolean,
    parse_gzip_level,
    parse_ratio,
    parse_throttled_replicas,
    some_of,
    text_of,
)
from cordwood.config.setting import Setting, check_values, declare, declared_in
from cordwood.errors import InvalidSetting

TimestampType = Literal["CreateTime", "LogAppendTime"]
CompressionType = Literal["producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"]
RecordFormat = Literal["batch", "rustlog", "kimberlite", "laminarmq", "frame"]
#: The format of the shared log. No topic can have it.
SHARED_FORMAT = "shared"
Storage = Literal["own", "shared"]
Verification = Literal["first", "every"]
TimestampOrder = Literal["any", "refuse", "lift"]
RetentionClock = Literal["append", "timestamp"]
TimestampPrecision = Literal["ms", "us"]

_HOUR_MS = 3_600_000
_MESSAGE_BYTES = 16 << 20
#: Segments are not sealed for retention by size before they are this large.
RETAINED_SEGMENT_BYTES_MIN = 1 << 20


def _parse_false(text: str) -> bool:
    if parse_boolean(text):
        raise ValueError("cannot be turned on")
    return False


_BOOLEAN = SettingKind(parse_boolean, "true or false", "boolean")
_MILLISECONDS = integer(1, LONG_MAX, unit="milliseconds")
_HOURS = integer(1, unit="hours", scale=_HOUR_MS)
_LAG = integer(0, LONG_MAX, unit="milliseconds")
_KEPT_MS, _KEPT_BYTES = limit("milliseconds"), limit("bytes")
_RATIO = SettingKind(parse_ratio, "a number from 0 to 1", "double")
#: -2 means the value of retention.ms or retention.bytes, -1 means no limit.
_LOCAL = integer(-2, LONG_MAX)
_NOT_REMOTE = SettingKind(_parse_false, "false: there is no remote storage", "boolean")
_THROTTLED = SettingKind(
    parse_throttled_replicas, "*, a comma-separated list of partition:broker, or nothing", "list"
)
_SYNC = SettingKind(SyncPolicy.parse, f"each, every:N, ms:T or never, N and T from 1 to {INT_MAX}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """The settings of one topic. Every instance holds valid values.

    ``explicit`` names the settings of the topic itself; all others come from the broker's configuration or
    are defaults, and change with them.
    """

    segment_bytes: int = declare(
        "segment.bytes",
        integer(14, unit="bytes"),
        1 << 30,
        "A segment is sealed before an append would make its store larger than this, "
        "or larger than half of retention.bytes if that is less and at least 1 MiB. Only one frame that is "
        "larger makes a larger segment: a batch, or one record in formats with one frame per record.",
        broker="log.segment.bytes",
    )
    segment_ms: int = declare(
        "segment.ms",
        _MILLISECONDS,
        _HOUR_MS,
        "A segment is sealed when it has been active for this long, even if it is small.",
        broker={"log.roll.ms": _MILLISECONDS, "log.roll.hours": _HOURS},
    )
    segment_jitter_ms: int = declare(
        "segment.jitter.ms",
        _LAG,
        0,
        "A segment is sealed up to this long before segment.ms, so that partitions do not roll all at once.",
        broker={
            "log.roll.jitter.ms": _LAG,
            "log.roll.jitter.hours": integer(0, unit="hours", scale=_HOUR_MS),
        },
    )
    # The smallest index holds one 16-byte entry: with a lower limit, every append would seal a segment.
    segment_index_bytes: int = declare(
        "segment.index.bytes",
        integer(16, unit="bytes"),
        10 << 20,
        "A segment is sealed before an append would make one of its indexes larger than this.",
        broker="log.index.size.max.bytes",
    )
    index_interval_bytes: int = declare(
        "index.interval.bytes",
        integer(0, unit="bytes"),
        4096,
        "The offset index gets an entry for a frame that starts at least this far after the last entry.",
        broker="log.index.interval.bytes",
    )
    index_interval_records: int = declare(
        "cordwood.index.interval.records",
        integer(1),
        100,
        "In formats with one frame per record, the number of records for each entry in the offset index.",
    )
    max_message_bytes: int = declare(
        "max.message.bytes",
        integer(0, unit="bytes"),
        _MESSAGE_BYTES,
        "The largest batch that is accepted, and the largest record in a batch.",
        broker="message.max.bytes",
    )
    message_timestamp_type: TimestampType = declare(  # noqa: RUF009 - a field, as every other one
        "message.timestamp.type",
        one_of(*get_args(TimestampType)),
        "CreateTime",
        "Whether a record keeps its producer's timestamp or gets the time of its append.",
        broker="log.message.timestamp.type",
    )
    message_timestamp_before_max_ms: int = declare(
        "message.timestamp.before.max.ms",
        _LAG,
        LONG_MAX,
        "A record whose producer timestamp is more than this before the time of its append is refused.",
        broker="log.message.timestamp.before.max.ms",
    )
    message_timestamp_after_max_ms: int = declare(
        "message.timestamp.after.max.ms",
        _LAG,
        _HOUR_MS,
        "A record whose producer timestamp is more than this after the time of its append is refused.",
        broker="log.message.timestamp.after.max.ms",
    )
    timestamp_order: TimestampOrder = declare(  # noqa: RUF009 - a field, as every other one
        "cordwood.timestamp.order",
        one_of(*get_args(TimestampOrder)),
        "any",
        "What happens to a record whose timestamp is before the last one of its segment: any stores it, "
        "refuse refuses it, lift gives it the last timestamp.",
    )
    compression_type: CompressionType = declare(  # noqa: RUF009 - a field, as every other one
        "compression.type",
        one_of(*get_args(CompressionType)),
        "producer",
        "The compression of stored batches; producer keeps the compression that the producer used.",
    )
    compression_gzip_level: int = declare(
        "compression.gzip.level",
        SettingKind(parse_gzip_level, "a whole number from 1 to 9, or -1 for gzip's default level", "int"),
        -1,
        "The level at which compression.type=gzip compresses.",
    )
    compression_lz4_level: int = declare(
        "compression.lz4.level",
        integer(1, 17),
        9,
        "The level at which compression.type=lz4 compresses; 9 is the fast compressor, as in Kafka.",
    )
    compression_zstd_level: int = declare(
        "compression.zstd.level",
        integer(-131072, 22),
        3,
        "The level at which compression.type=zstd compresses.",
    )
    cleanup_policy: str = declare(
        "cleanup.policy",
        some_of("delete", "compact"),
        "delete",
        "How old records are removed: delete removes whole segments, compact keeps the last record of each "
        "key and requires that records have keys.",
        broker="log.cleanup.policy",
    )
    retention_ms: int = declare(
        "retention.ms",
        _KEPT_MS,
        -1,
        "Segments whose newest record is older than this by cordwood.retention.clock are deleted if "
        "cleanup.policy includes delete.",
        broker={
            "log.retention.ms": _KEPT_MS,
            "log.retention.minutes": limit("minutes", 60_000),
            "log.retention.hours": limit("hours", _HOUR_MS),
        },
    )
    retention_bytes: int = declare(
        "retention.bytes",
        _KEPT_BYTES,
        -1,
        "The oldest segments of a partition are deleted as long as the others hold at least this many bytes.",
        broker="log.retention.bytes",
    )
    retention_clock: RetentionClock = declare(  # noqa: RUF009 - a field, as every other one
        "cordwood.retention.clock",
        one_of(*get_args(RetentionClock)),
        "append",
        "What the age of a segment counts from: append is its last append by the broker's clock; timestamp, "
        "as in Kafka, its largest record timestamp, and at the latest its sealing.",
    )
    retention_waits_for_groups: bool = declare(
        "cordwood.retention.wait.for.groups",
        _BOOLEAN,
        False,
        "Whether retention keeps records that a consumer group with committed offsets has not committed yet.",
    )
    remote_acks: bool = declare(
        "cordwood.remote.acks",
        _BOOLEAN,
        False,
        "Whether records are acknowledged and visible only once the bucket of cordwood.bucket has them. With "
        "the first such topic, committed offsets, transactions and topics wait for the bucket too.",
    )
    chain: bool = declare(
        "cordwood.chain",
        _BOOLEAN,
        True,
        "Whether frames are added to the hash chain and the Merkle tree, which make tampering evident.",
    )
    evidence_ms: int = declare(
        "cordwood.compaction.evidence.ms",
        _KEPT_MS,
        -1,
        "How long compaction keeps lists of dropped records as evidence; -1: as long as the log.",
    )
    delete_retention_ms: int = declare(
        "delete.retention.ms",
        _LAG,
        24 * _HOUR_MS,
        "How long compaction keeps a tombstone after it has removed the records of that key.",
        broker="log.cleaner.delete.retention.ms",
    )
    min_cleanable_dirty_ratio: float = declare(
        "min.cleanable.dirty.ratio",
        _RATIO,
        0.5,
        "The share of a log that must be uncompacted before the log is compacted again.",
        broker="log.cleaner.min.cleanable.ratio",
    )
    min_compaction_lag_ms: int = declare(
        "min.compaction.lag.ms",
        _LAG,
        0,
        "A segment with a record younger than this is not compacted.",
        broker="log.cleaner.min.compaction.lag.ms",
    )
    max_compaction_lag_ms: int = declare(
        "max.compaction.lag.ms",
        _MILLISECONDS,
        LONG_MAX,
        "A record older than this is compacted regardless of min.cleanable.dirty.ratio.",
        broker="log.cleaner.max.compaction.lag.ms",
    )
    flush_messages: int = declare(
        "flush.messages",
        integer(1, LONG_MAX),
        LONG_MAX,
        "The number of records after which Kafka syncs. Not used: see cordwood.sync, which by default syncs "
        "each record before it is acknowledged.",
        broker="log.flush.interval.messages",
    )
    flush_ms: int = declare(
        "flush.ms",
        _LAG,
        LONG_MAX,
        "The time after which Kafka syncs. Not used: see cordwood.sync, which by default syncs each record "
        "before it is acknowledged.",
        broker={"log.flush.interval.ms": _LAG, "log.flush.scheduler.interval.ms": _LAG},
    )
    file_delete_delay_ms: int = declare(
        "file.delete.delay.ms",
        _LAG,
        60_000,
        "How long Kafka waits before it removes the files of deleted segments. Not used: files are removed "
        "at once, and readers hold them open.",
        broker="log.segment.delete.delay.ms",
    )
    min_insync_replicas: int = declare(
        "min.insync.replicas",
        ONE_COPY,
        1,
        "The number of copies of a record that acks=all waits for. There is one broker, so 1.",
        kafka_kind=integer(1),
    )
    unclean_leader_election: bool = declare(
        "unclean.leader.election.enable",
        _BOOLEAN,
        False,
        "Whether a replica that is behind may become leader. Not used: there is one copy.",
    )
    leader_throttled_replicas: str = declare(
        "leader.replication.throttled.replicas",
        _THROTTLED,
        "",
        "The leaders whose replication traffic is throttled. Not used: there are no followers.",
        broker={},
    )
    follower_throttled_replicas: str = declare(
        "follower.replication.throttled.replicas",
        _THROTTLED,
        "",
        "The followers whose replication traffic is throttled. Not used: there are no followers.",
        broker={},
    )
    local_retention_ms: int = declare(
        "local.retention.ms",
        _LOCAL,
        -2,
        "How long segments that are in remote storage stay local. Not used: there is no remote storage.",
        broker="log.local.retention.ms",
    )
    local_retention_bytes: int = declare(
        "local.retention.bytes",
        _LOCAL,
        -2,
        "The local bytes of segments that are in remote storage. Not used: there is no remote storage.",
        broker="log.local.retention.bytes",
    )
    remote_storage: bool = declare(
        "remote.storage.enable",
        _NOT_REMOTE,
        False,
        "Whether sealed segments are copied to remote storage. There is no remote storage, so false.",
        broker={},
    )
    remote_copy_disable: bool = declare(
        "remote.log.copy.disable",
        _BOOLEAN,
        False,
        "Whether copying to remote storage is stopped. Not used: there is no remote storage.",
        broker={},
    )
    remote_delete_on_disable: bool = declare(
        "remote.log.delete.on.disable",
        _BOOLEAN,
        False,
        "Whether remote segments are deleted when remote storage is disabled. Not used: there is none.",
        broker={},
    )
    preallocate: bool = declare(
        "preallocate",
        _BOOLEAN,
        False,
        "Whether disk space for a segment is allocated ahead of appends, in steps of up to 16 MiB.",
        broker="log.preallocate",
    )
    format: str = declare(
        "cordwood.format",
        one_of(*get_args(RecordFormat), unsaid=SHARED_FORMAT),
        "batch",
        "The format of records in the store: batch is Kafka's record batch, version 2; the others are "
        "formats of other systems, with one frame per record.",
    )
    storage: Storage = declare(  # noqa: RUF009 - a field, as every other one
        "cordwood.storage",
        one_of(*get_args(Storage)),
        "own",
        "Whether a new topic gets files of its own (own) or is stored in the log of many topics (shared).",
    )
    sync: SyncPolicy = declare(  # noqa: RUF009 - a field, as every other one
        "cordwood.sync",
        _SYNC,
        SyncPolicy("each"),
        "When records are synced: each is before every acknowledgement (appends share a sync), every:N after "
        "N records, ms:T after T milliseconds. All but each can lose acknowledged records in a power cut.",
    )
    verify: Verification = declare(  # noqa: RUF009 - a field, as every other one
        "cordwood.verify",
        one_of(*get_args(Verification)),
        "first",
        "When a read compares the checksum of a frame: first is on its first read since the log was opened, "
        "every is on each read. For topics in the shared log, the broker's value counts.",
    )
    initial_offset: int = declare(
        "cordwood.initial.offset",
        integer(0, LONG_MAX),
        0,
        "The first offset of each partition of a new topic.",
    )
    timestamp_precision: TimestampPrecision = declare(  # noqa: RUF009 - a field, as every other one
        "cordwood.timestamp.precision",
        one_of(*get_args(TimestampPrecision)),
        "ms",
        "Whether times are stored in milliseconds (ms) or microseconds (us), which the formats rustlog and "
        "kimberlite can; clients see milliseconds, and the header cordwood.timestamp_us.",
        broker={},
    )
    export_index_interval: int = declare(
        "cordwood.export.index.interval",
        integer(1, INT_MAX),
        100,
        "The records from one entry to the next in the index that an export to rustlog or frame has. An "
        "import sets it as it finds it.",
        broker={},
    )
    export_time_index: bool = declare(
        "cordwood.export.time.index",
        _BOOLEAN,
        True,
        "Whether an export to frame has indexes by time. An import sets it as it finds it.",
        broker={},
    )
    explicit: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        check_values(self)
        if self.timestamp_precision == "us" and self.timestamp_order != "any":
            expected = (
                "any: with cordwood.timestamp.precision=us only times that the log assigns are in order"
            )
            raise InvalidSetting("cordwood.timestamp.order", self.timestamp_order, expected)
        if self.storage == "shared":
            if "compact" in self.cleanup_policy:
                expected = "delete: a topic with cordwood.storage=shared cannot be compacted"
                raise InvalidSetting("cleanup.policy", self.cleanup_policy, expected)
            if self.format != "batch":
                expected = "batch: a topic with cordwood.storage=shared supports no other format"
                raise InvalidSetting("cordwood.format", self.format, expected)
            if self.timestamp_order != "any":
                expected = "any: a topic with cordwood.storage=shared does not order timestamps"
                raise InvalidSetting("cordwood.timestamp.order", self.timestamp_order, expected)

    @property
    def stored_bytes_max(self) -> int:
        """The largest batch that a reader accepts, in bytes.

        Never below the default limit: after ``max.message.bytes`` is lowered, batches that were stored before
        must stay readable, and recovery must not treat them as damage.
        """
        return max(self.max_message_bytes, _MESSAGE_BYTES)

    @property
    def roll_bytes(self) -> int:
        """The largest store of a segment in bytes: ``segment.bytes``, or less if retention is by size.

        Retention deletes whole sealed segments only. A segment that may grow larger than ``retention.bytes``
        would delay retention until it is full.
        """
        if self.retention_bytes < 0 or "delete" not in self.cleanup_policy:
            return self.segment_bytes
        return min(self.segment_bytes, max(self.retention_bytes // 2, RETAINED_SEGMENT_BYTES_MIN))

    def overrides(self) -> dict[str, str]:
        """Return the topic's own settings as text, the form that is stored and ``topic_config`` accepts."""
        own = [setting for setting in TOPIC_SETTINGS.values() if setting.name in self.explicit]
        return {setting.name: text_of(getattr(self, setting.attribute)) for setting in own}


#: Settings that the files of a topic depend on: they are fixed at its creation.
FIXED_SETTINGS = frozenset(
    {"cordwood.format", "cordwood.initial.offset", "cordwood.storage", "cordwood.timestamp.precision"}
)
#: Fixed settings that an existing topic never inherits: the broker's value is for new topics only.
CREATION_SETTINGS = frozenset({"cordwood.storage"})

#: Every setting of a topic by its name, in the order of declaration.
TOPIC_SETTINGS: Mapping[str, Setting] = declared_in(TopicConfig)
