"""Check that compaction dropped only records that it may drop.

The lists beside a chain have the records of every frame that compaction changed. A record of such a list that
is not in the log any more must have a later record with its key, in the log or in a list, or be a tombstone
with no earlier record of its key in the log. A record without a key is never missing. "Later" goes by leaves,
because a truncation gives offsets out again. Records of aborted transactions may be missing and make no other
record go; the markers in the log say which those are, and stay as long as lists do.
"""

from __future__ import annotations

import contextlib
from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from cordwood.disk import ReadableFiles, join
from cordwood.host import process
from cordwood.kernels import INT64_MAX, ITEM_SIZE, BinaryBuffers, KeyMap
from cordwood.verify.chain import (
    Chain,
    CommittedFields,
    FrameContent,
    LeafFiles,
    LeafPlanner,
    ListFiles,
    ListPlace,
    RecordItem,
    content_of,
    item_at,
    keys_of,
    record_leaves,
)
from cordwood.verify.metadata import PartitionBody
from cordwood.verify.report import Tally, UnlistedFrames
from cordwood.verify.segments import TRANSACTIONAL, Outcomes, SegmentPlan, TransactionEvent
from cordwood.verify.surviving import leafed_frames

#: The number of keys in memory at once; more take several passes over the log.
KEYS_MAX = 1 << 24
_KEY_SIZE = 32
#: The place of a record in the order of appends: the number of its leaf, then its number in the frame.
_NUMBER_BITS = 24
_GAP = 1 << _NUMBER_BITS - 1


class _SurvivingFrame(NamedTuple):
    """A frame in the log, its leaf as first appended, and what it holds.

    ``behind`` is not 0 if it has no leaf of its own and comes after that of *leaf*. ``stays`` says that
    compaction leaves it as it is, superseded or not.
    """

    leaf: int
    path: str
    position: int
    content: FrameContent
    behind: int = 0
    stays: bool = False

    def orders(self) -> array[int]:
        """Return the place of each record in the order of appends."""
        first = (self.leaf << _NUMBER_BITS) + self.behind - self.content.fields.base_offset
        return array("q", (first + offset for offset in self.content.offsets))


def check_superseded(
    files: ReadableFiles,
    chain: Chain,
    state: PartitionBody,
    plans: Mapping[int, SegmentPlan],
    events: Sequence[TransactionEvent],
    tally: Tally,
) -> None:
    """Check every record that compaction dropped from the partition. Does nothing without lists.

    *events* are where transactions begin and end in the log.
    """
    numbers = [each.first_leaf for each in chain.lists]
    if not numbers or not chain.salt or not chain.understood:
        return
    with tally.reading(join(chain.path, "lists")), contextlib.ExitStack() as stack:
        lists = stack.enter_context(contextlib.closing(ListFiles(files, chain.path, numbers)))
        for path, position in lists.torn:
            what, found = "list of records", "something else"
            tally.add("corruption", path, position, expected="a whole list", found=found, what=what)
        leaves = stack.enter_context(contextlib.closing(LeafFiles(files, chain.path)))
        _check_lists(chain, lists, leaves, tally)
        frames = stack.enter_context(contextlib.closing(files.open(join(chain.path, "frames"), "read")))
        planner = LeafPlanner(chain, state, frames)
        _DroppedCheck(files, chain, state, plans, lists, planner, Outcomes(events), tally).run()


def _check_lists(chain: Chain, lists: ListFiles, leaves: LeafFiles, tally: Tally) -> None:
    """Compare each list with the leaf that commits to it. Lists that differ are reported and not used."""
    by_records = record_leaves(chain)
    for place in lists.places():
        known = leaves.walk(((place.leaf, place.leaf + 1),), 1) if place.leaf < chain.head.size else iter(())
        leaf = next(known, None)
        committed = any(start <= place.leaf < end for start, end in by_records)
        if leaf is None or not committed or lists.read(place).leaf() != leaf.hash:
            expected = "no list" if leaf is None or not committed else f"one that has {leaf.hash.hex()}"
            what = f"list of the records of leaf {place.leaf}"
            tally.add("corruption", place.path, place.position, expected=expected, found="another", what=what)
            lists.forget(place.leaf)


class _EndedKey(NamedTuple):
    """The place of the last record of a key, which is missing: a tombstone, or followed by truncated ones."""

    order: int
    by_tombstone: bool


