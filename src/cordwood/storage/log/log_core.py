"""The core of a partition log for appends, reads and changes: its end, published view and syncs."""

from __future__ import annotations

import contextlib
import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from threading import Condition, Lock, RLock

from cordwood.config import SyncPolicy, TopicConfig
from cordwood.disk import DISK_FULL, PASSING, MarkFile, Reserve, as_storage_error, parent
from cordwood.errors import DiskFull, LogClosed, LogFailed, StorageError
from cordwood.formats import Format
from cordwood.index import NO_TIMESTAMP
from cordwood.storage.log.active_segment import ActiveSegment
from cordwood.storage.log.append_meter import AppendMeter
from cordwood.storage.log.context import LogContext
from cordwood.storage.log.group_commit import GroupCommit
from cordwood.storage.log.mark_writer import ActiveEnd, MarkKeeper
from cordwood.storage.log.producers import ProducerKeeper
from cordwood.storage.log.reading import LogReader, Standing, View, VisibilityHold
from cordwood.storage.log.segment import Segment
from cordwood.storage.log.state import Epoch, PartitionState, current_epoch, epochs_below
from cordwood.telemetry import GROUP_COMMIT_RECORDS, SEGMENTS, SYNC_SECONDS

NO_LIMIT = 1 << 62


def end_of(active: ActiveSegment) -> ActiveEnd:
    """Return where *active* ends now."""
    index_entries, time_entries = len(active.index.entries) >> 4, len(active.times.entries) >> 4
    return ActiveEnd(active, active.store.end, active.next_offset, index_entries, time_entries)


