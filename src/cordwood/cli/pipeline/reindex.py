"""``cordwood pipeline reindex``: ``cordwood reindex`` with the segments distributed over tasks."""

from __future__ import annotations

import click

from cordwood.cli import ExitCode
from cordwood.cli.backends import complete_topic, refusing, when_free
from cordwood.cli.files import NOT_BESIDE_A_SERVER, print_reindex_report, reindex_exit_code
from cordwood.cli.pipeline.line import CommandLine, job_options


@click.command()
@click.option(
    "-t",
    "--topic",
    metavar="TOPIC",
    shell_complete=complete_topic,
    help="Rebuild the indexes of this topic only.",
)
@job_options()
def reindex(line: CommandLine, topic: str | None) -> None:
    """Rebuild indexes from the logs of a data directory that every executor sees: cordwood reindex, on Spark.

    Needs the directory exclusively: no server may hold it. Prints what cordwood reindex prints.

    Exit status: 0 all indexes are correct, 4 a log is damaged; then later jobs on the line do not run.

    Example: cordwood pipeline reindex --data data verify
    """
    path = line.path()
    with line.working("reindexing") as spark, refusing(path):
        from cordwood.spark.jobs import reindexing as job

        options = job.ReindexOptions(path, topic)
        report = when_free(lambda: job.reindex(spark, options), NOT_BESIDE_A_SERVER)
    print_reindex_report(report, path, as_json=line.as_json)
    if reindex_exit_code(report) is not ExitCode.OK:
        raise SystemExit(reindex_exit_code(report))
