"""A partition with files of its own, read beside its writer: no lock, no byte changed, never past the mark.

`partition.json` and the mark, which the writer replaces whole, are read again for every call. If a file goes
away meanwhile, or an end moved back, the call is repeated; if that does not help, it is one clear error.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Event, Lock
from typing import TypeVar

import google_crc32c

from cordwood.config import TopicConfig, topic_config
from cordwood.disk import UNKNOWN_OFFSET, Mark, read_published
from cordwood.errors import CorruptRange, LogClosed, MetadataDamaged, UnknownTopic
from cordwood.formats import EVERY_FORMAT, Format
from cordwood.index import AbortedIndex
from cordwood.storage.log import (
    NONE_OPEN,
    AbortedEntry,
    Bound,
    Bounds,
    Epoch,
    Fetched,
    OpenFiles,
    Published,
    SealedInfo,
    SealedSegment,
    Segment,
    View,
    aborted_within,
    active_info,
    check_belongs,
    index_frames,
    load_vouched,
    mark_path,
    new_state,
    newest_mark,
    partition_exists,
    read_committed,
    read_state,
    replay_transactions,
    segment_path,
    state_path,
    synced_bound,
)
from cordwood.storage.log.changes import CUT_SUFFIX, SWAP_SUFFIX, swap_path
from cordwood.storage.maintenance import Planned, plan_partition
from cordwood.storage.meta import TopicEntry

Result = TypeVar("Result")
#: How often a call is repeated while files change underneath, before that counts as damage.
_SETTLING_TRIES = 64
_WHOLE_FILE = 1 << 62
#: How often a follower looks at the mark of another process.
FOLLOW_SECONDS = 0.02


class FollowedSegment(Segment):
    """The active segment as seen by a reader beside its writer, up to the last mark."""

    _walked: tuple[int, int] | None = None
    _vouched: tuple[int, tuple[int, int] | None] = (0, (0, 0))

    def __init__(self, open_files: OpenFiles, directory: str, info: SealedInfo, format_: Format) -> None:
        super().__init__(open_files, directory, info, format_)
        self._reading_aborted = Lock()
        # What was read of the file of aborted transactions: how many entries, and their checksum.
        self._aborted_read = (0, 0, AbortedIndex())

    @property
    def log_path(self) -> str:
        """The path of the segment's store, which may not exist yet."""
        return segment_path(self.directory, self.base, "log")

    def begin(self, mark: Mark | None) -> None:
        """Load the saved index entries that the mark covers, once, so that few frames are left to walk."""
        if self._walked is not None or mark is None or mark.base != self.base:
            return
        indexes = load_vouched(self, mark)
        if indexes is not None:
            self.use_indexes(*indexes)
            # A dense index has every entry; the time index itself says how far it reaches.
            known = indexes[0].last() if self.has_sparse_index else None
            self._walked = known or indexes[0].floor_entry(indexes[1].last_offset())

    def vouch(self, mark: Mark | None, bound: Bound) -> None:
        """Take the aborted transactions that the mark says for those below *bound*, the end for readers."""
        entries: tuple[int, int] | None = None
        if not bound.position:
            entries = (0, 0)
        elif mark is not None and (mark.base, mark.position) == (bound.base, bound.position):
            known = mark.last_stable_offset != UNKNOWN_OFFSET
            entries = (mark.aborted_entries, mark.aborted_crc) if known else None
        if self._vouched != (bound.position, entries):
            self._vouched = (bound.position, entries)
            self._aborted = None

    def aborted_index(self) -> AbortedIndex | None:
        """Return the index of aborted transactions; None if the mark does not say it, or the file differs."""
        if self._aborted is None and self._vouched[1] is not None:
            self._aborted = self.read_aborted(*self._vouched[1])
        return self._aborted

    def read_aborted(self, count: int, crc: int) -> AbortedIndex | None:
        """Return the first *count* entries of the file, None if they do not have the checksum *crc*.

        The file grows with the log, so only what came since the last call is read. An index that was returned
        before grows with it: its lookups are by offset.
        """
        with self._reading_aborted:
            known, known_crc, index = self._aborted_read
            if count > known:
                new = self.aborted_entries(known, count)
                if new and google_crc32c.extend(known_crc, new) == crc:
                    index.extend(new)
                    self._aborted_read = (count, crc, index)
                    return index
            elif (count, crc) == (known, known_crc):
                return index
            # The log was truncated, or the file was replaced.
            found = super().read_aborted(count, crc)
            if found is not None:
                self._aborted_read = (count, crc, found)
            return found

    def catch_up(self, bounds: Bounds) -> None:
        """Extend the indexes over the frames that were published since the last call.

        Damage is not reported here: reading the damaged frames reports it.
        """
        if self._walked is None:
            self.use_indexes(*self.new_indexes())
            self._walked = (self.base, 0)
        indexes = self.indexes()
        assert indexes is not None
        if self._walked[1] < bounds.end:
            index_frames(self, bounds, *indexes, self._walked)
            self._walked = (bounds.next_offset, bounds.end)


