"""Following a log with its chain: a leaf for every frame, as it was first appended.

Frames that were gone or rewritten before they got a leaf leave a gap; that a log is truncated, compacted or
let go in part is a leaf of its own kind. So nobody takes any of these for tampering, nor tampering for them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

from cordwood.clock import Clock
from cordwood.errors import CorruptRange, MetadataDamaged, OffsetOutOfRange
from cordwood.integrity import merkle
from cordwood.storage.chain_files import chain_directory
from cordwood.storage.chain_growing import GrowingChain
from cordwood.storage.chain_lineage import Statement
from cordwood.storage.files import join
from cordwood.storage.partition_log import PartitionLog
from cordwood.storage.reading import FrameRun, walk
from cordwood.storage.rewriting import Pace
from cordwood.storage.segment import Segment
from cordwood.storage.view import Fetched, View, bounds_of

#: How much of the log is taken into memory at once.
WINDOW_BYTES = 1 << 20
#: What was added is made durable after so much of the log, or so much time.
COMMIT_BYTES = 256 << 20
COMMIT_NS = 5_000_000_000
#: So many frames at the end of what was followed are compared when a chain is opened.
COMPARED_FRAMES = 16


class _Source(NamedTuple):
    """Which file of the log frames were read from: what compaction or truncation would change."""

    base: int
    generation: int
    leader_epoch: int


class Follower:
    """A log and its chain, which goes on at ``next_offset``."""

    def __init__(self, clock: Clock, log: PartitionLog, chain: GrowingChain) -> None:
        self._log = log
        self._chain = chain
        self._clock = clock
        self._end = 0
        self.next_offset = chain.head.next_offset
        self._leader_epoch = chain.head.leader_epoch
        self._uncommitted = 0
        self._uncommitted_since_ns: int | None = None

    def close(self) -> None:
        """Let go of the files. What was not committed never happened."""
        self._chain.close()

    def run(self, pace: Pace) -> int:
        """Go on from where the chain ends up to where the log ends now; return how many leaves that made."""
        before, self._end = self._chain.size, self._log.high_watermark
        while self._step(self._log.view):
            if self._uncommitted >= COMMIT_BYTES:
                self.commit()
            pace(0)
        self.say_removed(self._log.log_start_offset, "requested")
        if self._chain.size != before and self._uncommitted_since_ns is None:
            self._uncommitted_since_ns = self._clock.monotonic_ns()
        return self._chain.size - before

    @property
    def is_uncommitted(self) -> bool:
        """Whether anything that was added is not durable yet."""
        return self._uncommitted_since_ns is not None

    def is_commit_due(self, now_ns: int) -> bool:
        """Return whether what was added should be made durable by now."""
        since = self._uncommitted_since_ns
        return since is not None and now_ns - since >= COMMIT_NS

    def commit(self) -> None:
        """Make what was added durable: first what it is about, so that no power cut takes that alone."""
        self._uncommitted, self._uncommitted_since_ns = 0, None
        if self._chain.size != self._chain.head.size:
            self._log.commit()
            self._chain.commit(self.next_offset, self._leader_epoch)

    def check_end(self) -> None:
        """Compare the last frames that were followed with the log: going on after others would hide that.

        Raises:
            MetadataDamaged: If they differ.
        """
        view, chain = self._log.view, self._chain
        if view.state.leader_epoch != self._leader_epoch or self.next_offset > view.high_watermark:
            # A truncation, or the loss of an end, which is said when the chain goes on.
            return
        last = chain.find(self.next_offset - 1)
        if last is None or chain.entry(last).first_offset < view.state.log_start_offset:
            return
        first = max(last - COMPARED_FRAMES + 1, 0)
        while first < last and not view.state.log_start_offset <= chain.entry(first).first_offset:
            first += 1
        offset = chain.entry(first).first_offset
        with contextlib.suppress(CorruptRange, OffsetOutOfRange):
            while offset < self.next_offset:
                runs = self._log.read(offset, WINDOW_BYTES, self.next_offset).runs
                if not runs:
                    return
                offset = self._compare(runs)

    def _compare(self, runs: Sequence[FrameRun]) -> int:
        """Compare frames with their leaves, and return the offset after them."""
        view = self._log.view
        for first, _, frame in (each for run in runs for each in frames_of(run)):
            leaf = self._chain.find(first, view.segments[view.find_segment(first)].info.generation)
            if leaf is not None and self._chain.leaf(leaf) != merkle.leaf_hash(frame):
                path = join(chain_directory(self._log.directory), "leaves")
                raise MetadataDamaged(
                    path, f"leaf {leaf} is not that of the frame at offset {first} of the log"
                )
        return runs[-1].next_offset

    def _step(self, view: View) -> bool:
        """Take what comes next; False when there is nothing more."""
        if view.state.leader_epoch != self._leader_epoch:
            self._note_truncation(view)
        elif self.next_offset > view.high_watermark:
            self._note_cut("lost", view.high_watermark)
        elif self.next_offset >= min(self._end, view.high_watermark):
            return False
        elif self.next_offset < view.state.log_start_offset:
            self._note_gap(view.state.log_start_offset, "removed")
        else:
            self._take_frames(view)
        return True

    # --- frames -----------------------------------------------------------------------------------

    def _take_frames(self, view: View) -> None:
        """Add the leaves of the next frames, or note that they are not what was appended any more."""
        at = view.find_segment(self.next_offset)
        rewritten_to = _rewritten_to(view, at)
        if self.next_offset < rewritten_to:
            self._note_gap(rewritten_to, "compacted")
            return
        source = _source(view, at)
        try:
            fetched = self._log.read(self.next_offset, WINDOW_BYTES, view.bounds(at).next_offset)
        except OffsetOutOfRange:
            # Removed or cut a moment ago, which the next look at the log shows.
            return
        except CorruptRange as damage:
            if isinstance(damage.__cause__, OSError):
                # The device may be able to read it another time; a gap would be for ever.
                raise
            if self._is_there(source):
                self._note_gap(max(damage.resume_offset, self.next_offset + 1), "damaged")
            return
        if not self._is_there(source):
            return
        if fetched.runs:
            self._add(fetched)
        else:
            self._note_gap(view.bounds(at).next_offset, "missing")

    def _is_there(self, source: _Source) -> bool:
        """Return whether what was just read was read from files that still are those of the log."""
        view = self._log.view
        return any(_source(view, at) == source for at in range(len(view.segments)))

    def _add(self, fetched: Fetched) -> None:
        for run in fetched.runs:
            leaves, entries = [], []
            for first, next_offset, frame in frames_of(run):
                leaves.append(merkle.leaf_hash(frame))
                entries.append((first, next_offset))
            self._chain.add_frames(leaves, entries)
            self._uncommitted += len(run.data)
            self.next_offset = run.next_offset

    # --- what is no frame -------------------------------------------------------------------------

    def say_removed(self, end: int, reason: str) -> None:
        """Say that everything before *end* is let go, as far as nobody has said so yet."""
        start = self._chain.removed_to
        if start < end:
            self._say("removed", start, end, self.next_offset, reason)

    def say_compacted(self, prepared: Segment) -> None:
        """Say what is in a segment that compaction wrote, and give leaves to the frames that it changed.

        Raises:
            CorruptRange: If it is not what was written.
        """
        info, chain = prepared.info, self._chain
        assert info.next_offset <= self.next_offset
        root = merkle.empty_frontier()
        leaves: list[bytes] = []
        entries: list[tuple[int, int]] = []
        for first, next_offset, frame in self._frames_in(prepared):
            leaf = merkle.leaf_hash(frame)
            root.add([leaf])
            known = chain.find(first, info.generation)
            if known is None or chain.leaf(known) != leaf:
                leaves.append(leaf)
                entries.append((first, next_offset))
        chain.add_frames(leaves, entries)
        self._say(
            "compacted",
            info.base,
            info.next_offset,
            self.next_offset,
            generation=info.generation,
            frames=root.size,
            moved=len(leaves),
            root=root.root().hex(),
        )

    def _frames_in(self, segment: Segment) -> Iterator[tuple[int, int, memoryview]]:
        bounds = bounds_of(self._log.state, segment.info, self._log.config.stored_bytes_max)
        for found in walk(segment, bounds, (segment.base, 0), WINDOW_BYTES, None):
            if isinstance(found, CorruptRange):
                raise found
            last = len(found.table) - 1
            yield from frames_of(FrameRun(found.position, found.data, found.table, 0, last, segment.format))

    def _note_truncation(self, view: View) -> None:
        """Say that the log was cut: at the lowest offset that any epoch since has begun at."""
        cuts = [each.start_offset for each in view.state.epochs if each.epoch > self._leader_epoch]
        self._leader_epoch = view.state.leader_epoch
        self._note_cut("truncated", min([*cuts, view.high_watermark]))

    def _note_cut(self, kind: Literal["truncated", "lost"], start: int) -> None:
        end = self.next_offset
        go_on = min(start, end)
        leaf = self._chain.find(start - 1) if start < end else None
        if leaf is not None and self._chain.entry(leaf).next_offset > start:
            # A cut within a frame writes what is left of it anew, which is a frame of its own.
            go_on = self._chain.entry(leaf).first_offset
        self._say(kind, start, max(start, end), go_on)

    def _note_gap(self, end: int, reason: str) -> None:
        self._say("gap", self.next_offset, end, end, reason)

    def _say(
        self,
        kind: Literal["truncated", "lost", "gap", "removed", "compacted"],
        start: int,
        end: int,
        go_on: int,
        reason: str = "",
        **more: Any,
    ) -> None:
        statement = Statement(
            kind=kind,
            leaf=self._chain.size,
            start=start,
            end=end,
            leader_epoch=self._leader_epoch,
            noted_ms=self._clock.now_ms(),
            reason=reason,
            **more,
        )
        self._chain.add_statement(statement, go_on)
        self.next_offset = go_on


def _source(view: View, at: int) -> _Source:
    info = view.segments[at].info
    return _Source(info.base, info.generation, view.state.leader_epoch)


def _rewritten_to(view: View, at: int) -> int:
    """Return up to which offset the frames of a segment are what compaction made of others."""
    if not view.segments[at].info.generation:
        return 0
    if at == len(view.segments) - 1:
        # A truncation made a compacted segment active again; what was appended since is as it was appended.
        return view.state.epoch_start.next_offset
    return view.bounds(at).next_offset


def frames_of(run: FrameRun) -> Iterator[tuple[int, int, memoryview]]:
    """Yield (first offset, next offset, bytes) of each frame."""
    table, buffer = run.table, memoryview(run.buffer)
    last_end = table.position(run.first) + len(run.data)
    for number in range(run.first, run.last + 1):
        end = table.position(number + 1) if number < run.last else last_end
        yield table.base_offset(number), table.next_offset(number), buffer[table.position(number) : end]
