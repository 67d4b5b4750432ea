"""Topics of every record format in Spark: read by path and by address, written by the sink."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import cordwood
from cordwood.formats.registry import FORMATS

NOON = 1_700_000_000_000
COUNT = 200
OTHERS = [name for name, format_ in FORMATS.items() if format_.record_per_frame]


def fill(log: cordwood.Log, name: str) -> None:
    """Make a topic of each format, called after it, with several segments."""
    settings = {"cordwood.format": name, "segment.bytes": "2000", "cordwood.index.interval.records": "9"}
    key = b"k" if FORMATS[name].holds.keys else None
    rows = [(key, b"%d" % number, (), NOON + number) for number in range(COUNT)]
    log.topic(name, config=settings).append_many(rows, partition=0)
    for row in rows:
        log.topic(name).append_many([row], partition=0)


def test_every_format_is_read_by_path_and_by_address(spark: SparkSession, tmp_path: Path) -> None:
    with cordwood.open(tmp_path / "data", sync="never") as log:
        for name in OTHERS:
            fill(log, name)
    with cordwood.Broker(tmp_path / "data") as broker:
        places = {"path": str(tmp_path / "data"), "kafka.bootstrap.servers": broker.bootstrap}
        for option, where in places.items():
            reading = spark.read.format("cordwood").option(option, where)
            found = reading.option("subscribe", ",".join(OTHERS)).option("includeHeaders", "true").load()
            time = "unix_millis(timestamp) AS time"
            rows = found.selectExpr(
                "topic", "offset", "key", "CAST(value AS STRING) AS value", time, "headers"
            ).collect()
            assert len(rows) == len(OTHERS) * COUNT * 2
            for row in rows:
                number = row.offset % COUNT
                assert (row.value, row.time) == (str(number), NOON + number)
                assert row.key == (b"k" if FORMATS[row.topic].holds.keys else None)
                assert row.headers is None
            assert {(row.topic, row.offset) for row in rows} == {
                (name, offset) for name in OTHERS for offset in range(2 * COUNT)
            }


def test_event_types_of_kimberlite_are_headers_by_path_and_by_address(
    spark: SparkSession, tmp_path: Path
) -> None:
    with cordwood.open(tmp_path / "data") as log:
        events = log.topic("events", config={"cordwood.format": "kimberlite"})
        events.append(b"data")
        events.append(b"refund", event_type=7)
    with cordwood.Broker(tmp_path / "data") as broker:
        places = {"path": str(tmp_path / "data"), "kafka.bootstrap.servers": broker.bootstrap}
        for option, where in places.items():
            reading = spark.read.format("cordwood").option(option, where).option("subscribe", "events")
            rows = reading.option("includeHeaders", "true").load().orderBy("offset").collect()
            assert [row.value for row in rows] == [b"data", b"refund"]
            assert rows[0].headers is None
            assert [(header.key, header.value) for header in rows[1].headers] == [
                ("cordwood.event_type", b"7")
            ]


def test_the_sink_writes_every_format_and_refuses_what_one_cannot_hold(
    spark: SparkSession, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    with cordwood.open(data) as log:
        for name in OTHERS:
            log.topic(name, config={"cordwood.format": name, "segment.bytes": "3000"})
    frame = spark.range(COUNT).selectExpr("CAST(id AS STRING) AS value")
    for name in OTHERS:
        frame.write.format("cordwood").option("path", str(data)).option("topic", name).mode("append").save()
    with cordwood.open(data, read_only=True) as log:
        for name in OTHERS:
            values = [record.value for record in log.topic(name).read(0)]
            assert sorted(values, key=lambda value: int(value or b"0")) == [b"%d" % n for n in range(COUNT)]
    keyed = spark.range(3).selectExpr("'k' AS key", "CAST(id AS STRING) AS value")
    with pytest.raises(PySparkException, match="has a key, which the format rustlog cannot hold"):
        keyed.write.format("cordwood").option("path", str(data)).option("topic", "rustlog").mode(
            "append"
        ).save()
    with cordwood.open(data, read_only=True) as log:
        assert log.topic("rustlog").high_watermark(0) == COUNT
