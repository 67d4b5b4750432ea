"""Appending to the active segment of a partition log, and rolling when it is full or old."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from cordwood.errors import LogFailed, RecordRefused, UnexpectedOffset
from cordwood.formats import Encoded, FrameSlot, ProducerStamp, ReceivedFrame, Row, check_keys, check_times
from cordwood.records import Header
from cordwood.storage.log.active_segment import must_seal, segment_ms_of
from cordwood.storage.log.changes import Roll
from cordwood.storage.log.log_core import LogCore, end_of
from cordwood.storage.log.spooling import Spool
from cordwood.storage.log.terms import check_encoded, codec_of, terms_of


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
        leave only the first records.

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
            place = self._frame_slot(slot, self.config.max_message_bytes)
            frames = self.format.encode(rows, place, slot.now_ms, codec_of(self.config))
            check_encoded(frames, self.config, slot.now_ms)
            self._write(slot, frames)
        return Appended(slot.base_offset, frames.next_offset)

    def append_received(self, frame: ReceivedFrame) -> Appended:
        """Append a frame that a client encoded, its offsets and epoch set in place, whole or not at all.

        Written, not durable: call `commit` for that. A frame that an idempotent producer sends again is not
        appended again: the offsets of the original are returned, which may not be durable yet either. Raises
        as `append` does, and:

        Raises:
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
            frames = self.format.place(frame, self._frame_slot(slot, self.config.stored_bytes_max))
            self._write(slot, frames, frame.stamp)
        append_timestamp = frames.max_timestamp if self._log_append_time else -1
        return Appended(slot.base_offset, frames.next_offset, append_timestamp)

    def append_made(self, make: Callable[[AppendSlot], Encoded]) -> Appended:
        """Append the frame that *make* returns for the slot it is given, whole or not at all.

        Raises as `append` does. An exception of *make* is raised, and nothing was appended.
        """
        with self.lock:
            slot = self._begin(None)
            frame = make(slot)
            self._write(slot, frame)
        return Appended(slot.base_offset, frame.next_offset)

    def _write(self, slot: AppendSlot, frames: Encoded, stamp: ProducerStamp | None = None) -> None:
        """Write frames, in a new segment if one is due. With ``lock`` held."""
        size = len(frames.data)
        if self._must_roll(size, slot.now_ms):
            self._roll()
        try:
            self.active.append(frames)
        except LogFailed as error:
            raise self.failed(str(error)) from error
        if stamp is not None:
            # Before the append is counted: counting may take the snapshot that covers it.
            self.known_producers.note(stamp, slot.base_offset, frames.next_offset, slot.now_ms)
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
            given = slot.now_ms if timestamp is None else timestamp
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
        base = self.end.next_offset
        if expected_offset is not None and expected_offset != base:
            raise UnexpectedOffset(expected_offset, base)
        now_ms = max(clock.now_ms(), self.last_assigned_ms)
        return AppendSlot(base, self.state.leader_epoch, now_ms, clock.monotonic_ns())

    def _frame_slot(self, slot: AppendSlot, size_max: int) -> FrameSlot:
        """Return the place of the next frame. With ``lock`` held."""
        append_timestamp = slot.now_ms if self._log_append_time else None
        return FrameSlot(slot.base_offset, slot.leader_epoch, append_timestamp, size_max, self.active.left)

    def _appended(self, slot: AppendSlot, next_offset: int, size: int) -> None:
        """Move the end of the log after frames of *size* bytes were written. With ``lock`` held."""
        self.last_assigned_ms = slot.now_ms
        self.used_ns = slot.started_ns
        if self.active.opened_ms < 0:
            self.active.opened_ms = slot.now_ms
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

    def _must_roll(self, size: int, now_ms: int) -> bool:
        """Return whether an append of *size* bytes goes to a new segment.

        Raises:
            RecordRefused: If it is larger than any segment of the format.
        """
        active, config = self.active, self.config
        if size > self._store_bytes_max:
            limit = f"a segment of format {self.format.name} has at most {self._store_bytes_max}"
            raise RecordRefused(f"{size} bytes cannot be appended at once: {limit}")
        if active.store.end == 0:
            return False
        full = active.store.end + size > min(config.roll_bytes, self._store_bytes_max)
        index_full = active.index_size + 16 > config.segment_index_bytes
        old = now_ms - active.opened_ms >= self._segment_ms()
        return full or index_full or old

    def roll(self) -> None:
        """Seal the active segment and open the next one; nothing happens while it is empty.

        Durable on return, with everything that was appended.
        """
        with self.lock:
            self.check_change()
            if self.active.store.end:
                self._roll()

    def seal_idle(self, now_ms: int) -> None:
        """Seal the active segment if a policy needs it sealed and no append has rolled it."""
        with self.lock:
            self.check()
            active = self.active
            if active.store.end and must_seal(
                active.opened_ms, active.times.largest, self.config, now_ms, self._segment_ms()
            ):
                self.roll()

    def _segment_ms(self) -> int:
        """Return for how many milliseconds the active segment may be active."""
        if not self.config.segment_jitter_ms:
            return self.config.segment_ms
        return segment_ms_of(self.config, self.state.topic_id, self.state.partition, self.state.active_base)

    def _roll(self) -> None:
        """Roll. With ``lock`` held, and records in the active segment."""
        Roll(self).make()
