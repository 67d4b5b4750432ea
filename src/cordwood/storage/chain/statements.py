"""Statements of a chain, and which leaves belong to frames that can still be in the log.

Leaves are in the order of appends, so their offsets ascend until a statement: after a truncation, offsets
continue lower, and a compaction adds new leaves for the frames it rewrote. Both divide the leaves into runs
with ascending offsets.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple

import msgspec

_NO_CUT = (1 << 63) - 1
#: The values of ``leaves`` in a statement after which leaves commit to the parts of frames.
_PARTS = frozenset({"records", "envelopes"})
#: Topics of the broker itself: no evidence is kept of what compaction drops there.
_INTERNAL = frozenset({"__consumer_offsets", "__transaction_state", "__shared"})


def keeps_evidence(topic: str) -> bool:
    """Return whether compaction of *topic* keeps evidence."""
    return topic not in _INTERNAL


StatementKind = Literal["truncated", "lost", "gap", "removed", "compacted", "policy", "kept", "expired"]


class Statement(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The content of a leaf that is not a frame.

    ``truncated``: the log was cut at ``start`` on purpose, which began ``leader_epoch``; the records of
    leaves up to ``end`` are gone. ``lost``: the log ends at ``start`` without a truncation, but leaves reach
    up to ``end``. ``gap``: the frames of [start, end) have no leaf, for the given reason. ``removed``:
    [start, end) was removed by the policy in ``reason``.

    ``compacted``: the segment [start, end) was rewritten as ``generation`` with ``frames`` frames, whose
    leaves have the Merkle root ``root``. The changed frames have the ``moved`` leaves right before this one.
    The statement is written before the swap, so after a crash it may describe a swap that never happened.
    ``lists`` counts the lists of records that were kept with it; ``evidence`` is ``none`` if frames were
    rewritten whose records were not kept.

    ``policy``: from here on ``cleanup.policy`` is ``reason``, and leaves of frames commit to ``leaves``:
    ``records``, ``envelopes`` and batches, or ``frames``. ``salt`` is the SHA-256 of the salt in the hashes
    of keys. ``kept``: lists of the frames [start, end) were kept before a truncation or removal. ``expired``:
    the lists of statements up to leaf ``lists`` were removed for ``reason``.
    """

    kind: StatementKind
    leaf: int
    start: int
    end: int
    leader_epoch: int
    noted_ms: int
    reason: str = ""
    generation: int = 0
    frames: int = 0
    moved: int = 0
    root: str = ""
    lists: int = 0
    evidence: str = ""
    leaves: str = ""
    salt: str = ""

    @property
    def first_leaf(self) -> int:
        """The first leaf that was added with it: the number of its lists."""
        return self.leaf - self.moved

    @property
    def is_cut(self) -> bool:
        """Whether offsets continue lower after it."""
        return self.kind in {"truncated", "lost"}

    def encoded(self) -> bytes:
        """Return its line in the file, without the line break."""
        return msgspec.json.encode(self)


class LeafRange(NamedTuple):
    """The offsets [first, next) of a leaf's frame."""

    first_offset: int
    next_offset: int

    @property
    def is_frame(self) -> bool:
        """Whether the leaf belongs to a frame, not to a statement."""
        return self.first_offset < self.next_offset


EntryOf = Callable[[int], LeafRange]


class LeafRun(NamedTuple):
    """Leaves [start, end) with ascending offsets. Leaves of frames that reach beyond ``below`` are void.

    ``generation`` is the one that a compaction created with these leaves, else 0.
    """

    start: int
    end: int
    below: int
    generation: int


class Lineage:
    """The runs of a chain of *size* leaves with these *statements*, oldest first."""

    def __init__(self, size: int, statements: Sequence[Statement]) -> None:
        self._runs: list[LeafRun] = []
        end, below = size, _NO_CUT
        # Backwards, because each run is limited by all truncations after it.
        for statement in reversed(statements):
            self._runs.append(LeafRun(statement.leaf + 1, end, below, 0))
            end = statement.leaf
            if statement.is_cut:
                below = min(below, statement.start)
            elif statement.kind == "compacted":
                end -= statement.moved
                self._runs.append(LeafRun(end, statement.leaf, below, statement.generation))
        self._runs.append(LeafRun(0, end, below, 0))

    def runs(self, generation: int) -> Iterator[LeafRun]:
        """Yield the runs that apply to a segment of *generation*, highest precedence first."""
        newest_first = [run for run in self._runs if run.start < run.end]
        yield from (run for run in newest_first if 0 < run.generation <= generation)
        yield from (run for run in newest_first if not run.generation)

    def find(self, entry: EntryOf, offset: int, generation: int) -> int | None:
        """Return the leaf of the frame that holds *offset* in a segment of *generation*, None without one."""
        for run in self.runs(generation):
            at = bisect_right(range(run.start, run.end), offset, key=lambda leaf: entry(leaf).next_offset)
            at += run.start
            if at < run.end and entry(at).first_offset <= offset and entry(at).next_offset <= run.below:
                return at
        return None


class LeafKinds:
    """Which leaves commit to the parts of their frames. Leaves of frames that compaction wrote never do."""

    def __init__(self, statements: Sequence[Statement]) -> None:
        self._from: list[int] = []
        self._records: list[bool] = []
        records = False
        for statement in statements:
            if statement.kind == "policy":
                records = statement.leaves in _PARTS
            elif not statement.moved:
                continue
            for leaf, kind in ((statement.first_leaf, False), (statement.leaf, records)):
                self._from.append(leaf)
                self._records.append(kind)

    def commits_to_parts(self, leaf: int) -> bool:
        """Return whether the leaf of a frame commits to its parts: records, or envelope and batch."""
        at = bisect_right(self._from, leaf) - 1
        return at >= 0 and self._records[at]


def rewritable_ranges(statements: Sequence[Statement], entry: EntryOf) -> list[tuple[int, int]]:
    """Return the offsets [start, end) whose frames have leaves that commit to their records, ascending.

    Only those may be rewritten: the list of any other frame could not be tied to its leaf.
    """
    ranges: list[tuple[int, int]] = []
    since: int | None = None
    for each in statements:
        if each.kind == "policy":
            if since is not None and each.leaves != "records":
                ranges.append((since, each.start))
                since = None
            elif since is None and each.leaves == "records":
                since = each.start
        elif each.is_cut:
            go_on = entry(each.leaf).first_offset
            if since is not None:
                ranges.append((since, go_on))
                since = go_on
            ranges = [(start, min(end, go_on)) for start, end in ranges]
        elif each.kind == "gap" and since is not None:
            ranges.append((since, each.start))
            since = each.end
    if since is not None:
        ranges.append((since, _NO_CUT))
    return [(start, end) for start, end in ranges if start < end]


def shortened_frames(statements: Sequence[Statement], entry: EntryOf) -> list[int]:
    """Return the first offsets of frames that truncations shortened. Their records may have gaps."""
    cuts = [(entry(each.leaf).first_offset, each) for each in statements if each.is_cut]
    return [go_on for go_on, each in cuts if go_on < min(each.start, each.end)]
