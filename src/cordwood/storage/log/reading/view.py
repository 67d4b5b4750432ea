"""The view of a partition at one moment, as its writer or a reader in another process sees it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from cordwood.errors import CorruptRange, OffsetOutOfRange
from cordwood.index import AbortedEntry
from cordwood.storage.log.reading.frame_walk import (
    Bounds,
    FrameRun,
    find_timestamp,
    indexes_of,
    read_run,
    records_from,
    unrecorded_from,
)
from cordwood.storage.log.segment import Segment
from cordwood.storage.log.state import PartitionState, SealedInfo


class Fetched(NamedTuple):
    """Whole frames from an offset on, and the offsets of the log at that moment."""

    runs: tuple[FrameRun, ...]
    next_offset: int
    high_watermark: int
    log_end_offset: int
    log_start_offset: int
    #: Aborted transactions with records in the runs; only of a read of committed records.
    aborted: tuple[AbortedEntry, ...] = ()


Standing = tuple[int, int, int]
"""The high watermark, the log start offset and the last stable offset of a partition at one moment.

A plain tuple: a fetch of many partitions makes one for each.
"""


class Published(NamedTuple):
    """The offsets of a partition at one moment. ``epochs`` are (start offset, leader epoch), oldest first."""

    log_start_offset: int
    high_watermark: int
    epochs: tuple[tuple[int, int], ...]
    last_stable_offset: int

    @property
    def leader_epoch(self) -> int:
        """How often the partition was truncated."""
        return self.epochs[-1][1]


class View(NamedTuple):
    """The segments, and where the last one ends for readers. Never changed, only replaced."""

    state: PartitionState
    segments: tuple[Segment, ...]
    position: int
    high_watermark: int
    frame_size_max: int
    #: Whether each read compares checksums, also of frames that were read before.
    rechecks: bool = False
    #: The first offset of an open transaction; beyond every offset without one.
    open_from: int = 1 << 62

    @property
    def last_stable_offset(self) -> int:
        """The first offset of an open transaction, or the high watermark if none is open below it."""
        if self.open_from >= self.high_watermark:
            return self.high_watermark
        return max(self.open_from, self.state.log_start_offset)

    @property
    def standing(self) -> Standing:
        """The offsets that a client is told."""
        end = stable = self.high_watermark
        if self.open_from < end:
            stable = self.last_stable_offset
        return end, self.state.log_start_offset, stable

    def find_segment(self, offset: int) -> int:
        """Return the number of the segment that holds *offset*, or would hold it."""
        return max(bisect_right(self.segments, offset, key=lambda segment: segment.base) - 1, 0)

    def bounds(self, at: int) -> Bounds:
        """Return the bounds that the frames of segment *at* must keep to."""
        info = self.segments[at].info
        if at == len(self.segments) - 1:
            info = msgspec.structs.replace(info, size=self.position, next_offset=self.high_watermark)
        return bounds_of(self.state, info, self.frame_size_max, rechecks=self.rechecks)

    def read(
        self,
        offset: int,
        max_bytes: int,
        log_end_offset: int,
        stop: int | None = None,
        limit: int | None = None,
    ) -> Fetched:
        """Return whole frames from the one that holds *offset* on, below the high watermark.

        About *max_bytes* of them, across segments; the first one is returned whole however large it is.
        Little is read beyond the offset *stop*, and no frame that begins at or after *limit* is returned.

        Raises:
            OffsetOutOfRange: If *offset* is below the log start or above the high watermark.
            CorruptRange: If the frame there is not what was written.
        """
        start = self.state.log_start_offset
        if not start <= offset <= self.high_watermark:
            raise OffsetOutOfRange(offset, start, self.high_watermark)
        runs: list[FrameRun] = []
        next_offset, left, at = offset, max_bytes, self.find_segment(offset)
        end = self.high_watermark if stop is None else min(stop, self.high_watermark)
        if limit is not None:
            end = min(end, limit)
        while next_offset < end and at < len(self.segments) and (left > 0 or not runs):
            try:
                needed = max(left, 0)
                if stop is not None:
                    needed = min(needed, self._bytes_until(at, next_offset, stop))
                run = read_run(self.segments[at], next_offset, self.bounds(at), needed)
            except CorruptRange:
                if runs:
                    # The frames before the damage are served; the next read begins with it and is refused.
                    break
                raise
            if run is not None and limit is not None:
                run = run.before(limit)
                if run is None:
                    break
            if run is None:
                at += 1
                continue
            if runs and len(run.data) > left:
                break
            runs.append(run)
            next_offset = run.next_offset
            left -= len(run.data)
            if next_offset < self.bounds(at).next_offset:
                # Cut by its size and not by the end of the segment: the next frame would not fit either.
                break
        return Fetched(tuple(runs), next_offset, self.high_watermark, log_end_offset, start)

    def bytes_within(self, start: int, end: int) -> int:
        """Return about how many bytes the offsets [start, end) take, by the sizes of segments alone."""
        return sum(high - low for _, low, high in self._extents(start, end))

    def cuts(self, start: int, end: int, bytes_max: int) -> list[int]:
        """Return offsets where frames start that cut (start, end) into pieces of about the same size.

        No piece is much larger than *bytes_max*, unless one frame is. Loads only the indexes of those
        segments that are cut.
        """
        total = self.bytes_within(start, end)
        pieces = -(-total // bytes_max)
        found: list[int] = []
        step, passed = -(-total // max(pieces, 1)), 0
        for at, low, high in self._extents(start, end):
            while len(found) < pieces - 1 and (due := (len(found) + 1) * step - passed) <= high - low:
                entry = self._cut_near(at, low + due)
                if entry is None or not start < entry < end or (found and entry <= found[-1]):
                    # A frame as large as several pieces: it is not cut.
                    pieces -= 1
                    continue
                found.append(entry)
            passed += high - low
        return found

    def _cut_near(self, at: int, position: int) -> int | None:
        """Return the offset of the first indexed frame at or after *position*, or of the next segment."""
        if position < self.bounds(at).end:
            entry = indexes_of(self.segments[at], self.bounds(at))[0].next_after(position - 1)
            if entry is not None:
                return entry[0]
        return self.segments[at + 1].base if at + 1 < len(self.segments) else None

    def _extents(self, start: int, end: int) -> Iterator[tuple[int, int, int]]:
        """Yield (segment, low, high) for [start, end), positions estimated by linear interpolation."""
        for at in range(self.find_segment(start), len(self.segments)):
            bounds, base = self.bounds(at), self.segments[at].base
            offsets = bounds.next_offset - base
            low, high = max(start - base, 0), min(end - base, offsets)
            if low < high:
                yield at, low * bounds.end // offsets, high * bounds.end // offsets

    def _bytes_until(self, at: int, offset: int, stop: int) -> int:
        """Return how many bytes of a segment hold the offsets from *offset* up to *stop*, or some more."""
        bounds = self.bounds(at)
        if stop >= bounds.next_offset:
            return bounds.end
        index = indexes_of(self.segments[at], bounds)[0]
        first, last = index.floor_entry(offset), index.ceiling_entry(stop)
        return (bounds.end if last is None else last[1]) - (0 if first is None else first[1])

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
                largest = _largest_visible(self, at)
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


def _largest_visible(view: View, at: int) -> int:
    """Return the largest timestamp of the visible frames of the active segment, NO_TIMESTAMP without any."""
    segment, bounds = view.segments[at], view.bounds(at)
    index, times = indexes_of(segment, bounds)
    largest = times.largest_below(view.high_watermark)
    if times.sparse and bounds.next_offset > segment.base:
        start = unrecorded_from(index, times, bounds.next_offset - 1)
        return max([largest, *(record.timestamp for record in records_from(segment, start, bounds))])
    return largest


def _newest_readable(view: View, at: int) -> tuple[int, int] | None:
    """Return (offset, timestamp) of the first record of a segment with its largest timestamp, by reading it.

    For the segment that the log start lies in: the largest timestamp in its index may be of a record below
    the log start.
    """
    start, found = view.state.log_start_offset, None
    for record in records_from(view.segments[at], start, view.bounds(at)):
        if found is None or record.timestamp > found[1]:
            found = record.offset, record.timestamp
    return found


def bounds_of(
    state: PartitionState, info: SealedInfo, frame_size_max: int, *, rechecks: bool = False
) -> Bounds:
    """Return the bounds that the frames of the segment of *info* must keep to."""
    return Bounds(
        end=info.size,
        next_offset=info.next_offset,
        dense=not info.generation,
        epochs=state.epochs_within(info.base, info.next_offset),
        size_max=frame_size_max,
        rechecks=rechecks,
    )
