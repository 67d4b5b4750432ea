"""The log of one partition: segments in order, one of them taking appends."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

import msgspec

from cordwood.config import TopicConfig
from cordwood.disk import parent, remove_tree
from cordwood.errors import RecordRefused
from cordwood.index import AbortedEntry
from cordwood.storage.log.appending import Appended, AppendingLog
from cordwood.storage.log.changes import Adopt, AdvanceLogStart, NoteSealed, Swap, Truncate, TruncationReport
from cordwood.storage.log.producers import KnownProducer, OpenTransaction, aborted_within, read_committed
from cordwood.storage.log.reading import Fetched, View, checked_sha256
from cordwood.storage.log.segment import Segment
from cordwood.storage.log.spooling import Pace, no_pace
from cordwood.storage.log.state import SealedInfo, state_path
from cordwood.telemetry import SEGMENTS

Result = TypeVar("Result")


class PartitionLog(AppendingLog):
    """Append, read, roll, truncate. Made by `opening.open_partition`.

    Every method may be called from any thread. Appends, rolls and truncations take turns; reads never
    wait for them. With ``sync`` policy ``each`` the high watermark is the synced end; under the weaker
    policies it is the written end.

    `LogCore` holds the state, `AppendingLog` appends, `LogReader` reads, and each change of the set of
    segments is a `SegmentChange`.
    """

    # --- reading ----------------------------------------------------------------------------------

    def read(
        self, offset: int, max_bytes: int, stop: int | None = None, *, committed: bool = False
    ) -> Fetched:
        """Return whole frames from the one that holds *offset* on, below the high watermark.

        About *max_bytes* of them, across segments; the first one is returned whole however large it is. At
        an offset that compaction removed, reading begins at the next frame. Little is read beyond *stop*.
        With *committed* frames end at the last stable offset; see `read_committed`.

        Raises:
            OffsetOutOfRange: If *offset* is below the log start or above the high watermark.
            CorruptRange: If the frame there is damaged.
        """
        read = read_committed if committed else View.read
        return self.reader.with_view(lambda view: read(view, offset, max_bytes, self.end.next_offset, stop))

    def aborted(self, start: int, stop: int) -> list[AbortedEntry]:
        """Return the aborted transactions that may have records in [start, stop); see `aborted_within`."""
        return self.reader.with_view(lambda view: aborted_within(view, start, stop))

    def offset_at(self, timestamp: int) -> tuple[int, int] | None:
        """Return (offset, timestamp) of the first visible record at or after *timestamp*, exactly."""
        return self.reader.with_view(lambda view: view.offset_at(timestamp))

    def newest(self) -> tuple[int, int] | None:
        """Return (offset, timestamp) of the first visible record with the largest timestamp."""
        return self.reader.with_view(lambda view: view.newest())

    def with_view(self, call: Callable[[View], Result]) -> Result:
        """Return the result of *call* on the view; it is called again if the view was replaced meanwhile."""
        return self.reader.with_view(call)

    def wait_beyond(self, offset: int, *, committed: bool = False) -> int:
        """Wait until there is a record at or after *offset* to read, and return the high watermark.

        With *committed* until the last stable offset is above *offset*, and return that.

        Raises:
            OffsetOutOfRange: If the log ends before *offset*, or is truncated to end there meanwhile.
            LogClosed: If the log is closed meanwhile.
            LogFailed: If it fails meanwhile.
        """
        return self.reader.wait_beyond(offset, committed=committed)

    # --- changing the set of segments -------------------------------------------------------------

    def adopt(self, path: str, size: int) -> Appended:
        """Make the file at *path*, *size* bytes of whole frames, the next segment: by renaming it. Durable.

        Only where a frame is a batch. The file must be synced, and used by no other thread. Its frames are
        numbered in place, whatever offsets they had before. Raises as `append` does.

        Raises:
            RecordRefused: If the topic orders timestamps, which a file that is renamed cannot be held to.
        """
        if self._ordered:
            raise RecordRefused(
                f"{path} cannot become a segment of a topic with "
                f"cordwood.timestamp.order={self.config.timestamp_order}"
            )
        with self.lock:
            slot = self._begin(None)
            if self.active.store.end:
                self._roll()
            adoption = Adopt(self, path, size)
            adoption.make()
            next_offset = adoption.segment.info.next_offset
            assert next_offset == self.end.next_offset, "the log does not end where the adopted segment does"
            assert next_offset > slot.base_offset, "a segment without records was adopted"
            self.last_assigned_ms = slot.now_ms
            elapsed = self.context.clock.monotonic_ns() - slot.started_ns
            self.meter.note(next_offset - slot.base_offset, size, elapsed)
        return Appended(slot.base_offset, next_offset)

    def truncate(self, end_offset: int) -> TruncationReport:
        """Drop every record at or above *end_offset*. Durable on return; raises the leader epoch.

        A crash on the way leaves the log as before or truncated, never in between.

        Raises:
            OffsetOutOfRange: If *end_offset* is below the log start or above the log end.
            DiskFull: Nothing has changed.
        """
        truncation = Truncate(self, end_offset)
        truncation.make()
        return truncation.report

    def advance_log_start(self, offset: int) -> None:
        """Make *offset* the first one that can be read, and remove segments that lie wholly below it.

        Durable on return. Moving it back is a no-op.

        Raises:
            OffsetOutOfRange: If *offset* is above the high watermark.
            DiskFull: Nothing has changed. A full disk alone is no reason: the reserved space is used then.
        """
        self.context.reserve.freeing(AdvanceLogStart(self, offset).make)

    def swap(self, old: tuple[Segment, ...], new: Segment) -> bool:
        """Put *new*, whose files are prepared and synced, in the place of *old*, which follow each other.

        Durable on return. Returns False, and nothing has changed, if one of *old* is not there any more.
        Readers go on, with the old files or the new ones.

        Raises:
            DiskFull: Nothing has changed.
            LogFailed: If it failed after it was committed; opening the log again finishes it.
        """
        return Swap(self, old, new).make()

    def note_sealed(self, changed: Mapping[int, SealedInfo]) -> None:
        """Replace the entries of sealed segments, by base offset, whose files stay as they are. Durable.

        An entry whose segment was truncated or compacted since it was made is ignored.

        Raises:
            DiskFull: Nothing has changed.
        """
        NoteSealed(self, changed).make()

    def reconfigure(self, config: TopicConfig) -> None:
        """Apply *config*. Records that were appended under another sync policy are synced first.

        Raises:
            LogFailed: If the sync failed.
        """
        with self.lock, self.syncs.exclusively():
            self.check()
            if config.sync != self.config.sync:
                self.sync_now()
            begins_chain = config.chain and not self.config.chain
            self._use_config(config)
            if begins_chain:
                # The records that are there get leaves now, and not only with the next append.
                self.note_for_chain()
            with self.view_lock:
                size_max, rechecks = config.stored_bytes_max, config.verify == "every"
                self.set_view(self.view._replace(frame_size_max=size_max, rechecks=rechecks))
            self.check_invariants()

    # --- producers --------------------------------------------------------------------------------

    def last_batches(self) -> frozenset[int]:
        """Return the base offset of the newest batch of each idempotent producer that is known.

        If it has no batch of its epoch, that of its newest marker, which has the epoch. The result is empty
        in a format whose frames do not name their producer.

        Raises:
            StorageError: If the log cannot be read now.
        """
        with self.lock:
            self.check()
            if not self.format.holds.stamps:
                return frozenset()
            known = self.known_producers.learn(self.context.clock.now_ms()).known()
            return frozenset(
                each.batches[-1].base_offset if each.batches else each.marker_offset for each in known
            )

    def producers(self) -> list[KnownProducer]:
        """Return the idempotent producers that have not expired.

        Raises:
            StorageError: If the log cannot be read now.
        """
        with self.lock:
            self.check()
            now_ms = self.context.clock.now_ms()
            return self.known_producers.learn(now_ms).heard_of(now_ms - self.context.producer_expiration_ms())

    def producer_epochs(self) -> dict[int, int]:
        """Return the newest epoch of every producer whose batches are compared with new ones, by its id.

        Raises:
            StorageError: If the log cannot be read now.
        """
        with self.lock:
            self.check()
            return self.known_producers.learn(self.context.clock.now_ms()).epochs()

    def learn_transactions(self) -> None:
        """Learn the open and aborted transactions of a log that was just opened, if it has had any.

        Raises:
            StorageError: If the log cannot be read now.
        """
        if self.state.transactional:
            with self.lock:
                self.known_producers.learn(self.context.clock.now_ms())
                self.show_ended()

    def open_transactions(self) -> list[OpenTransaction]:
        """Return the transactions that have not ended, by their first offsets.

        Raises:
            StorageError: If the log cannot be read now.
        """
        if not self.state.transactional:
            return []
        with self.lock:
            self.check()
            return self.known_producers.learn(self.context.clock.now_ms()).open_transactions()

    # --- hashing sealed segments ------------------------------------------------------------------

    def hash_sealed(self, pace: Pace = no_pace) -> int:
        """Record the SHA-256 of sealed segments that have none yet; return how many. Durable on return.

        Reads and checks whole segments, so call it from a background thread; *pace* is called with the number
        of bytes after each read. Appends wait only while a result is recorded. A damaged segment gets no
        hash: it would vouch for the damage.

        Raises:
            LogClosed: If the log was closed, or by *pace*. Hashes that were recorded stay.
            DiskFull: If a hash could not be recorded. Nothing else has changed.
        """
        with self.maintaining:
            self.check()
            self.context.unhashed.discard(self)
            view, hashed = self.view, 0
            for at, segment in enumerate(view.segments[:-1]):
                if segment.info.sha256 is None:
                    digest = checked_sha256(segment, view.bounds(at), self._paced(pace))
                    hashed += digest is not None and self._note_digest(segment, digest)
        return hashed

    def _paced(self, pace: Pace) -> Pace:
        """Return *pace* for a pass over this log. It ends when the log is closed: a deletion waits for it."""

        def paced(size: int) -> None:
            self.check()
            pace(size)

        return paced

    def _note_digest(self, segment: Segment, digest: str) -> bool:
        """Record the SHA-256 of *segment*, unless its file was replaced or removed meanwhile."""
        with self.lock:
            if segment not in self.view.segments:
                return False
            self.note_sealed({segment.base: msgspec.structs.replace(segment.info, sha256=digest)})
            return True

    def note_for_hashing(self) -> None:
        """Record that a segment of this log was sealed or rewritten, and has no SHA-256 yet."""
        if not self._closed:
            self.context.unhashed.add(self)

    # --- ending -----------------------------------------------------------------------------------

    def close(self) -> None:
        """Sync everything, indexes included, and close the files. Idempotent.

        Raises:
            LogFailed: If the sync failed now. A log that failed before is closed without another sync.
        """
        with self.lock, self.syncs.exclusively():
            if self._closed:
                return
            self._closed = True
            self.wake_followers()
            self.meter.report()
            try:
                if self._failure is None:
                    self.active.store.trim()
                    self.active.sync()
                    self.move_mark(self.end, sync=True)
                    self.show(self.end)
                    self.syncs.synced_offset = self.end.next_offset
                    self.known_producers.close(
                        self.state.leader_epoch, self.end.next_offset, self.context.clock.now_ms()
                    )
            except OSError as error:
                raise self.passing_or_failed(error, "closing") from error
            finally:
                self.context.unhashed.discard(self)
                self.active.close()
                self.keeper.close()
                self.context.telemetry.add(SEGMENTS, -len(self.view.segments))
                self.reader.close()
                for segment in self.view.segments:
                    self.context.open_files.forget(segment.number)

    def remove(self) -> None:
        """Close the log and delete everything it has on disk. Its directory is gone on return."""
        self.close()
        files = self.context.files
        # Without partition.json there is no partition, so files that a crash leaves behind are no log.
        files.unlink(state_path(self.directory))
        files.sync_directory(self.directory)
        self.context.changed.discard(self)
        remove_tree(files, self.directory)
        files.sync_directory(parent(self.directory))

    def rest(self) -> int:
        """Close the files of the active segment and the mark until they are needed; return how many were.

        Nothing is closed while records wait for a sync, or while a thread appends or syncs. Never blocks.
        """
        if not self.lock.acquire(blocking=False):
            return 0
        try:
            if self._closed or self._failure is not None:
                return 0
            synced = self.syncs.synced_offset >= self.end.next_offset
            with self.syncs.exclusively_now() as free:
                if not free or (self._durable and not synced):
                    return 0
                return self.active.rest(synced=synced) + self.keeper.rest(self.context.files)
        finally:
            self.lock.release()

    def note_for_chain(self) -> None:
        """Record that the chain of this log is behind, for the thread that follows it.

        Not for a closed log: closing shows the last records, and the chain cannot be followed any more.
        """
        if self.config.chain and not self._closed:
            self.context.changed.add(self)
