"""``cordwood verify``: check a data directory and say what is wrong, where."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any, TypeVar

import click
import msgspec

from cordwood.cli import ExitCode
from cordwood.cli.evidence import parse_key, read_text, refuting
from cordwood.cli.output import counted, print_json, print_table, progress_bar
from cordwood.cli.place import data_path, log_bytes
from cordwood.errors import CordwoodError, DirectoryRefused
from cordwood.storage.posix_files import PosixFiles
from cordwood.storage.verify import (
    Checker,
    Finding,
    GivenCheckpoint,
    Progress,
    SegmentCheck,
    SegmentResult,
    VerifyReport,
    run_check,
    verify_directory,
)

Function = TypeVar("Function", bound=Callable[..., Any])

#: Starting processes takes about as long as reading so much.
WORTH_PROCESSES_BYTES = 512 << 20
_VERDICTS = {
    ExitCode.OK: "sound",
    ExitCode.CHECK_FAILED: "check failed",
    ExitCode.CORRUPTION: "CORRUPT",
}


def checkpoint_options(command: Function) -> Function:
    """Add ``--checkpoint`` and ``--key``, handed to the command as texts; see `given_checkpoints`."""
    for option in (
        click.option(
            "--key",
            "keys",
            multiple=True,
            metavar="PUB",
            help="The verifier key of a checkpoint, or a file that has it; one for all, or one for each.",
        ),
        click.option(
            "--checkpoint",
            "checkpoints",
            multiple=True,
            metavar="FILE",
            type=click.Path(exists=True, dir_okay=False),
            help="Hold this checkpoint, which was kept elsewhere, against the log. Any number of them.",
        ),
    ):
        command = option(command)
    return command


@click.command()
@click.argument("directory", metavar="[DIR]", required=False)
@click.option("--data", "data", metavar="DIR", help="The data directory [CORDWOOD_DATA_DIR, then ./data].")
@click.option("-t", "--topic", metavar="TOPIC", help="Check the partitions of this topic only.")
@checkpoint_options
@click.option(
    "--jobs",
    metavar="N",
    type=click.IntRange(1),
    help="How many processes read segments [one for each core if there is much to read].",
)
@click.option("--json", "as_json", is_flag=True, help="Print the whole report as one JSON object.")
def verify(
    directory: str | None,
    data: str | None,
    topic: str | None,
    checkpoints: tuple[str, ...],
    keys: tuple[str, ...],
    jobs: int | None,
    as_json: bool,
) -> None:
    """Check every byte of a data directory: checksums, order, sizes, hashes, indexes, metadata, chains.

    Changes nothing, takes no lock, and may run beside the writer: what is not marked as synced yet is
    counted and not judged.

    Where a topic keeps a chain, each frame is compared with its leaf, and the chain with every checkpoint
    that was signed of it: those in the directory, and those that you have kept elsewhere.

    Exit status: 0 sound, 3 only what can be repaired or skipped is wrong (an index, records that
    contradict their batch), 4 corruption.

    Example: cordwood verify --data data -t orders --checkpoint orders.note --key orders.pub
    """
    if directory is not None and data is not None:
        raise click.UsageError("give the data directory once: as DIR or with --data.")
    path, given = data_path(directory or data), given_checkpoints(checkpoints, keys)
    try:
        with _progress(path, shown=not as_json) as progress:
            checker = checker_for(jobs, path, progress)
            report = verify_directory(PosixFiles(), path, topic, progress, checker, checkpoints=given)
    except DirectoryRefused as error:
        hint = "give one as DIR, with --data or in CORDWOOD_DATA_DIR."
        raise CordwoodError(f"{error}; {hint}") from error
    print_report(report, path, as_json=as_json)
    raise SystemExit(exit_code(report))


def checker_for(jobs: int | None, path: str, progress: Progress | None) -> Checker | None:
    """Return who reads segments: nobody but the walk, unless several processes are asked for or pay off."""
    if jobs is None:
        jobs = (os.cpu_count() or 1) if log_bytes(path) >= WORTH_PROCESSES_BYTES else 1
    return None if jobs == 1 else lambda checks: list(_checked(checks, jobs, progress))


def _checked(checks: Sequence[SegmentCheck], jobs: int, progress: Progress | None) -> Iterator[SegmentResult]:
    # Each begins afresh: a copy of this process could have a lock of a thread that it has not.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(jobs, max(len(checks), 1)), context) as pool:
        for check, result in zip(checks, pool.map(_run, checks), strict=True):
            if progress is not None:
                progress(check.plan.path, check.plan.stop)
            yield result


def _run(check: SegmentCheck) -> SegmentResult:
    return run_check(PosixFiles(), check)


def given_checkpoints(paths: Sequence[str], keys: Sequence[str]) -> list[GivenCheckpoint]:
    """Return the checkpoints in files, each with its key: one for all of them, or one for each.

    Raises:
        click.UsageError: If that is not what is given.
        click.ClickException: If a file is no note, or text no key.
    """
    if len(keys) != len(paths) and (len(keys) != 1 or not paths):
        raise click.UsageError("give --key once for all --checkpoint, or once for each, in their order.")
    parsed = [parse_key(text) for text in keys] * (len(paths) if len(keys) == 1 else 1)
    with refuting():
        return [GivenCheckpoint(path, read_text(path), key) for path, key in zip(paths, parsed, strict=True)]


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
    parts, topics = counted(report.virtual_partitions, "partition"), counted(report.virtual_topics, "topic")
    shared = f"; {parts} of {topics} in the shared log" if report.virtual_partitions else ""
    counts = ", ".join(
        f"{report.count(severity)} {severity}"
        for severity in ("corruption", "invalid", "index", "note")
        if report.count(severity)
    )
    findings = f"; findings: {counts}" if counts else ""
    verdict = _VERDICTS[exit_code(report)]
    click.echo(f"{path}: {verdict}: {read}{unmarked}{shared}{_chain_counts(report)}{findings}")


def _chain_counts(report: VerifyReport) -> str:
    """Return what is said of chains, nothing where there is none."""
    if not report.leaves and not report.checkpoints:
        return ""
    parts = [f"{report.frames_compared:,} frames compared with {report.leaves:,} leaves"]
    parts += [counted(report.checkpoints, "checkpoint")] if report.checkpoints else []
    parts += [counted(report.removed, "removal")] if report.removed else []
    parts += [counted(report.compacted, "compaction")] if report.compacted else []
    return "; " + ", ".join(parts)


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
