"""The option ``-o``: the first record to read, in kcat's syntax."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, NamedTuple

import click

from cordwood.errors import CordwoodError, OffsetOutOfRange, UnknownTopic

if TYPE_CHECKING:
    from cordwood.cli.backends import Backend
    from cordwood.records import OffsetRange


class Start(NamedTuple):
    """The first record in every partition: an end, an offset, a count before the end, or a time."""

    kind: Literal["beginning", "end", "offset", "last", "time"]
    amount: int = 0


BEGINNING, END = Start("beginning"), Start("end")


_KINDS: tuple[tuple[Literal["offset", "last", "time"], str], ...] = (
    ("offset", r"(\d{1,19})"),
    ("last", r"-(\d{1,19})"),
    ("time", r"s@(\d{1,19})"),
)


def parse_start(context: click.Context, parameter: click.Parameter, text: str) -> Start:
    """Parse ``beginning``, ``end``, N, -N or ``s@MS``; a callback of click."""
    if text in ("beginning", "end"):
        return BEGINNING if text == "beginning" else END
    for kind, pattern in _KINDS:
        found = re.fullmatch(pattern, text, re.ASCII)
        if found is not None:
            return Start(kind, int(found[1]))
    raise click.BadParameter(
        f"{text}: expected beginning, end, N (an offset), -N (the last N) or s@MS (a time in milliseconds)."
    )


def chosen(backend: Backend, topic: str, partition: int | None) -> dict[int, OffsetRange]:
    """Return the offsets of one partition, or of all.

    Raises:
        UnknownTopic: If the topic or partition does not exist.
    """
    offsets = backend.offsets(topic)
    if partition is None:
        return offsets
    if partition not in offsets:
        raise UnknownTopic(f"topic {topic} has partitions 0 to {len(offsets) - 1}, not {partition}")
    return {partition: offsets[partition]}


def starts(backend: Backend, topic: str, offsets: Mapping[int, OffsetRange], start: Start) -> dict[int, int]:
    """Return the offset of *start* in each partition of *offsets*.

    Raises:
        CordwoodError: If the offset does not exist; names the partition and both bounds.
    """
    found = {}
    for partition, (low, end) in ((number, (each.start, each.end)) for number, each in offsets.items()):
        match start.kind:
            case "beginning":
                found[partition] = low
            case "end":
                found[partition] = end
            case "last":
                found[partition] = max(low, end - start.amount)
            case "time":
                at = backend.offset_at(topic, partition, start.amount)
                found[partition] = end if at is None else at
            case "offset":
                if not low <= start.amount <= end:
                    error = OffsetOutOfRange(start.amount, low, end)
                    raise CordwoodError(
                        f"partition {partition} of topic {topic}: {error}, its first offset and its end; "
                        "use one of these, beginning, end, or -N for the last N"
                    ) from error
                found[partition] = start.amount
    return found