class _DroppedCheck:
    """The check of one partition."""

    def __init__(
        self,
        files: ReadableFiles,
        chain: Chain,
        state: PartitionBody,
        plans: Mapping[int, SegmentPlan],
        lists: ListFiles,
        planner: LeafPlanner,
        outcomes: Outcomes,
        tally: Tally,
    ) -> None:
        self._outcomes = outcomes
        self._files = files
        self._chain = chain
        self._state = state
        self._plans = plans
        self._lists = lists
        self._planner = planner
        self._tally = tally
        #: The offsets that survive of each frame that has a list.
        self._surviving: dict[int, frozenset[int]] = {}

    def run(self) -> None:
        """Check everything, a part of the keys at a time."""
        listed = sum(place.fields.record_count for place in self._lists.places())
        passes = 1 + listed // KEYS_MAX
        for number in range(passes):
            self._check_keys(number, passes)

    def _check_keys(self, part: int, passes: int) -> None:
        """Check the records whose keys belong to *part* of *passes*."""
        places = self._lists.places()
        rows = sum(place.fields.record_count for place in places)
        # Hashes are spread evenly, so twice the average is room enough for any part of many.
        room = rows if passes == 1 else 2 * KEYS_MAX
        # The last place of each key, in the log or dropped from it, and among truncated records.
        keys, truncated = (KeyMap(max(1, room), process.new_secret()) for _ in range(2))
        wanted = _Part(part, passes)
        for place in places:
            if self._was_aborted(place.fields):
                continue
            content = self._lists.read(place)
            first = place.leaf << _NUMBER_BITS
            orders = array("q", range(first, first + len(content.offsets)))
            wanted.note(keys if self._is_live(place) else truncated, content, orders, known=False)
        for frame in self._frames():
            if not frame.behind and self._lists.find(frame.leaf) is not None:
                self._surviving[frame.leaf] = frozenset(frame.content.offsets)
            if self._was_aborted(frame.content.fields):
                continue
            wanted.note(keys, frame.content, frame.orders(), known=True)
        ended = self._check_missing(keys, truncated, wanted)
        if ended:
            self._check_deleted(ended)

    def _was_aborted(self, fields: CommittedFields) -> bool:
        """Return whether a frame was part of an aborted transaction."""
        return self._outcome(fields) is False

    def _outcome(self, fields: CommittedFields) -> bool | None:
        """Return whether the records of a frame are committed, None if the marker that says so is gone."""
        if not fields.attributes & TRANSACTIONAL:
            return True
        return self._outcomes.committed(fields.producer_id, fields.base_offset)

    def _is_live(self, place: ListPlace) -> bool:
        """Return whether the frame of a list was not truncated."""
        fields = place.fields
        return self._planner.is_live(place.leaf, fields.base_offset + fields.last_delta + 1)

    def _check_missing(self, keys: KeyMap, truncated: KeyMap, wanted: _Part) -> dict[bytes, _EndedKey]:
        """Check the missing records; return the keys of which no record may be left, and why."""
        ended: dict[bytes, _EndedKey] = {}
        for place in self._lists.places():
            fields = place.fields
            if not self._is_live(place) or self._was_aborted(fields):
                continue
            content = self._lists.read(place)
            surviving = self._surviving.get(place.leaf, frozenset())
            missing = [
                number
                for number, offset in enumerate(content.offsets)
                if offset not in surviving and offset >= self._state.log_start_offset
            ]
            superseded = wanted.superseded(keys, content, place.leaf, missing)
            last = [number for number, is_it in zip(missing, superseded, strict=True) if is_it is False]
            by_truncated = wanted.superseded(truncated, content, place.leaf, last)
            for number, was_superseded in zip(last, by_truncated, strict=True):
                item = item_at(content.items, fields.base_offset, number)
                if item.has_key and (item.is_tombstone or was_superseded):
                    order = (place.leaf << _NUMBER_BITS) + number
                    ended[item.key] = _EndedKey(order, item.is_tombstone and not was_superseded)
                else:
                    self._report_missing(place, item)
        return ended

    def _report_missing(self, place: ListPlace, item: RecordItem) -> None:
        path, position = place.path, place.position
        what = f"record at offset {item.offset}, which compaction dropped"
        expected = "a later record with its key" if item.has_key else "the record, because it has no key"
        if self._outcome(place.fields) is None and len(self._state.epochs) > 1:
            # Compaction takes only transactions that have ended, so a truncation removed the marker.
            found = "none, and the end of its transaction was truncated: not checkable"
            self._tally.add("note", path, position, expected=expected, found=found, what=what)
            return
        # Lists that are gone had leaves below their own numbers, and so may have had a later record.
        if item.has_key and place.leaf < self._chain.expired_to:
            found = "none, and evidence expired: not checkable"
            self._tally.add("note", path, position, expected=expected, found=found, what=what)
            self._tally.unlisted.append(UnlistedFrames(path, place.leaf, INT64_MAX, 1, expired=True))
        else:
            self._tally.add("corruption", path, position, expected=expected, found="none", what=what)

    def _check_deleted(self, ended: dict[bytes, _EndedKey]) -> None:
        """Check that no record is back because a later one with its key was dropped."""
        for frame in self._frames():
            if self._was_aborted(frame.content.fields):
                continue
            for offset, key, order in zip(
                frame.content.offsets, keys_of(frame.content.items), frame.orders(), strict=False
            ):
                end = ended.get(key)
                if end is None or end.order <= order or offset < self._state.log_start_offset:
                    continue
                if end.by_tombstone or not frame.stays:
                    why = "tombstone" if end.by_tombstone else "successor"
                    what = f"record at offset {offset}, whose {why} compaction dropped"
                    expected = f"no record of a key whose {why} is gone"
                    self._tally.add(
                        "corruption", frame.path, frame.position, expected=expected, found="one", what=what
                    )

    # --- the log ----------------------------------------------------------------------------------

    def _frames(self) -> Iterator[_SurvivingFrame]:
        """Yield the frames of the log. Frames after damage are left out: the walk reports it."""
        last = 0
        for plan in self._plans.values():
            claim = plan.leaves
            for found in () if claim is None else leafed_frames(self._files, plan):
                assert claim is not None
                frame, leaf = found.frame, found.leaf
                content = content_of(claim.record_format, found.data, frame.base_offset, claim.salt)
                # A frame in a gap comes after the leaf before it.
                last = max(last, found.after)
                number, behind = last, _GAP
                # Where a frame is one record, the last one of each segment stayed, and segments are merged.
                stays = claim.record_format != "batch"
                if leaf is not None:
                    last = number = leaf.number
                    behind, stays = 0, stays or not claim.commits_to_parts(leaf.number)
                elif frame.base_offset >= claim.followed:
                    # A frame without a leaf yet comes after all that have one.
                    number, behind = self._chain.head.size + frame.position, 0
                stays = stays or behind > 0
                yield _SurvivingFrame(number, found.path, frame.position, content, behind, stays)


