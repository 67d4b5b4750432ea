"""Prove that a later checkpoint continues an earlier one: that the log between the two only grew.

Two checkpoints alone do not show it, since each has a root only. The proof is the path of RFC 6962 between
the two roots, in a small JSON document.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from cordwood.disk import Files
from cordwood.errors import EvidenceMissing, EvidenceRefused
from cordwood.evidence.places import Path, opened, parsed_key
from cordwood.integrity import Checkpoint, VerifierKey, merkle, open_checkpoint, unverified
from cordwood.storage.chain import kept_chain

FORMAT = "cordwood-consistency/1"


class ConsistencyProof(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The path between the roots of trees of ``older_size`` and ``newer_size`` leaves, lowest hash first."""

    format: str
    older_size: int
    newer_size: int
    path: list[bytes]

    def document(self) -> bytes:
        """Return the proof as JSON, with hashes in base64."""
        return msgspec.json.encode(self) + b"\n"


@dataclass(frozen=True, slots=True)
class ConsistentCheckpoints:
    """Two checkpoints of one log, of which ``newer`` is proven to continue ``older``."""

    older: Checkpoint
    newer: Checkpoint


def prove_consistency(path: Path, older: str, newer: str, *, files: Files | None = None) -> ConsistencyProof:
    """Prove that the checkpoint *newer* continues *older*, both notes of one partition of the data directory.

    Signatures are not checked here; `verify_consistency` does that. Changes nothing, takes no lock, and may
    run beside the writer.

    Raises:
        EvidenceMissing: If the partition has no chain.
        EvidenceRefused: If the notes are about different logs, *older* is the larger one, or the log does not
            have what one of them says.
    """
    before, after = unverified(older), unverified(newer)
    check_order(before, after)
    with opened(path, files) as place:
        topic, partition = place.place_of(after)
        with kept_chain(place.files, place.partition_path(topic, partition)) as chain:
            if chain is None:
                raise EvidenceMissing(f"partition {partition} of topic {topic} has no chain")
            found = chain.consistency_path(before.size, before.root, after.size, after.root)
    if found is None:
        raise EvidenceRefused(
            f"partition {partition} of topic {topic} does not have both trees, "
            f"of {before.size} and of {after.size} leaves"
        )
    return ConsistencyProof(format=FORMAT, older_size=before.size, newer_size=after.size, path=found)


def verify_consistency(
    document: bytes | ConsistencyProof, older: str, newer: str, key: VerifierKey | str
) -> ConsistentCheckpoints:
    """Check that *document* proves that *newer* continues *older*, both notes signed by *key*.

    Needs no data directory. The caller has *older* and *key* from an earlier time or from elsewhere.

    Raises:
        EvidenceRefused: If a note is not signed by *key*, or the proof does not show it; says what differs.
        SigningUnavailable: If the package that verifies is not installed.
    """
    key = parsed_key(key)
    before, after = open_checkpoint(older, key), open_checkpoint(newer, key)
    check_order(before, after)
    proof = _decoded(document) if isinstance(document, bytes) else document
    if (proof.older_size, proof.newer_size) != (before.size, after.size):
        raise EvidenceRefused(
            f"the proof is about {proof.older_size} and {proof.newer_size} leaves, "
            f"the checkpoints about {before.size} and {after.size}"
        )
    if not merkle.verify_consistency(before.size, after.size, proof.path, before.root, after.root):
        raise EvidenceRefused(
            f"the {after.size} leaves of the newer checkpoint do not begin with the {before.size} leaves "
            "of the older one"
        )
    return ConsistentCheckpoints(before, after)


def _decoded(document: bytes) -> ConsistencyProof:
    try:
        proof = msgspec.json.decode(document, type=ConsistencyProof)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise EvidenceRefused(f"not a consistency proof: {error}") from None
    if proof.format != FORMAT:
        raise EvidenceRefused(f"not a proof of the form {FORMAT}, but {proof.format[:60]!r}")
    return proof


def check_order(
    older: Checkpoint, newer: Checkpoint, names: tuple[str, str] = ("the older checkpoint", "the newer one")
) -> None:
    """Refuse two checkpoints of which the newer cannot continue the older, whatever the log has.

    Raises:
        EvidenceRefused: If they are of two logs, or in the wrong order, or if both sign for the same number
            of leaves and not for the same leaves.
    """
    if older.origin != newer.origin:
        raise EvidenceRefused(f"the checkpoints are of two logs, {older.origin} and {newer.origin}")
    if older.size > newer.size:
        raise EvidenceRefused(f"{names[0]} has {older.size} leaves, {names[1]} only {newer.size}")
    if older.size != newer.size:
        return
    for what in ("root", "chain_head", "next_offset"):
        before, after = getattr(older, what), getattr(newer, what)
        if before != after:
            found = (each.hex() if isinstance(each, bytes) else str(each) for each in (before, after))
            raise EvidenceRefused(
                f"{names[0]} and {names[1]} contradict each other: both sign for {older.size} leaves of "
                f"{older.origin}, and for two different histories: {what.replace('_', ' ')} "
                f"{' and '.join(found)}"
            )
