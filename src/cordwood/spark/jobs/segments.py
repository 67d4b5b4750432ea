"""Segments as work for tasks: a large one for itself, small ones together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from pyspark.sql import SparkSession

from cordwood import process
from cordwood.errors import DirectoryRefused
from cordwood.spark.jobs.spreading import spread
from cordwood.storage.files import join
from cordwood.storage.posix_files import PosixFiles

Work = TypeVar("Work")
Result = TypeVar("Result")
#: A task costs Spark some hundredths of a second, in which as many bytes could be read.
TASK_BYTES_MIN = 32 << 20


def spread_segments(
    spark: SparkSession,
    path: str,
    work: Sequence[Work],
    size: Callable[[Work], int],
    do: Callable[[PosixFiles, Work], Result],
) -> list[Result]:
    """Return what *do* makes of each segment in *work*, in that order; *size* says how many bytes one has.

    *path* is the data directory that all of them are in, absolute: a task's working directory is another.

    Raises:
        JobFailed: If a task cannot see the directory, or *do* raises there.
    """

    def task(numbered: Sequence[tuple[int, Work]]) -> list[tuple[int, Result]]:
        files = PosixFiles()
        if not files.is_directory(join(path, "meta")) and not files.is_directory(join(path, "topics")):
            raise DirectoryRefused(
                f"host {process.host()} cannot see {path}, which the driver reads: put it where every "
                "executor has it"
            )
        return [(number, do(files, each)) for number, each in numbered]

    found = dict(pair for pairs in spread(spark, _grouped(work, size), task) for pair in pairs)
    return [found[number] for number in range(len(work))]


def _grouped(work: Sequence[Work], size: Callable[[Work], int]) -> list[list[tuple[int, Work]]]:
    """Return the pieces with their numbers, in groups worth a task, the largest first.

    What takes longest begins first, so that nobody waits for it alone at the end.
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
