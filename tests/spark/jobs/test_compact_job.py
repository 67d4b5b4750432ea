"""Compaction on Spark: the same files and the same report as in one process; and reading gaps."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from support.commands import refused, said

import cordwood
from cordwood import Broker
from cordwood.disk.posix import PosixFiles
from cordwood.errors import JobFailed, UnknownTopic
from cordwood.spark.jobs.compacting import CompactOptions, compact
from cordwood.verify import verify_directory

CONFIG = {"cleanup.policy": "compact", "segment.bytes": "4000", "min.cleanable.dirty.ratio": "0"}


def fill(path: Path, seed: int = 3) -> None:
    """Two partitions of small segments with tombstones, keyless records from before, and a moved start."""
    dice = random.Random(seed)
    with cordwood.open(path, sync="never") as log:
        plain = log.topic("t", 2, config={"segment.bytes": "4000"})
        plain.append_many([(None, b"keyless")], partition=0)
        log.data_directory.topics.alter("t", config=CONFIG)
        for _ in range(120):
            rows = [
                (b"k%d" % dice.randrange(60), None if dice.random() < 0.1 else b"v%d" % dice.randrange(10**9))
                for _ in range(dice.randrange(1, 9))
            ]
            plain.append_many(rows, partition=dice.randrange(2))
        for partition in range(2):
            plain.roll(partition)
        plain.append_many([(b"k1", b"active")], partition=1)
        plain.advance_log_start(1, 7)


def files_of(path: Path) -> dict[str, bytes]:
    found = sorted((path / "topics").rglob("segments/*"))
    return {str(file.relative_to(path)): file.read_bytes() for file in found}


def records_of(path: Path) -> list[tuple[int, int, bytes | None, bytes | None]]:
    with cordwood.open(path, read_only=True) as log:
        topic = log.topic("t")
        return [
            (partition, record.offset, record.key, record.value)
            for partition in range(2)
            for record in topic.read(partition, topic.log_start_offset(partition))
        ]


def test_files_and_report_are_those_of_the_local_compaction(spark: SparkSession, tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    fill(here)
    shutil.copytree(here, there)
    with cordwood.open(here) as log:
        local = sorted(log.maintain().compacted, key=lambda report: report.partition)
    spread = compact(spark, CompactOptions(str(there), "t"))
    assert spread == local
    assert sum(report.records_dropped for report in spread) > 300
    assert files_of(there) == files_of(here)
    assert records_of(there) == records_of(here)
    assert not list((there / "tmp").iterdir())
    assert verify_directory(PosixFiles(), str(there)).sound
    assert compact(spark, CompactOptions(str(there), "t")) == [], "there is nothing left to do"


def test_a_slice_planned_before_a_compaction_gives_each_survivor_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The plan is offsets; whether they are read from old files or new ones, no survivor is missed."""
    fill(tmp_path)
    options = {"path": str(tmp_path), "subscribe": "t", "maxRecordsPerPartition": "20"}
    frame = spark.read.format("cordwood").options(**options).load()
    before = frame.select("partition", "offset").count()
    with cordwood.open(tmp_path) as log:
        log.maintain(force=True)
    survivors = {(partition, offset) for partition, offset, _, _ in records_of(tmp_path)}
    found = [(row.partition, row.offset) for row in frame.select("partition", "offset").collect()]
    assert len(found) == len(set(found)) < before
    assert set(found) == survivors
    again = spark.read.format("cordwood").options(**options).load()
    assert {(row.partition, row.offset) for row in again.collect()} == survivors


def test_nothing_to_do_an_unknown_topic_and_a_server_that_has_it(spark: SparkSession, tmp_path: Path) -> None:
    with cordwood.open(tmp_path / "data") as log:
        log.topic("empty", config=CONFIG)
        log.topic("plain").append(b"x")
        one = log.topic("one", config=CONFIG)
        one.append(b"x", key=b"k")
        one.roll()
    data = tmp_path / "data"
    for topic in ("empty", "plain"):
        shown = said("pipeline", "compact", "-t", topic, "--data", data)
        assert shown == f"{data}: nothing to compact in topic {topic}\n"
    assert "0 records dropped" in said("pipeline", "compact", "-t", "one", "--data", data)
    with pytest.raises(UnknownTopic, match="there is no topic none"):
        compact(spark, CompactOptions(str(data), "none"))
    assert refused("pipeline", "compact", "-t", "none", "--data", data).startswith("there is no topic none")
    with Broker(data):
        sentence = refused("pipeline", "compact", "-t", "one", "--data", data)
        assert sentence.endswith("; it runs maintenance by itself")


def test_a_corrupt_segment_is_named_and_nothing_is_lost(spark: SparkSession, tmp_path: Path) -> None:
    data = tmp_path / "data"
    fill(data)
    segment = sorted(data.glob("topics/t/0/segments/*.log"))[1]
    content = bytearray(segment.read_bytes())
    content[80] ^= 1
    segment.write_bytes(content)
    before = files_of(data)
    with pytest.raises(JobFailed, match=str(segment)) as caught:
        compact(spark, CompactOptions(str(data), "t"))
    assert caught.value.corruption
    assert {name: files_of(data)[name] for name in before} == before
    assert str(segment) in refused("pipeline", "compact", "-t", "t", "--data", data, code=4)
