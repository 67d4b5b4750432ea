"""Check one segment against its bytes and the authoritative metadata.

Frames are found by reading the log from its start, never through an index. There is a reader for each record
format, independent of the code that writes it. The indexes are computed on the way and compared byte for
byte.

The checksum of a batch does not cover its first 17 bytes. A flipped bit in length or magic breaks the
sequence of frames; one in the base offset breaks the ascending offsets that must end at the recorded next
offset; one in the leader epoch contradicts the partition's list of epochs. One change is not detected without
a recorded SHA-256 and without leaves: a base offset that moved within a gap left by compaction, of a frame
without an index entry.

Where the partition has a chain, each frame is compared with its leaf. Leaves that cover the whole segment
replace its SHA-256, so every byte is hashed only once.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from cordwood.disk import ReadableFile, ReadableFiles
from cordwood.errors import FrameError
from cordwood.verify.chain import FrameCompare, SegmentLeaves
from cordwood.verify.frame import (
    INT64_MAX,
    WINDOW_BYTES,
    BatchFrames,
    Epochs,
    FileWindows,
    PlacedHeader,
    leaf_hash,
)
from cordwood.verify.report import Tally
from cordwood.verify.segments.envelopes import EnvelopeFrame, EnvelopeFrames
from cordwood.verify.segments.index import ENTRY_BYTES, IndexClaim, IndexFile
from cordwood.verify.segments.owners import OwnerIndexFile
from cordwood.verify.segments.reader import AnyFrame, FrameReader
from cordwood.verify.segments.records import FramedRecords, KimberliteRecords, wrong
from cordwood.verify.segments.sidecars import LaminarmqRecords, RustlogRecords, open_entries
from cordwood.verify.segments.transactions import SegmentTransactions

_INDEX_ENTRY = struct.Struct(">QQ")
_TIME_INDEX_ENTRY = struct.Struct(">qQ")
#: The format of the shared log, whose frames name their owner.
SHARED = "shared"
assert _INDEX_ENTRY.size == _TIME_INDEX_ENTRY.size == ENTRY_BYTES

See: TypeAlias = Callable[[PlacedHeader | EnvelopeFrame], None]


@dataclass(frozen=True, slots=True)
class SegmentPlan:
    """The claims of metadata about a segment, which are checked.

    ``path`` is the path of its files without suffix. Bytes of the log before ``stop`` are checked; at
    ``stop`` the next offset is ``next_offset``. ``epochs`` are pairs of a leader epoch and the first offset
    under it, ascending. A sealed segment ends at ``stop`` and its ``max_timestamp`` is known. In an active
    one, bytes after ``stop`` are a tail, or ``leftovers`` of an unfinished truncation. An unfinished
    truncation or swap may also have files under another suffix. ``leaves`` are its leaves, None without a
    chain. Compaction rewrote it ``generation`` times, which leaves gaps between its offsets. ``before`` is
    the state before its first frame, ``left`` the state after its last one, None if unknown.
    """

    path: str
    base: int
    stop: int
    next_offset: int
    epochs: Epochs
    index_interval_bytes: int
    index: IndexClaim
    time_index: IndexClaim
    sealed: bool
    max_timestamp: int | None = None
    sha256: str | None = None
    generation: int = 0
    leaves: SegmentLeaves | None = None
    leftovers: bool = False
    log_suffix: str = "log"
    index_suffix: str = "idx"
    time_index_suffix: str = "timeidx"
    owner_index_suffix: str = "oidx"
    record_format: str = "batch"
    partition: int = 0
    tenant: int = 0
    index_interval_records: int = 0
    time_index_sparse: bool = False
    before: str = ""
    left: str | None = None
    sidecar_suffix: str = ""

    @property
    def hashed(self) -> bool:
        """Whether the log's SHA-256 must be computed: it is recorded, and leaves do not cover the log."""
        covered = self.leaves is not None and self.leaves.covers(self.base, self.next_offset)
        return self.sha256 is not None and not covered


def open_reader(files: ReadableFiles, plan: SegmentPlan) -> FrameReader[Any]:
    """Return a reader for the frames of a segment of a known format. Must be closed.

    Raises:
        FrameError: If the sidecar does not belong to the segment.
        OSError: If it cannot be read.
    """
    if plan.record_format == "batch":
        return BatchFrames(plan.epochs)
    if plan.record_format == SHARED:
        return EnvelopeFrames(plan.epochs)
    if plan.record_format == "frame":
        return FramedRecords()
    if plan.record_format == "kimberlite":
        return KimberliteRecords(plan.partition, plan.before, plan.left, tenant=plan.tenant)
    dense_index = plan.record_format == "laminarmq"
    entries = open_entries(
        files,
        f"{plan.path}.{plan.sidecar_suffix}",
        plan.base,
        dense_index=dense_index,
        gaps=plan.generation > 0,
        sealed=plan.sealed,
    )
    return LaminarmqRecords(entries) if dense_index else RustlogRecords(entries)


