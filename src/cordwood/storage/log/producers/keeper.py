"""Loading and saving of the producers of a partition, and of its transactions."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import google_crc32c

from cordwood.disk import Files
from cordwood.errors import ResourcesExhausted, StorageError
from cordwood.formats import NO_PRODUCER_ID, Marker, ProducerStamp
from cordwood.index import AbortedIndex
from cordwood.storage.log.active_segment import ActiveSegment
from cordwood.storage.log.producers.known import OpenTransaction, Producers, StoredBatch
from cordwood.storage.log.producers.replaying import Doubt, DoubtfulIndex, Replay, aborted_by, doubts_of
from cordwood.storage.log.producers.snapshot import (
    PLAIN_VERSION,
    SNAPSHOT_BYTES,
    SNAPSHOT_VERSION,
    ProducersSnapshot,
    read_snapshot,
    write_snapshot,
)
from cordwood.storage.log.producers.transactions import OpenTransactions
from cordwood.storage.log.reading import View

#: A log with at least this many bytes appended since its last snapshot gets a snapshot when it is closed.
CLOSING_BYTES = 1 << 20


class ProducerKeeper:
    """The producers of one partition, loaded at the first use; at opening, if it has had transactions.

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
        #: The transactions that have not ended; known once the producers are.
        self.open = OpenTransactions()
        # Records above this offset were appended by this process and noted at their append.
        self._opened_offset = view().high_watermark
        self._changed = False
        self._unsaved_bytes = 0
        self._pending: tuple[ProducersSnapshot, ActiveSegment] | None = None
        self._saved_offset = 0
        # Transactions that were open when the log was learnt, and may have ended in damage.
        self._doubts: list[Doubt] = []

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
                self.open = OpenTransactions()
                return self._producers
            active = _active_of(view)
            aborted = AbortedIndex() if saved is None else _saved_aborted(saved, active)
            if aborted is None:
                # The index is not what the snapshot says: both are made again from the log.
                saved, aborted = None, AbortedIndex()
            producers = Producers(() if saved is None else saved.producers)
            start = view.state.log_start_offset if saved is None else saved.next_offset
            self._saved_offset = 0 if saved is None else saved.next_offset
            replay = Replay(producers, now_ms).over(view, start, self._opened_offset)
            # The bytes that were replayed are in no snapshot: they count towards the next one.
            self._unsaved_bytes += replay.bytes_read
            if view.state.transactional:
                active.aborted.take(self._aborted_in(active, aborted, replay))
            self._producers, self.open = producers, replay.open
        return self._producers

    def _aborted_in(self, active: ActiveSegment, saved: AbortedIndex, replay: Replay) -> AbortedIndex:
        """Return the aborted transactions of *active*: the *saved* ones, and those of *replay* that follow.

        If damage may hide markers, the mark helps. It was written before the damage: it says below which
        offset nothing was open, and vouches for the file of aborted transactions.
        """
        doubts, mark = doubts_of(replay, active.base), active.opened_with
        exact: AbortedIndex | None = None
        is_known = mark is not None and mark.base == active.base and mark.next_offset <= self._opened_offset
        if replay.doubts and mark is not None and is_known:
            replay.end_doubtful_before(mark.last_stable_offset)
            exact = active.read_aborted(mark.aborted_entries, mark.aborted_crc)
        found = saved if exact is None else exact
        later_from = active.base if exact is None or mark is None else mark.next_offset
        later = [each for each in replay.aborted if each.last_offset >= later_from]
        for each in later:
            found.add(each)
        if exact is not None and mark is not None:
            begun, stable = {(each.producer_id, each.first_offset) for each in later}, mark.last_stable_offset
            doubts = [each for each in doubts if each.first_offset >= stable or each[:2] in begun]
        opened = {(each.producer_id, each.first_offset) for each in replay.producers.open_transactions()}
        self._doubts = [each for each in doubts if each[:2] in opened]
        return DoubtfulIndex(found, doubts) if doubts else found

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
        if stamp.transactional:
            self.open.begin(stamp.producer_id, base_offset)
        producers.expire(now_ms - self._expiration_ms())
        self._changed = True

    def check_marker(self, marker: Marker, now_ms: int) -> None:
        """Check that *marker* may end a transaction; see `Producers.check_marker`."""
        self.learn(now_ms).check_marker(marker)

    def end(self, marker: Marker, offset: int, now_ms: int) -> None:
        """Note an appended marker, and the transaction in the index if it was aborted."""
        first = self.learn(now_ms).end(marker, offset, now_ms)
        if first is not None and not marker.committed:
            file = _active_of(self._view()).aborted
            file.index.add(aborted_by(marker, first, offset, self.open))
            doubts = [each for each in self._doubts if each[:2] == (marker.producer_id, first)]
            if doubts:
                file.index = DoubtfulIndex(file.index, doubts)
        # Last: a sync takes it up at any moment and without the append lock, and then readers see records of
        # the transaction. They must know that it was aborted.
        self.open.end(marker.producer_id, offset)
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
        pending = self._pending
        assert pending is None or pending[0].next_offset <= end_offset, "snapshot beyond the log end"

    def _capture(self, leader_epoch: int, next_offset: int, now_ms: int) -> None:
        producers = self.learn(now_ms)
        view = self._view()
        state, active = view.state, _active_of(view)
        if active.aborted.index.has_doubts:
            # A snapshot would not have them. Without one, the next open meets the damage again.
            return
        producers.expire(now_ms - self._expiration_ms(), now=True)
        entries = bytes(active.aborted.index.entries)
        snapshot = ProducersSnapshot(
            SNAPSHOT_VERSION if state.transactional else PLAIN_VERSION,
            state.topic_id,
            state.partition,
            leader_epoch,
            next_offset,
            producers.known(),
            active.base if entries else 0,
            len(active.aborted.index),
            google_crc32c.value(entries),
        )
        self._pending = snapshot, active
        self._unsaved_bytes = 0
        self._changed = False

    def save_synced(self, synced_offset: int) -> None:
        """Write the pending snapshot if it covers no record at or above *synced_offset*.

        If a snapshot covered records that a power cut loses, their retry would be taken for a duplicate.
        """
        pending = self._pending
        if pending is not None and pending[0].next_offset <= synced_offset:
            if self._pending is pending:
                self._pending = None
            snapshot, active = pending
            # A snapshot is derived data: without it, the next open reads more of the log.
            with contextlib.suppress(OSError):
                active.aborted.sync(snapshot.aborted_count)
                write_snapshot(self._files, self._directory, snapshot)
                self._saved_offset = snapshot.next_offset

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

    def hold(self, log_start_offset: int) -> None:
        """Show no record as committed until transactions are learnt again, because the log was truncated."""
        self.open = OpenTransactions([OpenTransaction(NO_PRODUCER_ID, 0, log_start_offset, 0)])

    def cut(self, leader_epoch: int, end_offset: int, now_ms: int) -> None:
        """Drop the state of records at or above *end_offset*, where *leader_epoch* begins.

        All remaining records are synced. If the producers are not loaded yet, the first use loads them from
        the remaining records.
        """
        self._opened_offset = min(self._opened_offset, end_offset)
        if self._view().state.transactional:
            # A marker that was cut off leaves its transaction open again, with all that follows from that.
            self._producers = self._pending = None
            self._opened_offset = end_offset
            self.learn(now_ms)
            self._capture(leader_epoch, end_offset, now_ms)
            self.save_synced(end_offset)
        elif self._producers is not None:
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


def _active_of(view: View) -> ActiveSegment:
    active = view.segments[-1]
    assert isinstance(active, ActiveSegment), "the last segment of a log takes appends"
    return active


def _saved_aborted(saved: ProducersSnapshot, active: ActiveSegment) -> AbortedIndex | None:
    """Return the aborted transactions of *active* below the end of *saved*; None if they were lost."""
    if not saved.aborted_count or saved.aborted_base != active.base:
        return AbortedIndex()
    return active.read_aborted(saved.aborted_count, saved.aborted_crc32c)
