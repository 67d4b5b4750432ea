"""``cordwood restore``: create a data directory from a backup, completely or up to an offset or a time."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from datetime import UTC, datetime

import click
import msgspec

from cordwood.cli.backends import data_option, data_path, is_bucket, log_bytes, mounted_bucket
from cordwood.cli.output import print_json, print_table, progress_bar
from cordwood.errors import CordwoodError, DirectoryRefused, NotADataDirectory, OffsetOutOfRange
from cordwood.storage.backup import RestoreReport
from cordwood.storage.backup import restore as make_restored
from cordwood.wording import bytes_text, counted


def _offsets(
    context: click.Context, parameter: click.Parameter, texts: Sequence[str]
) -> dict[tuple[str, int], int]:
    found = {}
    for text in texts:
        place, _, offset = text.rpartition("=")
        topic, _, partition = place.rpartition(":")
        if not topic or not partition.isdecimal() or not offset.isdecimal():
            raise click.BadParameter(f"{text}: expected TOPIC:PARTITION=OFFSET.")
        found[topic, int(partition)] = int(offset)
    return found


def _time(context: click.Context, parameter: click.Parameter, text: str | None) -> int | None:
    if text is None or text.removeprefix("-").isdecimal():
        return None if text is None else int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        expected = "milliseconds since 1970 or a time such as 2026-01-31T12:00:00Z"
        raise click.BadParameter(f"{text}: expected {expected}.") from None
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    # In integers: a float would sometimes be off by one. Fractions of a millisecond are rounded up.
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    microseconds = (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
    return -(-microseconds // 1000)


@click.command()
@click.argument("backup", metavar="BACKUP")
@data_option
@click.option(
    "--to-offset",
    "to_offsets",
    metavar="TOPIC:PARTITION=OFFSET",
    multiple=True,
    callback=_offsets,
    help="Restore this partition up to an offset (exclusive). Repeatable.",
)
@click.option(
    "--to-time",
    metavar="TIME",
    callback=_time,
    help="Restore each partition up to its first record at or after this: ISO 8601 (UTC) or milliseconds.",
)
@click.option("--link", is_flag=True, help="Link sealed segments of the backup instead of copying them.")
@click.option(
    "--keep-id", is_flag=True, help="Keep the id of the backed up directory, which must no longer exist."
)
@click.option("--force", is_flag=True, help="Allow dropping records that a signed checkpoint covers.")
@click.option("--json", "as_json", is_flag=True, help="Print the whole report as one JSON object.")
def restore(
    backup: str,
    data: str | None,
    to_offsets: dict[tuple[str, int], int],
    to_time: int | None,
    link: bool,
    keep_id: bool,
    force: bool,
    as_json: bool,
) -> None:
    """Create a new data directory from BACKUP, which is not changed; every byte is checked.

    BACKUP is a backup, a data directory, or the URL of a log in object storage, such as s3://logs/orders.
    With --keep-id the restored directory can go on shipping to that URL, once its owner is gone for good.

    Exit status: 0 restored, 4 the backup is damaged and nothing was restored.

    Example: cordwood restore /backups/monday --data data --to-offset orders:0=1200
    """
    path = data_path(data)
    source, files, size = backup, None, 0
    if is_bucket(backup):
        source, files, size = mounted_bucket(backup, path)
    elif not os.path.isdir(backup):
        raise DirectoryRefused(f"there is no directory {backup}; name a backup, or a data directory")
    try:
        with progress_bar("restoring", size or log_bytes(backup), shown=not as_json) as show:
            report = make_restored(
                source,
                path,
                files=files,
                to_offsets=to_offsets,
                to_time=to_time,
                link=link,
                keep_id=keep_id,
                force=force,
                progress=show,
            )
    except OffsetOutOfRange as error:
        place = ", ".join(getattr(error, "__notes__", ()))
        bounds = f"{error.start} and {error.end}, its first offset and its end in the backup"
        raise CordwoodError(f"{place}: offset {error.offset} is not within {bounds}") from error
    except NotADataDirectory as error:
        raise DirectoryRefused(f"{backup} is neither a backup nor a data directory") from error
    _print_report(dataclasses.replace(report, source=backup), as_json=as_json)


def _print_report(report: RestoreReport, *, as_json: bool) -> None:
    if as_json:
        print_json(msgspec.to_builtins(report))
        return
    headings = ("topic", "partition", "log start offset", "end", "cut off")
    rows = [
        (each.topic, each.partition, each.log_start_offset, each.end_offset, each.cut_offsets)
        for each in report.partitions
    ]
    if rows:
        print_table(headings, rows)
    click.echo(
        f"{report.target}: restored: {counted(report.topics, 'topic')}, "
        f"{counted(len(report.partitions), 'partition')}, {bytes_text(report.copied_bytes)} copied"
    )
