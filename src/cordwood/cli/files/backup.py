"""``cordwood backup``: back up a data directory beside its writer."""

from __future__ import annotations

import click
import msgspec

from cordwood.cli import ExitCode
from cordwood.cli.backends import check_there, data_option, data_path, log_bytes, refusing, without_server
from cordwood.cli.output import print_json, print_table, progress_bar
from cordwood.storage.backup import BackupReport
from cordwood.storage.backup import backup as back_up
from cordwood.wording import bytes_text, counted


@click.command()
@click.argument("directory", metavar="DIR")
@data_option
@click.option("--no-link", is_flag=True, help="Copy every file instead of linking sealed segments.")
@click.option("--no-verify", is_flag=True, help="Do not check linked and copied files.")
@click.option("--json", "as_json", is_flag=True, help="Print the whole report as one JSON object.")
def backup(directory: str, data: str | None, no_link: bool, no_verify: bool, as_json: bool) -> None:
    """Back up a data directory to DIR; again to the same DIR, copy only changes.

    Works beside a live server and changes nothing in the data directory. DIR is a data directory itself.

    Exit status: 0 complete, 4 complete, but files are damaged in the source and were copied as they are.

    Example: cordwood backup --data data /backups/monday
    """
    if not directory:
        raise click.BadParameter("give the name of a directory.", param_hint="'DIR'")
    path = data_path(data)
    check_there(path)
    otherwise = "stop it first, or back up to another directory"
    with (
        refusing(path),
        without_server(otherwise),
        progress_bar("backing up", log_bytes(path), shown=not as_json) as show,
    ):
        report = back_up(path, directory, link=not no_link, verify=not no_verify, progress=show)
    _print_report(report, as_json=as_json)
    raise SystemExit(ExitCode.OK if report.sound else ExitCode.CORRUPTION)


def _print_report(report: BackupReport, *, as_json: bool) -> None:
    if as_json:
        print_json({"sound": report.sound, **msgspec.to_builtins(report)})
        return
    if report.damaged:
        rows = [
            (each.path, "" if each.position is None else str(each.position), each.reason)
            for each in report.damaged
        ]
        print_table(("damaged", "position", "what is wrong"), rows, ["bold red"] * len(rows))
    for note in report.notes:
        click.echo(note)
    came = (
        f"{counted(report.linked, 'segment')} linked, {report.copied:,} copied, {report.kept:,} kept, "
        f"{bytes_text(report.copied_bytes)} copied in all"
    )
    verdict = f"{len(report.damaged)} DAMAGED, backed up" if report.damaged else "backed up"
    hint = "; cordwood verify reports all damage" if report.damaged else ""
    click.echo(
        f"{report.target}: {verdict}: {counted(report.topics, 'topic')}, "
        f"{counted(len(report.partitions), 'partition')}; {came}{hint}"
    )
