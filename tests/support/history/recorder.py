"""A recorder of what clients do: each notes its operations, from any thread, and all give one history.

    recorder = Recorder()
    client = recorder.client("producer")
    sending = client.send("topic", 0, "producer:1")     # before it is sent
    sending.ok(offset)                                  # after it was acknowledged; or failed(), unknown()

The order of the events is that of the calls, so a call must come before, or after, what it speaks of.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from time import monotonic_ns
from typing import Any, Protocol

from support.history.operations import (
    FAILED,
    INVOKE,
    OK,
    READ_UNCOMMITTED,
    UNKNOWN,
    Bounds,
    Committing,
    Event,
    Fetching,
    Read,
    Scanned,
    Scanning,
    Sending,
    Watching,
    merge,
    read_lines,
)


class Events(Protocol):
    """Where events go, in the order of the calls, from any thread."""

    def append(self, event: Event, /) -> None:
        """Add an event."""


class EventFile:
    """A file of events, one a line, for a process that is killed: what was added before is there."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def append(self, event: Event, /) -> None:
        """Write an event with one system call, which no other thread can come between."""
        os.write(self._descriptor, json.dumps(event).encode() + b"\n")


class Operation:
    """An operation that was invoked; exactly one of its methods says how it ended."""

    __slots__ = ("_client", "number", "what")

    def __init__(self, client: ClientRecord, number: int, what: str) -> None:
        self._client = client
        self.number = number
        self.what = what

    def ok(self, data: Any = None) -> None:
        """Note that it was done, and what was answered."""
        self._client.note(self.number, OK, self.what, data)
        self._client.succeeded[self.what] = self._client.succeeded.get(self.what, 0) + 1

    def failed(self, why: object = "") -> None:
        """Note that it was refused and has no effect, now or later."""
        self._client.note(self.number, FAILED, self.what, str(why))

    def unknown(self, why: object = "") -> None:
        """Note that nothing is known of its effect: it timed out, or the connection broke."""
        self._client.note(self.number, UNKNOWN, self.what, str(why))


class ClientRecord:
    """What one client does. Its operations may overlap; `begin` gives a transaction its number."""

    def __init__(self, name: str, events: Events) -> None:
        self.name = name
        self._events = events
        self._numbers = itertools.count()
        #: How many operations of each kind were answered with success.
        self.succeeded: dict[str, int] = {}

    def note(self, number: int, phase: str, what: str, data: Any) -> None:
        """Append one event. That is atomic, so no lock is needed."""
        self._events.append(Event(monotonic_ns(), self.name, number, phase, what, data))

    def _invoke(self, what: str, data: Any) -> Operation:
        number = next(self._numbers)
        self.note(number, INVOKE, what, data)
        return Operation(self, number, what)

    def send(
        self,
        topic: str,
        partition: int,
        value: str,
        transaction: int | None = None,
        source: str | None = None,
    ) -> Operation:
        """Note that *value* is about to be sent; `Operation.ok` takes its offset, None if it is not told."""
        return self._invoke("send", Sending(topic, partition, value, transaction, source))

    def init(self, transactional_id: str) -> Operation:
        """Note that this client is about to take over a transactional id from all others."""
        return self._invoke("init", transactional_id)

    def begin(self, transactional_id: str = "") -> int:
        """Note that a transaction begins; return its number. Nothing is asked of a server for that."""
        number = next(self._numbers)
        self.note(number, OK, "begin", transactional_id)
        return number

    def commit(self, transaction: int) -> Operation:
        """Note that a transaction is about to be committed."""
        return self._invoke("commit", transaction)

    def abort(self, transaction: int) -> Operation:
        """Note that a transaction is about to be aborted."""
        return self._invoke("abort", transaction)

    def assign(self, positions: Iterable[tuple[str, int, int]]) -> None:
        """Note that this reader goes on from these (topic, partition, offset), and reads no others."""
        self.note(next(self._numbers), INVOKE, "assign", tuple(positions))

    def poll(self, isolation: str = READ_UNCOMMITTED) -> Operation:
        """Note that records are about to be asked for; `Operation.ok` takes a tuple of `Read`, in order."""
        return self._invoke("poll", isolation)

    def scan(self, topic: str, partition: int, isolation: str, *, final: bool = False) -> Operation:
        """Note that a whole partition is about to be read; `Operation.ok` takes `Scanned`."""
        return self._invoke("scan", Scanning(topic, partition, isolation, final))

    def watermark(self, topic: str, partition: int, isolation: str = READ_UNCOMMITTED) -> Operation:
        """Note that the end of a partition is about to be asked for; `Operation.ok` takes `Bounds`."""
        return self._invoke("watermark", Watching(topic, partition, isolation))

    def commit_offsets(
        self, group: str, offsets: Mapping[tuple[str, int], int], transaction: int | None = None
    ) -> Operation:
        """Note that offsets of a group are about to be committed, by themselves or in a transaction."""
        rows = tuple((topic, partition, offset) for (topic, partition), offset in offsets.items())
        return self._invoke("commit_offsets", Committing(group, transaction, rows))

    def fetch_offsets(self, group: str, isolation: str = READ_UNCOMMITTED) -> Fetched:
        """Note that the offsets of a group are about to be asked for."""
        return Fetched(self._invoke("fetch_offsets", Fetching(group, isolation)))

    def problem(self, text: str) -> None:
        """Note something that must not happen to a client."""
        self.note(next(self._numbers), OK, "problem", text)

    def accepted(self, what: str = "send") -> int:
        """Return how many operations of a kind were answered with success."""
        return self.succeeded.get(what, 0)


class Fetched:
    """A request for the offsets of a group that was invoked."""

    def __init__(self, operation: Operation) -> None:
        self._operation = operation

    def ok(self, offsets: Mapping[tuple[str, int], int]) -> None:
        """Note the answer; -1 says that none is committed."""
        self._operation.ok(tuple((*place, offset) for place, offset in offsets.items()))

    def unknown(self, why: object = "") -> None:
        """Note that there was no answer."""
        self._operation.unknown(why)


class Recorder:
    """The history of many clients."""

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._files: list[Path] = []

    def client(self, name: str) -> ClientRecord:
        """Return where the client *name*, which no other has, notes what it does."""
        return ClientRecord(name, self._events)

    def add_file(self, path: Path) -> None:
        """Count the lines that another process writes to *path* in."""
        self._files.append(path)

    def history(self) -> list[Event]:
        """Return everything up to now, in order."""
        events = list(self._events)
        return merge(events, *(read_lines(path) for path in self._files)) if self._files else events


__all__ = ["Bounds", "ClientRecord", "EventFile", "Fetched", "Operation", "Read", "Recorder", "Scanned"]
