"""Every metric, declared once with its description."""

from __future__ import annotations

from dataclasses import dataclass

# Declarations. They compare by identity (eq=False): a metric is one of the constants below, and looking up
# its value compares no names.


@dataclass(frozen=True, slots=True, eq=False)
class Counter:
    """A number that only increases while the process runs."""

    name: str
    sentence: str
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Gauge:
    """A number that can increase and decrease."""

    name: str
    sentence: str
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Histogram:
    """A distribution. ``buckets`` are inclusive ascending upper bounds; an infinite one is implied."""

    name: str
    sentence: str
    buckets: tuple[float, ...]
    labels: tuple[str, ...] = ()


Metric = Counter | Gauge | Histogram

# Three buckets per decade, from the time of a cached write to that of a failing disk. 100 ms is a bound
# because the alert on slow writes uses it.
_SECONDS = tuple(step * 10.0**decade for decade in range(-5, 1) for step in (1.0, 2.5, 5.0))
_LONG_SECONDS = (0.001, 0.01, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
# From 1 KiB to 4 GiB, which some formats limit a segment to.
_SEGMENT_BYTES = tuple(float(1 << power) for power in range(10, 33, 2))
_POWERS_OF_TWO = tuple(float(1 << power) for power in range(17))

APPEND_SECONDS = Histogram(
    "cordwood_append_seconds",
    "Time from the start of an append until its bytes were passed to the operating system.",
    _SECONDS,
)
SYNC_SECONDS = Histogram("cordwood_sync_seconds", "Duration of one sync to the device.", _SECONDS)
GROUP_COMMIT_RECORDS = Histogram(
    "cordwood_group_commit_records", "Records made durable by one shared sync.", _POWERS_OF_TWO
)
RECOVERY_SECONDS = Histogram(
    "cordwood_recovery_seconds", "Time to open and recover one partition.", _LONG_SECONDS
)
APPENDED_RECORDS = Counter("cordwood_appended_records_total", "Records appended.")
APPENDED_BYTES = Counter("cordwood_appended_bytes_total", "Bytes of frames appended.")
SEGMENTS = Gauge("cordwood_segments", "Number of segments, active and sealed.")
SEGMENTS_ROLLED = Counter("cordwood_segments_rolled_total", "Segments sealed by a roll.")
TORN_BYTES = Counter("cordwood_torn_bytes_total", "Bytes of torn tails that recovery truncated.")
CORRUPT_RANGES = Gauge(
    "cordwood_corrupt_ranges", "Ranges of synced bytes that are now corrupt and refused to readers."
)
INDEX_REBUILD_SECONDS = Histogram(
    "cordwood_index_rebuild_seconds", "Time to build a segment's index from its store.", _LONG_SECONDS
)
INDEX_REBUILDS = Counter("cordwood_index_rebuilds_total", "Index files rebuilt from their segment's store.")
INDEX_CORRUPTIONS_DETECTED = Counter(
    "cordwood_index_corruptions_detected_total", "Index files that contradict their segment's store."
)
SEGMENTS_DELETED = Counter("cordwood_segments_deleted_total", "Segments deleted by retention.")
BYTES_RECLAIMED = Counter(
    "cordwood_bytes_reclaimed_total", "Bytes of segments freed by retention and compaction."
)
COMPACTIONS = Counter("cordwood_compaction_passes_total", "Compaction passes over a partition.")
COMPACTION_READ_BYTES = Counter(
    "cordwood_compaction_read_bytes_total", "Bytes of segments read by compaction."
)
COMPACTION_WRITTEN_BYTES = Counter(
    "cordwood_compaction_written_bytes_total", "Bytes of segments written by compaction."
)
COMPACTION_DROPPED_RECORDS = Counter(
    "cordwood_compaction_dropped_records_total", "Records dropped by compaction."
)
CHECKPOINT_CORRUPTIONS = Counter(
    "cordwood_checkpoint_corruption_total",
    "Checkpoints of compaction that were missing or corrupt, so that compaction started over.",
)
DELETES_FROZEN = Gauge(
    "cordwood_deletes_frozen", "1 while nothing is deleted because the wall clock has jumped, else 0."
)

CHAIN_LAG = Gauge(
    "cordwood_chain_lag_records", "Records in all logs with a chain that are not in their chain yet."
)
SCRUBBED_BYTES = Counter("cordwood_scrubbed_bytes_total", "Bytes that scrubbing reread and verified.")
SCRUB_FINDINGS = Counter(
    "cordwood_scrub_findings_total", "Places where scrubbing read other bytes than were written."
)

# Requests of clients to a server.
MESSAGES_PRODUCED = Counter(
    "cordwood_messages_produced_total", "Records of produce requests that were appended to a log."
)
BYTES_IN = Counter(
    "cordwood_bytes_in_total", "Bytes of batches of produce requests that were appended to a log."
)
BYTES_OUT = Counter("cordwood_bytes_out_total", "Bytes of batches returned by fetch requests.")
BATCHES_REFUSED = Counter(
    "cordwood_batches_refused_total", "Batches of produce requests that were not stored, for any reason."
)
PRODUCE_SECONDS = Histogram(
    "cordwood_produce_latency_seconds", "Time from receipt of a produce request to its response.", _SECONDS
)
FETCH_SECONDS = Histogram(
    "cordwood_fetch_latency_seconds",
    "Duration of one read for a fetch request, without the time it waited for new records.",
    _SECONDS,
)
AUTHENTICATIONS = Counter("cordwood_authentications_total", "Clients that authenticated by SASL.")
REAUTHENTICATIONS = Counter(
    "cordwood_reauthentications_total", "Times that an authenticated client authenticated again."
)
AUTHENTICATION_FAILURES = Counter(
    "cordwood_authentication_failures_total", "Attempts to authenticate that were refused."
)
EXPIRED_SESSIONS = Counter(
    "cordwood_expired_sessions_total",
    "Connections closed because the client did not authenticate again in time.",
)


# The audit log.
AUDIT_EVENTS = Counter("cordwood_audit_records_total", "Records appended to the audit log.")
AUDIT_LOST = Counter(
    "cordwood_audit_lost_total", "Events that are missing in the audit log because too many came at once."
)
TLS_HANDSHAKES_FAILED = Counter(
    "cordwood_tls_handshakes_failed_total", "TLS handshakes of clients that failed, for any reason."
)

#: Every metric that is counted as events happen.
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
    AUTHENTICATIONS,
    REAUTHENTICATIONS,
    AUTHENTICATION_FAILURES,
    EXPIRED_SESSIONS,
    AUDIT_EVENTS,
    AUDIT_LOST,
    TLS_HANDSHAKES_FAILED,
)

