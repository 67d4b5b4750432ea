"""Find the leaves that the frames of a partition's segments must have.

Written against docs/integrity.md, independent of the code that writes chains. Leaves are in the order of
appends, so their offsets ascend until a statement. Statements therefore divide the leaves into spans with
ascending offsets, and the leaves of one segment are found in each by bisection.
"""

from __future__ import annotations

import contextlib
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from typing import NamedTuple

import msgspec

from cordwood.disk import ReadableFile, ReadableFiles, join
from cordwood.kernels import SALT_SIZE
from cordwood.verify.frame import INT64_MAX
from cordwood.verify.metadata import (
    JSON_ERRORS,
    ChainHeadBody,
    Count,
    PartitionBody,
    Text,
    check_json,
    read_bytes,
)
from cordwood.verify.report import Tally

ENTRY = struct.Struct(
    ">"
    "q"  # first offset of the leaf's frame
    "q"  # the offset after it; equal for a leaf that is not a frame
)
assert ENTRY.size == 16
CUTS = frozenset({"truncated", "lost"})
SHARED = "shared"
KINDS = CUTS | {"gap", "removed", "compacted", "policy", "kept", "expired"}


class LeafStatement(msgspec.Struct, frozen=True):
    """The content of a leaf that is not a frame; docs/integrity.md has the kinds."""

    kind: Text
    leaf: Count
    start: Count
    end: Count
    leader_epoch: Count
    noted_ms: int
    reason: str = ""
    generation: Count = 0
    frames: Count = 0
    moved: Count = 0
    root: str = ""
    lists: Count = 0
    evidence: str = ""
    leaves: str = ""
    salt: str = ""

    @property
    def first_leaf(self) -> int:
        """The first leaf that was added with it: the number of its file of lists."""
        return self.leaf - self.moved

    @property
    def is_cut(self) -> bool:
        """Whether offsets continue lower after it."""
        return self.kind in CUTS


_STATEMENT = msgspec.json.Decoder(LeafStatement)


Ranges = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Chain:
    """Head and statements of a chain at one moment; *path* is its directory.

    ``statements`` is None if they cannot be read; then single frames cannot be checked.
    """

    path: str
    head: ChainHeadBody
    lines: tuple[bytes, ...]
    statements: tuple[LeafStatement, ...] | None
    salt: bytes = b""

    @property
    def lists(self) -> tuple[LeafStatement, ...]:
        """The statements whose lists are kept, oldest first."""
        return tuple(each for each in self._listing if each.first_leaf >= self.expired_to)

    @property
    def _listing(self) -> tuple[LeafStatement, ...]:
        return tuple(each for each in self.statements or () if each.lists and each.kind != "expired")

    @property
    def expired_to(self) -> int:
        """The number below which files of lists were removed, as a statement says; 0 without one."""
        said = self.statements or ()
        return max((min(each.lists, each.leaf) for each in said if each.kind == "expired"), default=0)

    @property
    def expired_ranges(self) -> Ranges:
        """The offsets [start, end) of compactions whose lists were removed."""
        gone = (each for each in self._listing if each.first_leaf < self.expired_to)
        return tuple((each.start, each.end) for each in gone)

    @property
    def understood(self) -> bool:
        """Whether all statements are of known kinds, so that frames can be compared."""
        return self.statements is not None and all(each.kind in KINDS for each in self.statements)


class LeafSpan(NamedTuple):
    """Leaves [start, end) with ascending offsets, from ``first_offset`` up to ``next_offset``.

    Leaves whose frames reach beyond ``ceiling`` are void: a later truncation removed them. ``generation`` is
    0 in the main run, else that of the compaction that rewrote these frames.
    """

    start: int
    end: int
    first_offset: int
    next_offset: int
    ceiling: int
    generation: int


