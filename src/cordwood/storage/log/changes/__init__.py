"""Changes of the set of segments; `change` has the one shape of all of them."""

from cordwood.storage.log.changes import adoption, swapping, truncation
from cordwood.storage.log.changes.adoption import Adopt
from cordwood.storage.log.changes.advancing import AdvanceLogStart
from cordwood.storage.log.changes.beginning import BeginEpoch
from cordwood.storage.log.changes.noting import NoteSealed, NoteTransactional
from cordwood.storage.log.changes.rolling import Roll
from cordwood.storage.log.changes.spreading import Spread, cut_frames
from cordwood.storage.log.changes.swapping import SWAP_SUFFIX, Swap, discard_prepared, swap_path
from cordwood.storage.log.changes.truncation import (
    CUT_SUFFIX,
    SUFFIXES,
    TOMB_SUFFIX,
    Truncate,
    TruncationReport,
)

__all__ = [
    "CUT_SUFFIX",
    "SUFFIXES",
    "SWAP_SUFFIX",
    "TOMB_SUFFIX",
    "Adopt",
    "AdvanceLogStart",
    "BeginEpoch",
    "NoteSealed",
    "NoteTransactional",
    "Roll",
    "Spread",
    "Swap",
    "Truncate",
    "TruncationReport",
    "adoption",
    "cut_frames",
    "discard_prepared",
    "swap_path",
    "swapping",
    "truncation",
]