# Metrics that are looked up at each scrape instead of counted.

_GROUP = ("consumergroup",)
_TOPIC = ("topic",)
_PLACE = ("topic", "partition")

CONNECTIONS = Gauge("cordwood_connections", "Number of connected clients.")
UNAUTHENTICATED_CONNECTIONS = Gauge(
    "cordwood_unauthenticated_connections", "Number of connections whose clients have not authenticated yet."
)
TLS_CERTIFICATE_EXPIRY = Gauge(
    "cordwood_tls_certificate_expiry_timestamp_seconds",
    "When the certificate of a listener expires, in seconds since 1970.",
    ("listener",),
)
FETCH_SESSIONS = Gauge("cordwood_fetch_sessions", "Number of fetch sessions, in which only changes are sent.")
FETCH_SESSION_PARTITIONS = Gauge("cordwood_fetch_session_partitions", "Partitions in all fetch sessions.")
FETCH_SESSION_EVICTIONS = Counter(
    "cordwood_fetch_session_evictions_total", "Fetch sessions evicted to make room for others."
)
TOPICS = Gauge("cordwood_topics", "Number of topics, including internal ones.")
PARTITIONS = Gauge("cordwood_partitions", "Number of partitions of all topics.")
OPEN_LOGS = Gauge(
    "cordwood_open_logs", "Partitions whose log is open. After a clean shutdown a log opens at its first use."
)
LOG_BYTES = Gauge("cordwood_log_bytes", "Bytes of the segments of all open logs, without their indexes.")
SEGMENT_BYTES = Histogram(
    "cordwood_segment_bytes",
    "Sizes in bytes of the segments that the open logs have now. A snapshot: its counts also decrease.",
    _SEGMENT_BYTES,
)
MAPPED_BYTES = Gauge(
    "cordwood_mapped_bytes",
    "Bytes of sealed segments that are mapped into memory. 0 in a server, which reads its files; a program "
    "with the library finds its own as log.mapped_bytes.",
)
FAILED_LOGS = Gauge("cordwood_failed_logs", "Open logs that refuse appends after a failed write or sync.")
DISK_FREE_BYTES = Gauge("cordwood_disk_free_bytes", "Free bytes in the file system of the data directory.")
CONSUMER_GROUPS = Gauge("cordwood_consumer_groups", "Number of consumer groups.")
CONSUMER_LAG = Gauge(
    "cordwood_consumer_lag", "Records that the consumer group furthest behind has not committed in one topic."
)
OPEN_TRANSACTIONS = Gauge("cordwood_open_transactions", "Number of transactions that have not ended.")
OLDEST_TRANSACTION_SECONDS = Gauge(
    "cordwood_oldest_transaction_seconds",
    "For how long the oldest transaction that has not ended is open; 0 without one.",
)
PAGE_FAULTS = Counter(
    "cordwood_page_faults_total",
    "Page faults of the process: major ones waited for the disk, minor ones did not.",
    ("kind",),
)
TOPIC_BYTES = Gauge(
    "cordwood_topic_bytes", "Bytes of the segments of a topic, without their indexes.", _TOPIC
)
UNREADABLE_PARTITIONS = Gauge(
    "cordwood_unreadable_partitions", "Partitions that failed to open when they were needed."
)

