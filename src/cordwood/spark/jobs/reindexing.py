"""The job ``reindex``: tasks build indexes, and the driver, which holds the directory, puts them in place."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import SparkSession

from cordwood.config import load_broker_config
from cordwood.disk import files_of
from cordwood.spark.jobs.segments import spread_segments
from cordwood.storage.directory import Opening
from cordwood.storage.meta import local_path
from cordwood.storage.offline import (
    ReindexReport,
    SegmentBuilt,
    SegmentWork,
    build_indexes,
    reindex_directory,
)


@dataclass(frozen=True)
class ReindexOptions:
    """The indexes to rebuild: all of a data directory, or those of one topic."""

    path: str
    topic: str | None = None


def reindex(spark: SparkSession, options: ReindexOptions) -> ReindexReport:
    """Rebuild missing and wrong indexes; files and report are those of the local command.

    The driver holds the directory's lock during the job. Durable on return.

    Raises:
        DirectoryLocked: If another process writes the directory.
        StorageError: If it cannot be opened, or an index cannot be written.
        UnknownTopic: If there is no such topic.
        JobFailed: If an executor cannot see the directory, or cannot write to its ``tmp/``.
    """
    path = os.path.abspath(local_path(options.path))

    def build(work: Sequence[SegmentWork]) -> list[SegmentBuilt]:
        return spread_segments(spark, path, work, lambda each: each.info.size, build_indexes)

    config, _ = load_broker_config()
    opening = Opening(files_of(path, config), path, config, create=False)
    return reindex_directory(opening, options.topic, build)
