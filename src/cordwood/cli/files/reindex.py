"""``cordwood reindex``: rebuild the indexes of a data directory from its logs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace

import click
import msgspec

from cordwood.cli import ExitCode
from cordwood.cli.backends import check_there, complete_topic, data_option, data_path, refusing, when_free
from cordwood.cli.output import print_json, print_table, progress_bar
from cordwood.config import load_broker_config
from cordwood.disk import Files, files_of
from cordwood.storage.directory import Opening
from cordwood.storage.offline import (
    Damaged,
    ReindexReport,
    RemadeSum,
    SegmentBuilt,
    SegmentWork,
    UnmadeSum,
    build_indexes,
    reindex_directory,
    remake_sums,
)
from cordwood.wording import bytes_text, counted

NOT_BESIDE_A_SERVER = "stop it first: indexes are not rebuilt beside a server"
CANNOT_BE_KNOWN = (
    "The checksums are those of the bytes as they are now. It cannot be known whether a record was changed "
    "or a tail was torn before; cordwood verify compares the records of topics that keep a chain with it."
)


Remade = tuple[tuple[RemadeSum, ...], tuple[UnmadeSum, ...]]


@click.command()
@data_option
@click.option(
    "-t",
    "--topic",
    metavar="TOPIC",
    shell_complete=complete_topic,
    help="Rebuild the indexes of this topic only.",
)
@click.option(
    "--sums",
    is_flag=True,
    help="Also make lost .sum files of rustlog topics again. They are not indexes: see below.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the whole report as one JSON object.")
def reindex(data: str | None, topic: str | None, sums: bool, as_json: bool) -> None:
    """Rebuild every missing or wrong index of a data directory from its log, byte for byte.

    Reads all logs and changes nothing else. Needs the directory exclusively: no server may hold it.

    A .sum file has the checksums of records as they were written, so it is no index. With --sums a lost one
    is made from a log whose records are whole up to the mark. Its checksums are those of the bytes as they
    are now: a record that was changed before, and a tail that was torn, cannot be found by them any more.

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
        made, unmade = _remade(opening.files, place, topic) if sums else ((), ())
        report = when_free(lambda: reindex_directory(opening, topic, build), NOT_BESIDE_A_SERVER)
    if sums:
        report = _with_sums(report, unmade)
    remade = [replace(each, path=_named(each.path, path)) for each in made] if sums else None
    print_reindex_report(report, path, as_json=as_json, remade=remade)
    raise SystemExit(reindex_exit_code(report))


def _remade(files: Files, place: str, topic: str | None) -> Remade:
    return when_free(lambda: remake_sums(files, place, topic), NOT_BESIDE_A_SERVER)


def _with_sums(report: ReindexReport, unmade: Sequence[UnmadeSum]) -> ReindexReport:
    """Return the report with the sentences for sidecars that could not be made, in place of those without."""
    reasons = {each.path: each.reason for each in unmade}
    kept = tuple(each for each in report.damaged if each.path not in reasons)
    return replace(report, damaged=(*kept, *(Damaged(path, None, why) for path, why in reasons.items())))


def reindex_exit_code(report: ReindexReport) -> ExitCode:
    """Return 4 if a log is damaged, else 0."""
    return ExitCode.CORRUPTION if report.damaged else ExitCode.OK


def print_reindex_report(
    report: ReindexReport, path: str, *, as_json: bool, remade: Sequence[RemadeSum] | None = None
) -> None:
    """Print the report for the data directory at *path*; used by every command that reindexes.

    *remade* are the sidecars that were made again, None if that was not asked for.
    """
    report = _as_named(report, path)
    if as_json:
        sums = {} if remade is None else {"sums": msgspec.to_builtins(remade)}
        print_json({**msgspec.to_builtins(report), **sums})
        return
    if remade:
        rows = [
            (each.path, str(each.records), "the SHA-256 of the segment" if each.proven else "nothing")
            for each in remade
        ]
        print_table(("made again", "records", "proven by"), rows)
        click.echo(CANNOT_BE_KNOWN)
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
    if remade is None and any(each.path.endswith(".sum") for each in report.damaged):
        hint += "; cordwood reindex --sums makes lost .sum files again"
    click.echo(f"{path}: {verdict}: {read}{hint}")


def _named(file: str, path: str) -> str:
    """Return the path of a file of the directory as that was named."""
    return path.rstrip("/") + file.removeprefix(os.path.abspath(path))


def _as_named(report: ReindexReport, path: str) -> ReindexReport:
    """Return the report with paths relative to the directory as it was named."""

    def shown(file: str) -> str:
        return _named(file, path)

    return replace(
        report,
        rebuilt=tuple(replace(each, path=shown(each.path)) for each in report.rebuilt),
        damaged=tuple(replace(each, path=shown(each.path)) for each in report.damaged),
    )
