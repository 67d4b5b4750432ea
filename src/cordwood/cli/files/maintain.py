"""``cordwood maintain``: one pass of retention and compaction, as a server runs them in the background."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import click
import msgspec

import cordwood
from cordwood.cli import ExitCode
from cordwood.cli.backends import check_there, data_option, data_path, json_option, refusing, when_free
from cordwood.cli.output import print_json, print_table, spinner
from cordwood.storage.maintenance import CompactionReport, MaintenanceReport
from cordwood.wording import bytes_text, counted

KEPT_UP_BY_ITSELF = "it runs maintenance by itself"


@click.command()
@click.option("--force", is_flag=True, help="Compact regardless of min.cleanable.dirty.ratio.")
@click.option(
    "--without-evidence",
    is_flag=True,
    help="Also compact records whose removal cannot be checked later, and state that in the chain.",
)
@click.option("--dry-run", is_flag=True, help="Only print what would be removed, and why.")
@data_option
@json_option
def maintain(force: bool, without_evidence: bool, dry_run: bool, data: str | None, as_json: bool) -> None:
    """Run one pass of retention and compaction over a data directory that no server holds.

    A server runs maintenance by itself. --dry-run changes nothing and may run beside a server.

    Exit status: 0 done, 3 a partition could not be maintained; the others were.

    Example: cordwood maintain --data data --dry-run
    """
    path = data_path(data)
    check_there(path)
    with refusing(path):
        if dry_run:
            _print_plans(path, force, as_json)
            return
        with (
            contextlib.closing(
                when_free(lambda: cordwood.open(path, create=False), KEPT_UP_BY_ITSELF)
            ) as log,
            spinner("maintaining", shown=not as_json),
        ):
            report = log.maintain(force=force, evidence=not without_evidence)
    if as_json:
        print_json(msgspec.to_builtins(report))
    else:
        _print_report(report, path)
    raise SystemExit(ExitCode.CHECK_FAILED if report.failures else ExitCode.OK)


def _print_plans(path: str, force: bool, as_json: bool) -> None:
    with cordwood.open(path, read_only=True) as log:
        plans = [plan for plan in log.plan_maintenance(force=force) if plan.expired or plan.compaction]
    if as_json:
        print_json(msgspec.to_builtins(plans))
        return
    rows: list[tuple[object, ...]] = []
    for plan in plans:
        for segment in plan.expired:
            rows.append((plan.topic, plan.partition, "delete", segment.base, segment.reason))
        if plan.compaction:
            rows.append((plan.topic, plan.partition, "compact", None, plan.compaction))
    if rows:
        print_table(("topic", "partition", "what", "segment", "why"), rows)
    else:
        click.echo(f"{path}: nothing to do")


def _print_report(report: MaintenanceReport, path: str) -> None:
    for gone in report.expired:
        click.echo(
            f"deleted {counted(len(gone.segments), 'segment')}, {counted(gone.records, 'offset')} and "
            f"{bytes_text(gone.bytes)} of partition {gone.partition} of topic {gone.topic}, "
            f"which now starts at {gone.log_start_offset}"
        )
    print_compacted(report.compacted)
    if report.reclaimed.segments:
        click.echo(
            f"reclaimed {bytes_text(report.reclaimed.bytes_freed)} of the shared log from "
            f"{counted(report.reclaimed.segments, 'segment')}"
        )
    for failure in report.failures:
        click.echo(failure)
    hashed = f", {counted(report.segments_hashed, 'segment')} hashed" if report.segments_hashed else ""
    click.echo(f"{path}: {counted(report.records_removed, 'record')} removed{hashed}")


def print_compacted(reports: Sequence[CompactionReport]) -> None:
    """Print a line for each partition that was compacted."""
    for done in reports:
        click.echo(
            f"compacted partition {done.partition} of topic {done.topic}: "
            f"{counted(done.records_dropped, 'record')} dropped, "
            f"{bytes_text(done.bytes_before)} became {bytes_text(done.bytes_after)}"
        )
