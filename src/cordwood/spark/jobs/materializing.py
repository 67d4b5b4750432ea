"""Materialize the latest record of each key, or windows, of a topic as a Parquet table or compacted topic.

Without a Spark checkpoint the whole topic is read and the result replaced; with one, new records are read and
merged into it, once or continuously. Both give the same result: a row is identified by its name (partition
and key, or window and group), and the newest one counts.
"""

from __future__ import annotations

import contextlib
import json
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everyone calls it
from pyspark.sql.types import StructType

from cordwood.errors import TopicMismatch
from cordwood.spark.access import unknown_topic
from cordwood.spark.failures import as_one_sentence
from cordwood.spark.jobs.log_place import LogPlace
from cordwood.spark.jobs.stats import observed
from cordwood.spark.jobs.table import check_table, read_table, replace_table
from cordwood.spark.jobs.target import ensure_topic, removed_unless_used
from cordwood.spark.jobs.windows import WindowedSums, aggregate, as_records

#: The columns of a table of latest records, and the columns read from the topic.
LATEST = ("key", "value", "partition", "offset", "timestamp")
_SCHEMA = "key binary, value binary, partition int, offset long, timestamp timestamp"
#: How often the state of a stream is polled, in seconds.
_POLL_SECONDS = 1


@dataclass(frozen=True)
class MaterializeOptions:
    """The options of a materialization: the latest of each key, or *windows*, to a *table* or a topic *to*.

    With a *checkpoint*, a directory, records since the last run are added; *continuous* does not stop after
    that.
    """

    place: LogPlace
    topic: str
    windows: WindowedSums | None = None
    table: str | None = None
    to: str | None = None
    checkpoint: str | None = None
    continuous: bool = False


@dataclass
class MaterializeReport:
    """The result of a run.

    ``records`` were read; ``keyless`` of them have no key and are left out; None if a stream does not count
    them. ``rows`` are in the table now, ``published`` were sent to the topic.
    """

    topic: str
    to: str
    records: int | None = None
    keyless: int | None = None
    rows: int | None = None
    published: int | None = None


def materialize(
    spark: SparkSession, options: MaterializeOptions, stop: threading.Event | None = None
) -> MaterializeReport:
    """Update the table or the topic from the source and return a report.

    A *continuous* stream ends when *stop* is set; the next run repeats its unfinished batch.

    Raises:
        UnknownTopic: If there is no such topic.
        JobFailed: If the topic cannot be read or the result cannot be written.
    """
    with options.place.access() as access:
        standing = access.standing(options.topic, None)
        if standing is None:
            raise unknown_topic(access, options.topic)
    with contextlib.ExitStack() as stack:
        if options.table is None:
            assert options.to is not None
            stack.enter_context(removed_unless_used(options.place, options.to))
        target = _target(options, len(standing.partitions))
        report = MaterializeReport(options.topic, target.name)
        stack.enter_context(as_one_sentence())
        if options.checkpoint is None:
            _batch(spark, options, target, report)
        else:
            _stream(spark, options, target, report, stop or threading.Event())
    return report


# --- once over the whole topic ------------------------------------------------------------------------


def _batch(
    spark: SparkSession, options: MaterializeOptions, target: MaterializeTarget, report: MaterializeReport
) -> None:
    records = options.place.read(spark, options.topic, schema=_SCHEMA)
    seen = Observation("cordwood materialize")
    records = records.observe(seen, *_counts())
    if options.windows is None:
        target.replace(spark, live(latest(records)), report)
    else:
        target.replace(spark, aggregate(records, options.windows), report)
    _count(report, seen, options)


def latest(records: DataFrame) -> DataFrame:
    """Return the last record of each key of each partition, with tombstones; without keyless records."""
    last = F.max_by(F.struct("value", "timestamp"), "offset").alias("last")
    newest = records.where("key is not null").groupBy("partition", "key")
    found = newest.agg(last, F.max("offset").alias("offset"))
    return found.select("key", "last.value", "partition", "offset", "last.timestamp")


