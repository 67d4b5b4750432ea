"""Read and check the small authoritative files: JSON with a checksum, and marks.

Written against docs/formats/directory.md, independent of the code that writes them.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from typing import Annotated, TypeAlias, TypeVar

import google_crc32c
import msgspec

from cordwood.disk import ReadableFiles, read_file
from cordwood.verify.report import Severity, Tally

FORMAT = 1
#: The first format of ``partition.json`` in which a partition may have transactions.
TRANSACTIONS_FORMAT = 3
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
Checksum: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=(1 << 32) - 1)]
Sha256: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]
#: The state that a frame passes to the next one: a hash, or nothing.
Left: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"^([0-9a-f]{64})?\Z")]
Text: TypeAlias = Annotated[str, msgspec.Meta(min_length=1)]
#: The name of a topic, followed by its org if that is not 0.
TOPIC_NAME = re.compile(r"^(?=.{1,249}\Z)(?!\.{1,2}(?:@|\Z))[a-zA-Z0-9._-]+(?:@[1-9][0-9]{0,19})?\Z")
TopicName: TypeAlias = Annotated[str, msgspec.Meta(pattern=TOPIC_NAME.pattern)]
#: The id of a topic, which is used in directory names.
TopicId: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"^(?!\.{1,2}\Z)[a-zA-Z0-9._@-]{1,200}\Z")]
#: The org of a topic.
Tenant: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]
PartitionNumber: TypeAlias = Annotated[int, msgspec.Meta(ge=0, lt=1_000_000)]
Sequence: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=(1 << 31) - 1)]
ProducerEpoch: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=(1 << 15) - 1)]
# The exceptions of a decoder for invalid bytes, including too deep nesting.
JSON_ERRORS = (msgspec.MsgspecError, ValueError, RecursionError)


class BrokerId(msgspec.Struct, frozen=True):
    """The body of ``broker.id``."""

    format: int
    uuid: Text
    created_at: Text
    node_name: str


class BackedUp(msgspec.Struct, frozen=True):
    """A partition in ``backup.json``."""

    topic: TopicName
    topic_id: TopicId
    partition: PartitionNumber


class Backup(msgspec.Struct, frozen=True):
    """The body of ``backup.json``, limited to the source and its partitions."""

    format: int
    source_uuid: Text
    partitions: list[BackedUp]


class SealedBody(msgspec.Struct, frozen=True):
    """A sealed segment in ``partition.json``."""

    base: Count
    size: Count
    next_offset: Count
    max_timestamp: int
    index_interval_bytes: Count
    index_crc32c: Checksum
    time_index_crc32c: Checksum
    sha256: Sha256 | None
    generation: Count = 0
    index_interval_records: Count = 0
    before: Left = ""
    time_index_sparse: bool = False
    aborted_count: Count = 0
    aborted_crc32c: Checksum = 0


class EpochBody(msgspec.Struct, frozen=True):
    """A leader epoch and the first offset under it."""

    epoch: Count
    start_offset: Count


class EndBody(msgspec.Struct, frozen=True):
    """A position in a segment and the next offset there."""

    base: Count
    position: Count
    next_offset: Count


class CutBody(msgspec.Struct, frozen=True):
    """The end of the active segment by a truncation; ``copied`` if it has a new file prepared for it."""

    base: Count
    position: Count
    next_offset: Count
    copied: bool


class PartitionBody(msgspec.Struct, frozen=True):
    """The body of ``partition.json``."""

    format: int
    topic: TopicName
    topic_id: TopicId
    partition: PartitionNumber
    record_format: str
    index_interval_bytes: Count
    log_start_offset: Count
    leader_epoch: Count
    epochs: Annotated[list[EpochBody], msgspec.Meta(min_length=1)]
    epoch_start: EndBody
    active_base: Count
    sealed: list[SealedBody]
    truncating: CutBody | None
    active_generation: Count = 0
    swapping: Count | None = None
    index_interval_records: Count = 0
    before: Left = ""
    time_index_sparse: bool = False
    tenant: Tenant = 0
    removing: tuple[Count, ...] = ()
    transactional: bool = False


class StoredBatchBody(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A batch of a producer in ``producers.json``."""

    first_sequence: Sequence
    last_sequence: Sequence
    base_offset: Count
    next_offset: Count


