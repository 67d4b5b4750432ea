"""Checks of chains, leaves, trees and checkpoints."""

from cordwood.verify.chain.chain import check_chain, check_no_chain, check_signed_rewrites
from cordwood.verify.chain.checkpoints import Claims, GivenCheckpoint
from cordwood.verify.chain.compare import FrameCompare, Leaf, LeafFiles
from cordwood.verify.chain.laminarmq import LAMINARMQ_COUNT, LAMINARMQ_HEAD, own_metadata_problem
from cordwood.verify.chain.leaves import (
    Chain,
    LeafPlanner,
    LeafStatement,
    SegmentLeaves,
    read_chain,
    record_leaves,
    statements_of,
)
from cordwood.verify.chain.listed import (
    CommittedFields,
    FrameContent,
    ListFiles,
    ListPlace,
    RecordItem,
    content_of,
    envelope_leaf,
    item_at,
    keys_of,
    list_path,
    read_envelopes,
)
from cordwood.verify.chain.tree import PassingTree

__all__ = [
    "LAMINARMQ_COUNT",
    "LAMINARMQ_HEAD",
    "Chain",
    "Claims",
    "CommittedFields",
    "FrameCompare",
    "FrameContent",
    "GivenCheckpoint",
    "Leaf",
    "LeafFiles",
    "LeafPlanner",
    "LeafStatement",
    "ListFiles",
    "ListPlace",
    "PassingTree",
    "RecordItem",
    "SegmentLeaves",
    "check_chain",
    "check_no_chain",
    "check_signed_rewrites",
    "content_of",
    "envelope_leaf",
    "item_at",
    "keys_of",
    "list_path",
    "own_metadata_problem",
    "read_chain",
    "read_envelopes",
    "record_leaves",
    "statements_of",
]
