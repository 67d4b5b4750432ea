"""The compiler of declarations: each way a field can lie is refused, each way it can vary is read."""

from __future__ import annotations

from typing import Any

import pytest

from cordwood.errors import MalformedMessage
from cordwood.protocol.codec import Compiled
from cordwood.protocol.decoding import smallest_size
from cordwood.protocol.schema import (
    Struct,
    Versions,
    array,
    boolean,
    int16,
    int32,
    int64,
    message,
    opaque,
    string,
    struct,
    uuid,
)
from cordwood.protocol.wire import NULL_ID, malformed, read_varint, skip_tags, varint


@message
class Inner:
    name: str = string("0+")
    number: int = int32("1+", default=-1)


@message
class Labelled:
    label: str = string("2+", tag=0)
    inners: list[Inner] = array(Inner, "2+", tag=2)


@message
class Outer:
    flag: bool = boolean("0+")
    text: str | None = string("0+", nullable="1+")
    data: bytes | None = opaque("0+", nullable="0+", default=None)
    numbers: list[int] = array(int64, "0+")
    ids: list[bytes] = array(uuid, "2+")
    inners: list[Inner] | None = array(Inner, "0+", nullable="2+")
    maybe: Inner | None = struct(Inner, "2+", nullable="2+")
    small: int = int16("2+", default=7, tag=1)
    many: list[Inner] = array(Inner, "2+", tag=3)
    one: Inner = struct(Inner, "3+", tag=5)
    labelled: list[Labelled] = array(Labelled, "3+", tag=6)


CODEC = Compiled(Outer, flexible_from=2)


def encode(value: Outer, version: int) -> bytes:
    (frame,) = CODEC.encoder(version)(value)
    return bytes(frame)


def decode(frame: bytes, version: int) -> Any:
    return CODEC.decoder(version)(frame, 0)


def test_version_ranges_read_as_kafka_writes_them() -> None:
    assert Versions.parse("3+") == Versions(3, 0x7FFF)
    assert Versions.parse("0-5") == Versions(0, 5)
    assert Versions.parse("7") == Versions(7, 7)
    assert [version for version in range(6) if version in Versions.parse("2-4")] == [2, 3, 4]
    assert [str(Versions.parse(text)) for text in ("3+", "0-5")] == ["3+", "0-5"]


def test_a_message_starts_with_the_defaults_of_its_declaration_and_shares_none() -> None:
    first, second = Outer(), Outer()
    assert (first.flag, first.text, first.data, first.maybe, first.small) == (False, "", None, None, 7)
    assert first.one == Inner(name="", number=-1)
    assert first == second
    first.numbers.append(1)
    first.one.name = "changed"
    assert second.numbers == []
    assert second.one.name == ""
    with pytest.raises(AttributeError):
        first.nonsense = 1  # type: ignore[attr-defined]


@pytest.mark.parametrize("version", range(4))
def test_a_decoded_message_shares_no_default_with_the_next(version: int) -> None:
    frame = encode(Outer(), version)
    first, second = decode(frame, version), decode(frame, version)
    first.numbers.append(1)
    first.many.append(Inner())
    first.one.name = "changed"
    assert second == Outer()


def test_tagged_fields_are_written_only_when_they_say_something() -> None:
    assert encode(Outer(), 3).endswith(b"\xff\0")
    labels = [Labelled(), Labelled(label="a", inners=[Inner(name="b"), Inner()])]
    full = Outer(small=8, many=[Inner(name="x")], one=Inner(number=4), labelled=labels)
    assert decode(encode(full, 3), 3) == full
    frame = encode(Outer(small=8), 3)
    assert frame.endswith(b"\x01" + b"\x01\x02\x00\x08")


def tagged(*fields: bytes) -> bytes:
    """Return a message of version 3 with these tagged fields."""
    return encode(Outer(), 3)[:-1] + varint(len(fields)) + b"".join(fields)


