"""Rows of consumer groups, byte for byte as Apache Kafka writes them."""

from __future__ import annotations

import random

import pytest
from support.seeds import seed_or

from cordwood.broker.groups import offsets_topic
from cordwood.broker.groups.actions import Protocol
from cordwood.broker.groups.consumer import RowKey, RowKind, layout
from cordwood.broker.groups.consumer.rows import (
    ClassicTerms,
    GroupEpoch,
    MemberMetadata,
    MemberState,
    OwnedState,
    ResolvedRegex,
    RowValue,
    TargetEpoch,
)

SEED = seed_or(20_261_120)
TOPIC = bytes(range(16))
OTHER = b"\xff" * 8 + (300).to_bytes(8)
#: Rows with their keys and values as Kafka 4.3.1 writes them.
ROWS: list[tuple[RowKey, RowValue, str, str]] = [
    (
        RowKey(RowKind.GROUP_EPOCH, "g"),
        GroupEpoch(7, -2),
        "0003000167",
        "000000000007010008fffffffffffffffe",
    ),
    (RowKey(RowKind.GROUP_EPOCH, "g"), GroupEpoch(7), "0003000167", "00000000000700"),
    (
        RowKey(RowKind.MEMBER, "g", "m"),
        MemberMetadata("i", None, "c", "/127.0.0.1", ("a", "b"), None, 300_000, "range"),
        "000500016700016d",
        "000002690002630b2f3132372e302e302e31030261026200000493e00672616e676501000100",
    ),
    (
        RowKey(RowKind.MEMBER, "g", "m"),
        MemberMetadata(
            None,
            "r",
            "c",
            "h",
            (),
            "x.*",
            -1,
            None,
            ClassicTerms(45_000, (Protocol("range", b"\1\2\3"),)),
        ),
        "000500016700016d",
        "0000000272026302680104782e2affffffff00010012010000afc8020672616e6765040102030000",
    ),
    (
        RowKey(RowKind.TARGET_EPOCH, "g"),
        TargetEpoch(9, 1_700_000_000_000),
        "0006000167",
        "0000000000090100080000018bcfe56800",
    ),
    (
        RowKey(RowKind.TARGET, "g", "m"),
        {TOPIC: (0, 1, 70_000), OTHER: (2,)},
        "000700016700016d",
        "000003000102030405060708090a0b0c0d0e0f0400000000000000010001117000"
        "ffffffffffffffff000000000000012c02000000020000",
    ),
    (
        RowKey(RowKind.OWNED, "g", "m"),
        OwnedState(4, 3, MemberState.UNREVOKED_PARTITIONS, {TOPIC: {0: 3, 5: 4}}, {}),
        "000800016700016d",
        "000000000004000000030102000102030405060708090a0b0c0d0e0f03000000000000000501"
        "00090300000003000000040100",
    ),
    (
        RowKey(RowKind.REGEX, "g", "x.*"),
        ResolvedRegex(frozenset({"x1", "x2"}), 5, 1_700_000_000_000),
        "00100001670003782e2a",
        "00000303783103783200000000000000050000018bcfe5680000",
    ),
]


def decoded_key(data: bytes) -> RowKey:
    version, reader = offsets_topic.key_reader(data)
    return layout.decode_key(RowKind(version), reader.text)


@pytest.mark.parametrize(("key", "value", "key_bytes", "value_bytes"), ROWS)
def test_rows_are_those_of_kafka(key: RowKey, value: RowValue, key_bytes: str, value_bytes: str) -> None:
    assert layout.encode_rows([(key, value)]) == [(bytes.fromhex(key_bytes), bytes.fromhex(value_bytes))]
    assert decoded_key(bytes.fromhex(key_bytes)) == key
    assert layout.decode_value(key.kind, bytes.fromhex(value_bytes)) == value


def test_partitions_without_epochs_as_older_brokers_stored_them_have_that_of_the_member() -> None:
    stored = "000000000004000000030202ffffffffffffffff000000000000012c0200000001010001000100"
    expected = OwnedState(4, 3, MemberState.UNRELEASED_PARTITIONS, {OTHER: {1: 4}}, {})
    assert layout.decode_value(RowKind.OWNED, bytes.fromhex(stored)) == expected


def test_a_state_of_a_later_version_is_unknown() -> None:
    stored = bytes.fromhex("0000000000040000000309010100")
    assert layout.decode_value(RowKind.OWNED, stored) == OwnedState(4, 3, MemberState.UNKNOWN, {}, {})


def test_unknown_tagged_fields_are_skipped() -> None:
    assert layout.decode_value(RowKind.GROUP_EPOCH, bytes.fromhex("00000000000701050161")) == GroupEpoch(7)


@pytest.mark.parametrize(("key", "value", "_", "value_bytes"), ROWS)
def test_a_torn_row_is_refused(key: RowKey, value: RowValue, _: str, value_bytes: str) -> None:
    whole = bytes.fromhex(value_bytes)
    for size in range(len(whole)):
        with pytest.raises(ValueError, match=r".+"):
            layout.decode_value(key.kind, whole[:size])


def test_any_bytes_are_read_or_refused_with_a_value_error() -> None:
    draw, refused = random.Random(SEED), 0
    for _ in range(5_000):
        key, _, _, whole = draw.choice(ROWS)
        damaged = bytearray(bytes.fromhex(whole))
        for _ in range(draw.randint(1, 4)):
            damaged[draw.randrange(len(damaged))] = draw.randrange(256)
        try:
            layout.decode_value(key.kind, bytes(damaged))
        except ValueError:
            refused += 1
    print(f"seed {SEED}: {refused} refused")
    assert refused > 500
