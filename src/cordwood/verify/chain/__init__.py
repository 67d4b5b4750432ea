"""Checks of chains, leaves, trees and checkpoints."""

from cordwood.verify.chain.chain import check_chain, check_no_chain
from cordwood.verify.chain.checkpoints import Claims, GivenCheckpoint
from cordwood.verify.chain.compare import FrameCompare
from cordwood.verify.chain.leaves import (
    Chain,
    LeafPlanner,
    LeafStatement,
    SegmentLeaves,
    read_chain,
    statements_of,
)

__all__ = [
    "Chain",
    "Claims",
    "FrameCompare",
    "GivenCheckpoint",
    "LeafPlanner",
    "LeafStatement",
    "SegmentLeaves",
    "check_chain",
    "check_no_chain",
    "read_chain",
    "statements_of",
]
