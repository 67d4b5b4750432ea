"""Check a proof of a record with the verifier key alone, without a data directory."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from cordwood.errors import EvidenceRefused, FrameError, InvalidSetting
from cordwood.evidence.places import parsed_key
from cordwood.formats import BATCH, EVERY_FORMAT, Format
from cordwood.formats.per_record import RecordPerFrame
from cordwood.formats.shared import EnvelopeKind, EnvelopeTable, Owner
from cordwood.integrity import Checkpoint, Proof, RecordProof, VerifierKey, proof, record_leaf
from cordwood.records import Record
from cordwood.storage.shared import owner_of


@dataclass(frozen=True, slots=True)
class ProvenRecord:
    """A record that is proven to be leaf number ``leaf`` of the log that ``checkpoint`` signs for.

    ``record`` is None if the frame is proven but compaction removed the record from it. ``owner`` names the
    topic of a record in the shared log by a hash, and is None for any other. ``in_transaction`` is proven.
    How the transaction ended is not: ``transaction`` is ``aborted`` or ``open`` if the document says so.
    """

    checkpoint: Checkpoint
    offset: int
    leaf: int
    record: Record | None
    owner: Owner | None
    in_transaction: bool = False
    transaction: str | None = None


def verify_proof(
    document: bytes | Proof | RecordProof, key: VerifierKey | str, *, topic: str | None = None
) -> ProvenRecord:
    """Check that *document* proves what it says, with nothing but *key*, which the caller has from elsewhere.

    With *topic* the record must be of that topic. The frame of a record in the shared log has only a hash of
    the topic's name, which this is compared with. A proof has no end of a transaction in it: a record of one
    is proven, but whether it was committed is the word of who made the proof.

    Raises:
        EvidenceRefused: If it proves nothing; says what does not fit.
        InvalidSetting: If *topic* is not the name of a topic.
        SigningUnavailable: If the package that verifies is not installed.
    """
    found = proof.decode(document) if isinstance(document, bytes) else document
    record: Record | None
    owner: Owner | None = None
    if isinstance(found, RecordProof):
        checkpoint, record = proof.check_record(found, parsed_key(key)), found.record()
        in_transaction = record_leaf.unpack_facts(found.fields).in_transaction
    else:
        checkpoint = proof.check(found, parsed_key(key), frame_offsets)
        record = record_in(found.frame, found.offset, _format(checkpoint))
        owner, in_transaction = _owner_of(found.frame, checkpoint), _in_transaction(found.frame, checkpoint)
    if found.transaction is not None and not in_transaction:
        raise EvidenceRefused(
            f"the proof says that the transaction is {found.transaction}, but the record is in none"
        )
    if topic is not None:
        _check_topic(topic, owner, checkpoint)
    return ProvenRecord(
        checkpoint, found.offset, found.leaf, record, owner, in_transaction, found.transaction
    )


def frame_offsets(frame: bytes, checkpoint: Checkpoint) -> tuple[int, int] | None:
    """Return the offsets that a frame says it has; it must be one whole, sound frame.

    None for formats whose frames do not have their offset.

    Raises:
        EvidenceRefused: If it is not one whole frame with records.
    """
    format_ = _format(checkpoint)
    if isinstance(format_, RecordPerFrame):
        size = len(frame)
        try:
            found = format_.find_frame(frame, 0, size=size, size_max=size, checked=False)
        except FrameError as error:
            raise EvidenceRefused(f"the frame in the proof is not one whole record: {error}") from error
        if found.size != size:
            raise EvidenceRefused("the frame in the proof is not one whole record")
        return None if found.offset is None else (found.offset, found.offset + 1)
    table = format_.scan(frame, next_offset=0, dense=False, epochs=None, size_max=len(frame))
    if len(table) != 1 or table.end != len(frame):
        raise EvidenceRefused("the frame in the proof is not one whole record batch")
    if isinstance(table, EnvelopeTable):
        # The offsets in its topic. The ids in the shared log follow from the leaf.
        said = table.envelope(0)
        if said.kind is not EnvelopeKind.RECORDS:
            raise EvidenceRefused("the frame in the proof has no records")
        return said.first_offset, said.first_offset + said.id_count
    return table.base_offset(0), table.next_offset(0)


def _owner_of(frame: bytes, checkpoint: Checkpoint) -> Owner | None:
    """Return the owner of a frame of the shared log; None for any other, whose topic is in the origin."""
    format_ = _format(checkpoint)
    if isinstance(format_, RecordPerFrame):
        return None
    table = format_.scan(frame, next_offset=0, dense=False, epochs=None, size_max=len(frame))
    return table.envelope(0).owner if isinstance(table, EnvelopeTable) else None


def _in_transaction(frame: bytes, checkpoint: Checkpoint) -> bool:
    """Return whether the header of a frame says that it is part of a transaction."""
    format_ = _format(checkpoint)
    if isinstance(format_, RecordPerFrame):
        return False
    table = format_.scan(frame, next_offset=0, dense=False, epochs=None, size_max=len(frame))
    if isinstance(table, EnvelopeTable):
        content = table.content(0)
        table = BATCH.scan(content, next_offset=0, dense=False, epochs=None, size_max=len(content))
    stamp = table.stamp(0)
    return stamp is not None and stamp.transactional


def _check_topic(topic: str, owner: Owner | None, checkpoint: Checkpoint) -> None:
    """Refuse a proof of a record of another topic."""
    if owner is None:
        is_, found = checkpoint.origin.split("/")[-2:-1] == [topic], checkpoint.origin
    else:
        try:
            is_, found = owner_of(topic, owner.partition) == owner, str(owner)
        except ValueError as error:
            raise InvalidSetting("topic", topic, f"the name of a topic: {error}") from None
    if not is_:
        raise EvidenceRefused(f"the record is not of topic {topic}, but of {found}")


def _format(checkpoint: Checkpoint) -> Format:
    """Return the format that the checkpoint says frames have."""
    format_ = EVERY_FORMAT.get(checkpoint.record_format)
    if format_ is None:
        raise EvidenceRefused(f"the checkpoint is of frames of a format {checkpoint.record_format[:60]!r}")
    number = checkpoint.origin.rpartition("/")[2]
    # The leaf says that the frame is of this partition, whatever tenant is in it.
    return format_.for_partition(int(number), None) if number.isdecimal() else format_


def record_in(frame: bytes, offset: int, format_: Format) -> Record | None:
    """Return the record at *offset* of a frame, None if compaction removed it from there.

    Raises:
        EvidenceRefused: If the frame cannot be read.
    """
    try:
        if isinstance(format_, RecordPerFrame):
            found = format_.find_frame(frame, 0, size=len(frame), size_max=len(frame), checked=True)
            content = format_.decode_frame(frame, 0, len(frame))
            return Record(offset, found.timestamp, content.key, content.value, content.headers)
        table = format_.scan(frame, next_offset=0, dense=False, epochs=None, size_max=len(frame))
        # An envelope has a batch with the offsets of its topic.
        records = BATCH.decode(table.content(0), 0) if isinstance(table, EnvelopeTable) else table.records(0)
    except (FrameError, msgspec.MsgspecError) as error:
        raise EvidenceRefused(f"the frame is in the log, but cannot be read: {error}") from error
    return next((record for record in records if record.offset == offset), None)