def live(rows: DataFrame) -> DataFrame:
    """Return the latest records without tombstones and their keys."""
    return rows.where("value is not null")


def _counts() -> list[Column]:
    keyless = F.count_if(F.col("key").isNull())
    return [F.count(F.lit(1)).alias("records"), keyless.alias("keyless")]


def _count(report: MaterializeReport, seen: Observation, options: MaterializeOptions) -> None:
    counted = observed(seen)
    report.records = (report.records or 0) + counted.get("records", 0)
    if options.windows is None:
        report.keyless = (report.keyless or 0) + counted.get("keyless", 0)


# --- what came since ----------------------------------------------------------------------------------


def _stream(
    spark: SparkSession,
    options: MaterializeOptions,
    target: MaterializeTarget,
    report: MaterializeReport,
    stop: threading.Event,
) -> None:
    assert options.checkpoint is not None
    checkpoint = Path(options.checkpoint).absolute()
    reader = spark.readStream.format("cordwood").options(**options.place.options(), subscribe=options.topic)
    records = reader.option("startingOffsets", "earliest").schema(_SCHEMA).load()
    if options.windows is not None:
        rows = aggregate(records, options.windows)
        mode = "append" if options.windows.final else "update"
    else:
        rows, mode = records, "append"

    def merge(batch: DataFrame, number: int) -> None:
        seen = Observation(f"cordwood materialize {number}")
        changed = batch if options.windows is not None else latest(batch.observe(seen, *_counts()))
        # Used more than once, and the aggregation must not run again.
        changed = changed.persist()
        try:
            target.merge(spark, changed, _query_of(checkpoint), number, report)
        finally:
            changed.unpersist()
        if options.windows is None:
            _count(report, seen, options)

    writer = rows.writeStream.foreachBatch(merge).outputMode(mode)
    writer = writer.option("checkpointLocation", str(checkpoint))
    writer = writer if options.continuous else writer.trigger(availableNow=True)
    query = writer.start()
    try:
        while not query.awaitTermination(_POLL_SECONDS):
            if stop.is_set():
                break
    finally:
        query.stop()
    target.finish(spark, rows.schema, report)


def _query_of(checkpoint: Path) -> str:
    """Return the id of the query of a checkpoint; batch numbers are unique only within a query."""
    return str(json.loads((checkpoint / "metadata").read_text())["id"])


# --- where to -----------------------------------------------------------------------------------------


class MaterializeTarget(Protocol):
    """The target of rows. One user."""

    name: str

    def replace(self, spark: SparkSession, rows: DataFrame, report: MaterializeReport) -> None:
        """Replace the content by *rows*."""

    def merge(
        self, spark: SparkSession, rows: DataFrame, query: str, number: int, report: MaterializeReport
    ) -> None:
        """Merge *rows*, batch *number* of a query, by name. Idempotent."""

    def finish(self, spark: SparkSession, schema: StructType, report: MaterializeReport) -> None:
        """Report the result after a stream of *schema* has ended, possibly without a batch."""


def _target(options: MaterializeOptions, partitions: int) -> MaterializeTarget:
    if options.table is not None:
        path = Path(options.table).absolute()
        check_table(path)
        return TableTarget(path, options.windows)
    assert options.to is not None
    # A key stays in its partition, so the target has as many as the source; windows have their own keys.
    wanted = partitions if options.windows is None else None
    found = ensure_topic(options.place, options.to, wanted, {"cleanup.policy": "compact"})
    if not found.keyed:
        raise TopicMismatch(options.to, "cleanup.policy", "delete", "compact")
    return TopicTarget(options.place, options.to, options.windows)


