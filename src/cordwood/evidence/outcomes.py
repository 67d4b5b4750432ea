"""How the transaction of a record ended, as far as a log says it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

from cordwood.formats import Marker, ProducerStamp
from cordwood.storage.log import Partition, committed_runs

Outcome = Literal["committed", "aborted", "open"]
_READ_BYTES = 1 << 20


class FrameEnd(NamedTuple):
    """What is at an offset: the marker that ends a transaction, or a frame and the outcome of its own.

    Both are None for a record that is in no transaction, and where compaction left nothing.
    """

    marker: Marker | None = None
    outcome: Outcome | None = None


def outcome_at(log: Partition, offset: int) -> FrameEnd:
    """Return what became of the transaction of the frame that holds *offset*.

    Raises:
        OffsetOutOfRange: If *offset* is not in the log.
        CorruptRange: If bytes that may have the end of the transaction are damaged.
    """
    found = next(_frames(log, offset, 1), None)
    if found is None or found.first_offset > offset:
        return FrameEnd()
    if found.marker is not None:
        return FrameEnd(found.marker)
    if found.stamp is None or not found.stamp.transactional:
        return FrameEnd()
    if offset < log.last_stable_offset:
        return FrameEnd(outcome="aborted" if is_aborted(log, offset) else "committed")
    # Another transaction may be open before it, while its own has ended.
    producer_id = found.stamp.producer_id
    for frame in _frames(log, found.next_offset, _READ_BYTES):
        if frame.marker is not None and frame.marker.producer_id == producer_id:
            return FrameEnd(outcome="committed" if frame.marker.committed else "aborted")
    return FrameEnd(outcome="open")


def is_aborted(log: Partition, offset: int) -> bool:
    """Return whether the frame that holds *offset*, which is stable, is of an aborted transaction.

    Raises:
        CorruptRange: If bytes that may have the end of the transaction are damaged.
    """
    aborted = log.aborted(offset, offset + 1)
    if not aborted:
        return False
    runs = log.read(offset, 1, offset + 1, committed=True).runs
    return bool(runs) and not list(committed_runs(runs[:1], aborted))


class _Stamped(NamedTuple):
    first_offset: int
    next_offset: int
    stamp: ProducerStamp | None
    marker: Marker | None


def _frames(log: Partition, start: int, max_bytes: int) -> Iterator[_Stamped]:
    """Yield the producers and markers of the frames from the one that holds *start* on."""
    while start < log.high_watermark:
        fetched = log.read(start, max_bytes)
        for run in fetched.runs:
            table = run.table
            for number in range(run.first, run.last + 1):
                if table.next_offset(number) > start:
                    offsets = table.base_offset(number), table.next_offset(number)
                    yield _Stamped(*offsets, table.stamp(number), table.marker(number))
        if fetched.next_offset <= start:
            return
        start = fetched.next_offset
