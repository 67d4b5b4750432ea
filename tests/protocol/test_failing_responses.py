"""A response that reports an error, for every API and version."""

from __future__ import annotations

from typing import Any

import msgspec

from cordwood.protocol import (
    ApiKey,
    ErrorCode,
    Request,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    failing,
)
from cordwood.protocol.apis import APIS
from cordwood.protocol.schema import Array, Sized, Struct, fields_of

CODE = ErrorCode.COORDINATOR_NOT_AVAILABLE


def filled(kind: type[Any], version: int) -> Any:
    """Return a message with two elements in each list."""
    made = kind()
    for field in fields_of(kind, version):
        if isinstance(field.type, Array):
            element = field.type.element
            if isinstance(element, Struct):
                value: list[Any] = [filled(element.message, version) for _ in range(2)]
            else:
                value = ["x", "y"] if isinstance(element, Sized) else [5, 6]
            setattr(made, field.name, value)
    return made


def errors_of(body: Any) -> list[int]:
    """Return all error codes in a message."""
    found = [getattr(body, name) for name in body.__struct_fields__ if name.endswith("error_code")]
    for name in body.__struct_fields__:
        value = getattr(body, name)
        for each in value if isinstance(value, list) else []:
            found += errors_of(each) if isinstance(each, msgspec.Struct) else []
    return found


def joined(buffers: list[Any]) -> bytes:
    return b"".join(map(bytes, buffers))


def test_every_version_of_every_response_reports_the_error_to_its_client() -> None:
    checked = 0
    for api in APIS.values():
        if api.key in failing.TO_MARK:
            continue
        for version in range(api.versions.first, api.versions.last + 1):
            frame = joined(encode_request(api.key, version, 1, None, filled(api.request.message, version)))
            request = decode_request(frame[4:])
            body = failing.failed_response(request, CODE, "because")
            sent = joined(encode_response(api.key, version, 1, body))
            received = decode_response(api.key, version, sent[4:]).body
            assert CODE in errors_of(received), f"{api.key.name} {version}"
            checked += 1
    print(f"{checked} versions of {len(APIS) - len(failing.TO_MARK)} APIs checked")
    assert checked > 150


def test_every_partition_of_a_produce_request_gets_the_error_under_its_own_name() -> None:
    api = APIS[ApiKey.PRODUCE]
    asked = filled(api.request.message, 9)
    for number, topic in enumerate(asked.topics):
        topic.name = f"t{number}"
        for index, partition in enumerate(topic.partitions):
            partition.index = index
    body = failing.failed_response(Request(ApiKey.PRODUCE, 9, 1, None, asked), CODE, "because")
    answered = [
        (topic.name, part.index, part.error_code, part.error_message, part.base_offset)
        for topic in body.topics
        for part in topic.partitions
    ]
    assert answered == [(f"t{n}", i, CODE, "because", -1) for n in range(2) for i in range(2)]


def test_a_fetch_reports_the_error_of_partitions_and_of_the_session_only_without_any() -> None:
    """Clients take an error of the whole response for one of their session."""
    kind = APIS[ApiKey.FETCH].request.message
    body = failing.failed_response(Request(ApiKey.FETCH, 12, 1, None, filled(kind, 12)), CODE, "")
    assert (body.error_code, errors_of(body)[1:]) == (ErrorCode.NONE, [CODE] * 4)
    assert failing.failed_response(Request(ApiKey.FETCH, 12, 1, None, kind()), CODE, "").error_code == CODE
