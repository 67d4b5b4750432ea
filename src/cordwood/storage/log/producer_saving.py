"""When the producers of a partition are learnt from its log, and when that is saved."""

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

#: A log that took this much since its last snapshot gets one when it is closed.
CLOSING_BYTES = 1 << 20


class ProducerKeeper:
    """The producers of one partition, learnt when they are first asked for.

    A log that was just made has none; of one that was opened, the newest snapshot and the records after it
    are read. Where frames are not *stamped* with who made them, the snapshot counts only if nothing was
    appended since it was taken, as after a clean close; else a producer is one that nobody knows, and goes on
    where it likes. Every method is called with the append lock held, `save_synced` with the right to sync.
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
        # What lies above this was appended by this process and noted when it was.
        self._opened_offset = view().high_watermark
        self._changed = False
        self._unsaved_bytes = 0
        self._pending: ProducersSnapshot | None = None
        self._saved_offset = 0

    def learn(self, now_ms: int) -> Producers:
        """Return what is known, read from the snapshot and the log when this is first called.

        Raises:
            StorageError: If the log cannot be read now. Nothing was learnt; the next call tries again.
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
            # What had to be read again is still unsaved: it counts towards the next snapshot.
            self._unsaved_bytes += replay(producers, view, start, self._opened_offset, now_ms)
            self._producers = producers
        return self._producers

    def _read_snapshot(self, view: View) -> ProducersSnapshot | None:
        try:
            return read_snapshot(self._files, self._directory, view.state, self._opened_offset)
        except ResourcesExhausted:
            # The log says the same, where it says who made its frames; elsewhere nothing else does.
            if not self._stamped:
                raise
            return None

    def find_original(self, stamp: ProducerStamp, now_ms: int) -> StoredBatch | None:
        """Return the batch that *stamp* repeats; see `Producers.find_original`."""
        return self.learn(now_ms).find_original(stamp)

    def note(self, stamp: ProducerStamp, base_offset: int, next_offset: int, now_ms: int) -> None:
        """Take note of a batch of an idempotent producer that was appended."""
        producers = self.learn(now_ms)
        producers.note(stamp, base_offset, next_offset, now_ms)
        producers.expire(now_ms - self._expiration_ms())
        self._changed = True

    def count(self, size: int, leader_epoch: int, next_offset: int, now_ms: int) -> None:
        """Take note of any append of *size* bytes, and of what is known whenever enough were appended."""
        self._unsaved_bytes += size
        if self._unsaved_bytes >= SNAPSHOT_BYTES:
            self._unsaved_bytes = 0
            # The append has happened; if the log cannot be read now, the next snapshot is due as usual.
            with contextlib.suppress(StorageError):
                self._capture(leader_epoch, next_offset, now_ms)
            self.check_invariants(next_offset)

    def check_invariants(self, end_offset: int) -> None:
        """Check that the snapshot that waits covers no record at or above *end_offset*, the log end.

        Raises:
            AssertionError: If it does: a fault of this code.
        """
        assert self._unsaved_bytes >= 0, "a negative number of bytes is unsaved"
        assert self._opened_offset <= end_offset, "records are learnt from beyond the log end"
        assert self._pending is None or self._pending.next_offset <= end_offset, "a snapshot of the future"

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
        """Write the snapshot that waits for *synced_offset*, if it covers no record beyond it.

        A snapshot of records that a power cut then takes would make their retry pass for a duplicate.
        """
        pending = self._pending
        if pending is not None and pending.next_offset <= synced_offset:
            if self._pending is pending:
                self._pending = None
            # It is derived: one that cannot be written costs reading more of the log next time.
            with contextlib.suppress(OSError):
                write_snapshot(self._files, self._directory, pending)
                self._saved_offset = pending.next_offset

    def save_before_removal(
        self, log_start_offset: int, leader_epoch: int, end_offset: int, now_ms: int
    ) -> None:
        """Save what the records below *log_start_offset* say, which are about to go. All are synced.

        Without it, the next opening would expect a producer to continue where the older snapshot ends.
        """
        # What cannot be read or saved now is no reason to keep the records.
        with contextlib.suppress(StorageError):
            if len(self.learn(now_ms)) and self._saved_offset < log_start_offset:
                self._capture(leader_epoch, end_offset, now_ms)
                self.save_synced(end_offset)

    def cut(self, leader_epoch: int, end_offset: int, now_ms: int) -> None:
        """Forget what was truncated; *leader_epoch* is the one that begins there. All before is synced.

        What was not learnt before it was cut is learnt from what is left, when somebody asks.
        """
        self._opened_offset = min(self._opened_offset, end_offset)
        if self._producers is not None:
            self._producers.cut(end_offset)
            self._capture(leader_epoch, end_offset, now_ms)
            self.save_synced(end_offset)
        self.check_invariants(end_offset)

    def close(self, leader_epoch: int, end_offset: int, now_ms: int) -> None:
        """Save what changed, all of it synced; and that nothing did, where much was appended.

        Without that a log that takes plain batches only would be read from its beginning by the first
        idempotent producer, however often it was closed in between.
        """
        unstamped = not self._stamped and bool(self._producers)
        if self._changed or unstamped or self._unsaved_bytes >= CLOSING_BYTES:
            self._capture(leader_epoch, end_offset, now_ms)
        self.save_synced(end_offset)


def replay(producers: Producers, view: View, start: int, stop: int, now_ms: int) -> int:
    """Note the stamped frames of offsets [start, stop), as if they came at *now_ms*; return the bytes read.

    Damaged frames are skipped: they were acknowledged long before, so no producer retries them.

    Raises:
        StorageError: If a file cannot be read now. What is in it may well be what is retried.
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
                # The log may start within a frame, whose other records are still there.
                stamp = table.stamp(frame) if start < next_offset and base < stop else None
                if stamp is not None:
                    producers.note(stamp, base, next_offset, now_ms)
    return read
