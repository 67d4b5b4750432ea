"""Idempotent producers: which of their batches a partition has, so that none is stored twice.

Derived from the log: every batch says who made it. A snapshot, taken now and then, only saves reading all
of it again; one that is missing or damaged costs time and never a record.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from cordwood.disk import PASSING, Files, as_storage_error, join, read_metadata, write_metadata
from cordwood.errors import DirectoryRefused, MetadataDamaged, OutOfSequence, ProducerFenced
from cordwood.formats import ProducerStamp
from cordwood.storage.log.state import PartitionState

#: As in Kafka: a producer keeps at most this many requests in flight, so a retry is among the last ones.
BATCHES_KEPT = 5
SNAPSHOT_VERSION = 1
#: A snapshot is taken after this many bytes of appends: so much is read again at most after a crash.
SNAPSHOT_BYTES = 64 << 20
#: Expired producers are looked for when this many are known, and again when their number has doubled.
SWEEP_COUNT = 1000
_SEQUENCES = 1 << 31


class StoredBatch(msgspec.Struct, frozen=True, array_like=True):
    """A batch of an idempotent producer, and the offsets [base, next) it was given."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    next_offset: int


class KnownProducer(msgspec.Struct, frozen=True):
    """The state of one producer: its newest batches, oldest first, and the time of the last one."""

    id: int
    epoch: int
    batches: tuple[StoredBatch, ...]
    seen_ms: int