def check_segment(
    files: ReadableFiles,
    plan: SegmentPlan,
    tally: Tally,
    see: See,
    transactions: SegmentTransactions | None = None,
) -> int:
    """Check all files of a segment of a known format and add the findings to *tally*.

    *see* is called with each sound batch or envelope, marked or not, and *transactions* gets those of
    transactions; the index of aborted ones is not checked here. Return the offset after the last one.
    Returns for any bytes. Memory is bounded by a window or by the largest frame with a correct checksum.
    """
    path = f"{plan.path}.{plan.log_suffix}"
    tally.segments += 1
    try:
        file = files.open(path, "read")
    except OSError as error:
        tally.add_unreadable(path, error)
        return plan.next_offset
    with contextlib.ExitStack() as stack:
        stack.callback(file.close)
        try:
            reader = stack.enter_context(contextlib.closing(open_reader(files, plan)))
        except FrameError as error:
            tally.add_error("corruption", path, error)
            return plan.next_offset
        except OSError as error:
            tally.add_unreadable(f"{plan.path}.{plan.sidecar_suffix}", error)
            return plan.next_offset
        check = stack.enter_context(contextlib.closing(_SegmentWalk(files, file, plan, reader, tally, see)))
        check.transactions = transactions
        try:
            check.run()
        except OSError as error:
            # An error about another file than the log names it.
            tally.add_unreadable(error.filename or path, error)
    return check.next_offset