class TableTarget:
    """A Parquet table; see `MaterializeTarget` and `table`."""

    def __init__(self, path: Path, windows: WindowedSums | None) -> None:
        self.name = str(path)
        self._path = path
        self._windows = windows

    def replace(self, spark: SparkSession, rows: DataFrame, report: MaterializeReport) -> None:
        """Write a new version of the table, in order."""
        order = ["partition", "offset"] if self._windows is None else self._windows.names
        replace_table(rows.orderBy(*order), self._path)
        written = read_table(spark, self._path)
        assert written is not None
        report.rows = written.count()

    def merge(
        self, spark: SparkSession, rows: DataFrame, query: str, number: int, report: MaterializeReport
    ) -> None:
        """Write a version with *rows* merged into the existing ones; the first batch starts a new table."""
        there = read_table(spark, self._path) if number else None
        if there is not None and rows.isEmpty():
            return
        if there is not None:
            rows = self._over(there, rows)
        self.replace(spark, live(rows) if self._windows is None else rows, report)

    def _over(self, there: DataFrame, rows: DataFrame) -> DataFrame:
        if self._windows is None:
            return latest(there.unionByName(rows))
        return there.join(rows, self._same(there, rows), "left_anti").unionByName(rows)

    def _same(self, there: DataFrame, rows: DataFrame) -> Column:
        assert self._windows is not None
        same = F.lit(True)
        for name in self._windows.names:
            same = same & there[name].eqNullSafe(rows[name])
        return same

    def finish(self, spark: SparkSession, schema: StructType, report: MaterializeReport) -> None:
        """Count the rows of the table; create it if no batch did."""
        found = read_table(spark, self._path)
        if found is None:
            self.replace(spark, spark.createDataFrame([], schema), report)
        else:
            report.rows = found.count()


class TopicTarget:
    """A compacted topic beside the source; see `MaterializeTarget`. Removed rows get a tombstone."""

    def __init__(self, place: LogPlace, topic: str, windows: WindowedSums | None) -> None:
        self.name = topic
        self._place = place
        self._windows = windows

    def replace(self, spark: SparkSession, rows: DataFrame, report: MaterializeReport) -> None:
        """Publish the rows that differ from the topic's latest records; a second call publishes nothing."""
        there = live(latest(self._place.read(spark, self.name, schema=_SCHEMA))).alias("there")
        wanted = self._records(rows).alias("wanted")
        same = F.col("there.key") == F.col("wanted.key")
        columns = [F.coalesce("wanted.key", "there.key").alias("key"), F.col("wanted.value").alias("value")]
        if self._windows is None:
            same = same & (F.col("there.partition") == F.col("wanted.partition"))
            partition = F.coalesce("wanted.partition", "there.partition")
            columns += [partition.alias("partition"), F.col("wanted.timestamp").alias("timestamp")]
        differing = wanted.join(there, same, "full_outer")
        differing = differing.where(~F.col("wanted.value").eqNullSafe(F.col("there.value")))
        self._publish(differing.select(*columns), {}, report)

    def merge(
        self, spark: SparkSession, rows: DataFrame, query: str, number: int, report: MaterializeReport
    ) -> None:
        """Publish *rows*, once for each batch of a query."""
        named = {"txnAppId": f"materialize {query}", "txnVersion": str(number)}
        self._publish(self._records(rows), named, report)

    def finish(self, spark: SparkSession, schema: StructType, report: MaterializeReport) -> None:
        """Report zero published records if there was no batch."""
        report.published = report.published or 0

    def _records(self, rows: DataFrame) -> DataFrame:
        return rows if self._windows is None else as_records(rows, self._windows)

    def _publish(self, rows: DataFrame, named: dict[str, str], report: MaterializeReport) -> None:
        seen = Observation("cordwood upserts")
        counted = rows.observe(seen, F.count(F.lit(1)).alias("rows"))
        where = {**self._place.options(), "topic": self.name, **named}
        counted.write.format("cordwood").options(**where).mode("append").save()
        report.published = (report.published or 0) + observed(seen).get("rows", 0)
