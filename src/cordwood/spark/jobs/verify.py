"""The job ``verify``: tasks read the segments, the driver judges; see `cordwood.storage.verify`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pyspark.sql import SparkSession

from cordwood.spark.jobs.segments import spread_segments
from cordwood.storage.files import Files
from cordwood.storage.posix_files import PosixFiles
from cordwood.storage.verify import SegmentCheck, SegmentResult, VerifyReport, run_check, verify_directory


@dataclass(frozen=True)
class VerifyOptions:
    """Which data directory to check, and which of its topics, all unless one is given."""

    path: str
    topic: str | None = None


def verify(spark: SparkSession, options: VerifyOptions) -> VerifyReport:
    """Check a data directory that every executor sees; the report is that of the local command.

    Read-only, and may run beside the writer.

    Raises:
        DirectoryRefused: If there is no data directory.
        UnknownTopic: If it knows no such topic.
        JobFailed: If an executor cannot see the directory.
    """
    # Reports name files as the caller does; tasks work elsewhere and need whole paths.
    above = "" if os.path.isabs(options.path) else f"{os.getcwd()}/"

    def run(files: Files, check: SegmentCheck) -> SegmentResult:
        result = run_check(files, _below(check, above))
        result.tally.findings = [
            replace(finding, path=finding.path.removeprefix(above)) for finding in result.tally.findings
        ]
        return result

    def check(checks: Sequence[SegmentCheck]) -> list[SegmentResult]:
        return spread_segments(spark, above + options.path, checks, lambda each: each.plan.stop, run)

    return verify_directory(PosixFiles(), options.path, options.topic, check=check)


def _below(check: SegmentCheck, above: str) -> SegmentCheck:
    """Return the same check of files below the directory *above*."""
    plan = check.plan
    index, time_index = (
        replace(claim, source=above + claim.source) for claim in (plan.index, plan.time_index)
    )
    leaves = plan.leaves and replace(plan.leaves, chain=above + plan.leaves.chain)
    below = replace(plan, path=above + plan.path, index=index, time_index=time_index, leaves=leaves)
    return replace(check, plan=below)