SMALL = b"\x01\x02\x00\x08"
UNKNOWN = b"\x02\x01?"
MANY = b"\x03\x01\x01"


def test_known_and_unknown_tagged_fields_may_alternate() -> None:
    assert decode(tagged(SMALL, UNKNOWN, MANY, b"\x7f\x00"), 3) == Outer(small=8)


@pytest.mark.parametrize(
    "fields",
    [
        (SMALL, SMALL),
        (UNKNOWN, SMALL),
        (UNKNOWN, UNKNOWN),
        (b"\x01\x03\x00\x08\x00",),
        (b"\x01\x01\x00\x08",),
        (b"\x03\x00",),
        (b"\x02\x7f?",),
        (b"\x02\xff\xff\xff\xff\x0f",),
        (b"\x05\x05\x00\x00\x00\x00\x00",),
    ],
    ids=lambda fields: b"|".join(fields).hex(),
)
def test_tagged_fields_twice_out_of_order_or_of_the_wrong_size_are_refused(fields: tuple[bytes, ...]) -> None:
    with pytest.raises(MalformedMessage):
        decode(tagged(*fields), 3)


# Flag, text, data, numbers, inners: version 1 has fixed lengths, version 3 compact ones.
WHOLE_1 = b"\x00" + b"\x00\x01a" + b"\xff\xff\xff\xff" + b"\x00\x00\x00\x00" + b"\x00\x00\x00\x00"
WHOLE_3 = b"\x00" + b"\x02a" + b"\x00" + b"\x01" + b"\x01" + b"\x01" + b"\xff" + b"\x00"


@pytest.mark.parametrize(
    ("frame", "what"),
    [
        (WHOLE_1[:1] + b"\xff\xfe", "text has a negative length"),
        (WHOLE_1[:1] + b"\x00\x02a", "text goes on past the end"),
        (WHOLE_1[:1] + b"\x00\x01\xff" + bytes(12), "text is not UTF-8"),
        (WHOLE_1[:4] + b"\xff\xff\xff\xfe", "data has a negative length"),
        (WHOLE_1[:4] + b"\x7f\xff\xff\xff" + bytes(8), "data goes on past the end"),
        (WHOLE_1[:8] + b"\xff\xff\xff\xff" + bytes(4), "numbers is null"),
        (WHOLE_1[:8] + b"\x00\x00\x00\x02" + bytes(15), "numbers has more elements than fit"),
        (WHOLE_1[:8] + b"\x7f\xff\xff\xff" + bytes(32), "numbers has more elements than fit"),
        (WHOLE_1[:12] + b"\xff\xff\xff\xff", "inners is null"),
        (WHOLE_1[:12] + b"\x00\x00\x00\x02" + bytes(11), "inners has more elements than fit"),
    ],
)
def test_each_lie_of_a_fixed_length_is_named(frame: bytes, what: str) -> None:
    assert decode(WHOLE_1, 1) == Outer(text="a")
    with pytest.raises(MalformedMessage, match=what):
        decode(frame, 1)


@pytest.mark.parametrize(
    ("frame", "what"),
    [
        (WHOLE_3[:1] + b"\x03a", "text goes on past the end"),
        (WHOLE_3[:1] + b"\x02\xff" + bytes(9), "text is not UTF-8"),
        (WHOLE_3[:1] + b"\xff\xff\xff\xff\x0f" + bytes(9), "text goes on past the end"),
        (WHOLE_3[:1] + b"\xff\xff\xff\xff\xff\x01" + bytes(9), "a varint of more than five bytes"),
        (WHOLE_3[:1] + b"\xff\xff\xff\xff\x1f" + bytes(9), "a varint over 32 bits"),
        (WHOLE_3[:4] + b"\x00" + WHOLE_3[5:], "numbers is null"),
        (WHOLE_3[:4] + b"\x03" + bytes(15), "numbers has more elements than fit"),
        (WHOLE_3[:5] + b"\x02" + bytes(15), "ids has more elements than fit"),
        (WHOLE_3[:6] + b"\x03" + bytes(11), "inners has more elements than fit"),
        (WHOLE_3[:6] + b"\x02\x00" + bytes(11), "inners.name is null"),
        (WHOLE_3[:7] + b"\x01\x00" + bytes(9), "maybe.name is null"),
        (WHOLE_3[:3], "data goes on past the end"),
    ],
)
def test_each_lie_of_a_compact_length_is_named(frame: bytes, what: str) -> None:
    assert decode(WHOLE_3, 3) == Outer(text="a")
    with pytest.raises(MalformedMessage, match=what):
        decode(frame, 3)


