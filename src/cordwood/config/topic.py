"""The settings of a topic: Kafka's under Kafka's names, ours under ``cordwood.``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from cordwood.config.kinds import (
    INT_MAX,
    LONG_MAX,
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
#: The format of the log that topics share. None but that can have it.
SHARED_FORMAT = "shared"
Storage = Literal["own", "shared"]

_HOUR_MS = 3_600_000
_MESSAGE_BYTES = 16 << 20
#: However little retention keeps, segments are not sealed before they are this large.
RETAINED_SEGMENT_BYTES_MIN = 1 << 20


def _parse_false(text: str) -> bool:
    if parse_boolean(text):
        raise ValueError("there is nothing to turn on")
    return False


_BOOLEAN = SettingKind(parse_boolean, "true or false", "boolean")
_MILLISECONDS = integer(1, LONG_MAX, unit="milliseconds")
_HOURS = integer(1, unit="hours", scale=_HOUR_MS)
_LAG = integer(0, LONG_MAX, unit="milliseconds")
_KEPT_MS, _KEPT_BYTES = limit("milliseconds"), limit("bytes")
_RATIO = SettingKind(parse_ratio, "a number from 0 to 1", "double")
#: -2 is "as retention.ms or retention.bytes says", -1 no limit.
_LOCAL = integer(-2, LONG_MAX)
_ONE_COPY = SettingKind(
    integer(1, 1).parse, "1: there is one broker, which has the only copy of a record", "int"
)
_NOT_REMOTE = SettingKind(_parse_false, "false: there is no remote storage", "boolean")
_THROTTLED = SettingKind(
    parse_throttled_replicas, "* or partition:broker, more after commas, or nothing", "list"
)
_SYNC = SettingKind(SyncPolicy.parse, f"each, every:N, ms:T or never, N and T from 1 to {INT_MAX}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """The settings of one topic. Every instance holds valid values, however it was made.

    ``explicit`` names the settings given for the topic itself; all others came from the broker's
    configuration or are defaults, and change with them.
    """

    segment_bytes: int = declare(
        "segment.bytes",
        integer(14, unit="bytes"),
        1 << 30,
        "A segment is sealed before an append would make its store larger than this, "
        "or than half of retention.bytes if that is less and at least 1 MiB.",
        broker="log.segment.bytes",
    )
    segment_ms: int = declare(
        "segment.ms",
        _MILLISECONDS,
        _HOUR_MS,
        "A segment is sealed when it has been active for this long, however small it is.",
        broker={"log.roll.ms": _MILLISECONDS, "log.roll.hours": _HOURS},
    )
    segment_jitter_ms: int = declare(
        "segment.jitter.ms",
        _LAG,
        0,
        "A segment is sealed up to this much before segment.ms, so that not all partitions do it at once.",
        broker={
            "log.roll.jitter.ms": _LAG,
            "log.roll.jitter.hours": integer(0, unit="hours", scale=_HOUR_MS),
        },
    )
    # The smallest index holds one 16-byte entry: with less, every append would seal a segment.
    segment_index_bytes: int = declare(
        "segment.index.bytes",
        integer(16, unit="bytes"),
        10 << 20,
        "A segment is sealed when one of its indexes has no room left below this size.",
        broker="log.index.size.max.bytes",
    )
    index_interval_bytes: int = declare(
        "index.interval.bytes",
        integer(0, unit="bytes"),
        4096,
        "The offset index gets an entry for a frame that starts at least this far after the last one in it.",
        broker="log.index.interval.bytes",
    )
    index_interval_records: int = declare(
        "cordwood.index.interval.records",
        integer(1),
        100,
        "In formats with a frame for each record the offset index gets an entry for every one of so many.",
    )
    max_message_bytes: int = declare(
        "max.message.bytes",
        integer(0, unit="bytes"),
        _MESSAGE_BYTES,
        "The largest batch that is stored, and the largest record in one.",
        broker="message.max.bytes",
    )
    message_timestamp_type: TimestampType = declare(  # noqa: RUF009 - a field, as every other one
        "message.timestamp.type",
        one_of(*get_args(TimestampType)),
        "CreateTime",
        "Whether a record keeps its producer's timestamp or gets the time at which it was appended.",
        broker="log.message.timestamp.type",
    )
    message_timestamp_before_max_ms: int = declare(
        "message.timestamp.before.max.ms",
        _LAG,
        LONG_MAX,
        "A record whose producer's timestamp is further than this before the time of its append is refused.",
        broker="log.message.timestamp.before.max.ms",
    )
    message_timestamp_after_max_ms: int = declare(
        "message.timestamp.after.max.ms",
        _LAG,
        _HOUR_MS,
        "A record whose producer's timestamp is further than this after the time of its append is refused.",
        broker="log.message.timestamp.after.max.ms",
    )
    compression_type: CompressionType = declare(  # noqa: RUF009 - a field, as every other one
        "compression.type",
        one_of(*get_args(CompressionType)),
        "producer",
        "How batches are compressed as stored: as their producer did, or as this says, whatever came.",
    )
    compression_gzip_level: int = declare(
        "compression.gzip.level",
        SettingKind(parse_gzip_level, "a whole number from 1 to 9, or -1 for the usual level", "int"),
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
        "Which old records may go: whole segments, or those whose key has a later one, so each needs a key.",
        broker="log.cleanup.policy",
    )
    retention_ms: int = declare(
        "retention.ms",
        _KEPT_MS,
        -1,
        "Segments whose newest record is older than this are deleted, where cleanup.policy has delete.",
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
        "The oldest segments of a partition are deleted while the others hold at least this much.",
        broker="log.retention.bytes",
    )
    retention_waits_for_groups: bool = declare(
        "cordwood.retention.wait.for.groups",
        _BOOLEAN,
        False,
        "Whether retention leaves what a consumer group with committed offsets has not committed past.",
    )
    chain: bool = declare(
        "cordwood.chain",
        _BOOLEAN,
        True,
        "Whether frames get leaves in the chain and the tree that make tampering evident.",
    )
    evidence_ms: int = declare(
        "cordwood.compaction.evidence.ms",
        _KEPT_MS,
        -1,
        "How long compaction keeps lists of dropped records as evidence; -1: until the log start passes them.",
    )
    delete_retention_ms: int = declare(
        "delete.retention.ms",
        _LAG,
        24 * _HOUR_MS,
        "How long compaction keeps a tombstone after it removed what that deletes.",
        broker="log.cleaner.delete.retention.ms",
    )
    min_cleanable_dirty_ratio: float = declare(
        "min.cleanable.dirty.ratio",
        _RATIO,
        0.5,
        "How much of a log must not have been compacted yet before it is compacted again.",
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
        "A record older than this is compacted, however little of the log there is to compact.",
        broker="log.cleaner.max.compaction.lag.ms",
    )
    flush_messages: int = declare(
        "flush.messages",
        integer(1, LONG_MAX),
        LONG_MAX,
        "After how many records Kafka syncs. Here cordwood.sync decides, and by default each record is "
        "synced before it is acknowledged.",
        broker="log.flush.interval.messages",
    )
    flush_ms: int = declare(
        "flush.ms",
        _LAG,
        LONG_MAX,
        "After how long Kafka syncs. Here cordwood.sync decides, and by default each record is synced before "
        "it is acknowledged.",
        broker={"log.flush.interval.ms": _LAG, "log.flush.scheduler.interval.ms": _LAG},
    )
    file_delete_delay_ms: int = declare(
        "file.delete.delay.ms",
        _LAG,
        60_000,
        "How long Kafka waits before it removes the files of deleted segments. Here they go at once: readers "
        "hold them open.",
        broker="log.segment.delete.delay.ms",
    )
    min_insync_replicas: int = declare(
        "min.insync.replicas",
        _ONE_COPY,
        1,
        "How many copies of a record there must be before acks=all is answered. There is one broker, so 1.",
        kafka_kind=integer(1),
    )
    unclean_leader_election: bool = declare(
        "unclean.leader.election.enable",
        _BOOLEAN,
        False,
        "Whether a replica that is behind may take over. There is one copy, so none ever does.",
    )
    leader_throttled_replicas: str = declare(
        "leader.replication.throttled.replicas",
        _THROTTLED,
        "",
        "Which leaders send slowly to followers. There are no followers.",
        broker={},
    )
    follower_throttled_replicas: str = declare(
        "follower.replication.throttled.replicas",
        _THROTTLED,
        "",
        "Which followers fetch slowly. There are no followers.",
        broker={},
    )
    local_retention_ms: int = declare(
        "local.retention.ms",
        _LOCAL,
        -2,
        "How long segments stay here that are in remote storage too. There is no remote storage.",
        broker="log.local.retention.ms",
    )
    local_retention_bytes: int = declare(
        "local.retention.bytes",
        _LOCAL,
        -2,
        "How much stays here of what is in remote storage too. There is no remote storage.",
        broker="log.local.retention.bytes",
    )
    remote_storage: bool = declare(
        "remote.storage.enable",
        _NOT_REMOTE,
        False,
        "Whether sealed segments go to remote storage. There is no remote storage, so false.",
        broker={},
    )
    remote_copy_disable: bool = declare(
        "remote.log.copy.disable",
        _BOOLEAN,
        False,
        "Whether no more segments are copied to remote storage. There is no remote storage.",
        broker={},
    )
    remote_delete_on_disable: bool = declare(
        "remote.log.delete.on.disable",
        _BOOLEAN,
        False,
        "Whether what is in remote storage goes when that is disabled. There is no remote storage.",
        broker={},
    )
    preallocate: bool = declare(
        "preallocate",
        _BOOLEAN,
        False,
        "Whether space for a segment is reserved ahead of the appends, in steps of up to 16 MiB.",
        broker="log.preallocate",
    )
    format: str = declare(
        "cordwood.format",
        one_of(*get_args(RecordFormat), unsaid=SHARED_FORMAT),
        "batch",
        "How records are laid out in the store: batch is Kafka's record batch, version 2; the other formats "
        "are those of other systems and have a frame for each record.",
    )
    storage: Storage = declare(  # noqa: RUF009 - a field, as every other one
        "cordwood.storage",
        one_of(*get_args(Storage)),
        "own",
        "Whether a new topic gets files of its own or is kept in the log that many topics share.",
    )
    sync: SyncPolicy = declare(  # noqa: RUF009 - a field, as every other one
        "cordwood.sync",
        _SYNC,
        SyncPolicy("each"),
        "When records are synced: before each acknowledgement (appends share a sync), every N records, "
        "every T milliseconds, or never; all but each can lose acknowledged records in a power cut.",
    )
    initial_offset: int = declare(
        "cordwood.initial.offset",
        integer(0, LONG_MAX),
        0,
        "The first offset of each partition of a new topic.",
    )
    explicit: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        check_values(self)
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

    @property
    def roll_bytes(self) -> int:
        """The largest store that a segment gets: ``segment.bytes``, or less where retention goes by size.

        Only whole sealed segments are ever deleted. One that may become larger than all that is to be kept
        would hold retention back until it is full.
        """
        if self.retention_bytes < 0 or "delete" not in self.cleanup_policy:
            return self.segment_bytes
        return min(self.segment_bytes, max(self.retention_bytes // 2, RETAINED_SEGMENT_BYTES_MIN))

    def overrides(self) -> dict[str, str]:
        """Return the topic's own settings as text: what to store, and what ``topic_config`` takes back."""
        own = [setting for setting in TOPIC_SETTINGS.values() if setting.name in self.explicit]
        return {setting.name: text_of(getattr(self, setting.attribute)) for setting in own}


#: Settings of a topic that its files depend on: they hold from its creation on.
FIXED_SETTINGS = frozenset({"cordwood.format", "cordwood.initial.offset", "cordwood.storage"})
#: Those of them that a topic has of its own or not at all: the broker's is for new topics only.
CREATION_SETTINGS = frozenset({"cordwood.storage"})

#: Every setting of a topic by its name, in the order of declaration.
TOPIC_SETTINGS: Mapping[str, Setting] = declared_in(TopicConfig)
