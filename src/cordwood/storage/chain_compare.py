"""Comparing a log with its chain: whether each frame still is what it was when it was first appended."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from cordwood.integrity import merkle
from cordwood.storage.chain_files import KeptChain
from cordwood.storage.chain_following import WINDOW_BYTES, frames_of
from cordwood.storage.partition_state import PartitionState
from cordwood.storage.view import Fetched


class Readable(Protocol):
    """What is read of a partition to compare it with its chain."""

    @property
    def log_start_offset(self) -> int:
        """The first offset that can be read."""

    @property
    def high_watermark(self) -> int:
        """The first offset that cannot be read yet."""

    def read(self, offset: int, max_bytes: int, stop: int | None = None) -> Fetched:
        """Return whole frames from the one that holds *offset* on."""


@dataclass(slots=True)
class Comparison:
    """How many frames are as they were, written anew by compaction, or in a gap of the chain.

    ``different`` has the first offset of each frame that is none of these; ``missing`` is the offset that the
    log ends at though leaves go on, and nobody says that it was truncated.
    """

    equal: int = 0
    rewritten: int = 0
    without_leaf: int = 0
    different: list[int] = field(default_factory=list)
    missing: int | None = None


def compare_frames(log: Readable, state: PartitionState, chain: KeptChain) -> Comparison:
    """Compare each frame of the log with its leaf. Reads the whole log, up to where the chain ends.

    Raises:
        CorruptRange: If a frame is not even what its checksum says.
    """
    rewritten = [(each.base, each.next_offset) for each in state.sealed if each.generation]
    if state.active_generation:
        rewritten.append((state.active_base, state.epoch_start.next_offset))
    found, leaf = Comparison(), -1
    offset, end = log.log_start_offset, _end(log, state, chain)
    if end < chain.head.next_offset and state.leader_epoch == chain.head.leader_epoch:
        found.missing = end
    while offset < end and (runs := log.read(offset, WINDOW_BYTES, end).runs):
        for first, next_offset, frame in (each for run in runs for each in frames_of(run)):
            offset = next_offset
            if first >= end:
                break
            if any(start <= first < stop for start, stop in rewritten):
                found.rewritten += 1
                continue
            at = _leaf_of(chain, leaf + 1, first, next_offset)
            if at is None:
                found.without_leaf += 1
                continue
            leaf = at
            if chain.hash_at(0, leaf) == merkle.leaf_hash(frame):
                found.equal += 1
            else:
                found.different.append(first)
    return found


def _end(log: Readable, state: PartitionState, chain: KeptChain) -> int:
    """Return up to where log and chain both go; of a log that was truncated since, up to the cut."""
    cuts = [each.start_offset for each in state.epochs if each.epoch > chain.head.leader_epoch]
    return min([log.high_watermark, chain.head.next_offset, *cuts])


def _leaf_of(chain: KeptChain, guess: int, first: int, next_offset: int) -> int | None:
    """Return the leaf of the frame with these offsets: mostly the one after that of the frame before."""
    if guess < chain.head.size and chain.entry(guess) == (first, next_offset):
        later = [each for each in chain.statements() if each.kind != "gap" and each.leaf > guess]
        if all(next_offset <= cut.start for cut in later):
            return guess
    # By its last offset: its first ones may be in a gap, where the log start lies within the frame.
    return chain.find(next_offset - 1)
