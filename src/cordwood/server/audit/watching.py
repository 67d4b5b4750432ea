"""Requests and their responses, looked at for events of the audit log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec

from cordwood.broker import Tenant
from cordwood.broker.audit import AuditEvent, AuditKind, AuditOutcome
from cordwood.protocol import NULL_ID, ApiKey, ErrorCode, failing
from cordwood.server.audit.audit import Audit
from cordwood.server.audit.changes import CHANGES, find_changes
from cordwood.server.connections import Exchange, Prepared

#: The error codes of denied requests, and the resource that each speaks of.
DENIED_CODES = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "topic",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "group",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "cluster",
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "transactional_id",
    ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED: "delegation_token",
}
#: Fields that name a resource, in requests and responses, with its type; empty if others say what it is.
_NAMES = {
    "name": "topic",
    "topic": "topic",
    "topic_name": "topic",
    "group_id": "group",
    "transactional_id": "transactional_id",
    "v3_and_below_transactional_id": "transactional_id",
    "resource_name": "",
    "key": "",
}
#: Fields that hold an error code.
_CODES = ("error_code", "partition_error_code")
_NOT_RECORDED = "the audit log cannot be written, and cordwood.audit.required is true"
_UNRECORDED = "done, but the audit log could not record it, and cordwood.audit.required is true"


class _DeniedPart(NamedTuple):
    """A part of a response that says that the client has no right."""

    code: int
    name: str


#: The fields of each class of messages that hold an error code, and its others. A few hundred classes.
_shapes: dict[type[Any], tuple[Sequence[str], Sequence[str]]] = {}


def _shape(message: type[Any]) -> tuple[Sequence[str], Sequence[str]]:
    found = _shapes.get(message)
    if found is None:
        fields: Sequence[str] = message.__struct_fields__
        codes = [each for each in fields if each in _CODES]
        found = _shapes[message] = codes, [each for each in fields if each not in _CODES]
    return found


def _denies(part: Any) -> bool:
    """Return whether *part* of a response says that the client has no right. Most responses do not."""
    codes, others = _shape(type(part))
    for field in codes:
        if getattr(part, field) in DENIED_CODES:
            return True
    for field in others:
        value = getattr(part, field)
        if type(value) is list and value and isinstance(value[0], msgspec.Struct):
            for each in value:
                if _denies(each):
                    return True
    return False


#: The most characters of the names of topics that one request subscribes to.
_SUBSCRIBED_MAX = 1000


class RequestWatch:
    """Notes denied requests and changes of the clients of one org. On the loop only.

    A request is watched if its client may be denied something (*authorized*), or if it changes something.
    """

    def __init__(self, audit: Audit, tenant: Tenant) -> None:
        self._audit = audit
        self._tenant = tenant

    def refusal(self, exchange: Exchange) -> Any:
        """Return the response to a change that must be refused because it could not be recorded, or None."""
        request = exchange.request
        if request.api_key not in CHANGES or not self._audit.refuses_changes:
            return None
        return failing.failed_response(request, ErrorCode.KAFKA_STORAGE_ERROR, _NOT_RECORDED)

    def begin(self, exchange: Exchange, *, authorized: bool) -> None:
        """Look at the response of *exchange* once there is one."""
        if authorized or exchange.request.api_key in CHANGES:
            exchange.on_answer = partial(self._answered, exchange)

    async def recorded(self, exchange: Exchange, answer: Any) -> Any:
        """Return the answer to send, once the records of a change are durable where that is required.

        It is *answer*, or an error if they could not be stored: the change is made, but may not be answered
        as one that is on record.
        """
        if not self._audit.required or exchange.request.api_key not in CHANGES or await self._audit.stored():
            return answer
        return failing.failed_response(exchange.request, ErrorCode.KAFKA_STORAGE_ERROR, _UNRECORDED)

    async def created(self, exchange: Exchange, topics: Sequence[str]) -> bool:
        """Note that *topics* were created because a request named them; return whether it may say so."""
        for topic in topics:
            details = {"automatically": True}
            self._note(exchange, AuditKind.CHANGE, ErrorCode.NONE, "topic", topic, details)
        return not self._audit.required or await self._audit.stored()

    def _answered(self, exchange: Exchange, body: Any) -> None:
        if body is None or isinstance(body, Prepared):
            return
        changes = find_changes(exchange.request, body)
        if changes is not None:
            for kind, name, code, details in changes:
                if not name and "topic_id" in details:
                    # The client is not told the name of a topic that it may not see; the audit log is.
                    found = self._tenant.find_by_id(bytes.fromhex(details["topic_id"]))
                    name = "" if found is None else found.name
                self._note(exchange, AuditKind.CHANGE, code, kind, name, details)
            return
        if not _denies(body):
            return
        for denied in dict.fromkeys(self._denied(body, self._names_in(exchange.request.body))):
            kind = DENIED_CODES[ErrorCode(denied.code)]
            self._note(exchange, AuditKind.DENIED, denied.code, kind, denied.name, {})

    def _denied(self, part: Any, names: Mapping[str, str]) -> Iterator[_DeniedPart]:
        """Yield what *part* of a response denies, each with the name of the nearest resource of its type.

        *names* are those around *part*, by type.
        """
        names = {**names, **self._names_in(part)}
        codes, others = _shape(type(part))
        for field in codes:
            code = getattr(part, field)
            if code in DENIED_CODES:
                kind = DENIED_CODES[ErrorCode(code)]
                yield _DeniedPart(code, "" if kind == "cluster" else names.get(kind) or names.get("", ""))
        for field in others:
            value = getattr(part, field)
            if isinstance(value, list) and value and isinstance(value[0], msgspec.Struct):
                for each in value:
                    yield from self._denied(each, names)

    def _names_in(self, part: Any) -> dict[str, str]:
        """Return the names of the resources that *part* of a message is about, by their types."""
        names = {}
        topic_id = getattr(part, "topic_id", NULL_ID)
        found = None if topic_id == NULL_ID else self._tenant.find_by_id(topic_id)
        if found is not None:
            names["topic"] = found.name
        subscribed = getattr(part, "subscribed_topic_names", None)
        if subscribed:
            # One error is for all of them.
            names["topic"] = ",".join(subscribed)[:_SUBSCRIBED_MAX]
        for field, kind in _NAMES.items():
            value = getattr(part, field, None)
            if value and isinstance(value, str):
                names[kind] = value
        return names

    def _note(
        self,
        exchange: Exchange,
        event: AuditKind,
        code: int,
        kind: str,
        name: str,
        details: Mapping[str, Any],
    ) -> None:
        outcome = AuditOutcome.OK
        if code:
            outcome = AuditOutcome.DENIED if code in DENIED_CODES else AuditOutcome.FAILED
        self._audit.note(
            AuditEvent(
                event=AuditKind.DENIED if outcome is AuditOutcome.DENIED else event,
                outcome=outcome,
                api=api_name(exchange.request.api_key),
                org=self._tenant.org,
                principal=str(exchange.principal),
                host=exchange.peer.removeprefix("/"),
                listener=exchange.local.name,
                client_id=exchange.request.client_id,
                resource_type=kind,
                resource=name,
                error=error_name(code) if code else None,
                details=details,
            )
        )


def api_name(api_key: ApiKey) -> str:
    """Return Kafka's name of an API, such as ``CreateTopics``."""
    return api_key.name.title().replace("_", "")


def error_name(code: int) -> str:
    """Return the name of an error code; the number if it has none."""
    return ErrorCode(code).name if code in set(ErrorCode) else str(code)
