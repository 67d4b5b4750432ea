"""``cordwood export --to parquet`` is the job of ``cordwood pipeline export``."""

from __future__ import annotations

import json
from pathlib import Path

from pyspark.sql import SparkSession
from support.commands import refused, said

import cordwood


def test_parquet_is_written_by_the_job_and_added_to(spark: SparkSession, tmp_path: Path) -> None:
    to = tmp_path / "exported"
    for first in (0, 3):
        with cordwood.open(tmp_path / "data") as log:
            log.topic("orders").append_many([(None, b"%d" % i) for i in range(first, first + 3)])
        command = ("export", "--data", tmp_path / "data", "-t", "orders", "--to", "parquet", to, "--json")
        report = json.loads(said(*command))
        assert report["topics"][0]["records"] == 3
    rows = spark.read.parquet(str(to)).selectExpr("string(value)").collect()
    assert sorted(row[0] for row in rows) == [str(i) for i in range(6)]
    assert "no topic x" in refused(
        "export", "--data", tmp_path / "data", "-t", "x", "--to", "parquet", tmp_path / "other"
    )
