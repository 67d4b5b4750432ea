"""Idempotent producers: which of their batches a partition has, so that none is stored twice.

And transactional ones: where the open transaction of each begins.

Derived from the log: every batch says who made it. A snapshot, taken now and then, only saves reading all
of it again; one that is missing or damaged costs time and never a record.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import NamedTuple

import msgspec

from cordwood.errors import OutOfSequence, ProducerFenced, TransactionStateInvalid
from cordwood.formats import Marker, ProducerStamp
from cordwood.formats.batch import NO_COORDINATOR_EPOCH, NO_SEQUENCE

#: As in Kafka: a producer keeps at most this many requests in flight, so a retry is among the last ones.
BATCHES_KEPT = 5
#: Expired producers are looked for when this many are known, and again when their number has doubled.
SWEEP_COUNT = 1000
_SEQUENCES = 1 << 31


class StoredBatch(msgspec.Struct, frozen=True, array_like=True):
    """A batch of an idempotent producer, and the offsets [base, next) it was given."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    next_offset: int


class OpenTransaction(NamedTuple):
    """A transaction that has not ended: its producer, its first offset, and when that was appended."""

    producer_id: int
    epoch: int
    first_offset: int
    since_ms: int


class KnownProducer(msgspec.Struct, frozen=True, omit_defaults=True):
    """The state of one producer: its newest batches, oldest first, and the time of the last one.

    ``open_offset`` is the first offset of its open transaction, None without one, and ``open_ms`` the time of
    that. ``coordinator_epoch`` and ``marker_offset`` are those of its last marker.
    """

    id: int
    epoch: int
    batches: tuple[StoredBatch, ...]
    seen_ms: int
    open_offset: int | None = None
    open_ms: int = -1
    coordinator_epoch: int = NO_COORDINATOR_EPOCH
    marker_offset: int = -1

    @property
    def last_sequence(self) -> int:
        """The sequence number of its last record, NO_SEQUENCE if it has none under its epoch."""
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE


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
            TransactionStateInvalid: If it is not part of the producer's open transaction.
        """
        known = self._known.get(stamp.producer_id)
        if known is None:
            return None
        if stamp.epoch < known.epoch:
            raise ProducerFenced(stamp.producer_id, stamp.epoch, known.epoch)
        if stamp.first_sequence == NO_SEQUENCE:
            return None
        if stamp.epoch == known.epoch:
            for stored in known.batches:
                if (stored.first_sequence, stored.last_sequence) == (
                    stamp.first_sequence,
                    stamp.last_sequence,
                ):
                    return stored
        # As `last_sequence`, which is a call more for each batch.
        same = known.batches and stamp.epoch == known.epoch
        expected = (known.batches[-1].last_sequence + 1) % _SEQUENCES if same else 0
        if stamp.first_sequence != expected:
            raise OutOfSequence(stamp.producer_id, stamp.first_sequence, expected)
        if known.open_offset is not None and not stamp.transactional:
            raise TransactionStateInvalid(
                f"producer {stamp.producer_id} has an open transaction, and the batch is not part of it"
            )
        return None

    def note(self, stamp: ProducerStamp, base_offset: int, next_offset: int, now_ms: int) -> None:
        """Record a batch that was appended at *now_ms*."""
        known = self._known.get(stamp.producer_id)
        batches = known.batches if known and known.epoch == stamp.epoch else ()
        if stamp.first_sequence != NO_SEQUENCE:
            stored = StoredBatch(stamp.first_sequence, stamp.last_sequence, base_offset, next_offset)
            batches = (*batches[1 - BATCHES_KEPT :], stored)
        open_offset, open_ms = (None, -1) if known is None else (known.open_offset, known.open_ms)
        if stamp.transactional and open_offset is None:
            open_offset, open_ms = base_offset, now_ms
        self._known[stamp.producer_id] = KnownProducer(
            stamp.producer_id,
            stamp.epoch,
            batches,
            now_ms,
            open_offset,
            open_ms,
            NO_COORDINATOR_EPOCH if known is None else known.coordinator_epoch,
            -1 if known is None else known.marker_offset,
        )
        self.check_invariants(stamp.producer_id)

    def check_marker(self, marker: Marker) -> None:
        """Check that *marker* may end the transaction of its producer.

        Raises:
            ProducerFenced: If the producer has a later epoch, whose transaction it is not.
        """
        known = self._known.get(marker.producer_id)
        if known is not None and marker.epoch < known.epoch:
            raise ProducerFenced(marker.producer_id, marker.epoch, known.epoch)

    def end(self, marker: Marker, offset: int, now_ms: int) -> int | None:
        """Record a marker that was appended at *offset*.

        Returns the first offset of the transaction that it ended, None if none was open.
        """
        known = self._known.get(marker.producer_id)
        same = known is not None and known.epoch == marker.epoch
        self._known[marker.producer_id] = KnownProducer(
            marker.producer_id,
            marker.epoch,
            known.batches if known is not None and same else (),
            now_ms,
            coordinator_epoch=marker.coordinator_epoch,
            marker_offset=offset,
        )
        self.check_invariants(marker.producer_id)
        return None if known is None else known.open_offset

    def open_transactions(self) -> list[OpenTransaction]:
        """Return the transactions that have not ended, by their first offsets."""
        found = [
            OpenTransaction(known.id, known.epoch, known.open_offset, known.open_ms)
            for known in self._known.values()
            if known.open_offset is not None
        ]
        return sorted(found, key=lambda each: each.first_offset)

    def close_transactions(self, ended: Container[tuple[int, int]]) -> None:
        """End the open transactions among *ended*, pairs of producer id and first offset."""
        for known in list(self._known.values()):
            if (known.id, known.open_offset) in ended:
                self._known[known.id] = msgspec.structs.replace(known, open_offset=None, open_ms=-1)
                self.check_invariants(known.id)

    def check_invariants(self, changed: int) -> None:
        """Check the producer whose id is *changed*. Takes constant time.

        Raises:
            AssertionError: If it cannot be right: a fault of this code.
        """
        known = self._known[changed]
        assert known.id == changed, "a producer is kept under another id"
        assert len(known.batches) <= BATCHES_KEPT, "too many batches are kept"
        assert self._swept_next >= SWEEP_COUNT, "expired producers are looked for too early"

    def expire(self, before_ms: int, *, now: bool = False) -> None:
        """Forget producers not heard of since *before_ms*, *now* or when enough may have gathered.

        Until then they are known, whatever the wall clock says: a jump of it must not make a retry pass for
        a new batch. One with an open transaction is always known.
        """
        if now or len(self._known) >= self._swept_next:
            self._known = {
                id_: each
                for id_, each in self._known.items()
                if each.seen_ms >= before_ms or each.open_offset is not None
            }
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
        return known is not None and bool(known.batches) and known.batches[-1].base_offset == base_offset

    def is_known_by_marker(self, producer_id: int, epoch: int) -> bool:
        """Return whether a known producer has *epoch*, and no batch under it: only a marker says so."""
        known = self._known.get(producer_id)
        return known is not None and not known.batches and known.epoch == epoch

    def heard_of(self, since_ms: int) -> list[KnownProducer]:
        """Return the producers that were heard of at or after *since_ms*, by their ids."""
        return sorted((each for each in self._known.values() if each.seen_ms >= since_ms), key=lambda p: p.id)

    def epochs(self) -> dict[int, int]:
        """Return the newest epoch of each known producer, by its id: also of those not heard of for long."""
        return {each.id: each.epoch for each in self._known.values()}

    def known(self) -> tuple[KnownProducer, ...]:
        """Return what is known, as it may be saved."""
        return tuple(self._known.values())


def _cut_short(stored: StoredBatch, end_offset: int) -> StoredBatch:
    """Return what is left of a batch before *end_offset*."""
    if stored.next_offset <= end_offset:
        return stored
    last = (stored.first_sequence + end_offset - stored.base_offset - 1) % _SEQUENCES
    return StoredBatch(stored.first_sequence, last, stored.base_offset, end_offset)
