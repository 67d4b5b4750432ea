"""The shared log: one log, many partitions of many topics and tenants in it.

Underneath is a partition log like any other, whose frames are envelopes; so sealing, recovery, chain and
backup are the same. What is added here is whose a frame is: known from the dense index alone when the log is
opened, from the log itself where the index does not reach.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from threading import RLock
from typing import TypeVar

from cordwood.errors import CorruptRange
from cordwood.formats.envelope import ENVELOPE_SIZE, Envelope, Kind, Owner, seal
from cordwood.formats.format import Encoded
from cordwood.formats.owners import ENTRY_SIZE, OwnerEntry, pack_entry, unpack_entry
from cordwood.kernels import Buffer
from cordwood.storage.files import Files, read_file
from cordwood.storage.owner_index import (
    ActiveOwners,
    SealedOwners,
    index_path,
    index_size,
    missing_entries,
    rewrite_index,
    saved_entries,
)
from cordwood.storage.partition_log import Appended, PartitionLog, Turn
from cordwood.storage.segment import Segment
from cordwood.storage.store import as_storage_error
from cordwood.storage.view import View
from cordwood.storage.virtual_reading import VirtualReader
from cordwood.storage.virtual_topics import Offsets, VirtualPartition, VirtualTopics

Result = TypeVar("Result")


class Placing:
    """A frame on its way into the shared log: what it holds, and what it was given when its turn came."""

    def __init__(self, kind: Kind, owner: Owner, first_offset: int) -> None:
        self.kind = kind
        self.owner = owner
        self.first_offset = first_offset
        self.envelope: Envelope | None = None
        self.content: Buffer = b""

    def make(self, turn: Turn, content: Buffer, count: int, max_timestamp: int) -> Encoded:
        """Return the frame around *content*."""
        size = ENVELOPE_SIZE + len(content)
        first_id, epoch = turn.base_offset, turn.leader_epoch
        self.envelope = Envelope(
            self.kind, self.owner, first_id, self.first_offset, count, max_timestamp, epoch, size
        )
        self.content = content
        return Encoded(seal(*self.envelope[:-1], content), self.envelope.next_id, max_timestamp)


class SharedLog:
    """One log for many partitions. Every method may be called from any thread.

    Appends take turns under ``lock``; whoever holds it can tell offsets in advance. Reads take no lock.
    """

    def __init__(self, files: Files, log: PartitionLog, now_ms: Callable[[], int]) -> None:
        """Learn whose every frame is.

        Raises:
            StorageError: If the log cannot be read.
        """
        self.log = log
        self.lock = RLock()
        self.topics = VirtualTopics(now_ms)
        self.files = files
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
                # Frames below the start were counted before it was known where that is.
                part.size = self._size_between(part.offsets, part.offsets.start, part.offsets.end)

    def _load(self, view: View, at: int) -> tuple[int, list[bytes]]:
        """Learn whose the frames of a segment are; return how many entries are in its file, and the rest."""
        segment, bounds = view.segments[at], view.bounds(at)
        path = index_path(segment.directory, segment.base)
        kept, next_id, position = 0, segment.base, 0
        for entry in saved_entries(self.files, segment, bounds):
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
        if is_sealed and not damaged and (missing or index_size(self.files, path) != kept * ENTRY_SIZE):
            # Missing entries, or some behind the last one, which would mislead a search.
            self._rewrite(segment, kept, missing)
        return kept, missing

    def _rewrite(self, segment: Segment, kept: int, missing: Iterable[bytes]) -> None:
        """Put the index of a sealed segment right. What cannot be written now is built again next time."""
        with contextlib.suppress(OSError):
            saved = b""
            if kept:
                saved = read_file(self.files, index_path(segment.directory, segment.base))[
                    : kept * ENTRY_SIZE
                ]
            rewrite_index(self.files, segment.directory, segment.base, saved + b"".join(missing))

    # --- appending ---------------------------------------------------------------------------------

    def append(self, part: VirtualPartition, make: Callable[[Turn], tuple[Buffer, int, int]]) -> Appended:
        """Append the batch that *make* returns with its count and largest timestamp; return offsets, not ids.

        With ``lock`` held. Raises as `PartitionLog.append_made` does; then nothing was appended.
        """
        first_offset = part.offsets.end
        placing = Placing(Kind.RECORDS, part.owner, first_offset)
        appended = self.log.append_made(lambda turn: placing.make(turn, *make(turn)))
        count = appended.next_offset - appended.base_offset
        entry = self._note(placing)
        part.add(appended.base_offset, count, entry.size)
        return Appended(first_offset, first_offset + count)

    def start_all_at(self, starts: Iterable[tuple[VirtualPartition, int]]) -> None:
        """Make offsets the first ones of partitions, with one sync. Durable on return."""
        said = [
            (part, offset, self._append_say(Kind.LOG_START, part.owner, offset)) for part, offset in starts
        ]
        if not said:
            return
        self.commit()
        with self.lock:
            for part, offset, id_ in said:
                freed = self._size_between(part.offsets, part.offsets.start, offset)
                # Only now: what goes from the disk because of it must not be needed after a crash.
                part.start_at(offset, id_)
                part.size -= freed

    def end(self, owners: Iterable[Owner]) -> None:
        """Let partitions of a deleted topic be no more. Durable on return.

        What is appended for one of the same name from then on is another's.
        """
        ended = [
            owner for owner in owners if owner in self.topics.refused or self.topics.find(owner) is not None
        ]
        with self.lock:
            for owner in ended:
                self._append_say(Kind.ENDED, owner, 0)
            if ended:
                self.commit()
            for owner in ended:
                self.topics.end(owner)

    def _append_say(self, kind: Kind, owner: Owner, offset: int) -> int:
        """Append a frame without records and return its id. Not durable."""
        with self.lock:
            placing = Placing(kind, owner, offset)
            appended = self.log.append_made(lambda turn: placing.make(turn, b"", 1, turn.now_ms))
            self._note(placing)
        return appended.base_offset

    def _note(self, placing: Placing) -> OwnerEntry:
        """Add the entry of a frame that was just appended to the index, with ``lock`` held."""
        envelope = placing.envelope
        assert envelope is not None
        base = self.log.state.active_base
        if base != self._active.base:
            self._roll(base)
        position = self.log.active_size - envelope.size
        packed = pack_entry(envelope, placing.content, base, position)
        self._active.append(packed)
        return unpack_entry(packed, 0)

    def _roll(self, base: int) -> None:
        """Go on in the index of the segment that begins at *base*."""
        before = self._active
        before.close()
        try:
            self._active = ActiveOwners(self.files, self.log.directory, base, 0)
        except OSError as error:
            # The frame is there, and nobody would know whose it is before the log is opened again.
            self.log.fail(f"the index of the shared log could not be made: {error}")
            raise as_storage_error(error, "making the index of the shared log") from error

    def commit(self, id_: int | None = None) -> None:
        """Return once everything below *id_* (None: everything) is durable; see `PartitionLog.commit`."""
        with self.lock, contextlib.suppress(OSError):
            self._active.flush()
        self.log.commit(id_)

    # --- reading -----------------------------------------------------------------------------------

    def reader(self) -> VirtualReader:
        """Return what reads the log as it is now."""
        return VirtualReader(self.log.view, self.find_entry)

    def looked_up(self, call: Callable[[VirtualReader], Result]) -> Result:
        """Return what *call* makes of the log as it is; see `PartitionLog.looked_up`."""
        return self.log.looked_up(lambda view: call(VirtualReader(view, self.find_entry)))

    def find_entry(self, segment: Segment, id_: int) -> OwnerEntry | None:
        """Return what the index says of the frame that has *id_*, None if it does not say."""
        active = self._active
        if segment.base == active.base:
            return active.find(id_)
        owners = self._sealed.get(segment.number)
        if owners is None:
            with contextlib.suppress(OSError):
                owners = self._sealed[segment.number] = SealedOwners(
                    self.files, index_path(segment.directory, segment.base)
                )
        return None if owners is None else owners.find(id_)

    def _size_between(self, offsets: Offsets, start: int, end: int) -> int:
        """Return the bytes of a partition's frames from that of *start* on that end at or before *end*."""
        entries = self.reader().entries_between(offsets, start, end)
        return sum(entry.size for entry in entries if entry.next_offset <= end)

    def is_dead(self, entry: OwnerEntry) -> bool:
        """Return whether nobody can need a frame any more; one that ends a topic is not asked about."""
        if entry.owner in self.topics.refused:
            return False
        part = self.topics.find(entry.owner)
        return part is None or part.is_dead(entry)

    def forget(self, segments: Iterable[Segment]) -> None:
        """Let go of what is open of segments that are there no more."""
        for segment in segments:
            self._sealed.pop(segment.number, None)

    # --- ending ------------------------------------------------------------------------------------

    def close(self) -> None:
        """Leave the index complete. The log underneath is closed by whoever opened it, before."""
        with self.lock:
            self._active.close()
            self._sealed.clear()
