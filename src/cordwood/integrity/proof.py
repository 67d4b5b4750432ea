"""A proof that one frame is in a log: a small JSON document that can be checked with a pinned key alone."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from cordwood.errors import EvidenceRefused
from cordwood.integrity.checkpoint import Checkpoint, open_checkpoint
from cordwood.integrity.merkle import leaf_hash, verify_inclusion
from cordwood.integrity.note import VerifierKey

FORMAT = "cordwood-proof/1"


class Proof(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of the document; bytes are in base64 there.

    ``frame`` holds the offsets [first_offset, next_offset), and is leaf number ``leaf`` of the tree whose
    root is in ``checkpoint``, a signed note; ``path`` leads to the root, lowest hash first. ``key`` is a hint
    at the signing key: it proves nothing unless it is known from another source.
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

    def document(self) -> bytes:
        """Return the proof as JSON, one line, to hand over."""
        return msgspec.json.encode(self) + b"\n"


_DECODER = msgspec.json.Decoder(Proof)


def decode(document: bytes) -> Proof:
    """Return the proof in *document*; only its form is checked.

    Raises:
        EvidenceRefused: If it is not a proof.
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
    """Return the checkpoint that covers the frame of *proof*, using only the proof and *key*.

    *offsets_of* returns the offsets [first, next) stored in a frame of the checkpoint's format, None if
    frames do not store them: then the leaf is proven, but not its offset.

    Raises:
        EvidenceRefused: If the proof fails; the message says why.
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
