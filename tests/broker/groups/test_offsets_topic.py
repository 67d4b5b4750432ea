"""Records of the internal topic, byte for byte: against bytes made by hand, and against another encoder.

The other encoder is kio's, given the fields as Kafka's definitions list them, in every version that there
was: a topic that Kafka wrote can be read, and Kafka's tools can read ours.
"""

from __future__ import annotations

import dataclasses
import io
import random
import struct
from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.schema import consumer_protocol_subscription
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType
from kio.static.primitive import i16, i32, i64
from support.seeds import seed_or

from cordwood.broker.groups import offsets_topic
from cordwood.broker.groups.offsets_topic import Committed, OffsetKey, StoredGroup, StoredMember

SEED = seed_or(20_260_406)

# --- somebody else's encoder, from Kafka's definitions ------------------------------------------------

# Name, type, Kafka's type, the first version that has it, and whether it may be null.
Field = tuple[str, Any, str, int, bool]
OFFSET_COMMIT_KEY: tuple[Field, ...] = (
    ("group", str, "string", 0, False),
    ("topic", str, "string", 0, False),
    ("partition", i32, "int32", 0, False),
)
OFFSET_COMMIT_VALUE: tuple[Field, ...] = (
    ("offset", i64, "int64", 0, False),
    ("leader_epoch", i32, "int32", 3, False),
    ("metadata", str, "string", 0, False),
    ("commit_timestamp", i64, "int64", 0, False),
)
GROUP_METADATA_KEY: tuple[Field, ...] = (("group", str, "string", 0, False),)
GROUP_METADATA_VALUE: tuple[Field, ...] = (
    ("protocol_type", str, "string", 0, False),
    ("generation", i32, "int32", 0, False),
    ("protocol", str, "string", 0, True),
    ("leader", str, "string", 0, True),
    ("current_state_timestamp", i64, "int64", 2, False),
)
MEMBER_METADATA: tuple[Field, ...] = (
    ("member_id", str, "string", 0, False),
    ("group_instance_id", str, "string", 3, True),
    ("client_id", str, "string", 0, False),
    ("client_host", str, "string", 0, False),
    ("rebalance_timeout", i32, "int32", 1, False),
    ("session_timeout", i32, "int32", 0, False),
    ("subscription", bytes, "bytes", 0, False),
    ("assignment", bytes, "bytes", 0, False),
)


@cache
def entity(name: str, fields: tuple[Field, ...], version: int) -> type[Any]:
    """Return the class that kio writes *version* of a message from."""
    listed: list[Any] = [
        (field, kind | None if nullable else kind, dataclasses.field(metadata={"kafka_type": kafka}))
        for field, kind, kafka, first, nullable in fields
        if version >= first
    ]
    if fields is GROUP_METADATA_VALUE:
        nested: Any = entity("MemberMetadata", MEMBER_METADATA, version)
        listed.append(("members", tuple[nested, ...]))
    kind = EntityType.nested if name == "MemberMetadata" else EntityType.data
    namespace = {"__type__": kind, "__version__": i16(version), "__flexible__": False}
    return dataclasses.make_dataclass(name, listed, namespace=namespace, frozen=True, kw_only=True)


def member_entity(version: int) -> type[Any]:
    return entity("MemberMetadata", MEMBER_METADATA, version)


def group_entity(version: int) -> type[Any]:
    return entity("GroupMetadataValue", GROUP_METADATA_VALUE, version)


def offset_entity(version: int) -> type[Any]:
    return entity("OffsetCommitValue", OFFSET_COMMIT_VALUE, version)


def written(kind: type[Any], version: int, **values: Any) -> bytes:
    """Return a record as another would write it: the version, then the message."""
    names = {field.name for field in dataclasses.fields(kind)}
    out = io.BytesIO()
    message = kind(**{name: value for name, value in values.items() if name in names})
    entity_writer(kind)(out, message)
    return struct.pack(">h", version) + out.getvalue()


