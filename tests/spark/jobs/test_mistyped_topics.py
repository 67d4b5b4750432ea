"""Jobs answer the name of a topic that is mistyped with the one that was probably meant."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from support.commands import refused
from support.topic_commands import READING_WITH_SPARK

import cordwood
from cordwood.errors import UnknownTopic

PARQUET = "export --to parquet"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    with cordwood.open(tmp_path / "data") as log:
        for name in ("orders", "clicks"):
            log.topic(name).append(b"axe")
    return tmp_path / "data"


@pytest.mark.parametrize("command", [*READING_WITH_SPARK, PARQUET])
def test_a_mistyped_topic_of_a_job_is_answered_with_the_one_that_was_meant(
    spark: SparkSession, data: Path, tmp_path: Path, command: str
) -> None:
    arguments = READING_WITH_SPARK.get(command, f"{tmp_path / 'out'} -t ordres").split()
    sentence = refused(*command.split(), *arguments, "--data", data)
    assert sentence.startswith("there is no topic ordres")
    assert sentence.endswith("; did you mean orders?")


def test_a_mistyped_topic_of_the_source_is_answered_in_the_same_way(spark: SparkSession, data: Path) -> None:
    source = spark.read.format("cordwood").option("path", str(data)).option("subscribe", "ordres")
    with pytest.raises(Exception, match=r"there is no topic ordres; did you mean orders\?") as caught:
        source.load().collect()
    assert UnknownTopic.__name__ in str(caught.value)
