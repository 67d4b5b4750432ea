"""The job ``verify``: tasks read the segments, the driver evaluates the results; see `cordwood.verify`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pyspark.sql import SparkSession

from cordwood.config import load_broker_config
from cordwood.disk import Files, files_of
from cordwood.spark.jobs.segments import spread_segments
from cordwood.storage.meta import local_path
from cordwood.verify import SegmentCheck, SegmentResult, VerifyReport, run_check, verify_directory


@dataclass(frozen=True)
class VerifyOptions:
    """The data directory to check, and one of its topics or all."""

    path: str
    topic: str | None = None


def verify(spark: SparkSession, options: VerifyOptions) -> VerifyReport:
    """Check a data directory that every executor sees; the report is that of the local command.

    Read-only, and may run beside the writer.

    Raises:
        DirectoryRefused: If there is no data directory.
        UnknownTopic: If it has no such topic.
        JobFailed: If an executor cannot see the directory.
    """
    # Reports name files as the caller does; tasks need absolute paths.
    path = local_path(options.path)
    above = "" if os.path.isabs(path) else f"{os.getcwd()}/"

    def run(files: Files, check: SegmentCheck) -> SegmentResult:
        result = run_check(files, _below(check, above))
        result.tally.findings = [
            replace(finding, path=finding.path.removeprefix(above)) for finding in result.tally.findings
        ]
        result.tally.unlisted = [
            each._replace(path=each.path.removeprefix(above)) for each in result.tally.unlisted
        ]
        return result

    def check(checks: Sequence[SegmentCheck]) -> list[SegmentResult]:
        return spread_segments(spark, above + path, checks, lambda each: each.plan.stop, run)

    return verify_directory(files_of(path, load_broker_config()[0]), path, options.topic, check=check)


def _below(check: SegmentCheck, above: str) -> SegmentCheck:
    """Return the same check for files below the directory *above*."""
    plan = check.plan
    index, time_index = (
        replace(claim, source=above + claim.source) for claim in (plan.index, plan.time_index)
    )
    leaves = plan.leaves and replace(plan.leaves, chain=above + plan.leaves.chain)
    below = replace(plan, path=above + plan.path, index=index, time_index=time_index, leaves=leaves)
    return replace(check, plan=below)
