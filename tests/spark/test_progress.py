"""Lag: offsets behind latest, from the progress of a query, by the names of Spark's Kafka connector."""

from __future__ import annotations

import json
import logging
import threading
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from support.filling import fill

import cordwood
from cordwood.spark import lag, lag_listener


def source(end: Any, latest: Any) -> dict[str, Any]:
    return {"endOffset": end, "latestOffset": latest, "metrics": {}}


def test_lag_is_taken_over_all_partitions_of_all_sources() -> None:
    ours = source(
        json.dumps({"orders": {"0": 5, "1": 10}, "_": {"orders": ["id", 0]}}),
        json.dumps({"orders": {"0": 5, "1": 30, "2": 4}, "_": {"orders": ["id", 0]}}),
    )
    assert lag(ours) == {
        "minOffsetsBehindLatest": 0,
        "maxOffsetsBehindLatest": 20,
        "avgOffsetsBehindLatest": 8.0,
    }
    # As in `progress.json`, and from Spark's Kafka connector, whose offsets have the same form.
    theirs = source({"x": {"0": 1}}, {"x": {"0": 101}})
    assert lag({"sources": [ours, theirs]})["maxOffsetsBehindLatest"] == 100
    assert lag({"sources": [ours, theirs]})["avgOffsetsBehindLatest"] == 31.0


@pytest.mark.parametrize(
    "other",
    [
        source("None", "None"),
        source(None, None),
        source("7", "9"),
        source('{"logOffset": 0}', '{"logOffset": 3}'),
        source('{"orders": {"0": 5}}', "None"),
    ],
)
def test_before_the_first_batch_and_of_other_sources_there_is_no_lag(other: dict[str, Any]) -> None:
    assert lag(None) == {}
    assert lag({"sources": [other]}) == lag(other) == {}


class Lines(logging.Handler):
    """Keeps what is logged, and says when there is enough."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.enough = threading.Event()
        self._count = count

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())
        if len(self.lines) >= self._count:
            self.enough.set()


def test_the_lag_of_each_batch_is_in_its_progress_and_logged(spark: SparkSession, tmp_path: Path) -> None:
    with cordwood.open(tmp_path / "data") as log:
        topic = log.topic("orders", 2)
        fill(topic, 0, 90)
        fill(topic, 1, 30)
    logger, lines, listener = logging.getLogger("cordwood.spark"), Lines(2), lag_listener()
    level = logger.level
    logger.addHandler(lines)
    logger.setLevel(logging.INFO)
    spark.streams.addListener(listener)
    try:
        options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "80"}
        stream = spark.readStream.format("cordwood").option("path", str(tmp_path / "data"))
        frame = stream.option("subscribe", "orders").options(**options).load()
        writer = frame.writeStream.format("noop").queryName("to nowhere").trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        query.awaitTermination()
        assert lines.enough.wait(120)
    finally:
        spark.streams.removeListener(listener)
        logger.removeHandler(lines)
        logger.setLevel(level)
    first, second = query.recentProgress[:2]
    assert lag(first) == lag(first.sources[0]) == lag(json.loads(first.json))
    assert lag(first) == {
        "minOffsetsBehindLatest": 10,
        "maxOffsetsBehindLatest": 30,
        "avgOffsetsBehindLatest": 20.0,
    }
    assert set(lag(second).values()) == {0}
    # As the guide says: a Python source can say neither.
    assert first.sources[0].metrics == {}
    assert first.sources[0].description.startswith("org.apache.spark.")
    assert [line.split(": ") for line in lines.lines[:2]] == [
        [
            "query to nowhere, batch 0 of orders",
            "10 to 30 offsets behind latest, 20.0 on average of 2 partitions",
        ],
        [
            "query to nowhere, batch 1 of orders",
            "0 to 0 offsets behind latest, 0.0 on average of 2 partitions",
        ],
    ]
