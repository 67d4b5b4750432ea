"""Proofs that a frame or a record is in a log: JSON documents that can be checked with a pinned key alone."""

from __future__ import annotations

import struct
from collections.abc import Callable

import msgspec

from cordwood.errors import EvidenceRefused
from cordwood.integrity import merkle, record_leaf
from cordwood.integrity.checkpoint import Checkpoint, open_checkpoint
from cordwood.integrity.merkle import verify_inclusion
from cordwood.integrity.note import VerifierKey
from cordwood.kernels import SALT_SIZE
from cordwood.records import Record

FORMAT = "cordwood-proof/1"
RECORD_FORMAT = "cordwood-proof/2"
#: Transactions whose records are proven on request only, by the word for them in a document.
UNCOMMITTED = ("aborted", "open")


class Proof(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The content of the document; bytes are in base64 there.

    ``frame`` holds the offsets [first_offset, next_offset), and is leaf number ``leaf`` of the tree whose
    root is in ``checkpoint``, a signed note; ``path`` leads to the root, lowest hash first. ``key`` is a hint
    at the signing key: it proves nothing unless it is known from another source. ``transaction`` is
    ``aborted`` or ``open`` if the maker of the proof says that of the record's transaction.
    """

    format: str
    offset: int
    first_offset: int
    next_offset: int
    leaf: int
    path: list[bytes]
    checkpoint: str
    key: str
    frame: bytes
    transaction: str | None = None

    def document(self) -> bytes:
        """Return the proof as JSON, one line, to hand over."""
        return msgspec.json.encode(self) + b"\n"


class RecordProof(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A proof of one record whose leaf commits to records one by one; bytes are in base64 in the document.

    The record is number ``number`` of the list of its frame, and ``list_path`` leads to the root of the list,
    lowest hash first. ``fields`` are those of the frame as it was first appended, packed; with the root they
    make leaf number ``leaf`` of the tree, and ``path`` leads from there to the root in ``checkpoint``.
    ``salt`` is that of the hashes of keys. ``key`` and ``transaction`` are as in `Proof`.
    """

    format: str
    offset: int
    timestamp: int
    record_key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    salt: bytes
    number: int
    list_path: list[bytes]
    fields: bytes
    leaf: int
    path: list[bytes]
    checkpoint: str
    key: str
    transaction: str | None = None

    def document(self) -> bytes:
        """Return the proof as JSON, one line, to hand over."""
        return msgspec.json.encode(self) + b"\n"

    def record(self) -> Record:
        """Return the record."""
        return Record(self.offset, self.timestamp, self.record_key, self.value, tuple(self.headers))


class _Form(msgspec.Struct):
    format: str


_FRAME_PROOF, _RECORD_PROOF = msgspec.json.Decoder(Proof), msgspec.json.Decoder(RecordProof)


def decode(document: bytes) -> Proof | RecordProof:
    """Return the proof in *document*; only its form is checked.

    Raises:
        EvidenceRefused: If it is not a proof.
    """
    try:
        form = msgspec.json.decode(document, type=_Form).format
        if form == FORMAT:
            return _FRAME_PROOF.decode(document)
        if form == RECORD_FORMAT:
            return _RECORD_PROOF.decode(document)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise EvidenceRefused(f"not a proof: {error}") from None
    raise EvidenceRefused(f"not a proof of the form {FORMAT} or {RECORD_FORMAT}, but {form[:60]!r}")


def check_record(proof: RecordProof, key: VerifierKey) -> Checkpoint:
    """Return the checkpoint that covers the record of *proof*, using only the proof and *key*.

    Raises:
        EvidenceRefused: If the proof fails; the message says why.
        SigningUnavailable: If what verifies is not installed.
    """
    checkpoint = _checkpoint_of(proof, key)
    if len(proof.fields) != record_leaf.FACTS_SIZE or len(proof.salt) != SALT_SIZE:
        raise EvidenceRefused("the fields of the frame or the salt have a wrong size")
    facts = record_leaf.unpack_facts(proof.fields)
    if facts.format != record_leaf.FORMAT_CODES.get(checkpoint.record_format):
        raise EvidenceRefused(f"the frame is not of the format {checkpoint.record_format[:60]}")
    try:
        entry = record_leaf.entry_hash(proof.offset, record_leaf.item_of(proof.record(), proof.salt))
    except struct.error as error:
        raise EvidenceRefused(f"the record has a number out of range: {error}") from None
    root = merkle.root_from_path(entry, proof.number, facts.record_count, proof.list_path)
    if root is None:
        raise EvidenceRefused(f"the record is not number {proof.number} of {facts.record_count} in its frame")
    leaf = record_leaf.record_leaf(facts, root)
    if not verify_inclusion(leaf, proof.leaf, checkpoint.size, proof.path, checkpoint.root):
        raise EvidenceRefused(
            f"the record is not in leaf {proof.leaf} of the {checkpoint.size} that the checkpoint signs for"
        )
    if not facts.base_offset <= proof.offset < facts.next_offset:
        raise EvidenceRefused(f"offset {proof.offset} is not in the frame")
    return checkpoint


def _checkpoint_of(proof: Proof | RecordProof, key: VerifierKey) -> Checkpoint:
    if proof.transaction not in (None, *UNCOMMITTED):
        raise EvidenceRefused(f"the proof says {proof.transaction[:60]!r} of a transaction, which is unknown")
    if proof.key != str(key):
        raise EvidenceRefused(f"the proof says that {proof.key[:99]} signed it, not the key that was given")
    return open_checkpoint(proof.checkpoint, key)


def check(
    proof: Proof, key: VerifierKey, offsets_of: Callable[[bytes, Checkpoint], tuple[int, int] | None]
) -> Checkpoint:
    """Return the checkpoint that covers the frame of *proof*, using only the proof and *key*.

    *offsets_of* returns the offsets [first, next) stored in a frame of the checkpoint's format, None if
    frames do not store them: then the leaf is proven, but not its offset.

    Raises:
        EvidenceRefused: If the proof fails; the message says why.
        SigningUnavailable: If what verifies is not installed.
    """
    checkpoint = _checkpoint_of(proof, key)
    leaves = [merkle.leaf_hash(proof.frame)]
    if checkpoint.record_format == "shared":
        leaves.append(record_leaf.envelope_leaf(proof.frame))
    place = (proof.leaf, checkpoint.size, proof.path, checkpoint.root)
    if not any(verify_inclusion(leaf, *place) for leaf in leaves):
        raise EvidenceRefused(
            f"the frame is not leaf {proof.leaf} of the {checkpoint.size} that the checkpoint signs for"
        )
    first, end = offsets_of(proof.frame, checkpoint) or (proof.first_offset, proof.next_offset)
    if (proof.first_offset, proof.next_offset) != (first, end):
        raise EvidenceRefused(
            f"the frame has offsets {first} up to {end}, not {proof.first_offset} up to {proof.next_offset}"
        )
    if not first <= proof.offset < end:
        raise EvidenceRefused(f"offset {proof.offset} is not in the frame, which has {first} up to {end}")
    return checkpoint
