"""The shared log: one log that holds many partitions of many topics and tenants.

It is an ordinary partition log whose frames are envelopes, so sealing, recovery, chain and backup work
unchanged. This module adds the owner of each frame. Opening reads owners from the dense index, and from the
log itself where the index ends.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from threading import RLock
from typing import TypeVar

from cordwood.disk import Files, as_storage_error
from cordwood.errors import CorruptRange
from cordwood.formats import Encoded, batch
from cordwood.formats.shared import (
    ENTRY_SIZE,
    ENVELOPE_SIZE,
    Envelope,
    EnvelopeKind,
    Owner,
    OwnerEntry,
    pack_entry,
    seal,
    unpack_entry,
)
from cordwood.kernels import Buffer
from cordwood.storage.log import Appended, AppendSlot, PartitionLog, Segment, View
from cordwood.storage.log.changes import NoteTransactional
from cordwood.storage.shared.offsets import Offsets, VirtualPartition, VirtualTopics
from cordwood.storage.shared.owner_index import (
    ActiveOwners,
    SealedOwners,
    entry_chunks,
    index_path,
    index_size,
    missing_entries,
    rewrite_index,
    saved_entries,
)
from cordwood.storage.shared.reading import VirtualReader

Result = TypeVar("Result")
#: The byte of a batch whose bits say that it is part of a transaction.
_ATTRIBUTES_AT = 22


class PendingFrame:
    """A frame to append to the shared log: its content, and the id and offset assigned to it."""

    def __init__(self, kind: EnvelopeKind, owner: Owner, first_offset: int) -> None:
        self.kind = kind
        self.owner = owner
        self.first_offset = first_offset
        self.envelope: Envelope | None = None
        self.content: Buffer = b""
        self.now_ms = 0

    def make(self, slot: AppendSlot, content: Buffer, count: int, max_timestamp: int) -> Encoded:
        """Return the frame around *content*."""
        size = ENVELOPE_SIZE + len(content)
        first_id, epoch = slot.base_offset, slot.leader_epoch
        self.envelope = Envelope(
            self.kind, self.owner, first_id, self.first_offset, count, max_timestamp, epoch, size
        )
        self.content = content
        self.now_ms = slot.now_ms
        return Encoded(seal(*self.envelope[:-1], content), self.envelope.next_id, max_timestamp)


class SharedLog:
    """One log for many partitions. Any thread may call any method.

    Appends are serialized by ``lock``; its holder knows the next offsets in advance. Reads take no lock.
    """

    def __init__(self, files: Files, log: PartitionLog, now_ms: Callable[[], int]) -> None:
        """Load the owner of every frame.

        Raises:
            StorageError: If the log cannot be read.
        """
        self.log = log
        self.lock = RLock()
        self.now_ms = now_ms
        self.topics = VirtualTopics(now_ms)
        self.files = files
        #: Bytes in the active segment that became unreadable since the log was opened.
        self.dead_bytes = 0
        self._sealed: dict[int, SealedOwners] = {}
        try:
            for at in range(len(log.view.segments)):
                kept = self._load(log.view, at)
            self._active = ActiveOwners(files, log.directory, log.state.active_base, kept[0])
        except OSError as error:
            raise as_storage_error(error, "opening the index of the shared log") from error
        for entry in kept[1]:
            self._active.append(entry)
        for part in self.topics:
            if part.started_id >= 0:
                # Frames below the start were counted before the start was read.
                part.size = self._size_between(part.offsets, part.offsets.start, part.offsets.end)

    def _load(self, view: View, at: int) -> tuple[int, list[bytes]]:
        """Load the owners of a segment's frames; return how many its file has, and the rest."""
        segment, bounds = view.segments[at], view.bounds(at)
        path = index_path(segment.directory, segment.base)
        kept, next_id, position = 0, segment.base, 0
        for entry in saved_entries(segment, bounds):
            self.topics.apply(entry, sparse=not bounds.dense, path=path)
            kept, next_id, position = kept + 1, entry.next_id, entry.end
        missing: list[bytes] = []
        damaged = False
        if position < bounds.end:
            with segment.open_files.rebuilding():
                for found in missing_entries(segment, bounds, (next_id, position)):
                    if isinstance(found, CorruptRange):
                        cause = found.__cause__
                        if isinstance(cause, OSError) and not isinstance(cause, FileNotFoundError):
                            raise cause
                        self.topics.lose(found.offset, found.resume_offset)
                        damaged = True
                        continue
                    missing.append(found)
                    entry = unpack_entry(found, 0)
                    self.topics.apply(entry, sparse=not bounds.dense, path=segment.path)
        is_sealed = at < len(view.segments) - 1
        if is_sealed and not damaged and (missing or index_size(segment.source, path) != kept * ENTRY_SIZE):
            # Missing entries, or some behind the last one, which would mislead a search.
            self._rewrite(segment, kept, missing)
        return kept, missing

    def _rewrite(self, segment: Segment, kept: int, missing: Iterable[bytes]) -> None:
        """Complete the index of a sealed segment. One that cannot be written now is built again next time."""
        with contextlib.suppress(OSError):
            path = index_path(segment.directory, segment.base)
            saved = b"".join(entry_chunks(segment.source, path))[: kept * ENTRY_SIZE]
            if len(saved) == kept * ENTRY_SIZE:
                rewrite_index(self.files, segment.directory, segment.base, saved + b"".join(missing))

    # --- appending ---------------------------------------------------------------------------------

    def append(
        self, part: VirtualPartition, make: Callable[[AppendSlot], tuple[Buffer, int, int]]
    ) -> Appended:
        """Append the batch that *make* returns with its count and largest timestamp; return offsets, not ids.

        Call it with ``lock`` held. Raises as `PartitionLog.append_made` does; nothing was appended in that
        case.
        """
        first_offset = part.offsets.end
        placing = PendingFrame(EnvelopeKind.RECORDS, part.owner, first_offset)

        def place(slot: AppendSlot) -> Encoded:
            content, count, max_timestamp = make(slot)
            if content[_ATTRIBUTES_AT] & batch.TRANSACTIONAL and not self.log.state.transactional:
                # Older versions must not open the log from now on: they know nothing of transactions.
                NoteTransactional(self.log).make()
            return placing.make(slot, content, count, max_timestamp)

        appended = self.log.append_made(place)
        count = appended.next_offset - appended.base_offset
        part.add(self._note(placing), placing.now_ms)
        self.check_invariants(part)
        assert part.offsets.ids.max() == appended.next_offset - 1, "the newest id is not that of the append"
        return Appended(first_offset, first_offset + count)

    def set_starts(self, starts: Iterable[tuple[VirtualPartition, int]]) -> None:
        """Set the start offsets of partitions with one sync. Durable on return."""
        wanted = list(starts)
        if not wanted:
            return

        def say() -> list[tuple[VirtualPartition, int, int]]:
            said = [
                (part, offset, self._append_control(EnvelopeKind.LOG_START, part.owner, offset))
                for part, offset in wanted
            ]
            self.commit()
            return said

        said = self.log.reserve.freeing(say)
        with self.lock:
            for part, offset, id_ in said:
                freed = self._size_between(part.offsets, part.offsets.start, offset)
                self._count_dead(part.offsets, offset)
                # Only after the sync: the frames that this makes removable must not be needed after a crash.
                part.start_at(offset, id_)
                part.size -= freed
                self.check_invariants(part)

    def check_invariants(self, changed: VirtualPartition) -> None:
        """Check the log and the partition *changed*. Takes constant time; with ``lock`` held.

        Raises:
            AssertionError: If they cannot be right: a fault of this code.
        """
        changed.check_invariants()
        assert self.dead_bytes >= 0, "a negative number of bytes is dead"
        assert self._active.base <= self.log.state.active_base, "the index is of a segment yet to come"

    def _append_end(self, owners: Sequence[Owner]) -> None:
        for owner in owners:
            self._append_control(EnvelopeKind.ENDED, owner, 0)
        self.commit()

    def end(self, owners: Iterable[Owner]) -> None:
        """End the partitions of a deleted topic. Durable on return.

        Later appends under the same name belong to a new topic.
        """
        ended = [
            owner for owner in owners if owner in self.topics.refused or self.topics.find(owner) is not None
        ]
        with self.lock:
            if ended:
                self.log.reserve.freeing(lambda: self._append_end(ended))
            for owner in ended:
                part = None if owner in self.topics.refused else self.topics.find(owner)
                if part is not None:
                    self._count_dead(part.offsets, part.offsets.end)
                self.topics.end(owner)

    def _append_control(self, kind: EnvelopeKind, owner: Owner, offset: int) -> int:
        """Append a frame without records and return its id. Not durable."""
        with self.lock:
            placing = PendingFrame(kind, owner, offset)
            appended = self.log.append_made(lambda slot: placing.make(slot, b"", 1, slot.now_ms))
            self._note(placing)
        return appended.base_offset

    def _note(self, placing: PendingFrame) -> OwnerEntry:
        """Add the entry of a frame that was just appended to the index, with ``lock`` held."""
        envelope = placing.envelope
        assert envelope is not None
        base = self.log.state.active_base
        if base != self._active.base:
            self._roll(base)
        position = self.log.active_size - envelope.size
        assert position >= 0, "the log rolled between an append and its entry in the index"
        packed = pack_entry(envelope, placing.content, base, position)
        self._active.append(packed)
        return unpack_entry(packed, 0)

    def _roll(self, base: int) -> None:
        """Start the index of the new segment at *base*."""
        self._active.close()
        self.dead_bytes = 0
        self._active = ActiveOwners(self.files, self.log.directory, base, 0)

    def commit(self, id_: int | None = None) -> None:
        """Return once all records below *id_* (None: all records) are durable; see `PartitionLog.commit`."""
        with self.lock, contextlib.suppress(OSError):
            self._active.flush()
        self.log.commit(id_)

    # --- reading -----------------------------------------------------------------------------------

    def reader(self) -> VirtualReader:
        """Return a reader of the current view."""
        return VirtualReader(self.log.view, self.find_entry)

    def with_reader(self, call: Callable[[VirtualReader], Result]) -> Result:
        """Return the result of *call* with a reader of the current view; see `PartitionLog.with_view`."""
        return self.log.with_view(lambda view: call(VirtualReader(view, self.find_entry)))

    def find_entry(self, segment: Segment, id_: int) -> OwnerEntry | None:
        """Return the index entry of the frame with *id_*, None if there is none."""
        active = self._active
        if segment.base == active.base:
            return active.find(id_)
        owners = self._sealed.get(segment.number)
        if owners is None:
            with contextlib.suppress(OSError):
                owners = self._sealed[segment.number] = SealedOwners(
                    segment.source, index_path(segment.directory, segment.base)
                )
        return None if owners is None else owners.find(id_)

    def _size_between(self, offsets: Offsets, start: int, end: int) -> int:
        """Return the bytes of a partition's frames from *start* on that end at or before *end*."""
        entries = self.reader().entries_between(offsets, start, end)
        return sum(entry.size for entry in entries if entry.next_offset <= end)

    def _count_dead(self, offsets: Offsets, end: int) -> None:
        """Count the frames of a partition in the active segment that end at or before *end*."""
        start = offsets.below(self.log.state.active_base)
        if start < end:
            self.dead_bytes += self._size_between(offsets, start, end)

    def is_dead(self, entry: OwnerEntry) -> bool:
        """Return whether a frame is not needed any more. Not for frames that end a topic."""
        if entry.owner in self.topics.refused:
            return False
        part = self.topics.find(entry.owner)
        return part is None or part.is_dead(entry)

    def give_back(self, count: int) -> int:
        """Close the mapped indexes; return their number. Never blocks."""
        given = len(self._sealed)
        self._sealed.clear()
        return given

    def forget(self, segments: Iterable[Segment]) -> None:
        """Close indexes of removed segments."""
        for segment in segments:
            self._sealed.pop(segment.number, None)

    # --- ending ------------------------------------------------------------------------------------

    def close(self) -> None:
        """Complete the index. The caller closes the underlying log before this."""
        with self.lock:
            self._active.close()
            self._sealed.clear()
