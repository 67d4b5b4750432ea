"""Check one segment, from its bytes and from what authoritative metadata say of it.

The frames are found by tiling the log from its start, never through an index. Headers are parsed here
and not by the code that writes them; docs/formats/batch.md has their layout. The indexes are computed
anew on the way and compared byte for byte.

The checksum of a batch does not cover its first 17 bytes. Tiling shows a flip in length or magic; rising
offsets that end at the recorded next offset show one in the base offset; the partition's list of epochs
shows one in the leader epoch. One thing stays hidden without a recorded SHA-256: a base offset that moved
within a gap left by compaction, of a frame that has no index entry.
"""

from __future__ import annotations

import contextlib
import struct
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from cordwood.errors import FrameError
from cordwood.storage.files import File, Files
from cordwood.storage.verify.frame import (
    INT64_MAX,
    WINDOW_BYTES,
    Frame,
    Windows,
    check_crc,
    check_header,
    check_records,
    frame_at,
    wrong_field,
)
from cordwood.storage.verify.index import ENTRY_BYTES, IndexClaim, IndexFile
from cordwood.storage.verify.report import Tally

_INDEX_ENTRY = struct.Struct(">QQ")
_TIME_INDEX_ENTRY = struct.Struct(">qQ")
assert _INDEX_ENTRY.size == _TIME_INDEX_ENTRY.size == ENTRY_BYTES


