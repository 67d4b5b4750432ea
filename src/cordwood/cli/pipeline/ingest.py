"""``cordwood pipeline ingest``: files or a query into a topic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from cordwood.cli.backends import complete_topic, pairs
from cordwood.cli.output import print_json
from cordwood.cli.pipeline.line import CommandLine, job_options
from cordwood.wording import counted

if TYPE_CHECKING:
    from cordwood.spark.jobs import IngestReport, Partitioner


@click.command()
@click.option(
    "-t",
    "--topic",
    metavar="TOPIC",
    shell_complete=complete_topic,
    required=True,
    help="The topic, created if it is missing.",
)
@click.option(
    "--from", "files", metavar="FILE", multiple=True, help="A file, a folder or a glob; repeatable."
)
@click.option("--query", metavar="SQL", help="A query in Spark SQL whose rows are published instead.")
@click.option(
    "--format",
    "kind",
    type=click.Choice(["parquet", "csv", "json"]),
    help="The format of the files, if their names do not show it; json is one object per line.",
)
@click.option(
    "-O",
    "reader",
    metavar="KEY=VALUE",
    multiple=True,
    callback=pairs("KEY=VALUE, an option of Spark's reader"),
    help="An option of Spark's reader, such as sep=';' or mode=DROPMALFORMED.",
)
@click.option("--key", metavar="COLUMN", help="The column of keys [no keys].")
@click.option("--value", metavar="COLUMN", help="The column of values [the whole row as JSON].")
@click.option("--timestamp", metavar="COLUMN", help="The column of times or milliseconds [now].")
@click.option("--partition", metavar="COLUMN", help="The column of partition numbers.")
@click.option(
    "--partitioner",
    type=click.Choice(["key", "round-robin"]),
    default="key",
    show_default=True,
    help="The partition of rows without --partition: by key as in every Kafka client, or evenly.",
)
@click.option(
    "--partitions", metavar="N", type=click.IntRange(1), help="The number of partitions of a new topic."
)
@click.option("--id", "name", metavar="NAME", help="Publish once under this name: a second run does nothing.")
@click.option(
    "--version",
    metavar="N",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="With --id, the version of the load; lower versions of that name are then ignored.",
)
@job_options(address=True)
def ingest(
    topic: str,
    files: tuple[str, ...],
    query: str | None,
    kind: str | None,
    reader: Mapping[str, str],
    key: str | None,
    value: str | None,
    timestamp: str | None,
    partition: str | None,
    partitioner: Partitioner,
    partitions: int | None,
    name: str | None,
    version: int,
    line: CommandLine,
) -> None:
    """Publish files, or the rows of a query, as records of a topic: all of them or none.

    A CSV file begins with a line of names (unless -O header=false) and its columns are text. A line that does
    not parse ends the job (-O mode=DROPMALFORMED skips such lines). Records keep the order of a file's rows
    up to 128 MiB; files are read in any order, and a query can set its own with ORDER BY.

    Example: cordwood pipeline ingest -t orders --from 'orders/*.csv' --key customer --id orders-2024
    """
    _check(files, query, kind, reader, partition, partitioner, name, version)
    place = line.place(create=True)
    from cordwood.spark.jobs import IngestOptions
    from cordwood.spark.jobs import ingest as run

    options = IngestOptions(
        place=place,
        topic=topic,
        files=files,
        query=query,
        format=kind,
        reader=reader,
        key=key,
        value=value,
        timestamp=timestamp,
        partition=partition,
        partitioner=partitioner,
        partitions=partitions,
        name=name,
        version=version,
    )
    with line.working("ingesting") as spark:
        report = run(spark, options)
    if line.as_json:
        print_json({"job": "ingest", **asdict(report)})
    else:
        click.echo(_sentence(report))


def _check(
    files: tuple[str, ...],
    query: str | None,
    kind: str | None,
    reader: Mapping[str, str],
    partition: str | None,
    partitioner: Partitioner,
    name: str | None,
    version: int,
) -> None:
    """Raise click.UsageError for options that contradict each other."""
    if bool(files) == (query is not None):
        raise click.UsageError("give either --from or --query.")
    if query is not None and (kind is not None or reader):
        raise click.UsageError("--format and -O need --from.")
    if partition is not None and partitioner != "key":
        raise click.UsageError("give --partition or --partitioner, not both.")
    if name is None and version:
        raise click.UsageError("--version needs --id.")


def _sentence(report: IngestReport) -> str:
    if not report.published:
        return f"{report.topic}: nothing to do, {report.name} version {report.version} is already published"
    under = "" if report.name is None else f", as {report.name} version {report.version}"
    return f"{report.topic}: {counted(report.records, 'record')} published{under}"