class ProducersSnapshot(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The producers of all records of a partition below ``next_offset``: docs/formats/directory.md."""

    format: int
    topic_id: str
    partition: int
    leader_epoch: int
    next_offset: int
    producers: tuple[KnownProducer, ...]


_DECODER = msgspec.json.Decoder(ProducersSnapshot)


class Producers:
    """The producers of one partition. One caller at a time: the holder of the append lock."""

    def __init__(self, known: Iterable[KnownProducer] = ()) -> None:
        self._known = {producer.id: producer for producer in known}
        self._swept_next = SWEEP_COUNT

    def __len__(self) -> int:
        return len(self._known)

    def find_original(self, stamp: ProducerStamp) -> StoredBatch | None:
        """Return the batch that *stamp* repeats; None if it is the producer's next one.

        An unknown producer may begin anywhere, as in Kafka: it may have expired, or its records were
        deleted.

        Raises:
            ProducerFenced: If another producer has taken over its id with a later epoch.
            OutOfSequence: If batches before it are missing, or it is too old to say whether it is stored.
        """
        known = self._known.get(stamp.producer_id)
        if known is None:
            return None
        if stamp.epoch < known.epoch:
            raise ProducerFenced(stamp.producer_id, stamp.epoch, known.epoch)
        if stamp.epoch > known.epoch:
            if stamp.first_sequence:
                raise OutOfSequence(stamp.producer_id, stamp.first_sequence, 0)
            return None
        for stored in known.batches:
            if (stored.first_sequence, stored.last_sequence) == (stamp.first_sequence, stamp.last_sequence):
                return stored
        expected = (known.batches[-1].last_sequence + 1) % _SEQUENCES
        if stamp.first_sequence != expected:
            raise OutOfSequence(stamp.producer_id, stamp.first_sequence, expected)
        return None

    def note(self, stamp: ProducerStamp, base_offset: int, next_offset: int, now_ms: int) -> None:
        """Record a batch that was appended at *now_ms*."""
        stored = StoredBatch(stamp.first_sequence, stamp.last_sequence, base_offset, next_offset)
        known = self._known.get(stamp.producer_id)
        before = known.batches[1 - BATCHES_KEPT :] if known and known.epoch == stamp.epoch else ()
        self._known[stamp.producer_id] = KnownProducer(
            stamp.producer_id, stamp.epoch, (*before, stored), now_ms
        )
        self.check_invariants(stamp.producer_id)

    def check_invariants(self, changed: int) -> None:
        """Check the producer whose id is *changed*. Takes constant time.

        Raises:
            AssertionError: If it cannot be right: a fault of this code.
        """
        known = self._known[changed]
        assert known.id == changed, "a producer is kept under another id"
        assert 1 <= len(known.batches) <= BATCHES_KEPT, "too few or too many batches are kept"
        assert self._swept_next >= SWEEP_COUNT, "expired producers are looked for too early"

    def expire(self, before_ms: int, *, now: bool = False) -> None:
        """Forget producers not heard of since *before_ms*, *now* or when enough may have gathered.

        Until then they are known, whatever the wall clock says: a jump of it must not make a retry pass for
        a new batch.
        """
        if now or len(self._known) >= self._swept_next:
            self._known = {id_: p for id_, p in self._known.items() if p.seen_ms >= before_ms}
            self._swept_next = max(SWEEP_COUNT, 2 * len(self._known))

    def cut(self, end_offset: int) -> None:
        """Forget the batches at or above *end_offset*, which were truncated.

        A batch that begins below it keeps the records before the cut, as in the log. A producer without a
        batch that is left becomes unknown.
        """
        for producer in list(self._known.values()):
            kept = tuple(
                _cut_short(stored, end_offset)
                for stored in producer.batches
                if stored.base_offset < end_offset
            )
            if not kept:
                del self._known[producer.id]
            elif kept != producer.batches:
                self._known[producer.id] = msgspec.structs.replace(producer, batches=kept)
                self.check_invariants(producer.id)

    def is_newest(self, producer_id: int, base_offset: int) -> bool:
        """Return whether the newest batch of a producer that is known begins at *base_offset*."""
        known = self._known.get(producer_id)
        return known is not None and known.batches[-1].base_offset == base_offset

    def heard_of(self, since_ms: int) -> list[KnownProducer]:
        """Return the producers that were heard of at or after *since_ms*, by their ids."""
        return sorted((each for each in self._known.values() if each.seen_ms >= since_ms), key=lambda p: p.id)

    def known(self) -> tuple[KnownProducer, ...]:
        """Return what is known, as it may be saved."""
        return tuple(self._known.values())


def _cut_short(stored: StoredBatch, end_offset: int) -> StoredBatch:
    """Return what is left of a batch before *end_offset*."""
    if stored.next_offset <= end_offset:
        return stored
    last = (stored.first_sequence + end_offset - stored.base_offset - 1) % _SEQUENCES
    return StoredBatch(stored.first_sequence, last, stored.base_offset, end_offset)


def snapshot_path(directory: str) -> str:
    """Return the path of a partition's snapshot of its producers."""
    return join(directory, "producers.json")


def write_snapshot(files: Files, directory: str, snapshot: ProducersSnapshot) -> None:
    """Replace the snapshot; every record it covers must be synced. Durable on return."""
    write_metadata(files, snapshot_path(directory), snapshot)


def read_snapshot(
    files: Files, directory: str, state: PartitionState, end_offset: int
) -> ProducersSnapshot | None:
    """Return the snapshot, None if there is none that speaks of the log as it is.

    It does not where it is another partition's, or where the log was truncated below what it covers, even
    if it has grown again since: a later epoch then begins below its end.

    Raises:
        ResourcesExhausted: If it cannot be read for a reason that says nothing about it.
    """
    try:
        snapshot = read_metadata(files, snapshot_path(directory), _DECODER)
    except OSError as error:
        if error.errno in PASSING:
            raise as_storage_error(error, "reading what is known of producers") from error
        return None
    except (MetadataDamaged, DirectoryRefused):
        return None
    later = [epoch.start_offset for epoch in state.epochs if epoch.epoch > snapshot.leader_epoch]
    outdated = snapshot.next_offset > min([end_offset, *later])
    ours = (SNAPSHOT_VERSION, state.topic_id, state.partition)
    mine = (snapshot.format, snapshot.topic_id, snapshot.partition) == ours
    return snapshot if mine and not outdated else None
