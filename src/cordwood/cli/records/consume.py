"""``cordwood consume``: print the records of a topic."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable

import click

from cordwood.cli.backends import Chunk, CommandTarget, complete_group, complete_topic, place_options
from cordwood.cli.interrupting import holding_interrupts
from cordwood.cli.records.offsets import BEGINNING, END, Start, chosen, parse_start, starts
from cordwood.cli.records.rendering import Render, formatter, json_lines, parse_format


@click.command()
@click.option(
    "-t", "--topic", metavar="TOPIC", shell_complete=complete_topic, required=True, help="The topic."
)
@click.option("-p", "--partition", metavar="N", type=click.IntRange(0), help="One partition [all].")
@click.option(
    "-o",
    "--offset",
    metavar="OFFSET",
    callback=parse_start,
    default="beginning",
    help="The first record: beginning (the default), end, N, -N for the last N, s@MS for a time.",
)
@click.option(
    "-e", "--exit", "to_end", is_flag=True, help="End at the last record instead of waiting for more."
)
@click.option("-c", "--count", metavar="N", type=click.IntRange(1), help="End after N records.")
@click.option(
    "-f",
    "--format",
    "format_",
    metavar="FORMAT",
    callback=parse_format,
    default="%s\\n",
    help="The format: %t topic, %p partition, %o offset, %k key, %s value, %T timestamp, %h headers, "
    "%K and %S lengths, %%, \\n, \\t, \\xHH [%s\\n].",
)
@click.option("-J", "as_json", is_flag=True, help="Print each record as a JSON object.")
@click.option(
    "-G",
    "--group",
    metavar="GROUP",
    shell_complete=complete_group,
    help="Start at the offsets of this group, and commit printed records.",
)
@click.option("-Z", "null", is_flag=True, help="Print NULL for a missing key or value.")
@place_options
def consume(
    topic: str,
    partition: int | None,
    offset: Start,
    to_end: bool,
    count: int | None,
    format_: str,
    as_json: bool,
    group: str | None,
    null: bool,
    place: CommandTarget,
) -> None:
    r"""Print the records of a topic, with kcat's flags.

    On files it reads beside a live server. With -G it needs the directory exclusively, or uses the
    server that has it; without a server it ends at the last record.

    Example: cordwood consume -t orders -e -f '%p:%o %k=%s\n'
    """
    render = json_lines(topic) if as_json else formatter(topic, format_, null=b"NULL" if null else b"")
    with contextlib.ExitStack() as stack:
        if group is None:
            backend = stack.enter_context(place.reading())
            begin = starts(backend, topic, chosen(backend, topic, partition), offset)
            _print(backend.read(topic, begin, to_end=to_end), render, count, None)
            return
        if partition is not None or offset not in (BEGINNING, END):
            raise click.UsageError("-G excludes -p, and allows -o beginning or -o end only, for a new group.")
        backend = stack.enter_context(place.writing())
        chunks = backend.read_group(topic, group, from_beginning=offset == BEGINNING, to_end=to_end)
        printed: dict[int, int] = {}
        try:
            _print(chunks, render, count, printed)
        finally:
            if printed:
                backend.commit(group, {(topic, number): position for number, position in printed.items()})


def _print(
    chunks: Iterable[Chunk], render: Render, count: int | None, printed: dict[int, int] | None
) -> None:
    """Print records, at most *count*, and store the offsets after them in *printed*, if they are wanted."""
    out = sys.stdout.buffer
    left = count
    for chunk in chunks:
        wanted = chunk if left is None else chunk[:left]
        rest = memoryview(b"".join(render(number, record) for number, record in wanted))
        # Flushed before the records count as printed, and before waiting for more. Ctrl-C in between would
        # leave records of a group printed and not committed.
        with contextlib.nullcontext() if printed is None else holding_interrupts():
            while rest:
                # Under PYTHONUNBUFFERED a write may be short.
                rest = rest[out.write(rest) :]
            out.flush()
            if printed is not None:
                printed.update((number, record.offset + 1) for number, record in wanted)
        if left is not None:
            left -= len(wanted)
            if not left:
                return