class _Part(NamedTuple):
    """The keys whose hash belongs to *part* of *passes*."""

    part: int
    passes: int

    def _has(self, key: bytes) -> bool:
        return self.passes == 1 or int.from_bytes(key[:4], "big") % self.passes == self.part

    def note(self, keys: KeyMap, content: FrameContent, orders: array[int], *, known: bool) -> None:
        """Note the last place of each key; with *known*, only of keys that were noted before."""
        rows = [row for row, key in enumerate(keys_of(content.items)) if self._has(key)]
        rows = [row for row in rows if item_at(content.items, 0, row).has_key]
        if rows:
            column = _column(content, rows)
            places = array("q", (orders[row] for row in rows)).tobytes()
            noted = keys.note(column, places, len(rows), known=known)
            assert noted == len(rows), "the map has room for every key of a part"

    def superseded(
        self, keys: KeyMap, content: FrameContent, leaf: int, rows: list[int]
    ) -> list[bool | None]:
        """Return for each of *rows* whether its key has a later record; None if another pass says that."""
        mine = [row for row in rows if self._has(item_at(content.items, 0, row).key)]
        places = array("q", ((leaf << _NUMBER_BITS) + row for row in mine)).tobytes()
        flags = iter(keys.superseded(_column(content, mine), places, len(mine)) if mine else b"")
        found = {row: bool(next(flags)) for row in mine}
        return [
            found.get(row) if item_at(content.items, 0, row).has_key else (False if row in found else None)
            for row in rows
        ]


def _column(content: FrameContent, rows: list[int]) -> BinaryBuffers:
    """Return the hashes of the keys of *rows* as a column."""
    data = b"".join(content.items[row * ITEM_SIZE + 1 : row * ITEM_SIZE + 1 + _KEY_SIZE] for row in rows)
    offsets = array("i", range(0, len(data) + 1, _KEY_SIZE)).tobytes()
    return BinaryBuffers(None, offsets, data, 0)
