"""Evidence as library calls: checkpoints, proofs of records, and proofs that a log only grew.

A checkpoint is a signed note about one partition: how many leaves its Merkle tree has, and the root. `prove`
shows that a record is in that tree, `prove_consistency` that a later tree begins with an earlier one.
"""

from cordwood.evidence.checking import ProvenRecord, frame_offsets, verify_proof
from cordwood.evidence.checkpoints import (
    CheckpointList,
    CheckpointReport,
    ListedCheckpoint,
    SignedCheckpoint,
    list_checkpoints,
    sign_checkpoints,
    verify_checkpoint,
    verify_checkpoints,
)
from cordwood.evidence.consistency import (
    ConsistencyProof,
    ConsistentCheckpoints,
    prove_consistency,
    verify_consistency,
)
from cordwood.evidence.proving import prove
from cordwood.evidence.verified_reads import VerifiedRead, read_verified
from cordwood.evidence.waiting import wait_for_leaves
from cordwood.integrity import Proof, RecordProof

__all__ = [
    "CheckpointList",
    "CheckpointReport",
    "ConsistencyProof",
    "ConsistentCheckpoints",
    "ListedCheckpoint",
    "Proof",
    "ProvenRecord",
    "RecordProof",
    "SignedCheckpoint",
    "VerifiedRead",
    "frame_offsets",
    "list_checkpoints",
    "prove",
    "prove_consistency",
    "read_verified",
    "sign_checkpoints",
    "verify_checkpoint",
    "verify_checkpoints",
    "verify_consistency",
    "verify_proof",
    "wait_for_leaves",
]
