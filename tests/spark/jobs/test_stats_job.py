"""``cordwood pipeline stats``: the figures of a topic, against those counted by hand."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from support.commands import refused, said
from support.filling import NOW, SMALL, fill, rows_of

import cordwood
from cordwood.formats import batch
from cordwood.formats.batch import BatchOptions
from cordwood.spark.jobs.log_place import LogPlace
from cordwood.spark.jobs.stats.job import StatsOptions, TopicStats, bucket_width_ms, stats
from cordwood.spark.jobs.stats.picture import time_text

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


@pytest.fixture
def log(tmp_path: Path) -> Iterator[cordwood.Log]:
    with cordwood.open(tmp_path / "data") as opened:
        yield opened


def stats_of(spark: SparkSession, tmp_path: Path, *topics: str, **options: Any) -> list[TopicStats]:
    return stats(spark, StatsOptions(LogPlace(path=str(tmp_path / "data")), topics, **options)).topics


def test_the_figures_are_those_of_the_records(spark: SparkSession, tmp_path: Path, log: cordwood.Log) -> None:
    topic = log.topic("orders", 3, SMALL)
    fill(topic, 0, 200)
    fill(topic, 1, 100)
    fill(log.topic("__internal"), 0, 3)
    sent = rows_of(0, 0, 200) + rows_of(1, 0, 100)
    (found,) = stats_of(spark, tmp_path, keys_shown=3)
    keys = Counter(row[0] for row in sent if row[0] is not None)
    times = [row[3] for row in sent]
    assert (found.topic, found.records) == ("orders", 300)
    assert [(each.partition, each.records) for each in found.partitions] == [(0, 200), (1, 100), (2, 0)]
    assert found.key_bytes == sum(len(row[0] or b"") for row in sent)
    assert found.value_bytes == sum(len(row[1] or b"") for row in sent)
    assert sum(each.bytes for each in found.partitions) == found.key_bytes + found.value_bytes
    assert found.average_bytes == (found.key_bytes + found.value_bytes) / 300
    assert found.bytes_on_disk == sum(topic.size(partition) for partition in range(3))
    assert found.null_keys == sum(row[0] is None for row in sent)
    assert found.null_values == sum(row[1] is None for row in sent)
    assert (found.first_ms, found.last_ms) == (min(times), max(times))
    assert found.records_per_second == pytest.approx(300 / ((max(times) - min(times)) / 1000))
    assert found.estimated_distinct_keys == len(keys) == 7
    most = sorted(keys.items(), key=lambda item: (-item[1], item[0]))[:3]
    assert [(each.key.encode(), each.records) for each in found.top_keys] == most
    assert found.top_keys[0].share == most[0][1] / 300
    assert found.skew == 2.0
    assert found.bucket_ms is not None
    starts = [each.start_ms for each in found.histogram]
    assert starts == list(range(starts[0], starts[-1] + 1, found.bucket_ms))
    assert {each.start_ms: each.records for each in found.histogram if each.records} == Counter(
        time // found.bucket_ms * found.bucket_ms for time in times
    )


@pytest.mark.parametrize(
    ("span_ms", "width_ms"),
    [
        (0, 1),
        (23, 1),
        (24, 10),
        (60_000, 5_000),
        (5 * HOUR_MS, 15 * 60_000),
        (20 * HOUR_MS, HOUR_MS),
        (20 * DAY_MS, DAY_MS),
        (365 * DAY_MS, 30 * DAY_MS),
        (20 * 365 * DAY_MS, 365 * DAY_MS),
        (10**15, 2048 * 365 * DAY_MS),
    ],
)
def test_buckets_are_as_wide_as_people_read_well(span_ms: int, width_ms: int) -> None:
    """Also before 1970, and never more of them than asked for."""
    for first in (0, -span_ms):
        width = bucket_width_ms(first, first + span_ms, 24)
        assert (first + span_ms) // width - first // width + 1 <= 24
    assert bucket_width_ms(0, span_ms, 24) == width_ms


def test_times_before_1970_and_beyond_what_dates_can_say(
    spark: SparkSession, tmp_path: Path, log: cordwood.Log
) -> None:
    far = 9_000_000_000_000_000
    anytime = {"message.timestamp.after.max.ms": str(2**63 - 1)}
    log.topic("orders", config=anytime).append_many(
        [(None, b"v", None, time) for time in (-1, -DAY_MS, 0, far)]
    )
    (found,) = stats_of(spark, tmp_path)
    assert (found.first_ms, found.last_ms) == (-DAY_MS, far)
    assert sum(each.records for each in found.histogram) == 4
    assert found.histogram[-1].records == 1
    assert time_text(far) == f"{far} ms"
    assert time_text(-1) == "1969-12-31 23:59:59.999"
    said("pipeline", "stats", "--data", tmp_path / "data", "--picture", tmp_path / "far.png")


def test_the_report_as_tables_bars_and_a_picture(
    spark: SparkSession, tmp_path: Path, log: cordwood.Log
) -> None:
    sent = [(b"axe", b"v" * 10, None, NOW - NOW % HOUR_MS + i * HOUR_MS) for i in (0, 0, 0, 0, 2)]
    log.topic("orders").append_many([*sent, (b"\xff", None, None, NOW)])
    log.topic("unused", 2)
    picture = tmp_path / "stats.png"
    text = said("pipeline", "stats", "--data", tmp_path / "data", "--buckets", 4, "--picture", picture)
    lines = [line.split() for line in text.splitlines()]
    assert ["orders", "1", "6", "16", "bytes", "50", "bytes", "11", "bytes"] in [line[:9] for line in lines]
    assert "estimated distinct keys" in text
    assert ["axe", "5", "83.3%"] in lines
    assert ["\\xff", "1", "16.7%"] in lines
    bars = [line for line in text.splitlines() if "█" in line]
    assert [bar.count("█") for bar in bars] == [40, 8]
    assert ["unused", "2", "0", "0", "bytes", "0", "bytes", "-"] in [line[:8] for line in lines]
    assert text.splitlines()[-1] == f"drawn in {picture}"
    assert picture.read_bytes().startswith(b"\x89PNG\r\n")


def test_a_picture_without_matplotlib_is_refused_before_any_work(
    spark: SparkSession, tmp_path: Path, log: cordwood.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.topic("orders").append(b"v")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    command = ("pipeline", "stats", "--data", tmp_path / "data")
    sentence = refused(*command, "--picture", tmp_path / "stats.png")
    assert sentence == "a picture needs matplotlib: pip install matplotlib"
    assert "orders" in said(*command)


def test_an_empty_topic_one_record_and_gaps(spark: SparkSession, tmp_path: Path, log: cordwood.Log) -> None:
    log.topic("empty", 2)
    log.topic("one", 2).append(b"v", key=b"k", partition=1, timestamp=NOW)
    log.topic("gaps").append_many([(b"k", b"v%d" % i, None, NOW + i) for i in range(10)])
    log.topic("gaps").append_many([(b"k", b"v", None, NOW)])
    log.topic("removed").append_many([(b"k", b"v", None, NOW)] * 5)
    log.topic("removed").advance_log_start(0, 3)
    log.close()
    keep_two(tmp_path / "data" / "topics" / "gaps")
    empty, gaps, one, removed = stats_of(spark, tmp_path)
    assert (empty.records, empty.first_ms, empty.skew, empty.histogram) == (0, None, None, [])
    assert (one.records, one.average_bytes, one.records_per_second, one.skew) == (1, 2.0, None, 2.0)
    assert [(each.start_ms, each.records) for each in one.histogram] == [(NOW, 1)]
    assert (gaps.records, gaps.value_bytes, removed.records) == (3, 3, 2)


def keep_two(topic: Path) -> None:
    """Put a frame of ten offsets that has only its first and last record at the beginning of a segment.

    What it is shorter than the one that was there goes to a key of the first, so that nothing else changes.
    """
    (path,) = topic.rglob("segments/*.log")
    content = bytearray(path.read_bytes())
    header = batch.read_header(content)
    for padding in range(header.end):
        sent = [(b"k" * padding, b"v", None, NOW), (b"k", b"v", None, NOW + 9)]
        encoded = batch.encode_records(sent, 0)
        columns = batch.decode_columns(encoded, batch.scan(encoded))
        offsets = (0).to_bytes(8, "little") + (9).to_bytes(8, "little")
        frame = batch.encode_columns(columns._replace(offset=offsets), 0, 2, BatchOptions(leader_epoch=0))
        if len(frame) == header.end:
            content[: header.end] = frame
            path.write_bytes(content)
            return
    raise AssertionError("no frame of that size")


def test_an_unknown_topic_and_a_corrupt_segment_are_one_sentence(
    spark: SparkSession, tmp_path: Path, log: cordwood.Log
) -> None:
    fill(log.topic("orders"), 0, 20)
    log.close()
    command = ("pipeline", "stats", "--data", tmp_path / "data")
    sentence = refused(*command, "-t", "order")
    assert sentence == "there is no topic order; did you mean orders?"
    (path,) = (tmp_path / "data" / "topics").rglob("segments/*.log")
    content = bytearray(path.read_bytes())
    content[content.index(b"value 3")] ^= 1
    path.write_bytes(content)
    assert refused(*command, code=4).startswith(f"{path} at byte ")


def test_by_address_the_same_figures_but_for_the_size_on_disk(spark: SparkSession, tmp_path: Path) -> None:
    with cordwood.Broker(tmp_path / "data") as broker:
        said("topic", "create", "orders", "--partitions", 2, "--bootstrap", broker.bootstrap)
        said("produce", "-t", "orders", "-p", 1, "--bootstrap", broker.bootstrap, stdin="a\nbb\n")
        (found,) = stats(spark, StatsOptions(LogPlace(bootstrap=broker.bootstrap), ("orders",))).topics
        (by_path,) = stats_of(spark, tmp_path)
    assert found.bytes_on_disk is None
    assert (by_path.bytes_on_disk or 0) > 0
    by_path.bytes_on_disk = None
    assert found == by_path
    assert (found.records, found.value_bytes) == (2, 3)


def test_stats_and_export_on_one_line_share_what_is_said_of_where(
    spark: SparkSession, tmp_path: Path, log: cordwood.Log
) -> None:
    fill(log.topic("a"), 0, 10)
    where = ("-t", "a", "--data", tmp_path / "data", "--json")
    text = said("pipeline", "stats", *where, "export", "-t", "a", "--to", tmp_path / "out")
    counted, exported = map(json.loads, text.splitlines())
    assert counted["topics"][0]["records"] == exported["topics"][0]["records"] == 10