class ReadOnlyPartition:
    """A partition with files of its own, as its writer has published it. Any number of threads."""

    def __init__(
        self,
        open_files: OpenFiles,
        directory: str,
        entry: TopicEntry,
        partition: int,
        frame_size_max: int,
        closed: Event,
        *,
        verify: bool = True,
        rechecks: bool = False,
    ) -> None:
        self._verify = verify
        self._rechecks = rechecks and verify
        self._partition = partition
        self._closed = closed
        self._open_files = open_files
        self._directory = directory
        self._entry = entry
        self._format = EVERY_FORMAT[topic_config(entry.config).format].for_partition(partition)
        self._frame_size_max = frame_size_max
        self._guard = Lock()
        self._furthest = (-1, Bound(0, 0, 0))
        self._known: dict[tuple[type[Segment], int, int, int], Segment] = {}

    @property
    def log_start_offset(self) -> int:
        """The first offset that can be read."""
        return self.view().state.log_start_offset

    @property
    def high_watermark(self) -> int:
        """The first offset after what the writer has published as synced."""
        return self.view().high_watermark

    log_end_offset = high_watermark

    @property
    def last_stable_offset(self) -> int:
        """The first offset of an open transaction, or the high watermark if none is open below it."""
        return self.view().last_stable_offset

    @property
    def leader_epoch(self) -> int:
        """The leader epoch that the writer appends under."""
        return self.view().state.leader_epoch

    @property
    def epochs(self) -> tuple[Epoch, ...]:
        """The leader epochs of the log, oldest first."""
        return self.view().state.epochs

    @property
    def topic_id(self) -> str:
        """The id of the topic; one made later under the same name has another."""
        return self._entry.id

    def plan_maintenance(
        self, config: TopicConfig, now_ms: int, *, force: bool = False, needed_from: int | None = None
    ) -> Planned:
        """Return what a pass of maintenance would do now; see `maintenance.plan_partition`."""
        files, view = self._open_files.files, self.view()
        return plan_partition(
            files, self._directory, view, config, now_ms, force=force, needed_from=needed_from
        )

    def published(self) -> Published:
        """Return both ends and the leader epochs, all of one moment."""
        view = self.view()
        state = view.state
        epochs = tuple((epoch.start_offset, epoch.epoch) for epoch in state.epochs)
        return Published(state.log_start_offset, view.high_watermark, epochs, view.last_stable_offset)

    def segment_bases(self) -> tuple[int, ...]:
        """Return the first offset of each segment, the active one included, in order."""
        return tuple(segment.base for segment in self.view().segments)

    def bytes_within(self, start: int, end: int) -> int:
        """Return about how many bytes the offsets [start, end) take; see `View.bytes_within`."""
        return self.view().bytes_within(start, end)

    def cuts(self, start: int, end: int, bytes_max: int) -> list[int]:
        """Return where [start, end) can be cut into pieces of at most about *bytes_max*; see `View.cuts`."""
        if self.bytes_within(start, end) <= bytes_max:
            return []
        return self.with_view(lambda view: view.cuts(start, end, bytes_max))

    def read(
        self, offset: int, max_bytes: int, stop: int | None = None, *, committed: bool = False
    ) -> Fetched:
        """Return whole frames from the one that holds *offset* on; see `View.read` and `read_committed`."""
        read = read_committed if committed else View.read
        return self.with_view(lambda view: read(view, offset, max_bytes, view.high_watermark, stop))

    def aborted(self, start: int, stop: int) -> list[AbortedEntry]:
        """Return the aborted transactions that may have records in [start, stop); see `aborted_within`."""
        if not self.view().state.transactional:
            # Without the frames of the active segment, which are indexed first otherwise.
            return []
        return self.with_view(lambda view: aborted_within(view, start, stop))

    def offset_at(self, timestamp: int) -> tuple[int, int] | None:
        """Return (offset, timestamp) of the first record at or after *timestamp*, exactly."""
        return self.with_view(lambda view: view.offset_at(timestamp))

    def newest(self) -> tuple[int, int] | None:
        """Return (offset, timestamp) of the first record with the largest timestamp."""
        return self.with_view(lambda view: view.newest())

    def wait_beyond(self, offset: int, *, committed: bool = False) -> int:
        """Wait until there is a record at or after *offset* to read, and return the high watermark.

        With *committed* until the last stable offset is above *offset*, and return that.
        Polls the mark: its writer is another process, which sends no notification.

        Raises:
            LogClosed: If the directory is closed meanwhile.
        """
        while (end := self.last_stable_offset if committed else self.high_watermark) <= offset:
            if self._closed.wait(FOLLOW_SECONDS):
                raise LogClosed(f"{self._directory} is closed")
        return end

    def size(self) -> int:
        """Return the bytes of all segments, as far as they are published."""
        view = self.view()
        return sum(segment.info.size for segment in view.segments[:-1]) + view.position

    def with_view(self, call: Callable[[View], Result]) -> Result:
        """Return the result of *call* on a view of the published log; repeat it if files changed meanwhile.

        A segment that was removed, cut or replaced after the view was taken looks like damage. So does a
        file that was opened before its writer was killed and replaced since: if nothing else changed, every
        file is opened again for one last try.
        """
        view, fresh = self.view(), False
        for _ in range(_SETTLING_TRIES):
            path = view.segments[-1].path
            try:
                found = call(self._indexed(view))
                if not self._swapped_since(view):
                    return found
                view = self.view()
            except CorruptRange:
                now = self.view()
                same = now.state == view.state and now.position == view.position
                if same and now.segments[-1].path == path:
                    if fresh:
                        raise
                    fresh = True
                    with self._guard:
                        self._known.clear()
                    now = self.view()
                view = now
        return call(self._indexed(view))

    def _swapped_since(self, view: View) -> bool:
        """Return whether compacted segments were rewritten while they were read.

        Their offsets have gaps. A frame of the new file, at the position that the old index gives, may be
        mistaken for the frame that was searched. In a segment without gaps that is impossible.
        """
        if not any(info.generation for info in view.state.sealed):
            return False
        now = {
            info.base: info.generation for info in read_state(self._open_files.files, self._directory).sealed
        }
        return any(info.generation and now.get(info.base) != info.generation for info in view.state.sealed)

    def _indexed(self, view: View) -> View:
        """Return *view* after extending the index of its last segment to the end of the view."""
        last = view.segments[-1]
        assert isinstance(last, FollowedSegment)
        with self._guard:
            last.catch_up(view.bounds(len(view.segments) - 1))
        return view

    def view(self) -> View:
        """Return the published log as it is now: empty while the writer has not created the partition."""
        if self._closed.is_set():
            raise LogClosed(f"{self._directory} is closed")
        files = self._open_files.files
        first = topic_config(self._entry.config).initial_offset
        for _ in range(_SETTLING_TRIES):
            if not partition_exists(files, self._directory, first):
                if self._furthest[0] >= 0:
                    raise UnknownTopic(f"topic {self._entry.name} was deleted")
                return self._nothing_yet(first)
            state = read_state(files, self._directory)
            marks, torn = read_published(files, mark_path(self._directory))
            # The writer may have committed a change between the two reads, or be writing a slot now.
            if read_state(files, self._directory) == state and not torn:
                break
        if torn and self._furthest[0] != state.leader_epoch:
            # The other slot may be older, and the missing records would go unnoticed.
            raise MetadataDamaged(mark_path(self._directory), "has a slot that is neither empty nor valid")
        check_belongs(self._directory, state, self._entry, self._partition, first)
        if state.record_format != self._format.name:
            raise MetadataDamaged(state_path(self._directory), f"is of format {state.record_format}")
        self._format = self._format.for_partition(self._partition, state.tenant)
        mark = newest_mark(state, marks, self._directory)
        bound = self._never_back(state.leader_epoch, synced_bound(state, mark))
        active = active_info(state, bound)
        with self._guard:
            epoch = state.leader_epoch
            cut = state.truncating is not None and state.truncating.copied
            sealed = [self._segment(SealedSegment, info, epoch) for info in state.sealed]
            for segment in sealed:
                if segment.base == state.swapping or segment.path.endswith(SWAP_SUFFIX):
                    # A swap that is committed may not have given its new files their names yet.
                    segment.path = self._swapped_path(segment, state.swapping, "log")
                    if segment.format.sidecar is not None:
                        suffix = segment.format.sidecar.suffix
                        segment.sidecar_at = self._swapped_path(segment, state.swapping, suffix)
            last = self._segment(FollowedSegment, active, epoch)
            assert isinstance(last, FollowedSegment)
            last.begin(mark)
            last.vouch(mark, bound)
            # A truncation that is committed may not have put its new file in place yet.
            prepared = segment_path(self._directory, active.base, CUT_SUFFIX)
            last.path = prepared if cut and files.exists(prepared) else last.log_path
            segments = (*sealed, last)
            self._known = {key: segment for key, segment in self._known.items() if segment in segments}
        end, size_max = (bound.position, bound.next_offset), self._frame_size_max
        view = View(state, segments, *end, size_max, self._rechecks)
        return view._replace(open_from=self._open_from(view, mark)) if state.transactional else view

    def _open_from(self, view: View, mark: Mark | None) -> int:
        """Return the first offset of an open transaction, as *mark* says it or, if need be, the log."""
        if not self._format.holds.stamps:
            # The transactions in the shared log are those of its topics.
            return NONE_OPEN
        if mark is None or mark.last_stable_offset == UNKNOWN_OFFSET:
            indexed = self._indexed(view)
            return replay_transactions(indexed, view.state.log_start_offset, view.high_watermark).open_from
        if mark.last_stable_offset == mark.next_offset == view.high_watermark:
            return NONE_OPEN
        # The end of the log may be known from an earlier mark that reached further.
        return mark.last_stable_offset

    def _swapped_path(self, segment: Segment, swapping: int | None, suffix: str) -> str:
        """Return the path of a file of a segment, which a swap may not have renamed yet."""
        prepared = swap_path(self._directory, segment.base, suffix)
        if segment.base == swapping and self._open_files.files.exists(prepared):
            return prepared
        return segment_path(self._directory, segment.base, suffix)

    def _never_back(self, epoch: int, bound: Bound) -> Bound:
        """Return the further of *bound* and the last one: a mark may be read while it is written."""
        with self._guard:
            known_epoch, known = self._furthest
            if known_epoch == epoch and (known.base, known.position) > (bound.base, bound.position):
                return known if known.base == bound.base else bound
            self._furthest = (epoch, bound)
            return bound

    def _segment(self, kind: type[Segment], info: SealedInfo, epoch: int) -> Segment:
        """Return the segment: the same object while its file is the same."""
        key = (kind, info.base, epoch, info.generation)
        segment = self._known.get(key)
        if segment is None:
            segment = self._known[key] = kind(self._open_files, self._directory, info, self._format)
            if not self._verify:
                segment.checked.add(0, _WHOLE_FILE)
        segment.info = info
        return segment

    def _nothing_yet(self, first: int) -> View:
        entry = self._entry
        state = new_state(entry.name, entry.id, 0, initial_offset=first, index_interval_bytes=4096)
        info = SealedInfo(first, 0, first)
        nothing = FollowedSegment(self._open_files, self._directory, info, self._format)
        return View(state, (nothing,), 0, first, self._frame_size_max)
