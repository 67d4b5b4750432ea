"""Planning for topics in the shared log: many partitions, one range of ids, as few tasks as for one topic.

The records of such topics lie among each other in one log, where each has an id. So what a task reads is
stretches of ids, and of what lies there the records that were asked for. Whose they are is decided here, by
the driver, who knows which ids every partition has; a task is told as much as it needs. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from pyroaring import BitMap64

from cordwood.formats.envelope import Owner
from cordwood.spark.access import Piece
from cordwood.storage.virtual_topics import Offsets

#: Between two wanted records that lie further apart than this, what lies there is not read.
SKIP_BYTES = 64 << 10
#: A plan has no more stretches than about this many: those of a larger log are longer.
STRETCHES_MAX = 1 << 14
_END_OF_IDS = 1 << 63


class Weights(Protocol):
    """What is known of the sizes in the shared log; see `View`."""

    def bytes_within(self, start: int, end: int) -> int:
        """Return about how many bytes the ids [start, end) take."""

    def cuts(self, start: int, end: int, bytes_max: int) -> list[int]:
        """Return ids where frames start that cut (start, end) into pieces of about the same size."""


class Wanted(NamedTuple):
    """Records of one partition: the offsets of *piece*, which have ids from *first_id* up to *end_id*.

    Between these two ids every record of the owner is one of them. Beyond, there may be those of a topic of
    the same name that was deleted, with the same offsets.
    """

    owner: Owner
    piece: Piece
    first_id: int
    end_id: int


class Gathered(NamedTuple):
    """The work of one task: half-open stretches of ids to read, in order, and what is wanted of them."""

    stretches: tuple[tuple[int, int], ...]
    wanted: tuple[Wanted, ...]


class Part(NamedTuple):
    """A range of offsets that is to be read, whose frames these are, and which ids its partition has."""

    piece: Piece
    owner: Owner
    offsets: Offsets


class Gathering:
    """Ranges of many partitions as one whole, which is cut by the number of records that come before."""

    def __init__(self, parts: Sequence[Part], weights: Weights, bytes_max: int) -> None:
        """Take what is to be read, none of it empty; a task is to read about *bytes_max* at most."""
        self._parts = [(part, *_ids_of(part)) for part in parts]
        self._ids = BitMap64()
        for part, first, end in self._parts:
            self._ids.update(_between(part.offsets.ids, first, end))
        first, end = int(self._ids.min()), int(self._ids.max()) + 1
        size = max(weights.bytes_within(first, end), 1)
        apart = max(SKIP_BYTES, size // STRETCHES_MAX)
        self._apart = max(apart * (end - first) // size, 1)
        #: After how many records it is best cut.
        self.cuts = self._cuts(weights, bytes_max)

    def __len__(self) -> int:
        """Return how many records are to be read."""
        return len(self._ids)

    def part(self, start: int, end: int) -> Gathered:
        """Return the work that gives the records from the *start*-th up to the *end*-th, by their ids."""
        first, stop = int(self._ids[start]), int(self._ids[end - 1]) + 1
        wanted = []
        for (piece, owner, offsets), first_id, end_id in self._parts:
            if first_id < stop and first < end_id:
                low = max(piece.start, offsets.below(first))
                high = min(piece.end, offsets.below(stop))
                if low < high:
                    ids = offsets.id_of(low), offsets.id_of(high - 1) + 1
                    wanted.append(Wanted(owner, piece._replace(start=low, end=high), *ids))
        return Gathered(tuple(self._stretches(start, end)), tuple(wanted))

    def _stretches(self, start: int, end: int) -> list[tuple[int, int]]:
        """Return stretches that hold the records from the *start*-th up to the *end*-th, and little else."""
        found: list[tuple[int, int]] = []
        while start < end:
            first = int(self._ids[start])
            start = min(int(self._ids.rank(first + self._apart - 1)), end)
            stop = int(self._ids[start - 1]) + 1
            if found and first - found[-1][1] < self._apart:
                first, _ = found.pop()
            found.append((first, stop))
        return found

    def _cuts(self, weights: Weights, bytes_max: int) -> list[int]:
        """Return after how many records to cut, so that each task has about *bytes_max* to read at most."""
        ids: list[int] = []
        room = bytes_max
        for first, stop in self._stretches(0, len(self._ids)):
            size = weights.bytes_within(first, stop)
            if size > room and room < bytes_max:
                ids.append(first)
                room = bytes_max
            if size > bytes_max:
                inner = weights.cuts(first, stop, bytes_max)
                ids += inner
                size //= len(inner) + 1
            room -= size
        return [int(self._ids.rank(id_ - 1)) for id_ in ids]


def _ids_of(part: Part) -> tuple[int, int]:
    """Return the id of the first record, and the one after that of the last."""
    return part.offsets.id_of(part.piece.start), part.offsets.id_of(part.piece.end - 1) + 1


def _between(ids: BitMap64, first: int, end: int) -> BitMap64:
    """Return those of *ids* in [first, end)."""
    if first <= ids.min() and ids.max() < end:
        return ids
    inside = ids.copy()
    inside.remove_range(0, first)
    inside.remove_range(end, _END_OF_IDS)
    return inside