def test_null_is_read_where_it_may_be_and_refused_where_it_may_not() -> None:
    nothing = Outer(text=None, data=None, inners=None)
    assert decode(encode(nothing, 2), 2) == nothing
    assert decode(encode(Outer(text=None), 1), 1).text is None
    with pytest.raises(ValueError, match="Outer v0, text"):
        encode(nothing, 0)
    with pytest.raises(ValueError, match="Outer v1, inners"):
        encode(nothing, 1)
    with pytest.raises(MalformedMessage, match="text is null"):
        decode(b"\0\xff\xff" + bytes(12), 0)


@pytest.mark.parametrize("byte", [1, 2, 0x7F, 0x80, 0xFF])
def test_any_byte_but_zero_is_true(byte: int) -> None:
    assert decode(bytes((byte,)) + WHOLE_1[1:], 1).flag is True


@pytest.mark.parametrize("size", [0, 1, 126, 127, 128, 16_382, 16_383, 40_000])
def test_compact_lengths_of_one_two_and_three_bytes_round_trip(size: int) -> None:
    value = Outer(text="t" * size, data=b"d" * size, numbers=[1] * size, ids=[NULL_ID] * size)
    assert decode(encode(value, 3), 3) == value


def test_a_string_too_long_for_its_length_is_refused_by_name() -> None:
    encode(Outer(text="t" * 32_767), 1)
    with pytest.raises(ValueError, match="Outer v1, text"):
        encode(Outer(text="t" * 32_768), 1)


def test_the_smallest_element_bounds_a_count() -> None:
    assert smallest_size(Struct(Inner), 0, flexible=False) == 2
    assert smallest_size(Struct(Inner), 1, flexible=False) == 6
    assert smallest_size(Struct(Inner), 2, flexible=True) == 6
    assert smallest_size(Struct(Outer), 2, flexible=True) == 8


def test_a_version_is_compiled_once() -> None:
    codec = Compiled(Inner, flexible_from=2)
    assert codec.decoder(1) is codec.decoder(1)
    assert codec.encoder(1) is codec.encoder(1)
    assert codec.decoder(1) is not codec.decoder(2)


@pytest.mark.parametrize("value", [0, 1, 127, 128, 300, 2**14 - 1, 2**14, 2**21, 2**28, 2**32 - 1])
def test_varints_round_trip(value: int) -> None:
    data = varint(value)
    assert read_varint(b"?" + data, 1) == (value, 1 + len(data))
    with pytest.raises(IndexError):
        read_varint(data[:-1], 0)


def test_more_tagged_fields_than_fit_are_refused_before_any_is_read() -> None:
    with pytest.raises(MalformedMessage, match="more tagged fields"):
        skip_tags(b"\xff\xff\xff\xff\x0f" + bytes(100), 0)


def test_an_error_carries_place_and_finding_apart() -> None:
    error = malformed(7, "a count", 99)
    assert (error.position, error.what, error.found) == (7, "a count", 99)
    assert str(error) == "byte 7: a count: found 99"


def test_a_class_that_does_not_say_what_its_fields_are_is_no_message() -> None:
    class Careless:
        number: int = 3

    with pytest.raises(AssertionError, match=r"Careless\.number"):
        message(Careless)
