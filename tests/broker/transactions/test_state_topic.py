"""Records of `__transaction_state`: Kafka's bytes, and nothing else is taken for them."""

from __future__ import annotations

import pytest

from cordwood.broker.transactions import StoredTransaction, TransactionState
from cordwood.broker.transactions.state_topic import (
    decode_key,
    decode_value,
    transaction_key,
    transaction_value,
)

ONGOING = StoredTransaction(
    7,
    4,
    60_000,
    TransactionState.ONGOING,
    frozenset({("orders", 2), ("orders", 0), ("ledger", 3)}),
    updated_ms=2_000,
    started_ms=1_000,
)
#: By Kafka's definitions TransactionLogKey 0 and TransactionLogValue 1: version, fields, tagged fields.
ONGOING_BYTES = bytes.fromhex(
    "0001"  # version
    "0000000000000007"  # producer id
    "0004"  # producer epoch
    "0000ea60"  # timeout
    "01"  # state: Ongoing
    "03"  # two topics, plus one
    "07" + b"ledger".hex() + "02"
    "00000003"
    "00"  # a name, one partition, no tagged field
    "07" + b"orders".hex() + "03"
    "00000000"
    "00000002"
    "00"
    "00000000000007d0"  # last change
    "00000000000003e8"  # start
    "00"  # no tagged field
)
EMPTY = StoredTransaction(9, 0, 1, TransactionState.EMPTY, frozenset(), updated_ms=5, previous_producer_id=7)
EMPTY_BYTES = bytes.fromhex(
    "0001"
    "0000000000000009"
    "0000"
    "00000001"
    "00"
    "00"  # null in place of the partitions
    "0000000000000005"
    "ffffffffffffffff"
    "01"
    "00"
    "08"
    "0000000000000007"  # one tagged field: the previous producer id
)
COMPLETE = StoredTransaction(
    7, 4, 60_000, TransactionState.COMPLETE_COMMIT, frozenset(), updated_ms=3_000, started_ms=1_000
)
COMPLETE_BYTES = bytes.fromhex(
    "0001"
    "0000000000000007"
    "0004"
    "0000ea60"
    "04"
    "01"  # no topics, plus one
    "0000000000000bb8"
    "00000000000003e8"
    "00"
)
#: The value of Kafka before transaction version 1: no varints and no tagged fields.
OLD_BYTES = bytes.fromhex(
    "0000"
    "0000000000000007"
    "0004"
    "0000ea60"
    "01"
    "00000002"
    "0006" + b"ledger".hex() + "00000001"
    "00000003"
    "0006" + b"orders".hex() + "00000002"
    "00000000"
    "00000002"
    "00000000000007d0"
    "00000000000003e8"
)
VALUES = [(ONGOING, ONGOING_BYTES), (EMPTY, EMPTY_BYTES), (COMPLETE, COMPLETE_BYTES)]


def test_a_key_has_kafkas_bytes() -> None:
    assert transaction_key("copier-1") == b"\x00\x00\x00\x08copier-1"
    assert decode_key(b"\x00\x00\x00\x08copier-1") == "copier-1"
    assert decode_key(b"\x00\x01what a later version has") is None


@pytest.mark.parametrize(("stored", "data"), VALUES, ids=["ongoing", "empty", "complete"])
def test_a_value_has_kafkas_bytes(stored: StoredTransaction, data: bytes) -> None:
    assert transaction_value(stored).hex() == data.hex()
    assert decode_value(data) == stored


def test_a_value_of_an_older_kafka_is_read() -> None:
    assert decode_value(OLD_BYTES) == ONGOING


def test_tagged_fields_of_a_newer_kafka_are_skipped() -> None:
    """Kafka's transaction version 2 adds the next producer id (1) and the version of the client (2)."""
    newer = ONGOING_BYTES[:-1] + bytes.fromhex("020108000000000000000a02020002")
    assert decode_value(newer) == ONGOING


@pytest.mark.parametrize("state", list(TransactionState))
def test_states_have_kafkas_numbers(state: TransactionState) -> None:
    numbers = ["Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort", "Dead"]
    names = [*numbers, "PrepareEpochFence"]
    data = transaction_value(EMPTY._replace(state=state))
    assert data[16] == names.index(state.value)


@pytest.mark.parametrize("data", [ONGOING_BYTES, EMPTY_BYTES, COMPLETE_BYTES, OLD_BYTES])
def test_a_value_that_was_cut_short_is_refused_at_every_length(data: bytes) -> None:
    for length in range(len(data)):
        with pytest.raises(ValueError):
            decode_value(data[:length])


@pytest.mark.parametrize(
    ("position", "byte"),
    [(1, 2), (16, 8), (16, 0x80), (17, 0x7F)],
    ids=["a later version", "a later state", "a negative state", "more topics than bytes"],
)
def test_a_value_with_a_field_out_of_range_is_refused(position: int, byte: int) -> None:
    data = bytearray(ONGOING_BYTES)
    data[position] = byte
    with pytest.raises(ValueError):
        decode_value(bytes(data))


@pytest.mark.parametrize(
    "stored",
    [
        ONGOING._replace(state=TransactionState.COMPLETE_COMMIT),
        ONGOING._replace(epoch=-1),
        ONGOING._replace(epoch=0x7FFF),
    ],
    ids=["partitions after the end", "no epoch", "an ongoing transaction that cannot be fenced"],
)
def test_a_state_that_cannot_be_is_refused(stored: StoredTransaction) -> None:
    with pytest.raises(ValueError):
        decode_value(transaction_value(stored))
