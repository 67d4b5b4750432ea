"""Compare frames that a reader returns with their leaves, from any offset on."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import replace
from hashlib import sha256
from typing import NamedTuple

from cordwood.disk import ReadableFiles, join
from cordwood.errors import CordwoodError, CorruptRange, MetadataDamaged
from cordwood.verify.chain import Chain, FrameCompare, LeafPlanner
from cordwood.verify.frame import INT64_MAX
from cordwood.verify.metadata import PartitionBody
from cordwood.verify.plans import take_snapshot
from cordwood.verify.report import Tally


class WithoutLeaf(CordwoodError):
    """A frame without a leaf: it came before the chain, is in a gap, or is too new."""


class ReadFrame(NamedTuple):
    """A frame as it was read from *position* of its segment."""

    position: int
    first_offset: int
    next_offset: int
    data: memoryview

    def load(self) -> memoryview:
        """Return its bytes."""
        return self.data


class SliceCompare:
    """Compares frames with the leaves of a partition's current chain. One thread; must be closed."""

    def __init__(self, files: ReadableFiles, directory: str, topic: str, partition: int) -> None:
        """Take the partition in *directory*.

        Raises:
            MetadataDamaged: If the chain's metadata cannot be used.
            OSError: If it cannot be read.
        """
        self._files = files
        self._directory = directory
        self._where = f"partition {partition} of topic {topic}"
        self.state, self.chain = _now(files, directory, topic, partition)
        self._compare: FrameCompare | None = None
        # Where the next frame must begin for the comparison to continue.
        self._goes_on = (-1, -1)
        self._planner: LeafPlanner | None = None
        if self.chain is not None and self.chain.head.size:
            self._file = files.open(join(self.chain.path, "frames"), "read")
            self._planner = LeafPlanner(self.chain, self.state, self._file)
            self._ends = {each.base: each.next_offset for each in self.state.sealed}
            self._bases = [*self._ends, self.state.active_base]

    def close(self) -> None:
        """Close the files."""
        self._stop()
        if self._planner is not None:
            self._file.close()

    @property
    def followed(self) -> int | None:
        """The first offset that has no leaf yet; None without any leaf."""
        return None if self._planner is None else self._planner.followed

    def is_outdated_by(self, other: SliceCompare) -> bool:
        """Return whether log or chain changed between this and *other*, which was made later."""
        return (self.state, self.chain) != (other.state, other.chain)

    def check(self, frames: Iterable[ReadFrame], stop: int) -> None:
        """Compare adjacent frames of one segment that begin before *stop*.

        Raises:
            CorruptRange: At the first frame that differs from its leaf or was never appended.
            WithoutLeaf: If a frame has no leaf, so that it cannot be compared.
            OSError: If leaves cannot be read.
        """
        for each in frames:
            if each.first_offset >= stop:
                return
            if self._planner is None:
                raise self._without_leaf(each)
            base = self._bases[max(bisect_right(self._bases, each.first_offset) - 1, 0)]
            if self._compare is None or self._goes_on != (base, each.first_offset):
                self._start(base, each.first_offset)
            assert self._compare is not None
            hash_ = sha256(b"\0")
            hash_.update(each.data)
            known = self._compare.take(*each[:3], hash_.digest(), each.load)
            if self._compare.first_break is not None:
                raise self._refusal(base, each.first_offset, each.next_offset)
            if not known:
                raise self._without_leaf(each)
            self._goes_on = (base, each.next_offset)

    def _without_leaf(self, frame: ReadFrame) -> WithoutLeaf:
        return WithoutLeaf(
            f"{self._where}: offsets {frame.first_offset} up to {frame.next_offset} have no leaf to be "
            "compared with; begin after them, or read without verify=chain"
        )

    def _start(self, base: int, first: int) -> None:
        """Compare from the frame at *first* on, in the segment at *base*."""
        assert self._planner is not None
        self._stop()
        end = self._ends.get(base, INT64_MAX)
        generations = {each.base: each.generation for each in self.state.sealed}
        generation = generations.get(base, self.state.active_generation)
        leaves = self._planner.of(first, end, generation, sealed=base in self._ends)
        # The statement of a compaction covers all its frames together, so it cannot check a part of them.
        leaves = replace(leaves, testimony=None)
        self._compare = FrameCompare(self._files, leaves, self._log(base), Tally())

    def _stop(self) -> None:
        compare, self._compare = self._compare, None
        if compare is not None:
            compare.close()

    def _log(self, base: int) -> str:
        return join(self._directory, "segments", f"{base:020d}.log")

    def _refusal(self, base: int, offset: int, resume_offset: int) -> CorruptRange:
        assert self._compare is not None
        assert self._compare.first_break is not None
        position, expected, found, what = self._compare.first_break
        reason = f"{self._where}: {what}: expected {expected}, found {found}"
        return CorruptRange(self._log(base), position, offset, resume_offset, reason)


def _now(
    files: ReadableFiles, directory: str, topic: str, partition: int
) -> tuple[PartitionBody, Chain | None]:
    """Return the state of partition and chain at one moment."""
    snapshot = take_snapshot(files, directory, topic, partition, planned=False)
    for finding in snapshot.tally.findings:
        if finding.severity in ("corruption", "invalid"):
            reason = f"{finding.what}: expected {finding.expected}, found {finding.found}"
            raise MetadataDamaged(finding.path, reason)
    if snapshot.chain is not None and not snapshot.chain.understood:
        raise MetadataDamaged(
            join(snapshot.chain.path, "statements"), "states what this version does not know"
        )
    if snapshot.state is None:
        raise MetadataDamaged(join(directory, "partition.json"), "is missing")
    return snapshot.state, snapshot.chain
