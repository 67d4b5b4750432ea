"""The core of a partition log for appends, reads and changes: its end, published view and syncs."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from threading import Condition, Lock, RLock

from cordwood.config import TopicConfig
from cordwood.disk import DISK_FULL, PASSING, MarkFile, Reserve, as_storage_error
from cordwood.errors import DiskFull, LogClosed, LogFailed, StorageError
from cordwood.formats import Format
from cordwood.index import NO_TIMESTAMP
from cordwood.storage.log.active_segment import ActiveSegment, LogContext
from cordwood.storage.log.append_meter import AppendMeter
from cordwood.storage.log.group_commit import GroupCommit
from cordwood.storage.log.mark_writer import ActiveEnd, MarkKeeper
from cordwood.storage.log.producer_saving import ProducerKeeper
from cordwood.storage.log.reading import LogReader, View
from cordwood.storage.log.segment import Segment
from cordwood.storage.log.state import Epoch, PartitionState
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
        #: The current view of readers.
        self.view = View(
            state, (*sealed, active), active.store.end, active.next_offset, config.stored_bytes_max
        )
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
        self.config = config
        self._durable = config.sync.durable
        self._log_append_time = config.message_timestamp_type == "LogAppendTime"
        self._keyed = "compact" in config.cleanup_policy

    # --- where the log stands ---------------------------------------------------------------------

    @property
    def state(self) -> PartitionState:
        """The content of `partition.json`."""
        return self.view.state

    @property
    def leader_epoch(self) -> int:
        """The leader epoch that records are appended under."""
        return self.view.state.leader_epoch

    @property
    def epochs(self) -> tuple[Epoch, ...]:
        """The leader epochs of the log, oldest first."""
        return self.view.state.epochs

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
        return self.view.high_watermark

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
        return sum(segment.info.size for segment in self.view.segments[:-1]) + self.end.position

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

    def show(self, end: ActiveEnd) -> None:
        """Let readers see everything before *end*. The high watermark never moves back."""
        with self.view_lock:
            view = self.view
            if end.next_offset > view.high_watermark:
                assert end.segment is view.segments[-1], "the end of a segment that is not the active one"
                self.view = View(
                    view.state, view.segments, end.position, end.next_offset, view.frame_size_max
                )
                if self.followers:
                    self.grown.notify_all()
                self.note_for_chain()

    def publish(self, state: PartitionState, segments: tuple[Segment, ...] | None = None) -> None:
        """Let readers see *state*, which is committed, and the *segments* it names; None if they stay."""
        with self.view_lock:
            view = self.view
            self.view = view._replace(state=state, segments=view.segments if segments is None else segments)

    def switch_to(self, active: ActiveSegment, state: PartitionState, sealed: tuple[Segment, ...]) -> None:
        """Append to *active* from now on, and show all of it. It and all segments before it must be durable.

        With ``lock`` and ``syncs`` held.
        """
        assert active.base == state.active_base, "the new active segment is not the one of the state"
        assert len(sealed) == len(state.sealed), "other sealed segments than the state names"
        self.active = active
        self.end = end = end_of(active)
        self.view = self.view._replace(
            state=state,
            segments=(*sealed, active),
            position=end.position,
            high_watermark=end.next_offset,
        )
        self.syncs.synced_offset = end.next_offset
        self.wake_followers()
        try:
            self.move_mark(end, sync=True)
        except OSError as error:
            raise self.failed(f"the mark could not be moved: {error}") from error

    @abstractmethod
    def note_for_chain(self) -> None:
        """Record that the chain of this log, if it has one, is behind."""

    def wake_followers(self) -> None:
        """Wake the threads that wait for records."""
        with self.grown:
            self.grown.notify_all()

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

    def move_mark(self, end: ActiveEnd, *, sync: bool = False) -> None:
        """Write in the mark that everything up to *end* is synced, which it must be."""
        self.keeper.move(self.state, end, self.context.clock.monotonic_ns(), sync=sync)

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
