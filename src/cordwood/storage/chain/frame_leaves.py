"""Compute the leaves of frames: over their bytes, or over their records as well."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from cordwood.errors import FrameError
from cordwood.integrity import merkle, record_leaf
from cordwood.kernels import ITEM_SIZE, Want, hash_records, list_roots
from cordwood.storage.log import FrameRun

_WANT = Want.OFFSET | Want.TIMESTAMP | Want.KEY | Want.VALUE | Want.HEADERS


class FrameBytes(NamedTuple):
    """A frame and its offsets [first, next)."""

    first_offset: int
    next_offset: int
    data: memoryview


class ListedFrame(NamedTuple):
    """A frame, the leaf that commits to its records, and what the leaf is made of."""

    first_offset: int
    next_offset: int
    data: memoryview
    leaf: bytes
    facts: record_leaf.LeafFacts
    items: memoryview


def frames_of(run: FrameRun) -> Iterator[FrameBytes]:
    """Yield the frames of *run* with their offsets."""
    table, buffer = run.table, memoryview(run.buffer)
    last_end = table.position(run.first) + len(run.data)
    for number in range(run.first, run.last + 1):
        end = table.position(number + 1) if number < run.last else last_end
        data = buffer[table.position(number) : end]
        yield FrameBytes(table.base_offset(number), table.next_offset(number), data)


def frame_leaf(frame: FrameBytes) -> bytes:
    """Return the leaf that commits to the bytes of a frame."""
    return merkle.leaf_hash(frame.data)


def listed_frames(run: FrameRun, salt: bytes) -> Iterator[ListedFrame]:
    """Yield the frames of *run* with leaves that commit to their records.

    The list of a frame that contradicts itself although its checksum is correct is empty.
    """
    table, numbers = run.table, range(run.first, run.last + 1)
    try:
        columns = run.columns(_WANT)
    except FrameError:
        if len(numbers) > 1:
            for number in numbers:
                yield from listed_frames(replace(run, first=number, last=number), salt)
            return
        (frame,) = frames_of(run)
        facts = record_leaf.facts_of(run.format.name, frame.data, frame.first_offset)
        leaf = record_leaf.record_leaf(facts, merkle.EMPTY_ROOT)
        yield ListedFrame(*frame, leaf, facts, memoryview(b""))
        return
    assert columns.offset is not None
    counts = [table.record_count(number) for number in numbers]
    items = memoryview(hash_records(columns, salt)).cast("B")
    roots = memoryview(list_roots(items, columns.offset, array("q", counts).tobytes())).cast("B")
    row = 0
    for at, (frame, count) in enumerate(zip(frames_of(run), counts, strict=True)):
        facts = record_leaf.facts_of(run.format.name, frame.data, frame.first_offset)
        root = bytes(roots[at * merkle.HASH_SIZE : (at + 1) * merkle.HASH_SIZE])
        listed = items[row * ITEM_SIZE : (row + count) * ITEM_SIZE]
        yield ListedFrame(*frame, record_leaf.record_leaf(facts, root), facts, listed)
        row += count
