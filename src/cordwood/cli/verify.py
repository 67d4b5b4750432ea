"""``cordwood verify``: check a data directory and say what is wrong, where."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

import click
import msgspec

from cordwood.cli import ExitCode
from cordwood.config import load_broker_config
from cordwood.errors import CordwoodError, DirectoryRefused
from cordwood.storage.posix_files import PosixFiles
from cordwood.storage.verify import Progress, VerifyReport, verify_directory

_WIDTH_WITHOUT_TERMINAL = 200
_VERDICTS = {
    ExitCode.OK: "sound",
    ExitCode.CHECK_FAILED: "check failed",
    ExitCode.CORRUPTION: "CORRUPT",
}


@click.command()
@click.argument("directory", metavar="[DIR]", required=False)
@click.option("--data", "data", metavar="DIR", help="The data directory [CORDWOOD_DATA_DIR, then ./data].")
@click.option("-t", "--topic", metavar="TOPIC", help="Check the partitions of this topic only.")
@click.option("--json", "as_json", is_flag=True, help="Print the whole report as one JSON object.")
def verify(directory: str | None, data: str | None, topic: str | None, as_json: bool) -> None:
    """Check every byte of a data directory: checksums, order, sizes, hashes, indexes, metadata.

    Changes nothing, takes no lock, and may run beside the writer: what is not marked as synced yet is
    counted and not judged.

    Exit status: 0 sound, 3 only what can be repaired or skipped is wrong (an index, records that
    contradict their batch), 4 corruption.
    """
    if directory is not None and data is not None:
        raise click.UsageError("give the data directory once: as DIR or with --data.")
    path = directory or data or load_broker_config()[0].data_dir
    try:
        with _progress(shown=not as_json) as progress:
            report = verify_directory(PosixFiles(), path, topic, progress)
    except DirectoryRefused as error:
        hint = "give one as DIR, with --data or in CORDWOOD_DATA_DIR."
        raise CordwoodError(f"{error}; {hint}") from error
    code = exit_code(report)
    if as_json:
        click.echo(msgspec.json.encode({"sound": report.sound, **msgspec.to_builtins(report)}))
    else:
        _print_report(report, path, code)
    raise SystemExit(code)


def exit_code(report: VerifyReport) -> ExitCode:
    """Return 4 for corruption, 3 for any lesser finding but notes, else 0."""
    if report.corrupt:
        return ExitCode.CORRUPTION
    return ExitCode.OK if report.sound else ExitCode.CHECK_FAILED


@contextlib.contextmanager
def _progress(*, shown: bool) -> Iterator[Progress | None]:
    """Show where the walk is, on a terminal only."""
    if not shown or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.markup import escape

    with Console(stderr=True).status("verifying") as status:
        yield lambda path, position: status.update(f"verifying {escape(path)} at {position / 1e6:,.0f} MB")


def _print_report(report: VerifyReport, path: str, code: ExitCode) -> None:
    if report.findings:
        _print_findings(report)
    read = (
        f"{report.topics} topics, {report.partitions} partitions, {report.segments} segments, "
        f"{report.frames:,} frames, {report.records:,} records, {report.bytes:,} bytes checked"
    )
    unmarked = (
        f", {report.frames_unmarked:,} frames past the mark not judged" if report.frames_unmarked else ""
    )
    counts = ", ".join(
        f"{report.count(severity)} {severity}"
        for severity in ("corruption", "invalid", "index", "note")
        if report.count(severity)
    )
    click.echo(f"{path}: {_VERDICTS[code]}: {read}{unmarked}{counts and f'; findings: {counts}'}")


def _print_findings(report: VerifyReport) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=None)
    for heading in ("severity", "file", "position", "what", "expected", "found"):
        table.add_column(heading, overflow="fold", justify="right" if heading == "position" else "left")
    styles = {"corruption": "bold red", "invalid": "yellow", "index": "yellow", "note": "dim"}
    for finding in report.findings:
        position = "" if finding.position is None else str(finding.position)
        cells = (finding.severity, finding.path, position, finding.what, finding.expected, finding.found)
        table.add_row(*map(Text, cells), style=styles[finding.severity])
    # A path cut in two by the edge of a page that is not there is of no use to a script.
    Console(width=None if sys.stdout.isatty() else _WIDTH_WITHOUT_TERMINAL).print(table)
