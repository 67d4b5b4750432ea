"""Every metric, declared once with its sentence."""

from __future__ import annotations

from dataclasses import dataclass

# Declarations. They compare by identity (eq=False): a metric is the constant below, and finding its
# number costs no comparison of names.


@dataclass(frozen=True, slots=True, eq=False)
class Counter:
    """A number that only grows while the process lives."""

    name: str
    sentence: str
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Gauge:
    """A number that goes up and down."""

    name: str
    sentence: str
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Histogram:
    """A distribution. ``buckets`` are upper bounds, inclusive and rising; one without bound is implied."""

    name: str
    sentence: str
    buckets: tuple[float, ...]
    labels: tuple[str, ...] = ()


Metric = Counter | Gauge | Histogram

# Three to a decade, from what a cached write takes to what a failing disk takes. 100 ms is a bound
# because the alert on slow writes asks for it.
_SECONDS = tuple(step * 10.0**decade for decade in range(-5, 1) for step in (1.0, 2.5, 5.0))
_LONG_SECONDS = (0.001, 0.01, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
_POWERS_OF_TWO = tuple(float(1 << power) for power in range(17))

APPEND_SECONDS = Histogram(
    "cordwood_append_seconds",
    "Time from the start of an append until its bytes were with the operating system.",
    _SECONDS,
)
SYNC_SECONDS = Histogram("cordwood_sync_seconds", "Time one sync to the device took.", _SECONDS)
GROUP_COMMIT_RECORDS = Histogram(
    "cordwood_group_commit_records", "Records made durable by one shared sync.", _POWERS_OF_TWO
)
RECOVERY_SECONDS = Histogram(
    "cordwood_recovery_seconds", "Time it took to open and recover one partition.", _LONG_SECONDS
)
APPENDED_RECORDS = Counter("cordwood_appended_records_total", "Records appended.")
APPENDED_BYTES = Counter("cordwood_appended_bytes_total", "Bytes of frames appended.")
SEGMENTS = Gauge("cordwood_segments", "Segments there are, active and sealed.")
SEGMENTS_ROLLED = Counter("cordwood_segments_rolled_total", "Segments sealed to open the next.")
TORN_BYTES = Counter("cordwood_torn_bytes_total", "Bytes of torn tails cut by recovery.")
CORRUPT_RANGES = Gauge(
    "cordwood_corrupt_ranges", "Ranges of once synced bytes that are now wrong and refused to readers."
)
INDEX_REBUILD_SECONDS = Histogram(
    "cordwood_index_rebuild_seconds", "Time it took to build a segment's index from its log.", _LONG_SECONDS
)
INDEX_REBUILDS = Counter("cordwood_index_rebuilds_total", "Index files rebuilt from their segment's store.")
INDEX_CORRUPTIONS_DETECTED = Counter(
    "cordwood_index_corruptions_detected_total", "Index files found to contradict their segment's store."
)
SEGMENTS_DELETED = Counter("cordwood_segments_deleted_total", "Segments removed by retention.")
BYTES_RECLAIMED = Counter(
    "cordwood_bytes_reclaimed_total", "Bytes of segments that retention and compaction gave back."
)
COMPACTIONS = Counter("cordwood_compaction_passes_total", "Passes of compaction over a partition.")
COMPACTION_READ_BYTES = Counter(
    "cordwood_compaction_read_bytes_total", "Bytes of segments that compaction has read."
)
COMPACTION_WRITTEN_BYTES = Counter(
    "cordwood_compaction_written_bytes_total", "Bytes of segments that compaction has written."
)
COMPACTION_DROPPED_RECORDS = Counter(
    "cordwood_compaction_dropped_records_total", "Records that compaction has left out."
)
CHECKPOINT_CORRUPTIONS = Counter(
    "cordwood_checkpoint_corruption_total",
    "Cleaner checkpoints that were missing or damaged, so that compaction started over.",
)
DELETES_FROZEN = Gauge(
    "cordwood_deletes_frozen", "1 while nothing is deleted because the wall clock has jumped, else 0."
)

CHAIN_LAG = Gauge(
    "cordwood_chain_lag_records", "Records of all logs with a chain that have no leaf in it yet."
)
SCRUBBED_BYTES = Counter(
    "cordwood_scrubbed_bytes_total", "Bytes that were read again and compared with what they were."
)
SCRUB_FINDINGS = Counter(
    "cordwood_scrub_findings_total", "Places where what was read again is not what was written."
)

# What clients ask of a server.
MESSAGES_PRODUCED = Counter(
    "cordwood_messages_produced_total", "Records of produce requests that have a place in a log."
)
BYTES_IN = Counter(
    "cordwood_bytes_in_total", "Bytes of batches in produce requests that have a place in a log."
)
BYTES_OUT = Counter("cordwood_bytes_out_total", "Bytes of batches that fetch requests were answered with.")
BATCHES_REFUSED = Counter(
    "cordwood_batches_refused_total", "Batches of produce requests that were not stored, for any reason."
)
PRODUCE_SECONDS = Histogram(
    "cordwood_produce_latency_seconds", "Time from a whole produce request until it was answered.", _SECONDS
)
FETCH_SECONDS = Histogram(
    "cordwood_fetch_latency_seconds",
    "Time one read for a fetch request took, without the time it waited for records to come.",
    _SECONDS,
)

#: Every metric that is counted as things happen.
METRICS: tuple[Metric, ...] = (
    APPEND_SECONDS,
    SYNC_SECONDS,
    GROUP_COMMIT_RECORDS,
    RECOVERY_SECONDS,
    APPENDED_RECORDS,
    APPENDED_BYTES,
    SEGMENTS,
    SEGMENTS_ROLLED,
    TORN_BYTES,
    CORRUPT_RANGES,
    INDEX_REBUILDS,
    INDEX_REBUILD_SECONDS,
    INDEX_CORRUPTIONS_DETECTED,
    SEGMENTS_DELETED,
    BYTES_RECLAIMED,
    COMPACTIONS,
    COMPACTION_READ_BYTES,
    COMPACTION_WRITTEN_BYTES,
    COMPACTION_DROPPED_RECORDS,
    CHECKPOINT_CORRUPTIONS,
    DELETES_FROZEN,
    CHAIN_LAG,
    SCRUBBED_BYTES,
    SCRUB_FINDINGS,
    MESSAGES_PRODUCED,
    BYTES_IN,
    BYTES_OUT,
    BATCHES_REFUSED,
    PRODUCE_SECONDS,
    FETCH_SECONDS,
)

# Metrics that are not counted but looked up when a server is asked for them.

_GROUP = ("consumergroup",)
_TOPIC = ("topic",)
_PLACE = ("topic", "partition")

CONNECTIONS = Gauge("cordwood_connections", "Clients that are connected.")
FETCH_SESSIONS = Gauge(
    "cordwood_fetch_sessions", "Consumers with a fetch session, to whom only news is sent."
)
FETCH_SESSION_PARTITIONS = Gauge("cordwood_fetch_session_partitions", "Partitions in all fetch sessions.")
FETCH_SESSION_EVICTIONS = Counter(
    "cordwood_fetch_session_evictions_total", "Fetch sessions that ended so that others had a place."
)
TOPICS = Gauge("cordwood_topics", "Topics there are, internal ones too.")
PARTITIONS = Gauge("cordwood_partitions", "Partitions of all topics.")
OPEN_LOGS = Gauge(
    "cordwood_open_logs", "Partitions whose log is open: after a clean start that is from their first use on."
)
LOG_BYTES = Gauge("cordwood_log_bytes", "Bytes of the segments of all open logs, without their indexes.")
FAILED_LOGS = Gauge("cordwood_failed_logs", "Open logs that take no more because a write or a sync failed.")
DISK_FREE_BYTES = Gauge(
    "cordwood_disk_free_bytes", "Bytes that can still be written where the data directory is."
)
CONSUMER_GROUPS = Gauge("cordwood_consumer_groups", "Consumer groups there are.")
CONSUMER_LAG = Gauge(
    "cordwood_consumer_lag", "Records that the consumer group furthest behind has not committed in one topic."
)
PAGE_FAULTS = Counter(
    "cordwood_page_faults_total",
    "Page faults of the process: major ones had to wait for the disk, minor ones had not.",
    ("kind",),
)
TOPIC_BYTES = Gauge(
    "cordwood_topic_bytes", "Bytes of the segments of a topic, without their indexes.", _TOPIC
)
UNREADABLE_PARTITIONS = Gauge(
    "cordwood_unreadable_partitions", "Partitions that could not be opened when somebody needed them."
)

# Under the names of kafka_exporter, so that dashboards and alerts made for it work here too.
KAFKA_BROKERS = Gauge("kafka_brokers", "Brokers there are: this one.")
KAFKA_BROKER_INFO = Gauge("kafka_broker_info", "1 for each broker, by its id and address.", ("id", "address"))
KAFKA_GROUP_MEMBERS = Gauge("kafka_consumergroup_members", "Members of a consumer group.", _GROUP)
KAFKA_GROUP_OFFSET_SUM = Gauge(
    "kafka_consumergroup_current_offset_sum",
    "Offsets that a consumer group has committed, added up over the partitions of a topic.",
    _GROUP + _TOPIC,
)
KAFKA_GROUP_LAG_SUM = Gauge(
    "kafka_consumergroup_lag_sum",
    "Records of a topic that a consumer group has not committed past, in all partitions it committed in.",
    _GROUP + _TOPIC,
)
KAFKA_GROUP_OFFSET = Gauge(
    "kafka_consumergroup_current_offset",
    "The offset that a consumer group has committed in a partition.",
    _GROUP + _PLACE,
)
KAFKA_GROUP_LAG = Gauge(
    "kafka_consumergroup_lag",
    "Records of a partition that a consumer group has not committed past.",
    _GROUP + _PLACE,
)
KAFKA_TOPIC_PARTITIONS = Gauge("kafka_topic_partitions", "Partitions of a topic.", _TOPIC)
KAFKA_CURRENT_OFFSET = Gauge(
    "kafka_topic_partition_current_offset", "The high watermark of a partition.", _PLACE
)
KAFKA_OLDEST_OFFSET = Gauge(
    "kafka_topic_partition_oldest_offset", "The log start offset of a partition.", _PLACE
)
KAFKA_LEADER = Gauge("kafka_topic_partition_leader", "The id of the broker that leads a partition.", _PLACE)
KAFKA_REPLICAS = Gauge("kafka_topic_partition_replicas", "Replicas of a partition: always 1.", _PLACE)
KAFKA_IN_SYNC = Gauge(
    "kafka_topic_partition_in_sync_replica", "Replicas of a partition that are in sync: always 1.", _PLACE
)
KAFKA_PREFERRED = Gauge(
    "kafka_topic_partition_leader_is_preferred",
    "1 if the preferred broker leads a partition: always.",
    _PLACE,
)
KAFKA_UNDER_REPLICATED = Gauge(
    "kafka_topic_partition_under_replicated_partition",
    "1 if a partition has fewer replicas in sync than it should: never.",
    _PLACE,
)
#: Every metric that is looked up, at every scrape.
LOOKED_UP: tuple[Metric, ...] = (
    CONNECTIONS,
    FETCH_SESSIONS,
    FETCH_SESSION_PARTITIONS,
    FETCH_SESSION_EVICTIONS,
    TOPICS,
    PARTITIONS,
    OPEN_LOGS,
    LOG_BYTES,
    FAILED_LOGS,
    UNREADABLE_PARTITIONS,
    DISK_FREE_BYTES,
    CONSUMER_GROUPS,
    CONSUMER_LAG,
    PAGE_FAULTS,
    KAFKA_BROKERS,
    KAFKA_BROKER_INFO,
    KAFKA_GROUP_MEMBERS,
    KAFKA_GROUP_OFFSET_SUM,
    KAFKA_GROUP_LAG_SUM,
)

#: Every metric that is looked up at a scrape only with ``cordwood.metrics.partitions``: a series for each
#: topic or partition.
LOOKED_UP_EACH: tuple[Metric, ...] = (
    TOPIC_BYTES,
    KAFKA_TOPIC_PARTITIONS,
    KAFKA_CURRENT_OFFSET,
    KAFKA_OLDEST_OFFSET,
    KAFKA_LEADER,
    KAFKA_REPLICAS,
    KAFKA_IN_SYNC,
    KAFKA_PREFERRED,
    KAFKA_UNDER_REPLICATED,
    KAFKA_GROUP_OFFSET,
    KAFKA_GROUP_LAG,
)