class ProducerBody(msgspec.Struct, frozen=True):
    """A producer in ``producers.json``."""

    id: Count
    epoch: ProducerEpoch
    batches: list[StoredBatchBody]
    seen_ms: int
    open_offset: Count | None = None
    open_ms: int = -1
    coordinator_epoch: int = -1
    marker_offset: int = -1


class ProducersBody(msgspec.Struct, frozen=True):
    """The body of ``producers.json``."""

    format: int
    topic_id: Text
    partition: Count
    leader_epoch: Count
    next_offset: Count
    producers: list[ProducerBody]
    aborted_base: Count = 0
    aborted_count: Count = 0
    aborted_crc32c: Checksum = 0


class ChainHeadBody(msgspec.Struct, frozen=True):
    """The body of ``chain/head``: the number of leaves of a partition, and the values derived from them."""

    format: int
    topic_id: TopicId
    size: Count
    root: Sha256
    chain_head: Sha256
    first_offset: Count
    next_offset: Count
    leader_epoch: Count
    statements_size: Count


class _Version(msgspec.Struct):
    format: int


#: The newest format of each kind of file that has more than one: partitions of 2 have sparse time indexes,
#: those of 3 and producers of 2 have transactions, chains of 2 have leaves that commit to records.
_FORMATS: dict[type, int] = {PartitionBody: TRANSACTIONS_FORMAT, ProducersBody: 2, ChainHeadBody: 2}
VerifiedBody = TypeVar("VerifiedBody", BrokerId, Backup, PartitionBody, ProducersBody, ChainHeadBody)

_ENVELOPE_START, _ENVELOPE_MIDDLE, _ENVELOPE_END = b'{"crc32c":"', b'","body":', b"}"
_SHOWN_MAX = 200
_CRC_AT = len(_ENVELOPE_START)
_BODY_AT = _CRC_AT + 8 + len(_ENVELOPE_MIDDLE)


def shown(body: bytes) -> str:
    """Return the beginning of a file's content, for messages."""
    return ascii(body[:_SHOWN_MAX].decode("latin-1")) + ("…" if len(body) > _SHOWN_MAX else "")


def check_json(
    tally: Tally, path: str, data: bytes, kind: type[VerifiedBody], severity: Severity = "corruption"
) -> VerifiedBody | None:
    """Return the body of a metadata file, or None after reporting why there is none.

    *severity* is that of damage; a newer format is at most ``invalid``.
    """
    tally.bytes += len(data)
    # Compared byte for byte, because a lenient parser would miss some flipped bits of the envelope.
    line = data.removesuffix(b"\n")
    body = line[_BODY_AT : -len(_ENVELOPE_END)]
    digits = line[_CRC_AT : _CRC_AT + 8]
    crc = f"{google_crc32c.value(body):08x}"
    if line != _ENVELOPE_START + digits + _ENVELOPE_MIDDLE + body + _ENVELOPE_END:
        expected = '{"crc32c":"<8 hex digits>","body":{…}}'
        tally.add(severity, path, 0, expected=expected, found=f"{data[:40]!r}…", what="envelope")
        return None
    if digits.decode("latin-1") != crc:
        found = ascii(digits.decode("latin-1"))
        tally.add(severity, path, _CRC_AT, expected=crc, found=found, what="CRC-32C of the body")
        return None
    try:
        version = msgspec.json.decode(body, type=_Version).format
        known = _FORMATS.get(kind, FORMAT)
        if version > known:
            newer: Severity = "invalid" if severity == "corruption" else severity
            tally.add(newer, path, _BODY_AT, expected=known, found=version, what="format is newer")
            return None
        if version < FORMAT:
            tally.add(severity, path, _BODY_AT, expected=FORMAT, found=version, what="format")
            return None
        return msgspec.json.decode(body, type=kind)
    except JSON_ERRORS as error:
        expected = "the fields of docs/formats/directory.md"
        found = f"{error}, in {shown(body)}"
        tally.add(severity, path, _BODY_AT, expected=expected, found=found, what="body")
        return None


