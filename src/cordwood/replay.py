"""Replaying a partition: the same records in the same order give the same state.

From the first record on, or from the nearest snapshot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from cordwood.errors import OffsetOutOfRange
from cordwood.records import Record
from cordwood.storage.snapshots import Snapshots

State = TypeVar("State")


class Replayable(Protocol):
    """What is needed of a topic: `embedded.Topic` is one."""

    def read(self, partition: int = 0, start: int | None = None, stop: int | None = None) -> Iterator[Record]:
        """Return the records from *start* up to *stop*."""

    def high_watermark(self, partition: int = 0) -> int:
        """Return the first offset that cannot be read yet."""

    def log_start_offset(self, partition: int = 0) -> int:
        """Return the first offset that can be read."""

    def snapshots(self, partition: int = 0) -> Snapshots:
        """Return where snapshots of a partition are kept."""


@dataclass(frozen=True, slots=True)
class Replayed(Generic[State]):
    """What a replay came to: the state after every record below ``offset``.

    ``start_offset`` is where it began: a snapshot's offset, or the first record's. ``skipped`` says which
    snapshots were passed over, and why.
    """

    state: State
    offset: int
    start_offset: int
    records: int
    skipped: tuple[str, ...] = ()


def replay(
    topic: Replayable,
    fold: Callable[[State, Record], State],
    initial: State,
    *,
    encode: Callable[[State], bytes],
    decode: Callable[[bytes], State],
    partition: int = 0,
    end_offset: int | None = None,
    save_every: int | None = None,
) -> Replayed[State]:
    """Return the state after every record below *end_offset*, or below the high watermark as it is now.

    *fold* gives the state after a record; it must depend on nothing but its two arguments. The nearest sound
    snapshot is decoded and only what follows it is read. With *save_every* a snapshot is saved after each
    that many records and at the end; durable on return.

    Without a snapshot it begins at the log start: what retention let go is in no state any more.

    Raises:
        OffsetOutOfRange: If *end_offset* is beyond the high watermark or before the log start, or records
            after the snapshot were let go.
    """
    high = topic.high_watermark(partition)
    end = high if end_offset is None else end_offset
    if end > high:
        raise OffsetOutOfRange(end, topic.log_start_offset(partition), high)
    kept = topic.snapshots(partition)
    nearest = kept.nearest(end)
    state, start = initial, topic.log_start_offset(partition)
    if nearest.snapshot is not None:
        state, start = decode(nearest.snapshot.state), nearest.snapshot.offset
    if end < start:
        raise OffsetOutOfRange(end, start, high)
    saved, count, offset = start, 0, start
    for record in topic.read(partition, start, end):
        state = fold(state, record)
        offset, count = record.offset + 1, count + 1
        if save_every is not None and count % save_every == 0:
            kept.save(offset, encode(state))
            saved = offset
    if save_every is not None and end > saved:
        kept.save(end, encode(state))
    return Replayed(state, end, start, count, nearest.skipped)
