"""``stats``: the size and growth of topics, the balance of keys and partitions, and histograms of time.

Three queries over all topics together, each reading only the columns that it needs: for sizes and times, then
for histograms, whose ranges are known after the first, and for the most frequent keys. The ends of partitions
are read once, so all three see the same records.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import cordwood
from cordwood.spark.access import TopicState
from cordwood.spark.failures import as_one_sentence
from cordwood.spark.jobs.log_place import LogPlace
from cordwood.spark.jobs.topic_choice import chosen_topics, standing_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

_SIZES = "topic string, partition int, timestamp timestamp, key binary, value binary"
_TIMES = "topic string, timestamp timestamp"
_KEYS = "topic string, key binary"
#: Readable widths of buckets. Larger buckets are whole years.
_SECOND, _MINUTE, _HOUR, _DAY, _YEAR = 1000, 60_000, 3_600_000, 86_400_000, 365 * 86_400_000
_WIDTHS_MS = (
    *(1, 10, 100),
    *(_SECOND * each for each in (1, 5, 15)),
    *(_MINUTE * each for each in (1, 5, 15)),
    *(_HOUR * each for each in (1, 3, 6, 12)),
    *(_DAY * each for each in (1, 7, 30, 90)),
)


@dataclass(frozen=True)
class StatsOptions:
    """The *topics* to analyse, all that are not internal if empty, and the level of detail."""

    place: LogPlace
    topics: tuple[str, ...] = ()
    keys_shown: int = 5
    buckets_max: int = 24


@dataclass
class PartitionStats:
    """The content of a partition."""

    partition: int
    records: int = 0
    bytes: int = 0


@dataclass
class KeyStats:
    """A key as text, its number of records, and their share of all records of the topic."""

    key: str
    records: int
    share: float


@dataclass
class Bucket:
    """A time in milliseconds, and the number of records from there up to the next bucket."""

    start_ms: int
    records: int


@dataclass
class TopicStats:
    """The content of a topic. Unknown values are None: times without records, a rate without a time span.

    ``bytes_on_disk`` is the size of its segments, by path only; ``estimated_distinct_keys`` is accurate to
    some percent; ``skew`` is the share of the largest partition divided by an even share: 1.0 is even.
    """

    topic: str
    partitions: list[PartitionStats]
    bytes_on_disk: int | None = None
    records: int = 0
    key_bytes: int = 0
    value_bytes: int = 0
    average_bytes: float | None = None
    first_ms: int | None = None
    last_ms: int | None = None
    records_per_second: float | None = None
    null_keys: int = 0
    null_values: int = 0
    estimated_distinct_keys: int = 0
    top_keys: list[KeyStats] = field(default_factory=list)
    skew: float | None = None
    bucket_ms: int | None = None
    histogram: list[Bucket] = field(default_factory=list)


@dataclass
class StatsReport:
    """All analysed topics, by name."""

    topics: list[TopicStats]


def stats(spark: SparkSession, options: StatsOptions) -> StatsReport:
    """Return the statistics of topics up to now.

    Raises:
        UnknownTopic: If a named topic does not exist.
        JobFailed: If a task fails.
    """
    with options.place.access() as access:
        standing = standing_of(access, chosen_topics(access, options.topics))
    sizes = _sizes_on_disk(options.place, standing)
    topics = {
        name: TopicStats(name, [PartitionStats(number) for number in now.partitions], sizes.get(name))
        for name, now in standing.items()
    }
    with as_one_sentence():
        _add_sizes(topics, _reading(spark, options.place, standing, _SIZES))
        # Topics without records have no times and no keys, and need not be read again.
        filled = {name: now for name, now in standing.items() if topics[name].records}
        _add_histograms(topics, _reading(spark, options.place, filled, _TIMES), options.buckets_max)
        _add_top_keys(topics, _reading(spark, options.place, filled, _KEYS), options.keys_shown)
    return StatsReport(list(topics.values()))


def _sizes_on_disk(place: LogPlace, standing: Mapping[str, TopicState]) -> dict[str, int]:
    """Return the bytes of each topic's segments; nothing by address."""
    if place.path is None:
        return {}
    with cordwood.open(place.path, read_only=True) as log:
        topics = {name: log.topic(name) for name in standing if name in log.topics}
        return {name: sum(topic.size(n) for n in standing[name].partitions) for name, topic in topics.items()}


def _reading(
    spark: SparkSession, place: LogPlace, standing: Mapping[str, TopicState], schema: str
) -> DataFrame | None:
    """Return the current records of topics, None if there are none."""
    ends = {name: now.partitions for name, now in standing.items()}
    if all(each.start == each.end for partitions in ends.values() for each in partitions.values()):
        return None
    starts = {name: {str(n): each.start for n, each in found.items()} for name, found in ends.items()}
    limits = {name: {str(n): each.end for n, each in found.items()} for name, found in ends.items()}
    return place.read(
        spark,
        ",".join(ends),
        schema=schema,
        startingOffsets=json.dumps(starts),
        endingOffsets=json.dumps(limits),
        # Records that retention removes between two queries are ignored.
        failOnDataLoss="false",
    )


