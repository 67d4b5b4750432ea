"""Reading beside a live writer: no lock, no byte changed, never past the mark.

Everything is found again through `partition.json` and the mark, which the writer replaces whole. A file
that goes away underneath, or an end that moved back, is looked up once more; then it is one clear error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from threading import Event, Lock
from typing import TypeVar

from cordwood.config import BrokerConfig, TopicConfig, topic_config
from cordwood.errors import CorruptRange, DirectoryRefused, LogClosed, MetadataDamaged, UnknownTopic
from cordwood.formats.registry import EVERY_FORMAT
from cordwood.storage import identity
from cordwood.storage.catalogue import (
    SHARED_TOPIC,
    Contents,
    TopicEntry,
    catalogue_state,
    is_shared,
    read_catalogue,
)
from cordwood.storage.data_directory import partition_directory
from cordwood.storage.files import Files
from cordwood.storage.maintenance import Planned, plan_partition
from cordwood.storage.mark import Mark, read_published
from cordwood.storage.open_files import OpenFiles
from cordwood.storage.partition_state import (
    Bound,
    SealedInfo,
    active_info,
    mark_path,
    new_state,
    read_state,
    state_path,
)
from cordwood.storage.read_only_shared import ReadOnlyShared, ReadOnlyVirtual
from cordwood.storage.reading import Bounds, index_frames
from cordwood.storage.recovery import check_belongs, newest_mark, partition_exists, synced_bound
from cordwood.storage.segment import SealedSegment, Segment, load_vouched, segment_path
from cordwood.storage.swapping import SWAP_SUFFIX, swap_path
from cordwood.storage.truncation import CUT_SUFFIX
from cordwood.storage.view import Fetched, Published, View

Result = TypeVar("Result")
#: How often what changes underneath is looked at again before that counts as damage.
_SETTLING_TRIES = 64
_WHOLE_FILE = 1 << 62
#: How often a follower looks at the mark of another process.
FOLLOW_SECONDS = 0.02


class FollowedSegment(Segment):
    """The active segment as a reader beside its writer sees it: each mark lets it see further."""

    _walked: tuple[int, int] | None = None

    @property
    def log_path(self) -> str:
        """Where the segment's log is, or will be."""
        return segment_path(self.directory, self.base, "log")

    def begin(self, mark: Mark | None) -> None:
        """Take the index entries that the mark vouches for, once, so that little is left to walk."""
        if self._walked is not None or mark is None or mark.base != self.base:
            return
        indexes = load_vouched(self, mark)
        if indexes is not None:
            self.use_indexes(*indexes)
            # Of a dense index every entry is there; how far the times reach, they say themselves.
            known = indexes[0].last() if self.has_sparse_index else None
            self._walked = known or indexes[0].floor_entry(indexes[1].last_offset())

    def catch_up(self, bounds: Bounds) -> None:
        """Extend the indexes over what was published since the last call.

        Damage on the way is not reported here: reading what is damaged does that.
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
    """One partition as its writer has published it. Any number of threads."""

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
    ) -> None:
        self._verify = verify
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
    def topic_id(self) -> str:
        """The id of the topic; one made later under the same name has another."""
        return self._entry.id

    def plan_upkeep(self, config: TopicConfig, now_ms: int, *, force: bool = False) -> Planned:
        """Return what a pass of upkeep would do now; see `maintenance.plan_partition`."""
        files, view = self._open_files.files, self.view()
        return plan_partition(files, self._directory, view, config, now_ms, force=force)

    def published(self) -> Published:
        """Return where the partition stands, all of one moment."""
        view = self.view()
        state = view.state
        epochs = tuple((epoch.start_offset, epoch.epoch) for epoch in state.epochs)
        return Published(state.log_start_offset, view.high_watermark, epochs)

    def cuts(self, start: int, end: int, bytes_max: int) -> list[int]:
        """Return where [start, end) can be cut into pieces of at most about *bytes_max*; see `View.cuts`."""
        if self.view().bytes_within(start, end) <= bytes_max:
            return []
        return self.looked_up(lambda view: view.cuts(start, end, bytes_max))

    def read(self, offset: int, max_bytes: int, stop: int | None = None) -> Fetched:
        """Return whole frames from the one that holds *offset* on; see `View.read`."""
        return self.looked_up(lambda view: view.read(offset, max_bytes, view.high_watermark, stop))

    def offset_at(self, timestamp: int) -> tuple[int, int] | None:
        """Return (offset, timestamp) of the first record at or after *timestamp*, exactly."""
        return self.looked_up(lambda view: view.offset_at(timestamp))

    def wait_beyond(self, offset: int) -> int:
        """Wait until there is a record at or after *offset* to read, and return the high watermark.

        Looks at the mark now and then: it belongs to another process, which tells nobody.

        Raises:
            LogClosed: If the directory is closed meanwhile.
        """
        while (high_watermark := self.high_watermark) <= offset:
            if self._closed.wait(FOLLOW_SECONDS):
                raise LogClosed(f"{self._directory} is closed")
        return high_watermark

    def size(self) -> int:
        """Return the bytes of all segments, as far as they are published."""
        view = self.view()
        return sum(segment.info.size for segment in view.segments[:-1]) + view.position

    def looked_up(self, call: Callable[[View], Result]) -> Result:
        """Return what *call* makes of what is published; again where that changed under it.

        A segment may be removed, cut or given its new file since the view was taken, which then looks like
        damage. And a file that was opened before its writer was killed may have been replaced: so what still
        looks damaged is looked at once more through files that are opened anew.
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

        Their offsets have gaps, so frames of a new file, met where the index of the old one leads, may pass
        for those that were looked for. In a segment without gaps they cannot.
        """
        if not any(info.generation for info in view.state.sealed):
            return False
        now = {
            info.base: info.generation for info in read_state(self._open_files.files, self._directory).sealed
        }
        return any(info.generation and now.get(info.base) != info.generation for info in view.state.sealed)

    def _indexed(self, view: View) -> View:
        """Return *view* once the index of its last segment reaches to its end, which moves with the mark."""
        last = view.segments[-1]
        assert isinstance(last, FollowedSegment)
        with self._guard:
            last.catch_up(view.bounds(len(view.segments) - 1))
        return view

    def view(self) -> View:
        """Return what is published now, or nothing yet where the writer has not made the partition."""
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
            # The writer may have committed a change between the two reads, or be writing a slot just
            # now; then look again.
            if read_state(files, self._directory) == state and not torn:
                break
        if torn and self._furthest[0] != state.leader_epoch:
            # The other slot may be behind, and reading less than there is would go unnoticed.
            raise MetadataDamaged(mark_path(self._directory), "has a slot that is neither empty nor valid")
        check_belongs(self._directory, state, self._entry, self._partition, first)
        if state.record_format != self._format.name:
            raise MetadataDamaged(state_path(self._directory), f"is of format {state.record_format}")
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
            # A truncation that is committed may not have put its new file in place yet.
            prepared = segment_path(self._directory, active.base, CUT_SUFFIX)
            last.path = prepared if cut and files.exists(prepared) else last.log_path
            segments = (*sealed, last)
            self._known = {key: segment for key, segment in self._known.items() if segment in segments}
        return View(state, segments, bound.position, bound.next_offset, self._frame_size_max)

    def _swapped_path(self, segment: Segment, swapping: int | None, suffix: str) -> str:
        """Return where a file of a segment is that may be waiting for its name."""
        prepared = swap_path(self._directory, segment.base, suffix)
        if segment.base == swapping and self._open_files.files.exists(prepared):
            return prepared
        return segment_path(self._directory, segment.base, suffix)

    def _never_back(self, epoch: int, bound: Bound) -> Bound:
        """Return *bound*, or the one from before if it was further: a mark may be read half written."""
        with self._guard:
            known_epoch, known = self._furthest
            if known_epoch == epoch and (known.base, known.position) > (bound.base, bound.position):
                return known if known.base == bound.base else bound
            self._furthest = (epoch, bound)
            return bound

    def _segment(self, kind: type[Segment], info: SealedInfo, epoch: int) -> Segment:
        """Return the segment, the same object for as long as its file is the same."""
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


#: A partition to read, whether it has files of its own or not.
AnyReadOnly = ReadOnlyPartition | ReadOnlyVirtual


class ReadOnlyDirectory:
    """A data directory opened to read, beside whoever writes it. Any number of threads."""

    def __init__(
        self, files: Files, path: str, config: BrokerConfig, *, mapped: bool = True, verify: bool = True
    ) -> None:
        """Read who writes here and which topics there are.

        Without *mapped* sealed segments are read in windows, for processes whose address space is limited;
        without *verify* checksums are not compared.

        Raises:
            DirectoryRefused: If *path* is no data directory.
            MetadataDamaged: If its metadata cannot be read.
        """
        if identity.is_first_boot(files, path):
            raise DirectoryRefused(f"{path} is not a data directory")
        self.path = path
        self.identity = identity.read_identity(files, path)
        self._files = files
        self._config = config
        self._open_files = OpenFiles(files, mapped=mapped, indexes_max=config.index_cache_segments)
        self._verify = verify
        self._partitions: dict[tuple[str, int], AnyReadOnly] = {}
        self._shared: ReadOnlyShared | None = None
        self._known_topics: tuple[object, Mapping[str, TopicEntry]] | None = None
        self._closed = Event()

    @property
    def topics(self) -> Mapping[str, TopicEntry]:
        """The topics there are now, by name."""
        self._check()
        # There may be very many, and who asks for one after the other must not read them all each time.
        # Nothing is ever added without a change of size, and what a crash took was never marked.
        state = catalogue_state(self._files, self.path)
        known = self._known_topics
        if known is None or known[0] != state:
            contents = Contents(read_catalogue(self._files, self.path)[0].entries)
            known = self._known_topics = state, contents.topics
        return known[1]

    def config_of(self, overrides: Mapping[str, str]) -> TopicConfig:
        """Return the settings of a topic that sets *overrides* itself."""
        return topic_config(overrides, self._config)

    def readable(self, topic: str, partition: int, entry: TopicEntry | None = None) -> AnyReadOnly:
        """Return a partition to read: the one of *entry*, if the caller just looked the topic up.

        Raises:
            UnknownTopic: If there is no such topic or partition.
        """
        self._check()
        found = self._partitions.get((topic, partition))
        if found is None or (entry is not None and found.topic_id != entry.id):
            entry = entry or self.topics.get(topic)
            if entry is None or not 0 <= partition < entry.partitions:
                raise UnknownTopic(f"there is no partition {partition} of a topic {topic}")
            if is_shared(entry):
                virtual = ReadOnlyVirtual(self.shared(), entry, partition, self.config_of(entry.config))
                self._partitions[topic, partition] = virtual
                return virtual
            directory = partition_directory(self.path, topic, partition)
            size_max = topic_config(entry.config, self._config).stored_bytes_max
            found = ReadOnlyPartition(
                self._open_files, directory, entry, partition, size_max, self._closed, verify=self._verify
            )
            self._partitions[topic, partition] = found
        return found

    def shared(self) -> ReadOnlyShared:
        """Return the shared log.

        Raises:
            UnknownTopic: If no topic was ever kept in it.
        """
        if self._shared is None:
            log = self.readable(SHARED_TOPIC, 0)
            assert isinstance(log, ReadOnlyPartition)
            self._shared = ReadOnlyShared(self._files, log)
        return self._shared

    def close(self) -> None:
        """Let go. Idempotent."""
        self._closed.set()

    def _check(self) -> None:
        if self._closed.is_set():
            raise LogClosed(f"{self.path} is closed")
