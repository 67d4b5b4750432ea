"""Appending to the active segment of a partition log, and rolling when it is full or old."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from cordwood.config import TimestampOrder, TopicConfig
from cordwood.errors import (
    FrameTooLarge,
    LogFailed,
    RecordRefused,
    TransactionStateInvalid,
    UnexpectedOffset,
)
from cordwood.formats import (
    BatchFormat,
    Encoded,
    FrameSlot,
    Marker,
    ProducerStamp,
    ReceivedFrame,
    Row,
    batch,
    check_keys,
    check_times,
)
from cordwood.index import NO_TIMESTAMP
from cordwood.records import Header
from cordwood.storage.log.active_segment import must_seal, segment_ms_of
from cordwood.storage.log.changes import BeginEpoch, NoteTransactional, Roll, Spread, cut_frames
from cordwood.storage.log.log_core import LogCore, end_of
from cordwood.storage.log.spooling import Spool
from cordwood.storage.log.state import age_from
from cordwood.storage.log.terms import (
    check_encoded,
    codec_of,
    given_times,
    ordered_frame,
    ordered_rows,
    ordered_times,
    terms_of,
    timed,
)

Admit = Callable[[ProducerStamp], None]
"""Raises if a batch with this stamp is not part of an ongoing transaction."""


def check_admitted(stamp: ProducerStamp, admit: Admit | None) -> None:
    """Refuse a transactional frame unless *admit* takes it.

    Raises:
        TransactionStateInvalid: If there is no *admit*. It raises what else is wrong.
    """
    if admit is None:
        raise TransactionStateInvalid(
            f"producer {stamp.producer_id} sent a transactional batch outside of a transaction"
        )
    admit(stamp)


class Appended(NamedTuple):
    """Offsets [base, next) that an append was given. Durable once `commit(next_offset)` returned.

    ``append_timestamp`` is the time that its records were given, -1 where they keep their own.
    """

    base_offset: int
    next_offset: int
    append_timestamp: int = -1


class AppendSlot(NamedTuple):
    """The offset, epoch and time that an append is given when it holds the lock."""

    base_offset: int
    leader_epoch: int
    now_ms: int
    started_ns: int
    now_us: int | None = None
    """The same time in microseconds, in a topic that stores them."""


def _all_keyed(rows: Iterable[Row]) -> list[Row]:
    """Return *rows* if each has a key, which compaction needs.

    Raises:
        RecordsRejected: If a row has no key.
    """
    found = list(rows)
    check_keys(row[0] if row else b"" for row in found)
    return found


class AppendingLog(LogCore):
    """The half of a partition log that appends. Appends of all threads take turns under ``lock``."""

    # --- appending --------------------------------------------------------------------------------

    def append(self, rows: Iterable[Row], expected_offset: int | None = None) -> Appended:
        """Append ``(key, value[, headers[, timestamp]])`` rows as one frame, whole or not at all.

        Written, not durable: call `commit` for that. A row without a timestamp gets the time of the append,
        which never runs backwards. In a format with a frame for each record, a crash before the commit may
        leave only the first records, and rows that exceed `segment.bytes` go to several segments: readers see
        all of them at once, and they are durable on return.

        Raises:
            UnexpectedOffset: If the next offset is not *expected_offset*. Nothing was appended.
            RecordRefused, FrameTooLarge: If the format cannot hold a row. Nothing was appended.
            RecordsRejected: If the topic does not take a row's key or timestamp. Nothing was appended.
            DiskFull: Nothing was appended; works again once there is space.
            LogFailed: The log refuses appends; opening it again recovers all acknowledged records.
        """
        if self._keyed:
            rows = _all_keyed(rows)
        with self.lock:
            slot = self._begin(expected_offset)
            if self._ordered:
                rows = self._ordered_rows(rows, slot)
            place = self._frame_slot(slot, self.config.max_message_bytes)
            frames = self.format.encode(rows, place, slot.now_ms, codec_of(self.config))
            if not self._ordered:
                check_encoded(frames, self.config, slot.now_ms)
            self._write(slot, frames)
        return Appended(slot.base_offset, frames.next_offset)

    def _ordered_rows(self, rows: Iterable[Row], slot: AppendSlot) -> Sequence[Row]:
        """Return *rows* with timestamps that do not run backwards in the active segment. With ``lock`` held.

        What the topic takes is said of the timestamps that were given, not of those that they become.

        Raises:
            TimestampsRejected: If the topic does not take one. Nothing was appended.
        """
        floor, config, found = self.active.times.largest, self.config, list(rows)
        if self._log_append_time or not found:
            return found
        check_times(given_times(found, slot.now_ms), terms_of(config, slot.now_ms))
        return ordered_rows(timed(found, max(slot.now_ms, floor)), floor, config.timestamp_order)

    def append_received(
        self, frame: ReceivedFrame, *, promised: bool = False, admit: Admit | None = None
    ) -> Appended:
        """Append a frame that a client encoded, its offsets and epoch set in place, whole or not at all.

        Written, not durable: call `commit` for that. A frame that an idempotent producer sends again is not
        appended again: the offsets of the original are returned, which may not be durable yet either. With
        *promised* its offsets were promised before, so a timestamp that runs backwards is lifted, never
        refused. A transactional frame is appended only with *admit*, which is called with ``lock`` held
        and raises if the frame is not part of an ongoing transaction. Raises as `append` does, and:

        Raises:
            TransactionStateInvalid: If it does not fit the open transaction of its producer.
            StorageError: If earlier records cannot be read now. Nothing was appended.
            OutOfSequence: If it is not the producer's next frame. Nothing was appended.
            ProducerFenced: If another producer has taken over. Nothing was appended.
        """
        with self.lock:
            slot = self._begin(None)
            if frame.stamp is not None:
                original = self.known_producers.find_original(frame.stamp, slot.now_ms)
                if original is not None:
                    return Appended(original.base_offset, original.next_offset)
                if frame.stamp.transactional:
                    self._admit(frame.stamp, admit)
            if self._ordered and not self._log_append_time:
                order: TimestampOrder = "lift" if promised else self.config.timestamp_order
                frame = ordered_frame(self.format, frame, self.active.times.largest, order)
                if len(frame.data) > self.config.stored_bytes_max:
                    raise FrameTooLarge(
                        position=0,
                        expected=f"at most {self.config.stored_bytes_max} bytes",
                        found=len(frame.data),
                        what="batch with lifted timestamps",
                    )
            frames = self.format.place(frame, self._frame_slot(slot, self.config.stored_bytes_max))
            self._write(slot, frames, frame.stamp)
        append_timestamp = frames.max_timestamp if self._log_append_time else -1
        return Appended(slot.base_offset, frames.next_offset, append_timestamp)

    def _admit(self, stamp: ProducerStamp, admit: Admit | None) -> None:
        """Refuse a transactional frame unless *admit* takes it. With ``lock`` held."""
        check_admitted(stamp, admit)
        if not self.state.transactional:
            NoteTransactional(self).make()

    def append_marker(self, marker: Marker) -> Appended:
        """Append the end of a producer's transaction. Its outcome must be durable already.

        Readers of committed records see the transaction from now on, if it was committed. Written, not
        durable: after a crash the marker is appended again.

        Raises:
            ProducerFenced: If the producer has a later epoch. Nothing was appended.
            TransactionsUnsupported: If the format has no transactions.
            StorageError: If it could not be written, or earlier records cannot be read now.
        """
        with self.lock:
            slot = self._begin(None)
            self.known_producers.check_marker(marker, slot.now_ms)
            place = self._frame_slot(slot, self.config.stored_bytes_max)
            largest = self.active.times.largest
            now_ms = max(slot.now_ms, largest) if self._ordered else slot.now_ms
            frame = self.format.encode_marker(marker, place, now_ms)
            if not self.state.transactional:
                NoteTransactional(self).make()
            self._write(slot, frame, marker=marker)
            self.show_ended()
        return Appended(slot.base_offset, frame.next_offset)

    def append_made(self, make: Callable[[AppendSlot], Encoded]) -> Appended:
        """Append the frame that *make* returns for the slot it is given, whole or not at all.

        Raises as `append` does. An exception of *make* is raised, and nothing was appended.
        """
        with self.lock:
            slot = self._begin(None)
            frame = make(slot)
            self._write(slot, frame)
        return Appended(slot.base_offset, frame.next_offset)

    def append_kept(self, data: bytearray | memoryview) -> Appended:
        """Append one batch of another log at the offset that it has there, which must be the next one here.

        It stays as it is, except that its leader epoch becomes that of this log. What it says about its
        producer and about transactions counts without being checked: the other log has checked it, and may
        have transactions that no coordinator knows here. Written, not durable. Raises as `append` does, and:

        Raises:
            FrameError: If it is not one sound batch with the next offset, or larger than readers accept.
        """
        assert isinstance(self.format, BatchFormat), "only batches are kept"
        with self.lock:
            slot = self._begin(None)
            batch.place_epoch(data, slot.leader_epoch)
            table = self.format.scan(
                data,
                next_offset=slot.base_offset,
                dense=True,
                epochs=None,
                size_max=self.config.stored_bytes_max,
            )
            if len(table) != 1 or table.end != len(data):
                raise table.error()
            stamp, marker = table.stamp(0), table.marker(0)
            if (
                marker is not None or (stamp is not None and stamp.transactional)
            ) and not self.state.transactional:
                NoteTransactional(self).make()
            largest = table.max_timestamp(0)
            known = NO_TIMESTAMP if largest is None else largest
            # Producers age by the time of their records, so that an old log does not leave all it ever had.
            seen_ms = min(max(known, 0), slot.now_ms)
            frames = Encoded(data, table.next_offset(0), known, empty=largest is None)
            self._write(slot, frames, stamp, marker, seen_ms)
        return Appended(slot.base_offset, frames.next_offset)

    def _write(
        self,
        slot: AppendSlot,
        frames: Encoded,
        stamp: ProducerStamp | None = None,
        marker: Marker | None = None,
        seen_ms: int | None = None,
    ) -> None:
        """Write frames, in a new segment if one is due. With ``lock`` held.

        Their producer was heard of at *seen_ms*; None for now.
        """
        size = len(frames.data)
        heard_ms = slot.now_ms if seen_ms is None else seen_ms
        if self._must_roll(size, slot.now_ms, frames.sizes):
            self._roll()
        pieces = self._pieces(frames) if len(frames.sizes) > 1 else ()
        try:
            if len(pieces) > 1:
                Spread(self, pieces, slot.now_ms).make()
            else:
                self.active.append(frames)
        except LogFailed as error:
            if self.failure is not None:
                raise
            raise self.failed(str(error)) from error
        if stamp is not None:
            # Before the append is counted: counting may take the snapshot that covers it.
            self.known_producers.note(stamp, slot.base_offset, frames.next_offset, heard_ms)
        if marker is not None:
            self.known_producers.end(marker, slot.base_offset, heard_ms)
        self._appended(slot, frames.next_offset, size)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Block appends, rolls and truncations of other threads, so that the next offsets are known.

        Raises:
            LogFailed, LogClosed: If nothing can be appended.
        """
        with self.lock:
            self.check_change()
            yield

    def append_stream(
        self,
        key: bytes | None,
        headers: Iterable[Header],
        timestamp: int | None,
        spooled: Spool,
        expected_offset: int | None = None,
    ) -> Appended:
        """Append one record whose value is *spooled*, in constant memory. Raises as `append` does."""
        if self._keyed:
            _all_keyed([(key,)])
        with self.lock:
            slot = self._begin(expected_offset)
            if timestamp is not None:
                check_times([timestamp], terms_of(self.config, slot.now_ms))
            place = self._frame_slot(slot, self.config.max_message_bytes)
            if timestamp is None and slot.now_us is not None:
                # A format that stores microseconds has no other mark of who gave the time.
                place = place._replace(append_timestamp=slot.now_ms)
            given = slot.now_ms if timestamp is None else timestamp
            if self._ordered and not self._log_append_time:
                order: TimestampOrder = "lift" if timestamp is None else self.config.timestamp_order
                given = (ordered_times([given], self.active.times.largest, order) or [given])[0]
            frame = self.format.stream(key, headers, spooled.size, place, given)
            if self._must_roll(frame.size, slot.now_ms):
                self._roll()
            try:
                self.active.append_stream(frame, spooled.chunks())
            except LogFailed as error:
                raise self.failed(str(error)) from error
            self._appended(slot, frame.next_offset, frame.size)
        return Appended(slot.base_offset, frame.next_offset)

    def stream_bytes_max(self) -> int:
        """Return how long a stream may be now: the room left in the segment, and half a segment more."""
        segment_bytes = self.config.segment_bytes
        room = segment_bytes - self.end.position + segment_bytes // 2
        return max(0, min(room, self.config.max_message_bytes))

    def _begin(self, expected_offset: int | None) -> AppendSlot:
        """Return the slot of the next append. With ``lock`` held."""
        clock = self.context.clock
        self.check_change()
        self.context.reserve.check()
        if self._lacks_remote:
            raise RecordRefused(
                f"a bucket acknowledges the records of topic {self.state.topic} (cordwood.remote.acks), and "
                "there is none: open the directory with cordwood.bucket, or set it to false"
            )
        base = self.end.next_offset
        if expected_offset is not None and expected_offset != base:
            raise UnexpectedOffset(expected_offset, base)
        if self.state.takeover < self.context.takeover:
            BeginEpoch(self).make()
        if self._microseconds:
            now_us = max(clock.now_us(), self.last_assigned_us)
            return AppendSlot(base, self.state.leader_epoch, now_us // 1000, clock.monotonic_ns(), now_us)
        now_ms = max(clock.now_ms(), self.last_assigned_ms)
        return AppendSlot(base, self.state.leader_epoch, now_ms, clock.monotonic_ns())

    def _frame_slot(self, slot: AppendSlot, size_max: int) -> FrameSlot:
        """Return the place of the next frame. With ``lock`` held."""
        append_timestamp = None
        if self._log_append_time:
            now_ms = slot.now_ms
            append_timestamp = max(now_ms, self.active.times.largest) if self._ordered else now_ms
        before, now_us = self.active.left, slot.now_us
        return FrameSlot(slot.base_offset, slot.leader_epoch, append_timestamp, size_max, before, now_us)

    def _appended(self, slot: AppendSlot, next_offset: int, size: int) -> None:
        """Move the end of the log after frames of *size* bytes were written. With ``lock`` held."""
        self.last_assigned_ms = slot.now_ms
        if slot.now_us is not None:
            self.last_assigned_us = slot.now_us
        self.used_ns = slot.started_ns
        active = self.active
        if active.opened_ms < 0:
            active.opened_ms = slot.now_ms
        # Before the end moves: the mark that covers this append must not have an earlier time.
        active.appended_ms = slot.now_ms
        self.end = end = end_of(self.active)
        if not self._durable:
            self.show(end)
        # The part of `check_invariants` that an append can break, without the cost of a call.
        view = self.view
        assert slot.base_offset < next_offset == end.next_offset, "the log does not end after the append"
        assert view.high_watermark <= next_offset, "readers see more than was written"
        assert view.position <= end.position, "readers see bytes that were not written"
        assert self.syncs.synced_offset <= next_offset, "more is synced than was written"
        self.known_producers.count(size, slot.leader_epoch, next_offset, slot.now_ms)
        elapsed = self.context.clock.monotonic_ns() - slot.started_ns
        self.meter.note(next_offset - slot.base_offset, size, elapsed)

    def settle(self, appended: Appended) -> None:
        """Sync after an append if the topic's sync policy asks for it.

        ``each``: durable on return. ``every:N``: durable if N records were not. ``ms:T`` and ``never``: no
        sync; the owner of the log commits in time, or not at all.
        """
        policy = self.config.sync
        if policy.mode == "each" or (policy.mode == "every" and self.unsynced_records >= policy.amount):
            self.commit(appended.next_offset)

    # --- rolling ----------------------------------------------------------------------------------

    def _must_roll(self, size: int, now_ms: int, sizes: Sequence[int] = ()) -> bool:
        """Return whether an append of *size* bytes goes to a new segment; *sizes* if frames are one record.

        Raises:
            RecordRefused: If a frame is larger than any segment of the format.
        """
        active, config = self.active, self.config
        if size > self._store_bytes_max:
            largest = max(sizes, default=size)
            if largest > self._store_bytes_max:
                limit = f"a segment of format {self.format.name} has at most {self._store_bytes_max}"
                raise RecordRefused(f"{largest} bytes cannot be appended at once: {limit}")
        if active.store.end == 0:
            return False
        full = active.store.end + size > min(config.roll_bytes, self._store_bytes_max)
        added = 16 * active.index_entries_of(len(sizes)) if sizes else 16
        index_full = active.index_size + added > config.segment_index_bytes
        old = now_ms - active.opened_ms >= self._segment_ms()
        return full or index_full or old

    def _pieces(self, frames: Encoded) -> Sequence[Encoded]:
        """Return *frames* cut into what fits into an empty segment; whole if the active one has room."""
        bytes_max = min(self.config.roll_bytes, self._store_bytes_max)
        frames_max = self.active.frames_within(self.config.segment_index_bytes)
        if len(frames.data) <= bytes_max and len(frames.sizes) <= frames_max:
            return (frames,)
        return cut_frames(self.format, frames, bytes_max, frames_max)

    def roll(self) -> None:
        """Seal the active segment and open the next one; nothing happens while it is empty.

        Durable on return, with everything that was appended.
        """
        with self.lock:
            self.check_change()
            if self.active.store.end:
                self._roll()

    def seal_idle(self, now_ms: int, policy: TopicConfig | None = None) -> None:
        """Seal the active segment if a policy needs it sealed and no append has rolled it.

        *policy* takes the place of the topic's settings.
        """
        config = self.config if policy is None else policy
        with self.lock:
            self.check()
            active = self.active
            if not active.store.end:
                return
            # After the clock was set back they would lie ahead of it, and nothing would age until then.
            active.opened_ms = min(active.opened_ms, now_ms)
            active.appended_ms = min(active.appended_ms, now_ms)
            newest = age_from(active.info_now(now_ms), config)
            if must_seal(active.opened_ms, newest, config, now_ms, self._segment_ms()):
                self.roll()

    def _segment_ms(self) -> int:
        """Return for how many milliseconds the active segment may be active."""
        if not self.config.segment_jitter_ms:
            return self.config.segment_ms
        return segment_ms_of(self.config, self.state.topic_id, self.state.partition, self.state.active_base)

    def _roll(self) -> None:
        """Roll. With ``lock`` held, and records in the active segment."""
        Roll(self).make()