def _add_sizes(topics: Mapping[str, TopicStats], records: DataFrame | None) -> None:
    """Fill in the results of one query over all columns, by partition and in total."""
    from pyspark.sql import functions as F  # noqa: N812 - as everyone calls it

    if records is None:
        return
    # Numbers instead of bytes from here on: the rows are doubled, for the partition and for the topic.
    measured = records.select(
        "topic",
        "partition",
        F.octet_length("key").cast("long").alias("key_bytes"),
        F.octet_length("value").cast("long").alias("value_bytes"),
        F.unix_millis("timestamp").alias("ms"),
        F.when(F.col("key").isNotNull(), F.xxhash64("key")).alias("key_hash"),
    )
    sets = [[F.col("topic"), F.col("partition")], [F.col("topic")]]
    rows = (
        measured.groupingSets(sets, "topic", "partition")
        .agg(
            F.count("*").alias("records"),
            F.coalesce(F.sum("key_bytes"), F.lit(0)).alias("key_bytes"),
            F.coalesce(F.sum("value_bytes"), F.lit(0)).alias("value_bytes"),
            F.count("key_bytes").alias("keys"),
            F.count("value_bytes").alias("values"),
            F.min("ms").alias("first_ms"),
            F.max("ms").alias("last_ms"),
            F.approx_count_distinct("key_hash", 0.02).alias("estimated_distinct_keys"),
        )
        .collect()
    )
    for row in sorted(rows, key=lambda row: row.partition is None):
        found = topics[row.topic]
        if row.partition is None:
            _add_total(found, row)
        else:
            each = next(each for each in found.partitions if each.partition == row.partition)
            each.records, each.bytes = row.records, row.key_bytes + row.value_bytes


def _add_total(found: TopicStats, row: Row) -> None:
    """Fill in the totals of a topic after those of its partitions."""
    found.records = row.records
    found.key_bytes, found.value_bytes = row.key_bytes, row.value_bytes
    found.average_bytes = (row.key_bytes + row.value_bytes) / row.records
    found.null_keys, found.null_values = row.records - row.keys, row.records - row["values"]
    found.first_ms, found.last_ms = row.first_ms, row.last_ms
    if row.last_ms > row.first_ms:
        found.records_per_second = row.records / ((row.last_ms - row.first_ms) / 1000)
    found.estimated_distinct_keys = row.estimated_distinct_keys
    largest = max(each.records for each in found.partitions)
    found.skew = largest * len(found.partitions) / row.records


def _add_histograms(topics: Mapping[str, TopicStats], records: DataFrame | None, buckets_max: int) -> None:
    """Fill in the histograms."""
    from pyspark.sql import functions as F  # noqa: N812

    if records is None:
        return
    for found in topics.values():
        if found.first_ms is not None and found.last_ms is not None:
            found.bucket_ms = bucket_width_ms(found.first_ms, found.last_ms, buckets_max)
    # One value for all topics: an expression with each topic would be too large for thousands of them.
    widths = {name: found.bucket_ms for name, found in topics.items() if found.bucket_ms is not None}
    width = F.from_json(F.lit(json.dumps(widths)), "map<string, bigint>")[F.col("topic")]
    ms = F.unix_millis("timestamp")
    rows = records.groupBy("topic", (ms - F.pmod(ms, width)).alias("start")).count().collect()
    counts = {(row.topic, row["start"]): row["count"] for row in rows}
    for name, found in topics.items():
        if found.bucket_ms is not None and found.first_ms is not None and found.last_ms is not None:
            first, last = (ms // found.bucket_ms * found.bucket_ms for ms in (found.first_ms, found.last_ms))
            starts = range(first, last + 1, found.bucket_ms)
            found.histogram = [Bucket(start, counts.get((name, start), 0)) for start in starts]


def bucket_width_ms(first_ms: int, last_ms: int, buckets_max: int) -> int:
    """Return the smallest readable width that needs at most *buckets_max* buckets."""

    def needed(width: int) -> int:
        return last_ms // width - first_ms // width + 1

    for width in _WIDTHS_MS:
        if needed(width) <= buckets_max:
            return width
    years = 1
    while needed(years * _YEAR) > buckets_max:
        years *= 2
    return years * _YEAR


def _add_top_keys(topics: Mapping[str, TopicStats], records: DataFrame | None, shown: int) -> None:
    """Fill in the most frequent keys."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812

    if records is None or all(found.records == found.null_keys for found in topics.values()):
        return
    counted = records.where("key IS NOT NULL").groupBy("topic", "key").count()
    place = F.row_number().over(Window.partitionBy("topic").orderBy(F.desc("count"), "key"))
    rows = counted.withColumn("place", place).where(F.col("place") <= shown).collect()
    for row in sorted(rows, key=lambda row: row.place):
        found = topics[row.topic]
        key = bytes(row.key).decode(errors="backslashreplace")
        found.top_keys.append(KeyStats(key, row["count"], row["count"] / found.records))
