"""Records of the audit log, read back."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from cordwood.broker.audit.event import SCHEMA_VERSION
from cordwood.records import Record


class AuditRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A record of the audit log; docs/audit.md explains each field.

    ``time`` is when the event happened first, in ISO 8601, UTC. Texts are what clients said: names may have
    any characters.
    """

    version: int
    time: str
    event: str
    outcome: str
    api: str
    org: int
    principal: str
    host: str
    listener: str
    client_id: str | None
    resource_type: str
    resource: str
    error: str | None
    details: Mapping[str, Any]
    count: int
    lost: int
    omitted: int = 0
    offset: int = -1

    @property
    def time_ms(self) -> int:
        """The time in milliseconds since the Unix epoch."""
        return _milliseconds(self.time)


class UnreadableAuditRecord(NamedTuple):
    """A record in an audit topic that is none of the audit log, and why."""

    offset: int
    reason: str


class AuditFilter(NamedTuple):
    """Selects records of any of these principals, events and outcomes, from a time on; empty is all."""

    principals: frozenset[str] = frozenset()
    events: frozenset[str] = frozenset()
    outcomes: frozenset[str] = frozenset()
    since_ms: int | None = None

    def selects(self, record: AuditRecord | UnreadableAuditRecord) -> bool:
        """Return whether *record* is selected. One that cannot be read is: it may be any."""
        if isinstance(record, UnreadableAuditRecord):
            return True
        return (
            (not self.principals or record.principal in self.principals)
            and (not self.events or record.event in self.events)
            and (not self.outcomes or record.outcome in self.outcomes)
            and (self.since_ms is None or record.time_ms >= self.since_ms)
        )


_DECODER = msgspec.json.Decoder(AuditRecord)


def read_audit(records: Iterable[Record]) -> Iterator[AuditRecord | UnreadableAuditRecord]:
    """Yield what the *records* of an audit topic say, in their order.

    A record that cannot be read is yielded as such: it is evidence as well. Fields that are not known are
    ignored.
    """
    for record in records:
        yield _read(record)


def _read(record: Record) -> AuditRecord | UnreadableAuditRecord:
    try:
        found = _DECODER.decode(record.value or b"")
        _milliseconds(found.time)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        return UnreadableAuditRecord(record.offset, f"it is no record of the audit log: {error}")
    if found.version != SCHEMA_VERSION:
        reason = f"its version is {found.version}, and this program reads {SCHEMA_VERSION}"
        return UnreadableAuditRecord(record.offset, reason)
    return msgspec.structs.replace(found, offset=record.offset)


def _milliseconds(time: str) -> int:
    """Return a time of the audit log in milliseconds. Raises ValueError."""
    moment = datetime.datetime.strptime(time, "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=datetime.UTC)
    return round(moment.timestamp() * 1000)
