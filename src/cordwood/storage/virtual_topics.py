"""Which records of the shared log are whose: what its frames add up to, one after the other.

A record's id is its place among all records of the shared log. A partition of a topic has a set of ids, and
the offset of a record is how many of them come before its own, counted from where the partition starts. So
when the first ones go, all that is written is where the partition starts now. Everything here is derived.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from pyroaring import BitMap64

from cordwood.errors import MetadataDamaged
from cordwood.formats.batch import NO_PRODUCER_ID
from cordwood.formats.envelope import Kind, Owner
from cordwood.formats.format import ProducerStamp
from cordwood.formats.owners import OwnerEntry
from cordwood.kernels.layout import INT32_MAX
from cordwood.storage.producers import Producers

_NOTHING_STARTS = -1


class Offsets(NamedTuple):
    """The ids of a partition's records, of which the first one has the offset ``start``."""

    start: int
    ids: BitMap64

    @property
    def end(self) -> int:
        """The offset that comes next."""
        return self.start + len(self.ids)

    def id_of(self, offset: int) -> int:
        """Return the id of the record at *offset*, which is there: the one with so many before it."""
        return int(self.ids[offset - self.start])

    def below(self, id_: int) -> int:
        """Return the offset after the last record whose id is below *id_*."""
        return self.start + (int(self.ids.rank(id_ - 1)) if id_ else 0)


class VirtualPartition:
    """One partition of a topic in the shared log. One writer; readers take ``offsets`` once and use that."""

    __slots__ = ("born_id", "offsets", "owner", "producers", "size", "started_id")

    def __init__(self, owner: Owner, start: int, born_id: int) -> None:
        self.owner = owner
        #: Replaced whole when the start moves; grows in place.
        self.offsets = Offsets(start, BitMap64())
        #: Frames below this id are of a topic of the same name that was deleted.
        self.born_id = born_id
        #: The id of the frame that says where it starts; -1 if none had to.
        self.started_id = _NOTHING_STARTS
        #: Bytes of the frames that can still be read.
        self.size = 0
        self.producers: Producers | None = None

    def add(self, first_id: int, count: int, size: int) -> None:
        """Give it the ids of a frame of *size* bytes."""
        self.offsets.ids.add_range(first_id, first_id + count)
        self.size += size

    def start_at(self, offset: int, said_by: int) -> None:
        """Make *offset* the first one; the frame with the id *said_by* says so. Never goes back."""
        before = self.offsets
        if offset >= before.start:
            # One that says less must not stand for it once the frame that says more is reclaimed.
            self.started_id = max(self.started_id, said_by)
        if offset > before.end:
            self.offsets = Offsets(offset, BitMap64())
        elif offset > before.start:
            ids = before.ids.copy()
            ids.remove_range(0, before.id_of(offset) if offset < before.end else 1 << 63)
            self.offsets = Offsets(offset, ids)

    def is_dead(self, entry: OwnerEntry) -> bool:
        """Return whether nobody can need a frame of this partition any more."""
        if entry.first_id < self.born_id:
            return True
        if entry.kind == Kind.LOG_START:
            return entry.first_id < self.started_id
        if entry.kind != Kind.RECORDS or entry.next_offset > self.offsets.start:
            return False
        # The newest batch of a producer says what it may send next, also when its records are gone.
        known = self.producers
        return known is None or not known.is_newest(entry.producer_id, entry.first_offset)


