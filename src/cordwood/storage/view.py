"""What readers see of a partition at one moment: the writer's own view, and that of a reader beside it."""

from __future__ import annotations

from bisect import bisect_right
from typing import NamedTuple

import msgspec

from cordwood.errors import CorruptRange, OffsetOutOfRange
from cordwood.storage.partition_state import PartitionState, SealedInfo
from cordwood.storage.reading import Bounds, FrameRun, find_timestamp, read_run
from cordwood.storage.segment import Segment


class Fetched(NamedTuple):
    """Whole frames from an offset on, and where the log stood."""

    runs: tuple[FrameRun, ...]
    next_offset: int
    high_watermark: int
    log_end_offset: int
    log_start_offset: int


class View(NamedTuple):
    """The segments there are and where the last one stops for readers. Never changed, only replaced."""

    state: PartitionState
    segments: tuple[Segment, ...]
    position: int
    high_watermark: int
    frame_size_max: int

    def find_segment(self, offset: int) -> int:
        """Return which segment holds *offset*, or would."""
        return max(bisect_right(self.segments, offset, key=lambda segment: segment.base) - 1, 0)

    def bounds(self, at: int) -> Bounds:
        """Return what is known of a segment's frames beside their bytes."""
        info = self.segments[at].info
        if at == len(self.segments) - 1:
            info = msgspec.structs.replace(info, size=self.position, next_offset=self.high_watermark)
        return bounds_of(self.state, info, self.frame_size_max)

    def read(self, offset: int, max_bytes: int, log_end_offset: int) -> Fetched:
        """Return whole frames from the one that holds *offset* on, below the high watermark.

        About *max_bytes* of them, across segments; the first one comes whole however large it is.

        Raises:
            OffsetOutOfRange: If *offset* is below the log start or above the high watermark.
            CorruptRange: If the frame there is not what was written.
        """
        start = self.state.log_start_offset
        if not start <= offset <= self.high_watermark:
            raise OffsetOutOfRange(offset, start, self.high_watermark)
        runs: list[FrameRun] = []
        next_offset, left, at = offset, max_bytes, self.find_segment(offset)
        while next_offset < self.high_watermark and at < len(self.segments) and (left > 0 or not runs):
            try:
                run = read_run(self.segments[at], next_offset, self.bounds(at), max(left, 0))
            except CorruptRange:
                if runs:
                    # What comes before the damage is served; whoever goes on from there will meet it.
                    break
                raise
            if run is None:
                at += 1
                continue
            if runs and len(run.data) > left:
                break
            runs.append(run)
            next_offset = run.next_offset
            left -= len(run.data)
            if next_offset < self.bounds(at).next_offset:
                # Cut by its size and not by the end of the segment: what follows would not fit either.
                break
        return Fetched(tuple(runs), next_offset, self.high_watermark, log_end_offset, start)

    def offset_at(self, timestamp: int) -> tuple[int, int] | None:
        """Return (offset, timestamp) of the first record at or after *timestamp*, or None."""
        for at, segment in enumerate(self.segments):
            if at < len(self.segments) - 1 and segment.info.max_timestamp < timestamp:
                continue
            found = find_timestamp(segment, timestamp, self.bounds(at), self.state.log_start_offset)
            if found is not None:
                return found
        return None


def bounds_of(state: PartitionState, info: SealedInfo, frame_size_max: int) -> Bounds:
    """Return what is known of the frames of a segment beside their bytes."""
    return Bounds(
        end=info.size,
        next_offset=info.next_offset,
        dense=True,
        epochs=state.epochs_within(info.base, info.next_offset),
        size_max=frame_size_max,
    )
