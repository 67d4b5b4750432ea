"""Check that reclaiming space in the shared log dropped only frames that no topic needs.

The leaf of a frame of the shared log commits to its envelope and its batch separately, and the envelopes of
dropped frames stay as evidence. A dropped frame with records must lie below the start of its partition, or
before the end of its topic, as other frames say, dropped or not. So nobody can drop the last frames of a
partition unseen.
"""

from __future__ import annotations

import contextlib
import heapq
import struct
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from cordwood.disk import ReadableFiles, join
from cordwood.kernels import INT64_MAX
from cordwood.verify.chain import (
    Chain,
    LeafFiles,
    LeafPlanner,
    envelope_leaf,
    list_path,
    read_envelopes,
    record_leaves,
)
from cordwood.verify.metadata import PartitionBody
from cordwood.verify.report import Severity, Tally, UnlistedFrames
from cordwood.verify.segments import ENDED, LOG_START, RECORDS, EnvelopeOwner, SegmentPlan
from cordwood.verify.surviving import leafed_frames

#: The fields of an envelope that say what it is of; docs/formats/shared.md has all of them.
_ENVELOPE = struct.Struct(
    "<13x"
    "B"  # kind
    "6x"
    "I"  # partition
    "Q"  # first id
    "Q"  # org
    "16s"  # topic hash
    "Q"  # first offset
    "8x"
    "I"  # how many ids
    "4x"
)
assert _ENVELOPE.size == 80
_LEAVES = 8192


class _Event(NamedTuple):
    """A frame of the shared log in the order of appends, dropped or not."""

    leaf: int
    dropped: bool
    path: str
    kind: int
    owner: EnvelopeOwner
    first_offset: int
    next_offset: int


class _Drops(NamedTuple):
    """The end of the dropped records of a partition, the file that lists the last, and the first leaf."""

    end: int
    path: str
    leaf: int


def check_reclaimed(
    files: ReadableFiles, chain: Chain, state: PartitionBody, plans: Mapping[int, SegmentPlan], tally: Tally
) -> None:
    """Check every frame that the shared log dropped. Does nothing for other logs."""
    ranges = record_leaves(chain)
    if state.record_format != "shared" or not ranges or not chain.understood or tally.corrupt:
        return
    with tally.reading(chain.path), contextlib.ExitStack() as stack:
        leaves = stack.enter_context(contextlib.closing(LeafFiles(files, chain.path)))
        frames = stack.enter_context(contextlib.closing(files.open(join(chain.path, "frames"), "read")))
        planner = LeafPlanner(chain, state, frames)
        dropped = list(_dropped(files, chain, leaves, tally))
        present = list(_present(files, plans))
        known = {event.leaf for event in dropped} | {event.leaf for event in present}
        size = chain.head.size
        live = tuple((start, min(end, size)) for start, end in ranges if start < size)
        expired: list[int] = []
        for leaf in leaves.walk(live, _LEAVES):
            is_frame = leaf.first_offset < leaf.next_offset
            if not is_frame or leaf.number in known or not planner.is_live(leaf.number, leaf.next_offset):
                continue
            if any(start <= leaf.first_offset < end for start, end in chain.expired_ranges):
                expired.append(leaf.number)
            else:
                what = f"frame of leaf {leaf.number}, ids {leaf.first_offset} up to {leaf.next_offset}"
                expected = "the frame, or its envelope as evidence that it was dropped"
                path = join(chain.path, "lists")
                tally.add("corruption", path, None, expected=expected, found="neither", what=what)
        if expired:
            path, found = join(chain.path, "lists"), f"none of {len(expired)}, dropped, evidence expired"
            tally.unlisted.append(UnlistedFrames(path, expired[0], INT64_MAX, len(expired), expired=True))
            expected, what = "the envelope of each dropped frame", "frames of the shared log"
            tally.add("note", path, None, expected=expected, found=found, what=what)
        _check_owners(heapq.merge(dropped, present), tally, cut=len(state.epochs) > 1)


def _dropped(files: ReadableFiles, chain: Chain, leaves: LeafFiles, tally: Tally) -> Iterator[_Event]:
    """Yield the dropped frames whose envelopes are kept, by their leaves. Other envelopes are reported."""
    ranges, found = record_leaves(chain), list[_Event]()
    for statement in chain.lists:
        path = list_path(chain.path, statement.first_leaf)
        with tally.reading(path), contextlib.closing(files.open(path, "read")) as file:
            count = 0
            for kept in read_envelopes(file):
                count += 1
                committed = any(start <= kept.leaf < end for start, end in ranges)
                known = leaves.walk(((kept.leaf, kept.leaf + 1),), 1) if kept.leaf < chain.head.size else ()
                leaf = next(iter(known), None)
                if leaf is None or not committed or leaf.hash != envelope_leaf(*kept[1:]):
                    what = f"envelope of leaf {kept.leaf}"
                    expected = "what the leaf commits to"
                    tally.add("corruption", path, None, expected=expected, found="another", what=what)
                else:
                    found.append(_event(kept.leaf, kept.envelope, path, dropped=True))
            if count != statement.lists:
                expected, what = f"{statement.lists} envelopes", "envelopes of dropped frames"
                tally.add("corruption", path, None, expected=expected, found=count, what=what)
    yield from sorted(found)


def _event(leaf: int, envelope: bytes, path: str, *, dropped: bool) -> _Event:
    kind, partition, _, org, topic_hash, first, count = _ENVELOPE.unpack(envelope)
    owner = EnvelopeOwner(org, topic_hash, partition)
    return _Event(leaf, dropped, path, kind, owner, first, first + (count if kind == RECORDS else 0))


def _present(files: ReadableFiles, plans: Mapping[int, SegmentPlan]) -> Iterator[_Event]:
    """Yield the frames of the log that have leaves. Frames after damage are left out: the walk reports it."""
    for plan in plans.values():
        for found in () if plan.leaves is None else leafed_frames(files, plan, _ENVELOPE.size):
            if found.leaf is not None:
                yield _event(found.leaf.number, bytes(found.data), found.path, dropped=False)


def _check_owners(events: Iterator[_Event], tally: Tally, *, cut: bool) -> None:
    """Check that every dropped record lies below the start of its partition, or its topic ended."""
    starts: dict[EnvelopeOwner, int] = {}
    drops: dict[EnvelopeOwner, _Drops] = {}
    for event in events:
        if event.kind == ENDED:
            starts.pop(event.owner, None)
            drops.pop(event.owner, None)
        elif event.kind == LOG_START:
            starts[event.owner] = max(starts.get(event.owner, 0), event.first_offset)
        elif event.dropped:
            before = drops.get(event.owner)
            if before is None or before.end < event.next_offset:
                leaf = event.leaf if before is None else before.leaf
                drops[event.owner] = _Drops(event.next_offset, event.path, leaf)
    for owner, dropped in drops.items():
        start = starts.get(owner, 0)
        if dropped.end > start:
            # A truncation may have removed the frame that moved the start. Against a checkpoint that signs
            # for the dropped frame that is no excuse.
            severity: Severity = "note" if cut else "corruption"
            if cut:
                tally.unlisted.append(UnlistedFrames(dropped.path, dropped.leaf, INT64_MAX, 1))
            expected = f"its start at {dropped.end} or later, because records before that were dropped"
            what = f"records of {owner}"
            tally.add(severity, dropped.path, None, expected=expected, found=start, what=what)
