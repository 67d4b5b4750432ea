"""``cordwood verify``: check a data directory and report faults with their place."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any, NoReturn, TypeVar

import click
import msgspec

from cordwood.cli import ExitCode
from cordwood.cli.backends import complete_topic, data_path, is_bucket, log_bytes
from cordwood.cli.evidence import parse_key, read_text, refuting
from cordwood.cli.interrupting import holding_interrupts
from cordwood.cli.output import print_json, print_table, progress_bar
from cordwood.config import load_broker_config
from cordwood.disk import files_of
from cordwood.errors import CordwoodError, DirectoryRefused
from cordwood.host import Host
from cordwood.verify import (
    Checker,
    Finding,
    GivenCheckpoint,
    SegmentCheck,
    SegmentResult,
    VerifyProgress,
    VerifyReport,
    run_check,
    verify_directory,
)
from cordwood.wording import counted, counted_topics

Function = TypeVar("Function", bound=Callable[..., Any])

#: Starting processes takes about as long as reading this many bytes.
WORTH_PROCESSES_BYTES = 512 << 20
_VERDICTS = {
    ExitCode.OK: "sound",
    ExitCode.CHECK_FAILED: "check failed",
    ExitCode.CORRUPTION: "CORRUPT",
}


def checkpoint_options(command: Function) -> Function:
    """Add ``--checkpoint`` and ``--key``, passed to the command as texts; see `given_checkpoints`."""
    for option in (
        click.option(
            "--key",
            "keys",
            multiple=True,
            metavar="PUB",
            help="The verifier key of a checkpoint, or a file with it; one for all, or one for each.",
        ),
        click.option(
            "--checkpoint",
            "checkpoints",
            multiple=True,
            metavar="FILE",
            type=click.Path(exists=True, dir_okay=False),
            help="Check the log against this checkpoint, which was stored elsewhere. Repeatable.",
        ),
    ):
        command = option(command)
    return command


@click.command()
@click.argument("directory", metavar="[DIR]", required=False)
@click.option("--data", "data", metavar="DIR", help="The data directory [CORDWOOD_DATA_DIR, then ./data].")
@click.option(
    "-t",
    "--topic",
    metavar="TOPIC",
    shell_complete=complete_topic,
    help="Check the partitions of this topic only.",
)
@checkpoint_options
@click.option(
    "--jobs",
    metavar="N",
    type=click.IntRange(1),
    help="The number of processes that read segments [one per core if there is much to read].",
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

    The directory may be the URL of a log in object storage, such as s3://logs/orders.

    Changes nothing, takes no lock, and may run beside the writer: bytes that are not marked as synced are
    counted, not checked.

    If a topic has a chain, each frame is compared with its leaf, and the chain with every signed checkpoint:
    those in the directory, and those that you stored elsewhere.

    Exit status: 0 sound, 3 only repairable or skippable faults (an index, records that contradict their
    batch, frames that a checkpoint signs for and whose evidence expired), 4 corruption.

    Example: cordwood verify --data data -t orders --checkpoint orders.note --key orders.pub
    """
    if directory is not None and data is not None:
        raise click.UsageError("give the data directory once: as DIR or with --data.")
    given = given_checkpoints(checkpoints, keys)
    if is_bucket(directory or data):
        _verify_bucket(directory or data or "", topic, given, as_json=as_json)
    path = data_path(directory or data)
    try:
        with _progress(path, shown=not as_json) as progress:
            checker = checker_for(jobs, path, progress)
            files = files_of(path, load_broker_config()[0])
            report = verify_directory(files, path, topic, progress, checker, checkpoints=given)
    except DirectoryRefused as error:
        hint = "give one as DIR, with --data or in CORDWOOD_DATA_DIR."
        raise CordwoodError(f"{error}; {hint}") from error
    print_verify_report(report, path, as_json=as_json)
    raise SystemExit(verify_exit_code(report))


def _verify_bucket(
    url: str, topic: str | None, given: Sequence[GivenCheckpoint], *, as_json: bool
) -> NoReturn:
    """Check the log in a bucket: the objects by their checksums, and the files in them like any others."""
    # Imported here: most commands need no object store.
    from cordwood.bucket import view_bucket

    view = view_bucket(url, Host())
    report = verify_directory(view.files, "", topic, checkpoints=given)
    print_verify_report(report, url, as_json=as_json)
    raise SystemExit(verify_exit_code(report))


def checker_for(jobs: int | None, path: str, progress: VerifyProgress | None) -> Checker | None:
    """Return a checker of segments in several processes if requested or useful, else None."""
    if jobs is None:
        jobs = (os.cpu_count() or 1) if log_bytes(path) >= WORTH_PROCESSES_BYTES else 1
    return None if jobs == 1 else lambda checks: list(_checked(checks, jobs, progress))


