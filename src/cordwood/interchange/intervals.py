"""How many records lie between two entries of an original's index, so that its export has as many."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from cordwood.disk import Files
from cordwood.interchange.directories import content, segments

#: The default of RustLog, and that of an export without an original.
INDEX_INTERVAL = 100
INDEX_ENTRY = struct.Struct(">QQ")


class IndexedSegment(NamedTuple):
    """A segment of *records* records from *base* on, without gaps, and the offsets that its index has."""

    base: int
    records: int
    offsets: Sequence[int]


def indexed_offsets(files: Files, directory: str, suffix: str) -> dict[int, list[int]]:
    """Return the offsets in each index of a partition, by the number in the name of its file."""
    found = dict[int, list[int]]()
    for base, path in segments(files, directory, suffix):
        data = bytes(content(files, path))
        whole = len(data) - len(data) % INDEX_ENTRY.size
        found[base] = [offset for offset, _ in INDEX_ENTRY.iter_unpack(data[:whole])]
    return found


def interval_of(indexed: Iterable[IndexedSegment]) -> int | None:
    """Return how many records lie between two entries, the same number everywhere; None if there is none.

    Segments with one entry only say that it is not less than their records.
    """
    every = list(indexed)
    found = {second - first for each in every for first, second in pairwise(each.offsets)}
    least = max((each.records for each in every), default=0)
    interval = min(found) if found else max(INDEX_INTERVAL, least)
    if interval < 1 or any(
        list(each.offsets) != list(range(each.base, each.base + each.records, interval)) for each in every
    ):
        return None
    return interval
