"""The bytes of the rows of consumer groups: Kafka's key and value schemas.

Keys have the types of Kafka's old messages, values those of its flexible ones: compact lengths, tagged
fields.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any, TypeVar

from cordwood.broker.groups.actions import Protocol
from cordwood.broker.groups.consumer.assignors import TargetAssignment
from cordwood.broker.groups.consumer.rows import (
    ClassicTerms,
    ConsumerRow,
    GroupEpoch,
    MemberMetadata,
    MemberState,
    OwnedPartitions,
    OwnedState,
    ResolvedRegex,
    RowKey,
    RowKind,
    RowValue,
    TargetEpoch,
)

T = TypeVar("T")
_SHORT, _INT, _LONG = struct.Struct(">h"), struct.Struct(">i"), struct.Struct(">q")
_NO_TAGS = _NULL = b"\0"
_NAMED = frozenset({RowKind.MEMBER, RowKind.TARGET, RowKind.OWNED, RowKind.REGEX})
#: A number that no tag has: all tagged fields are skipped.
_UNKNOWN_TAG = -1
_EPOCHS_TAG = _CLASSIC_TAG = _HASH_TAG = _TIME_TAG = 0


# --- keys ---------------------------------------------------------------------------------------------


def encode_key(key: RowKey) -> bytes:
    """Encode the key of a row."""
    return _SHORT.pack(key.kind) + _text(key.group) + (_text(key.name) if key.kind in _NAMED else b"")


def decode_key(kind: RowKind, texts: Callable[[], str]) -> RowKey:
    """Decode the key of a row whose version was read; *texts* reads the next string."""
    return RowKey(kind, texts(), texts() if kind in _NAMED else "")


def _text(text: str) -> bytes:
    encoded = text.encode()
    return _SHORT.pack(len(encoded)) + encoded


# --- values -------------------------------------------------------------------------------------------


def encode_rows(rows: Iterable[ConsumerRow]) -> list[tuple[bytes, bytes | None]]:
    """Encode rows and tombstones."""
    return [
        (encode_key(key), None if value is None else encode_value(key.kind, value)) for key, value in rows
    ]


class LaterRows(Sequence[tuple[bytes, bytes | None]]):
    """Rows of which only the keys are encoded at once: the values of a large group take many milliseconds.

    *first* are rows that are encoded already.
    """

    def __init__(self, first: Sequence[tuple[bytes, bytes | None]], rows: Iterable[ConsumerRow]) -> None:
        self._first = first
        self._rows = list(rows)
        self._encoded: list[tuple[bytes, bytes | None]] | None = None

    def keys(self) -> frozenset[bytes]:
        """Return the keys of all rows."""
        first = (key for key, _ in self._first)
        return frozenset((*first, *(encode_key(key) for key, _ in self._rows)))

    def __len__(self) -> int:
        return len(self._first) + len(self._rows)

    def __getitem__(self, at: Any) -> Any:
        if self._encoded is None:
            self._encoded = [*self._first, *encode_rows(self._rows)]
        return self._encoded[at]


def encode_value(kind: RowKind, value: RowValue) -> bytes:
    """Encode the value of a row."""
    return b"\0\0" + _ENCODERS[kind](value)


def _group_epoch(value: GroupEpoch) -> bytes:
    tagged = _LONG.pack(value.topics_hash) if value.topics_hash else None
    return _INT.pack(value.epoch) + _tagged(_HASH_TAG, tagged)


def _target_epoch(value: TargetEpoch) -> bytes:
    tagged = _LONG.pack(value.assigned_ms) if value.assigned_ms else None
    return _INT.pack(value.epoch) + _tagged(_TIME_TAG, tagged)


def _member(value: MemberMetadata) -> bytes:
    classic = value.classic
    # A struct that may be null begins with a byte that says whether it is. Kafka takes a missing field for an
    # empty struct, so null is written too.
    tagged = _NULL
    if classic is not None:
        protocols = (_compact(each.name) + _blob(each.metadata) + _NO_TAGS for each in classic.protocols)
        tagged = b"\1" + _INT.pack(classic.session_ms) + _array(protocols) + _NO_TAGS
    return b"".join(
        (
            _compact(value.instance_id),
            _compact(value.rack_id),
            _compact(value.client_id),
            _compact(value.client_host),
            _names(value.topics),
            _compact(value.regex),
            _INT.pack(value.rebalance_ms),
            _compact(value.assignor),
            _tagged(_CLASSIC_TAG, tagged),
        )
    )


@lru_cache(maxsize=8)
def _names(topics: tuple[str, ...]) -> bytes:
    """Encode the names of topics, which many members of a group have in common."""
    return _array(map(_compact, topics))


def _target(value: TargetAssignment) -> bytes:
    topics = (topic + _ints(partitions) + _NO_TAGS for topic, partitions in value.items())
    return _array(topics) + _NO_TAGS


def _owned(value: OwnedState) -> bytes:
    head = struct.pack(">iib", value.epoch, value.previous_epoch, value.state)
    return head + _owned_partitions(value.assigned) + _owned_partitions(value.revoking) + _NO_TAGS


def _owned_partitions(owned: OwnedPartitions) -> bytes:
    return _array(
        topic + _ints(epochs) + _tagged(_EPOCHS_TAG, _ints(epochs.values()))
        for topic, epochs in owned.items()
    )


def _regex(value: ResolvedRegex) -> bytes:
    topics = _array(map(_compact, sorted(value.topics)))
    return topics + struct.pack(">qq", value.version, value.resolved_ms) + _NO_TAGS


_ENCODERS: dict[RowKind, Callable[..., bytes]] = {
    RowKind.GROUP_EPOCH: _group_epoch,
    RowKind.MEMBER: _member,
    RowKind.TARGET_EPOCH: _target_epoch,
    RowKind.TARGET: _target,
    RowKind.OWNED: _owned,
    RowKind.REGEX: _regex,
}


def _uvarint(number: int) -> bytes:
    if number < 0x80:
        return bytes((number,))
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _compact(text: str | None) -> bytes:
    return _NO_TAGS if text is None else _blob(text.encode())


def _blob(data: bytes) -> bytes:
    return _uvarint(len(data) + 1) + data


def _array(items: Iterable[bytes]) -> bytes:
    encoded = list(items)
    return _uvarint(len(encoded) + 1) + b"".join(encoded)


def _ints(numbers: Iterable[int]) -> bytes:
    found = tuple(numbers)
    return _uvarint(len(found) + 1) + struct.pack(f">{len(found)}i", *found)


def _tagged(tag: int, data: bytes | None) -> bytes:
    return _NO_TAGS if data is None else b"\1" + _uvarint(tag) + _uvarint(len(data)) + data


# --- reading ------------------------------------------------------------------------------------------


def decode_value(kind: RowKind, data: bytes) -> RowValue | None:
    """Decode the value of a row; None for a kind whose values do not matter here.

    Raises:
        ValueError: If *data* is malformed or of an unknown version.
    """
    reader = _FlexibleReader(data)
    if reader.number(_SHORT) != 0:
        raise ValueError(f"version {_SHORT.unpack_from(data)[0]} is unknown")
    return _DECODERS[kind](reader) if kind in _DECODERS else None


class _FlexibleReader:
    """A reader of consecutive fields of a flexible message. Raises ValueError for a malformed field."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def number(self, kind: struct.Struct) -> int:
        return int(kind.unpack(self.take(kind.size))[0])

    def take(self, size: int) -> bytes:
        end = self._at + size
        if size < 0 or end > len(self._data):
            raise ValueError(f"expected {size} bytes, found {len(self._data) - self._at}")
        taken, self._at = self._data[self._at : end], end
        return taken

    def uvarint(self) -> int:
        found = 0
        for shift in range(0, 35, 7):
            (byte,) = self.take(1)
            found |= (byte & 0x7F) << shift
            if byte < 0x80:
                return found
        raise ValueError("a length has more than 5 bytes")

    def blob(self) -> bytes:
        size = self.uvarint() - 1
        if size < 0:
            raise ValueError("a required field is null")
        return self.take(size)

    def text(self) -> str:
        return self.blob().decode()

    def text_or_none(self) -> str | None:
        size = self.uvarint() - 1
        return None if size < 0 else self.take(size).decode()

    def array(self, item: Callable[[], T], bytes_min: int = 1) -> list[T]:
        count = self.uvarint() - 1
        if not 0 <= count <= (len(self._data) - self._at) // bytes_min:
            raise ValueError(f"count {count} is out of range")
        return [item() for _ in range(count)]

    def ints(self) -> tuple[int, ...]:
        found = self.ints_or_none()
        if found is None:
            raise ValueError("a required field is null")
        return found

    def ints_or_none(self) -> tuple[int, ...] | None:
        count = self.uvarint() - 1
        return None if count < 0 else struct.unpack(f">{count}i", self.take(4 * count))

    def tag(self, wanted: int) -> _FlexibleReader | None:
        """Read all tagged fields; return a reader of the one that is *wanted*, if it is there."""
        found = None
        for _ in range(self.uvarint()):
            tag = self.uvarint()
            data = self.take(self.uvarint())
            if tag == wanted:
                found = _FlexibleReader(data)
        return found