class VirtualTopics:
    """All partitions in the shared log, by owner. One writer at a time.

    *now_ms* gives the time at which a producer that is met in the log counts as heard of.
    """

    def __init__(self, now_ms: Callable[[], int] = lambda: 0) -> None:
        self._found: dict[Owner, VirtualPartition] = {}
        self._now_ms = now_ms
        #: Ids of frames that could not be read: whose they were, only what comes after them can say.
        self._lost = BitMap64()
        #: Whether dead frames were removed before or among those that are known; None before any is.
        self._sparse: bool | None = None
        #: Partitions whose frames contradict each other, and how.
        self.refused: dict[Owner, MetadataDamaged] = {}

    def __iter__(self) -> Iterator[VirtualPartition]:
        return iter(list(self._found.values()))

    def __len__(self) -> int:
        return len(self._found)

    def find(self, owner: Owner) -> VirtualPartition | None:
        """Return a partition, None if no frame of it is known.

        Raises:
            MetadataDamaged: If its frames contradict each other.
        """
        if self.refused and owner in self.refused:
            raise self.refused[owner]
        return self._found.get(owner)

    def use(self, owner: Owner, start: int, next_id: int) -> VirtualPartition:
        """Return a partition, made to start at *start* if no frame of it is known. Raises as `find` does."""
        return self.find(owner) or self._found.setdefault(owner, VirtualPartition(owner, start, next_id))

    def lose(self, start_id: int, end_id: int) -> None:
        """Take note that the frames of ids [start, end) cannot be read."""
        self._lost.add_range(start_id, end_id)

    def end(self, owner: Owner) -> None:
        """Forget a partition whose topic was deleted."""
        self._found.pop(owner, None)
        self.refused.pop(owner, None)

    def apply(self, entry: OwnerEntry, *, sparse: bool, path: str) -> None:
        """Take note of a frame, after all those with lower ids.

        *sparse* says that dead frames were removed from its segment; *path* is where the entry was found.
        """
        if not self._sparse:
            # From there on a partition may miss frames, wherever its next one is. Where the first segments
            # are gone, a start that was said between two others may be the first that is heard of it.
            self._sparse = sparse or (self._sparse is None and entry.first_id > 0)
        owner = Owner(entry.org, entry.topic_hash, entry.partition)
        if entry.kind == Kind.ENDED:
            self.end(owner)
            return
        found = self._found.get(owner)
        if found is None:
            found = self._found[owner] = VirtualPartition(owner, entry.first_offset, entry.first_id)
        if entry.kind == Kind.LOG_START:
            found.start_at(entry.first_offset, entry.first_id)
            return
        end = found.offsets.end
        if entry.first_offset != end and not self._bridged(found, entry):
            reason = f"frame {entry.first_id} of {owner} begins with offset {entry.first_offset}, after {end}"
            self.refused.setdefault(owner, MetadataDamaged(path, reason))
        found.add(entry.first_id, entry.id_count, entry.size)
        stamp = stamp_of(entry)
        if stamp is not None:
            if found.producers is None:
                found.producers = Producers()
            found.producers.note(stamp, entry.first_offset, entry.next_offset, self._now_ms())

    def _bridged(self, found: VirtualPartition, entry: OwnerEntry) -> bool:
        """Make the partition end where *entry* begins, if what is missing in between is accounted for."""
        missing = entry.first_offset - found.offsets.end
        if missing < 0:
            return False
        ids = found.offsets.ids
        before = int(self._lost.rank(ids.max())) if ids else 0
        lost = int(self._lost.rank(entry.first_id - 1)) - before if entry.first_id else 0
        if lost >= missing:
            # Unreadable, but theirs: reading there is refused, and what follows keeps its offsets. The first
            # ones after what is known, so that others that miss some after them find enough as well.
            theirs = BitMap64(int(self._lost[at]) for at in range(before, before + missing))
            found.offsets.ids.update(theirs)
            self._lost.difference_update(theirs)
            return True
        if self._sparse:
            # Only what lies below the start is ever removed, so all before this frame does.
            found.start_at(entry.first_offset, found.started_id)
        return bool(self._sparse)


def stamp_of(entry: OwnerEntry) -> ProducerStamp | None:
    """Return which producer made a frame, None if it does not say."""
    if entry.producer_id == NO_PRODUCER_ID or entry.kind != Kind.RECORDS:
        return None
    last = (entry.base_sequence + entry.id_count - 1) & INT32_MAX
    return ProducerStamp(entry.producer_id, entry.producer_epoch, entry.base_sequence, last)
