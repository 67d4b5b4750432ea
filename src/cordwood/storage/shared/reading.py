"""Reading a partition of the shared log: offsets to ids, ids to frames, frames to the batches in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from cordwood.errors import CorruptRange, FrameError, OffsetOutOfRange
from cordwood.formats import BATCH
from cordwood.formats.shared import (
    ENVELOPE_SIZE,
    Envelope,
    EnvelopeKind,
    EnvelopeTable,
    Owner,
    OwnerEntry,
    content_of,
    read_envelope,
)
from cordwood.kernels import INT32_MAX
from cordwood.records import Record
from cordwood.storage.log import Fetched, FrameRun, SealedInfo, Segment, View, read_run
from cordwood.storage.shared.offsets import Offsets, VirtualPartition

Lookup = Callable[[Segment, int], OwnerEntry | None]
"""Maps a segment and an id to the index entry of its frame."""


class SharedFrame(NamedTuple):
    """A frame of the shared log, checked, and the batch in it."""

    envelope: Envelope
    content: memoryview


@dataclass(frozen=True)
class VirtualReader:
    """Reads partitions of the shared log through one *view* of it. Any thread."""

    view: View
    lookup: Lookup

    def end_of(self, offsets: Offsets) -> int:
        """Return the first offset of a partition that cannot be read yet."""
        return offsets.readable_below(self.view.high_watermark)

    def read(
        self,
        owner: Owner,
        offsets: Offsets,
        offset: int,
        max_bytes: int,
        stop: int | None = None,
        limit: int | None = None,
    ) -> Fetched:
        """Return whole batches from the one that holds *offset* on; see `View.read`.

        Batches of a topic lie between those of others, so they are copied into one buffer. No batch that
        begins at or after *limit* is returned.

        Raises:
            OffsetOutOfRange: If *offset* is below the start or above the readable end.
            CorruptRange: If the frame there is damaged.
        """
        end = self.end_of(offsets)
        if not offsets.start <= offset <= end:
            raise OffsetOutOfRange(offset, offsets.start, end)
        last = end if stop is None else min(stop, end)
        if limit is not None:
            last = min(last, limit)
        gathered: list[memoryview] = []
        next_offset, size = offset, 0
        while next_offset < last and (size < max_bytes or not gathered):
            try:
                found = self.frame(owner, offsets, next_offset)
            except CorruptRange:
                if gathered:
                    # Batches before the damage are returned; the next read raises.
                    break
                raise
            if gathered and size + len(found.content) > max_bytes:
                break
            gathered.append(found.content)
            size += len(found.content)
            next_offset = found.envelope.first_offset + found.envelope.id_count
        runs = (_run(gathered),) if gathered else ()
        return Fetched(runs, next_offset, end, offsets.end, offsets.start)

    def read_committed(
        self, part: VirtualPartition, offset: int, max_bytes: int, stop: int | None = None
    ) -> Fetched:
        """Return batches below the last stable offset, and the aborted transactions with records in them.

        Markers and records of aborted transactions are still in the runs: see `committed_runs`. Raises as
        `read` does.
        """
        offsets = part.shown
        # The end before the transactions: one that begins after this lies at or above the end.
        stable = part.stable_below(self.end_of(offsets))
        transactions, limit = part.transactions, stable
        while True:
            fetched = self.read(part.owner, offsets, offset, max_bytes, stop, limit)
            if transactions is None or not fetched.runs:
                return fetched
            try:
                aborted = tuple(transactions.aborted_within(offset, fetched.next_offset))
                break
            except CorruptRange as error:
                if error.offset <= offset:
                    raise
                # As with damage in the log: all before it is returned first.
                limit = error.offset
        if part.offsets.start > offset:
            # The start moved meanwhile, and aborted transactions below it are not known any more.
            raise OffsetOutOfRange(offset, part.offsets.start, fetched.high_watermark)
        return fetched._replace(aborted=aborted)

    def frame(self, owner: Owner, offsets: Offsets, offset: int) -> SharedFrame:
        """Return the frame that holds *offset*, which must exist.

        Raises:
            CorruptRange: If the frame is damaged.
        """
        id_ = offsets.id_of(offset)
        at = self.view.find_segment(id_)
        segment = self.view.segments[at]
        entry = self.lookup(segment, id_)
        found = None if entry is None else self._at(segment, entry)
        if found is None:
            try:
                found = self._find_by_walking(at, id_)
            except CorruptRange as damage:
                # Readers of the partition do not know ids, so the error has the missing offsets and where to
                # continue.
                missed = offsets.below(damage.offset), offsets.below(damage.resume_offset)
                place = damage.path, damage.position
                raise CorruptRange(*place, *missed, damage.reason) from damage.__cause__
        envelope = found.envelope
        ours = envelope.owner == owner and envelope.kind is EnvelopeKind.RECORDS
        if not ours or not 0 <= offset - envelope.first_offset < envelope.id_count:
            place = segment.path, 0 if entry is None else entry.position
            reason = f"offset {offset} of {owner} is not in the frame of its id {id_}"
            raise CorruptRange(*place, offset, offset + 1, reason)
        return found

    def _at(self, segment: Segment, entry: OwnerEntry) -> SharedFrame | None:
        """Return the frame of *entry*; None if the entry does not match the log."""
        try:
            data = segment.read_at(entry.position, entry.size)
            # Checked on every read: remembering which small frames were checked would cost more.
            envelope = read_envelope(data)
        except (OSError, FrameError):
            return None
        said = (entry.first_id, entry.first_offset, entry.id_count, entry.size, entry.kind, entry.owner)
        is_ = (envelope.first_id, envelope.first_offset, envelope.id_count, envelope.size)
        if said != (*is_, envelope.kind, envelope.owner):
            return None
        return SharedFrame(envelope, content_of(data, 0, envelope))

    def _find_by_walking(self, at: int, id_: int) -> SharedFrame:
        """Find the frame with *id_* without the dense index.

        Raises:
            CorruptRange: If the frame is damaged.
        """
        segment, bounds = self.view.segments[at], self.view.bounds(at)
        run = read_run(segment, id_, bounds, ENVELOPE_SIZE)
        if run is None:
            raise CorruptRange(
                segment.path, 0, id_, bounds.next_offset, f"there is no frame with the id {id_}"
            )
        assert isinstance(run.table, EnvelopeTable)
        return SharedFrame(run.table.envelope(run.first), run.table.content(run.first))

    def frames_from(self, owner: Owner, offsets: Offsets, timestamp: int) -> Iterator[SharedFrame]:
        """Yield the frames that may hold a record at or after *timestamp*, in order.

        Segments without such a record are skipped. Raises as `frame` does.
        """
        offset, end = offsets.start, self.end_of(offsets)
        while offset < end:
            at = self.view.find_segment(offsets.id_of(offset))
            segment = self.view.segments[at]
            if at < len(self.view.segments) - 1 and segment.info.max_timestamp < timestamp:
                offset = offsets.below(segment.info.next_offset)
                continue
            entry = self.lookup(segment, offsets.id_of(offset))
            if entry is not None and entry.max_timestamp < timestamp and entry.owner == owner:
                offset = max(entry.next_offset, offset + 1)
                continue
            found = self.frame(owner, offsets, offset)
            if found.envelope.max_timestamp >= timestamp:
                yield found
            offset = found.envelope.first_offset + found.envelope.id_count

    def entries_between(self, offsets: Offsets, start: int, end: int) -> Iterator[OwnerEntry]:
        """Yield the index entries of a partition's frames in [start, end); some may be missing."""
        while start < min(end, offsets.end):
            id_ = offsets.id_of(start)
            entry = self.lookup(self.view.segments[self.view.find_segment(id_)], id_)
            if entry is None:
                start += 1
                continue
            yield entry
            start = max(entry.next_offset, start + 1)

    def known_entries(self, offsets: Offsets) -> Iterator[tuple[OwnerEntry, SealedInfo | None]]:
        """Yield the entries of all frames, each with its segment's description; None for the active one.

        Ends before the first frame that the index misses, whose age is unknown.
        """
        known, active = offsets.start, len(self.view.segments) - 1
        for entry in self.entries_between(offsets, offsets.start, offsets.end):
            if entry.first_offset > known:
                return
            at = self.view.find_segment(entry.first_id)
            yield entry, None if at == active else self.view.segments[at].info
            known = entry.next_offset

    def sealed_entries(self, offsets: Offsets) -> Iterator[tuple[OwnerEntry, SealedInfo]]:
        """Yield the entries of the frames in sealed segments, which come first."""
        for entry, info in self.known_entries(offsets):
            if info is None:
                return
            yield entry, info

    def offset_at(self, owner: Owner, offsets: Offsets, timestamp: int) -> tuple[int, int] | None:
        """Return (offset, timestamp) of the first record at or after *timestamp*, exactly."""
        for found in self.frames_from(owner, offsets, timestamp):
            for record in records_in(found):
                if record.timestamp >= timestamp and record.offset >= offsets.start:
                    return record.offset, record.timestamp
        return None

    def newest(self, owner: Owner, offsets: Offsets) -> tuple[int, int] | None:
        """Return (offset, timestamp) of the first record with the largest timestamp, None without records."""
        best: tuple[int, int] | None = None
        for found in self.frames_from(owner, offsets, -1):
            if best is not None and found.envelope.max_timestamp <= best[1]:
                continue
            for record in records_in(found):
                if record.offset >= offsets.start and (best is None or record.timestamp > best[1]):
                    best = record.offset, record.timestamp
        return best


def records_in(found: SharedFrame) -> list[Record]:
    """Return the records of a frame, with the offsets of their partition."""
    return BATCH.decode(found.content, 0)


def _run(gathered: list[memoryview]) -> FrameRun:
    """Return checked batches as one run."""
    data = gathered[0] if len(gathered) == 1 else memoryview(b"".join(gathered))
    table = BATCH.scan(
        data, next_offset=0, dense=False, epochs=None, size_max=INT32_MAX, checked_before=len(data)
    )
    return FrameRun(0, data, table, 0, len(table) - 1, BATCH)
