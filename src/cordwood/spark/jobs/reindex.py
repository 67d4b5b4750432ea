"""The job ``reindex``: tasks build indexes, the driver, who holds the directory, puts them in place."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import SparkSession

from cordwood.config import load_broker_config
from cordwood.spark.jobs.segments import spread_segments
from cordwood.storage.data_directory import Opening
from cordwood.storage.posix_files import PosixFiles
from cordwood.storage.reindex import (
    ReindexReport,
    SegmentBuilt,
    SegmentWork,
    build_indexes,
    reindex_directory,
)


@dataclass(frozen=True)
class ReindexOptions:
    """Whose indexes to rebuild: those of a data directory, or of one of its topics."""

    path: str
    topic: str | None = None


def reindex(spark: SparkSession, options: ReindexOptions) -> ReindexReport:
    """Rebuild indexes that are not what the logs give; files and report are those of the local command.

    The driver holds the directory's lock meanwhile. Durable on return.

    Raises:
        DirectoryLocked: If another process writes the directory.
        StorageError: If it cannot be opened, or an index cannot be written.
        UnknownTopic: If there is no such topic.
        JobFailed: If an executor cannot see the directory, or cannot write to its ``tmp/``.
    """
    path = os.path.abspath(options.path)

    def build(work: Sequence[SegmentWork]) -> list[SegmentBuilt]:
        return spread_segments(spark, path, work, lambda each: each.info.size, build_indexes)

    opening = Opening(PosixFiles(), path, load_broker_config()[0], create=False)
    return reindex_directory(opening, options.topic, build)