def _checked(
    checks: Sequence[SegmentCheck], jobs: int, progress: VerifyProgress | None
) -> Iterator[SegmentResult]:
    # Each starts as a new process: a fork could inherit a lock held by a thread that does not exist in it.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(jobs, max(len(checks), 1)), context) as pool:
        with holding_interrupts():
            results = pool.map(_run, checks)
        for check, result in zip(checks, results, strict=True):
            if progress is not None:
                progress(check.plan.path, check.plan.stop)
            yield result


def _run(check: SegmentCheck) -> SegmentResult:
    return run_check(files_of(check.plan.path, load_broker_config()[0]), check)


def given_checkpoints(paths: Sequence[str], keys: Sequence[str]) -> list[GivenCheckpoint]:
    """Return the checkpoints in files, each with its key: one key for all, or one for each.

    Raises:
        click.UsageError: If the numbers of checkpoints and keys do not match.
        click.ClickException: If a file is not a note, or a text is not a key.
    """
    if len(keys) != len(paths) and (len(keys) != 1 or not paths):
        raise click.UsageError("give --key once for all --checkpoint, or once for each, in their order.")
    parsed = [parse_key(text) for text in keys] * (len(paths) if len(keys) == 1 else 1)
    with refuting():
        return [GivenCheckpoint(path, read_text(path), key) for path, key in zip(paths, parsed, strict=True)]


def verify_exit_code(report: VerifyReport) -> ExitCode:
    """Return 4 for corruption, 3 for any lesser finding except notes, else 0."""
    if report.corrupt:
        return ExitCode.CORRUPTION
    return ExitCode.OK if report.sound else ExitCode.CHECK_FAILED


@contextlib.contextmanager
def _progress(path: str, *, shown: bool) -> Iterator[VerifyProgress | None]:
    """Show the progress of reading, on a terminal only."""
    if not shown or not sys.stderr.isatty():
        yield None
        return
    with progress_bar("verifying", log_bytes(path)) as show:
        furthest: dict[str, int] = {}

        def advanced(file: str, position: int) -> None:
            furthest[file] = max(position, furthest.get(file, 0))
            show(sum(furthest.values()))

        yield advanced


def print_verify_report(report: VerifyReport, path: str, *, as_json: bool) -> None:
    """Print the report for the data directory at *path*; used by every command that verifies."""
    if as_json:
        print_json({"sound": report.sound, **msgspec.to_builtins(report)})
        return
    if report.findings:
        _print_findings(report)
    amounts = {
        "partition": report.partitions,
        "segment": report.segments,
        "frame": report.frames,
        "record": report.records,
        "byte": report.bytes,
    }
    read = ", ".join(
        [
            counted_topics(report.topics, report.internal_topics),
            *(counted(amount, noun) for noun, amount in amounts.items()),
        ]
    )
    read += " checked"
    left = counted(report.frames_unmarked, "frame")
    unmarked = f", {left} past the mark not checked" if report.frames_unmarked else ""
    parts, topics = counted(report.virtual_partitions, "partition"), counted(report.virtual_topics, "topic")
    shared = f"; records of {parts} of {topics} in the shared log" if report.virtual_partitions else ""
    counts = ", ".join(
        f"{report.count(severity)} {severity}"
        for severity in ("corruption", "invalid", "index", "note")
        if report.count(severity)
    )
    findings = f"; findings: {counts}" if counts else ""
    verdict = _VERDICTS[verify_exit_code(report)]
    if report.unchecked:
        verdict += f" except for {counted(report.unchecked, 'frame')} not checkable after compaction"
    click.echo(f"{path}: {verdict}: {read}{unmarked}{shared}{_chain_counts(report)}{findings}")


def _chain_counts(report: VerifyReport) -> str:
    """Return the line about chains, nothing without chains."""
    if not report.leaves and not report.checkpoints:
        return ""
    leaves = "1 leaf" if report.leaves == 1 else f"{report.leaves:,} leaves"
    parts = [f"{counted(report.frames_compared, 'frame')} compared with {leaves}"]
    parts += [counted(report.checkpoints, "checkpoint")] if report.checkpoints else []
    parts += [counted(report.removed, "removal")] if report.removed else []
    parts += [counted(report.compacted, "compaction")] if report.compacted else []
    return "; " + ", ".join(parts)


def _print_findings(report: VerifyReport) -> None:
    styles = {"corruption": "bold red", "invalid": "yellow", "index": "yellow", "note": "dim"}
    rows = [
        # Positions without separators, so that they can be copied.
        (each.severity, each.path, _position(each), each.what, each.expected, each.found)
        for each in report.findings
    ]
    headings = ("severity", "file", "position", "what", "expected", "found")
    print_table(headings, rows, [styles[each.severity] for each in report.findings])


def _position(finding: Finding) -> str:
    return "" if finding.position is None else str(finding.position)
