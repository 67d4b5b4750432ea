"""Check the chain of a partition and its checkpoints in one pass over the leaves.

Leaves, the offsets of their frames, and statements are authoritative: the root, the head of the chain, the
nodes of the tree and the content of every checkpoint follow from them. Written against docs/integrity.md,
independent of the code that writes chains.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from typing import NamedTuple

from cordwood.disk import ReadableFile, ReadableFiles, join
from cordwood.errors import FrameError
from cordwood.verify.chain.checkpoints import Claim
from cordwood.verify.chain.leaves import ENTRY, KINDS, Chain, LeafStatement, pending_cut
from cordwood.verify.chain.tree import HASH_BYTES, PassingTree, TreeFile
from cordwood.verify.frame import FileWindows
from cordwood.verify.metadata import PartitionBody
from cordwood.verify.report import Severity, Tally, UnlistedFrames

#: The number of leaves processed at once.
_LEAVES = 8192


def check_chain(
    files: ReadableFiles, chain: Chain, state: PartitionBody, claims: Sequence[Claim], tally: Tally
) -> None:
    """Check a chain and compare *claims*, smallest first, with it. Memory is bounded by a few windows."""
    head, path = chain.head, join(chain.path, "head")
    if head.topic_id != state.topic_id:
        expected, found = ascii(state.topic_id), ascii(head.topic_id)
        tally.add("corruption", path, None, expected=expected, found=found, what="topic id of the chain")
    if head.leader_epoch > state.leader_epoch:
        expected = f"at most {state.leader_epoch}, that of the partition"
        what = "leader epoch of the chain"
        tally.add("corruption", path, None, expected=expected, found=head.leader_epoch, what=what)
    if not head.size:
        _check_empty(chain, claims, tally)
        return
    with tally.reading(chain.path), contextlib.ExitStack() as stack:
        leaves, frames = (
            stack.enter_context(contextlib.closing(files.open(join(chain.path, name), "read")))
            for name in ("leaves", "frames")
        )
        tree = stack.enter_context(contextlib.closing(TreeFile(files, join(chain.path, "tree"))))
        check = _ChainCheck(chain, claims, (leaves, frames), tree, tally)
        check.run()
        _check_statements(chain, state, claims, check.goes_on, tally)
    _check_signed_kinds(chain, state, claims, tally)


def _check_empty(chain: Chain, claims: Sequence[Claim], tally: Tally) -> None:
    """Check a head without leaves. It is written before the other files and needs none of them."""
    head = chain.head
    empty = (sha256().hexdigest(), "0" * 2 * HASH_BYTES, head.first_offset, 0)
    found = (head.root, head.chain_head, head.next_offset, head.statements_size)
    if found != empty:
        path, what = join(chain.path, "head"), "head without leaves"
        tally.add("corruption", path, None, expected=empty, found=found, what=what)
    tally.checkpoints += sum(not claim.said.size for claim in claims)
    check_no_chain(chain.path.rpartition("/")[0], [claim for claim in claims if claim.said.size], tally)


def check_no_chain(path: str, claims: Sequence[Claim], tally: Tally) -> None:
    """Report checkpoints of a partition at *path* that has no chain."""
    for claim in claims:
        expected = f"a chain of {claim.said.size} leaves or more, which {claim.path} signs for"
        tally.add("corruption", join(path, "chain"), None, expected=expected, found="none", what="chain")


def check_signed_rewrites(claims: Sequence[Claim], unlisted: Sequence[UnlistedFrames], tally: Tally) -> None:
    """Report frames that were signed for and then compacted without evidence. The caller gave the checkpoint.

    Their records cannot be compared with what was signed. A checkpoint that was made after the compaction
    signs for what it left. For checkpoints that are stored in the directory, this is only noted: the operator
    may do it. Where evidence expired by a statement, the log is not called corrupt, nor sound.
    """
    for each in unlisted:
        signed = [claim for claim in claims if claim.given and each.leaf < claim.said.size <= each.stated_at]
        if signed:
            expected = f"the frame of leaf {each.leaf} as first appended, which {signed[-1].path} signs for"
            why = "evidence of which expired" if each.expired else "without evidence"
            found = f"{each.frames} frames from there on that were compacted, {why}"
            severity: Severity = "invalid" if each.expired else "corruption"
            tally.add(severity, each.path, None, expected=expected, found=found, what="compaction")


class _LeafPart(NamedTuple):
    """Leaves [start, end) of one kind: main run, ``moved`` by statement ``said``, or a statement."""

    start: int
    end: int
    said: int | None = None
    moved: bool = False


class _ChainCheck:
    """The pass over the leaves."""

    def __init__(
        self,
        chain: Chain,
        claims: Sequence[Claim],
        columns: tuple[ReadableFile, ReadableFile],
        tree: TreeFile,
        tally: Tally,
    ) -> None:
        self._chain = chain
        self._claims = claims
        self._claims_at: dict[int, list[Claim]] = {}
        for claim in claims:
            self._claims_at.setdefault(claim.said.size, []).append(claim)
        self._tally = tally
        self._leaves, self._frames = (
            FileWindows(file, chain.head.size * width, tally, hashed=False)
            for file, width in zip(columns, (HASH_BYTES, ENTRY.size), strict=True)
        )
        self._sizes = [file.size() for file in columns]
        self._tree = PassingTree()
        self._tree_file = tree
        self._chain_head = bytes(HASH_BYTES)
        self._next_offset = chain.head.first_offset
        # At the first leaf and after a gap, a frame may also hold earlier offsets.
        self._within = True
        self._moved_to = 0
        #: The offset after each statement, by its number.
        self.goes_on: dict[int, int] = {}
        # Without statements, the expected offsets of leaves are unknown.
        self._offsets_known = chain.statements is not None
        self._statements: Sequence[LeafStatement] = chain.statements or ()

    def run(self) -> None:
        """Check everything."""
        if not self._is_whole():
            return
        for part in self._parts():
            try:
                self._check_part(part)
            except FrameError as error:
                self._tally.add_error("corruption", self._chain.path, error)
                return
            self._check_claims(part.end)
        head = self._chain.head
        self._tree_file.finish(self._tally)
        self._check("root", head.root, self._tree.root().hex())
        self._check("head of the chain", head.chain_head, self._chain_head.hex())
        if self._offsets_known:
            self._check("next offset", head.next_offset, self._next_offset)
        for claim in self._claims:
            if claim.said.size > head.size:
                self._refute(claim, "number of leaves", claim.said.size, head.size)
        self._tally.leaves += head.size
        self._tally.bytes += head.size * (HASH_BYTES + ENTRY.size)

    def _is_whole(self) -> bool:
        """Return whether both files are as long as the head says; bytes beyond that are uncommitted."""
        for windows, size in zip((self._leaves, self._frames), self._sizes, strict=True):
            if size < windows.stop:
                expected, found = f"{windows.stop} bytes or more", f"{size} bytes"
                self._tally.add(
                    "corruption", windows.path, size, expected=expected, found=found, what="size of the file"
                )
                return False
        return True

    def _parts(self) -> Iterator[_LeafPart]:
        """Yield the leaves in order, split where their kind changes and where a checkpoint ends."""
        sizes = sorted(self._claims_at)
        if sizes and not sizes[0]:
            self._check_claims(0)
        for part in self._kinds():
            start = part.start
            for size in sizes[bisect_right(sizes, start) : bisect_left(sizes, part.end)]:
                yield part._replace(start=start, end=size)
                start = size
            if start < part.end:
                yield part._replace(start=start)

    def _kinds(self) -> Iterator[_LeafPart]:
        at = 0
        for number, said in enumerate(self._statements):
            yield _LeafPart(at, said.leaf - said.moved)
            yield _LeafPart(said.leaf - said.moved, said.leaf, number, moved=True)
            yield _LeafPart(said.leaf, said.leaf + 1, number)
            at = said.leaf + 1
        yield _LeafPart(at, self._chain.head.size)

    # --- leaves -----------------------------------------------------------------------------------

    def _check_part(self, part: _LeafPart) -> None:
        for start in range(part.start, part.end, _LEAVES):
            end = min(start + _LEAVES, part.end)
            hashes = _load(self._leaves, start, end, HASH_BYTES)
            self._add(hashes)
            entries = ENTRY.iter_unpack(_load(self._frames, start, end, ENTRY.size))
            if part.said is None:
                self._check_frames(start, entries)
            elif part.moved:
                self._check_moved(part.said, start, entries)
            else:
                self._check_statement(part.said, hashes, next(entries))

    def _add(self, hashes: bytes) -> None:
        """Extend chain and tree."""
        leaves = [hashes[at : at + HASH_BYTES] for at in range(0, len(hashes), HASH_BYTES)]
        head = self._chain_head
        for leaf in leaves:
            head = sha256(head + leaf).digest()
        self._chain_head = head
        self._tree_file.expect(b"".join(self._tree.add(leaves)))

    def _check_frames(self, leaf: int, entries: Iterator[tuple[int, ...]]) -> None:
        """Check that the frames of the main run follow each other without a gap."""
        if not self._offsets_known:
            return
        expected = self._next_offset
        for number, (first, end) in enumerate(entries):
            if (first != expected and not (self._within and first < expected)) or end <= expected:
                self._next_offset = expected
                self._disordered(leaf + number, f"{expected} up to more", first, end)
                return
            self._within = False
            expected = end
        self._next_offset = expected

    def _check_moved(self, number: int, leaf: int, entries: Iterator[tuple[int, ...]]) -> None:
        """Check that frames rewritten by a compaction lie in its segment, in order."""
        said = self._statements[number]
        least = said.start if leaf == said.leaf - said.moved else self._moved_to
        for at, (first, end) in enumerate(entries):
            if not least <= first < end <= said.end:
                self._disordered(leaf + at, f"{least} or more, up to {said.end} at most", first, end)
                return
            least = end
        self._moved_to = least

    def _disordered(self, leaf: int, expected: str, first: int, end: int) -> None:
        """Report the first leaf with wrong offsets; results that depend on it are not checked."""
        if not self._offsets_known:
            return
        self._offsets_known = False
        path, position = self._frames.path, leaf * ENTRY.size
        found, what = f"{first} up to {end}", f"offsets of leaf {leaf}"
        self._tally.add("corruption", path, position, expected=expected, found=found, what=what)

    def _check_statement(self, number: int, leaf: bytes, entry: tuple[int, ...]) -> None:
        """Check that a statement matches its leaf, and where leaves continue after it."""
        said, line = self._statements[number], self._chain.lines[number]
        hash_ = sha256(b"\0\xff" + line).digest()
        path = join(self._chain.path, "statements")
        if hash_ != leaf:
            position = sum(len(each) + 1 for each in self._chain.lines[:number])
            expected, what = f"leaf {said.leaf}, {leaf.hex()}", f"statement {number}, its leaf"
            self._tally.add("corruption", path, position, expected=expected, found=hash_.hex(), what=what)
        elif said.kind not in KINDS:
            # Another kind of statement would come with a newer format of the head, which is refused.
            expected, found = ", ".join(sorted(KINDS)), ascii(said.kind[:40])
            self._tally.add(
                "corruption", path, None, expected=expected, found=found, what="kind of statement"
            )
        elif said.moved and said.kind != "compacted":
            expected, found = "no moved leaves", f"{said.moved}"
            self._tally.add("corruption", path, None, expected=expected, found=found, what="statement")
        first, end = entry
        fits, expected = self._goes_on(said, first)
        if first != end or not fits:
            self._disordered(said.leaf, expected, first, end)
        self._within = said.kind == "gap" or (self._within and first == self._next_offset)
        self._next_offset = first
        self.goes_on[number] = first

    def _goes_on(self, said: LeafStatement, offset: int) -> tuple[bool, str]:
        """Return whether leaves may continue at *offset* after a statement, and the expected offset."""
        before = self._next_offset
        if said.is_cut:
            most = min(before, said.start)
            fits = offset <= most and said.end == max(before, said.start)
            return fits, f"at most {most}, after leaves up to {said.end}"
        if said.kind == "gap":
            fits = (said.start, said.end) == (before, offset) and said.start < said.end
            return fits, f"{said.end}, from {said.start} on"
        return offset == before or said.kind not in KINDS, f"{before}"

    # --- derived values ---------------------------------------------------------------------------

    def _check(self, what: str, expected: object, found: object) -> None:
        """Compare the head with the result of the leaves."""
        if expected != found:
            path = join(self._chain.path, "head")
            self._tally.add(
                "corruption",
                path,
                None,
                expected=f"{found}, which the leaves give",
                found=expected,
                what=what,
            )

    def _check_claims(self, size: int) -> None:
        """Compare the checkpoints of the first *size* leaves with them."""
        for claim in self._claims_at.get(size, ()):
            said, root = claim.said, self._tree.root()
            self._tally.checkpoints += 1
            if said.root != root:
                self._refute(claim, f"root of the first {size} leaves", said.root.hex(), root.hex())
            elif said.chain_head != self._chain_head:
                what = f"head of the chain over the first {size} leaves"
                self._refute(claim, what, said.chain_head.hex(), self._chain_head.hex())
            elif self._offsets_known and said.next_offset != self._next_offset:
                what = f"offset after the first {size} leaves"
                self._refute(claim, what, said.next_offset, self._next_offset)

    def _refute(self, claim: Claim, what: str, expected: object, found: object) -> None:
        self._tally.add(
            "corruption",
            self._leaves.path,
            None,
            expected=f"{expected}, which {claim.path} signs for",
            found=found,
            what=what,
        )


def _load(windows: FileWindows, start: int, end: int, width: int) -> bytes:
    index = windows.load(start * width, (end - start) * width)
    return windows.data[index : index + (end - start) * width]


# --- statements ------------------------------------------------------------------------------------------


def _check_signed_kinds(chain: Chain, state: PartitionBody, claims: Sequence[Claim], tally: Tally) -> None:
    """Report a statement that calls leaves moved which a checkpoint signs for as something else.

    A compaction adds its leaves and its statement together, so that no checkpoint ends between them.
    """
    path = join(chain.path, "statements")
    for claim in claims:
        size = claim.said.size
        for said in chain.statements or ():
            if said.first_leaf < size <= said.leaf:
                expected = f"leaves up to {size} as {claim.path} signs for them"
                found = f"a statement that leaves {said.first_leaf} up to {said.leaf} were moved"
                tally.add("corruption", path, None, expected=expected, found=found, what="moved leaves")
        if claim.said.record_format != state.record_format:
            expected = f"{claim.said.record_format}, which {claim.path} signs for"
            what = "record format"
            tally.add(
                "corruption", path, None, expected=expected, found=ascii(state.record_format), what=what
            )


def _check_statements(
    chain: Chain,
    state: PartitionBody,
    claims: Sequence[Claim],
    goes_on: Mapping[int, int],
    tally: Tally,
) -> None:
    """Count removals and compactions, and report signed records that were truncated or lost.

    *goes_on* has the offset at which leaves continue after each statement.
    """
    path, position = join(chain.path, "statements"), 0
    cuts = _Cuts(path, claims, tally)
    for number, (said, line) in enumerate(zip(chain.statements or (), chain.lines, strict=False)):
        tally.removed += said.kind == "removed"
        tally.compacted += said.kind == "compacted"
        if said.kind == "lost":
            expected = f"the log up to offset {said.end}"
            found, what = f"its end at {said.start} on {_when(said.noted_ms)}", "records lost"
            tally.add("corruption", path, position, expected=expected, found=found, what=what)
        elif said.kind == "truncated":
            # Frames from the offset at which leaves continue on have other leaves than before.
            start = min(said.start, goes_on.get(number, said.start))
            cuts.report(said.leaf, position, start, f" on {_when(said.noted_ms)}")
        position += len(line) + 1
    _note_removal(chain, state, tally)
    cut = pending_cut(chain.head, state)
    if cut is not None:
        cuts.report(chain.head.size, None, cut, ", which its chain does not tell of yet")


def _note_removal(chain: Chain, state: PartitionBody, tally: Tally) -> None:
    """Add a note that the log begins later than stated. A requested deletion is stated only afterwards."""
    said = [each for each in chain.statements or () if "removed" in (each.kind, each.reason)]
    known = max([chain.head.first_offset, *(each.end for each in said)])
    base = state.sealed[0].base if state.sealed else state.active_base
    if chain.understood and base > known:
        expected = f"a statement that offsets {known} up to {base} were removed"
        path, what = join(chain.path, "statements"), "removal"
        tally.add("note", path, None, expected=expected, found="none", what=what)


class _Cuts:
    """Reports the truncations that removed signed records, oldest first.

    The owner of a directory may truncate below the checkpoints stored in it, and the chain states that: a
    note. A checkpoint given by the caller is there to show that its records are still in the log, so a
    truncation below it is corruption, no matter who did it.
    """

    def __init__(self, path: str, claims: Sequence[Claim], tally: Tally) -> None:
        """Take the checkpoints of the partition, smallest first; *path* is the file of its statements."""
        self._path = path
        self._claims = claims
        self._tally = tally
        # The offset up to which the records of each checkpoint are still in the log.
        self._kept_to = [claim.said.next_offset for claim in claims]

    def report(self, leaf: int, position: int | None, start: int, when: str) -> None:
        """Report a truncation at offset *start*, after the first *leaf* leaves, if signed records went."""
        below = []
        for number, claim in enumerate(self._claims):
            if claim.said.size <= leaf and self._kept_to[number] > start:
                self._kept_to[number] = start
                below.append(claim)
        given = [claim for claim in below if claim.given]
        for claim in given or sorted(below, key=lambda each: each.said.next_offset)[-1:]:
            self._tally.add(
                "corruption" if claim.given else "note",
                self._path,
                position,
                expected=f"the log up to offset {claim.said.next_offset}, which {claim.path} signs for",
                found=f"truncated at offset {start}{when}",
                what="truncation on purpose",
            )


def _when(noted_ms: int) -> str:
    try:
        return datetime.fromtimestamp(noted_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, ValueError, OSError):
        return f"{noted_ms} ms after 1970"
