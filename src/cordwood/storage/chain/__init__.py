"""Tamper evidence of a partition: leaves, chain files, statements, checkpoints, verified reads."""

from typing import TYPE_CHECKING

from cordwood.lazily import lazily
from cordwood.storage.chain.chains import Chains, kept_chain
from cordwood.storage.chain.checkpoints import (
    KeptCheckpoint,
    kept_checkpoints,
    key_path,
    read_note,
    sign_checkpoint,
    signed_up_to,
    signing_key,
    verifier_key,
    verifier_path,
)
from cordwood.storage.chain.files import ENTRY, ChainHead, KeptChain, chain_directory, read_head
from cordwood.storage.chain.frame_leaves import frames_of, listed_frames
from cordwood.storage.chain.lists import list_numbers, list_path
from cordwood.storage.chain.signing import CheckpointSigner
from cordwood.storage.chain.statements import keeps_evidence

if TYPE_CHECKING:
    from cordwood.storage.chain.verified_read import ComparedPartition, ReadSource, WithoutLeaf, followed_to
else:
    # Only Spark's tasks read this way; a server, and a broker for tests, starts sooner without.
    _NAMES = ("ComparedPartition", "ReadSource", "WithoutLeaf", "followed_to")
    __getattr__ = lazily(__name__, dict.fromkeys(_NAMES, "cordwood.storage.chain.verified_read"))

__all__ = [
    "ENTRY",
    "ChainHead",
    "Chains",
    "CheckpointSigner",
    "ComparedPartition",
    "KeptChain",
    "KeptCheckpoint",
    "ReadSource",
    "WithoutLeaf",
    "chain_directory",
    "followed_to",
    "frames_of",
    "keeps_evidence",
    "kept_chain",
    "kept_checkpoints",
    "key_path",
    "list_numbers",
    "list_path",
    "listed_frames",
    "read_head",
    "read_note",
    "sign_checkpoint",
    "signed_up_to",
    "signing_key",
    "verifier_key",
    "verifier_path",
]
