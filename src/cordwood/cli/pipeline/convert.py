"""``cordwood pipeline convert``: copy a topic to a new one with other settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

import click

from cordwood.cli.backends import complete_topic, pairs, refusing
from cordwood.cli.output import print_json
from cordwood.cli.pipeline.line import CommandLine, job_options
from cordwood.wording import counted


@click.command()
@click.option(
    "-t", "--topic", metavar="TOPIC", shell_complete=complete_topic, required=True, help="The topic to read."
)
@click.option("--to", metavar="TOPIC", required=True, help="The topic to create.")
@click.option(
    "--config",
    metavar="KEY=VALUE",
    multiple=True,
    callback=pairs("KEY=VALUE, a setting of the new topic"),
    help="A setting of the new topic, such as cordwood.format=frame. Repeatable.",
)
@job_options()
def convert(line: CommandLine, topic: str, to: str, config: Mapping[str, str]) -> None:
    """Create a topic with the records of another one, in another format or with other settings.

    Keys, values, headers and timestamps are kept, offsets are assigned again. If the new format cannot store
    a record, the reason is printed and no topic is created.

    Example: cordwood pipeline convert -t orders --to orders-framed --config cordwood.format=frame
    """
    path = line.path()
    with line.working("converting") as spark, refusing(path):
        from cordwood.spark.jobs import converting as job

        report = job.convert(spark, job.ConvertOptions(path, topic, to, config))
    if line.as_json:
        print_json(asdict(report))
        return
    places = f"{counted(report.records, 'record')} in {counted(report.partitions, 'partition')}"
    click.echo(f"{to}: created from {topic}: {places}")