class LogCore(ABC):
    """The state of one partition log. Its methods may be called from any thread unless they say otherwise.

    ``lock`` is held by each append and each change of the set of segments; ``syncs`` by the thread that
    syncs, seals or moves the mark. A thread that needs both takes ``lock`` first. Readers take neither: they
    use ``view``, which is never changed, only replaced.
    """

    def __init__(
        self,
        context: LogContext,
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
        self.context = context
        self.format = format_
        # Reentrant: `held` keeps other threads out while its caller appends several times.
        self.lock = RLock()
        self.active = active
        #: Where the active segment ends, written or not yet synced. Replaced whole.
        self.end = end_of(active)
        self.view_lock = Lock()
        #: Notified when the high watermark moves, the log fails or is closed. Uses ``view_lock``.
        self.grown = Condition(self.view_lock)
        #: How many threads wait for ``grown``.
        self.followers = 0
        #: The log as it is, also for readers unless it is held back, and the offsets that a client is told.
        end, rechecks = (active.store.end, active.next_offset), config.verify == "every"
        self.set_view(View(state, (*sealed, active), *end, config.stored_bytes_max, rechecks))
        self._held_back: tuple[VisibilityHold, View] | None = None
        #: Odd while the files of segments are being replaced.
        self.swaps = 0
        self.syncs = GroupCommit(active.next_offset)
        self._failure: LogFailed | None = None
        self._closed = False
        #: Held while the log is maintained: a pass finds files by their paths, so the directory must not be
        #: given to another topic meanwhile.
        self.maintaining = RLock()
        self._use_config(config)
        self._store_bytes_max = format_.store_bytes_max or NO_LIMIT
        #: When it last took an append, by the monotonic clock.
        self.used_ns = context.clock.monotonic_ns()
        # The largest timestamp may be a producer's; it was assigned here only if all of them are.
        self.last_assigned_ms = active.times.largest if self._log_append_time else NO_TIMESTAMP
        #: Only in a topic that stores microseconds; the index by time has milliseconds.
        self.last_assigned_us = self.last_assigned_ms * 1000 + 999
        self.keeper = MarkKeeper(mark, active.store.end, context.clock.monotonic_ns())
        self.meter = AppendMeter(context.telemetry)
        self.known_producers = ProducerKeeper(
            context.files,
            directory,
            lambda: self.view,
            new=new,
            stamped=format_.holds.stamps,
            expiration_ms=context.producer_expiration_ms,
        )
        self.reader = LogReader(self)
        context.telemetry.add(SEGMENTS, len(sealed) + 1)

    def _use_config(self, config: TopicConfig) -> None:
        """Keep what each append needs of *config*."""
        if config.remote_acks and not config.sync.durable:
            # What the bucket acknowledges is what is synced.
            config = dataclasses.replace(config, sync=SyncPolicy.parse("each"))
        self.config = config
        self._lacks_remote = config.remote_acks and self.context.remote is None
        self._durable = config.sync.durable
        self._log_append_time = config.message_timestamp_type == "LogAppendTime"
        self._keyed = "compact" in config.cleanup_policy
        self._ordered = config.timestamp_order != "any"
        self._microseconds = config.timestamp_precision == "us" and self.format.holds.microseconds
        if self.context.remote is not None:
            self.context.remote.let_topic_wait(parent(self.directory), waits=config.remote_acks)

    # --- where the log stands ---------------------------------------------------------------------

    @property
    def shown(self) -> View:
        """The view of readers: ``view``, or an earlier one while `hold_back` is in force."""
        # The view first: one that was taken before the hold began has nothing of what it keeps back.
        view, held = self.view, self._held_back
        return view if held is None or held[0].ended else held[1]

    @property
    def state(self) -> PartitionState:
        """The content of `partition.json`."""
        return self.view.state

    @property
    def leader_epoch(self) -> int:
        """The leader epoch that the next record gets."""
        return current_epoch(self.view.state, self.context.takeover)

    @property
    def epochs(self) -> tuple[Epoch, ...]:
        """The leader epochs of the log, oldest first, and the one that the next record gets."""
        # The end first: the first append that moves it begins the epoch.
        end_offset, state = self.end.next_offset, self.view.state
        epoch = current_epoch(state, self.context.takeover)
        if epoch == state.leader_epoch:
            return state.epochs
        return (*epochs_below(state.epochs, end_offset), Epoch(epoch, end_offset))

    @property
    def log_start_offset(self) -> int:
        """The first offset that can be read."""
        return self.view.state.log_start_offset

    @property
    def log_end_offset(self) -> int:
        """The offset the next record will get."""
        return self.end.next_offset

    @property
    def high_watermark(self) -> int:
        """The first offset that consumers may not read."""
        return self.shown.high_watermark

    @property
    def last_stable_offset(self) -> int:
        """The first offset of an open transaction, or the high watermark if none is open below it."""
        return self.shown.last_stable_offset

    @property
    def standing(self) -> Standing:
        """The offsets that a client is told, of one moment: those of ``shown``."""
        # In this order for the reason that `shown` has.
        standing, held = self._standing, self._held_back
        return standing if held is None or held[0].ended else held[1].standing

    @property
    def unsynced_records(self) -> int:
        """The number of records that are written and not yet synced."""
        return self.end.next_offset - self.syncs.synced_offset

    @property
    def active_size(self) -> int:
        """Bytes in the segment that takes appends."""
        return self.end.position

    @property
    def failure(self) -> LogFailed | None:
        """Why the log takes no more appends; None while it does."""
        return self._failure

    @property
    def reserve(self) -> Reserve:
        """The reserved space of the directory, for work that frees space by appending to this log."""
        return self.context.reserve

    @property
    def closed(self) -> bool:
        """Whether the log was closed: its directory may be gone, or belong to another topic by now."""
        return self._closed

    def is_over_retention(self) -> bool:
        """Return whether retention by size no longer keeps the oldest sealed segment. Touches no file."""
        config, sealed = self.config, self.state.sealed
        limited = config.retention_bytes >= 0 and "delete" in config.cleanup_policy
        return limited and bool(sealed) and self.size() - sealed[0].size >= config.retention_bytes

    def size(self) -> int:
        """Return the bytes of all segments."""
        return sum(self.segment_sizes())

    def segment_sizes(self) -> list[int]:
        """Return the bytes of each segment, oldest first. Touches no file."""
        return [*(info.size for info in self.state.sealed), self.end.position]

    def check_invariants(self) -> None:
        """Check that the parts of the log agree. Takes constant time; with ``lock`` held.

        Raises:
            AssertionError: If they do not, which is a fault of this code and never of the disk.
        """
        view, end = self.view, self.end
        state = view.state
        self.active.check_invariants()
        assert end.segment is self.active, "the end belongs to another segment"
        assert view.segments[-1] is self.active, "readers see another active segment"
        assert len(view.segments) == len(state.sealed) + 1, "readers see other segments than the state names"
        assert self.active.base == state.active_base, "the active segment is not the one of the state"
        assert not state.sealed or state.sealed[-1].next_offset == state.active_base, "segments leave a gap"
        assert view.high_watermark <= end.next_offset, "readers see more than was written"
        assert view.position <= end.position, "readers see bytes that were not written"
        assert self.syncs.synced_offset <= end.next_offset, "more is synced than was written"

    # --- publishing -------------------------------------------------------------------------------

    def set_view(self, view: View) -> None:
        """Replace the view of readers. With ``view_lock`` held, or before anyone reads."""
        self.view: View = view
        # Kept, because an idle fetch asks for it for each of its partitions.
        self._standing = view.standing

    def show(self, end: ActiveEnd) -> None:
        """Let readers see everything before *end*. The high watermark never moves back."""
        with self.view_lock:
            view = self.view
            if end.next_offset > view.high_watermark:
                assert end.segment is view.segments[-1], "the end of a segment that is not the active one"
                size_max, rechecks = view.frame_size_max, view.rechecks
                place, open_from = (end.position, end.next_offset), self.known_producers.open.open_from
                self.set_view(View(view.state, view.segments, *place, size_max, rechecks, open_from))
                if self.followers:
                    self.grown.notify_all()
                self.context.growth.tell(view.state.topic, view.state.partition)
                self.note_for_chain()

    def show_ended(self) -> None:
        """Let readers see what the end of a transaction makes visible to them."""
        with self.view_lock:
            self.set_view(self.view._replace(open_from=self.known_producers.open.open_from))
            if self.followers:
                self.grown.notify_all()
            self.context.growth.tell(self.view.state.topic, self.view.state.partition)

    def hold_back(self, hold: VisibilityHold) -> None:
        """Keep what is appended from now on from readers until *hold* ends. With ``lock`` held until then.

        Their view stays readable meanwhile: without the lock nobody removes or replaces a segment.
        """
        with self.view_lock:
            self._held_back = (hold, self.view)

    def show_held_back(self) -> None:
        """Wake those who wait for what a hold, which has ended, kept from readers."""
        held = self._held_back
        assert held is None or held[0].ended, "readers are woken before they can see anything"
        self._held_back = None
        self.wake_followers()
        self.note_for_chain()

    def publish(self, state: PartitionState, segments: tuple[Segment, ...] | None = None) -> None:
        """Let readers see *state*, which is committed, and the *segments* it names; None if they stay."""
        with self.view_lock:
            view = self.view
            segments = view.segments if segments is None else segments
            self.set_view(view._replace(state=state, segments=segments))

    def switch_to(self, active: ActiveSegment, state: PartitionState, sealed: tuple[Segment, ...]) -> None:
        """Append to *active* from now on, and show all of it. It and all segments before it must be durable.

        With ``lock`` and ``syncs`` held.
        """
        assert active.base == state.active_base, "the new active segment is not the one of the state"
        assert len(sealed) == len(state.sealed), "other sealed segments than the state names"
        self.active = active
        self.end = end = end_of(active)
        self.set_view(
            self.view._replace(
                state=state,
                segments=(*sealed, active),
                position=end.position,
                high_watermark=end.next_offset,
                open_from=self.known_producers.open.open_from,
            )
        )
        self.syncs.synced_offset = end.next_offset
        self.wake_followers()
        # Segments that were adopted or written at once come into view here, without an append.
        self.note_for_chain()
        try:
            self.move_mark(end, sync=True)
        except OSError as error:
            raise self.failed(f"the mark could not be moved: {error}") from error

    @abstractmethod
    def note_for_chain(self) -> None:
        """Record that the chain of this log, if it has one, is behind."""

    @abstractmethod
    def note_for_hashing(self) -> None:
        """Record that a segment of this log was sealed or rewritten, and has no SHA-256 yet."""

    def wake_followers(self) -> None:
        """Wake the threads that wait for records, and tell the watcher of the directory."""
        with self.grown:
            self.grown.notify_all()
        self.context.growth.tell(self.state.topic, self.state.partition)

    # --- syncing ----------------------------------------------------------------------------------

    def commit(self, offset: int | None = None) -> None:
        """Return once everything below *offset* (None: everything appended) is durable.

        Concurrent callers share one sync.

        Raises:
            LogFailed: If the sync failed. The records it was to cover may or may not be on the device.
        """
        self.check()
        target = self.end.next_offset if offset is None else offset
        self.syncs.wait(target, self._sync, lambda: self.end.next_offset)

    def commit_quietly(self) -> None:
        """Commit everything that is not durable yet. A failure is kept for the next caller, not raised."""
        if not self._closed and self.syncs.synced_offset < self.end.next_offset:
            with contextlib.suppress(LogFailed, LogClosed):
                self.commit()

    def sync_now(self) -> None:
        """Make everything written durable and visible. With ``lock`` and ``syncs`` held."""
        try:
            self.active.sync()
            self.move_mark(self.end)
        except OSError as error:
            raise self.passing_or_failed(error, "sync") from error
        self.show(self.end)
        self.syncs.synced_offset = self.end.next_offset

    def _sync(self) -> int:
        """Sync everything written, then move the mark. With ``syncs`` held."""
        end, clock = self.end, self.context.clock
        before = self.syncs.synced_offset
        started = clock.monotonic_ns()
        try:
            end.segment.sync()
            self.move_mark(end)
        except OSError as error:
            raise self.passing_or_failed(error, "sync") from error
        self.show(end)
        self.known_producers.save_synced(end.next_offset)
        telemetry = self.context.telemetry
        telemetry.observe(SYNC_SECONDS, (clock.monotonic_ns() - started) / 1e9)
        telemetry.observe(GROUP_COMMIT_RECORDS, end.next_offset - before)
        return end.next_offset

    @property
    def waits_for_remote(self) -> bool:
        """Whether a commit waits for more than the disk, so that many are better begun together."""
        remote = self.context.remote
        return remote is not None and remote.waits_in(self.directory)

    def begin_sync(self) -> Callable[[], None]:
        """Sync everything written, on the disk alone; return what shows it once it is safe elsewhere too.

        Raises:
            LogClosed, LogFailed: As `commit` does.
        """
        self.check()
        remote = self.context.remote
        exempt = contextlib.nullcontext() if remote is None else remote.exempt()
        with self.syncs.exclusively(), exempt:
            self.check()
            end = self.end
            try:
                end.segment.sync()
                self.move_mark(end)
            except OSError as error:
                raise self.passing_or_failed(error, "sync") from error
        return partial(self._finish_sync, end)

    def _finish_sync(self, end: ActiveEnd) -> None:
        """Show everything before *end*, which is safe by now."""
        with self.syncs.exclusively():
            # What was rolled meanwhile waited by itself.
            if not self._closed and end.segment is self.active:
                self.show(end)
                self.known_producers.save_synced(end.next_offset)
                self.syncs.synced_offset = max(self.syncs.synced_offset, end.next_offset)

    def move_mark(self, end: ActiveEnd, *, sync: bool = False) -> None:
        """Write in the mark that everything up to *end* is synced, which it must be."""
        state, stable_offset = self.view.state, end.next_offset
        if state.transactional:
            stable_offset = self.known_producers.open.stable_below(stable_offset)
        self.keeper.move(state, end, stable_offset, self.context.clock.monotonic_ns(), sync=sync)

    # --- failing ----------------------------------------------------------------------------------

    def check(self) -> None:
        """Refuse a log that is closed or failed, and a forked child.

        Raises:
            LogClosed, LogFailed: If it is one.
        """
        if self._closed:
            raise LogClosed(f"{self.directory} is closed")
        if self._failure is not None:
            raise self._failure
        self.context.check_alive()

    def check_change(self) -> None:
        """Make sure that the log may be changed: raises as `check` does, or if the directory refuses."""
        self.check()
        try:
            self.context.before_change()
        except OSError as error:
            raise as_storage_error(error, "preparing a change") from error

    def full_or_failed(self, error: OSError, doing: str) -> StorageError:
        """Return DiskFull if there was no space, so nothing was committed; else as `passing_or_failed`."""
        if error.errno in DISK_FULL:
            return DiskFull(f"{self.directory}: no space left while {doing}")
        return self.passing_or_failed(error, doing)

    def passing_or_failed(self, error: OSError, doing: str) -> StorageError:
        """Return ResourcesExhausted if a file could not be opened, so nothing was done; else fail the log."""
        if error.errno in PASSING:
            return as_storage_error(error, doing)
        return self.failed(f"{doing} failed: {error}")

    def fail(self, reason: str) -> None:
        """Refuse appends and changes from now on, until the log is opened again."""
        self.failed(reason)

    def failed(self, reason: str) -> LogFailed:
        """Refuse appends and changes from now on, and return the error for it."""
        error = LogFailed(f"{self.directory}: {reason}")
        self._failure = error
        self.syncs.fail(error)
        self.wake_followers()
        self.context.failed(error)
        return error