def _read_group_epoch(reader: _FlexibleReader) -> GroupEpoch:
    epoch, tagged = reader.number(_INT), reader.tag(_HASH_TAG)
    return GroupEpoch(epoch, 0 if tagged is None else tagged.number(_LONG))


def _read_target_epoch(reader: _FlexibleReader) -> TargetEpoch:
    epoch, tagged = reader.number(_INT), reader.tag(_TIME_TAG)
    return TargetEpoch(epoch, 0 if tagged is None else tagged.number(_LONG))


def _read_member(reader: _FlexibleReader) -> MemberMetadata:
    instance_id, rack_id = reader.text_or_none(), reader.text_or_none()
    client_id, client_host = reader.text(), reader.text()
    topics = tuple(reader.array(reader.text))
    regex, rebalance_ms, assignor = reader.text_or_none(), reader.number(_INT), reader.text_or_none()
    tagged = reader.tag(_CLASSIC_TAG)
    classic = None
    if tagged is not None and tagged.take(1) == b"\1":
        session_ms = tagged.number(_INT)
        classic = ClassicTerms(session_ms, tuple(tagged.array(lambda: _read_protocol(tagged))))
    return MemberMetadata(
        instance_id, rack_id, client_id, client_host, topics, regex, rebalance_ms, assignor, classic
    )