# Metrics with kafka_exporter's names, so that its dashboards and alerts work with Cordwood.
KAFKA_BROKERS = Gauge("kafka_brokers", "Number of brokers: always 1.")
KAFKA_BROKER_INFO = Gauge("kafka_broker_info", "1 for each broker, by its id and address.", ("id", "address"))
KAFKA_GROUP_MEMBERS = Gauge("kafka_consumergroup_members", "Members of a consumer group.", _GROUP)
KAFKA_GROUP_OFFSET_SUM = Gauge(
    "kafka_consumergroup_current_offset_sum",
    "Sum of the offsets that a consumer group has committed in the partitions of a topic.",
    _GROUP + _TOPIC,
)
KAFKA_GROUP_LAG_SUM = Gauge(
    "kafka_consumergroup_lag_sum",
    "Uncommitted records of a consumer group in a topic, in the partitions with a committed offset.",
    _GROUP + _TOPIC,
)
KAFKA_GROUP_OFFSET = Gauge(
    "kafka_consumergroup_current_offset",
    "The offset that a consumer group has committed in a partition.",
    _GROUP + _PLACE,
)
KAFKA_GROUP_LAG = Gauge(
    "kafka_consumergroup_lag",
    "Uncommitted records of a consumer group in a partition.",
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
BUCKET_LAG_SECONDS = Gauge(
    "cordwood_bucket_lag_seconds",
    "For how long something that is durable here is not in the bucket; 0 if everything is.",
)
BUCKET_LAG_BYTES = Gauge(
    "cordwood_bucket_lag_bytes", "Bytes of files that are durable here and not in the bucket."
)
BUCKET_PIECES = Counter("cordwood_bucket_pieces_total", "Pieces that were shipped to the bucket.")
BUCKET_SHIPPED_BYTES = Counter("cordwood_bucket_shipped_bytes_total", "Bytes of files in those pieces.")
BUCKET_RETRIES = Counter("cordwood_bucket_retries_total", "Requests to the store that were tried again.")
BUCKET_FENCED = Gauge(
    "cordwood_bucket_fenced", "1 if another process took the log in the bucket over, else 0."
)
#: Every metric that is looked up at a scrape of a broker with a bucket.
LOOKED_UP_OF_BUCKET: tuple[Metric, ...] = (
    BUCKET_LAG_SECONDS,
    BUCKET_LAG_BYTES,
    BUCKET_PIECES,
    BUCKET_SHIPPED_BYTES,
    BUCKET_RETRIES,
    BUCKET_FENCED,
)
#: Every metric that is looked up at every scrape.
LOOKED_UP: tuple[Metric, ...] = (
    CONNECTIONS,
    UNAUTHENTICATED_CONNECTIONS,
    TLS_CERTIFICATE_EXPIRY,
    FETCH_SESSIONS,
    FETCH_SESSION_PARTITIONS,
    FETCH_SESSION_EVICTIONS,
    TOPICS,
    PARTITIONS,
    OPEN_LOGS,
    LOG_BYTES,
    SEGMENT_BYTES,
    MAPPED_BYTES,
    FAILED_LOGS,
    UNREADABLE_PARTITIONS,
    DISK_FREE_BYTES,
    CONSUMER_GROUPS,
    CONSUMER_LAG,
    OPEN_TRANSACTIONS,
    OLDEST_TRANSACTION_SECONDS,
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
