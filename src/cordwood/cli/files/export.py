"""``cordwood export``: write a topic in the layout of another system."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence

import click
import msgspec

from cordwood.cli.backends import check_there, complete_topic, data_option, data_path, log_bytes, refusing
from cordwood.cli.output import print_json, print_table, progress_bar
from cordwood.config import load_broker_config
from cordwood.disk import BY_UMASK, PosixFiles
from cordwood.host import process
from cordwood.interchange import EXPORT_SYSTEMS, ExportReport, ExportTarget, export_topics
from cordwood.storage.meta import is_shared
from cordwood.storage.readonly import ReadOnlyDirectory
from cordwood.wording import counted

PARQUET = "parquet"


@click.command()
@click.argument("directory", metavar="DIR")
@click.option(
    "-t",
    "--topic",
    "topics",
    metavar="TOPIC",
    shell_complete=complete_topic,
    multiple=True,
    required=True,
    help="The topic; with --to rafka it may be given several times, for one log of all of them.",
)
@click.option(
    "--to",
    "system",
    type=click.Choice((PARQUET, *EXPORT_SYSTEMS)),
    required=True,
    help="The system whose layout to write.",
)
@click.option(
    "--segment-bytes",
    metavar="N",
    type=click.IntRange(1, 1 << 31),
    help="The size of segments [the other system's default].",
)
@click.option(
    "--tenant",
    metavar="N",
    type=click.IntRange(0),
    help="The tenant in Rafka's index [that of the topic: 7 for orders@7].",
)
@data_option
@click.option("--json", "as_json", is_flag=True, help="Print the whole report as one JSON object.")
def export(
    directory: str,
    topics: tuple[str, ...],
    system: str,
    segment_bytes: int | None,
    tenant: int | None,
    data: str | None,
    as_json: bool,
) -> None:
    """Write the records of TOPIC to DIR, which must not exist yet, and print what could not be kept.

    A topic in the format of the system is written byte for byte, segment for segment unless --segment-bytes
    is given. DIR is created completely or not at all. Works beside a live server, up to its published
    records. With --to parquet it is cordwood pipeline export, which accepts an existing DIR and adds new
    records.

    Example: cordwood export --data data -t orders --to kafka exported
    """
    path = data_path(data)
    check_there(path)
    directory = os.path.abspath(directory)
    if system == PARQUET:
        if len(topics) > 1:
            raise click.UsageError("--to parquet takes one topic; cordwood pipeline export takes several")
        _export_parquet(path, topics[0], directory, as_json=as_json)
        return
    files, (settings, _) = PosixFiles(BY_UMASK), load_broker_config()
    with (
        refusing(path),
        contextlib.closing(ReadOnlyDirectory(files, path, settings)) as opened,
        progress_bar("exporting", _known_bytes(opened, topics), shown=not as_json) as show,
    ):
        reports = export_topics(
            files,
            opened,
            topics,
            ExportTarget(system, directory, segment_bytes, tenant),
            unique=process.new_id(),
            progress=show,
        )
    for report in reports:
        _print_report(report, as_json=as_json)


def _known_bytes(opened: ReadOnlyDirectory, topics: Sequence[str]) -> int:
    """Return the bytes to read, as far as topics exist; 0 if it cannot be known before."""
    entries = [entry for name in topics if (entry := opened.topics.get(name)) is not None]
    return 0 if any(map(is_shared, entries)) else log_bytes(opened.path, [each.name for each in entries])


def _print_report(report: ExportReport, *, as_json: bool) -> None:
    if as_json:
        print_json(msgspec.to_builtins(report))
        return
    rows = [(number, start, end) for number, (start, end) in enumerate(report.offsets)]
    print_table(("partition", "from", "up to"), rows)
    for line in report.not_kept:
        click.echo(f"not kept: {line}")
    click.echo(
        f"exported {counted(report.records, 'record')} of topic {report.topic} for {report.system} "
        f"to {report.directory}"
    )


def _export_parquet(path: str, topic: str, directory: str, *, as_json: bool) -> None:
    from cordwood.cli.pipeline import pipeline

    arguments = ["export", "--data", path, "-t", topic, "--to", directory, *(["--json"] if as_json else [])]
    pipeline.main(arguments, prog_name="cordwood pipeline", standalone_mode=False)
