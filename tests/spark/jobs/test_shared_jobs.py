"""The jobs of the pipeline over topics in the shared log: as over any others, or refused by name."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from support.filling import SMALL, fill

import cordwood
from cordwood.disk.posix import PosixFiles
from cordwood.errors import ConfigError
from cordwood.records import Record
from cordwood.spark.jobs.compacting import CompactOptions, compact
from cordwood.spark.jobs.converting import ConvertOptions, convert
from cordwood.spark.jobs.export.job import ExportOptions, export, run_export
from cordwood.spark.jobs.ingesting import IngestOptions, ingest
from cordwood.spark.jobs.log_place import LogPlace
from cordwood.spark.jobs.materializing import MaterializeOptions, materialize
from cordwood.spark.jobs.reindexing import ReindexOptions, reindex
from cordwood.spark.jobs.stats.job import StatsOptions, stats
from cordwood.spark.jobs.verifying import VerifyOptions, verify
from cordwood.verify import verify_directory

SHARED = {"cordwood.storage": "shared"}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """The same records in a topic of the shared log, in one of another tenant's, and in one of its own."""
    path = tmp_path / "data"
    with cordwood.open(path, sync="never") as log:
        for name, config in (("shared", SHARED), ("shared@7", SHARED), ("own", SMALL)):
            topic = log.topic(name, 2, config)
            fill(topic, 0, 150)
            topic.roll()
            fill(topic, 1, 60)
    return path


def records_of(path: Path, topic: str) -> list[list[Record]]:
    with cordwood.open(path, read_only=True) as log:
        read = log.topic(topic)
        return [list(read.read(number)) for number in range(read.partitions)]


def test_stats_are_those_of_the_same_records_elsewhere(spark: SparkSession, data: Path) -> None:
    own, *shared = stats(spark, StatsOptions(LogPlace(path=str(data)))).topics
    assert (own.topic, own.records) == ("own", 210)
    assert [each.topic for each in shared] == ["shared", "shared@7"]
    for each in shared:
        assert each.bytes_on_disk is not None
        assert each.bytes_on_disk > 210 * 20
        assert dataclasses.replace(each, topic="own", bytes_on_disk=own.bytes_on_disk) == own


def test_export_writes_the_same_rows_and_then_what_came_since(
    spark: SparkSession, data: Path, tmp_path: Path
) -> None:
    options = ExportOptions(LogPlace(path=str(data)), str(tmp_path / "out"))
    assert {each.topic: each.records for each in export(spark, options).topics} == {
        "own": 210,
        "shared": 210,
        "shared@7": 210,
    }

    def exported(name: str) -> list[dict[str, object]]:
        files = sorted((tmp_path / "out" / f"topic={name}").rglob("*.parquet"))
        found = [
            {**row, "partition": str(file.relative_to(tmp_path / "out")).split("/")[1]}
            for file in files
            for row in pq.ParquetFile(file).read().to_pylist()
        ]
        return sorted(found, key=lambda row: (row["partition"], row["offset"]))

    assert exported("shared") == exported("shared@7") == exported("own")
    with cordwood.open(data) as log:
        log.topic("shared@7").append(b"later", partition=1)
    later = run_export(options, lambda slices, do: [do(each) for each in slices], PosixFiles())
    assert [each.records for each in later.topics] == [0, 0, 1]


def test_the_latest_of_each_key_is_the_same(spark: SparkSession, data: Path, tmp_path: Path) -> None:
    place = LogPlace(path=str(data))
    found = []
    for name in ("own", "shared"):
        table = tmp_path / f"latest-{name}"
        materialize(spark, MaterializeOptions(place, name, table=str(table)))
        rows = [row for file in table.rglob("*.parquet") for row in pq.ParquetFile(file).read().to_pylist()]
        for row in rows:
            row.pop("topic", None)
        found.append(sorted(map(str, rows)))
    assert found[0] == found[1]
    assert len(found[0]) > 5


def test_ingest_fills_a_topic_of_the_shared_log_once(spark: SparkSession, data: Path, tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("k,v\n" + "".join(f"k{n},{n}\n" for n in range(50)))
    options = IngestOptions(
        LogPlace(path=str(data)),
        "shared@7",
        files=[str(tmp_path / "in.csv")],
        key="k",
        value="v",
        name="load",
        version=1,
    )
    for _ in range(2):
        ingest(spark, options)
    added = [
        record
        for part, before in zip(records_of(data, "shared@7"), (150, 60), strict=True)
        for record in part[before:]
    ]
    assert sorted(int(record.value or b"") for record in added) == list(range(50))
    assert sum(len(part) for part in records_of(data, "shared")) == 210


def test_verify_and_reindex_say_and_do_what_the_local_commands_do(spark: SparkSession, data: Path) -> None:
    for topic in (None, "shared@7"):
        report = verify(spark, VerifyOptions(str(data), topic))
        assert report == verify_directory(PosixFiles(), str(data), topic)
        assert report.sound
    indexes = {path: path.read_bytes() for path in (data / "topics" / "__shared").rglob("*idx")}
    assert {path.suffix for path in indexes} == {".idx", ".timeidx", ".oidx"}
    for path in indexes:
        path.unlink()
    reindex(spark, ReindexOptions(str(data), "shared@7"))
    assert {path: path.read_bytes() for path in indexes} == indexes
    segment = sorted((data / "topics" / "__shared").rglob("*.log"))[0]
    damaged = bytearray(segment.read_bytes())
    damaged[200] ^= 1
    segment.write_bytes(damaged)
    report = verify(spark, VerifyOptions(str(data)))
    assert report == verify_directory(PosixFiles(), str(data))
    assert not report.sound


def test_compacting_one_is_refused_by_name(spark: SparkSession, data: Path) -> None:
    with pytest.raises(
        ConfigError, match="topic shared@7 is in the shared log, whose topics are not compacted"
    ):
        compact(spark, CompactOptions(str(data), "shared@7"))


def test_convert_goes_into_the_shared_log_and_out_of_it(spark: SparkSession, data: Path) -> None:
    for topic, to, config in (("own", "into", SHARED), ("shared@7", "out", {"cordwood.storage": "own"})):
        report = convert(spark, ConvertOptions(str(data), topic, to, config))
        assert (report.partitions, report.records) == (2, 210)
        assert records_of(data, to) == records_of(data, "own")
    with cordwood.open(data, read_only=True) as log:
        assert [log.config_of(name).storage for name in ("into", "out")] == ["shared", "own"]
    assert verify_directory(PosixFiles(), str(data)).sound
