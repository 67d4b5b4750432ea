"""Plan reads of many topics in the shared log with as few tasks as for one topic.

The records of these topics are interleaved in one log, where each has an id. So a task reads stretches of ids
and filters the requested records. The driver knows the ids of every partition and decides here which records
belong to which task; a task gets only the data it needs. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from pyroaring import BitMap64

from cordwood.formats.shared import Owner
from cordwood.spark.access.access import Piece
from cordwood.storage.shared import Offsets

#: Bytes between two requested records are not read if the distance is larger than this.
SKIP_BYTES = 64 << 10
#: The approximate limit of stretches in a plan; in a larger log they are longer.
STRETCHES_MAX = 1 << 14
_END_OF_IDS = 1 << 63


class Weights(Protocol):
    """The sizes in the shared log; see `View`."""

    def bytes_within(self, start: int, end: int) -> int:
        """Return the approximate bytes of the ids [start, end)."""

    def cuts(self, start: int, end: int, bytes_max: int) -> list[int]:
        """Return ids of frame starts that split (start, end) into pieces of about the same size."""


class GatheredRange(NamedTuple):
    """Records of one partition: the offsets of *piece*, with ids from *first_id* up to *end_id*.

    Every record of the owner between these ids belongs to the range. Outside, a deleted topic of the same
    name may have records with the same offsets.
    """

    owner: Owner
    piece: Piece
    first_id: int
    end_id: int


class Gathered(NamedTuple):
    """The work of one task: half-open stretches of ids to read, in order, and the requested ranges."""

    stretches: tuple[tuple[int, int], ...]
    wanted: tuple[GatheredRange, ...]


class GatheredPart(NamedTuple):
    """A range of offsets to read, the owner of its frames, and the ids of its partition."""

    piece: Piece
    owner: Owner
    offsets: Offsets


class Gathering:
    """Ranges of many partitions as one sequence of records, which can be split by record number."""

    def __init__(self, parts: Sequence[GatheredPart], weights: Weights, bytes_max: int) -> None:
        """Take the ranges to read, none empty; a task reads at most about *bytes_max*."""
        self._parts = [(part, *_ids_of(part)) for part in parts]
        self._ids = BitMap64()
        for part, first, end in self._parts:
            self._ids.update(_between(part.offsets.ids, first, end))
        first, end = int(self._ids.min()), int(self._ids.max()) + 1
        size = max(weights.bytes_within(first, end), 1)
        apart = max(SKIP_BYTES, size // STRETCHES_MAX)
        self._apart = max(apart * (end - first) // size, 1)
        #: The best record numbers at which to split it.
        self.cuts = self._cuts(weights, bytes_max)

    def __len__(self) -> int:
        """Return the number of records to read."""
        return len(self._ids)

    def part(self, start: int, end: int) -> Gathered:
        """Return the work for records number *start* up to *end*, in the order of ids."""
        first, stop = int(self._ids[start]), int(self._ids[end - 1]) + 1
        wanted = []
        for (piece, owner, offsets), first_id, end_id in self._parts:
            if first_id < stop and first < end_id:
                low = max(piece.start, offsets.below(first))
                high = min(piece.end, offsets.below(stop))
                if low < high:
                    ids = offsets.id_of(low), offsets.id_of(high - 1) + 1
                    wanted.append(GatheredRange(owner, piece._replace(start=low, end=high), *ids))
        return Gathered(tuple(self._stretches(start, end)), tuple(wanted))

    def _stretches(self, start: int, end: int) -> list[tuple[int, int]]:
        """Return stretches with records number *start* up to *end* and few others."""
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
        """Return the record numbers at which to split, so that each task reads at most about *bytes_max*."""
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


def _ids_of(part: GatheredPart) -> tuple[int, int]:
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
