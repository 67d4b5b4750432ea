"""``cordwood audit``: the audit log of a broker or a data directory."""

from __future__ import annotations

import datetime
import re
import sys
from collections import deque
from collections.abc import Iterator, Mapping, Sequence

import click

from cordwood.broker.audit import (
    AUDIT_PREFIX,
    AuditFilter,
    AuditKind,
    AuditOutcome,
    AuditRecord,
    UnreadableAuditRecord,
    read_audit,
)
from cordwood.cli.backends import Backend, CommandTarget, complete_topic, json_option, place_options
from cordwood.cli.operations.audit_lines import AuditLines, audit_json
from cordwood.cli.suggesting import SuggestingGroup
from cordwood.config import load_broker_config
from cordwood.errors import CordwoodError
from cordwood.host import SystemClock

#: How many records are shown unless something else is said.
_LAST = 10
_UNITS_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_NONE_HERE = (
    "there is no audit topic that can be read here; a broker records what its clients do with "
    "-X cordwood.audit.topic=__audit, and its clients need READ on that topic to see it"
)


@click.group(cls=SuggestingGroup)
def audit() -> None:
    """Read the audit log of a broker.

    Example: cordwood audit tail --denied
    """


def _parse_since(context: click.Context, parameter: click.Parameter, text: str | None) -> int | None:
    """Return a time in milliseconds since the epoch; a callback of click."""
    if text is None:
        return None
    span = re.fullmatch(r"(\d{1,9})([smhd])", text, re.ASCII)
    if span is not None:
        return max(0, SystemClock().now_ms() - int(span[1]) * _UNITS_MS[span[2]])
    try:
        moment = datetime.datetime.fromisoformat(text)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=datetime.UTC)
        return max(0, round(moment.timestamp() * 1000))
    except (ValueError, OverflowError):
        raise click.BadParameter(
            f"{text}: expected a time such as 2026-07-01T12:00 in UTC, or how long ago: 90s, 15m, 2h, 7d."
        ) from None


@audit.command()
@click.option("-n", "--last", metavar="N", type=click.IntRange(0), help="The last N records [10].")
@click.option("-f", "--follow", is_flag=True, help="Wait for more records until Ctrl-C.")
@click.option(
    "--since",
    "since_ms",
    metavar="TIME",
    callback=_parse_since,
    help="All from this time on, in UTC, or for so long: 90s, 15m, 2h, 7d.",
)
@click.option(
    "--principal", "principals", metavar="USER", multiple=True, help="Only of this principal. Repeatable."
)
@click.option(
    "--event",
    "events",
    type=click.Choice([each.value for each in AuditKind]),
    multiple=True,
    help="Only such events. Repeatable.",
)
@click.option(
    "--outcome",
    "outcomes",
    type=click.Choice([each.value for each in AuditOutcome]),
    multiple=True,
    help="Only with such an outcome. Repeatable.",
)
@click.option("--denied", is_flag=True, help="The same as --outcome denied.")
@click.option(
    "-t",
    "--topic",
    metavar="TOPIC",
    shell_complete=complete_topic,
    help="The audit topic [cordwood.audit.topic, or the only one there is].",
)
@json_option
@place_options
def tail(
    last: int | None,
    follow: bool,
    since_ms: int | None,
    principals: Sequence[str],
    events: Sequence[str],
    outcomes: Sequence[str],
    denied: bool,
    topic: str | None,
    as_json: bool,
    place: CommandTarget,
) -> None:
    """Show the end of the audit log: who did what with which answer.

    USER is a principal such as User:alice; alice is the same. On a data directory it reads beside a live
    server. With --json each record is a JSON object on a line.

    Example: cordwood audit tail --since 2h --denied
    """
    wanted = AuditFilter(
        frozenset(each if ":" in each else f"User:{each}" for each in principals),
        frozenset(events),
        frozenset([*outcomes, *([AuditOutcome.DENIED.value] if denied else [])]),
        since_ms,
    )
    if last is None and since_ms is None:
        last = _LAST
    with place.reading() as backend:
        name = topic or _audit_topic(backend.topic_names())
        _show(backend, name, wanted, last, follow=follow, as_json=as_json)


def _audit_topic(names: Sequence[str]) -> str:
    """Return the audit topic: the configured one, or the only one among *names*.

    Raises:
        CordwoodError: If there is none, or more than one.
    """
    configured = load_broker_config()[0].audit_topic
    found = [name for name in names if name.startswith(AUDIT_PREFIX)]
    if configured in found:
        return configured
    if not found:
        raise CordwoodError(_NONE_HERE)
    if len(found) > 1:
        raise CordwoodError(f"there are several audit topics, {', '.join(found)}; choose one with --topic")
    return found[0]


def _show(
    backend: Backend, topic: str, wanted: AuditFilter, last: int | None, *, follow: bool, as_json: bool
) -> None:
    """Print the last records that are *wanted*, then with *follow* those that come."""
    offsets = backend.offsets(topic)
    positions = {number: each.start for number, each in offsets.items()}
    if wanted.since_ms is not None:
        for number, each in offsets.items():
            # Records are appended after what they tell, so earlier ones are about earlier times.
            at = backend.offset_at(topic, number, wanted.since_ms)
            positions[number] = each.end if at is None else at
    elif last is not None and wanted == AuditFilter():
        positions = {number: max(each.start, each.end - last) for number, each in offsets.items()}
    lines = AuditLines()
    if not as_json and sys.stdout.isatty():
        click.echo(lines.heading())

    def show(record: AuditRecord | UnreadableAuditRecord) -> None:
        click.echo(audit_json(record) if as_json else lines.line(record))

    shown = _records(backend, topic, positions, wanted, to_end=True)
    for record in shown if last is None else deque(shown, maxlen=last):
        show(record)
    if follow:
        for record in _records(backend, topic, positions, wanted, to_end=False):
            show(record)


def _records(
    backend: Backend, topic: str, positions: dict[int, int], wanted: AuditFilter, *, to_end: bool
) -> Iterator[AuditRecord | UnreadableAuditRecord]:
    """Yield the *wanted* records from *positions* on, which move behind what was read."""
    starts: Mapping[int, int] = dict(positions)
    for chunk in backend.read(topic, starts, to_end=to_end):
        for (number, record), found in zip(chunk, read_audit(each for _, each in chunk), strict=True):
            positions[number] = record.offset + 1
            if wanted.selects(found):
                yield found
