"""Read a record and verify it from the nearest anchor, not from the first record of the log.

An anchor is a signed checkpoint, a snapshot of state that has the hash of the chain, or else the start of the
log. A checkpoint or a snapshot after the record is the strongest: the record's own bytes are under its hash.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from typing import Literal, NamedTuple, cast

from cordwood.disk import Files
from cordwood.errors import EvidenceMissing, EvidenceRefused, OffsetOutOfRange
from cordwood.evidence.checking import ProvenRecord, record_in, verify_proof
from cordwood.evidence.outcomes import is_aborted
from cordwood.evidence.places import OpenedDirectory, Path, opened
from cordwood.evidence.proving import prove_in
from cordwood.formats import EVERY_FORMAT
from cordwood.formats.per_record import NO_HASH
from cordwood.integrity import Checkpoint, Proof, RecordProof, VerifierKey, merkle, open_checkpoint
from cordwood.records import Record
from cordwood.storage.chain import (
    ComparedPartition,
    KeptChain,
    KeptCheckpoint,
    WithoutLeaf,
    frames_of,
    kept_chain,
    kept_checkpoints,
    read_note,
    verifier_key,
)
from cordwood.storage.directory import (
    AnchorKind,
    Nearest,
    SharedIds,
    Snapshots,
    StateSnapshot,
    find_snapshots,
)
from cordwood.storage.log import read_state
from cordwood.storage.meta import SHARED_TOPIC, is_shared

AnchorName = Literal["checkpoint", "snapshot", "start"]
_CHAINED = "kimberlite"
_READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class VerifiedRead:
    """A record, and what it was verified from.

    ``anchor`` is a signed ``checkpoint``, a ``snapshot`` of state, or the ``start`` of the log, at
    ``anchor_offset``. ``frames_read`` counts the frames that were read and hashed, ``hashes_read`` the hashes
    of the Merkle tree that were used.
    """

    record: Record
    anchor: AnchorName
    anchor_offset: int
    frames_read: int
    hashes_read: int = 0


def read_verified(
    path: Path,
    topic: str,
    offset: int,
    *,
    partition: int = 0,
    committed: bool = True,
    files: Files | None = None,
) -> VerifiedRead:
    """Return the record at *offset*, verified from the nearest anchor. Changes nothing, takes no lock.

    A record under a signed checkpoint is proven by that: one frame is read. In the format kimberlite any
    other record is followed from the nearest anchor by the hashes in the records between them. In other
    formats the frame is compared with its leaf, and the tree with the nearest anchor: one frame is read.
    With *committed* False the record may be of an aborted or open transaction.

    Raises:
        OffsetOutOfRange: If the partition has no such offset, or its transaction is open.
        EvidenceMissing: If there is no record at *offset*, because compaction removed it, its transaction was
            aborted, or the end of a transaction is there; or if it has no leaf and no hash.
        EvidenceRefused, CorruptRange: If the record, or one between it and its anchor, is not what was
            appended.
        UnknownTopic: If there is no such topic or partition.
        SigningUnavailable: If a checkpoint is the anchor and the package that verifies is not installed.
    """
    with opened(path, files) as place:
        return _VerifiedReader(place, topic, partition).read(offset, committed=committed)


class _Link(NamedTuple):
    """The hash that the record before ``offset`` must have, by the anchor that says so.

    ``cost`` is the number of frames that were read to find it.
    """

    anchor: AnchorName
    offset: int
    hash: bytes
    cost: int = 0


class _VerifiedReader:
    """Reads records of one partition."""

    def __init__(self, place: OpenedDirectory, topic: str, partition: int) -> None:
        directory, files = place
        self._place, self._topic, self._partition = place, topic, partition
        self._where = f"partition {partition} of topic {topic}"
        self._log = directory.readable(topic, partition)
        entry = directory.topics[topic]
        shared = is_shared(entry)
        self._ids = cast("SharedIds", self._log) if shared else None
        self._chained = (SHARED_TOPIC, 0) if shared else (topic, partition)
        self._chained_log = directory.readable(*self._chained)
        self._directory = place.partition_path(*self._chained)
        config = directory.config_of(entry.config)
        self._snapshots: Snapshots = find_snapshots(
            files, directory.path, entry, partition, config, self._ids
        )

    def read(self, offset: int, *, committed: bool) -> VerifiedRead:
        """Return the record at *offset*; see `read_verified`."""
        log = self._log
        start, end = log.log_start_offset, log.last_stable_offset if committed else log.high_watermark
        if not start <= offset < end:
            raise OffsetOutOfRange(offset, start, end)
        if committed and is_aborted(log, offset):
            raise EvidenceMissing(f"{self._where}: the transaction of offset {offset} was aborted")
        number = offset if self._ids is None else self._ids.id_of(offset)
        with kept_chain(self._place.files, self._directory) as chain:
            leaf = None if chain is None else chain.find(number)
            covering = None if leaf is None else self._first_over(leaf)
            if covering is not None:
                return self._proven(offset, covering)
            if self._is_chained:
                return self._followed(offset, chain)
            if chain is None or leaf is None:
                raise EvidenceMissing(
                    f"{self._where}: the record at offset {offset} has no leaf and no hash to verify it with"
                )
            return self._compared(offset, number, chain, leaf)

    @property
    def _is_chained(self) -> bool:
        return read_state(self._place.files, self._directory).record_format == _CHAINED

    def _trusted(self, found: Nearest) -> StateSnapshot | None:
        """Return the snapshot that was found, unless a nearer one shows that the log was changed."""
        if found.refuted:
            raise EvidenceRefused(found.refuted[0])
        return found.snapshot

    # --- signed checkpoints ------------------------------------------------------------------------

    def _kept(self) -> list[KeptCheckpoint]:
        directory, files = self._place
        return kept_checkpoints(files, directory.path, self._chained_log.topic_id, self._chained[1])

    def _first_over(self, leaf: int) -> KeptCheckpoint | None:
        return next((kept for kept in self._kept() if kept.size > leaf), None)

    def _key(self) -> VerifierKey:
        directory, files = self._place
        key = verifier_key(files, directory.path)
        if key is None:
            raise EvidenceMissing(f"{directory.path} has checkpoints, but no key that verifies them")
        return key

    def _proven(self, offset: int, kept: KeptCheckpoint) -> VerifiedRead:
        """Prove the record under a signed checkpoint."""
        proof, proven = self._proof(offset, kept)
        if proven.record is None:
            raise EvidenceMissing(f"{self._where}: there is no record at offset {offset}")
        hashes = len(proof.path) + (0 if isinstance(proof, Proof) else len(proof.list_path))
        return VerifiedRead(proven.record, "checkpoint", proven.checkpoint.next_offset, 1, hashes)

    def _proof(self, offset: int, kept: KeptCheckpoint) -> tuple[Proof | RecordProof, ProvenRecord]:
        note = read_note(self._place.files, kept)
        proof = prove_in(self._place, self._topic, offset, self._partition, note)
        return proof, verify_proof(proof, self._key(), topic=self._topic)

    def _newest_checkpoint(self) -> Checkpoint | None:
        kept = self._kept()
        return open_checkpoint(read_note(self._place.files, kept[-1]), self._key()) if kept else None

    # --- hashes in records --------------------------------------------------------------------------

    def _followed(self, offset: int, chain: KeptChain | None) -> VerifiedRead:
        """Follow the hashes in records between the record and the nearest anchor, on either side of it."""
        signed = None if chain is None else self._newest_checkpoint()
        below, above = self._link_below(offset), self._snapshot(self._trusted(self._snapshots.after(offset)))
        nearest = below.offset
        if signed is not None and below.offset < signed.next_offset <= offset:
            nearest = signed.next_offset
        if above is not None and above.offset - offset <= offset - nearest + 2:
            return self._followed_up_to(offset, above)
        if nearest > below.offset:
            below = self._signed_link(nearest) or below
        # The hash of the record itself is in the one after it.
        stop = min(offset + 2, self._log.high_watermark)
        expected, frames, wanted = below.hash, 0, b""
        for at, frame in self._frames(below.offset, stop):
            self._check_hash(frame[8:40], expected, at)
            expected, frames = sha256(frame).digest(), frames + 1
            wanted = frame if at == offset else wanted
        return VerifiedRead(self._record(wanted, offset), below.anchor, below.offset, frames + below.cost)

    def _followed_up_to(self, offset: int, above: _Link) -> VerifiedRead:
        """Follow the hashes from the record up to an anchor after it, which has the last one."""
        wanted, expected, frames = b"", None, 0
        for at, frame in self._frames(offset, above.offset):
            if expected is None:
                wanted = frame
            else:
                self._check_hash(frame[8:40], expected, at)
            expected, frames = sha256(frame).digest(), frames + 1
        self._check_hash(above.hash, expected or b"", above.offset)
        return VerifiedRead(self._record(wanted, offset), above.anchor, above.offset, frames + above.cost)

    def _link_below(self, offset: int) -> _Link:
        found = self._snapshot(self._trusted(self._snapshots.nearest(offset)))
        if found is not None and found.offset >= self._log.log_start_offset:
            return found
        start = self._log.log_start_offset
        # If retention removed records, the first one that is left says what came before it.
        (_, first), *_ = self._frames(start, start + 1)
        return _Link("start", start, NO_HASH if start == 0 else first[8:40])

    def _snapshot(self, snapshot: StateSnapshot | None) -> _Link | None:
        if snapshot is None or snapshot.anchor.kind != AnchorKind.RECORD:
            return None
        # It was compared with the record before its offset.
        return _Link("snapshot", snapshot.offset, snapshot.anchor.hash, cost=1)

    def _signed_link(self, offset: int) -> _Link | None:
        """Return the hash of the record before *offset*, the last one under a checkpoint, proven by that.

        None if the log was truncated since: then the checkpoint is not of the record that is there.
        """
        with contextlib.suppress(EvidenceMissing):
            proof, _ = self._proof(offset - 1, self._kept()[-1])
            assert isinstance(proof, Proof)
            return _Link("checkpoint", offset, sha256(proof.frame).digest(), cost=1)
        return None

    def _frames(self, start: int, stop: int) -> Iterator[tuple[int, bytes]]:
        """Yield the offset and the bytes of each record of [start, stop)."""
        while start < stop:
            fetched = self._log.read(start, _READ_BYTES, stop)
            for run in fetched.runs:
                for first, _, frame in frames_of(run):
                    if start <= first < stop:
                        yield first, bytes(frame)
            if fetched.next_offset <= start:
                return
            start = fetched.next_offset

    def _check_hash(self, found: bytes, expected: bytes, offset: int) -> None:
        if found != expected:
            raise EvidenceRefused(
                f"{self._where}: the record before offset {offset} has the hash {expected.hex()}, "
                f"but {found.hex()} is said to come before it"
            )

    def _record(self, frame: bytes, offset: int) -> Record:
        format_ = EVERY_FORMAT[_CHAINED].for_partition(self._partition, None)
        found = record_in(frame, offset, format_)
        assert found is not None
        return found

    # --- leaves ---------------------------------------------------------------------------------------

    def _compared(self, offset: int, number: int, chain: KeptChain, leaf: int) -> VerifiedRead:
        """Compare the frame with its leaf, and the tree that has the leaf with the nearest anchor."""
        reads = chain.reads
        anchor, anchor_offset = self._anchored(offset, chain, leaf)
        with contextlib.closing(
            ComparedPartition(self._place.files, self._directory, *self._chained, self._chained_log)
        ) as compared:
            try:
                fetched = compared.read(number, 1, number + 1)
            except WithoutLeaf as error:
                raise EvidenceMissing(str(error)) from None
        format_ = EVERY_FORMAT[read_state(self._place.files, self._directory).record_format]
        for first, end, frame in frames_of(fetched.runs[0]):
            if first <= number < end:
                record = record_in(bytes(frame), offset, format_.for_partition(self._chained[1], None))
                if record is not None:
                    return VerifiedRead(record, anchor, anchor_offset, 1, chain.reads - reads)
        raise EvidenceMissing(f"{self._where}: there is no record at offset {offset}")

    def _anchored(self, offset: int, chain: KeptChain, leaf: int) -> tuple[AnchorName, int]:
        """Check that the tree with *leaf* is that of the nearest anchor, and return the anchor."""
        above = self._trusted(self._snapshots.after(offset))
        if above is not None and above.anchor.kind == AnchorKind.TREE and above.anchor.leaves > leaf:
            path = chain.inclusion_path(leaf, above.anchor.leaves, above.anchor.hash)
            hash_ = chain.hash_at(0, leaf)
            self._check(merkle.verify_inclusion(hash_, leaf, above.anchor.leaves, path, above.anchor.hash))
            return "snapshot", above.offset
        chain.inclusion_path(leaf, chain.head.size, bytes.fromhex(chain.head.root))
        signed, below = self._newest_checkpoint(), self._trusted(self._snapshots.nearest(offset))
        size, root = (0, merkle.EMPTY_ROOT) if signed is None else (signed.size, signed.root)
        found: tuple[AnchorName, int] = ("start", self._log.log_start_offset)
        if signed is not None:
            found = ("checkpoint", signed.next_offset)
        if below is not None and below.anchor.kind == AnchorKind.TREE and below.anchor.leaves >= size:
            found, size, root = ("snapshot", below.offset), below.anchor.leaves, below.anchor.hash
        if size:
            self._check(chain.consistency_path(size, root) is not None)
        return found

    def _check(self, holds: bool) -> None:
        if not holds:
            raise EvidenceRefused(
                f"{self._where}: its leaves are not those that the nearest checkpoint or snapshot is of"
            )
