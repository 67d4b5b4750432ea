"""Convert: the records of a topic in another one with other settings, such as another format."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from pyspark.sql import Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everyone calls it

import cordwood.embedded
from cordwood.embedded import open_when_free
from cordwood.errors import CordwoodError, TopicExists, UnknownTopic
from cordwood.spark.carriers import LOCKED_SECONDS
from cordwood.spark.failures import as_one_sentence
from cordwood.spark.jobs.counting import observed
from cordwood.spark.jobs.log_place import LogPlace
from cordwood.spark.jobs.target import create_topic, find_topic


@dataclass(frozen=True)
class ConvertOptions:
    """From which topic of the data directory at ``path`` to which new one, and what settings that gets."""

    path: str
    topic: str
    to: str
    config: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ConvertReport:
    """What was made."""

    topic: str
    to: str
    partitions: int
    records: int


def convert(spark: SparkSession, options: ConvertOptions) -> ConvertReport:
    """Make a topic with the records of another: all of them, in their partitions and order, or none.

    Keys, values, headers and timestamps are kept. Offsets are given anew, so gaps are closed. A topic that
    cannot be filled is not left behind. Durable on return.

    Raises:
        TopicExists: If the new one is there.
        UnknownTopic: If the old one is not.
        JobFailed: If a record cannot be read, or the new topic's format cannot hold it; names what.
    """
    place = LogPlace(options.path)
    source = find_topic(place, options.topic)
    if source is None:
        raise UnknownTopic(f"there is no topic {options.topic}; cordwood topic list shows which there are")
    if find_topic(place, options.to) is not None:
        raise TopicExists(f"there is a topic {options.to} already; name one that is not")
    create_topic(place, options.to, source.partitions, options.config)
    seen = Observation("cordwood convert")
    try:
        with as_one_sentence():
            rows = place.read(spark, options.topic, includeHeaders="true")
            # One task has all of a partition, and in order: what it stages is published so.
            ordered = rows.repartition("partition").sortWithinPartitions("partition", "offset")
            kept = ordered.select("key", "value", "headers", "partition", "timestamp")
            counted = kept.observe(seen, F.count(F.lit(1)).alias("records"))
            writer = counted.write.format("cordwood").options(**place.options(), topic=options.to)
            writer.mode("append").save()
    except BaseException:
        _take_back(options)
        raise
    records = observed(seen).get("records", 0)
    return ConvertReport(options.topic, options.to, source.partitions, records)


def _take_back(options: ConvertOptions) -> None:
    """Remove the topic that nothing was published to. A server that holds the directory keeps it, empty."""
    with (
        contextlib.suppress(CordwoodError),
        open_when_free(lambda: cordwood.embedded.open(options.path), LOCKED_SECONDS) as log,
    ):
        log.delete_topic(options.to)
