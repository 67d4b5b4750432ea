"""``cordwood produce``: append lines to a topic."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import BinaryIO

import click

from cordwood.cli.backends import CommandTarget, ProducedRow, complete_topic, place_options
from cordwood.cli.output import progress_bar
from cordwood.errors import CordwoodError
from cordwood.records import Header
from cordwood.wording import counted

#: Available lines are appended together, up to about this many bytes.
READ_BYTES = 1 << 20


@click.command()
@click.option(
    "-t",
    "--topic",
    metavar="TOPIC",
    shell_complete=complete_topic,
    required=True,
    help="The topic, created if it is missing.",
)
@click.option("-p", "--partition", metavar="N", type=click.IntRange(0), help="The partition [by key].")
@click.option("-K", "separator", metavar="SEP", help="The separator of key and value in a line.")
@click.option("-Z", "null", is_flag=True, help="With -K, treat an empty key or value as null.")
@click.option(
    "-H",
    "headers",
    metavar="NAME=VALUE",
    multiple=True,
    help="A header of every record; NAME alone has no value.",
)
@place_options
def produce(
    topic: str,
    partition: int | None,
    separator: str | None,
    null: bool,
    headers: tuple[str, ...],
    place: CommandTarget,
) -> None:
    r"""Append lines from standard input to a topic, with kcat's flags. Empty lines are skipped.

    On a terminal it asks for lines until Ctrl-D. Lines that arrive together are appended and synced together.
    A line without the separator is a value without a key. A directory that a server holds is written through
    that server.

    Example: printf 'alice:tea\nbob:coffee\n' | cordwood produce -t orders -K :
    """
    if separator == "":
        raise click.BadParameter("expected at least one character.", param_hint="-K")
    between = None if separator is None else separator.encode()
    given = [_header(text) for text in headers]
    stream, asked = sys.stdin.buffer, sys.stdin.isatty() and sys.stderr.isatty()
    total, done, stored, records = _size(stream), 0, 0, 0
    with (
        place.writing(create=True) as backend,
        progress_bar("producing", total, shown=not asked) as progress,
    ):
        if asked:
            click.echo(f"Type the records of {topic}, one in a line. Ctrl-D ends.", err=True)
        try:
            for lines in _lines(stream, _ask if asked else None):
                rows = [_row(line, between, null, given) for line in lines if line]
                if rows:
                    stored += backend.append(topic, rows, partition)
                records += len(rows)
                done += sum(map(len, lines)) + len(lines)
                progress(done)
            backend.flush()
        except CordwoodError as error:
            if not stored:
                raise
            raise CordwoodError(f"{error}; stored before it: {counted(stored, 'record')}") from error
    if sys.stderr.isatty():
        # The cursor is behind the prompt that Ctrl-D answered.
        below = "\n" if asked else ""
        click.echo(f"{below}{counted(records, 'record')} appended to {topic}", err=True)


def _ask() -> None:
    click.echo("> ", nl=False, err=True)


def _lines(stream: BinaryIO, ask: Callable[[], None] | None = None) -> Iterator[list[bytes]]:
    """Yield the lines that are available without waiting, together; the last one may lack its line break.

    *ask* is called before each wait for a new line.
    """
    begun: list[bytes] = []
    # One read each, so that a slow writer's lines do not wait for a buffer to fill.
    read = getattr(stream, "read1", stream.read)
    while True:
        if ask is not None and not any(begun):
            ask()
        if not (data := read(READ_BYTES)):
            break
        first, *others = data.split(b"\n")
        begun.append(first)
        if others:
            lines = [b"".join(begun), *others[:-1]]
            begun = [others[-1]]
            yield lines
    if any(begun):
        yield [b"".join(begun)]


def _row(line: bytes, separator: bytes | None, null: bool, headers: Sequence[Header]) -> ProducedRow:
    if separator is None or separator not in line:
        return None, line, headers
    key, _, value = line.partition(separator)
    return (None if null and not key else key), (None if null and not value else value), headers


def _header(text: str) -> Header:
    name, equals, value = text.partition("=")
    if not name:
        raise click.BadParameter(f"{text}: expected NAME=VALUE.", param_hint="-H")
    return name, value.encode(errors="surrogateescape") if equals else None


def _size(stream: BinaryIO) -> int | None:
    """Return the size of the input in bytes, None if unknown."""
    try:
        status = os.fstat(stream.fileno())
    except (OSError, AttributeError, ValueError):
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None
