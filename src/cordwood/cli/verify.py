"""``cordwood verify``: check a data directory and say what is wrong, where."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

import click
import msgspec

from cordwood.cli import ExitCode
from cordwood.cli.output import print_json, print_table, progress_bar
from cordwood.cli.place import data_path, log_bytes
from cordwood.errors import CordwoodError, DirectoryRefused
from cordwood.storage.posix_files import PosixFiles
from cordwood.storage.verify import Finding, Progress, VerifyReport, verify_directory

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

    Example: cordwood verify --data data -t orders
    """
    if directory is not None and data is not None:
        raise click.UsageError("give the data directory once: as DIR or with --data.")
    path = data_path(directory or data)
    try:
        with _progress(path, shown=not as_json) as progress:
            report = verify_directory(PosixFiles(), path, topic, progress)
    except DirectoryRefused as error:
        hint = "give one as DIR, with --data or in CORDWOOD_DATA_DIR."
        raise CordwoodError(f"{error}; {hint}") from error
    print_report(report, path, as_json=as_json)
    raise SystemExit(exit_code(report))


def exit_code(report: VerifyReport) -> ExitCode:
    """Return 4 for corruption, 3 for any lesser finding but notes, else 0."""
    if report.corrupt:
        return ExitCode.CORRUPTION
    return ExitCode.OK if report.sound else ExitCode.CHECK_FAILED


@contextlib.contextmanager
def _progress(path: str, *, shown: bool) -> Iterator[Progress | None]:
    """Show how much of the logs is read, on a terminal only."""
    if not shown or not sys.stderr.isatty():
        yield None
        return
    with progress_bar("verifying", log_bytes(path)) as show:
        furthest: dict[str, int] = {}

        def advanced(file: str, position: int) -> None:
            furthest[file] = max(position, furthest.get(file, 0))
            show(sum(furthest.values()))

        yield advanced


def print_report(report: VerifyReport, path: str, *, as_json: bool) -> None:
    """Print what was found in the data directory at *path*, as every command does that verifies."""
    if as_json:
        print_json({"sound": report.sound, **msgspec.to_builtins(report)})
        return
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
    click.echo(
        f"{path}: {_VERDICTS[exit_code(report)]}: {read}{unmarked}{counts and f'; findings: {counts}'}"
    )


def _print_findings(report: VerifyReport) -> None:
    styles = {"corruption": "bold red", "invalid": "yellow", "index": "yellow", "note": "dim"}
    rows = [
        # Positions as they stand, to be used as they are.
        (each.severity, each.path, _position(each), each.what, each.expected, each.found)
        for each in report.findings
    ]
    headings = ("severity", "file", "position", "what", "expected", "found")
    print_table(headings, rows, [styles[each.severity] for each in report.findings])


def _position(finding: Finding) -> str:
    return "" if finding.position is None else str(finding.position)