@dataclass(frozen=True, slots=True)
class SegmentLeaves:
    """The leaves of one segment. Does not change while the chain grows.

    ``main`` are ranges of leaves in the order of offsets, ``moved`` ranges of leaves of rewritten frames,
    newest first. Frames at or after ``followed`` have no leaves yet, those that end at or before ``begun``
    and those in ``gaps`` never got any; offsets below ``readable_from`` cannot be read. ``testimony`` is the
    number of frames that a compaction left here and the root over their leaves. ``by_records`` are the ranges
    of leaves that commit to records, with the hashes of keys under ``salt``; ``lists`` are the numbers of the
    files with lists of records that compaction dropped here; those of the offsets in ``expired`` were removed
    by a statement. Leaves of rewritten frames from ``marked_from`` on are marked as such. ``stated_at`` is
    the leaf of the compaction's statement, or beyond all leaves without one.
    """

    chain: str
    generation: int
    main: Ranges
    moved: Ranges
    gaps: Ranges
    begun: int
    followed: int
    readable_from: int
    testimony: tuple[int, str] | None
    record_format: str = "batch"
    by_records: Ranges = ()
    salt: bytes = b""
    lists: tuple[int, ...] = ()
    expired: Ranges = ()
    stated_at: int = INT64_MAX
    marked_from: int = INT64_MAX

    def commits_to_parts(self, leaf: int) -> bool:
        """Return whether *leaf* commits to the records of its frame."""
        at = bisect_right(self.by_records, (leaf, INT64_MAX)) - 1
        return at >= 0 and leaf < self.by_records[at][1]

    def covers(self, base: int, next_offset: int) -> bool:
        """Return whether the leaves alone cover every byte of a sealed segment."""
        whole = self.begun <= base and self.followed >= next_offset and not self.gaps
        return whole and (not self.generation or self.testimony is not None)


def read_chain(files: ReadableFiles, directory: str, tally: Tally) -> Chain | None:
    """Return the chain of the partition in *directory*; None without one, or without a head."""
    path = join(directory, "chain")
    head_path, chain = join(path, "head"), None
    with tally.reading(head_path):
        if not files.exists(head_path):
            if _has_leaves(files, join(path, "leaves")):
                found = "leaves without it"
                tally.add("corruption", head_path, None, expected="a file", found=found, what="chain")
            return None
        data = read_bytes(tally, files, head_path)
        head = None if data is None else check_json(tally, head_path, data, ChainHeadBody)
        if head is None:
            return None
        lines = _read_lines(files, join(path, "statements"), head.statements_size, tally)
        statements = None if lines is None else _parsed(path, lines, head, tally)
        salt = _read_salt(files, path, statements or (), tally)
        chain = Chain(path, head, lines or (), statements, salt)
    return chain  # noqa: RET504 - `reading` takes errors in, so there may be none


def _read_salt(files: ReadableFiles, path: str, statements: tuple[LeafStatement, ...], tally: Tally) -> bytes:
    """Return the salt that the statements name; empty without one, or after reporting that it is wrong."""
    named = sorted({each.salt for each in statements if each.salt})
    if not named:
        return b""
    salt_path = join(path, "salt")
    salt = read_bytes(tally, files, salt_path)
    if salt is not None and [sha256(salt).hexdigest()] == named and len(salt) == SALT_SIZE:
        return salt
    if salt is not None:
        expected = f"{SALT_SIZE} bytes with the SHA-256 {' and '.join(named)}"
        found = f"{len(salt)} with {sha256(salt).hexdigest()}"
        tally.add("corruption", salt_path, 0, expected=expected, found=found, what="salt of the chain")
    return b""


def statements_of(files: ReadableFiles, directory: str) -> tuple[LeafStatement, ...]:
    """Return the readable statements of the partition in *directory*, oldest first."""
    chain = read_chain(files, directory, Tally())
    return () if chain is None else chain.statements or ()


def _has_leaves(files: ReadableFiles, path: str) -> bool:
    if not files.exists(path):
        return False
    with contextlib.closing(files.open(path, "read")) as file:
        return file.size() > 0


def _read_lines(files: ReadableFiles, path: str, size: int, tally: Tally) -> tuple[bytes, ...] | None:
    """Return the bytes of the statements, None after reporting why they cannot be read."""
    if not size:
        return ()
    lines = None
    with tally.reading(path), contextlib.closing(files.open(path, "read")) as file:
        tally.show_progress(path, 0)
        # Reads no more than exists: the size in the head may be wrong.
        data = file.read_at(0, min(size, file.size()))
        if len(data) == size and data.endswith(b"\n"):
            tally.bytes += size
            lines = tuple(data[:-1].split(b"\n"))
        else:
            expected, found = f"{size} bytes of whole lines", f"{len(data)} bytes"
            tally.add("corruption", path, len(data), expected=expected, found=found, what="statements")
    return lines