def check_partition_fields(tally: Tally, path: str, state: PartitionBody, topic: str, partition: int) -> None:
    """Report where ``partition.json`` contradicts its path or itself."""

    def check(holds: bool, what: str, expected: object, found: object) -> None:
        if not holds:
            tally.add("corruption", path, None, expected=expected, found=found, what=what)

    check(state.topic == topic, "topic", topic, ascii(state.topic))
    check(state.partition == partition, "partition", partition, state.partition)
    _, _, org = topic.partition("@")
    check(str(state.tenant) in ("0", org), "tenant", f"0 or {org}" if org else "0", state.tenant)
    newer = not state.transactional or state.format >= TRANSACTIONS_FORMAT
    check(newer, "format of a partition with transactions", TRANSACTIONS_FORMAT, state.format)
    bases = [*(segment.base for segment in state.sealed), state.active_base]
    for segment, following in zip(state.sealed, bases[1:], strict=True):
        name = f"sealed segment {segment.base}"
        check(segment.base < segment.next_offset, name, f"more than {segment.base}", segment.next_offset)
        check(
            segment.next_offset == following, f"segment after {segment.base}", segment.next_offset, following
        )
    check(
        bases[0] <= state.log_start_offset, "log start offset", f"{bases[0]} or more", state.log_start_offset
    )
    for epoch, after in zip(state.epochs, state.epochs[1:], strict=False):
        rising = epoch.epoch < after.epoch and epoch.start_offset < after.start_offset
        check(rising, "epochs", "rising epochs and offsets", f"{after} after {epoch}")
    last, start = state.epochs[-1], state.epoch_start
    check(last.epoch == state.leader_epoch, "last of the epochs", state.leader_epoch, last.epoch)
    check(last.start_offset == start.next_offset, "start of the epoch", last.start_offset, start.next_offset)
    check(
        start.base <= state.active_base,
        "segment of the epoch's start",
        f"at most {state.active_base}",
        start.base,
    )
    cut = state.truncating
    if cut is not None:
        agree = (cut.base, cut.position, cut.next_offset) == (start.base, start.position, start.next_offset)
        check(agree, "truncation under way", start, cut)


_SLOT = struct.Struct(
    ">"
    "4s"  # magic
    "I"  # leader epoch
    "Q"  # sequence
    "Q"  # base offset of the active segment
    "Q"  # position
    "Q"  # next offset
    "Q"  # log start offset
    "I"  # entries of .idx that are synced
    "I"  # entries of .timeidx that are synced
    "I"  # CRC-32C of those entries of .idx
    "I"  # CRC-32C of those entries of .timeidx
    "I"  # CRC-32C of everything before
)
assert _SLOT.size == 68
_SLOT_SPACING = 512
_SLOTS = 2
_APPENDED = struct.Struct(
    ">"
    "q"  # when the last record was appended
    "I"  # CRC-32C of everything before it, the slot included
)


_STABLE = struct.Struct(
    ">"
    "Q"  # last stable offset
    "I"  # entries of .txnindex below the next offset
    "I"  # CRC-32C of those entries
    "I"  # CRC-32C of everything before it, the slot included
)
_EXTENDED_BYTES = _SLOT.size + _APPENDED.size
_STABLE_BYTES = _EXTENDED_BYTES + _STABLE.size
assert (_EXTENDED_BYTES, _STABLE_BYTES) == (80, 100)


