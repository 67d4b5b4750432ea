"""``cordwood pipeline materialize``: the latest record of each key, or windows, as a table or a topic."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from cordwood.cli.backends import complete_topic
from cordwood.cli.output import print_json
from cordwood.cli.pipeline.line import CommandLine, job_options
from cordwood.wording import counted

if TYPE_CHECKING:
    from cordwood.spark.jobs import MaterializeReport

_LATE = "10 minutes"


@click.command()
@click.option(
    "-t", "--topic", metavar="TOPIC", shell_complete=complete_topic, required=True, help="The topic to read."
)
@click.option("--latest", is_flag=True, help="The last record of each key; a tombstone removes it.")
@click.option("--window", metavar="DURATION", help="Counts and sums in windows, such as '15 minutes'.")
@click.option("--value-schema", "schema", metavar="DDL", help="Fields of the JSON values: 'item string, …'.")
@click.option("--sum", "sums", metavar="COLUMN", multiple=True, help="The sum of a field; repeatable.")
@click.option(
    "--avg", "averages", metavar="COLUMN", multiple=True, help="The average of a field; repeatable."
)
@click.option(
    "--group",
    "groups",
    metavar="COLUMN",
    multiple=True,
    help="Group by a field, key or partition. Repeatable.",
)
@click.option("--time", metavar="COLUMN", help="The field with the time [the record's timestamp].")
@click.option(
    "--watermark",
    "late",
    metavar="DURATION",
    help=f"How late records may arrive, with --checkpoint [{_LATE}].",
)
@click.option("--final", is_flag=True, help="Only windows that can get no more records, with --checkpoint.")
@click.option("--skip-malformed", is_flag=True, help="Skip values that do not parse instead of failing.")
@click.option("--to", "table", metavar="DIR", help="A Parquet table, replaced atomically.")
@click.option("--to-topic", "to", metavar="TOPIC", help="A compacted topic, created if it is missing.")
@click.option("--checkpoint", metavar="DIR", help="Store progress here; add only records since the last run.")
@click.option("--continuous", is_flag=True, help="Run until Ctrl-C, with --checkpoint.")
@job_options(address=True)
def materialize(
    topic: str,
    latest: bool,
    window: str | None,
    schema: str | None,
    sums: tuple[str, ...],
    averages: tuple[str, ...],
    groups: tuple[str, ...],
    time: str | None,
    late: str | None,
    final: bool,
    skip_malformed: bool,
    table: str | None,
    to: str | None,
    checkpoint: str | None,
    continuous: bool,
    line: CommandLine,
) -> None:
    """Create a table or a compacted topic from a topic: the latest record of each key, or windowed sums.

    Without --checkpoint the whole topic is read and the result replaced: to a topic, only changes are
    published. With it, only new records are read and merged, with the same result unless a record is later
    than the watermark allows.

    Example: cordwood pipeline materialize -t orders --latest --to latest
    """
    of_windows = {
        "--value-schema": schema, "--sum": sums, "--avg": averages, "--group": groups, "--time": time,
        "--watermark": late, "--final": final, "--skip-malformed": skip_malformed,
    }  # fmt: skip
    if latest == (window is not None):
        raise click.UsageError("give either --latest or --window.")
    if latest and any(of_windows.values()):
        given = next(name for name, value in of_windows.items() if value)
        raise click.UsageError(f"{given} needs --window.")
    if (table is None) == (to is None):
        raise click.UsageError("give either --to or --to-topic.")
    for name, value in {"--continuous": continuous, "--watermark": late, "--final": final}.items():
        if value and checkpoint is None:
            raise click.UsageError(f"{name} needs --checkpoint.")
    if to == topic:
        raise click.UsageError("--to-topic must be another topic.")
    place = line.place()
    from cordwood.spark.jobs import MaterializeOptions, WindowedSums
    from cordwood.spark.jobs import materialize as run

    windows = None
    if window is not None:
        windows = WindowedSums(
            window, schema, sums, averages, groups, time or "timestamp", late or _LATE, final, skip_malformed
        )
    options = MaterializeOptions(place, topic, windows, table, to, checkpoint, continuous)
    with line.working("materializing") as spark, _stopping(continuous) as stop:
        report = run(spark, options, stop)
    if line.as_json:
        print_json({"job": "materialize", **asdict(report)})
    else:
        click.echo(_sentence(report))


@contextlib.contextmanager
def _stopping(wanted: bool) -> Iterator[threading.Event]:
    """Yield an event; if *wanted*, Ctrl-C and SIGTERM in the block only set it."""
    stop = threading.Event()
    if not wanted or threading.current_thread() is not threading.main_thread():
        yield stop
        return
    kinds = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(kind, lambda number, frame: stop.set()) for kind in kinds]
    try:
        yield stop
    finally:
        for kind, handler in zip(kinds, before, strict=True):
            signal.signal(kind, handler)


def _sentence(report: MaterializeReport) -> str:
    read = "" if report.records is None else f" of {counted(report.records, 'record')}"
    left_out = f", {counted(report.keyless, 'record')} without a key left out" if report.keyless else ""
    if report.rows is not None:
        return f"{report.topic}: {counted(report.rows, 'row')} in {report.to}{read}{left_out}"
    return (
        f"{report.topic}: {counted(report.published or 0, 'record')} published to {report.to}{read}{left_out}"
    )
