"""Tamper evidence as pure functions: hash chain, Merkle tree, signed notes, checkpoints and proofs."""

from cordwood.integrity import merkle, proof, record_leaf
from cordwood.integrity.chain import EMPTY_HEAD, chained
from cordwood.integrity.checkpoint import Checkpoint, open_checkpoint, origin_of, unverified
from cordwood.integrity.note import SigningKey, VerifierKey
from cordwood.integrity.proof import Proof, RecordProof

__all__ = [
    "EMPTY_HEAD",
    "Checkpoint",
    "Proof",
    "RecordProof",
    "SigningKey",
    "VerifierKey",
    "chained",
    "merkle",
    "open_checkpoint",
    "origin_of",
    "proof",
    "record_leaf",
    "unverified",
]
