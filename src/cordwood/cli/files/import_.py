"""``cordwood import``: a topic from a directory of another system, all of it or nothing."""

from __future__ import annotations

import contextlib
import os

import click
import msgspec

from cordwood.cli.backends import data_option, data_path, pairs, refusing, when_free
from cordwood.cli.output import print_json, print_table, progress_bar
from cordwood.config import load_broker_config
from cordwood.disk import files_of
from cordwood.host import SystemClock, process
from cordwood.interchange import (
    IMPORT_SYSTEMS,
    ImportReport,
    ImportSource,
    import_shared_topics,
    import_topic,
)
from cordwood.storage.directory import DataDirectory, Opening
from cordwood.wording import counted


@click.command("import")
@click.argument("directory", metavar="DIR")
@click.option(
    "--from", "system", type=click.Choice(IMPORT_SYSTEMS), required=True, help="The system that wrote DIR."
)
@click.option(
    "-t",
    "--topic",
    "topics",
    metavar="TOPIC",
    multiple=True,
    required=True,
    help="The topic to create; several from Rafka, with --config cordwood.storage=shared.",
)
@click.option(
    "--tenant",
    metavar="N",
    type=click.IntRange(0),
    help="The tenant, if a log of Kimberlite or Rafka has several.",
)
@click.option(
    "--config",
    metavar="KEY=VALUE",
    multiple=True,
    callback=pairs("KEY=VALUE"),
    help="A setting of the topic, as in topic create.",
)
@data_option
@click.option("--json", "as_json", is_flag=True, help="Print the whole report as one JSON object.")
def import_(
    directory: str,
    system: str,
    topics: tuple[str, ...],
    tenant: int | None,
    config: dict[str, str],
    data: str | None,
    as_json: bool,
) -> None:
    """Create TOPIC from the records in DIR, with offsets and timestamps, and print what could not be kept.

    The topic is in the native format; with --config cordwood.format=SYSTEM it is in that of DIR, and records
    and segments are kept byte for byte. It must not exist yet. DIR is read and checked completely before the
    topic is created. It is the other system's directory of one topic, or Kafka's or Rafka's of all:
    docs/formats has the layouts.

    Example: cordwood import --data data --from kafka /var/lib/kafka -t orders
    """
    path = data_path(data)
    directory = os.path.abspath(directory)
    settings, _ = load_broker_config()
    files = files_of(os.path.abspath(path), settings)
    with refusing(path):
        opening = Opening(files, os.path.abspath(path), settings)
        otherwise = "stop it first: an import needs the directory exclusively"
        opened = when_free(lambda: DataDirectory(opening), otherwise)
    with (
        contextlib.closing(opened),
        progress_bar("importing", _bytes_below(directory), shown=not as_json) as show,
    ):
        source = ImportSource(system, directory, tenant)
        if len(topics) > 1:
            reports = import_shared_topics(files, opened, source, topics, config=config, progress=show)
        else:
            unique, now_ms = process.new_id(), SystemClock().now_ms()
            report = import_topic(
                files, opened, source, topics[0], unique=unique, now_ms=now_ms, config=config, progress=show
            )
            reports = (report,)
    for report in reports:
        _print_report(report, as_json=as_json)


def _print_report(report: ImportReport, *, as_json: bool) -> None:
    if as_json:
        print_json(msgspec.to_builtins(report))
        return
    rows = [(each.partition, each.start_offset, each.end_offset, each.records) for each in report.partitions]
    if rows:
        print_table(("partition", "log start offset", "end", "records"), rows)
    for line in report.not_kept:
        click.echo(f"not kept: {line}")
    click.echo(
        f"imported {counted(report.records, 'record')} of {report.system} into topic {report.topic}, "
        f"{counted(len(report.partitions), 'partition')}"
    )


def _bytes_below(directory: str) -> int:
    total = 0
    for place, _, names in os.walk(directory):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.path.getsize(os.path.join(place, name))
    return total
