"""``cordwood reindex``: rebuild the indexes of a data directory from its logs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace

import click
import msgspec

from cordwood.cli import ExitCode
from cordwood.cli.backends import check_there, data_option, data_path, refusing, when_free
from cordwood.cli.output import print_json, print_table, progress_bar
from cordwood.config import load_broker_config
from cordwood.disk import files_of
from cordwood.storage.directory import Opening
from cordwood.storage.offline import (
    ReindexReport,
    SegmentBuilt,
    SegmentWork,
    build_indexes,
    reindex_directory,
)
from cordwood.wording import bytes_text, counted

NOT_BESIDE_A_SERVER = "stop it first: indexes are not rebuilt beside a server"


@click.command()
@data_option
@click.option("-t", "--topic", metavar="TOPIC", help="Rebuild the indexes of this topic only.")
@click.option("--json", "as_json", is_flag=True, help="Print the whole report as one JSON object.")
def reindex(data: str | None, topic: str | None, as_json: bool) -> None:
    """Rebuild every missing or wrong index of a data directory from its log, byte for byte.

    Reads all logs and changes nothing else. Needs the directory exclusively: no server may hold it.

    Exit status: 0 all indexes are correct, 4 a log is damaged; its indexes were not changed.

    Example: cordwood reindex --data data -t orders
    """
    path = data_path(data)
    check_there(path)
    place, (config, _) = os.path.abspath(path), load_broker_config()
    opening = Opening(files_of(place, config), place, config, create=False)

    def build(work: Sequence[SegmentWork]) -> Iterator[SegmentBuilt]:
        total, done = sum(each.info.size for each in work), 0
        with progress_bar("reindexing", total, shown=not as_json) as show:
            for each in work:
                yield build_indexes(opening.files, each)
                done += each.info.size
                show(done)

    with refusing(path):
        report = when_free(lambda: reindex_directory(opening, topic, build), NOT_BESIDE_A_SERVER)
    print_reindex_report(report, path, as_json=as_json)
    raise SystemExit(reindex_exit_code(report))


def reindex_exit_code(report: ReindexReport) -> ExitCode:
    """Return 4 if a log is damaged, else 0."""
    return ExitCode.CORRUPTION if report.damaged else ExitCode.OK


def print_reindex_report(report: ReindexReport, path: str, *, as_json: bool) -> None:
    """Print the report for the data directory at *path*; used by every command that reindexes."""
    report = _as_named(report, path)
    if as_json:
        print_json(msgspec.to_builtins(report))
        return
    if report.rebuilt:
        print_table(("rebuilt", "was"), [(each.path, each.reason) for each in report.rebuilt])
    if report.damaged:
        rows = [
            (each.path, "" if each.position is None else str(each.position), each.reason)
            for each in report.damaged
        ]
        print_table(("left alone", "position", "what is wrong"), rows, ["bold red"] * len(rows))
    done = f"{counted(len(report.rebuilt), 'index file')} rebuilt" if report.rebuilt else "nothing to rebuild"
    read = (
        f"{counted(report.topics, 'topic')}, {counted(report.partitions, 'partition')}, "
        f"{counted(report.segments, 'segment')}, {bytes_text(report.bytes)} read"
    )
    verdict = f"{len(report.damaged)} DAMAGED, {done}" if report.damaged else done
    hint = "; cordwood verify reports all damage" if report.damaged else ""
    click.echo(f"{path}: {verdict}: {read}{hint}")


def _as_named(report: ReindexReport, path: str) -> ReindexReport:
    """Return the report with paths relative to the directory as it was named."""
    whole, named = os.path.abspath(path), path.rstrip("/")

    def shown(file: str) -> str:
        return named + file.removeprefix(whole)

    return replace(
        report,
        rebuilt=tuple(replace(each, path=shown(each.path)) for each in report.rebuilt),
        damaged=tuple(replace(each, path=shown(each.path)) for each in report.damaged),
    )