def read(kind: type[Any], version: int, data: bytes) -> dict[str, Any]:
    """Return what another reads from a record, all of which it must be."""
    (found,) = struct.unpack_from(">h", data)
    assert found == version
    message, size = entity_reader(kind)(data, 2)
    assert size == len(data) - 2
    return {field.name: getattr(message, field.name) for field in dataclasses.fields(kind)}


# --- what is said -------------------------------------------------------------------------------------

texts = st.text(st.characters(codec="utf-8"), max_size=40)
int32s = st.integers(-(2**31), 2**31 - 1)
int64s = st.integers(-(2**63), 2**63 - 1)
offset_keys = st.builds(OffsetKey, texts, texts, int32s)
committed = st.builds(Committed, int64s, int32s, texts, int64s)
members = st.builds(
    StoredMember,
    texts,
    st.none() | texts,
    texts,
    texts,
    # A member of an old record without a rebalance time-out gets its session's, which is never negative.
    st.integers(0, 2**31 - 1),
    st.integers(0, 2**31 - 1),
    st.binary(max_size=60),
    st.binary(max_size=60),
)
stored_groups = st.builds(
    StoredGroup,
    texts,
    int32s,
    st.none() | texts,
    st.none() | texts,
    int64s,
    st.lists(members, max_size=4).map(tuple),
)


def as_written(version: int, group: StoredGroup) -> bytes:
    """Return the record of a group, as another writes it in *version*."""
    return written(
        group_entity(version),
        version,
        protocol_type=group.protocol_type,
        generation=i32(group.generation),
        protocol=group.protocol,
        leader=group.leader,
        current_state_timestamp=i64(group.since_ms),
        members=tuple(
            member_entity(version)(
                **{
                    name: value
                    for name, value in {
                        "member_id": member.id,
                        "group_instance_id": member.instance_id,
                        "client_id": member.client_id,
                        "client_host": member.client_host,
                        "rebalance_timeout": i32(member.rebalance_ms),
                        "session_timeout": i32(member.session_ms),
                        "subscription": member.subscription,
                        "assignment": member.assignment,
                    }.items()
                    if name in {field.name for field in dataclasses.fields(member_entity(version))}
                }
            )
            for member in group.members
        ),
    )


def as_remembered(version: int, group: StoredGroup) -> StoredGroup:
    """Return what is left of a group that was written in *version*, in which some fields were missing."""
    return group._replace(
        since_ms=group.since_ms if version >= 2 else -1,
        members=tuple(
            member._replace(
                instance_id=member.instance_id if version >= 3 else None,
                rebalance_ms=member.rebalance_ms if version >= 1 else member.session_ms,
            )
            for member in group.members
        ),
    )


# --- by hand ------------------------------------------------------------------------------------------

TWO_MEMBERS = StoredGroup(
    "consumer",
    7,
    "range",
    "a-1",
    1_700_000_000_123,
    (
        StoredMember("a-1", None, "a", "/::1", 30_000, 10_000, b"\x01\x02", b"\x03"),
        StoredMember("b-2", "b", "b", "/::1", 30_000, 10_000, b"", b""),
    ),
)


