"""The internal topic of transactions: its records, with Kafka's key and value schemas.

A record has the transactional id as its key and the state of its transaction as its value. The last record of
a key is valid; a record without a value is a tombstone.
"""

from __future__ import annotations

import struct
from enum import Enum
from typing import NamedTuple

from cordwood.records import TopicPartition
from cordwood.storage.meta import TRANSACTIONS_TOPIC

#: Kafka's name of the topic.
NAME = TRANSACTIONS_TOPIC
#: The longest transactional id, in bytes.
TEXT_BYTES_MAX = 0x7FFF
#: The producer id where there is none.
NO_PRODUCER_ID = -1
#: The time at which a transaction began, where there is none.
NO_TIME = -1

_SHORT, _INT, _LONG = struct.Struct(">h"), struct.Struct(">i"), struct.Struct(">q")
_BYTE = struct.Struct(">b")
_KEY = 0
#: The version of values with tagged fields; version 0 has fields of fixed sizes and no tags.
_VALUE = 1
_PREVIOUS_PRODUCER_ID_TAG = 0
_VARINT_BITS_MAX = 35
_EPOCH_MAX = 0x7FFF


class TransactionState(Enum):
    """The state of a transactional id; the values are the names that Kafka's tools show."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"
    DEAD = "Dead"
    #: Never stored, and never shown here: a producer is fenced and its transaction prepared in one step.
    PREPARE_EPOCH_FENCE = "PrepareEpochFence"


#: The numbers of states in records, by their position here.
_STATES = tuple(TransactionState)
_NUMBERS = {state: number for number, state in enumerate(_STATES)}
#: The states in which a transaction has partitions.
_OPEN = (TransactionState.ONGOING, TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)


class StoredTransaction(NamedTuple):
    """The state of a transactional id as it is stored.

    ``started_ms`` is when the current or last transaction began, `NO_TIME` before the first one of an epoch;
    ``updated_ms`` is the time of the last change. ``previous_producer_id`` is the one before the producer id,
    if the epochs of that were used up.
    """

    producer_id: int
    epoch: int
    timeout_ms: int
    state: TransactionState
    partitions: frozenset[TopicPartition]
    updated_ms: int
    started_ms: int = NO_TIME
    previous_producer_id: int = NO_PRODUCER_ID


StateRow = tuple[bytes, bytes | None]
"""Key and value of a record of the topic."""


def transaction_key(transactional_id: str) -> bytes:
    """Encode the key of a transactional id."""
    text = transactional_id.encode()
    return _SHORT.pack(_KEY) + _SHORT.pack(len(text)) + text


def transaction_value(stored: StoredTransaction) -> bytes:
    """Encode the state of a transactional id."""
    head = struct.pack(
        ">hqhib", _VALUE, stored.producer_id, stored.epoch, stored.timeout_ms, _NUMBERS[stored.state]
    )
    parts = [head, _encode_partitions(stored)]
    parts.append(struct.pack(">qq", stored.updated_ms, stored.started_ms))
    if stored.previous_producer_id == NO_PRODUCER_ID:
        parts.append(_varint(0))
    else:
        previous = _LONG.pack(stored.previous_producer_id)
        parts += [_varint(1), _varint(_PREVIOUS_PRODUCER_ID_TAG), _varint(len(previous)), previous]
    return b"".join(parts)


def _encode_partitions(stored: StoredTransaction) -> bytes:
    """Encode the partitions by topic, sorted, so that equal states have equal bytes."""
    if stored.state is TransactionState.EMPTY:
        # As in Kafka: null and not an empty array.
        return _varint(0)
    numbers: dict[str, list[int]] = {}
    for topic, partition in sorted(stored.partitions):
        numbers.setdefault(topic, []).append(partition)
    parts = [_varint(len(numbers) + 1)]
    for topic, of_topic in numbers.items():
        name = topic.encode()
        parts += [_varint(len(name) + 1), name, _varint(len(of_topic) + 1)]
        parts += [struct.pack(f">{len(of_topic)}i", *of_topic), _varint(0)]
    return b"".join(parts)


def decode_key(data: bytes) -> str | None:
    """Decode a key: the transactional id, or None for an unknown version.

    Raises:
        ValueError: If a key of a known version is malformed.
    """
    reader = _StateReader(data)
    if reader.number(_SHORT) != _KEY:
        return None
    return reader.take(reader.number(_SHORT)).decode()


def decode_value(data: bytes) -> StoredTransaction:
    """Decode the state of a transactional id, also of an older Kafka.

    Raises:
        ValueError: If *data* is malformed or of an unknown version.
    """
    reader = _StateReader(data)
    version = reader.number(_SHORT)
    if version not in (0, _VALUE):
        raise ValueError(f"version {version} is unknown")
    tagged = version >= 1
    producer_id, epoch = reader.number(_LONG), reader.number(_SHORT)
    timeout_ms, number = reader.number(_INT), reader.number(_BYTE)
    if not 0 <= number < len(_STATES):
        raise ValueError(f"state {number} is unknown")
    partitions = frozenset(_decode_partitions(reader, tagged))
    state = _STATES[number]
    if partitions and state not in _OPEN:
        # Kafka stores none in these states. A later transaction must not begin with them.
        raise ValueError(f"state {state.value} has partitions")
    if epoch < 0 or (epoch == _EPOCH_MAX and state is TransactionState.ONGOING):
        raise ValueError(f"epoch {epoch} is out of range")
    updated_ms, started_ms = reader.number(_LONG), reader.number(_LONG)
    tags = reader.tags() if tagged else {}
    previous = tags.get(_PREVIOUS_PRODUCER_ID_TAG)
    previous_id = NO_PRODUCER_ID if previous is None else _StateReader(previous).number(_LONG)
    return StoredTransaction(
        producer_id, epoch, timeout_ms, state, partitions, updated_ms, started_ms, previous_id
    )


def _decode_partitions(reader: _StateReader, tagged: bool) -> list[TopicPartition]:
    found: list[TopicPartition] = []
    for _ in range(reader.count(tagged, nullable=True)):
        topic = reader.text(tagged)
        found += [(topic, reader.number(_INT)) for _ in range(reader.count(tagged))]
        if tagged:
            reader.tags()
    return found


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


class _StateReader:
    """A reader of consecutive fields. Raises ValueError for a missing or malformed field."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def number(self, kind: struct.Struct) -> int:
        return int(kind.unpack(self.take(kind.size))[0])

    def varint(self) -> int:
        number = 0
        for shift in range(0, _VARINT_BITS_MAX, 7):
            byte = self.take(1)[0]
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return number
        raise ValueError("a varint is too long")

    def count(self, tagged: bool, *, nullable: bool = False) -> int:
        """Return the length of an array; 0 for null if that is allowed."""
        count = self.varint() - 1 if tagged else self.number(_INT)
        if count == -1 and nullable:
            return 0
        # Each element has at least one byte, so a larger count cannot be right.
        if not 0 <= count <= len(self._data) - self._position:
            raise ValueError(f"count {count} is out of range")
        return count

    def text(self, tagged: bool) -> str:
        return self.take(self.varint() - 1 if tagged else self.number(_SHORT)).decode()

    def tags(self) -> dict[int, bytes]:
        """Return the tagged fields by tag. Those of a newer Kafka are among them."""
        return {self.varint(): self.take(self.varint()) for _ in range(self.varint())}

    def take(self, size: int) -> bytes:
        end = self._position + size
        if size < 0 or end > len(self._data):
            raise ValueError(f"expected {size} bytes, found {len(self._data) - self._position}")
        taken, self._position = self._data[self._position : end], end
        return taken
