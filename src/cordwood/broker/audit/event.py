"""Events of the audit log and their bytes. An event never has a secret or the content of a record."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import msgspec

#: How the names of audit topics begin. Clients may read but not write them, whatever is configured.
AUDIT_PREFIX = "__audit"
#: The version of the records; a reader ignores fields that it does not know.
SCHEMA_VERSION = 1
#: The longest text of a client in a record, in characters.
TEXT_MAX = 256
#: The largest encoded details, in bytes: more than all settings take, each shortened. Larger ones are left
#: out, and the record says so.
DETAILS_MAX = 16 << 10


class AuditKind(StrEnum):
    """What an event is about."""

    AUTHENTICATION = "authentication"
    CHANGE = "change"
    DENIED = "denied"
    BROKER = "broker"


class AuditOutcome(StrEnum):
    """How it ended: done, refused for lack of rights or of identity, or failed for another reason."""

    OK = "ok"
    DENIED = "denied"
    FAILED = "failed"


class AuditEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened. ``error`` is the name of Kafka's error code; None with the outcome ``ok``.

    ``details`` has plain JSON values. The caller must not put a password, a key, a token or the content of a
    record into any field.
    """

    event: AuditKind
    outcome: AuditOutcome
    api: str
    org: int = 0
    principal: str = ""
    host: str = ""
    listener: str = ""
    client_id: str | None = None
    resource_type: str = ""
    resource: str = ""
    error: str | None = None
    details: Mapping[str, Any] = {}

    @property
    def may_repeat(self) -> bool:
        """Whether it changed nothing, so that clients without rights can cause any number of such events."""
        return self.outcome is not AuditOutcome.OK

    def bounded(self) -> AuditEvent:
        """Return the event with long texts of a client shortened."""
        # Each text by itself: padding in one, such as zeros before a number, must not hide the others.
        details = _shortened_texts(self.details)
        if len(msgspec.json.encode(details)) > DETAILS_MAX:
            details = {"left_out": True}
        return msgspec.structs.replace(
            self,
            principal=shortened_text(self.principal),
            client_id=None if self.client_id is None else shortened_text(self.client_id),
            resource=shortened_text(self.resource),
            details=details,
        )


def shortened_text(text: str) -> str:
    """Return *text*, shortened to ``TEXT_MAX`` characters."""
    return text if len(text) <= TEXT_MAX else f"{text[: TEXT_MAX - 1]}…"


def _shortened_texts(value: Any) -> Any:
    """Return JSON values with the middle of long texts left out: what counts may be at either end."""
    if isinstance(value, str) and len(value) > TEXT_MAX:
        return f"{value[: TEXT_MAX // 2]}…{value[1 - TEXT_MAX // 2 :]}"
    if isinstance(value, Mapping):
        return {_shortened_texts(name): _shortened_texts(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_shortened_texts(each) for each in value]
    return value


class AuditRow(msgspec.Struct, kw_only=True):
    """An event that waits for its append: when it first happened and how often.

    ``omitted`` is the number of other events of the same client that were left out in that time.
    """

    happened: AuditEvent
    time_ms: int
    count: int = 1
    omitted: int = 0

    def encode(self, lost: int) -> bytes:
        """Return the value of the record. *lost* is the number of events that were lost before it."""
        event = self.happened
        fields = {
            "version": SCHEMA_VERSION,
            "time": iso_time(self.time_ms),
            "event": event.event.value,
            "org": event.org,
            "principal": event.principal,
            "host": event.host,
            "listener": event.listener,
            "client_id": event.client_id,
            "api": event.api,
            "resource_type": event.resource_type,
            "resource": event.resource,
            "outcome": event.outcome.value,
            "error": event.error,
            "details": event.details,
            "count": self.count,
            "omitted": self.omitted,
            "lost": lost,
        }
        return msgspec.json.encode(fields)


def iso_time(time_ms: int) -> str:
    """Return milliseconds since the Unix epoch in ISO 8601, UTC."""
    moment = datetime.datetime.fromtimestamp(time_ms / 1000, datetime.UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
