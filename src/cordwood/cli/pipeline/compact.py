"""``cordwood pipeline compact``: compaction with the keys distributed over tasks."""

from __future__ import annotations

import click
import msgspec

from cordwood.cli.backends import complete_topic, refusing, when_free
from cordwood.cli.files import KEPT_UP_BY_ITSELF, print_compacted
from cordwood.cli.output import print_json
from cordwood.cli.pipeline.line import CommandLine, job_options


@click.command()
@click.option(
    "-t",
    "--topic",
    metavar="TOPIC",
    shell_complete=complete_topic,
    required=True,
    help="The topic to compact.",
)
@click.option("--force", is_flag=True, help="Compact regardless of min.cleanable.dirty.ratio.")
@job_options()
def compact(line: CommandLine, topic: str, force: bool) -> None:
    """Keep the last record of each key of a topic, in a data directory that every executor sees.

    For topics with more keys than one machine has memory for; files and report are those of cordwood
    maintain. Needs the directory exclusively: no server may hold it.

    Example: cordwood pipeline compact -t customers --data data
    """
    path = line.path()
    with line.working("compacting") as spark, refusing(path):
        from cordwood.spark.jobs import compacting as job

        options = job.CompactOptions(path, topic, force)
        reports = when_free(lambda: job.compact(spark, options), KEPT_UP_BY_ITSELF)
    if line.as_json:
        print_json(msgspec.to_builtins(reports))
        return
    print_compacted(reports)
    if not reports:
        click.echo(f"{path}: nothing to compact in topic {topic}")