def test_records_are_the_bytes_that_were_made_by_hand() -> None:
    key = OffsetKey("group", "topic", 3)
    assert offsets_topic.offset_key(key) == b"\0\1\0\5group\0\5topic\0\0\0\3"
    value = offsets_topic.offset_value(Committed(258, 1, "é", 1_700_000_000_123))
    assert value == (b"\0\3\0\0\0\0\0\0\1\2\0\0\0\1\0\2\xc3\xa9" + (1_700_000_000_123).to_bytes(8, "big"))
    assert offsets_topic.group_key("group") == b"\0\2\0\5group"
    assert offsets_topic.group_value(TWO_MEMBERS) == (
        b"\0\3"
        b"\0\x08consumer"
        b"\0\0\0\7"
        b"\0\5range"
        b"\0\3a-1" + (1_700_000_000_123).to_bytes(8, "big") + b"\0\0\0\2"
        b"\0\3a-1"
        b"\xff\xff"
        b"\0\1a"
        b"\0\4/::1"
        b"\0\0\x75\x30"
        b"\0\0\x27\x10"
        b"\0\0\0\2\1\2"
        b"\0\0\0\1\3"
        b"\0\3b-2"
        b"\0\1b"
        b"\0\1b"
        b"\0\4/::1"
        b"\0\0\x75\x30"
        b"\0\0\x27\x10"
        b"\0\0\0\0"
        b"\0\0\0\0"
    )
    empty = StoredGroup("", 0, None, None, -1, ())
    assert offsets_topic.group_value(empty) == b"\0\3\0\0\0\0\0\0\xff\xff\xff\xff" + b"\xff" * 8 + b"\0\0\0\0"


def test_what_is_taken_back_has_a_key_and_no_value() -> None:
    keys = [offsets_topic.group_key("g"), offsets_topic.offset_key(OffsetKey("g", "t", 0))]
    assert offsets_topic.tombstones(keys) == [(keys[0], None), (keys[1], None)]


# --- against another encoder --------------------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(key=offset_keys, value=committed)
def test_a_committed_offset_is_what_another_writes_and_another_reads_it(
    key: OffsetKey, value: Committed
) -> None:
    ours = offsets_topic.offset_key(key)
    kind = entity("OffsetCommitKey", OFFSET_COMMIT_KEY, 1)
    assert ours == written(kind, 1, group=key.group, topic=key.topic, partition=i32(key.partition))
    assert tuple(read(kind, 1, ours).values()) == key
    # The oldest key has the same fields.
    assert offsets_topic.decode_key(ours) == offsets_topic.decode_key(b"\0\0" + ours[2:]) == key

    fields = {
        "offset": i64(value.offset),
        "leader_epoch": i32(value.leader_epoch),
        "metadata": value.metadata,
        "commit_timestamp": i64(value.commit_ms),
    }
    ours = offsets_topic.offset_value(value)
    assert ours == written(offset_entity(3), 3, **fields)
    assert tuple(read(offset_entity(3), 3, ours).values()) == value
    for version in range(4):
        theirs = written(offset_entity(version), version, **fields)
        # Version 1 goes on with the time at which the offset expires.
        theirs += struct.pack(">q", 5) if version == 1 else b""
        expected = value if version >= 3 else value._replace(leader_epoch=-1)
        assert offsets_topic.decode_offset(theirs) == expected


@settings(max_examples=200, deadline=None)
@given(name=texts, group=stored_groups)
def test_a_generation_is_what_another_writes_and_older_versions_are_read(
    name: str, group: StoredGroup
) -> None:
    key = offsets_topic.group_key(name)
    assert key == written(entity("GroupMetadataKey", GROUP_METADATA_KEY, 2), 2, group=name)
    assert offsets_topic.decode_key(key) == name
    ours = offsets_topic.group_value(group)
    assert ours == as_written(3, group)
    assert len(read(group_entity(3), 3, ours)["members"]) == len(group.members)
    for version in range(4):
        assert offsets_topic.decode_group(as_written(version, group)) == as_remembered(version, group)


@settings(max_examples=100, deadline=None)
@given(topics=st.lists(texts, max_size=5), data=st.none() | st.binary(max_size=20))
def test_subscribed_topics_are_found_in_every_version_of_a_subscription(
    topics: list[str], data: bytes | None
) -> None:
    for version in range(4):
        module = import_module(f"{consumer_protocol_subscription.__name__}.v{version}.data")
        more: dict[str, Any] = {"owned_partitions": ()} if version >= 1 else {}
        more |= {"generation_id": i32(4)} if version >= 2 else {}
        more |= {"rack_id": "rack"} if version >= 3 else {}
        subscription = written(
            module.ConsumerProtocolSubscription, version, topics=tuple(topics), user_data=data, **more
        )
        assert offsets_topic.subscribed_topics(subscription) == set(topics)