class _SegmentWalk:
    """The walk over one segment. ``next_offset`` is the current offset."""

    def __init__(
        self,
        files: ReadableFiles,
        file: ReadableFile,
        plan: SegmentPlan,
        reader: FrameReader[Any],
        tally: Tally,
        see: See,
    ) -> None:
        self.next_offset = plan.base
        self.transactions: SegmentTransactions | None = None
        self._end = 0
        self._see = see
        self._plan = plan
        self._file = file
        self._reader = reader
        self._tally = tally
        self._intact = True
        # Whether the header of the last frame can be trusted.
        self._sound = True
        self._largest_timestamp: int | None = None
        self._indexed_at: int | None = None
        # The frame that reached the largest timestamp, as long as the time index needs no entry for it.
        self._unrecorded: tuple[int, int] | None = None
        index_path, time_index_path = (
            f"{plan.path}.{suffix}" for suffix in (plan.index_suffix, plan.time_index_suffix)
        )
        self._index = IndexFile(files, index_path, "offset index", plan.index)
        self._time_index = IndexFile(files, time_index_path, "time index", plan.time_index)
        self._owners: OwnerIndexFile | None = None
        if plan.record_format == SHARED:
            path = f"{plan.path}.{plan.owner_index_suffix}"
            self._owners = OwnerIndexFile(files, path, plan.base, sealed=plan.sealed)
        self._compare: FrameCompare | None = None
        if plan.leaves is not None:
            try:
                self._compare = FrameCompare(files, plan.leaves, file.path, tally)
            except OSError as error:
                self._stop_comparing(error)

    def close(self) -> None:
        self._index.close()
        self._time_index.close()
        if self._owners is not None:
            self._owners.close()
        if self._compare is not None:
            self._compare.close()

    def _stop_comparing(self, error: OSError) -> None:
        """Report that leaves could not be read."""
        assert self._plan.leaves is not None
        self._tally.add_unreadable(self._plan.leaves.chain, error)
        compare, self._compare = self._compare, None
        if compare is not None:
            compare.close()

    def run(self) -> None:
        plan, size = self._plan, self._file.size()
        windows = FileWindows(self._file, min(plan.stop, size), self._tally, hashed=plan.hashed)
        if size < plan.stop or (plan.sealed and size != plan.stop):
            expected = f"{plan.stop} bytes" if plan.sealed else f"the {plan.stop} bytes that are marked"
            self._corruption(min(size, plan.stop), expected, f"{size} bytes", "size of the log")
        self._check_marked(windows)
        if plan.hashed and size == plan.stop:
            self._check_hash(windows)
        if plan.sealed:
            self._check_recorded_timestamp()
        elif plan.leftovers:
            self._note_leftovers(size)
        elif self._intact:
            self._walk_tail(size)
        self._finish_comparing()
        # The index of a damaged log cannot be computed, so there is nothing to compare; indexes during a
        # truncation are written at its end.
        if self._intact and not plan.leftovers:
            self._index.finish(self._tally)
            self._time_index.finish(self._tally)
            if self._owners is not None:
                self._owners.finish(self._tally)

    def _finish_comparing(self) -> None:
        if self._compare is not None:
            try:
                self._compare.finish(self._end, self.next_offset, sealed=self._plan.sealed)
            except OSError as error:
                self._stop_comparing(error)

    def _corruption(self, position: int | None, expected: object, found: object, what: str) -> None:
        self._intact = False
        path = self._file.path
        self._tally.add("corruption", path, position, expected=expected, found=found, what=what)

    def _check_marked(self, windows: FileWindows) -> None:
        """Check every frame before the stop."""
        plan, position = self._plan, 0
        while position < windows.stop:
            try:
                frame = self._reader.at(windows, position, windows.stop)
            except FrameError as error:
                self._damaged(error, position)
                rest = f"{windows.stop - position} bytes from here on were not checked"
                self._tally.add(
                    "note",
                    self._file.path,
                    position,
                    expected="a frame",
                    found=rest,
                    what="no frame to go on at",
                )
                return
            self._sound = self._check_frame(windows, frame)
            self._tally.frames += 1
            self._tally.bytes += frame.size
            position += frame.size
        if self.next_offset < plan.next_offset and self._was_cut_in_gap():
            self.next_offset = plan.next_offset
        if windows.stop == plan.stop and self._sound and self.next_offset != plan.next_offset:
            self._corruption(plan.stop, plan.next_offset, self.next_offset, "next offset at the end")
        if windows.stop == plan.stop:
            self._check_end()

    def _check_end(self) -> None:
        """Check the sidecar after all frames before the mark were read."""
        try:
            self._tally.bytes += self._reader.check_end(self._plan.next_offset)
        except FrameError as error:
            self._damaged(error)

    def _was_cut_in_gap(self) -> bool:
        """Return whether a truncation ended the log here, in a gap that compaction had left."""
        plan = self._plan
        return plan.generation > 0 and any(start == plan.next_offset for _, start in plan.epochs)

    def _check_frame(self, windows: FileWindows, frame: AnyFrame) -> bool:
        """Check one frame and move past it. Return whether its header can be trusted."""
        try:
            self._reader.check(windows, frame)
        except FrameError as error:
            self._damaged(error, frame.position)
            return False
        try:
            self._check_order(frame, self._plan.next_offset)
        except FrameError as error:
            self._intact = False
            self._tally.add_error("corruption", self._file.path, error, frame.position)
        try:
            self._tally.records += self._reader.count(windows, frame)
        except FrameError as error:
            self._tally.add_error("invalid", self._file.path, error, frame.position)
        self._compare_frame(windows, frame)
        self._pass(frame)
        self._follow(windows, frame)
        return True

    def _follow(self, windows: FileWindows, frame: AnyFrame) -> None:
        if self.transactions is not None and isinstance(frame, PlacedHeader):
            self.transactions.add(windows, frame)

    def _damaged(self, error: FrameError, frame_position: int | None = None) -> None:
        """Report bytes that are not a valid frame, or a sidecar that does not fit."""
        self._intact = False
        self._tally.add_error("corruption", self._file.path, error, frame_position)
        if self._compare is not None:
            self._compare.skip()

    def _compare_frame(self, windows: FileWindows, frame: AnyFrame) -> None:
        if self._compare is not None:
            hash_ = leaf_hash(windows, frame.position, frame.end)

            def load() -> memoryview:
                at = windows.load(frame.position, frame.size)
                return memoryview(windows.data)[at : at + frame.size]

            try:
                self._compare.take(frame.position, frame.base_offset, frame.next_offset, hash_, load)
            except OSError as error:
                self._stop_comparing(error)

    def _check_order(self, frame: AnyFrame, offset_limit: int) -> None:
        """Check the offsets and epoch of a frame against the previous frame and the partition.

        Raises:
            FrameError: At the field that does not fit.
        """
        if frame.base_offset < self.next_offset:
            expected = f"{self.next_offset} or more, where the frame before ends"
            raise wrong(frame.position, expected, frame.base_offset, "base offset")
        if frame.next_offset > offset_limit:
            expected = f"an offset after its last that is at most {offset_limit}"
            raise wrong(frame.position, expected, frame.next_offset, "base offset")
        # After an unreadable frame, the next offset is unknown.
        gapless = self._reader.dense and not self._plan.generation and self._sound
        if gapless and frame.base_offset != self.next_offset:
            raise wrong(frame.position, self.next_offset, frame.base_offset, "offset")
        self._reader.check_follows(frame)

    def _pass(self, frame: AnyFrame) -> None:
        """Move past a frame and compute its index entries."""
        self.next_offset = frame.next_offset
        self._end = frame.end
        if isinstance(frame, PlacedHeader | EnvelopeFrame):
            self._see(frame)
        if not self._intact:
            return
        if self._owners is not None and isinstance(frame, EnvelopeFrame):
            self._owners.add(frame)
        indexed = self._add_to_index(frame) if self._reader.indexed else self._begins_block(frame)
        if indexed and self._unrecorded is not None:
            self._time_index.add(_TIME_INDEX_ENTRY.pack(*self._unrecorded))
            self._unrecorded = None
        if frame.record_count and (
            self._largest_timestamp is None or frame.max_timestamp > self._largest_timestamp
        ):
            reached = frame.max_timestamp, frame.base_offset
            if self._plan.time_index_sparse and self._largest_timestamp is not None:
                self._unrecorded = reached
            else:
                self._time_index.add(_TIME_INDEX_ENTRY.pack(*reached))
            self._largest_timestamp = frame.max_timestamp

    def _begins_block(self, frame: AnyFrame) -> bool:
        """Return whether a frame begins a later block of offsets than the last one that made a time grow.

        Blocks of ``index_interval_records`` take the place of the entries of a sparse offset index.
        """
        if self._unrecorded is None:
            return False
        size, base = max(self._plan.index_interval_records, 1), self._plan.base
        return (frame.base_offset - base) // size > (self._unrecorded[1] - base) // size

    def _add_to_index(self, frame: AnyFrame) -> bool:
        """Expect an index entry of the frame if it is far enough from the last indexed one; say if it is."""
        records = self._plan.index_interval_records
        place = frame.base_offset if records else frame.position
        if self._indexed_at is None or place - self._indexed_at >= (
            records or self._plan.index_interval_bytes
        ):
            self._index.add(_INDEX_ENTRY.pack(frame.base_offset, frame.position))
            self._indexed_at = place
            return True
        return False

    def _check_hash(self, windows: FileWindows) -> None:
        expected, found = self._plan.sha256, windows.digest()
        if found != expected:
            self._corruption(None, expected, found, "SHA-256 of the log")

    def _check_recorded_timestamp(self) -> None:
        expected = self._plan.max_timestamp
        found = -1 if self._largest_timestamp is None else self._largest_timestamp
        if self._intact and found != expected:
            self._corruption(None, expected, found, "largest timestamp")

    def _walk_tail(self, size: int) -> None:
        """Count complete frames past the mark; report the bytes after them. None of this is corruption."""
        windows = FileWindows(self._file, size, self._tally, hashed=False)
        position = self._plan.stop
        with contextlib.suppress(FrameError):
            while position < size:
                frame = self._reader.at(windows, position, size)
                self._reader.check(windows, frame)
                self._check_order(frame, INT64_MAX)
                self._compare_frame(windows, frame)
                self._pass(frame)
                self._follow(windows, frame)
                self._tally.frames_unmarked += 1
                position = frame.end
        torn = self._written_end(position, size) - position
        if torn > 0:
            self._tally.add(
                "note",
                self._file.path,
                position,
                expected="a frame, zeros or the end of the file",
                found=f"{torn} other bytes past the mark",
                what="torn tail",
            )
        beside = self._reader.torn()
        if beside is not None:
            self._tally.add_error("note", self._file.path, beside)

    def _written_end(self, start: int, size: int) -> int:
        """Return the position after the last byte in [start, size) that is not zero, or *start*."""
        end = position = start
        while position < size:
            data = self._file.read_at(position, min(WINDOW_BYTES, size - position))
            if not data:
                break
            written = len(data.rstrip(b"\0"))
            end = position + written if written else end
            position += len(data)
        return end

    def _note_leftovers(self, size: int) -> None:
        self._tally.add(
            "note",
            self._file.path,
            self._plan.stop,
            expected="the end of the file once the truncation is finished",
            found=f"{max(0, size - self._plan.stop)} bytes",
            what="truncation under way",
        )
