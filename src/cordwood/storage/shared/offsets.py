"""Which partition each record of the shared log belongs to, derived from its frames in order.

A record's id is its number among all records of the shared log. A partition has a set of ids. The offset of a
record is the partition's start offset plus the number of smaller ids in that set. So removing the first
records only requires writing the new start. Everything here is derived.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from pyroaring import BitMap64

from cordwood.errors import CorruptRange, MetadataDamaged
from cordwood.formats import NO_PRODUCER_ID
from cordwood.formats.shared import EnvelopeKind, Owner, OwnerEntry
from cordwood.storage.log import Producers, VisibilityHold
from cordwood.storage.shared.transactions import VirtualTransactions

_NOTHING_STARTS = -1


class Offsets(NamedTuple):
    """The ids of a partition's records; the first one has the offset ``start``.

    Readers see none at or above the offset ``limit``.
    """

    start: int
    ids: BitMap64
    limit: int = 1 << 62

    @property
    def end(self) -> int:
        """The offset of the next record."""
        return self.start + len(self.ids)

    def id_of(self, offset: int) -> int:
        """Return the id of the record at *offset*, which must exist."""
        return int(self.ids[offset - self.start])

    def below(self, id_: int) -> int:
        """Return the offset after the last record whose id is below *id_*."""
        return self.start + (int(self.ids.rank(id_ - 1)) if id_ else 0)

    def readable_below(self, id_: int) -> int:
        """Return the first offset that readers may not read, if they may read ids below *id_*."""
        return min(self.below(id_), self.limit)


class VirtualPartition:
    """One partition in the shared log. One writer; a reader takes ``offsets`` once and uses that object."""

    __slots__ = (
        "born_id",
        "held_back",
        "lapsed_bytes",
        "offsets",
        "owner",
        "producers",
        "size",
        "started_id",
        "transactions",
    )

    def __init__(self, owner: Owner, start: int, born_id: int) -> None:
        self.owner = owner
        #: Replaced as a whole when the start moves; extended in place by appends.
        self.offsets = Offsets(start, BitMap64())
        #: Frames below this id belong to a deleted topic of the same name.
        self.born_id = born_id
        #: The id of the frame that set the start; -1 without one.
        self.started_id = _NOTHING_STARTS
        #: Bytes of the readable frames.
        self.size = 0
        #: Bytes in the active segment that retention would delete if it were sealed, as of the last check.
        self.lapsed_bytes = 0
        #: A hold on what is appended, and the first offset that it keeps from readers.
        self.held_back: tuple[VisibilityHold, int] | None = None
        #: None before the first batch of an idempotent producer, and before the first transaction.
        self.producers: Producers | None = None
        self.transactions: VirtualTransactions | None = None

    @property
    def shown(self) -> Offsets:
        """The offsets for readers."""
        held = self.held_back
        return self.offsets if held is None or held[0].ended else self.offsets._replace(limit=held[1])

    def add(self, entry: OwnerEntry, now_ms: int) -> None:
        """Add a frame with records, or a marker, found or appended at *now_ms*."""
        # Before its offsets: a reader that sees them must know of the transaction that they are part of.
        if entry.producer_id != NO_PRODUCER_ID:
            self._note_producer(entry, now_ms)
        self.offsets.ids.add_range(entry.first_id, entry.next_id)
        self.size += entry.size
        self.check_invariants()

    def _note_producer(self, entry: OwnerEntry, now_ms: int) -> None:
        """Note a batch of a producer, or the end of its transaction."""
        if self.producers is None:
            self.producers = Producers()
        stamp, marker = entry.stamp, entry.marker
        if stamp is not None:
            self.producers.note(stamp, entry.first_offset, entry.next_offset, now_ms)
            if stamp.transactional:
                if self.transactions is None:
                    self.transactions = VirtualTransactions()
                self.transactions.begin(stamp.producer_id, entry.first_offset)
        elif marker is not None:
            self.producers.end(marker, entry.first_offset, now_ms)
            if self.transactions is not None:
                self.transactions.end(marker, entry.first_offset)

    def stable_below(self, end: int) -> int:
        """Return the last stable offset of the part below *end*, an end that was taken before this call."""
        transactions = self.transactions
        if transactions is None:
            return end
        return max(min(end, transactions.open_from), self.offsets.start)

    def start_at(self, offset: int, frame_id: int) -> None:
        """Set the start to *offset*, as stated by the frame with the id *frame_id*. Never moves back."""
        before = self.offsets
        if offset >= before.start:
            # A frame with a lower start must not count once the frame with the higher start is reclaimed.
            self.started_id = max(self.started_id, frame_id)
        if offset > before.end:
            self.offsets = Offsets(offset, BitMap64())
        elif offset > before.start:
            ids = before.ids.copy()
            ids.remove_range(0, before.id_of(offset) if offset < before.end else 1 << 63)
            self.offsets = Offsets(offset, ids)
        if self.transactions is not None:
            # After the offsets: see `VirtualReader.read_committed`.
            self.transactions.forget_before(self.offsets.start)
        assert self.offsets.start >= before.start, "the start of a partition moved back"
        assert self.offsets.end >= before.end, "the end of a partition moved back"
        self.check_invariants()

    def check_invariants(self) -> None:
        """Check the numbers of the partition. Takes constant time.

        Raises:
            AssertionError: If they cannot be right: a fault of this code.
        """
        assert self.started_id >= _NOTHING_STARTS, "the frame that moved the start has no id"
        assert self.lapsed_bytes >= 0, "a negative number of bytes has lapsed"

    def is_dead(self, entry: OwnerEntry) -> bool:
        """Return whether a frame of this partition is not needed any more."""
        if entry.first_id < self.born_id:
            return True
        if entry.kind == EnvelopeKind.LOG_START:
            return entry.first_id < self.started_id
        if entry.kind != EnvelopeKind.RECORDS or entry.next_offset > self.offsets.start:
            return False
        # The newest batch of a producer holds its next sequence number, even if its records expired. A
        # transaction stays open until it ends, and the epoch of a producer may be known from a marker alone.
        known, transactions = self.producers, self.transactions
        if known is None:
            return True
        if transactions is not None and transactions.begins_at(entry.producer_id, entry.first_offset):
            return False
        if entry.marker is not None:
            return not known.is_known_by_marker(entry.producer_id, entry.producer_epoch)
        return not known.is_newest(entry.producer_id, entry.first_offset)


class VirtualTopics:
    """All partitions in the shared log, by owner. One writer at a time.

    *now_ms* gives the time at which a producer found in the log counts as last seen.
    """

    def __init__(self, now_ms: Callable[[], int] = lambda: 0) -> None:
        self._found: dict[Owner, VirtualPartition] = {}
        self._now_ms = now_ms
        #: Ids of unreadable frames. Their owner can be derived only from later frames.
        self._lost = BitMap64()
        #: Whether dead frames were removed before or among the known frames; None before the first frame.
        self._sparse: bool | None = None
        #: Partitions whose frames contradict each other, with the reason.
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
        found = self.find(owner) or self._found.setdefault(owner, VirtualPartition(owner, start, next_id))
        self.check_invariants(owner)
        return found

    def check_invariants(self, changed: Owner) -> None:
        """Check the partition of the owner *changed*. Takes constant time.

        Raises:
            AssertionError: If it is kept under another owner, or refused and not known: a fault of this code.
        """
        found = self._found.get(changed)
        assert found is None or found.owner == changed, "a partition is kept under another owner"
        assert found is not None or changed not in self.refused, "a partition is refused that is not known"

    def lose(self, start_id: int, end_id: int) -> None:
        """Record that the frames with ids [start, end) cannot be read."""
        self._lost.add_range(start_id, end_id)

    def end(self, owner: Owner) -> None:
        """Forget a partition whose topic was deleted."""
        self._found.pop(owner, None)
        self.refused.pop(owner, None)
        self.check_invariants(owner)

    def apply(self, entry: OwnerEntry, *, sparse: bool, path: str) -> None:
        """Apply a frame, after all frames with lower ids.

        *sparse* says that dead frames were removed from its segment; *path* is where the entry was found.
        """
        if not self._sparse:
            # From here on, a partition may miss frames before its next one. Where the first segments were
            # removed, the first known frame of a partition may be any of its start frames.
            self._sparse = sparse or (self._sparse is None and entry.first_id > 0)
        owner = Owner(entry.org, entry.topic_hash, entry.partition)
        if entry.kind == EnvelopeKind.ENDED:
            self.end(owner)
            return
        found = self._found.get(owner)
        if found is None:
            found = self._found[owner] = VirtualPartition(owner, entry.first_offset, entry.first_id)
        if entry.kind == EnvelopeKind.LOG_START:
            found.start_at(entry.first_offset, entry.first_id)
            return
        end = found.offsets.end
        if entry.first_offset != end and not self._fill_gap(found, entry, path):
            reason = f"frame {entry.first_id} of {owner} begins with offset {entry.first_offset}, after {end}"
            self.refused.setdefault(owner, MetadataDamaged(path, reason))
        found.add(entry, 0 if entry.producer_id == NO_PRODUCER_ID else self._now_ms())
        self.check_invariants(owner)

    def _fill_gap(self, found: VirtualPartition, entry: OwnerEntry, path: str) -> bool:
        """Extend the partition to the start of *entry*, if the missing records are explained."""
        missing = entry.first_offset - found.offsets.end
        if missing < 0:
            return False
        ids = found.offsets.ids
        before = int(self._lost.rank(ids.max())) if ids else 0
        lost = int(self._lost.rank(entry.first_id - 1)) - before if entry.first_id else 0
        if lost >= missing:
            # Unreadable ids are assigned to this partition: reading them is refused, and later records keep
            # their offsets. The first ids after the known ones are taken, so that enough are left for other
            # partitions.
            if found.transactions is not None:
                where = path, entry.position, found.offsets.end, entry.first_offset
                found.transactions.lose(CorruptRange(*where, "frames before are damaged"))
            theirs = BitMap64(int(self._lost[at]) for at in range(before, before + missing))
            found.offsets.ids.update(theirs)
            self._lost.difference_update(theirs)
            return True
        if self._sparse:
            # Only records below the start are ever removed, so all records before this frame are below it.
            found.start_at(entry.first_offset, found.started_id)
        return bool(self._sparse)