def _parsed(
    path: str, lines: tuple[bytes, ...], head: ChainHeadBody, tally: Tally
) -> tuple[LeafStatement, ...] | None:
    """Return the statements in the lines, None after reporting the unusable one."""
    found: list[LeafStatement] = []
    position, least = 0, 0
    path = join(path, "statements")
    for line in lines:
        try:
            statement = _STATEMENT.decode(line)
        except JSON_ERRORS as error:
            expected = "the fields of docs/integrity.md"
            tally.add("corruption", path, position, expected=expected, found=error, what="statement")
            return None
        if not least <= statement.leaf - statement.moved <= statement.leaf < head.size:
            expected = f"{least} to {head.size - 1}, those that it moved before it"
            found_leaf = f"{statement.leaf}, {statement.moved} moved"
            tally.add(
                "corruption", path, position, expected=expected, found=found_leaf, what="leaf of a statement"
            )
            return None
        position += len(line) + 1
        least = statement.leaf + 1
        found.append(statement)
    return tuple(found)


class LeafPlanner:
    """Finds the leaves of segments. Reads entries of the chain's file ``frames``, a few for each segment."""

    def __init__(self, chain: Chain, state: PartitionBody, file: ReadableFile) -> None:
        """Take a chain whose statements are known; *file* is its ``frames``."""
        assert chain.statements is not None
        self._chain = chain
        self._file = file
        self.followed = chain.head.next_offset
        self._log_start = state.log_start_offset
        self._record_format = state.record_format
        policies = (each.leaf for each in chain.statements or () if each.kind == "policy")
        self._marked_from = min(policies, default=INT64_MAX)
        self._by_records = record_leaves(chain)
        pending = pending_cut(chain.head, state)
        if pending is not None:
            self.followed = self._goes_on_at(pending)
        self._lay_out(INT64_MAX if pending is None else pending)

    def _lay_out(self, ceiling: int) -> None:
        """Divide the leaves into spans, backwards, because each is limited by all later truncations."""
        main: list[LeafSpan] = []
        self._moved: list[LeafSpan] = []
        self._gaps: list[tuple[int, int]] = []
        self._testimonies: dict[tuple[int, int, int], tuple[int, str]] = {}
        self._stated_at: dict[tuple[int, int, int], int] = {}
        end = self._chain.head.size
        for each in reversed(self._chain.statements or ()):
            main += self._span(each.leaf + 1, end, ceiling, 0)
            end = each.leaf
            if each.is_cut:
                ceiling = min(ceiling, each.start)
            elif each.kind == "gap" and each.start < min(each.end, ceiling):
                self._gaps.append((each.start, min(each.end, ceiling)))
            elif each.kind == "compacted":
                end -= each.moved
                self._moved += self._span(end, each.leaf, ceiling, each.generation)
                if each.end <= ceiling:
                    # A segment that was truncated and has grown again is not the compacted one, whatever its
                    # size.
                    said = each.frames, each.root
                    place = (each.start, each.end, each.generation)
                    self._testimonies.setdefault(place, said)
                    self._stated_at.setdefault(place, each.leaf)
        main += self._span(0, end, ceiling, 0)
        self._main = main[::-1]
        self._gaps = _joined(sorted(self._gaps))

    def _span(self, start: int, end: int, ceiling: int, generation: int) -> list[LeafSpan]:
        if start >= end:
            return []
        offsets = self._entry(start)[0], self._entry(end - 1)[1]
        return [LeafSpan(start, end, *offsets, ceiling, generation)]

    def of(self, base: int, next_offset: int, generation: int, *, sealed: bool) -> SegmentLeaves:
        """Return the leaves of the segment with these offsets; an active one has no end."""
        end = next_offset if sealed else INT64_MAX
        # There may be many spans, and few of them belong to this segment.
        main = [span for span in self._main if span.first_offset < end and span.next_offset > base]
        moved = [
            span
            for span in self._moved
            if span.first_offset < end and span.next_offset > base and span.generation <= generation
        ]
        return SegmentLeaves(
            chain=self._chain.path,
            generation=generation,
            main=tuple(found for span in main for found in self._within(span, base, end)),
            moved=tuple(found for span in moved for found in self._within(span, base, end)),
            gaps=tuple(gap for gap in self._gaps if gap[0] < end and gap[1] > base),
            begun=self._chain.head.first_offset,
            followed=min(self.followed, end),
            readable_from=min(max(self._log_start, base), end),
            testimony=self._testimonies.get((base, next_offset, generation)) if generation else None,
            record_format=self._record_format,
            by_records=self._by_records if self._chain.salt or self._record_format == SHARED else (),
            salt=self._chain.salt,
            lists=tuple(
                each.first_leaf for each in self._chain.lists if each.start < end and each.end > base
            ),
            expired=tuple(each for each in self._chain.expired_ranges if each[0] < end and each[1] > base),
            marked_from=self._marked_from,
            stated_at=self._stated_at.get((base, next_offset, generation), INT64_MAX),
        )

    def is_live(self, leaf: int, next_offset: int) -> bool:
        """Return whether the frame of a leaf of the main run was not truncated. *next_offset* is its end."""
        return any(span.start <= leaf < span.end and next_offset <= span.ceiling for span in self._main)

    def _within(self, span: LeafSpan, base: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield the leaves of *span* whose frames overlap [base, end) and are not void, if there are any.

        No frame reaches into another segment. A leaf that does is of no frame here, and will be missed.
        """
        leaves = range(span.start, span.end)
        start = bisect_right(leaves, base, key=lambda leaf: self._entry(leaf)[1])
        before_end = bisect_left(leaves, end, key=lambda leaf: self._entry(leaf)[0])
        not_void = bisect_right(leaves, span.ceiling, key=lambda leaf: self._entry(leaf)[1])
        stop = min(before_end, not_void)
        if start < stop:
            yield span.start + start, span.start + stop

    def _goes_on_at(self, cut: int) -> int:
        """Return where leaves will continue after a truncation that has no statement yet.

        That is at the truncation, or at the start of the frame that it shortened.
        """
        if cut >= self._chain.head.next_offset:
            return self._chain.head.next_offset
        self._lay_out(INT64_MAX)
        for span in reversed(self._main):
            leaves = range(span.start, span.end)
            at = span.start + bisect_right(leaves, cut, key=lambda leaf: self._entry(leaf)[1])
            if at < span.end and self._entry(at)[1] <= span.ceiling:
                first = self._entry(at)[0]
                if first < cut:
                    return first
        return cut

    def _entry(self, leaf: int) -> tuple[int, int]:
        data = self._file.read_at(leaf * ENTRY.size, ENTRY.size)
        # If the file is too short, the check of the chain reports it.
        return ENTRY.unpack(data) if len(data) == ENTRY.size else (INT64_MAX, INT64_MAX)


def record_leaves(chain: Chain) -> Ranges:
    """Return the ranges of leaves of the main run that commit to parts of frames; the last one has no end."""
    found: list[tuple[int, int]] = []
    since: int | None = None
    for each in chain.statements or ():
        if each.kind == "policy":
            if since is not None:
                found.append((since, each.leaf))
            since = each.leaf + 1 if each.leaves in ("records", "envelopes") else None
        elif each.moved and since is not None:
            # Leaves of frames that compaction wrote commit to bytes.
            found.append((since, each.first_leaf))
            since = each.leaf + 1
    if since is not None:
        found.append((since, INT64_MAX))
    return tuple((start, end) for start, end in found if start < end)


def _joined(gaps: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the gaps with adjacent ones merged: a frame may lie in both."""
    joined: list[tuple[int, int]] = []
    for start, end in gaps:
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((start, end))
    return joined


def pending_cut(head: ChainHeadBody, state: PartitionBody) -> int | None:
    """Return where the log was truncated since the last leaf was added, None if it was not."""
    cuts = [each.start_offset for each in state.epochs if each.epoch > head.leader_epoch]
    return min(cuts, default=None)
