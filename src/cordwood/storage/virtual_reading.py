"""Reading a partition of the shared log: offsets to ids, ids to frames, frames to the batches in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from cordwood.errors import CorruptRange, FrameError, OffsetOutOfRange
from cordwood.formats.envelope import (
    ENVELOPE_SIZE,
    Envelope,
    EnvelopeTable,
    Kind,
    Owner,
    content_of,
    read_envelope,
)
from cordwood.formats.owners import OwnerEntry
from cordwood.formats.registry import BATCH
from cordwood.kernels.layout import INT32_MAX
from cordwood.records import Record
from cordwood.storage.partition_state import SealedInfo
from cordwood.storage.reading import FrameRun, read_run
from cordwood.storage.segment import Segment
from cordwood.storage.view import Fetched, View
from cordwood.storage.virtual_topics import Offsets

Lookup = Callable[[Segment, int], OwnerEntry | None]
"""From a segment and an id to what the index says of the frame that has it."""


class Found(NamedTuple):
    """A frame of the shared log, checked, and the batch in it."""

    envelope: Envelope
    content: memoryview


@dataclass(frozen=True)
class VirtualReader:
    """Reads partitions of the shared log as one *view* of it shows them. From any thread."""

    view: View
    lookup: Lookup

    def end_of(self, offsets: Offsets) -> int:
        """Return the first offset of a partition that cannot be read yet."""
        return offsets.below(self.view.high_watermark)

    def read(
        self, owner: Owner, offsets: Offsets, offset: int, max_bytes: int, stop: int | None = None
    ) -> Fetched:
        """Return whole batches from the one that holds *offset* on; see `View.read`.

        Those of a topic lie apart, between those of others, so they are copied together.

        Raises:
            OffsetOutOfRange: If *offset* is below the start or above what can be read.
            CorruptRange: If the frame there is not what was written.
        """
        end = self.end_of(offsets)
        if not offsets.start <= offset <= end:
            raise OffsetOutOfRange(offset, offsets.start, end)
        last = end if stop is None else min(stop, end)
        gathered: list[memoryview] = []
        next_offset, size = offset, 0
        while next_offset < last and (size < max_bytes or not gathered):
            try:
                found = self.frame(owner, offsets, next_offset)
            except CorruptRange:
                if gathered:
                    # What comes before the damage is served; whoever goes on from there will meet it.
                    break
                raise
            if gathered and size + len(found.content) > max_bytes:
                break
            gathered.append(found.content)
            size += len(found.content)
            next_offset = found.envelope.first_offset + found.envelope.id_count
        runs = (_run(gathered),) if gathered else ()
        return Fetched(runs, next_offset, end, offsets.end, offsets.start)

    def frame(self, owner: Owner, offsets: Offsets, offset: int) -> Found:
        """Return the frame that holds *offset*, which is there.

        Raises:
            CorruptRange: If it is not what was written.
        """
        id_ = offsets.id_of(offset)
        at = self.view.find_segment(id_)
        segment = self.view.segments[at]
        entry = self.lookup(segment, id_)
        found = None if entry is None else self._at(segment, entry)
        if found is None:
            try:
                found = self._walked_to(at, id_)
            except CorruptRange as damage:
                # Ids are of no use to who reads the partition: what it misses, and where it can go on.
                missed = offsets.below(damage.offset), offsets.below(damage.resume_offset)
                place = damage.path, damage.position
                raise CorruptRange(*place, *missed, damage.reason) from damage.__cause__
        envelope = found.envelope
        ours = envelope.owner == owner and envelope.kind is Kind.RECORDS
        if not ours or not 0 <= offset - envelope.first_offset < envelope.id_count:
            place = segment.path, 0 if entry is None else entry.position
            reason = f"offset {offset} of {owner} is not in the frame of its id {id_}"
            raise CorruptRange(*place, offset, offset + 1, reason)
        return found

    def _at(self, segment: Segment, entry: OwnerEntry) -> Found | None:
        """Return the frame that *entry* speaks of; None if it is not there as the entry says."""
        try:
            data = segment.read_at(entry.position, entry.size)
            # Every time: which of many small frames were checked before would take longer to look up.
            envelope = read_envelope(data)
        except (OSError, FrameError):
            return None
        said = (entry.first_id, entry.first_offset, entry.id_count, entry.size, entry.kind, entry.owner)
        is_ = (envelope.first_id, envelope.first_offset, envelope.id_count, envelope.size)
        if said != (*is_, envelope.kind, envelope.owner):
            return None
        return Found(envelope, content_of(data, 0, envelope))

    def _walked_to(self, at: int, id_: int) -> Found:
        """Return the frame that has *id_*, found without the dense index.

        Raises:
            CorruptRange: If it is not what was written.
        """
        segment, bounds = self.view.segments[at], self.view.bounds(at)
        run = read_run(segment, id_, bounds, ENVELOPE_SIZE)
        if run is None:
            raise CorruptRange(
                segment.path, 0, id_, bounds.next_offset, f"there is no frame with the id {id_}"
            )
        assert isinstance(run.table, EnvelopeTable)
        return Found(run.table.envelope(run.first), run.table.content(run.first))

    def frames_from(self, owner: Owner, offsets: Offsets, timestamp: int) -> Iterator[Found]:
        """Yield the frames that may hold a record at or after *timestamp*, in order.

        Segments without any record that late are passed over. Raises as `frame` does.
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
        """Yield what the index says of a partition's frames in [start, end); it may miss some."""
        while start < min(end, offsets.end):
            id_ = offsets.id_of(start)
            entry = self.lookup(self.view.segments[self.view.find_segment(id_)], id_)
            if entry is None:
                start += 1
                continue
            yield entry
            start = max(entry.next_offset, start + 1)

    def sealed_entries(self, offsets: Offsets) -> Iterator[tuple[OwnerEntry, SealedInfo]]:
        """Yield the same of those in sealed segments, each with what is said of its segment.

        Up to the first that the index does not know: how old that is nobody can tell.
        """
        known = offsets.start
        for entry in self.entries_between(offsets, offsets.start, offsets.end):
            at = self.view.find_segment(entry.first_id)
            if at == len(self.view.segments) - 1 or entry.first_offset > known:
                return
            yield entry, self.view.segments[at].info
            known = entry.next_offset

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


def records_in(found: Found) -> list[Record]:
    """Return the records of a frame, with the offsets of their topic."""
    return BATCH.decode(found.content, 0)


def _run(gathered: list[memoryview]) -> FrameRun:
    """Return batches, whose checksums were compared, as one run."""
    data = gathered[0] if len(gathered) == 1 else memoryview(b"".join(gathered))
    table = BATCH.scan(
        data, next_offset=0, dense=False, epochs=None, size_max=INT32_MAX, checked_before=len(data)
    )
    return FrameRun(0, data, table, 0, len(table) - 1, BATCH)
