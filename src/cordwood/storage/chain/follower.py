"""Extend a chain along its log: one leaf for every frame, as it was first appended.

Frames that were removed or rewritten before they got a leaf leave a gap. A truncation, compaction or removal
gets a statement as its leaf, so verification can tell these changes from tampering.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

from cordwood.disk import join
from cordwood.errors import CorruptRange, MetadataDamaged, OffsetOutOfRange
from cordwood.host import Clock, process
from cordwood.integrity import merkle, record_leaf
from cordwood.storage.chain.files import chain_directory
from cordwood.storage.chain.frame_leaves import frame_leaf, frames_of, listed_frames
from cordwood.storage.chain.lists import ListWriter
from cordwood.storage.chain.rewritten import OriginalRun, RewrittenFrames
from cordwood.storage.chain.statements import Statement, StatementKind, keeps_evidence
from cordwood.storage.chain.writer import ChainWriter
from cordwood.storage.log import Fetched, FrameRun, Pace, PartitionLog, Segment, View, bounds_of, walk

#: The number of bytes of the log read into memory at once.
WINDOW_BYTES = 1 << 20
#: Added leaves are synced after this many bytes of the log, or after this time.
COMMIT_BYTES = 256 << 20
COMMIT_NS = 5_000_000_000
#: The number of last frames that are compared with their leaves when a chain is opened.
COMPARED_FRAMES = 16


class _LogFile(NamedTuple):
    """Identity of the file that frames were read from; compaction and truncation change it."""

    base: int
    generation: int
    leader_epoch: int


class Follower:
    """A log and its chain, which continues at ``next_offset``."""

    def __init__(
        self,
        clock: Clock,
        log: PartitionLog,
        chain: ChainWriter,
        new_salt: Callable[[], bytes] = process.new_seed,
    ) -> None:
        """Continue *chain* along *log*. *new_salt* returns random bytes for the hashes of keys."""
        self._new_salt = new_salt
        self._log = log
        self._chain = chain
        self._clock = clock
        self._end = 0
        self.next_offset = chain.head.next_offset
        self._leader_epoch = chain.head.leader_epoch
        self._uncommitted = 0
        self._uncommitted_since_ns: int | None = None

    def close(self) -> None:
        """Close the files. Uncommitted leaves are lost."""
        self._chain.close()

    def run(self, pace: Pace) -> int:
        """Extend the chain to the current high watermark; return the number of added leaves."""
        before, self._end = self._chain.size, self._log.high_watermark
        self._note_policy()
        while self._step(self._log.view):
            if self._uncommitted >= COMMIT_BYTES:
                self.commit()
            pace(0)
        self.add_removal(self._log.log_start_offset, "requested")
        if self._chain.size != before and self._uncommitted_since_ns is None:
            self._uncommitted_since_ns = self._clock.monotonic_ns()
        return self._chain.size - before

    @property
    def is_uncommitted(self) -> bool:
        """Whether leaves were added that are not durable yet."""
        return self._uncommitted_since_ns is not None

    def is_commit_due(self, now_ns: int) -> bool:
        """Return whether the added leaves should be synced now."""
        since = self._uncommitted_since_ns
        return since is not None and now_ns - since >= COMMIT_NS

    def commit(self) -> None:
        """Make added leaves durable. The log is synced first, so that no leaf outlives its frame."""
        if self._chain.size != self._chain.head.size:
            self._log.commit()
            self._chain.commit(self.next_offset, self._leader_epoch)
            if self._log.format.name != "shared":
                self._chain.drop_lists_below(self._log.log_start_offset)
        self._uncommitted, self._uncommitted_since_ns = 0, None

    def check_end(self) -> None:
        """Compare the last leaves with the log: extending the chain over a changed log would hide the change.

        Raises:
            MetadataDamaged: If they differ.
        """
        view, chain = self._log.view, self._chain
        if view.state.leader_epoch != self._leader_epoch or self.next_offset > view.high_watermark:
            # A truncation or a lost tail. The next statement of the chain reports it.
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
        """Compare frames with their leaves; return the offset after the last frame."""
        view = self._log.view
        for run in runs:
            hashes = dict[bool, list[bytes]]()
            for at, (first, _, data) in enumerate(frames_of(run)):
                generation = view.segments[view.find_segment(first)].info.generation
                leaf = self._chain.find(first, generation)
                if leaf is None or self._chain.leaf(leaf) == self._chain.moved_leaf(data):
                    continue
                by_parts = self._chain.commits_to_parts(leaf)
                if by_parts not in hashes:
                    hashes[by_parts] = self._leaves_of(run, by_parts=by_parts)
                if self._chain.leaf(leaf) != hashes[by_parts][at]:
                    path = join(chain_directory(self._log.directory), "leaves")
                    raise MetadataDamaged(
                        path, f"leaf {leaf} is not that of the frame at offset {first} of the log"
                    )
        return runs[-1].next_offset

    def _leaves_of(self, run: FrameRun, *, by_parts: bool) -> list[bytes]:
        """Return the leaves of the frames of *run*: over their bytes, or over their parts."""
        if not by_parts:
            return [frame_leaf(frame) for frame in frames_of(run)]
        if run.format.name == "shared":
            return [record_leaf.envelope_leaf(frame.data) for frame in frames_of(run)]
        assert self._chain.salt is not None
        return [frame.leaf for frame in listed_frames(run, self._chain.salt)]

    def _step(self, view: View) -> bool:
        """Process the next frames or statement; return False at the end of the log."""
        if view.state.leader_epoch != self._leader_epoch:
            self._add_truncation(view)
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
        """Add the leaves of the next frames, or a statement that they are not as appended any more."""
        at = view.find_segment(self.next_offset)
        rewritten_to = _rewritten_to(view, at)
        if self.next_offset < rewritten_to:
            self._note_gap(rewritten_to, "compacted")
            return
        source = _source(view, at)
        try:
            fetched = self._log.read(self.next_offset, WINDOW_BYTES, view.bounds(at).next_offset)
        except OffsetOutOfRange:
            # The frames were removed or cut a moment ago; the next state of the log shows that.
            return
        except CorruptRange as damage:
            if isinstance(damage.__cause__, OSError):
                # A later read may succeed, while a gap in the chain would be permanent.
                raise
            if self._is_current(source):
                self._note_gap(max(damage.resume_offset, self.next_offset + 1), "damaged")
            return
        if not self._is_current(source):
            return
        if fetched.runs:
            self._add(fetched)
        else:
            self._note_gap(view.bounds(at).next_offset, "missing")

    def _is_current(self, source: _LogFile) -> bool:
        """Return whether the frames just read came from files that are still part of the log."""
        view = self._log.view
        return any(_source(view, at) == source for at in range(len(view.segments)))

    def _add(self, fetched: Fetched) -> None:
        for run in fetched.runs:
            leaves = self._leaves_of(run, by_parts=self._chain.commits_to_parts(self._chain.size))
            self._chain.add_frames(leaves, [frame[:2] for frame in frames_of(run)])
            self._uncommitted += len(run.data)
            self.next_offset = run.next_offset

    def rewritable(self) -> list[tuple[int, int]]:
        """Return the offsets [start, end) of frames that compaction may rewrite."""
        ranges = self._chain.rewritable()
        for offset in self._chain.shortened():
            frame = self._unlistable_frame(offset)
            if frame is not None:
                halves = [((start, min(end, frame[0])), (max(start, frame[1]), end)) for start, end in ranges]
                ranges = [(start, end) for pair in halves for start, end in pair if start < end]
        return ranges

    def _unlistable_frame(self, offset: int) -> tuple[int, int] | None:
        """Return the offsets of the frame at *offset* if its records have gaps and are not listed."""
        try:
            runs = self._log.read(offset, 1, self._log.high_watermark).runs
        except (CorruptRange, OffsetOutOfRange):
            return None
        if not runs:
            return None
        table, number = runs[0].table, runs[0].first
        first, end = table.base_offset(number), table.next_offset(number)
        if first > offset:
            # Another truncation removed the frame, or compaction did.
            return None
        leaf = self._chain.find(offset)
        if table.record_count(number) == end - first or (leaf is not None and self._chain.has_list(leaf)):
            return None
        return first, end

    # --- statements --------------------------------------------------------------------------------

    def keep_envelopes(self, end: int) -> None:
        """Keep the envelopes of the frames of a shared log before *end*, which are about to be removed.

        Does nothing for other logs: what they remove below the log start needs no evidence.
        """
        if self._log.format.name != "shared":
            return
        start = self._chain.removed_to
        with contextlib.closing(self._chain.new_lists()) as lists:
            for _, run in self._runs_in(self._log.view.segments):
                for frame in frames_of(run):
                    leaf = self._chain.find(frame.first_offset)
                    listed = leaf is not None and self._chain.commits_to_parts(leaf)
                    if leaf is not None and listed and start <= frame.first_offset < end:
                        lists.add_envelope(leaf, frame.data)
            lists.finish()
        if lists.count:
            self._say("kept", start, end, self.next_offset, lists=lists.count)

    def add_removal(self, end: int, reason: str) -> None:
        """Add a statement that records before *end* are removed, unless one says so already."""
        start = self._chain.removed_to
        if start < end:
            self._say("removed", start, end, self.next_offset, reason)

    def add_compaction(self, old: Sequence[Segment], prepared: Segment, *, evidence: bool = True) -> None:
        """Add a statement with the content of a compacted segment, and leaves for its changed frames.

        Lists of the records of frames that are rewritten for the first time are kept. Without *evidence*,
        frames are rewritten whose leaves do not commit to records.

        Raises:
            CorruptRange: If a segment on disk is not what was appended, or what compaction wrote.
            EvidenceRefused: If a frame was changed whose records cannot be listed.
        """
        info, chain = prepared.info, self._chain
        assert info.next_offset <= self.next_offset
        root = merkle.empty_frontier()
        leaves: list[bytes] = []
        entries: list[tuple[int, int]] = []
        with contextlib.closing(chain.new_lists()) as lists:
            changes = RewrittenFrames(chain, lists, self._runs_in(old), evidence=evidence)
            for _, run in self._runs_in([prepared]):
                for frame in frames_of(run):
                    root.add([frame_leaf(frame)])
                    if not changes.is_unchanged(frame):
                        leaves.append(chain.moved_leaf(frame.data))
                        entries.append(frame[:2])
            changes.finish()
            lists.finish()
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
            lists=lists.count,
            evidence="" if changes.all_listed else "none",
        )

    def _runs_in(self, segments: Iterable[Segment]) -> Iterator[OriginalRun]:
        for segment in segments:
            bounds = bounds_of(self._log.state, segment.info, self._log.config.stored_bytes_max)
            for found in walk(segment, bounds, (segment.base, 0), WINDOW_BYTES, None):
                if isinstance(found, CorruptRange):
                    raise found
                last = len(found.table) - 1
                run = FrameRun(found.position, found.data, found.table, 0, last, segment.format)
                yield OriginalRun(segment.info.generation, run)

    def expire_lists(self, before_ms: int, reason: str) -> bool:
        """State that the lists of statements made before *before_ms* go; return whether there are any."""
        old = [each.first_leaf for each in self._chain.kept_lists() if each.noted_ms < before_ms]
        if old:
            self._say(
                "expired", self.next_offset, self.next_offset, self.next_offset, reason, lists=max(old) + 1
            )
        return bool(old)

    def drop_expired_lists(self) -> None:
        """Remove the lists that a durable statement gave up."""
        self._chain.drop_expired_lists()

    def add_lists_from(self, start: int) -> None:
        """Keep lists of the frames from *start* on, which a truncation is about to remove.

        Compaction may have dropped records because one of these has their key.
        """
        with contextlib.closing(self._chain.new_lists()) as lists:
            for _, run in self._runs_in(self._log.view.segments):
                if run.next_offset > start and self._chain.salt is not None:
                    self._list_frames(run, start, lists)
            lists.finish()
        if lists.count:
            self._say("kept", start, self.next_offset, self.next_offset, lists=lists.count)

    def _list_frames(self, run: FrameRun, start: int, lists: ListWriter) -> None:
        assert self._chain.salt is not None
        for frame in listed_frames(run, self._chain.salt):
            leaf = self._chain.find(frame.first_offset)
            is_known = leaf is not None and self._chain.leaf(leaf) == frame.leaf
            if frame.next_offset > start and is_known and frame.facts.is_listable:
                assert leaf is not None
                lists.add(leaf, frame.facts, frame.items)

    def _add_truncation(self, view: View) -> None:
        """Add a statement that the log was truncated, at the lowest start offset of any later epoch."""
        cuts = [each.start_offset for each in view.state.epochs if each.epoch > self._leader_epoch]
        self._leader_epoch = view.state.leader_epoch
        self._note_cut("truncated", min([*cuts, view.high_watermark]))

    def _note_cut(self, kind: Literal["truncated", "lost"], start: int) -> None:
        end = self.next_offset
        go_on = min(start, end)
        leaf = self._chain.find(start - 1) if start < end else None
        if leaf is not None and self._chain.entry(leaf).next_offset > start:
            # A truncation inside a frame rewrites its remaining records as a new frame.
            go_on = self._chain.entry(leaf).first_offset
        self._say(kind, start, max(start, end), go_on)

    def _note_policy(self) -> None:
        """Add a statement if the topic's ``cleanup.policy`` changed, and say what leaves commit to now."""
        config, chain = self._log.config, self._chain
        policy = ",".join(sorted(config.cleanup_policy.split(",")))
        said = [each.reason for each in chain.statements if each.kind == "policy"]
        is_shared = self._log.format.name == "shared"
        # The shared log says once that its leaves commit to envelopes; other logs begin as never compacted.
        known = said[-1] if said else None if is_shared else "delete"
        if policy == known:
            return
        leaves, salt = "envelopes" if is_shared else "frames", ""
        if "compact" in policy and keeps_evidence(self._log.state.topic):
            leaves, salt = "records", chain.use_salt(self._new_salt)
        at = self.next_offset
        self._say("policy", at, at, at, policy, leaves=leaves, salt=salt)

    def _note_gap(self, end: int, reason: str) -> None:
        self._say("gap", self.next_offset, end, end, reason)

    def _say(
        self,
        kind: StatementKind,
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


def _source(view: View, at: int) -> _LogFile:
    info = view.segments[at].info
    return _LogFile(info.base, info.generation, view.state.leader_epoch)


def _rewritten_to(view: View, at: int) -> int:
    """Return the offset up to which the frames of a segment were written by compaction."""
    if not view.segments[at].info.generation:
        return 0
    if at == len(view.segments) - 1:
        # A truncation made a compacted segment active again; later appends to it are not rewritten frames.
        return view.state.epoch_start.next_offset
    return view.bounds(at).next_offset
