"""Segments as work for tasks: a large segment alone, small ones together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from pyspark.sql import SparkSession

from cordwood.config import load_broker_config
from cordwood.disk import PosixFiles, files_of, join
from cordwood.errors import DirectoryRefused
from cordwood.host import process
from cordwood.spark.jobs.tasks import spread

Work = TypeVar("Work")
Result = TypeVar("Result")
#: The bytes that can be read in the time that starting a task takes, some hundredths of a second.
TASK_BYTES_MIN = 32 << 20


def spread_segments(
    spark: SparkSession,
    path: str,
    work: Sequence[Work],
    size: Callable[[Work], int],
    do: Callable[[PosixFiles, Work], Result],
) -> list[Result]:
    """Return the result of *do* for each segment in *work*, in order; *size* returns its bytes.

    *path* is the absolute path of their data directory: a task has another working directory.

    Raises:
        JobFailed: If a task cannot see the directory, or *do* raises there.
    """

    def task(numbered: Sequence[tuple[int, Work]]) -> list[tuple[int, Result]]:
        files = files_of(path, load_broker_config()[0])
        if not files.is_directory(join(path, "meta")) and not files.is_directory(join(path, "topics")):
            raise DirectoryRefused(
                f"host {process.host()} cannot see {path}, which the driver reads: put it where every "
                "executor has it"
            )
        return [(number, do(files, each)) for number, each in numbered]

    found = dict(pair for pairs in spread(spark, _grouped(work, size), task) for pair in pairs)
    return [found[number] for number in range(len(work))]


def _grouped(work: Sequence[Work], size: Callable[[Work], int]) -> list[list[tuple[int, Work]]]:
    """Return the pieces with their numbers, in groups that are large enough for a task, largest first.

    The longest work starts first, so that it does not run alone at the end.
    """
    groups: list[list[tuple[int, Work]]] = []
    room = 0
    for number, each in sorted(enumerate(work), key=lambda pair: size(pair[1]), reverse=True):
        if room <= 0:
            groups.append([])
            room = TASK_BYTES_MIN
        groups[-1].append((number, each))
        room -= size(each)
    return groups