@dataclass(frozen=True, slots=True)
class Slot:
    """One valid slot of a mark. Without open and aborted transactions everything is stable."""

    leader_epoch: int
    sequence: int
    base: int
    position: int
    next_offset: int
    log_start_offset: int
    index_entries: int
    time_index_entries: int
    index_crc32c: int
    time_index_crc32c: int
    last_stable_offset: int = (1 << 63) - 1
    aborted_entries: int = 0
    aborted_crc32c: int = 0


def check_mark(tally: Tally, path: str, data: bytes) -> list[Slot]:
    """Return the valid slots, newest first; report faults that a power cut cannot cause.

    One invalid slot can: its write was interrupted, and the other slot was synced before.
    """
    tally.bytes += min(len(data), _SLOTS * _SLOT_SPACING)
    slots = []
    for start in range(0, _SLOTS * _SLOT_SPACING, _SLOT_SPACING):
        area = data[start : start + _SLOT_SPACING]
        slot = _slot_of(area)
        if slot is not None:
            slots.append(slot)
        if area[_end_of_slot(area) if slot is not None else 0 :].strip(b"\0"):
            found = "other bytes after it" if slot is not None else "neither"
            tally.add("note", path, start, expected="a slot, or zeros", found=found, what="slot")
    if len(data) > _SLOTS * _SLOT_SPACING:
        tally.add(
            "note", path, 1024, expected="1024 bytes", found=f"{len(data)} bytes", what="size of the mark"
        )
    slots.sort(key=lambda slot: slot.sequence, reverse=True)
    if not slots:
        tally.add("corruption", path, 0, expected="at least one valid slot", found="none", what="mark")
    elif len(slots) == _SLOTS:
        _check_slots_in_order(tally, path, *slots)
    return slots


def _end_of_slot(area: bytes) -> int:
    """Return where a valid slot ends, with the time of the last append and what is stable after it."""
    if _stable_of(area) is not None:
        return _STABLE_BYTES
    end = _EXTENDED_BYTES
    _, crc = _APPENDED.unpack_from(area.ljust(end, b"\0"), _SLOT.size)
    return end if crc == google_crc32c.value(area[: end - 4]) else _SLOT.size


def _stable_of(area: bytes) -> tuple[int, int, int] | None:
    """Return what follows a slot about transactions, None if nothing valid does."""
    if len(area) < _STABLE_BYTES:
        return None
    *fields, crc = _STABLE.unpack_from(area, _EXTENDED_BYTES)
    matches = crc == google_crc32c.value(area[: _STABLE_BYTES - 4])
    return (fields[0], fields[1], fields[2]) if matches and any(area[_EXTENDED_BYTES:_STABLE_BYTES]) else None


def _slot_of(area: bytes) -> Slot | None:
    if len(area) < _SLOT.size:
        return None
    magic, *fields, crc = _SLOT.unpack_from(area)
    if magic != b"CWMK" or crc != google_crc32c.value(area[: _SLOT.size - 4]):
        return None
    return Slot(*fields, *(_stable_of(area) or ()))


def _check_slots_in_order(tally: Tally, path: str, newer: Slot, older: Slot) -> None:
    """Check that the mark moved forward: in epochs, then in segments, positions and offsets."""
    if newer.sequence == older.sequence:
        what = "sequence of the slots"
        tally.add("corruption", path, 8, expected="two different ones", found=newer.sequence, what=what)
    place = (newer.leader_epoch, newer.base, newer.position, newer.next_offset)
    before = (older.leader_epoch, older.base, older.position, older.next_offset)
    offsets_fall = newer.leader_epoch == older.leader_epoch and newer.next_offset < older.next_offset
    if place < before or offsets_fall or newer.log_start_offset < older.log_start_offset:
        tally.add("corruption", path, None, expected=f"no less than {older}", found=newer, what="newer slot")


def read_bytes(tally: Tally, files: ReadableFiles, path: str) -> bytes | None:
    """Return the content of a small file, or None after reporting why it could not be read."""
    tally.show_progress(path, 0)
    try:
        return read_file(files, path)
    except OSError as error:
        tally.add_unreadable(path, error)
        return None
