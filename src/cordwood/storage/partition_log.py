"""The log of one partition: segments in order, one of them taking appends."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from threading import Condition, Lock, RLock
from typing import NamedTuple, TypeVar

import msgspec

from cordwood.config import TopicConfig
from cordwood.errors import (
    CorruptRange,
    DiskFull,
    LogClosed,
    LogFailed,
    OffsetOutOfRange,
    RecordRefused,
    StorageError,
    UnexpectedOffset,
)
from cordwood.formats.format import Encoded, Format, ProducerStamp, ReceivedFrame, Row
from cordwood.formats.native import BatchFormat
from cordwood.index.time import NO_TIMESTAMP
from cordwood.records import Header
from cordwood.storage import adoption, swapping, truncation
from cordwood.storage.active import (
    Surroundings,
    create_stores,
    empty_active,
    reopen_active,
)
from cordwood.storage.append_meter import AppendMeter
from cordwood.storage.deletion import remove_tree
from cordwood.storage.files import parent
from cordwood.storage.group_commit import GroupCommit
from cordwood.storage.mark import MarkFile
from cordwood.storage.mark_keeper import End, MarkKeeper
from cordwood.storage.partition_state import (
    Cut,
    PartitionState,
    SealedInfo,
    advanced_state,
    sealed_state,
    state_path,
    write_state,
)
from cordwood.storage.producer_keeper import ProducerKeeper
from cordwood.storage.reading import checked_sha256
from cordwood.storage.retention import must_seal
from cordwood.storage.segment import (
    ActiveSegment,
    OwnedSegment,
    Segment,
    Stores,
    segment_path,
    segments_directory,
)
from cordwood.storage.spool import Spool
from cordwood.storage.store import DISK_FULL, as_storage_error
from cordwood.storage.view import Fetched, View
from cordwood.telemetry import (
    CORRUPT_RANGES,
    GROUP_COMMIT_RECORDS,
    SEGMENTS,
    SEGMENTS_ROLLED,
    SYNC_SECONDS,
)

Result = TypeVar("Result")
NO_LIMIT = 1 << 62


class Appended(NamedTuple):
    """Offsets [base, next) that an append was given. Durable once `commit(next_offset)` returned.

    ``append_timestamp`` is the time that its records were given, -1 where they keep their own.
    """

    base_offset: int
    next_offset: int
    append_timestamp: int = -1


class Turn(NamedTuple):
    """What an append is given when its turn comes."""

    base_offset: int
    leader_epoch: int
    now_ms: int
    started_ns: int


class TruncationReport(NamedTuple):
    """What a truncation dropped. Both counts are of offsets and bytes that were there before."""

    end_offset: int
    removed_offsets: int
    removed_bytes: int


def _all_keyed(rows: Iterable[Row]) -> list[Row]:
    """Return *rows* if every one has a key: without one nobody could tell what supersedes it.

    Raises:
        RecordRefused: If one has none.
    """
    found = list(rows)
    if any(row[0] is None for row in found if row):
        raise RecordRefused("a record without a key in a topic that is compacted")
    return found


class PartitionLog:
    """Append, read, roll, truncate. Made by `recovery.open_partition`.

    Every method may be called from any thread. Appends, rolls and truncations take turns; reads never
    wait for them. With ``sync`` policy ``each`` the high watermark is the synced end; under the weaker
    ones it is the written end.
    """

    def __init__(
        self,
        around: Surroundings,
        directory: str,
        config: TopicConfig,
        format_: Format,
        state: PartitionState,
        sealed: tuple[Segment, ...],
        active: ActiveSegment,
        mark: MarkFile,
        *,
        new: bool = False,
    ) -> None:
        self.directory = directory
        self.config = config
        self._around = around
        self.format = format_
        # Taken again by the thread that has it: `held` keeps the others out of many appends in a row.
        self._lock = RLock()
        self._active = active
        self._end = self._end_of(active)
        self._view_lock = Lock()
        self._grown = Condition(self._view_lock)
        self._followers = 0
        self._view = View(
            state, (*sealed, active), active.store.end, active.next_offset, config.stored_bytes_max
        )
        self._commit = GroupCommit(active.next_offset)
        self._failure: LogFailed | None = None
        self._closed = False
        self._durable = config.sync.durable
        self._log_append_time = config.message_timestamp_type == "LogAppendTime"
        self._keyed = "compact" in config.cleanup_policy
        self._store_bytes_max = format_.store_bytes_max or NO_LIMIT
        self._meter = AppendMeter(around.telemetry)
        self._damaged: set[tuple[str, int]] = set()
        # Odd while the files of segments are being replaced.
        self._swaps = 0
        # The largest timestamp may be a producer's; it is ours for sure only where all of them are.
        self._last_assigned_ms = active.times.largest if self._log_append_time else NO_TIMESTAMP
        self._keeper = MarkKeeper(mark, active.store.end, around.clock.monotonic_ns())
        self._producers = ProducerKeeper(
            around.files,
            directory,
            lambda: self._view,
            new=new,
            stamped=format_.holds.stamps,
            expiration_ms=around.producer_expiration_ms,
        )
        around.telemetry.add(SEGMENTS, len(sealed) + 1)

    # --- where the log stands ---------------------------------------------------------------------

    @property
    def state(self) -> PartitionState:
        """What `partition.json` says."""
        return self._view.state

    @property
    def log_start_offset(self) -> int:
        """The first offset that can be read."""
        return self._view.state.log_start_offset

    @property
    def log_end_offset(self) -> int:
        """The offset the next record will get."""
        return self._end.next_offset

    @property
    def high_watermark(self) -> int:
        """The first offset that consumers may not read."""
        return self._view.high_watermark

    @property
    def unsynced_records(self) -> int:
        """How many records are written that no sync has covered."""
        return self._end.next_offset - self._commit.synced_offset

    @property
    def active_size(self) -> int:
        """Bytes in the segment that takes appends."""
        return self._end.position

    @property
    def failure(self) -> LogFailed | None:
        """Why the log takes no more, if it does not."""
        return self._failure

    def size(self) -> int:
        """Return the bytes of all segments."""
        return sum(segment.info.size for segment in self._view.segments[:-1]) + self._end.position

    # --- appending --------------------------------------------------------------------------------

    def append(self, rows: Iterable[Row], expected_offset: int | None = None) -> Appended:
        """Append ``(key, value[, headers[, timestamp]])`` rows as one frame, whole or not at all.

        Written, not durable: `commit` is the other half. A row without a timestamp gets the time of the
        append, which never runs backwards. In a format with a frame for each record, a crash before the
        commit may leave the first ones of them.

        Raises:
            UnexpectedOffset: If the next offset is not *expected_offset*. Nothing was appended.
            RecordRefused, FrameTooLarge: If the format cannot hold a row. Nothing was appended.
            DiskFull: Nothing was appended; works again once there is space.
            LogFailed: The log takes no more; opening it again recovers what was acknowledged.
        """
        if self._keyed:
            rows = _all_keyed(rows)
        with self._lock:
            at = self._begin(expected_offset)
            frames = self.format.encode(
                rows,
                base_offset=at.base_offset,
                leader_epoch=at.leader_epoch,
                now_ms=at.now_ms,
                log_append_time=self._log_append_time,
                size_max=self.config.max_message_bytes,
                before=self._active.left,
            )
            self._write(at, frames)
        return Appended(at.base_offset, frames.next_offset)

    def append_received(self, frame: ReceivedFrame) -> Appended:
        """Append a frame that a client encoded, its offsets and epoch set in place, whole or not at all.

        Written, not durable: `commit` is the other half. The frame of an idempotent producer that is here
        already is not appended again: what is returned are the offsets of the original, which may not be
        durable yet either. Raises as `append` does, and:

        Raises:
            StorageError: If what was appended before cannot be read now. Nothing was appended.
            OutOfSequence: If it is not the producer's next one. Nothing was appended.
            ProducerFenced: If another producer has taken over. Nothing was appended.
        """
        with self._lock:
            at = self._begin(None)
            if frame.stamp is not None:
                original = self._producers.find_original(frame.stamp, at.now_ms)
                if original is not None:
                    return Appended(original.base_offset, original.next_offset)
            frames = self.format.place(
                frame,
                base_offset=at.base_offset,
                leader_epoch=at.leader_epoch,
                append_timestamp=at.now_ms if self._log_append_time else None,
                size_max=self.config.stored_bytes_max,
                before=self._active.left,
            )
            self._write(at, frames, frame.stamp)
        append_timestamp = frames.max_timestamp if self._log_append_time else -1
        return Appended(at.base_offset, frames.next_offset, append_timestamp)

    def append_made(self, make: Callable[[Turn], Encoded]) -> Appended:
        """Append the frame that *make* makes when its turn comes, whole or not at all.

        Raises as `append` does. What *make* raises is raised, and nothing was appended.
        """
        with self._lock:
            at = self._begin(None)
            frame = make(at)
            self._write(at, frame)
        return Appended(at.base_offset, frame.next_offset)

    def _write(self, at: Turn, frames: Encoded, stamp: ProducerStamp | None = None) -> None:
        """Write frames, in a new segment if it is time for one, with the append lock held."""
        size = len(frames.data)
        if self._must_roll(size, at.now_ms):
            self._roll()
        try:
            self._active.append(frames)
        except LogFailed as error:
            raise self._failed(str(error)) from error
        if stamp is not None:
            # Before the append is counted, which may take the snapshot that covers it.
            self._producers.note(stamp, at.base_offset, frames.next_offset, at.now_ms)
        self._appended(at, frames.next_offset, size)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Keep appends, rolls and truncations of other threads out, so that offsets can be told in advance.

        Raises:
            LogFailed, LogClosed: If nothing can be appended.
        """
        with self._lock:
            self._check_change()
            yield

    def adopt(self, path: str, size: int) -> Appended:
        """Make the file at *path*, *size* bytes of whole frames, the next segment: by renaming it. Durable.

        Only where a frame is a batch. The file must be synced, and nobody else's. Its frames are numbered in
        place, whatever offsets they had before. Raises as `append` does.
        """
        format_ = self.format
        assert isinstance(format_, BatchFormat)
        with self._lock:
            at = self._begin(None)
            if self._active.store.end:
                self._roll()
            with self._commit.exclusively():
                files = self._around.files
                try:
                    adopted = adoption.prepare(
                        self._around, self.directory, self.state, format_, path, size, self.config
                    )
                    stores = create_stores(
                        files, self.directory, adopted.info.next_offset, self.config, self.format
                    )
                except OSError as error:
                    raise self._full_or_failed(error, "adopting a segment") from error
                try:
                    # In place of the active segment, which is empty. A crash between this and the commit
                    # leaves frames past the mark, and recovery keeps them as it keeps any whole tail.
                    files.rename(path, segment_path(self.directory, at.base_offset, "log"))
                    files.sync_directory(segments_directory(self.directory))
                    files.sync_directory(parent(path))
                    state = sealed_state(self.state, adopted.info)
                    write_state(files, self.directory, state)
                except OSError as error:
                    raise self._failed(f"adopting a segment failed: {error}") from error
                self._seal(state, adopted.info, adopted, stores)
            self._last_assigned_ms = at.now_ms
            elapsed = self._around.clock.monotonic_ns() - at.started_ns
            self._meter.note(adopted.info.next_offset - at.base_offset, size, elapsed)
        return Appended(at.base_offset, adopted.info.next_offset)

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
        with self._lock:
            at = self._begin(expected_offset)
            frame = self.format.stream(
                key,
                headers,
                spooled.size,
                timestamp=at.now_ms if timestamp is None else timestamp,
                append_timestamp=at.now_ms if self._log_append_time else None,
                base_offset=at.base_offset,
                leader_epoch=at.leader_epoch,
                size_max=self.config.max_message_bytes,
                before=self._active.left,
            )
            if self._must_roll(frame.size, at.now_ms):
                self._roll()
            try:
                self._active.append_stream(frame, spooled.chunks())
            except LogFailed as error:
                raise self._failed(str(error)) from error
            self._appended(at, frame.next_offset, frame.size)
        return Appended(at.base_offset, frame.next_offset)

    def stream_bytes_max(self) -> int:
        """Return how long a stream may be now: the room left in the segment, and half a segment more."""
        segment_bytes = self.config.segment_bytes
        room = segment_bytes - self._end.position + segment_bytes // 2
        return max(0, min(room, self.config.max_message_bytes))

    def _begin(self, expected_offset: int | None) -> Turn:
        """Return what the next append is given, with the append lock held."""
        clock = self._around.clock
        self._check_change()
        base = self._end.next_offset
        if expected_offset is not None and expected_offset != base:
            raise UnexpectedOffset(expected_offset, base)
        now_ms = max(clock.now_ms(), self._last_assigned_ms)
        return Turn(base, self.state.leader_epoch, now_ms, clock.monotonic_ns())

    def _appended(self, turn: Turn, next_offset: int, size: int) -> None:
        """Take note of an append that succeeded, with the append lock held."""
        self._last_assigned_ms = turn.now_ms
        if self._active.opened_ms < 0:
            self._active.opened_ms = turn.now_ms
        self._end = self._end_of(self._active)
        if not self._durable:
            self._show(self._end)
        self._producers.count(size, turn.leader_epoch, next_offset, turn.now_ms)
        elapsed = self._around.clock.monotonic_ns() - turn.started_ns
        self._meter.note(next_offset - turn.base_offset, size, elapsed)

    def commit(self, offset: int | None = None) -> None:
        """Return once everything below *offset* (None: everything appended) is durable.

        Concurrent callers share one sync.

        Raises:
            LogFailed: If the sync failed. What it was to cover may or may not be on the device.
        """
        self._check()
        target = self._end.next_offset if offset is None else offset
        self._commit.wait(target, self._sync, lambda: self._end.next_offset)

    def settle(self, appended: Appended) -> None:
        """Do what the topic's sync policy asks for after an append.

        ``each``: durable on return. ``every:N``: durable once N records are not. ``ms:T`` and ``never``:
        nothing; whoever opened the log commits in time, or not.
        """
        policy = self.config.sync
        if policy.mode == "each" or (policy.mode == "every" and self.unsynced_records >= policy.amount):
            self.commit(appended.next_offset)

    def commit_quietly(self) -> None:
        """Commit what is not durable yet. A failure is kept for the next caller to see, not raised."""
        if not self._closed and self._commit.synced_offset < self._end.next_offset:
            with contextlib.suppress(LogFailed, LogClosed):
                self.commit()

    def _sync_now(self) -> None:
        """Make everything written durable and visible, with the right to sync held already."""
        try:
            self._active.sync()
            self._move_mark(self._end)
        except OSError as error:
            raise self._failed(f"sync failed: {error}") from error
        self._show(self._end)
        self._commit.synced_offset = self._end.next_offset

    def _sync(self) -> int:
        """Sync what is written, then say so in the mark. Called with the right to sync."""
        end, clock = self._end, self._around.clock
        before = self._commit.synced_offset
        started = clock.monotonic_ns()
        try:
            end.segment.sync()
            self._move_mark(end)
        except OSError as error:
            raise self._failed(f"sync failed: {error}") from error
        self._show(end)
        self._producers.save_synced(end.next_offset)
        telemetry = self._around.telemetry
        telemetry.observe(SYNC_SECONDS, (clock.monotonic_ns() - started) / 1e9)
        telemetry.observe(GROUP_COMMIT_RECORDS, end.next_offset - before)
        return end.next_offset

    def _move_mark(self, end: End, *, sync: bool = False) -> None:
        """Say in the mark that everything up to *end* is synced, which it must be."""
        self._keeper.move(self.state, end, self._around.clock.monotonic_ns(), sync=sync)

    def _show(self, end: End) -> None:
        """Let readers see up to *end*. Never goes back."""
        with self._view_lock:
            view = self._view
            if end.next_offset > view.high_watermark:
                self._view = View(
                    view.state, view.segments, end.position, end.next_offset, view.frame_size_max
                )
                if self._followers:
                    self._grown.notify_all()
                self._have_followed()

    def _have_followed(self) -> None:
        """Have the chain brought up to date, when it suits whoever does that."""
        if self.config.chain:
            self._around.changed.add(self)

    # --- rolling ----------------------------------------------------------------------------------

    def _must_roll(self, size: int, now_ms: int) -> bool:
        """Return whether an append of *size* bytes goes to a new segment.

        Raises:
            RecordRefused: If the format has no segment that it would fit into.
        """
        active, config = self._active, self.config
        if size > self._store_bytes_max:
            limit = f"a segment of format {self.format.name} has at most {self._store_bytes_max}"
            raise RecordRefused(f"{size} bytes cannot be appended at once: {limit}")
        if active.store.end == 0:
            return False
        full = active.store.end + size > min(config.segment_bytes, self._store_bytes_max)
        index_full = active.index_size + 16 > config.segment_index_bytes
        old = now_ms - active.opened_ms >= config.segment_ms
        return full or index_full or old

    def roll(self) -> None:
        """Seal the active segment and open the next one; nothing happens while it is empty.

        Durable on return, with everything that was appended.
        """
        with self._lock:
            self._check_change()
            if self._active.store.end:
                self._roll()

    def seal_idle(self, now_ms: int) -> None:
        """Seal the active segment if a policy waits for that and no append comes to do it."""
        with self._lock:
            self._check()
            active = self._active
            if active.store.end and must_seal(active.opened_ms, active.times.largest, self.config, now_ms):
                self.roll()

    def _roll(self) -> None:
        """Roll with the append lock held."""
        files, active = self._around.files, self._active
        with self._commit.exclusively():
            try:
                active.store.trim()
                active.sync()
            except OSError as error:
                raise self._failed(f"sealing failed: {error}") from error
            try:
                active.rewrite_indexes()
            except OSError as error:
                raise self._full_or_failed(error, "rolling") from error
            info = active.info_now(self._around.clock.now_ms())
            state = sealed_state(self.state, info, active.left)
            try:
                stores = create_stores(files, self.directory, info.next_offset, self.config, self.format)
                write_state(files, self.directory, state)
            except OSError as error:
                raise self._full_or_failed(error, "rolling") from error
            self._seal(state, info, active, stores)

    def _seal(self, state: PartitionState, info: SealedInfo, segment: Segment, stores: Stores) -> None:
        """Go on in *stores*, empty ones, after *segment*, which *state* says is sealed as *info*."""
        around = self._around
        sealed = OwnedSegment(around.open_files, self.directory, info, self.format)
        indexes = segment.indexes()
        assert indexes is not None
        sealed.use_indexes(*indexes)
        sealed.checked = segment.checked
        # The old store is not closed here: a reader may be on it, and it goes with the last of them.
        self._go_on_in(
            empty_active(around, self.directory, state, stores, self.format),
            state,
            (*self._view.segments[:-1], sealed),
        )
        self._producers.save_synced(info.next_offset)
        around.telemetry.add(SEGMENTS_ROLLED)
        around.telemetry.add(SEGMENTS)

    def _go_on_in(self, active: ActiveSegment, state: PartitionState, sealed: tuple[Segment, ...]) -> None:
        """Append to *active* from now on. All of it, and all before it, is durable and becomes visible."""
        self._active = active
        self._end = end = self._end_of(active)
        self._view = self._view._replace(
            state=state,
            segments=(*sealed, active),
            position=end.position,
            high_watermark=end.next_offset,
        )
        self._commit.synced_offset = end.next_offset
        self._wake_followers()
        try:
            self._move_mark(end, sync=True)
        except OSError as error:
            raise self._failed(f"the mark could not be moved: {error}") from error

    # --- reading ----------------------------------------------------------------------------------

    def read(self, offset: int, max_bytes: int, stop: int | None = None) -> Fetched:
        """Return whole frames from the one that holds *offset* on, below the high watermark.

        About *max_bytes* of them, across segments; the first one comes whole however large it is. An
        offset that compaction removed begins at the next frame. Little is read beyond *stop*.

        Raises:
            OffsetOutOfRange: If *offset* is below the log start or above the high watermark.
            CorruptRange: If the frame there is not what was written.
        """
        return self.looked_up(lambda view: view.read(offset, max_bytes, self._end.next_offset, stop))

    def offset_at(self, timestamp: int) -> tuple[int, int] | None:
        """Return (offset, timestamp) of the first visible record at or after *timestamp*, exactly."""
        return self.looked_up(lambda view: view.offset_at(timestamp))

    def newest(self) -> tuple[int, int] | None:
        """Return (offset, timestamp) of the first visible record with the largest timestamp."""
        return self.looked_up(lambda view: view.newest())

    def looked_up(self, call: Callable[[View], Result]) -> Result:
        """Return what *call* makes of the view; once more if that was replaced under it.

        A segment may be removed, cut or closed while it is read, which then looks like damage.
        """
        while True:
            self._check()
            swaps, view = self._swaps, self._view
            try:
                found = call(view)
            except (CorruptRange, ValueError) as error:
                # Whoever changes the segments is done with it once the lock can be had.
                with self._lock:
                    self._check()
                    now = self._view
                if now.segments == view.segments and now.state is view.state:
                    self._note_damage(error)
                    raise
                continue
            if swaps == self._swaps and not swaps & 1:
                return found
            # What was read may be of the old file or of the new one, which the view does not fit.
            with self._lock:
                pass

    def _note_damage(self, error: Exception) -> None:
        """Count a range that is refused, once."""
        if isinstance(error, CorruptRange) and (error.path, error.position) not in self._damaged:
            self._damaged.add((error.path, error.position))
            self._around.telemetry.add(CORRUPT_RANGES)

    def wait_beyond(self, offset: int) -> int:
        """Wait until there is a record at or after *offset* to read, and return the high watermark.

        Raises:
            OffsetOutOfRange: If the log ends before *offset*, or is truncated to end there meanwhile.
            LogClosed: If the log is closed meanwhile.
            LogFailed: If it fails meanwhile.
        """
        with self._grown:
            self._followers += 1
            try:
                while True:
                    self._check()
                    high_watermark = self._view.high_watermark
                    if high_watermark > offset:
                        return high_watermark
                    if high_watermark < offset:
                        # Truncated below a follower: what is appended there now is not what comes next.
                        raise OffsetOutOfRange(offset, self.log_start_offset, high_watermark)
                    self._grown.wait()
            finally:
                self._followers -= 1

    def _wake_followers(self) -> None:
        with self._grown:
            self._grown.notify_all()

    # --- cutting ----------------------------------------------------------------------------------

    def truncate(self, end_offset: int) -> TruncationReport:
        """Drop every record at or above *end_offset*. Durable on return; raises the leader epoch.

        A crash on the way leaves the log as before or truncated, never in between.

        Raises:
            OffsetOutOfRange: If *end_offset* is below the log start or above the log end.
            DiskFull: Nothing has changed.
        """
        with self._lock, self._commit.exclusively():
            self._check_change()
            before, size_before = self._end.next_offset, self.size()
            if not self.log_start_offset <= end_offset <= before:
                raise OffsetOutOfRange(end_offset, self.log_start_offset, before)
            if end_offset == before:
                return TruncationReport(end_offset, 0, 0)
            self._sync_now()
            # Now or, if they cannot be read, from what is left.
            with contextlib.suppress(StorageError):
                self._producers.learn(self._around.clock.now_ms())
            view = self._view
            at = view.find_segment(end_offset)
            try:
                cut = truncation.plan_cut(view.segments[at], end_offset, view.bounds(at))
                state = truncation.commit_cut(self._around.files, self.directory, view.state, cut)
            except OSError as error:
                raise self._full_or_failed(error, "truncating") from error
            try:
                self._apply_cut(state, view.segments, at, cut)
            except OSError as error:
                raise self._failed(f"truncating failed after it was committed: {error}") from error
        return TruncationReport(end_offset, before - end_offset, size_before - self.size())

    def _apply_cut(self, state: PartitionState, segments: tuple[Segment, ...], at: int, cut: Cut) -> None:
        """Make disk and memory agree with a committed truncation."""
        around = self._around
        for segment in segments[at:]:
            around.open_files.forget(segment.number)
        around.telemetry.add(SEGMENTS, at + 1 - len(segments))
        state = truncation.finish_cut(around.files, self.directory, state)
        active = reopen_active(around, self.directory, self.config, self.format, state, cut.end)
        self._go_on_in(active, state, segments[:at])
        self._producers.cut(state.leader_epoch, active.next_offset, around.clock.now_ms())
        self._have_followed()

    def advance_log_start(self, offset: int) -> None:
        """Make *offset* the first one that can be read, and remove segments that lie wholly below it.

        Durable on return. Moving it back is a no-op.

        Raises:
            OffsetOutOfRange: If *offset* is above the high watermark.
            DiskFull: Nothing has changed.
        """
        with self._lock, self._commit.exclusively():
            self._check_change()
            view = self._view
            if offset <= view.state.log_start_offset:
                return
            if offset > view.high_watermark:
                raise OffsetOutOfRange(offset, view.state.log_start_offset, view.high_watermark)
            # Under a weak sync policy the records below it may not be on the device yet. Without this a
            # power cut could leave a log that ends before it starts.
            self._sync_now()
            self._producers.save_before_removal(
                offset, view.state.leader_epoch, self._end.next_offset, self._around.clock.now_ms()
            )
            state = advanced_state(view.state, offset)
            try:
                write_state(self._around.files, self.directory, state)
            except OSError as error:
                raise self._full_or_failed(error, "moving the log start") from error
            kept = {segment.base for segment in state.sealed} | {state.active_base}
            gone = [segment for segment in view.segments if segment.base not in kept]
            with self._view_lock:
                segments = tuple(segment for segment in view.segments if segment.base in kept)
                self._view = self._view._replace(state=state, segments=segments)
            self._have_followed()
            for segment in gone:
                self._around.open_files.forget(segment.number)
            self._around.telemetry.add(SEGMENTS, -len(gone))
            # No state names them any more: what cannot be removed now goes at the next open.
            with contextlib.suppress(OSError):
                bases = [segment.base for segment in gone]
                truncation.remove_segments(self._around.files, self.directory, bases)

    def reconfigure(self, config: TopicConfig) -> None:
        """Live by *config* from now on. What was appended under a weaker sync policy is synced first.

        Raises:
            LogFailed: If that failed.
        """
        with self._lock, self._commit.exclusively():
            self._check()
            self._sync_now()
            self.config = config
            self._durable = config.sync.durable
            self._log_append_time = config.message_timestamp_type == "LogAppendTime"
            self._keyed = "compact" in config.cleanup_policy
            with self._view_lock:
                self._view = self._view._replace(frame_size_max=config.stored_bytes_max)

    # --- compacting -------------------------------------------------------------------------------

    @property
    def view(self) -> View:
        """What readers see now; never changed, only replaced."""
        return self._view

    def last_batches(self) -> frozenset[int]:
        """Return the base offset of the newest batch of each idempotent producer that is known.

        None in a format whose frames do not say who made them.

        Raises:
            StorageError: If the log cannot be read now.
        """
        with self._lock:
            self._check()
            if not self.format.holds.stamps:
                return frozenset()
            known = self._producers.learn(self._around.clock.now_ms()).known()
            return frozenset(producer.batches[-1].base_offset for producer in known)

    def swap(self, old: tuple[Segment, ...], new: Segment) -> bool:
        """Put *new*, whose files are prepared and synced, in the place of *old*, which follow each other.

        Durable on return. False, and nothing has changed, if one of them is not there any more. Readers go
        on, with the old files or the new ones.

        Raises:
            DiskFull: Nothing has changed.
            LogFailed: If it failed after it was committed; opening the log again finishes it.
        """
        files = self._around.files
        with self._lock, self._commit.exclusively():
            self._check_change()
            segments = self._view.segments
            if any(segment not in segments for segment in old):
                return False
            try:
                state = swapping.commit_swap(files, self.directory, self.state, new.info)
            except OSError as error:
                raise self._full_or_failed(error, "compacting") from error
            self._swaps += 1
            try:
                state = swapping.finish_swap(files, self.directory, state)
            except OSError as error:
                raise self._failed(f"compacting failed after it was committed: {error}") from error
            at = segments.index(old[0])
            with self._view_lock:
                self._view = self._view._replace(
                    state=state, segments=(*segments[:at], new, *segments[at + len(old) :])
                )
            self._swaps += 1
        for segment in old:
            self._around.open_files.forget(segment.number)
        self._around.telemetry.add(SEGMENTS, 1 - len(old))
        return True

    def note_sealed(self, changed: Mapping[int, SealedInfo]) -> None:
        """Say other things of sealed segments, by base, whose files stay as they are. Durable on return.

        Raises:
            DiskFull: Nothing has changed.
        """
        with self._lock, self._commit.exclusively():
            self._check_change()
            sealed = tuple(changed.get(info.base, info) for info in self.state.sealed)
            state = msgspec.structs.replace(self.state, sealed=sealed)
            try:
                write_state(self._around.files, self.directory, state)
            except OSError as error:
                raise self._full_or_failed(error, "noting what segments hold") from error
            with self._view_lock:
                self._view = self._view._replace(state=state)
            for segment, info in zip(self._view.segments, sealed, strict=False):
                segment.info = info

    # --- hashing sealed segments ------------------------------------------------------------------

    def hash_sealed(self) -> int:
        """Note the SHA-256 of sealed segments that have none yet; return how many.

        Reads and checks whole segments, so it belongs off the path of appends, which it blocks only to
        note results. A damaged segment gets none: its hash would vouch for the damage.
        """
        self._check()
        view, digests = self._view, {}
        for at, segment in enumerate(view.segments[:-1]):
            if segment.info.sha256 is None:
                digest = checked_sha256(segment, view.bounds(at))
                if digest is not None:
                    digests[segment.base] = digest
        if not digests:
            return 0
        with self._lock:
            # A truncation or a compaction may have put another file in a segment's place meanwhile.
            still = [segment for segment in self._view.segments if segment in view.segments]
            digests = {s.base: digests[s.base] for s in still if s.base in digests}
            self.note_sealed(
                {
                    info.base: msgspec.structs.replace(info, sha256=digests[info.base])
                    for info in self.state.sealed
                    if info.base in digests
                }
            )
        return len(digests)

    # --- ending -----------------------------------------------------------------------------------

    def close(self) -> None:
        """Make everything durable, indexes included, and let go. Idempotent.

        Raises:
            LogFailed: If that failed now. A log that had failed before is closed without another try.
        """
        with self._lock, self._commit.exclusively():
            if self._closed:
                return
            self._closed = True
            self._wake_followers()
            self._meter.report()
            try:
                if self._failure is None:
                    self._active.store.trim()
                    self._active.sync()
                    self._move_mark(self._end, sync=True)
                    self._show(self._end)
                    self._commit.synced_offset = self._end.next_offset
                    self._producers.close(
                        self.state.leader_epoch, self._end.next_offset, self._around.clock.now_ms()
                    )
            except OSError as error:
                raise self._failed(f"closing failed: {error}") from error
            finally:
                self._active.close()
                self._keeper.close()
                self._around.telemetry.add(SEGMENTS, -len(self._view.segments))
                self._around.telemetry.add(CORRUPT_RANGES, -len(self._damaged))
                for segment in self._view.segments:
                    self._around.open_files.forget(segment.number)

    def remove(self) -> None:
        """Close the log and delete everything it has on disk. Its directory is gone on return."""
        self.close()
        files = self._around.files
        # Without partition.json there is no partition, so whatever a crash leaves of the rest is no log.
        files.unlink(state_path(self.directory))
        files.sync_directory(self.directory)
        self._around.changed.discard(self)
        remove_tree(files, self.directory)
        files.sync_directory(parent(self.directory))

    # --- when things break ------------------------------------------------------------------------

    def _end_of(self, active: ActiveSegment) -> End:
        index_entries, time_entries = len(active.index.entries) >> 4, len(active.times.entries) >> 4
        return End(active, active.store.end, active.next_offset, index_entries, time_entries)

    def _check(self) -> None:
        if self._closed:
            raise LogClosed(f"{self.directory} is closed")
        if self._failure is not None:
            raise self._failure
        self._around.check_alive()

    def _check_change(self) -> None:
        self._check()
        try:
            self._around.before_change()
        except OSError as error:
            raise as_storage_error(error, "preparing a change") from error

    def _full_or_failed(self, error: OSError, doing: str) -> StorageError:
        """Return DiskFull where nothing was committed for lack of space, else fail the log."""
        if error.errno in DISK_FULL:
            return DiskFull(f"{self.directory}: no space left while {doing}")
        return self._failed(f"{doing} failed: {error}")

    def fail(self, reason: str) -> None:
        """Take no more from now on: something that only another opening can set right."""
        self._failed(reason)

    def _failed(self, reason: str) -> LogFailed:
        """Take no more from now on, and return the error that says so."""
        error = LogFailed(f"{self.directory}: {reason}")
        self._failure = error
        self._commit.fail(error)
        self._wake_followers()
        return error