def test_a_subscription_that_cannot_be_read_names_no_topics() -> None:
    for data in (b"", b"\0", b"\0\0\0\0\0\1", b"\0\0\x7f\xff\xff\xff", b"\0\0\0\0\0\1\0\1\xff"):
        assert offsets_topic.subscribed_topics(data) is None


# --- any bytes ----------------------------------------------------------------------------------------

Decoder = Callable[[bytes], object]
DECODERS: tuple[tuple[str, Decoder, bytes], ...] = (
    ("offset key", offsets_topic.decode_key, offsets_topic.offset_key(OffsetKey("group", "topic", 3))),
    ("group key", offsets_topic.decode_key, offsets_topic.group_key("group")),
    ("offset", offsets_topic.decode_offset, offsets_topic.offset_value(Committed(5, 1, "note", 99))),
    ("group", offsets_topic.decode_group, offsets_topic.group_value(TWO_MEMBERS)),
    ("old group", offsets_topic.decode_group, as_written(0, TWO_MEMBERS)),
)


def refuses(decode: Decoder, data: bytes) -> bool:
    """Return whether the bytes are refused; anything else than ValueError is let through, and fails."""
    try:
        decode(data)
    except ValueError:
        return True
    return False


@pytest.mark.parametrize(("name", "decode", "data"), DECODERS, ids=[name for name, _, _ in DECODERS])
def test_a_record_that_ends_early_is_refused_wherever_that_is(
    name: str, decode: Decoder, data: bytes
) -> None:
    assert not refuses(decode, data)
    assert all(refuses(decode, data[:size]) for size in range(len(data)))


def damaged(data: bytes, rng: random.Random) -> Sequence[bytes]:
    """Return every flipped bit, every byte set to its extremes, and bytes of no sense at all."""
    flipped = [
        bytes([*data[: bit // 8], data[bit // 8] ^ 1 << bit % 8, *data[bit // 8 + 1 :]])
        for bit in range(8 * len(data))
    ]
    extremes = [
        data[:at] + bytes([value]) + data[at + 1 :]
        for at in range(len(data))
        for value in (0, 0x7F, 0x80, 0xFF)
    ]
    random_bytes = [data[:2] + rng.randbytes(rng.randrange(80)) for _ in range(1000)]
    return [*flipped, *extremes, *random_bytes, *(rng.randbytes(rng.randrange(80)) for _ in range(1000))]


def test_any_bytes_are_read_or_refused_with_a_value_error() -> None:
    rng = random.Random(SEED)
    tried = refused = 0
    for _, decode, data in DECODERS:
        for each in damaged(data, rng):
            tried += 1
            refused += refuses(decode, each)
            offsets_topic.subscribed_topics(each)
    print(f"seed {SEED}: {tried} records, {refused} refused, nothing else raised")
    assert tried >= 10_000
    assert refused >= tried // 4


def test_a_count_of_more_members_than_there_are_bytes_is_refused_before_anything_is_made() -> None:
    head = offsets_topic.group_value(TWO_MEMBERS._replace(members=()))[:-4]
    for count in (1, 1000, 2**31 - 1, -1, -(2**31)):
        with pytest.raises(ValueError, match="count"):
            offsets_topic.decode_group(head + struct.pack(">i", count))


@pytest.mark.parametrize("version", [-(2**15), -1, 4, 5, 2**15 - 1])
def test_versions_that_are_not_known_are_refused_and_keys_of_others_are_left_alone(version: int) -> None:
    data = struct.pack(">h", version) + bytes(100)
    assert offsets_topic.decode_key(data) is None
    for decode in (offsets_topic.decode_offset, offsets_topic.decode_group):
        with pytest.raises(ValueError, match=f"version {version} is unknown"):
            decode(data)
