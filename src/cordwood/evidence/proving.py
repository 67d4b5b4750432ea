"""Prove that a record is in the log, with a document that anyone can check who has the verifier key."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from cordwood.disk import Files
from cordwood.errors import EvidenceMissing, EvidenceRefused, OffsetOutOfRange
from cordwood.evidence.outcomes import outcome_at
from cordwood.evidence.places import OpenedDirectory, Path, opened
from cordwood.integrity import Proof, RecordProof, merkle, proof, record_leaf, unverified
from cordwood.kernels import ITEM_SIZE
from cordwood.storage.chain import (
    KeptChain,
    KeptCheckpoint,
    frames_of,
    kept_chain,
    kept_checkpoints,
    listed_frames,
    read_note,
    verifier_key,
)
from cordwood.storage.log import FrameRun, Partition, PartitionState, read_state
from cordwood.storage.meta import SHARED_TOPIC, is_shared
from cordwood.storage.readonly import ReadOnlyDirectory


def prove(
    path: Path,
    topic: str,
    offset: int,
    *,
    partition: int = 0,
    checkpoint: str | None = None,
    committed: bool = True,
    files: Files | None = None,
) -> Proof | RecordProof:
    """Prove that the record at *offset* is the one that was first appended there.

    The proof has the frame with the record, or the record alone where leaves commit to records; the path from
    its leaf to the root; and *checkpoint*, a signed note of the partition, or else the newest one. Its method
    ``document`` returns the JSON to hand over; `verify_proof` checks it. For a topic in the shared log, frame
    and checkpoint are those of the shared log. Changes nothing, takes no lock, and may run beside the writer.
    With *committed* False the record may be of an aborted or open transaction, and the proof says so.

    Raises:
        EvidenceMissing: If there is no such record, its transaction is aborted or open, or the end of a
            transaction is there; or if it has no leaf or checkpoint yet. Says what to do.
        EvidenceRefused: If the frame is not the one that was first appended.
        CorruptRange: If the end of its transaction may be in damaged bytes.
        UnknownTopic: If there is no such topic or partition.
    """
    with opened(path, files) as place:
        log = place.directory.readable(topic, partition)
        _check_holds(log, topic, partition, offset)
        found, where = outcome_at(log, offset), f"partition {partition} of topic {topic}"
        if found.marker is not None:
            end = "commit" if found.marker.committed else "abort"
            raise EvidenceMissing(f"offset {offset} of {where} is the {end} of a transaction, not a record")
        if found.outcome in proof.UNCOMMITTED:
            if committed:
                raise EvidenceMissing(
                    f"the record at offset {offset} of {where} is of an {found.outcome} transaction; "
                    "prove it as such with cordwood prove --uncommitted"
                )
            return prove_in(place, topic, offset, partition, checkpoint, found.outcome)
        return prove_in(place, topic, offset, partition, checkpoint)


def prove_in(
    place: OpenedDirectory,
    topic: str,
    offset: int,
    partition: int,
    checkpoint: str | None,
    transaction: str | None = None,
) -> Proof | RecordProof:
    """Prove a record as `prove` does, whatever became of its transaction; *transaction* says it."""
    directory, files = place
    found = _located(directory, topic, partition, offset)
    if checkpoint is not None:
        _check_is_of(checkpoint, found)
    path = place.partition_path(found.topic, found.partition)
    with kept_chain(files, path) as chain:
        kept = kept_checkpoints(files, directory.path, found.topic_id, found.partition)
        key = verifier_key(files, directory.path)
        if chain is None or not kept or key is None:
            raise EvidenceMissing(
                f"no checkpoint of partition {found.partition} of topic {found.topic} was signed yet; "
                f"sign one with cordwood checkpoint create -t {topic}"
            )
        by_records = chain.find(found.chained_offset)
        is_shared = found.topic == SHARED_TOPIC
        if by_records is not None and chain.commits_to_parts(by_records) and not is_shared:
            note = _note_over(place, kept, by_records, topic, offset, checkpoint)
            made = _record_proof(chain, found, by_records, note, str(key))
            return msgspec.structs.replace(made, transaction=transaction)
        leaf = _leaf_of(chain, read_state(files, path), found.chained_offset, found.frame)
        note = _note_over(place, kept, leaf, topic, offset, checkpoint)
        said = unverified(note)
        return Proof(
            format=proof.FORMAT,
            offset=offset,
            first_offset=found.first_offset,
            next_offset=found.next_offset,
            leaf=leaf,
            path=chain.inclusion_path(leaf, said.size, said.root),
            checkpoint=note,
            key=str(key),
            frame=found.frame,
            transaction=transaction,
        )


def _record_proof(chain: KeptChain, found: _LocatedFrame, leaf: int, note: str, key: str) -> RecordProof:
    """Return the proof of one record: its place in the list of its frame, and that of the frame in the tree.

    Raises:
        EvidenceMissing: If compaction removed the record, or the list of its frame is gone.
        EvidenceRefused: If the record is not the one that was first appended.
    """
    offset, salt = found.chained_offset, chain.salt()
    record = next((each for each in found.run.records() if each.offset == offset), None)
    if record is None:
        raise EvidenceMissing(f"compaction removed the record at offset {offset}")
    assert salt is not None
    listed = _list_of(chain, found, leaf, salt)
    item, entries = record_leaf.item_of(record, salt), listed.entries
    if entries.get(offset) != record_leaf.entry_hash(offset, item):
        raise EvidenceRefused(f"the record at offset {offset} is not what was first appended there")
    number, hashes, said = list(entries).index(offset), list(entries.values()), unverified(note)
    tree = merkle.Subtrees(hashes)
    return RecordProof(
        format=proof.RECORD_FORMAT,
        offset=offset,
        timestamp=record.timestamp,
        record_key=record.key,
        value=record.value,
        headers=list(record.headers),
        salt=salt,
        number=number,
        list_path=merkle.inclusion_path(tree.hash_at, number, len(hashes)),
        fields=listed.facts.packed(),
        leaf=leaf,
        path=chain.inclusion_path(leaf, said.size, said.root),
        checkpoint=note,
        key=key,
    )


def _check_is_of(note: str, found: _LocatedFrame) -> None:
    """Refuse a checkpoint of another partition than the one whose chain has the leaf.

    Raises:
        EvidenceRefused: If it is of another one, or not a checkpoint.
    """
    origin, place = unverified(note).origin, f"{found.topic}/{found.partition}"
    if not origin.endswith(f"/{place}"):
        raise EvidenceRefused(f"the checkpoint is of {origin[:99]}, not of {place}")


class _FrameList(NamedTuple):
    """The fields of a frame as first appended, and the entries of its records by their offsets."""

    facts: record_leaf.LeafFacts
    entries: dict[int, bytes]


def _list_of(chain: KeptChain, found: _LocatedFrame, leaf: int, salt: bytes) -> _FrameList:
    """Return the list that the leaf commits to: that of the frame if it is whole, else the one that was kept.

    Raises:
        EvidenceMissing: If the frame was compacted and its list is gone.
        EvidenceRefused: If the frame or its list is not what was first appended.
    """
    offset, leaf_hash = found.chained_offset, chain.hash_at(0, leaf)
    whole = next(each for each in listed_frames(found.run, salt) if each.data == found.frame)
    if whole.leaf == leaf_hash:
        offsets = [record.offset for record in found.run.records()]
        offsets = [each for each in offsets if whole.first_offset <= each < whole.next_offset]
        items = [bytes(whole.items[at : at + ITEM_SIZE]) for at in range(0, len(whole.items), ITEM_SIZE)]
        hashes = map(record_leaf.entry_hash, offsets, items)
        return _FrameList(whole.facts, dict(zip(offsets, hashes, strict=True)))
    kept = chain.record_list(leaf)
    if kept is None and any(each.kind == "expired" for each in chain.statements()):
        raise EvidenceMissing(f"the frame at offset {offset} was compacted, and the evidence of it expired")
    if kept is None or not kept.holds(leaf_hash):
        raise EvidenceRefused(
            f"the frame at offset {offset} is not what was first appended there, "
            f"and no list of its records has leaf {leaf}"
        )
    first = kept.facts.base_offset
    return _FrameList(kept.facts, dict(enumerate(record_leaf.entries_of(first, kept.items), first)))


class _LocatedFrame(NamedTuple):
    """The frame that holds the wanted offset, and the partition whose chain has its leaf.

    ``chained_offset`` is an offset of the frame in that partition: an id, if it is the shared log. ``run``
    has the frame among others.
    """

    topic: str
    topic_id: str
    partition: int
    chained_offset: int
    first_offset: int
    next_offset: int
    frame: bytes
    run: FrameRun


def _located(directory: ReadOnlyDirectory, topic: str, partition: int, offset: int) -> _LocatedFrame:
    """Find the frame that holds *offset*.

    Raises:
        EvidenceMissing: If the partition has no record there.
    """
    log = directory.readable(topic, partition)
    _check_holds(log, topic, partition, offset)
    if not is_shared(directory.topics[topic]):
        return _LocatedFrame(topic, log.topic_id, partition, offset, *_frame_at(log, offset))
    envelope = directory.virtual(topic, partition).frame_at(offset)
    shared = directory.readable(SHARED_TOPIC, 0)
    first, end = envelope.first_offset, envelope.first_offset + envelope.id_count
    id_ = envelope.first_id + offset - first
    return _LocatedFrame(SHARED_TOPIC, shared.topic_id, 0, id_, first, end, *_frame_at(shared, id_)[2:])


def _check_holds(log: Partition, topic: str, partition: int, offset: int) -> None:
    """Refuse an offset that the partition does not have.

    Raises:
        EvidenceMissing: If it has none there.
    """
    start, end = log.log_start_offset, log.high_watermark
    if not start <= offset < end:
        place = f"partition {partition} of topic {topic}"
        if start == end:
            raise EvidenceMissing(f"{place} has no records, so there is nothing to prove")
        raise EvidenceMissing(
            f"offset {offset} is not within {start} and {end - 1}, the first and the last of {place}"
        )


def _frame_at(log: Partition, offset: int) -> tuple[int, int, bytes, FrameRun]:
    """Return the offsets and the bytes of the frame that holds *offset*, and the run with it."""
    runs = log.read(offset, 1).runs
    for first, next_offset, frame in frames_of(runs[0]) if runs else ():
        if first <= offset < next_offset:
            return first, next_offset, bytes(frame), runs[0]
    raise OffsetOutOfRange(offset, log.log_start_offset, log.high_watermark)


def _leaf_of(chain: KeptChain, state: PartitionState, offset: int, frame: bytes) -> int:
    """Return the leaf of *frame*, which must be what was appended at *offset*."""
    leaf = chain.find(offset, _generation(state, offset))
    if leaf is None:
        raise EvidenceMissing(f"the frame at offset {offset} has no leaf: {_why_not(chain, offset)}")
    if chain.hash_at(0, leaf) == (
        record_leaf.envelope_leaf(frame) if chain.commits_to_parts(leaf) else merkle.leaf_hash(frame)
    ):
        return leaf
    if _generation(state, offset) and chain.hash_at(0, leaf) == record_leaf.moved_leaf(frame):
        raise EvidenceMissing(f"the frame at offset {offset} was compacted without evidence")
    if _generation(state, offset) and chain.find(offset) == leaf:
        raise EvidenceMissing(
            f"the frame at offset {offset} was compacted by somebody who did not say so in the chain, "
            "so it cannot be proven"
        )
    raise EvidenceRefused(
        f"the frame at offset {offset} is not what was first appended there: its leaf {leaf} is of another"
    )


def _generation(state: PartitionState, offset: int) -> int:
    """Return how often the segment that holds *offset* was compacted."""
    found = (each.generation for each in state.sealed if each.base <= offset < each.next_offset)
    return next(found, state.active_generation)


def _why_not(chain: KeptChain, offset: int) -> str:
    for each in chain.statements():
        if each.kind == "gap" and each.start <= offset < each.end:
            return f"it was {each.reason} before it could get one"
    return "cordwood checkpoint create gives it one"


def _note_over(
    place: OpenedDirectory,
    kept: list[KeptCheckpoint],
    leaf: int,
    topic: str,
    offset: int,
    given: str | None,
) -> str:
    """Return the checkpoint that was given or else the newest one; it must cover the leaf."""
    if given is not None:
        if unverified(given).size <= leaf:
            raise EvidenceMissing(f"the checkpoint does not cover leaf {leaf}, which offset {offset} has")
        return given
    if kept[-1].size <= leaf:
        raise EvidenceMissing(
            f"the newest checkpoint does not reach offset {offset}; "
            f"sign one that does with cordwood checkpoint create -t {topic}"
        )
    return read_note(place.files, kept[-1])
