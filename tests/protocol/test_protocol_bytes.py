"""Each message whole, cut short at every byte, with bytes after it, and with tags from the future."""

from __future__ import annotations

from typing import Any

import pytest
from protocol.definitions import Case, Plain, all_cases, default_of, kafka_fields, small_message
from protocol.plain import decoded, encoded, from_ours, to_ours, understood

from cordwood.errors import MalformedMessage, ProtocolError
from cordwood.protocol.apis import APIS, ApiKey

CASES = list(all_cases())
FLEXIBLE = [case for case in CASES if case.version >= APIS[case.key].flexible_from]
#: A tagged field that nobody knows: its tag, its size, its bytes.
UNKNOWN_TAG = b"\x63\x03abc"


def message_of(case: Case) -> Any:
    return to_ours(case, understood(case, small_message(case)))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_message_is_the_same_from_any_kind_of_buffer(case: Case) -> None:
    frame = encoded(case, message_of(case))
    expected = from_ours(case, decoded(case, frame))
    assert from_ours(case, decoded(case, bytearray(frame))) == expected
    assert from_ours(case, decoded(case, memoryview(frame))) == expected
    inside = memoryview(b"before" + frame + b"after")[6:-5]
    assert from_ours(case, decoded(case, inside)) == expected


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_message_cut_short_at_any_byte_is_refused(case: Case) -> None:
    frame = encoded(case, message_of(case))
    for kept in range(len(frame)):
        with pytest.raises(MalformedMessage) as refused:
            decoded(case, frame[:kept])
        assert 0 <= refused.value.position <= kept, f"{kept} of {len(frame)} bytes: {refused.value}"


def test_all_cuts_together_are_many() -> None:
    """The test above is worth what its messages are: they are neither empty nor all alike."""
    sizes = [len(encoded(case, message_of(case))) for case in CASES]
    print(f"{sum(sizes)} truncated frames of {len(sizes)} messages, the largest of {max(sizes)} bytes")
    assert sum(sizes) >= 20_000


@pytest.mark.parametrize("case", CASES, ids=str)
def test_bytes_after_the_end_of_a_message_change_nothing(case: Case) -> None:
    """Kafka ignores them, and librdkafka sends some after a Metadata request for all topics."""
    frame = encoded(case, message_of(case))
    for junk in (b"\0", b"\x01", frame):
        assert decoded(case, frame + junk) == decoded(case, frame)


def without_tags(plain: Plain, case: Case) -> Plain:
    """Return *plain* with nothing in its tagged fields, so that they are left out."""

    def strip(value: Any, fields: Any) -> Any:
        if isinstance(value, list):
            return [strip(each, fields) for each in value]
        if not isinstance(value, dict):
            return value
        by_name = {each.name: each for each in fields}
        return {
            name: strip(each, by_name[name].fields)
            if by_name[name].tag is None
            else default_of(by_name[name])
            for name, each in value.items()
        }

    stripped: Plain = strip(plain, kafka_fields(case.name))
    return stripped


def structs_in(value: Any, fields: Any) -> int:
    """Count the structs on the wire, each of which ends with its tagged fields."""
    if isinstance(value, list):
        return sum(structs_in(each, fields) for each in value)
    if not isinstance(value, dict):
        return 0
    by_name = {each.name: each for each in fields}
    plain_fields = {name: each for name, each in value.items() if by_name[name].tag is None}
    return 1 + sum(structs_in(each, by_name[name].fields) for name, each in plain_fields.items())


@pytest.mark.parametrize("case", FLEXIBLE, ids=str)
def test_an_unknown_tagged_field_is_skipped_in_every_struct_and_header(case: Case) -> None:
    """Put one wherever a zero byte may be the count of tagged fields: as many places take it as there are
    structs, plus the header where it is flexible, and the message still reads as it was."""
    plain = without_tags(understood(case, small_message(case)), case)
    frame = encoded(case, to_ours(case, plain))
    expected = from_ours(case, decoded(case, frame))
    taken = 0
    for position in (index for index, byte in enumerate(frame) if byte == 0):
        changed = frame[:position] + b"\x01" + UNKNOWN_TAG + frame[position + 1 :]
        try:
            taken += from_ours(case, decoded(case, changed)) == expected
        except (ProtocolError, AssertionError):
            continue
    api = APIS[case.key]
    flexible_header = case.direction == "request" or api.response_header_is_flexible(case.version)
    assert taken == structs_in(plain, kafka_fields(case.name)) + flexible_header


def test_only_the_headers_of_api_versions_responses_have_no_tags() -> None:
    inflexible = {
        case.key for case in FLEXIBLE if not APIS[case.key].response_header_is_flexible(case.version)
    }
    assert inflexible == {ApiKey.API_VERSIONS}
