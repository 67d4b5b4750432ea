"""``cordwood pipeline verify``: ``cordwood verify`` with the segments distributed over tasks."""

from __future__ import annotations

import click

from cordwood.cli import ExitCode
from cordwood.cli.backends import complete_topic
from cordwood.cli.files import print_verify_report, verify_exit_code
from cordwood.cli.pipeline.line import CommandLine, job_options
from cordwood.errors import DirectoryRefused


@click.command()
@click.option(
    "-t",
    "--topic",
    metavar="TOPIC",
    shell_complete=complete_topic,
    help="Check the partitions of this topic only.",
)
@job_options()
def verify(line: CommandLine, topic: str | None) -> None:
    """Check every byte of a data directory that every executor sees: cordwood verify on Spark.

    Changes nothing, takes no lock, and may run beside the writer. Prints what cordwood verify prints.

    Exit status: 0 sound, 3 only repairable or skippable faults, 4 corruption; unless it is sound, later jobs
    on the line do not run.

    Example: cordwood pipeline verify --data data -t orders
    """
    path = line.path()
    with line.working("verifying") as spark:
        from cordwood.spark.jobs import verifying as job

        try:
            report = job.verify(spark, job.VerifyOptions(path, topic))
        except DirectoryRefused as error:
            hint = "give a data directory with --data or in CORDWOOD_DATA_DIR"
            raise DirectoryRefused(f"{error}; {hint}") from error
    print_verify_report(report, path, as_json=line.as_json)
    if verify_exit_code(report) is not ExitCode.OK:
        raise SystemExit(verify_exit_code(report))
