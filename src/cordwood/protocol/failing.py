"""Responses that report one error for everything a request names, for any API."""

from __future__ import annotations

from typing import Any

import msgspec

from cordwood.protocol.apis import APIS, ApiKey, Request, decode_response
from cordwood.protocol.error_codes import ErrorCode
from cordwood.protocol.schema import Array, Struct, every_field

#: The responses of these APIs list what exists, not what was asked: make one as usual, then mark it.
TO_MARK = frozenset({ApiKey.METADATA, ApiKey.DESCRIBE_LOG_DIRS})
#: Fields that name a thing: the response repeats them.
_NAMING = frozenset(
    {
        "feature",
        "group_id",
        "group_instance_id",
        "index",
        "key",
        "member_id",
        "name",
        "partition",
        "partition_id",
        "partition_index",
        "producer_id",
        "resource_name",
        "resource_type",
        "topic",
        "topic_id",
        "topic_name",
        "transactional_id",
    }
)
#: Fields that hold an error.
_CODES = ("error_code", "partition_error_code")
#: Lists of requests that do not say what to answer.
_NOT_ANSWERED = frozenset({"assignments", "configs", "configuration_keys", "forgotten", "replicas"})
#: In these responses an error of the whole request is another thing than one of each partition or topic.
_EACH_OR_WHOLE = frozenset({ApiKey.FETCH, ApiKey.METADATA})


def failed_response(request: Request, code: ErrorCode, sentence: str) -> Any:
    """Return the response to *request* with *code* for everything it names, and for the whole of it."""
    body, below = _mirrored(APIS[request.api_key].response.message, request.body, code, sentence)
    return _whole(request, body, below)


def mark_failed(request: Request, body: Any, code: ErrorCode) -> Any:
    """Return *body*, a response to *request*, with *code* in every place."""
    return _whole(request, body, _mark(body, code))


def decode_prepared(request: Request, frame: bytes) -> Any:
    """Return the body of an encoded response to *request*; *frame* begins with its length."""
    return decode_response(request.api_key, request.api_version, frame[4:]).body


def _whole(request: Request, body: Any, below: int) -> Any:
    if below and request.api_key in _EACH_OR_WHOLE:
        body.error_code = ErrorCode.NONE
    return body


def _mark(body: Any, code: ErrorCode) -> int:
    """Set *code* in *body* and below; return the number of errors below."""
    below = 0
    for field in _failing_lists(type(body)):
        for each in getattr(body, field) or ():
            below += 1 + _mark(each, code)
    for field in _CODES:
        if hasattr(body, field):
            setattr(body, field, code)
    return below


def _mirrored(kind: type[Any], asked: Any, code: ErrorCode, sentence: str) -> tuple[Any, int]:
    """Return a message of *kind* with *code* and an element for each of *asked*; and the number of those.

    *asked* is a part of the request: a message, or the plain name or number of a thing.
    """
    body, below = kind(), 0
    for field in body.__struct_fields__:
        if field in _CODES:
            setattr(body, field, code)
        elif field == "error_message":
            body.error_message = sentence
        elif field in _NAMING and hasattr(asked, field):
            setattr(body, field, getattr(asked, field))
    if not isinstance(asked, msgspec.Struct):
        setattr(body, next(each for each in body.__struct_fields__ if each in _NAMING), asked)
        return body, 0
    for field, element in _failing_lists(kind).items():
        elements = [_mirrored(element, each, code, sentence) for each in _asked_for(asked, field)]
        setattr(body, field, [each for each, _ in elements])
        below += sum(1 + more for _, more in elements)
    return body, below


def _asked_for(asked: Any, field: str) -> list[Any]:
    """Return the list of *asked* that the list *field* of its response answers, element by element."""
    lists = {each: getattr(asked, each) for each in asked.__struct_fields__ if each not in _NOT_ANSWERED}
    given: dict[str, list[Any]] = {each: value for each, value in lists.items() if isinstance(value, list)}
    if field in given:
        return given[field]
    return next((value for value in given.values() if value), [])


def _failing_lists(kind: type[Any]) -> dict[str, type[Any]]:
    """Return the lists of a response whose elements have errors, and the class of the elements."""
    found = {}
    for field in every_field(kind):
        if isinstance(field.type, Array) and isinstance(field.type.element, Struct):
            element = field.type.element.message
            if not set(_CODES).isdisjoint(element.__struct_fields__) or _failing_lists(element):
                found[field.name] = element
    return found
