"""``cordwood pipeline verify``: the checks of ``cordwood verify``, the segments shared out over tasks."""

from __future__ import annotations

import click

from cordwood.cli import ExitCode
from cordwood.cli.pipeline.line import Line, job_options
from cordwood.cli.verify import exit_code, print_report
from cordwood.errors import DirectoryRefused


@click.command()
@click.option("-t", "--topic", metavar="TOPIC", help="Check the partitions of this topic only.")
@job_options()
def verify(line: Line, topic: str | None) -> None:
    """Check every byte of a data directory that every executor sees: what cordwood verify does, on Spark.

    Changes nothing, takes no lock, and may run beside the writer. Prints what cordwood verify prints.

    Exit status: 0 sound, 3 only what can be repaired or skipped is wrong, 4 corruption; unless it is sound,
    the jobs after it on the line do not run.

    Example: cordwood pipeline verify --data data -t orders
    """
    path = line.path()
    with line.working("verifying") as spark:
        from cordwood.spark.jobs import verify as job

        try:
            report = job.verify(spark, job.VerifyOptions(path, topic))
        except DirectoryRefused as error:
            hint = "give a data directory with --data or in CORDWOOD_DATA_DIR"
            raise DirectoryRefused(f"{error}; {hint}") from error
    print_report(report, path, as_json=line.as_json)
    if exit_code(report) is not ExitCode.OK:
        raise SystemExit(exit_code(report))
