"""Tables for people, JSON for programs, and the progress of long work."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import click
import msgspec

from cordwood.records import Progress

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import ProgressColumn


def print_json(value: object) -> None:
    """Print one JSON document on a line of its own."""
    click.echo(msgspec.json.encode(value))


def print_table(
    headings: Sequence[str], rows: Sequence[Sequence[object]], styles: Sequence[str] | None = None
) -> None:
    """Print rows under headings: drawn on a terminal, else aligned columns that scripts can cut.

    Numbers are aligned right; None is shown as ``-``. *styles* has one for each row.
    """
    cells = [[_cell(value) for value in row] for row in rows]
    right = [all(_is_number(row[i]) for row in rows) for i in range(len(headings))]
    if sys.stdout.isatty():
        _draw(headings, cells, right, styles)
        return
    lines = [list(headings), *cells]
    widths = [max(len(line[i]) for line in lines) for i in range(len(headings))]
    for line in lines:
        padded = [
            text.rjust(width) if on_right else text.ljust(width)
            for text, width, on_right in zip(line, widths, right, strict=True)
        ]
        click.echo("  ".join(padded).rstrip())


def _is_number(value: object) -> bool:
    return value is None or isinstance(value, int)


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _draw(
    headings: Sequence[str],
    cells: Sequence[Sequence[str]],
    right: Sequence[bool],
    styles: Sequence[str] | None,
) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table()
    for heading, on_right in zip(headings, right, strict=True):
        table.add_column(heading, overflow="fold", justify="right" if on_right else "left")
    for number, row in enumerate(cells):
        # As Text, so that file content is never interpreted as markup.
        table.add_row(*map(Text, row), style=styles[number] if styles else None)
    Console().print(table)


@contextlib.contextmanager
def progress_bar(doing: str, total_bytes: int | None, *, shown: bool = True) -> Iterator[Progress]:
    """Show the number of processed bytes, of *total_bytes* if known; on a terminal only."""
    if not shown or not sys.stderr.isatty():
        yield lambda done: None
        return
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with _bar(*columns) as bar:
        task = bar.add_task(doing, total=total_bytes)
        yield lambda done: bar.update(task, completed=done)


@contextlib.contextmanager
def task_bar(doing: str) -> Iterator[Callable[[int, int], None]]:
    """Show the number of finished tasks; on a terminal only."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with _bar(*columns) as bar:
        task = bar.add_task(doing, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total or None)


def _bar(*columns: ProgressColumn) -> Bar:
    """Return a bar on standard error that is erased at the end."""
    from rich.console import Console
    from rich.progress import Progress as Bar

    return Bar(*columns, console=Console(stderr=True), transient=True)
