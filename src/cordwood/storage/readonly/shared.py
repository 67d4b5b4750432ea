"""Reading topics in the shared log beside its writer; see `partition`.

The owner of a frame comes from the dense index as far as that reaches, and from the log after that. Known
owners stay valid: the shared log only grows, and only frames that cannot be read any more are removed.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import TypeVar

from pyroaring import BitMap64

from cordwood.config import TopicConfig
from cordwood.errors import CorruptRange, UnknownTopic
from cordwood.formats.shared import Envelope, OwnerEntry, unpack_entry
from cordwood.storage.log import (
    AbortedEntry,
    Epoch,
    Fetched,
    Published,
    SealedSegment,
    Segment,
    View,
)
from cordwood.storage.maintenance import Planned
from cordwood.storage.meta import TopicEntry
from cordwood.storage.readonly.partition import ReadOnlyPartition
from cordwood.storage.shared import (
    FollowedOwners,
    Offsets,
    SealedOwners,
    VirtualPartition,
    VirtualReader,
    VirtualTopics,
    Walked,
    index_path,
    lapsed_frames,
    missing_entries,
    owner_of,
    saved_entries,
)

Result = TypeVar("Result")
_NOTHING_WALKED = Walked(-1, 0, 0, 0, 0)


class ReadOnlyShared:
    """The shared log as its writer has published it. Any number of threads."""

    def __init__(self, log: ReadOnlyPartition) -> None:
        self.log = log
        self._guard = Lock()
        self._topics = VirtualTopics()
        #: The position up to which the last segment was walked, and the id below which every owner is known.
        self._walked = _NOTHING_WALKED
        self._known_id = 0
        self._epoch = -1
        self._owners: dict[int, SealedOwners | FollowedOwners] = {}
        self._damaged: set[tuple[str, int]] = set()

    def with_view(self, call: Callable[[VirtualReader, VirtualTopics], Result]) -> Result:
        """Return the result of *call* on the published log; see `ReadOnlyPartition.with_view`."""

        def found(view: View) -> Result:
            with self._guard:
                self._learn(view)
            return call(VirtualReader(view, self.find_entry), self._topics)

        return self.log.with_view(found)

    def _learn(self, view: View) -> None:
        """Add the owners of the frames that were published since the last call.

        Raises:
            CorruptRange: At damage that is seen for the first time: the file may be being replaced.
        """
        if view.state.leader_epoch != self._epoch:
            # Restored to an earlier point: frames that were read may not exist any more.
            self._topics, self._walked, self._known_id = VirtualTopics(), _NOTHING_WALKED, 0
            self._epoch = view.state.leader_epoch
        for at in range(view.find_segment(self._known_id), len(view.segments)):
            segment, bounds = view.segments[at], view.bounds(at)
            if self._walked[:2] != (segment.base, segment.info.generation):
                self._walked = Walked.begin(segment)
            path = index_path(segment.directory, segment.base)
            for entry in saved_entries(segment, bounds, self._walked):
                self._note(entry, path, sparse=not bounds.dense)
            if self._walked.position < bounds.end:
                start = self._walked.next_id, self._walked.position
                for found in missing_entries(segment, bounds, start):
                    if isinstance(found, CorruptRange):
                        self._pass_over(found)
                    else:
                        self._note(unpack_entry(found, 0), segment.path, sparse=not bounds.dense)

    def _note(self, entry: OwnerEntry, path: str, *, sparse: bool) -> None:
        # Compaction may have merged segments after they were walked.
        if entry.first_id >= self._known_id:
            self._topics.apply(entry, sparse=sparse, path=path)
            self._known_id = entry.next_id
        entries = self._walked.entries + 1
        self._walked = self._walked._replace(entries=entries, next_id=entry.next_id, position=entry.end)

    def _pass_over(self, damage: CorruptRange) -> None:
        """Skip damage that was seen before; raise *damage* if it is new."""
        if (damage.path, damage.position) not in self._damaged:
            self._damaged.add((damage.path, damage.position))
            raise damage
        if damage.offset >= self._known_id:
            self._topics.lose(damage.offset, damage.resume_offset)

    def find_entry(self, segment: Segment, id_: int) -> OwnerEntry | None:
        """Return the index entry of the frame that holds *id_*, None if there is none."""
        owners = self._owners.get(segment.number)
        if owners is None:
            kind = SealedOwners if isinstance(segment, SealedSegment) else FollowedOwners
            try:
                owners = self._owners[segment.number] = kind(
                    segment.source, index_path(segment.directory, segment.base)
                )
            except OSError:
                return None
        return owners.find(id_)


class ReadOnlyVirtual:
    """One partition in the shared log as its writer has published it; see `ReadOnlyPartition`."""

    def __init__(
        self, shared: ReadOnlyShared, entry: TopicEntry, partition: int, config: TopicConfig
    ) -> None:
        self.owner = owner_of(entry.name, partition)
        self._shared = shared
        self._entry = entry
        self._partition = partition
        self._first_offset = config.initial_offset
        self._part: VirtualPartition | None = None

    @property
    def topic_id(self) -> str:
        """The id of the topic; a later topic of the same name has another."""
        return self._entry.id

    @property
    def log_start_offset(self) -> int:
        """The first offset that can be read."""
        return self._looked_up(lambda reader, offsets: offsets.start)

    @property
    def high_watermark(self) -> int:
        """The first offset after what the writer has published as synced."""
        return self._looked_up(lambda reader, offsets: reader.end_of(offsets))

    log_end_offset = high_watermark

    @property
    def leader_epoch(self) -> int:
        """The leader epoch that the writer of the shared log appends under."""
        return self._looked_up(lambda reader, offsets: reader.view.state.leader_epoch)

    @property
    def epochs(self) -> tuple[Epoch, ...]:
        """The leader epochs of the shared log, each with the offset of this partition that it begins at."""
        return self._looked_up(
            lambda reader, offsets: tuple(
                Epoch(each.epoch, offsets.below(each.start_offset)) for each in reader.view.state.epochs
            )
        )

    def published(self) -> Published:
        """Return both ends and the leader epochs, all of one moment."""

        def found(reader: VirtualReader, offsets: Offsets) -> Published:
            state = reader.view.state
            epochs = tuple((offsets.below(each.start_offset), each.epoch) for each in state.epochs)
            end = reader.end_of(offsets)
            return Published(offsets.start, end, epochs, self._stable_below(end))

        return self._looked_up(found)

    @property
    def last_stable_offset(self) -> int:
        """The first offset of an open transaction, or the high watermark if none is open below it.

        Only markers that the writer has published as synced end a transaction here.
        """
        return self._looked_up(lambda reader, offsets: self._stable_below(reader.end_of(offsets)))

    def _stable_below(self, end: int) -> int:
        """Return the last stable offset of the part below *end*. While the partition is looked up."""
        return end if self._part is None else self._part.stable_below(end)

    def aborted(self, start: int, stop: int) -> list[AbortedEntry]:
        """Return the aborted transactions that may have records in [start, stop), by their markers."""

        def found(reader: VirtualReader, offsets: Offsets) -> list[AbortedEntry]:
            transactions = None if self._part is None else self._part.transactions
            return [] if transactions is None else transactions.aborted_within(start, stop)

        return self._looked_up(found)

    def read(
        self, offset: int, max_bytes: int, stop: int | None = None, *, committed: bool = False
    ) -> Fetched:
        """Return whole batches from the one that holds *offset* on; see `View.read`."""

        def found(reader: VirtualReader, offsets: Offsets) -> Fetched:
            if committed and self._part is not None:
                return reader.read_committed(self._part, offset, max_bytes, stop)
            return reader.read(self.owner, offsets, offset, max_bytes, stop)

        return self._looked_up(found)

    def id_of(self, offset: int) -> int:
        """Return the id in the shared log of the record at *offset*, which can be read."""
        return self._looked_up(lambda reader, offsets: offsets.id_of(offset))

    def frame_at(self, offset: int) -> Envelope:
        """Return the envelope of the frame that holds *offset*, which is there.

        Raises:
            CorruptRange: If it is not what was written.
        """
        return self._looked_up(lambda reader, offsets: reader.frame(self.owner, offsets, offset).envelope)

    def offset_at(self, timestamp: int) -> tuple[int, int] | None:
        """Return (offset, timestamp) of the first record at or after *timestamp*, exactly."""
        return self._looked_up(lambda reader, offsets: reader.offset_at(self.owner, offsets, timestamp))

    def newest(self) -> tuple[int, int] | None:
        """Return (offset, timestamp) of the first record with the largest timestamp."""
        return self._looked_up(lambda reader, offsets: reader.newest(self.owner, offsets))

    def wait_beyond(self, offset: int, *, committed: bool = False) -> int:
        """Wait until there is a record at or after *offset* to read; see `ReadOnlyPartition.wait_beyond`."""
        while True:
            seen = self._shared.log.high_watermark
            end = self.last_stable_offset if committed else self.high_watermark
            if end > offset:
                return end
            self._shared.log.wait_beyond(seen)

    def size(self) -> int:
        """Return the bytes of the frames that can be read."""
        return self._looked_up(_size_of)

    def ids(self, start: int, end: int) -> list[int]:
        """Return the number that each of the offsets [start, end), which are there, has in the shared log."""
        return self._looked_up(
            lambda reader, offsets: [offsets.id_of(offset) for offset in range(start, end)]
        )

    def bytes_within(self, start: int, end: int) -> int:
        """Return about how many bytes the offsets [start, end) take, by the average size of a record."""

        def found(reader: VirtualReader, offsets: Offsets) -> int:
            size = 0 if self._part is None else self._part.size
            return size * max(end - start, 0) // max(offsets.end - offsets.start, 1)

        return self._looked_up(found)

    def cuts(self, start: int, end: int, bytes_max: int) -> list[int]:
        """Return where [start, end) can be cut into pieces of at most about *bytes_max*; see `View.cuts`.

        By the size that a record has on average.
        """

        def found(reader: VirtualReader, offsets: Offsets) -> list[int]:
            size = 0 if self._part is None else self._part.size
            records = max(offsets.end - offsets.start, 1)
            step = max(bytes_max * records // max(size, 1), 1)
            cut: list[int] = []
            for offset in range(start + step, end, step):
                begins = reader.frame(self.owner, offsets, offset).envelope.first_offset
                if start < begins < end and (not cut or begins > cut[-1]):
                    cut.append(begins)
            return cut

        return self._looked_up(found)

    def plan_maintenance(
        self, config: TopicConfig, now_ms: int, *, force: bool = False, needed_from: int | None = None
    ) -> Planned:
        """Return what a pass of maintenance would do now; compacting is never part of it."""

        def found(reader: VirtualReader, offsets: Offsets) -> Planned:
            size = _size_of(reader, offsets)
            frames = lapsed_frames(reader.sealed_entries(offsets), config, size, now_ms, needed_from)
            expired = tuple(each for each, _ in frames)
            return Planned(self._entry.name, self._partition, expired, None)

        return self._looked_up(found)

    def _looked_up(self, call: Callable[[VirtualReader, Offsets], Result]) -> Result:
        def found(reader: VirtualReader, topics: VirtualTopics) -> Result:
            part = topics.find(self.owner)
            known = self._part
            if known is not None and (part is None or part.born_id != known.born_id):
                raise UnknownTopic(f"topic {self._entry.name} was deleted")
            self._part = part
            return call(reader, Offsets(self._first_offset, BitMap64()) if part is None else part.offsets)

        return self._shared.with_view(found)


def _size_of(reader: VirtualReader, offsets: Offsets) -> int:
    return sum(entry.size for entry in reader.entries_between(offsets, offsets.start, reader.end_of(offsets)))
