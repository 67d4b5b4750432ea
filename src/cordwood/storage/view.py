"""What readers see of a partition at one moment: the writer's own view, and that of a reader beside it."""

from __future__ import annotations

from bisect import bisect_right
from typing import NamedTuple

import msgspec

from cordwood.errors import CorruptRange, OffsetOutOfRange
from cordwood.storage.partition_state import PartitionState, SealedInfo
from cordwood.storage.reading import Bounds, FrameRun, find_timestamp, indexes_of, read_run, records_from
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

    def newest(self) -> tuple[int, int] | None:
        """Return (offset, timestamp) of the first record with the largest timestamp, None without records.

        Raises:
            CorruptRange: If a frame that may hold it is not what was written.
        """
        best: tuple[int, int] | None = None
        for at, segment in enumerate(self.segments):
            if at == len(self.segments) - 1:
                largest = indexes_of(segment, self.bounds(at))[1].largest_below(self.high_watermark)
            else:
                largest = segment.info.max_timestamp
            if best is not None and largest <= best[1]:
                continue
            if segment.base < self.state.log_start_offset:
                found = _newest_readable(self, at)
            else:
                found = find_timestamp(segment, largest, self.bounds(at), segment.base)
            if found is not None and (best is None or found[1] > best[1]):
                best = found
        return best


def _newest_readable(view: View, at: int) -> tuple[int, int] | None:
    """Return (offset, timestamp) of the first record of a segment with its largest timestamp, by reading it.

    For the segment that the log start lies in: what its index knows to be the largest may not be readable
    any more.
    """
    start, found = view.state.log_start_offset, None
    for record in records_from(view.segments[at], start, view.bounds(at)):
        if found is None or record.timestamp > found[1]:
            found = record.offset, record.timestamp
    return found


def bounds_of(state: PartitionState, info: SealedInfo, frame_size_max: int) -> Bounds:
    """Return what is known of the frames of a segment beside their bytes."""
    return Bounds(
        end=info.size,
        next_offset=info.next_offset,
        dense=True,
        epochs=state.epochs_within(info.base, info.next_offset),
        size_max=frame_size_max,
    )
