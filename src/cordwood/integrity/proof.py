"""A proof that one frame is in a log: a small JSON document that needs nothing else but a pinned key."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from cordwood.errors import EvidenceRefused
from cordwood.integrity.checkpoint import Checkpoint, open_checkpoint
from cordwood.integrity.merkle import leaf_hash, verify_inclusion
from cordwood.integrity.note import VerifierKey

FORMAT = "cordwood-proof/1"


class Proof(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the document has; bytes are in base64 there.

    ``frame`` holds the offsets [first_offset, next_offset), and is leaf number ``leaf`` of the tree that
    ``checkpoint``, a signed note, has the root of; ``path`` leads there, lowest hash first. ``key`` is a hint
    at the key that signed it: whoever believes it without having it from elsewhere proves nothing.
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


_DECODER = msgspec.json.Decoder(Proof)


def encode(proof: Proof) -> bytes:
    """Return the document."""
    return msgspec.json.encode(proof) + b"\n"


def decode(document: bytes) -> Proof:
    """Return what *document* has, checked for its form alone.

    Raises:
        EvidenceRefused: If it is no proof.
    """
    try:
        proof = _DECODER.decode(document)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise EvidenceRefused(f"not a proof: {error}") from None
    if proof.format != FORMAT:
        raise EvidenceRefused(f"not a proof of the form {FORMAT}, but {proof.format[:60]!r}")
    return proof


def check(
    proof: Proof, key: VerifierKey, offsets_of: Callable[[bytes, Checkpoint], tuple[int, int] | None]
) -> Checkpoint:
    """Return the checkpoint that vouches for the frame of *proof*, by nothing but the proof and *key*.

    *offsets_of* tells which offsets [first, next) a frame says that it has, of the format that the checkpoint
    is of; None where frames do not say it: then the leaf is proven, and not where it was.

    Raises:
        EvidenceRefused: If it proves nothing; says what does not fit.
        SigningUnavailable: If what verifies is not installed.
    """
    if proof.key != str(key):
        raise EvidenceRefused(f"the proof says that {proof.key[:99]} signed it, not the key that was given")
    checkpoint = open_checkpoint(proof.checkpoint, key)
    if not verify_inclusion(leaf_hash(proof.frame), proof.leaf, checkpoint.size, proof.path, checkpoint.root):
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
