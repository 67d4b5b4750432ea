"""Run independent pieces of work in tasks, with the results in order."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import TypeVar

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everyone calls it
from pyspark.sql.types import BinaryType

from cordwood.spark.failures import as_one_sentence
from cordwood.spark.source import Build

Work = TypeVar("Work")
Result = TypeVar("Result")


def spread(spark: SparkSession, work: Sequence[Work], do: Callable[[Work], Result]) -> list[Result]:
    """Return the result of *do* for each piece of *work*, one task each, in order.

    Pieces and results are pickled. A task may run twice, even at the same time, so *do* must be idempotent.

    Raises:
        JobFailed: If *do* raises in a task, at every attempt of Spark.
    """
    if not work:
        return []
    build, pieces = Build.here(), [pickle.dumps(piece) for piece in work]

    def run(number: int) -> bytes:
        build.check_here()
        return pickle.dumps(do(pickle.loads(pieces[number])))  # noqa: S301 - from the closure, see below

    # The work travels in the closure of a function without a name, as part of this query's plan. Nothing is
    # registered in the session: a data source or a named function that takes work as an option or argument
    # would let all users who may send SQL run code in tasks. SQL cannot change the results either, so only
    # this function writes and reads both pickles. It needs neither pandas nor features that Spark Connect
    # lacks; a range of as many partitions as numbers gives each task one piece.
    task = F.udf(run, BinaryType(), useArrow=False).asNondeterministic()
    with as_one_sentence():
        rows = spark.range(0, len(pieces), 1, len(pieces)).select("id", task("id").alias("result")).collect()
    results = {row.id: pickle.loads(row.result) for row in rows}  # noqa: S301 - `run` made it
    return [results[number] for number in range(len(pieces))]
