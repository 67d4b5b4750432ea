"""What the leaves of a chain say together: which of them are those of frames that can still be in the log.

Leaves are in the order in which frames were appended, so their offsets rise, until something else is said: a
cut begins offsets again lower, and a compaction gives frames that it wrote anew other leaves. Both break the
leaves into runs in which offsets rise.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple

import msgspec

_NO_CUT = (1 << 63) - 1


class Statement(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a leaf says that is no frame.

    ``truncated``: the log was cut at ``start`` on purpose, which began ``leader_epoch``; leaves of frames
    that reached up to ``end`` are of records that are gone. ``lost``: the log ends at ``start`` though nobody
    cut it, and leaves reach up to ``end``. ``gap``: no leaf has the frames of [start, end), for the reason
    given. ``removed``: [start, end) is let go, by the policy that ``reason`` names.

    ``compacted``: the segment [start, end) is written anew as its ``generation``, in ``frames`` frames whose
    leaves have the Merkle root ``root``. Those of them that are not as they were have the ``moved`` leaves
    right before this one. It is said before it is done, so a crash may leave one of what never was.
    """

    kind: Literal["truncated", "lost", "gap", "removed", "compacted"]
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

    @property
    def is_cut(self) -> bool:
        """Whether offsets begin again lower after it."""
        return self.kind in {"truncated", "lost"}

    def encoded(self) -> bytes:
        """Return the line in the file."""
        return msgspec.json.encode(self)


class Entry(NamedTuple):
    """The offsets [first, next) of a leaf's frame."""

    first_offset: int
    next_offset: int

    @property
    def is_frame(self) -> bool:
        """Whether the leaf is that of a frame, and not of a statement."""
        return self.first_offset < self.next_offset


EntryOf = Callable[[int], Entry]


class Run(NamedTuple):
    """Leaves [start, end) in which offsets rise. Those of frames that reach beyond ``below`` are void.

    Of leaves that a compaction moved, ``generation`` is the one that it made; else 0.
    """

    start: int
    end: int
    below: int
    generation: int


class Lineage:
    """The runs of a chain of *size* leaves, of which *statements* are known, oldest first."""

    def __init__(self, size: int, statements: Sequence[Statement]) -> None:
        self._runs: list[Run] = []
        end, below = size, _NO_CUT
        # From the end, so that each run is told of every cut that came after it.
        for statement in reversed(statements):
            self._runs.append(Run(statement.leaf + 1, end, below, 0))
            end = statement.leaf
            if statement.is_cut:
                below = min(below, statement.start)
            elif statement.kind == "compacted":
                end -= statement.moved
                self._runs.append(Run(end, statement.leaf, below, statement.generation))
        self._runs.append(Run(0, end, below, 0))

    def runs(self, generation: int) -> Iterator[Run]:
        """Yield the runs that count for a segment of *generation*, in the order in which they do."""
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
