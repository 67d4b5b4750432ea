"""Loading and saving of the idempotent producer state of a partition."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from cordwood.disk import Files, as_storage_error
from cordwood.errors import CorruptRange, ResourcesExhausted, StorageError
from cordwood.formats import ProducerStamp
from cordwood.storage.log.producers import (
    SNAPSHOT_BYTES,
    SNAPSHOT_VERSION,
    Producers,
    ProducersSnapshot,
    StoredBatch,
    read_snapshot,
    write_snapshot,
)
from cordwood.storage.log.reading import REINDEX_WINDOW_BYTES, View, indexes_of, walk

#: A log with at least this many bytes appended since its last snapshot gets a snapshot when it is closed.
CLOSING_BYTES = 1 << 20


class ProducerKeeper:
    """The idempotent producers of one partition, loaded at the first use.

    A new log has none. For an existing log, the newest snapshot and the records after it are read. If frames
    are not *stamped* with their producer, the snapshot is valid only if nothing was appended after it, as
    after a clean close; otherwise every producer is unknown and may continue with any sequence number. Every
    method is called with the append lock held, `save_synced` with the right to sync.
    """

    def __init__(
        self,
        files: Files,
        directory: str,
        view: Callable[[], View],
        *,
        new: bool,
        stamped: bool,
        expiration_ms: Callable[[], int],
    ) -> None:
        self._files = files
        self._directory = directory
        self._view = view
        self._expiration_ms = expiration_ms
        self._stamped = stamped
        self._producers = Producers() if new else None
        # Records above this offset were appended by this process and noted at their append.
        self._opened_offset = view().high_watermark
        self._changed = False
        self._unsaved_bytes = 0
        self._pending: ProducersSnapshot | None = None
        self._saved_offset = 0

    def learn(self, now_ms: int) -> Producers:
        """Return the known producers. The first call reads the snapshot and the log.

        Raises:
            StorageError: If the log cannot be read. The state is unchanged; the next call tries again.
        """
        if self._producers is None:
            view = self._view()
            saved = self._read_snapshot(view)
            if not self._stamped:
                covered = saved is not None and saved.next_offset == self._opened_offset
                self._producers = Producers(saved.producers if saved is not None and covered else ())
                return self._producers
            producers = Producers(() if saved is None else saved.producers)
            start = view.state.log_start_offset if saved is None else saved.next_offset
            self._saved_offset = 0 if saved is None else saved.next_offset
            # The bytes that were replayed are in no snapshot: they count towards the next one.
            self._unsaved_bytes += replay(producers, view, start, self._opened_offset, now_ms)
            self._producers = producers
        return self._producers

    def _read_snapshot(self, view: View) -> ProducersSnapshot | None:
        try:
            return read_snapshot(self._files, self._directory, view.state, self._opened_offset)
        except ResourcesExhausted:
            # Stamped frames hold the same information; without stamps only the snapshot has it.
            if not self._stamped:
                raise
            return None

    def find_original(self, stamp: ProducerStamp, now_ms: int) -> StoredBatch | None:
        """Return the batch that *stamp* repeats; see `Producers.find_original`."""
        return self.learn(now_ms).find_original(stamp)

    def note(self, stamp: ProducerStamp, base_offset: int, next_offset: int, now_ms: int) -> None:
        """Note an appended batch of an idempotent producer."""
        producers = self.learn(now_ms)
        producers.note(stamp, base_offset, next_offset, now_ms)
        producers.expire(now_ms - self._expiration_ms())
        self._changed = True

    def count(self, size: int, leader_epoch: int, next_offset: int, now_ms: int) -> None:
        """Count an append of *size* bytes, and capture a snapshot every ``SNAPSHOT_BYTES``."""
        self._unsaved_bytes += size
        if self._unsaved_bytes >= SNAPSHOT_BYTES:
            self._unsaved_bytes = 0
            # The append is already done. If the log cannot be read, the next snapshot is due as usual.
            with contextlib.suppress(StorageError):
                self._capture(leader_epoch, next_offset, now_ms)
            self.check_invariants(next_offset)

    def check_invariants(self, end_offset: int) -> None:
        """Check that the pending snapshot covers no record at or above *end_offset*, the log end.

        Raises:
            AssertionError: If it does: a bug in this code.
        """
        assert self._unsaved_bytes >= 0, "the number of unsaved bytes is negative"
        assert self._opened_offset <= end_offset, "producers are loaded from beyond the log end"
        assert self._pending is None or self._pending.next_offset <= end_offset, "snapshot beyond the log end"

    def _capture(self, leader_epoch: int, next_offset: int, now_ms: int) -> None:
        producers = self.learn(now_ms)
        producers.expire(now_ms - self._expiration_ms(), now=True)
        state = self._view().state
        self._pending = ProducersSnapshot(
            SNAPSHOT_VERSION, state.topic_id, state.partition, leader_epoch, next_offset, producers.known()
        )
        self._unsaved_bytes = 0
        self._changed = False

    def save_synced(self, synced_offset: int) -> None:
        """Write the pending snapshot if it covers no record at or above *synced_offset*.

        If a snapshot covered records that a power cut loses, their retry would be taken for a duplicate.
        """
        pending = self._pending
        if pending is not None and pending.next_offset <= synced_offset:
            if self._pending is pending:
                self._pending = None
            # A snapshot is derived data: without it, the next open reads more of the log.
            with contextlib.suppress(OSError):
                write_snapshot(self._files, self._directory, pending)
                self._saved_offset = pending.next_offset

    def save_before_removal(
        self, log_start_offset: int, leader_epoch: int, end_offset: int, now_ms: int
    ) -> None:
        """Save a snapshot before the records below *log_start_offset* are deleted. All records are synced.

        Without it, the next open would expect a producer to continue where the older snapshot ends.
        """
        # A failure to read or save must not block the deletion.
        with contextlib.suppress(StorageError):
            if len(self.learn(now_ms)) and self._saved_offset < log_start_offset:
                self._capture(leader_epoch, end_offset, now_ms)
                self.save_synced(end_offset)

    def cut(self, leader_epoch: int, end_offset: int, now_ms: int) -> None:
        """Drop the state of records at or above *end_offset*, where *leader_epoch* begins.

        All remaining records are synced. If the producers are not loaded yet, the first use loads them from
        the remaining records.
        """
        self._opened_offset = min(self._opened_offset, end_offset)
        if self._producers is not None:
            self._producers.cut(end_offset)
            self._capture(leader_epoch, end_offset, now_ms)
            self.save_synced(end_offset)
        self.check_invariants(end_offset)

    def close(self, leader_epoch: int, end_offset: int, now_ms: int) -> None:
        """Save a snapshot if the producers changed or many bytes were appended. All records are synced.

        Without the second condition, a log of plain batches would be read from its beginning for the first
        idempotent producer, even after many clean closes.
        """
        unstamped = not self._stamped and bool(self._producers)
        if self._changed or unstamped or self._unsaved_bytes >= CLOSING_BYTES:
            self._capture(leader_epoch, end_offset, now_ms)
        self.save_synced(end_offset)


def replay(producers: Producers, view: View, start: int, stop: int, now_ms: int) -> int:
    """Note the stamped frames of offsets [start, stop) with the time *now_ms*; return the bytes read.

    Corrupt frames are skipped: they were acknowledged long before, so no producer retries them.

    Raises:
        StorageError: If a file cannot be read. A producer may still retry the batches in it.
    """
    read = 0
    if start >= stop:
        return read
    for at in range(view.find_segment(start), len(view.segments)):
        segment, bounds = view.segments[at], view.bounds(at)
        index = indexes_of(segment, bounds)[0]
        begin = index.floor_entry(start) or (segment.base, 0)
        for found in walk(segment, bounds, begin, REINDEX_WINDOW_BYTES, index):
            if isinstance(found, CorruptRange):
                cause = found.__cause__
                if isinstance(cause, OSError) and not isinstance(cause, FileNotFoundError):
                    raise as_storage_error(cause, "learning its producers") from cause
                continue
            table = found.table
            read += table.end
            for frame in range(len(table)):
                base, next_offset = table.base_offset(frame), table.next_offset(frame)
                # The log may start within a frame, whose remaining records are still readable.
                stamp = table.stamp(frame) if start < next_offset and base < stop else None
                if stamp is not None:
                    producers.note(stamp, base, next_offset, now_ms)
    return read
