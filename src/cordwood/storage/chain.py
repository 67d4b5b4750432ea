"""Following a log with its chain: a leaf for every frame, as it was first appended.

Off the path of appends: whoever has the directory's lock calls `bring_up_to_date` when it suits. Frames that
were gone or rewritten before they got a leaf leave a gap, and a truncation is a leaf of its own kind, so that
nobody takes either for tampering, nor tampering for either.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Literal, NamedTuple

from cordwood.errors import CorruptRange, OffsetOutOfRange
from cordwood.integrity import merkle
from cordwood.storage.active import Surroundings
from cordwood.storage.chain_files import (
    ChainHead,
    KeptChain,
    Statement,
    read_head,
)
from cordwood.storage.chain_growing import GrowingChain
from cordwood.storage.files import Files
from cordwood.storage.partition_log import PartitionLog
from cordwood.storage.reading import FrameRun
from cordwood.storage.store import as_storage_error
from cordwood.storage.view import Fetched, View

#: How much of the log is taken into memory at once, and after how much the chain is committed.
WINDOW_BYTES = 4 << 20
COMMIT_BYTES = 256 << 20


def bring_up_to_date(around: Surroundings, log: PartitionLog) -> int:
    """Add a leaf for every frame below the high watermark that has none; return how many leaves were added.

    Durable on return. Everything appended before the call is synced first: a frame that a power cut can take
    gets no leaf. Appends go on meanwhile. One caller at a time for each log.

    Raises:
        MetadataDamaged: If the chain's own files are missing or wrong.
        StorageError: If the log or the disk refuses. What was committed of the chain stays.
    """
    log.commit()
    state = log.state
    begin = ChainHead(
        topic_id=state.topic_id,
        first_offset=state.log_start_offset,
        next_offset=state.log_start_offset,
        leader_epoch=state.leader_epoch,
    )
    try:
        with contextlib.closing(GrowingChain.open(around.files, log.directory, begin)) as chain:
            follower = _Follower(around, log, chain)
            before = chain.size
            follower.run()
            return chain.size - before
    except OSError as error:
        raise as_storage_error(error, "growing the chain") from error


@contextlib.contextmanager
def kept_chain(files: Files, directory: str) -> Iterator[KeptChain | None]:
    """Open the chain of the partition in *directory* to read, None if it has none. Changes nothing."""
    head = read_head(files, directory)
    if head is None:
        yield None
        return
    with contextlib.closing(KeptChain(files, directory, head)) as chain:
        yield chain


class _Followed(NamedTuple):
    """Which file of the log frames were read from: what compaction or truncation would change."""

    base: int
    generation: int
    leader_epoch: int


class _Follower:
    """One pass over what has no leaves yet."""

    def __init__(self, around: Surroundings, log: PartitionLog, chain: GrowingChain) -> None:
        self._log = log
        self._chain = chain
        self._clock = around.clock
        self._end = log.high_watermark
        self._next_offset = chain.head.next_offset
        self._leader_epoch = chain.head.leader_epoch
        self._uncommitted = 0

    def run(self) -> None:
        """Go on from where the chain ends up to where the log ended when this began."""
        while self._step(self._log.view):
            if self._uncommitted >= COMMIT_BYTES:
                self._commit()
        if self._chain.size != self._chain.head.size:
            self._commit()

    def _commit(self) -> None:
        self._chain.commit(self._next_offset, self._leader_epoch)
        self._uncommitted = 0

    def _step(self, view: View) -> bool:
        """Take what comes next; False when there is nothing more."""
        if view.state.leader_epoch != self._leader_epoch:
            self._note_truncation(view)
        elif self._next_offset > view.high_watermark:
            self._note_cut("lost", view.high_watermark)
        elif self._next_offset >= min(self._end, view.high_watermark):
            return False
        elif self._next_offset < view.state.log_start_offset:
            self._note_gap(view.state.log_start_offset, "removed")
        else:
            self._take_frames(view)
        return True

    # --- frames -----------------------------------------------------------------------------------

    def _take_frames(self, view: View) -> None:
        """Add the leaves of the next frames, or note that they are not what was appended any more."""
        at = view.find_segment(self._next_offset)
        rewritten_to = _rewritten_to(view, at)
        if self._next_offset < rewritten_to:
            self._note_gap(rewritten_to, "compacted")
            return
        source = _source(view, at)
        try:
            fetched = self._log.read(self._next_offset, WINDOW_BYTES, view.bounds(at).next_offset)
        except OffsetOutOfRange:
            # Removed or cut a moment ago, which the next look at the log shows.
            return
        except CorruptRange as damage:
            if isinstance(damage.__cause__, OSError):
                # The device may be able to read it another time; a gap would be for ever.
                raise
            if self._is_there(source):
                self._note_gap(max(damage.resume_offset, self._next_offset + 1), "damaged")
            return
        if not self._is_there(source):
            return
        if fetched.runs:
            self._add(fetched)
        else:
            self._note_gap(view.bounds(at).next_offset, "missing")

    def _is_there(self, source: _Followed) -> bool:
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
            self._next_offset = run.next_offset

    # --- what is no frame -------------------------------------------------------------------------

    def _note_truncation(self, view: View) -> None:
        """Say that the log was cut: at the lowest offset that any epoch since has begun at."""
        cuts = [each.start_offset for each in view.state.epochs if each.epoch > self._leader_epoch]
        self._leader_epoch = view.state.leader_epoch
        self._note_cut("truncated", min([*cuts, view.high_watermark]))

    def _note_cut(self, kind: Literal["truncated", "lost"], start: int) -> None:
        end = self._next_offset
        go_on = min(start, end)
        leaf = self._chain.find(start - 1) if start < end else None
        if leaf is not None and self._chain.entry(leaf).next_offset > start:
            # A cut within a frame writes what is left of it anew, which is a frame of its own.
            go_on = self._chain.entry(leaf).first_offset
        self._say(kind, start, max(start, end), go_on)

    def _note_gap(self, end: int, reason: str) -> None:
        self._say("gap", self._next_offset, end, end, reason)

    def _say(
        self, kind: Literal["truncated", "lost", "gap"], start: int, end: int, go_on: int, reason: str = ""
    ) -> None:
        statement = Statement(
            kind=kind,
            leaf=self._chain.size,
            start=start,
            end=end,
            leader_epoch=self._leader_epoch,
            noted_ms=self._clock.now_ms(),
            reason=reason,
        )
        self._chain.add_statement(statement, go_on)
        self._next_offset = go_on


def _source(view: View, at: int) -> _Followed:
    info = view.segments[at].info
    return _Followed(info.base, info.generation, view.state.leader_epoch)


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
