"""Compare the frames of a segment with their leaves while they are read."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeAlias

from cordwood.disk import ReadableFile, ReadableFiles, join
from cordwood.kernels import INT64_MAX, ITEM_SIZE
from cordwood.verify.chain.leaves import ENTRY, SHARED, Ranges, SegmentLeaves
from cordwood.verify.chain.listed import FrameContent, ListFiles, content_of, leaf_of, moved_leaf
from cordwood.verify.chain.tree import HASH_BYTES, PassingTree
from cordwood.verify.report import Tally, UnlistedFrames

#: The number of leaves in memory: of the main run, and of each compaction, of which there may be many.
_MAIN_LEAVES, _MOVED_LEAVES = 8192, 256


LoadFrame: TypeAlias = Callable[[], bytes | memoryview]
"""Returns the bytes of a frame."""


class Leaf(NamedTuple):
    """A leaf, and the offsets of its frame."""

    first_offset: int
    next_offset: int
    hash: bytes
    number: int


class LeafMismatch(NamedTuple):
    """A place where the frames of a segment differ from their leaves."""

    position: int
    expected: str
    found: str
    what: str


class LeafFiles:
    """The leaves of a chain and the offsets of their frames, read-only."""

    def __init__(self, files: ReadableFiles, chain: str) -> None:
        """Open both files.

        Raises:
            OSError: If one cannot be opened.
        """
        with contextlib.ExitStack() as stack:
            self._leaves, self._frames = (
                stack.enter_context(contextlib.closing(files.open(join(chain, name), "read")))
                for name in ("leaves", "frames")
            )
            self._opened = stack.pop_all()

    def close(self) -> None:
        """Close the files."""
        self._opened.close()

    def walk(self, ranges: Ranges, at_once: int) -> Iterator[Leaf]:
        """Yield the leaves of *ranges*; ends early if a file is too short.

        The check of the chain reports a short file.
        """
        for start, end in ranges:
            for first in range(start, end, at_once):
                count = min(at_once, end - first)
                hashes = _read(self._leaves, first, count, HASH_BYTES)
                entries = ENTRY.iter_unpack(_read(self._frames, first, count, ENTRY.size))
                for number, (offset, next_offset) in enumerate(entries, first):
                    at = (number - first) * HASH_BYTES
                    yield Leaf(offset, next_offset, hashes[at : at + HASH_BYTES], number)


def _read(file: ReadableFile, first: int, count: int, width: int) -> bytes:
    data = file.read_at(first * width, count * width)
    return data[: len(data) // width * width]


class FrameCompare:
    """Compares the frames of one segment, in the order of offsets, with their leaves."""

    def __init__(self, files: ReadableFiles, leaves: SegmentLeaves, path: str, tally: Tally) -> None:
        """Take the segment whose log is at *path*.

        Raises:
            OSError: If leaves cannot be read.
        """
        self._claim = leaves
        self._path = path
        self._tally = tally
        self._files = LeafFiles(files, leaves.chain)
        self._main = _LeafCursor(self._files.walk(leaves.main, _MAIN_LEAVES))
        self._moved = [_LeafCursor(self._files.walk((each,), _MOVED_LEAVES)) for each in leaves.moved]
        self._tree = PassingTree() if leaves.testimony is not None else None
        self._first_break: LeafMismatch | None = None
        self._breaks = 0
        self._unproven = 0
        self._expired: list[int] = []
        self._unlisted: list[int] = []
        try:
            self._lists = ListFiles(files, leaves.chain, leaves.lists)
        except BaseException:
            self._files.close()
            raise
        self._intact = True

    def close(self) -> None:
        """Close the files."""
        self._files.close()
        self._lists.close()

    def skip(self) -> None:
        """Skip a damaged frame: missing frames after it are not reported again."""
        self._intact = False

    @property
    def first_break(self) -> LeafMismatch | None:
        """The first frame so far that differs from its leaf, is missing, or was never appended."""
        return self._first_break

    def take(self, position: int, first: int, end: int, hash_: bytes, load: LoadFrame) -> bool:
        """Compare the frame at *position* with the offsets [first, end) and the leaf hash *hash_*.

        *load* returns the bytes of the frame. Return whether it must have a leaf; frames before the chain,
        after it or in a gap have none.

        Raises:
            OSError: If leaves cannot be read.
        """
        leaf, moved = self._main.leaf, None
        if leaf is not None and leaf.first_offset == first and leaf.next_offset == end and not self._moved:
            # Usually it is the next leaf.
            self._main.advance()
        else:
            leaf, moved = self._leaves_of(position, first, end)
        if self._tree is not None:
            self._tree.add((hash_,))
        if leaf is None and (moved is None or self._claim.record_format == SHARED):
            return self._take_unknown(position, first, end)
        self._tally.frames_compared += 1
        if moved is not None and self._claim.record_format != SHARED:
            self._check_moved(position, moved, leaf, hash_, load)
        elif leaf is not None and self._claim.commits_to_parts(leaf.number):
            found = leaf_of(self._claim.record_format, load(), first, self._claim.salt)
            if found != leaf.hash:
                self._differs(position, first, leaf, found)
        elif leaf is not None and leaf.hash != hash_:
            self._differs(position, first, leaf, hash_)
        return True

    def _differs(self, position: int, first: int, leaf: Leaf, found: bytes) -> None:
        expected = f"leaf {leaf.number}, {leaf.hash.hex()}"
        self._break(position, expected, found.hex(), f"frame at offset {first}, its leaf")

    def _leaves_of(self, position: int, first: int, end: int) -> tuple[Leaf | None, Leaf | None]:
        """Return the leaf of a frame as first appended, and that of the newest compaction that wrote it."""
        self._pass_missing(first, position, f"the frame of offset {first}")
        main, newest = self._main.take(first, end), None
        for cursor in self._moved:
            leaf = cursor.take(first, end)
            newest = newest or leaf
        return main, newest

    def _pass_missing(self, first: int, position: int, found: str) -> None:
        """Pass the leaves of missing frames before *first*. Only compaction may remove a frame."""
        while (leaf := self._main.leaf) is not None and leaf.first_offset < first:
            if not self._claim.generation:
                self._miss(leaf, position, found)
            elif self._intact and leaf.next_offset > self._claim.readable_from:
                self._find_list(leaf, position, "it is missing")
            self._main.advance()

    # --- rewritten frames ---------------------------------------------------------------------------

    def _check_moved(
        self, position: int, moved: Leaf, leaf: Leaf | None, hash_: bytes, load: LoadFrame
    ) -> None:
        """Check a frame that compaction wrote: it has the leaf *moved*, and *leaf* as first appended."""
        found = hash_ if moved.number < self._claim.marked_from else moved_leaf(load())
        if moved.hash != found:
            self._differs(position, moved.first_offset, moved, found)
        elif leaf is not None:
            self._check_rewritten(position, leaf, load)
        elif self._take_unknown(position, moved.first_offset, moved.next_offset):
            return

    def _check_rewritten(self, position: int, leaf: Leaf, load: LoadFrame) -> None:
        """Check that a frame that compaction wrote has only records of the frame that was first appended."""
        if leaf.next_offset <= self._claim.readable_from:
            # Below the log start, where nothing can be read, lists are not kept.
            return
        listed = self._find_list(leaf, position, "it was rewritten")
        if listed is None:
            return
        now = content_of(self._claim.record_format, load(), leaf.first_offset, self._claim.salt)
        what = f"frame at offset {leaf.first_offset}, rewritten"
        field = listed.fields.differs_in(now.fields)
        if field is not None:
            expected, found = getattr(listed.fields, field), getattr(now.fields, field)
            self._break(position, f"{field} {expected}", str(found), what)
        elif now.fields.record_count != len(now.offsets):
            self._break(position, f"{now.fields.record_count} records", f"{len(now.offsets)}", what)
        for number, offset in enumerate(now.offsets):
            at = (offset - leaf.first_offset) * ITEM_SIZE
            item = now.items[number * ITEM_SIZE : (number + 1) * ITEM_SIZE]
            if listed.items[at : at + ITEM_SIZE] != item:
                expected, found = "the record that was first appended there", "another one"
                self._break(position, expected, found, f"record at offset {offset}")
                return

    def _find_list(self, leaf: Leaf, position: int, why: str) -> FrameContent | None:
        """Return the list of a frame that is not as first appended, None after noting that there is none."""
        if self._claim.record_format == SHARED:
            return None
        if not self._claim.commits_to_parts(leaf.number):
            self._unlisted.append(leaf.number)
            return None
        place = self._lists.find(leaf.number)
        if place is None and any(start <= leaf.first_offset < end for start, end in self._claim.expired):
            self._expired.append(leaf.number)
            return None
        what = f"list of the frame at offset {leaf.first_offset}"
        if place is None:
            self._break(position, f"a list of its records, because {why}", "none", what)
            return None
        listed = self._lists.read(place)
        fields = listed.fields
        if (fields.base_offset, fields.base_offset + fields.last_delta + 1) != leaf[:2]:
            expected = f"offsets {leaf.first_offset} up to {leaf.next_offset}, which leaf {leaf.number} has"
            self._break(position, expected, f"others by byte {place.position} of {place.path}", what)
            return None
        if listed.leaf() != leaf.hash:
            expected = f"leaf {leaf.number}, {leaf.hash.hex()}"
            found = f"{listed.leaf().hex()} by byte {place.position} of {place.path}"
            self._break(position, expected, found, what)
            return None
        return listed

    def _miss(self, leaf: Leaf, position: int, found: str) -> None:
        """Report that the frame of *leaf* is missing, if it must exist."""
        excused = any(
            start <= leaf.first_offset and leaf.next_offset <= end for start, end in self._claim.gaps
        )
        if self._intact and not excused:
            expected = (
                f"the frame of leaf {leaf.number}, offsets {leaf.first_offset} up to {leaf.next_offset}"
            )
            self._break(position, expected, found, f"frame at offset {leaf.first_offset} is missing")

    def _take_unknown(self, position: int, first: int, end: int) -> bool:
        """Check a frame without a leaf; return whether it must have one."""
        claim = self._claim
        if first >= claim.followed or end <= claim.begun:
            return False
        # A frame may begin before the chain and end in a gap.
        if any(start <= max(first, claim.begun) and end <= stop for start, stop in claim.gaps):
            self._unproven += end > claim.readable_from
            return False
        expected = f"a leaf of a frame with offsets {first} up to {end}"
        self._break(position, expected, "none", f"frame at offset {first}, which was never appended")
        return True

    def _break(self, position: int, expected: str, found: str, what: str) -> None:
        self._breaks += 1
        if self._first_break is None:
            self._first_break = LeafMismatch(position, expected, found, what)

    def finish(self, position: int, next_offset: int, *, sealed: bool) -> None:
        """Report the findings after the log has ended at *position* with *next_offset*."""
        claim = self._claim
        if sealed:
            self._pass_missing(INT64_MAX, position, "the end of the segment")
        elif not sealed and self._intact and next_offset < claim.followed:
            expected = f"frames up to offset {claim.followed}, where their leaves end"
            self._break(position, expected, f"the end of the log at {next_offset}", "leaves go on")
        if self._first_break is not None:
            more = f" (the first of {self._breaks} frames)" if self._breaks > 1 else ""
            where, expected, found, what = self._first_break
            self._tally.add("corruption", self._path, where, expected=expected, found=found, what=what + more)
        elif self._tree is not None and self._intact:
            self._check_testimony(self._tree)
        self._note_unlisted()
        if self._unproven:
            found = f"{self._unproven} in a gap of the chain, which were not compared"
            self._tally.add("note", self._path, None, expected="a leaf a frame", found=found, what="frames")
        if claim.generation and claim.testimony is None:
            found = f"no statement about generation {claim.generation}, so frames may be missing"
            expected = "a statement of what compaction left"
            self._tally.add("note", self._path, None, expected=expected, found=found, what="compaction")

    def _note_unlisted(self) -> None:
        """Note the frames that compaction changed and that cannot be compared any more."""
        expected = "a list of the records of each frame that compaction changed"
        for leaves, why in (
            (self._unlisted, "which were compacted without evidence"),
            (self._expired, "superseded, evidence expired"),
        ):
            if leaves:
                self._tally.unlisted.append(
                    UnlistedFrames(
                        self._path, min(leaves), self._claim.stated_at, len(leaves), leaves is self._expired
                    )
                )
                found = f"none of {len(leaves)}, {why}"
                self._tally.add("note", self._path, None, expected=expected, found=found, what="compaction")

    def _check_testimony(self, tree: PassingTree) -> None:
        """Compare all frames together with the statement of the compaction that wrote them."""
        assert self._claim.testimony is not None
        frames, root = self._claim.testimony
        if (tree.size, tree.root().hex()) != (frames, root):
            expected = f"{frames} frames whose leaves have the root {root}"
            found = f"{tree.size} with {tree.root().hex()}"
            what = "what compaction left"
            self._tally.add("corruption", self._path, None, expected=expected, found=found, what=what)


class _LeafCursor:
    """A position in a run of leaves with ascending offsets; ``leaf`` is None at its end."""

    def __init__(self, leaves: Iterator[Leaf]) -> None:
        self._leaves = leaves
        self.leaf = next(leaves, None)

    def advance(self) -> None:
        """Move to the next leaf."""
        self.leaf = next(self._leaves, None)

    def take(self, first_offset: int, next_offset: int) -> Leaf | None:
        """Move to the leaf of a frame and return it, None if it has none here."""
        while (leaf := self.leaf) is not None and leaf.first_offset < first_offset:
            self.advance()
        if leaf is None or leaf.first_offset != first_offset or leaf.next_offset != next_offset:
            return None
        self.advance()
        return leaf