Epochs: TypeAlias = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class SegmentPlan:
    """What metadata say of a segment: the claims to check.

    ``path`` is that of the files without their suffix. Bytes of the log before ``stop`` are judged; at
    ``stop`` the next offset is ``next_offset``. ``epochs`` are pairs of a leader epoch and the first offset
    under it, rising. A sealed segment ends at ``stop`` and its ``max_timestamp`` is known. What follows
    ``stop`` in an active one is a tail, or ``leftovers`` of an unfinished truncation. That, and an unfinished
    swap, may also have files under another suffix.
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
    leftovers: bool = False
    log_suffix: str = "log"
    index_suffix: str = "idx"
    time_index_suffix: str = "timeidx"


def check_segment(files: Files, plan: SegmentPlan, tally: Tally, see: Callable[[Frame], None]) -> int:
    """Check the log and both indexes of a segment and put what is found into *tally*.

    *see* is called with each sound frame, marked or not. Return the offset after the last one. Whatever the
    bytes are, this returns. Memory is bounded by a window or by the largest frame whose checksum is right.
    """
    path = f"{plan.path}.{plan.log_suffix}"
    tally.segments += 1
    try:
        file = files.open(path, "read")
    except OSError as error:
        tally.add_unreadable(path, error)
        return plan.next_offset
    with contextlib.closing(file):
        check = _SegmentCheck(files, file, plan, tally, see)
        try:
            check.run()
        except OSError as error:
            tally.add_unreadable(path, error)
        finally:
            check.close()
    return check.next_offset


class _SegmentCheck:
    """The walk over one segment. ``next_offset`` is where it stands."""

    def __init__(
        self, files: Files, file: File, plan: SegmentPlan, tally: Tally, see: Callable[[Frame], None]
    ) -> None:
        self.next_offset = plan.base
        self._see = see
        self._plan = plan
        self._file = file
        self._tally = tally
        self._intact = True
        self._largest_timestamp: int | None = None
        self._indexed_at: int | None = None
        index_path, time_index_path = (
            f"{plan.path}.{suffix}" for suffix in (plan.index_suffix, plan.time_index_suffix)
        )
        self._index = IndexFile(files, index_path, "offset index", plan.index)
        self._time_index = IndexFile(files, time_index_path, "time index", plan.time_index)

    def close(self) -> None:
        self._index.close()
        self._time_index.close()

    def run(self) -> None:
        plan, size = self._plan, self._file.size()
        windows = Windows(self._file, min(plan.stop, size), self._tally, hashed=plan.sha256 is not None)
        if size < plan.stop or (plan.sealed and size != plan.stop):
            expected = f"{plan.stop} bytes" if plan.sealed else f"the {plan.stop} bytes that are marked"
            self._corruption(min(size, plan.stop), expected, f"{size} bytes", "size of the log")
        self._check_marked(windows)
        if plan.sha256 is not None and size == plan.stop:
            self._check_hash(windows)
        if plan.sealed:
            self._check_recorded_timestamp()
        elif plan.leftovers:
            self._note_leftovers(size)
        elif self._intact:
            self._walk_tail(size)
        # The index of a log that is not intact cannot be computed, so there is nothing to compare with; and
        # those of one that is being truncated are written when that is finished.
        if self._intact and not plan.leftovers:
            self._index.finish(self._tally)
            self._time_index.finish(self._tally)

    def _corruption(self, position: int | None, expected: object, found: object, what: str) -> None:
        self._intact = False
        path = self._file.path
        self._tally.add("corruption", path, position, expected=expected, found=found, what=what)

    def _check_marked(self, windows: Windows) -> None:
        """Check every frame before the stop."""
        plan, position, sound = self._plan, 0, True
        while position < windows.stop:
            try:
                frame = frame_at(windows, position, windows.stop)
            except FrameError as error:
                self._intact = False
                self._tally.add_error("corruption", self._file.path, error)
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
            sound = self._check_frame(windows, frame)
            position = frame.end
            self._tally.frames += 1
            self._tally.bytes += frame.size
        if windows.stop == plan.stop and sound and self.next_offset != plan.next_offset:
            self._corruption(plan.stop, plan.next_offset, self.next_offset, "next offset at the end")

    def _check_frame(self, windows: Windows, frame: Frame) -> bool:
        """Check one frame and move on behind it. Return whether its header can be believed."""
        try:
            check_crc(windows, frame)
            check_header(frame)
        except FrameError as error:
            self._intact = False
            self._tally.add_error("corruption", self._file.path, error)
            return False
        try:
            self._check_order(frame, self._plan.next_offset)
        except FrameError as error:
            self._intact = False
            self._tally.add_error("corruption", self._file.path, error)
        try:
            self._tally.records += check_records(windows, frame)
        except FrameError as error:
            self._tally.add_error("invalid", self._file.path, error)
        self._pass(frame)
        return True

    def _check_order(self, frame: Frame, offset_limit: int) -> None:
        """Check what a frame says of its place against the one before and against the partition.

        Raises:
            InvalidBatch: At the field that does not fit.
        """
        if not self.next_offset <= frame.base_offset:
            expected = f"{self.next_offset} or more, where the frame before ends"
            raise wrong_field(frame, 0, expected, frame.base_offset, "base offset")
        if frame.next_offset > offset_limit:
            expected = f"an offset after its last that is at most {offset_limit}"
            raise wrong_field(frame, 0, expected, frame.next_offset, "base offset")
        epoch = self._epoch_at(frame.base_offset)
        if frame.leader_epoch != epoch:
            raise wrong_field(frame, 12, epoch, frame.leader_epoch, "leader epoch")

    def _epoch_at(self, offset: int) -> int:
        """Return the leader epoch that *offset* was appended under."""
        epochs = self._plan.epochs
        return epochs[max(0, bisect_right(epochs, offset, key=lambda epoch: epoch[1]) - 1)][0]

    def _pass(self, frame: Frame) -> None:
        """Go on behind a frame and compute its index entries."""
        self.next_offset = frame.next_offset
        self._see(frame)
        if not self._intact:
            return
        since = None if self._indexed_at is None else frame.position - self._indexed_at
        if since is None or since >= self._plan.index_interval_bytes:
            self._index.add(_INDEX_ENTRY.pack(frame.base_offset, frame.position))
            self._indexed_at = frame.position
        if frame.record_count and (
            self._largest_timestamp is None or frame.max_timestamp > self._largest_timestamp
        ):
            self._time_index.add(_TIME_INDEX_ENTRY.pack(frame.max_timestamp, frame.base_offset))
            self._largest_timestamp = frame.max_timestamp

    def _check_hash(self, windows: Windows) -> None:
        expected, found = self._plan.sha256, windows.digest()
        if found != expected:
            self._corruption(None, expected, found, "SHA-256 of the log")

    def _check_recorded_timestamp(self) -> None:
        expected = self._plan.max_timestamp
        found = -1 if self._largest_timestamp is None else self._largest_timestamp
        if self._intact and found != expected:
            self._corruption(None, expected, found, "largest timestamp")

    def _walk_tail(self, size: int) -> None:
        """Count whole frames past the mark, and say what follows them. Nothing here is corruption."""
        windows = Windows(self._file, size, self._tally, hashed=False)
        position = self._plan.stop
        with contextlib.suppress(FrameError):
            while position < size:
                frame = frame_at(windows, position, size)
                check_crc(windows, frame)
                check_header(frame)
                self._check_order(frame, INT64_MAX)
                self._pass(frame)
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
