"""Tables for people, JSON for programs, and the progress of long work."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import click
import msgspec

from cordwood.records import Progress
from cordwood.wording import bytes_text

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import ProgressColumn


#: Characters that JSON may have as they are, and that a terminal obeys or takes for the end of a line.
_CONTROLLING = re.compile("[\x7f-\x9f\u2028\u2029]")


def printable(text: str) -> str:
    """Return *text* without control characters: a terminal would obey them."""
    return text if text.isprintable() else ascii(text)


def sentence(text: str) -> str:
    """Return *text* as one line without control characters; quoted names in it may have any."""
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def print_json(value: object) -> None:
    """Print one JSON document on a line of its own."""
    text = msgspec.json.encode(value).decode()
    click.echo(_CONTROLLING.sub(lambda found: f"\\u{ord(found[0]):04x}", text))


def print_table(
    headings: Sequence[str],
    rows: Sequence[Sequence[object]],
    styles: Sequence[str] | None = None,
    *,
    omitted_first: Sequence[str] = (),
) -> None:
    """Print rows under headings: drawn on a terminal, else aligned columns that scripts can cut.

    Numbers are aligned right; None is shown as ``-``. *styles* has one for each row. On a terminal that is
    too narrow, columns are left out in the order of *omitted_first*.
    """
    cells = [[_cell(value) for value in row] for row in rows]
    right = [all(_is_number(row[i]) for row in rows) for i in range(len(headings))]
    if sys.stdout.isatty():
        shown = _fitting(headings, cells, omitted_first)
        picked = [[row[i] for i in shown] for row in cells]
        _draw([headings[i] for i in shown], picked, [right[i] for i in shown], styles)
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
    return f"{value:,}" if isinstance(value, int) else printable(str(value))


def _fitting(
    headings: Sequence[str], cells: Sequence[Sequence[str]], omitted_first: Sequence[str]
) -> list[int]:
    """Return the numbers of the columns that are drawn; all if they fit or none may be left out."""
    from rich.console import Console

    width = Console().width
    shown = list(range(len(headings)))
    for heading in omitted_first:
        if _drawn_width(headings, cells, shown) <= width:
            break
        shown.remove(headings.index(heading))
    return shown


def _drawn_width(headings: Sequence[str], cells: Sequence[Sequence[str]], shown: Sequence[int]) -> int:
    # Each column has a space on both sides and a line on its left; a line ends the table.
    return sum(max(len(line[i]) for line in (headings, *cells)) + 3 for i in shown) + 1


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
    for i, heading in enumerate(headings):
        # A number is never cut in two; texts are folded to make room for it.
        width = max((len(row[i]) for row in cells), default=0) if right[i] else None
        table.add_column(heading, overflow="fold", justify="right" if right[i] else "left", min_width=width)
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
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        FileSizeColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    # Without a total there is nothing that remains.
    known = (
        (DownloadColumn(), TimeRemainingColumn()) if total_bytes else (FileSizeColumn(), TimeElapsedColumn())
    )
    with _bar(TextColumn("{task.description}"), BarColumn(), *known) as bar:
        task = bar.add_task(doing, total=total_bytes or None)
        yield lambda done: bar.update(task, completed=done)


class CountBar:
    """A bar of things that are counted, which shows their size in bytes too; both may be said or not."""

    def __init__(self, show: Callable[[int, int | None, str], None], things: str) -> None:
        self._show = show
        self._things = things
        self._done, self._total, self._bytes = 0, 0, 0

    def count(self, done: int, total: int) -> None:
        """Show that *done* things of *total* are done."""
        self._done, self._total = done, total
        self._update()

    def measure(self, size: int) -> None:
        """Show that they have *size* bytes."""
        self._bytes = size
        self._update()

    def _update(self) -> None:
        counted = f"{self._done:,}/{self._total:,} {self._things} " if self._total else ""
        self._show(self._done, self._total or None, f"{counted}{bytes_text(self._bytes)}")


@contextlib.contextmanager
def count_bar(doing: str, things: str, *, shown: bool = True) -> Iterator[CountBar]:
    """Show how many *things* are done, of how many once that is known; on a terminal only."""
    if not shown or not sys.stderr.isatty():
        yield CountBar(lambda done, total, text: None, things)
        return
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[said]}"))
    with _bar(*columns, TimeElapsedColumn()) as bar:
        task = bar.add_task(doing, total=None, said="")
        yield CountBar(
            lambda done, total, text: bar.update(task, completed=done, total=total, said=text), things
        )


@contextlib.contextmanager
def task_bar(doing: str) -> Iterator[Callable[[int, int], None]]:
    """Show the number of finished tasks; on a terminal only."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with _bar(*columns) as bar:
        task = bar.add_task(doing, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total or None)


@contextlib.contextmanager
def spinner(doing: str, *, shown: bool = True) -> Iterator[None]:
    """Show that work of unknown length goes on, and for how long; on a terminal only."""
    if not shown or not sys.stderr.isatty():
        yield
        return
    from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

    with _bar(SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()) as bar:
        bar.add_task(doing, total=None)
        yield


def _bar(*columns: ProgressColumn) -> Bar:
    """Return a bar on standard error that is erased at the end."""
    from rich.console import Console
    from rich.progress import Progress as Bar

    return Bar(*columns, console=Console(stderr=True), transient=True)
