"""Reading beside a live writer: no lock, no byte changed, never past the mark.

Everything is found again through `partition.json` and the mark, which the writer replaces whole. A file
that goes away underneath, or an end that moved back, is looked up once more; then it is one clear error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from threading import Lock
from typing import TypeVar

from cordwood.config import BrokerConfig, TopicConfig, topic_config
from cordwood.errors import CorruptRange, DirectoryRefused, LogClosed, UnknownTopic
from cordwood.index.sparse import SparseIndex
from cordwood.index.time import TimeIndex
from cordwood.storage import identity
from cordwood.storage.catalogue import TopicEntry, read_catalogue, topics_of
from cordwood.storage.data_directory import FORMATS, partition_directory
from cordwood.storage.files import Files
from cordwood.storage.mark import Mark, read_marks
from cordwood.storage.partition_state import (
    SealedInfo,
    mark_path,
    new_state,
    read_state,
    state_path,
)
from cordwood.storage.reading import Bounds, walk_frames
from cordwood.storage.recovery import newest_mark, synced_bound
from cordwood.storage.segment import OpenFiles, SealedSegment, Segment, load_vouched
from cordwood.storage.view import Fetched, View

Result = TypeVar("Result")
_SETTLING_TRIES = 8


class FollowedSegment(Segment):
    """The active segment as a reader beside its writer sees it: each mark lets it see further."""

    _walked: tuple[int, int] | None = None

    def begin(self, mark: Mark | None) -> None:
        """Take the index entries that the mark vouches for, once, so that little is left to walk."""
        if self._walked is not None or mark is None or mark.base != self.base:
            return
        indexes = load_vouched(self.open_files.files, self.directory, mark, self.info.index_interval_bytes)
        if indexes is not None:
            self.use_indexes(*indexes)
            self._walked = indexes[0].last()

    def catch_up(self, bounds: Bounds) -> None:
        """Extend the indexes over what was published since the last call.

        Damage on the way is not reported here: reading what is damaged does that.
        """
        if self._walked is None:
            self.use_indexes(SparseIndex(self.info.index_interval_bytes), TimeIndex())
            self._walked = (self.base, 0)
        indexes = self.indexes()
        assert indexes is not None
        if self._walked[1] < bounds.end:
            walk_frames(self, bounds, *indexes, self._walked)
            self._walked = (bounds.next_offset, bounds.end)


class ReadOnlyPartition:
    """One partition as its writer has published it. Any number of threads."""

    def __init__(self, open_files: OpenFiles, directory: str, entry: TopicEntry, frame_size_max: int) -> None:
        self._open_files = open_files
        self._directory = directory
        self._entry = entry
        self._format = FORMATS[topic_config(entry.config).format]
        self._frame_size_max = frame_size_max
        self._guard = Lock()
        self._known: dict[tuple[type[Segment], int, int], Segment] = {}

    @property
    def log_start_offset(self) -> int:
        """The first offset that can be read."""
        return self._view().state.log_start_offset

    @property
    def high_watermark(self) -> int:
        """The first offset after what the writer has published as synced."""
        return self._view().high_watermark

    log_end_offset = high_watermark

    def read(self, offset: int, max_bytes: int) -> Fetched:
        """Return whole frames from the one that holds *offset* on; see `View.read`."""
        return self._looked_up(lambda view: view.read(offset, max_bytes, view.high_watermark))

    def offset_at(self, timestamp: int) -> tuple[int, int] | None:
        """Return (offset, timestamp) of the first record at or after *timestamp*, exactly."""
        return self._looked_up(lambda view: view.offset_at(timestamp))

    def size(self) -> int:
        """Return the bytes of all segments, as far as they are published."""
        view = self._view()
        return sum(segment.info.size for segment in view.segments[:-1]) + view.position

    def _looked_up(self, call: Callable[[View], Result]) -> Result:
        view = self._view()
        try:
            return call(self._indexed(view))
        except CorruptRange:
            # The segment may have been removed or cut since the view was taken.
            now = self._view()
            if now.state == view.state and now.position == view.position:
                raise
            return call(self._indexed(now))

    def _indexed(self, view: View) -> View:
        """Return *view* once the index of its last segment reaches to its end, which moves with the mark."""
        last = view.segments[-1]
        assert isinstance(last, FollowedSegment)
        with self._guard:
            last.catch_up(view.bounds(len(view.segments) - 1))
        return view

    def _view(self) -> View:
        """Return what is published now, or nothing yet where the writer has not made the partition."""
        files = self._open_files.files
        for _ in range(_SETTLING_TRIES):
            if not files.exists(state_path(self._directory)):
                return self._nothing_yet()
            state = read_state(files, self._directory)
            marks = read_marks(files, mark_path(self._directory))
            # The writer may have committed a change between the two reads; then look again.
            if read_state(files, self._directory) == state:
                break
        mark = newest_mark(state, marks, self._directory)
        bound = synced_bound(state, mark)
        active = SealedInfo(
            bound.base,
            bound.position,
            bound.next_offset,
            index_interval_bytes=state.index_interval_bytes,
        )
        with self._guard:
            epoch = state.leader_epoch
            sealed = [self._segment(SealedSegment, info, epoch) for info in state.sealed]
            last = self._segment(FollowedSegment, active, epoch)
            assert isinstance(last, FollowedSegment)
            last.begin(mark)
            segments = (*sealed, last)
            self._known = {key: segment for key, segment in self._known.items() if segment in segments}
        return View(state, segments, bound.position, bound.next_offset, self._frame_size_max)

    def _segment(self, kind: type[Segment], info: SealedInfo, epoch: int) -> Segment:
        """Return the segment, the same object for as long as its file is the same."""
        key = (kind, info.base, epoch)
        segment = self._known.get(key)
        if segment is None:
            segment = self._known[key] = kind(self._open_files, self._directory, info, self._format)
            self._open_files.forget(segment.path)
        segment.info = info
        return segment

    def _nothing_yet(self) -> View:
        entry = self._entry
        state = new_state(entry.name, entry.id, 0, initial_offset=0, index_interval_bytes=4096)
        nothing = FollowedSegment(self._open_files, self._directory, SealedInfo(0, 0, 0), self._format)
        return View(state, (nothing,), 0, 0, self._frame_size_max)


class ReadOnlyDirectory:
    """A data directory opened to read, beside whoever writes it. Any number of threads."""

    def __init__(self, files: Files, path: str, config: BrokerConfig) -> None:
        """Read who writes here and which topics there are.

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
        self._open_files = OpenFiles(files, mapped=True)
        self._partitions: dict[tuple[str, int], ReadOnlyPartition] = {}
        self._closed = False

    @property
    def topics(self) -> Mapping[str, TopicEntry]:
        """The topics there are now, by name."""
        self._check()
        return topics_of(read_catalogue(self._files, self.path)[0].entries)

    def config_of(self, overrides: Mapping[str, str]) -> TopicConfig:
        """Return the settings of a topic that sets *overrides* itself."""
        return topic_config(overrides, self._config)

    def partition(self, topic: str, partition: int) -> ReadOnlyPartition:
        """Return a partition to read.

        Raises:
            UnknownTopic: If there is no such topic or partition.
        """
        self._check()
        found = self._partitions.get((topic, partition))
        if found is None:
            entry = self.topics.get(topic)
            if entry is None or not 0 <= partition < entry.partitions:
                raise UnknownTopic(f"there is no partition {partition} of a topic {topic}")
            directory = partition_directory(self.path, topic, partition)
            size_max = topic_config(entry.config, self._config).max_message_bytes
            found = ReadOnlyPartition(self._open_files, directory, entry, size_max)
            self._partitions[topic, partition] = found
        return found

    def close(self) -> None:
        """Let go. Idempotent."""
        self._closed = True

    def _check(self) -> None:
        if self._closed:
            raise LogClosed(f"{self.path} is closed")
