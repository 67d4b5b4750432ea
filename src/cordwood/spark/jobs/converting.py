"""Copy the records of a topic to a new topic with other settings, such as another format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pyspark.sql import Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everyone calls it

from cordwood.errors import TopicExists
from cordwood.spark.access import unknown_topic
from cordwood.spark.failures import as_one_sentence
from cordwood.spark.jobs.log_place import LogPlace
from cordwood.spark.jobs.stats import observed
from cordwood.spark.jobs.target import create_topic, find_topic, removed_unless_used


@dataclass(frozen=True)
class ConvertOptions:
    """The source topic in the data directory at ``path``, the new topic and its settings."""

    path: str
    topic: str
    to: str
    config: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ConvertReport:
    """The result of a conversion."""

    topic: str
    to: str
    partitions: int
    records: int


def convert(spark: SparkSession, options: ConvertOptions) -> ConvertReport:
    """Create a topic with all records of another, in their partitions and order, or none.

    Keys, values, headers and timestamps are kept. Records get new offsets without gaps. A topic that cannot
    be filled is removed. Durable on return.

    Raises:
        TopicExists: If the new topic exists.
        UnknownTopic: If the old topic does not exist.
        JobFailed: If a record cannot be read, or the new topic's format cannot store it; names the part.
    """
    place = LogPlace(options.path)
    source = find_topic(place, options.topic)
    if source is None:
        with place.access() as access:
            raise unknown_topic(access, options.topic)
    if find_topic(place, options.to) is not None:
        raise TopicExists(options.to)
    seen = Observation("cordwood convert")
    with removed_unless_used(place, options.to):
        create_topic(place, options.to, source.partitions, options.config)
        with as_one_sentence():
            rows = place.read(spark, options.topic, includeHeaders="true")
            # One task has a whole partition in order, and its records are published in that order.
            ordered = rows.repartition("partition").sortWithinPartitions("partition", "offset")
            kept = ordered.select("key", "value", "headers", "partition", "timestamp")
            counted = kept.observe(seen, F.count(F.lit(1)).alias("records"))
            writer = counted.write.format("cordwood").options(**place.options(), topic=options.to)
            writer.mode("append").save()
    records = observed(seen).get("records", 0)
    return ConvertReport(options.topic, options.to, source.partitions, records)
