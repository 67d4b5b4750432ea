"""``cordwood pipeline export``: topics as Parquet files, incrementally."""

from __future__ import annotations

import click
import msgspec

from cordwood.cli.backends import complete_topic
from cordwood.cli.output import print_json, print_table
from cordwood.cli.pipeline.line import CommandLine, job_options
from cordwood.wording import bytes_text, counted


@click.command()
@click.option(
    "-t",
    "--topic",
    "topics",
    metavar="TOPIC",
    shell_complete=complete_topic,
    multiple=True,
    help="A topic [all].",
)
@click.option("--to", metavar="DIR", required=True, help="The output directory; every executor must see it.")
@click.option("--skip-lost", is_flag=True, help="Continue if records were removed before their export.")
@job_options(address=True)
def export(topics: tuple[str, ...], to: str, skip_lost: bool, line: CommandLine) -> None:
    """Write topics as Parquet; run it again to add new records.

    Files are DIR/topic=NAME/partition=N/date=YYYY-MM-DD/START-END.parquet, by the date of the records in UTC.
    DuckDB, pandas and Spark see each record once, also after a killed run is repeated. Without -t, all topics
    except internal ones are exported.

    Example: cordwood pipeline export --data data -t orders --to exported
    """
    place = line.place()
    with line.working("exporting") as spark:
        from cordwood.spark.jobs.export import ExportOptions
        from cordwood.spark.jobs.export import export as run

        report = run(spark, ExportOptions(place, to, topics, skip_lost))
    if line.as_json:
        print_json(msgspec.to_builtins(report, str_keys=True))
        return
    if report.completed:
        click.echo("completed an interrupted run")
    for sentence in report.lost:
        click.echo(f"skipped: {sentence}")
    rows = [
        (each.topic, each.records, each.files, bytes_text(each.bytes), _offsets(each.next_offsets))
        for each in report.topics
    ]
    print_table(("topic", "records", "files", "size", "next offsets"), rows)
    records, files = sum(each.records for each in report.topics), sum(each.files for each in report.topics)
    click.echo(f"exported {counted(records, 'record')} in {counted(files, 'file')} to {report.to}")


def _offsets(offsets: dict[int, int]) -> str:
    return " ".join(f"{number}:{offset}" for number, offset in offsets.items())
