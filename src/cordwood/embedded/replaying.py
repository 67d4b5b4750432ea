"""Replay a partition: fold its records, in their order, into a state, starting at the nearest snapshot."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from cordwood.errors import InvalidSetting, OffsetOutOfRange
from cordwood.records import Record
from cordwood.storage.directory import Nearest, Snapshots

State = TypeVar("State")


class Replayable(Protocol):
    """The methods of `embedded.Topic` that a replay calls."""

    def read(
        self,
        partition: int = 0,
        start: int | None = None,
        stop: int | None = None,
        *,
        committed: bool = True,
    ) -> Iterator[Record]:
        """Return the records from *start* up to *stop*."""

    def high_watermark(self, partition: int = 0) -> int:
        """Return the first offset that cannot be read yet."""

    def last_stable_offset(self, partition: int = 0) -> int:
        """Return the first offset that cannot be read yet by a reader of committed records."""

    def log_start_offset(self, partition: int = 0) -> int:
        """Return the first offset that can be read."""

    def snapshots(self, partition: int = 0) -> Snapshots:
        """Return the snapshots of a partition."""


@dataclass(frozen=True, slots=True)
class Replayed(Generic[State]):
    """The result of a replay: the state after every record below ``offset``.

    ``start_offset`` is the first offset that was read: that of the snapshot, or the log start offset.
    ``records`` counts the records that were read. ``skipped`` has a sentence for each snapshot that could
    not be used.
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
    committed: bool = True,
) -> Replayed[State]:
    """Return the state after every record below *end_offset*, or below the last stable offset as it is now.

    *fold* takes the state and a record and returns the next state; its result must depend on its two
    arguments only. The replay starts at the nearest sound snapshot, read with *decode*, or with *initial* at
    the log start offset if there is none; records that retention deleted before that are not part of the
    state. With *save_every* a snapshot, made with *encode*, is saved after every *save_every* records and at
    the end; it is durable on return. Without *save_every* nothing is written.

    Records of aborted transactions are left out. With *committed* False they count, and so do open
    transactions, up to the high watermark. Snapshots are of committed records, so that replay uses none.

    Raises:
        OffsetOutOfRange: If *end_offset* is above the last stable offset or below the log start offset, or if
            records after the snapshot were deleted.
        InvalidSetting: If *save_every* is given and *committed* is False.
    """
    if save_every is not None and not committed:
        raise InvalidSetting("save_every", save_every, "None where records are not committed")
    high = topic.last_stable_offset(partition) if committed else topic.high_watermark(partition)
    end = high if end_offset is None else end_offset
    if end > high:
        raise OffsetOutOfRange(end, topic.log_start_offset(partition), high)
    kept = topic.snapshots(partition)
    nearest = kept.nearest(end) if committed else Nearest(None)
    state, start = initial, topic.log_start_offset(partition)
    if nearest.snapshot is not None:
        state, start = decode(nearest.snapshot.state), nearest.snapshot.offset
    if end < start:
        raise OffsetOutOfRange(end, start, high)
    saved, count, offset = start, 0, start
    for record in topic.read(partition, start, end, committed=committed):
        state = fold(state, record)
        offset, count = record.offset + 1, count + 1
        if save_every is not None and count % save_every == 0:
            kept.save(offset, encode(state))
            saved = offset
    if save_every is not None and end > saved:
        kept.save(end, encode(state))
    return Replayed(state, end, start, count, nearest.skipped)
