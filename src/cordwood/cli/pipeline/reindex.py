"""``cordwood pipeline reindex``: what ``cordwood reindex`` does, the segments shared out over tasks."""

from __future__ import annotations

import click

from cordwood.cli import ExitCode
from cordwood.cli.pipeline.line import Line, job_options
from cordwood.cli.place import refusing, when_free
from cordwood.cli.reindex import NOT_BESIDE_A_SERVER, exit_code, print_report


@click.command()
@click.option("-t", "--topic", metavar="TOPIC", help="Rebuild the indexes of this topic only.")
@job_options()
def reindex(line: Line, topic: str | None) -> None:
    """Rebuild indexes from the logs of a data directory that every executor sees: cordwood reindex, on Spark.

    Has the directory to itself: no server may hold it. Prints what cordwood reindex prints.

    Exit status: 0 all indexes are right now, 4 a log is damaged; then the jobs after it on the line do not
    run.

    Example: cordwood pipeline reindex --data data verify
    """
    path = line.path()
    with line.working("reindexing") as spark, refusing(path):
        from cordwood.spark.jobs import reindex as job

        options = job.ReindexOptions(path, topic)
        report = when_free(lambda: job.reindex(spark, options), NOT_BESIDE_A_SERVER)
    print_report(report, path, as_json=line.as_json)
    if exit_code(report) is not ExitCode.OK:
        raise SystemExit(exit_code(report))
