"""Histories: what clients asked for and what they were told, in one order, in memory or as lines of a file.

A history is a sequence of `Event`. An operation has two: its invocation, noted before the client begins it,
and its completion, noted after the client was told its outcome. One that has no completion ended unknown.
Times are of the system's monotonic clock, which all processes of one machine share (in Java it is
``System.nanoTime()``), so the histories of several processes can be merged.

==================  ==============================================  ============================
Operation           Invocation has                                  Completion ``ok`` has
==================  ==============================================  ============================
``send``            topic, partition, value, transaction, source    offset, None if not told
``begin``           (nothing; it is one event)                      transactional id
``init``            transactional id                                (nothing)
``commit``          transaction                                     (nothing)
``abort``           transaction                                     (nothing)
``assign``          positions the reader goes on from               (nothing)
``poll``            isolation                                       records
``scan``            topic, partition, isolation, final              start, end, records
``watermark``       topic, partition, isolation                     start, end
``commit_offsets``  group, transaction, offsets                     (nothing)
``fetch_offsets``   group, isolation                                offsets
``problem``         (nothing)                                       text
==================  ==============================================  ============================
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal, NamedTuple

INVOKE, OK, FAILED, UNKNOWN = "invoke", "ok", "failed", "unknown"
Outcome = Literal["ok", "failed", "unknown"]
READ_COMMITTED, READ_UNCOMMITTED = "read_committed", "read_uncommitted"
Place = tuple[str, int, int]
Partition = tuple[str, int]


class Event(NamedTuple):
    """The invocation or the completion of an operation of one client.

    *number* is the operation's, unique for its client. ``failed`` means that it certainly had no effect.
    """

    time_ns: int
    client: str
    number: int
    phase: str
    what: str
    data: Any


class Sending(NamedTuple):
    """The invocation of a send. Each value is sent by one send in a whole history.

    *transaction* is the number of its ``begin``, by the same client. *source* is the value that this one was
    made from, by a client that reads, transforms and writes.
    """

    topic: str
    partition: int
    value: str
    transaction: int | None = None
    source: str | None = None


class Read(NamedTuple):
    """A record as a reader was given it. *content* is what else must never change, such as its timestamp."""

    topic: str
    partition: int
    offset: int
    value: str
    content: int = -1


class Scanning(NamedTuple):
    """The invocation of a read of one partition from its start to its end.

    *final* says that no transaction was open any more and none will begin.
    """

    topic: str
    partition: int
    isolation: str
    final: bool = False


class Scanned(NamedTuple):
    """All that is in a partition from *start* up to *end*, which is where it ends for this isolation."""

    start: int
    end: int
    records: tuple[Read, ...]


class Watching(NamedTuple):
    """The invocation of a request that also answers where a partition ends."""

    topic: str
    partition: int
    isolation: str = READ_UNCOMMITTED


class Bounds(NamedTuple):
    """Where a partition starts and ends for a reader; start is -1 if the reader was not told."""

    start: int
    end: int


class Committing(NamedTuple):
    """The invocation of a commit of offsets, which counts at once or with its transaction."""

    group: str
    transaction: int | None
    offsets: tuple[tuple[str, int, int], ...]


class Fetching(NamedTuple):
    """The invocation of a request for the offsets of a group; READ_COMMITTED waits for pending ones."""

    group: str
    isolation: str = READ_UNCOMMITTED


def merge(*histories: Iterable[Event]) -> list[Event]:
    """Return the events of all histories by time.

    Where a completion and an invocation have one time, the invocation comes first: the two operations then
    count as concurrent, and nothing is concluded from their order.
    """
    together = [event for history in histories for event in history]
    together.sort(key=lambda event: event.phase != INVOKE)
    together.sort(key=itemgetter(0))
    return together


# --- as lines -----------------------------------------------------------------------------------------

_INVOKED = {"send": Sending, "scan": Scanning, "watermark": Watching, "fetch_offsets": Fetching}


class BadLine(ValueError):
    """A line that is no event."""


def write_lines(history: Iterable[Event], path: Path) -> None:
    """Write a history as one JSON array a line: the fields of `Event`, named tuples as arrays."""
    with path.open("w") as file:
        file.writelines(json.dumps(event) + "\n" for event in history)


def read_lines(path: Path) -> list[Event]:
    """Return the history in a file, which any program may have written.

    A last line without its end is dropped: the program was killed while it wrote it.

    Raises:
        BadLine: If another line is no event.
    """
    return list(_parse(path))


def _parse(path: Path) -> Iterator[Event]:
    with path.open() as file:
        for number, line in enumerate(file, 1):
            if not line.endswith("\n"):
                return
            try:
                time_ns, client, operation, phase, what, data = json.loads(line)
                yield Event(time_ns, client, operation, phase, what, _typed(what, phase, data))
            except (TypeError, ValueError, KeyError) as error:
                raise BadLine(f"{path}:{number}: expected an event, found {line[:100]!r}") from error


def _typed(what: str, phase: str, data: Any) -> Any:
    if phase == INVOKE:
        if what == "commit_offsets":
            group, transaction, offsets = data
            return Committing(group, transaction, _triples(offsets))
        if what == "assign":
            return _triples(data)
        return _INVOKED[what](*data) if what in _INVOKED else data
    if phase == OK:
        if what == "poll":
            return tuple(Read(*record) for record in data)
        if what == "scan":
            start, end, records = data
            return Scanned(start, end, tuple(Read(*record) for record in records))
        if what == "watermark":
            return Bounds(*data)
        if what == "fetch_offsets":
            return _triples(data)
    return data


def _triples(rows: Iterable[Iterable[Any]]) -> tuple[tuple[str, int, int], ...]:
    return tuple((topic, partition, offset) for topic, partition, offset in rows)