def _read_protocol(reader: _FlexibleReader) -> Protocol:
    found = Protocol(reader.text(), reader.blob())
    reader.tag(_UNKNOWN_TAG)
    return found


def _read_target(reader: _FlexibleReader) -> TargetAssignment:
    def topic() -> tuple[bytes, tuple[int, ...]]:
        found = reader.take(16), tuple(sorted(set(reader.ints())))
        reader.tag(_UNKNOWN_TAG)
        return found

    found = {topic: partitions for topic, partitions in reader.array(topic) if partitions}
    reader.tag(_UNKNOWN_TAG)
    return found


def _read_owned(reader: _FlexibleReader) -> OwnedState:
    epoch, previous_epoch, state = struct.unpack(">iib", reader.take(9))
    known = MemberState(state) if state in set(MemberState) else MemberState.UNKNOWN
    assigned, revoking = _read_owned_partitions(reader, epoch), _read_owned_partitions(reader, epoch)
    reader.tag(_UNKNOWN_TAG)
    return OwnedState(epoch, previous_epoch, known, assigned, revoking)


def _read_owned_partitions(reader: _FlexibleReader, epoch: int) -> OwnedPartitions:
    def topic() -> tuple[bytes, dict[int, int]]:
        topic_id, partitions = reader.take(16), reader.ints()
        tagged = reader.tag(_EPOCHS_TAG)
        epochs = () if tagged is None else tagged.ints_or_none() or ()
        if len(epochs) != len(partitions):
            # Kafka before 4.2 stores no epochs of assignments: they are at most that of the member.
            epochs = (max(epoch, 0),) * len(partitions)
        return topic_id, dict(zip(partitions, epochs, strict=True))

    return {topic: epochs for topic, epochs in reader.array(topic) if epochs}


def _read_regex(reader: _FlexibleReader) -> ResolvedRegex:
    topics = frozenset(reader.array(reader.text))
    found = ResolvedRegex(topics, reader.number(_LONG), reader.number(_LONG))
    reader.tag(_UNKNOWN_TAG)
    return found


_DECODERS: dict[RowKind, Callable[[_FlexibleReader], RowValue]] = {
    RowKind.GROUP_EPOCH: _read_group_epoch,
    RowKind.MEMBER: _read_member,
    RowKind.TARGET_EPOCH: _read_target_epoch,
    RowKind.TARGET: _read_target,
    RowKind.OWNED: _read_owned,
    RowKind.REGEX: _read_regex,
}
