"""Check the snapshot of a partition's idempotent producers against its log.

If frames name their producer, the snapshot is derived and can be rebuilt from the log, so damage to it is not
corruption. Formats other than ``batch`` do not name the producer. There the snapshot is the only source, so
damage to it is corruption, and it can only be checked for consistency.
"""

from __future__ import annotations

from typing import NamedTuple

from cordwood.verify.frame import INT64_MAX, PlacedHeader
from cordwood.verify.metadata import FORMAT, PartitionBody, ProducersBody, StoredBatchBody, check_json
from cordwood.verify.report import Severity, Tally
from cordwood.verify.segments import SegmentPlan

_SEQUENCES = 1 << 31
_BATCHES_MAX = 5


class Stamp(NamedTuple):
    """The producer of a frame, its offsets and its sequence numbers."""

    producer_id: int
    epoch: int
    first_sequence: int
    last_sequence: int
    base_offset: int
    next_offset: int


def producers_severity(record_format: str) -> Severity:
    """Return the severity of damage to the producer snapshot for this record format."""
    return "index" if record_format == "batch" else "corruption"


class ProducersCheck:
    """One snapshot, compared with the frames of the log while they are read."""

    def __init__(self, path: str, data: bytes | None, record_format: str) -> None:
        self.path = path
        self.data = data
        self._stamped = record_format == "batch"
        self._severity = producers_severity(record_format)
        self._tally = Tally()
        self._body = None
        if data is not None:
            self._body = check_json(self._tally, path, data, ProducersBody, self._severity)
        self._claims: dict[int, Stamp] = {}
        self._doubled: list[Stamp] = []
        self._differing: dict[int, Stamp] = {}
        self._seen: set[int] = set()
        for producer in () if self._body is None else self._body.producers:
            for batch in producer.batches:
                stamp = Stamp(producer.id, producer.epoch, *_fields(batch))
                if self._claims.setdefault(batch.base_offset, stamp) is not stamp:
                    self._doubled.append(stamp)

    @property
    def body(self) -> ProducersBody | None:
        """The content of the snapshot, None if there is none that can be used."""
        return self._body

    @property
    def claims(self) -> bool:
        """Whether the snapshot has any batches."""
        return self._stamped and bool(self._claims)

    def claimed(self, plan: SegmentPlan) -> frozenset[int]:
        """Return the base offsets of the snapshot's batches that the segment may hold."""
        end = plan.next_offset if plan.sealed else INT64_MAX
        return frozenset(base for base in self._claims if self._stamped and plan.base <= base < end)

    def see(self, frame: PlacedHeader) -> None:
        """Record a sound frame of the log."""
        claim = self._claims.get(frame.base_offset)
        if claim is None:
            return
        last = (frame.base_sequence + frame.last_offset_delta) % _SEQUENCES
        sequences = (frame.base_sequence, last)
        found = Stamp(
            frame.producer_id, frame.producer_epoch, *sequences, frame.base_offset, frame.next_offset
        )
        self._seen.add(frame.base_offset)
        self._differing.pop(frame.base_offset, None)
        if found != claim:
            self._differing[frame.base_offset] = found

    def finish(self, state: PartitionBody, first_offset: int, end_offset: int, *, intact: bool) -> Tally:
        """Return the findings after all frames of [first_offset, end_offset) were read.

        *intact* says that all of them could be read.
        """
        body, tally = self._body, self._tally
        if body is None:
            return tally
        self._check(body.topic_id == state.topic_id, "topic id", ascii(state.topic_id), ascii(body.topic_id))
        self._check(body.partition == state.partition, "partition", state.partition, body.partition)
        later = [epoch.start_offset for epoch in state.epochs if epoch.epoch > body.leader_epoch]
        if body.next_offset > min(later, default=body.next_offset):
            # A crash happened between the truncation and the next snapshot; this snapshot is not used.
            found = f"one that reaches to {body.next_offset}"
            expected = f"a snapshot that ends at {min(later)} or before, where the log was truncated"
            tally.add("note", self.path, None, expected=expected, found=found, what="outdated snapshot")
            return tally
        self._check(
            body.leader_epoch <= state.leader_epoch, "leader epoch", state.leader_epoch, body.leader_epoch
        )
        self._check_batches(body)
        for stamp in self._doubled:
            self._check(False, "batch of a producer", self._claims[stamp.base_offset], stamp)
        for base, found_stamp in self._differing.items():
            self._check(False, "batch of a producer", self._claims[base], found_stamp)
        within = body.next_offset <= end_offset
        if intact:
            self._check(within, "next offset", f"at most {end_offset}", body.next_offset)
        for base in sorted(self._claims.keys() - self._seen) if self._stamped and intact and within else ():
            found = "no batch at that offset"
            gone = base < first_offset or _is_compacted(state, base)
            self._check(gone, "batch of a producer", self._claims[base], found)
        return tally

    def _check(self, holds: bool, what: str, expected: object, found: object) -> None:
        if not holds:
            self._tally.add(self._severity, self.path, None, expected=expected, found=found, what=what)

    def _check_batches(self, body: ProducersBody) -> None:
        """Check each producer's batches for consistency."""
        ids = [producer.id for producer in body.producers]
        self._check(len(ids) == len(set(ids)), "producers", "each once", "one twice")
        for producer in body.producers:
            what, end = f"batches of producer {producer.id}", 0
            count = len(producer.batches)
            # A producer of transactions may be known by a marker alone, or by batches without sequences.
            least = 1 if body.format == FORMAT else 0
            self._check(least <= count <= _BATCHES_MAX, what, f"{least} to {_BATCHES_MAX}", count)
            for batch in producer.batches:
                sequences = (batch.last_sequence - batch.first_sequence) % _SEQUENCES + 1
                offsets = batch.next_offset - batch.base_offset
                self._check(sequences == offsets, what, f"{sequences} offsets, one a record", offsets)
                self._check(end <= batch.base_offset, what, f"offsets from {end} on", batch.base_offset)
                end = batch.next_offset
            expected = f"offsets up to {body.next_offset}"
            self._check(end <= body.next_offset, what, expected, end)


def _is_compacted(state: PartitionBody, offset: int) -> bool:
    """Return whether *offset* is in a segment that was rewritten.

    The snapshot has the last five batches of a producer. A rewrite keeps the newest, unless the producer has
    expired, so a batch missing there is not a fault of the snapshot.
    """
    if offset >= state.active_base:
        return state.active_generation > 0
    return any(each.generation > 0 and each.base <= offset < each.next_offset for each in state.sealed)


def _fields(batch: StoredBatchBody) -> tuple[int, int, int, int]:
    return batch.first_sequence, batch.last_sequence, batch.base_offset, batch.next_offset
