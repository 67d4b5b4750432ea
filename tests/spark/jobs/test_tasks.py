"""Work that tasks share, and what becomes of what they raise."""

from __future__ import annotations

import base64
import pickle
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from cordwood.errors import CorruptRange, JobFailed, UnknownTopic
from cordwood.spark.failures.translating import explained
from cordwood.spark.jobs.tasks import spread


def test_results_come_in_the_order_of_the_work(spark: SparkSession) -> None:
    assert spread(spark, list(range(20)), lambda number: 2 * number) == list(range(0, 40, 2))
    assert spread(spark, [], lambda number: number) == []


def test_what_a_task_raises_is_one_sentence_that_says_whether_it_is_corruption(spark: SparkSession) -> None:
    def corrupt(path: str) -> None:
        raise CorruptRange(path, 7, 3, 9, "CRC-32C of the batch")

    def unknown(topic: str) -> None:
        raise UnknownTopic(f"there is no topic {topic}")

    with pytest.raises(JobFailed) as caught:
        spread(spark, ["a.log"], corrupt)
    assert str(caught.value) == str(CorruptRange("a.log", 7, 3, 9, "CRC-32C of the batch"))
    assert caught.value.corruption
    with pytest.raises(JobFailed, match=r"^there is no topic orders$") as caught:
        spread(spark, ["orders"], unknown)
    assert not caught.value.corruption


def test_words_of_sparks_own_are_cut_to_their_first_line() -> None:
    text = "\n[PATH_NOT_FOUND] Path does not exist: file:/x. SQLSTATE: 42K03;\n'Project ...\n  at org.apache"
    assert str(explained(text)) == "Spark: [PATH_NOT_FOUND] Path does not exist: file:/x. SQLSTATE: 42K03;"
    assert str(explained("")) == "Spark: it gave no reason"


class Exploit:
    """Creates a file where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (str(self.path), "w")


def test_sql_cannot_hand_work_to_the_tasks_of_a_session_that_ran_jobs(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A job leaves nothing in the session that SQL could give code, or a name of code, to run."""
    functions = spark.sql("SHOW USER FUNCTIONS").collect()
    assert spread(spark, [1, 2], lambda number: -number) == [-1, -2]
    ran = tmp_path / "ran"
    crafted = base64.b64encode(pickle.dumps((print, [Exploit(ran)]))).decode()
    with pytest.raises(Py4JJavaError, match=r"DATA_SOURCE_NOT_FOUND.* cordwood_work"):
        spark.sql(f"CREATE TEMPORARY VIEW attack USING cordwood_work OPTIONS (work '{crafted}')")
    assert spark.sql("SHOW USER FUNCTIONS").collect() == functions
    assert not ran.exists()
