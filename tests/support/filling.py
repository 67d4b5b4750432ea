"""Data directories for tests of the Spark source, and what a query of them must give."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

import cordwood
from cordwood.spark.access.access import Piece
from cordwood.spark.source.reader import Slice

NOW = 1_700_000_000_000
#: Some hundred records a segment, several index entries each.
SMALL = {"segment.bytes": "16384", "index.interval.bytes": "512"}
#: Not in order: the largest of the first ten comes fourth.
STEPS = (0, 10, 5, 400, 20, 20, 1, 30, 15, 200)


def rows_of(partition: int, start: int, count: int) -> list[tuple[Any, ...]]:
    """Return rows with null keys, tombstones, headers, and times that go back and forth."""
    rows = []
    for i in range(start, start + count):
        key = None if i % 5 == 0 else b"k%d" % (i % 7)
        value = None if i % 6 == 1 else b"value %d of %d" % (i, partition)
        rows.append((key, value, [("n", b"%d" % i), ("n", None)][: i % 3], NOW + i * 10 + STEPS[i % 10]))
    return rows


def fill(topic: cordwood.Topic, partition: int, count: int, start: int = 0) -> None:
    """Append rows in frames of one to nine."""
    at = start
    while at < start + count:
        size = min(1 + at % 9, start + count - at)
        topic.append_many(rows_of(partition, at, size), partition=partition)
        at += size


def expected(topic: str, partition: int, start: int, end: int) -> list[tuple[Any, ...]]:
    """Return what a query with headers gives for offsets of a partition that `fill` filled."""
    found = []
    for offset, (key, value, headers, time) in enumerate(rows_of(partition, start, end - start), start):
        moment = datetime.fromtimestamp(time / 1000, UTC).replace(tzinfo=None)
        found.append((key, value, topic, partition, offset, moment, 0, headers or None))
    return found


def rows(frame: DataFrame) -> list[tuple[Any, ...]]:
    """Return the rows of a query, by partition and offset, as `expected` has them."""
    return [
        (
            r.key,
            r.value,
            r.topic,
            r.partition,
            r.offset,
            r.timestamp,
            r.timestampType,
            None if r.headers is None else list(map(tuple, r.headers)),
        )
        for r in sorted(frame.collect(), key=lambda r: (r.topic, r.partition, r.offset))
    ]


def reading(spark: SparkSession, path: Path, **options: str) -> Any:
    """Return a reader of the directory at *path*, of the topic orders unless told otherwise."""
    if not {"subscribe", "subscribePattern", "assign"} & options.keys():
        options["subscribe"] = "orders"
    return spark.read.format("cordwood").option("path", str(path)).options(**options)


def offsets(frame: DataFrame, partition: int = 0) -> list[int]:
    """Return the offsets of a partition that a query gives, sorted."""
    return sorted(
        row.offset for row in frame.select("partition", "offset").collect() if row.partition == partition
    )


def ranges(planned: Sequence[Slice]) -> list[Piece]:
    """Return the ranges of all slices, none of which is of the shared log."""
    found = [piece for part in planned for piece in part.pieces]
    assert all(isinstance(piece, Piece) for piece in found)
    return [piece for piece in found if isinstance(piece, Piece)]
