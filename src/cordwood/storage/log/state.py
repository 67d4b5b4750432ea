"""The content of `partition.json`: the segments of a partition. Its rename commits every change."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

import msgspec

from cordwood.config import TopicConfig
from cordwood.disk import Files, join, read_metadata, write_metadata
from cordwood.errors import DirectoryRefused, MetadataDamaged
from cordwood.index import NO_TIMESTAMP
from cordwood.storage.meta import check_stored_number, check_stored_place

#: Version 2 has segments with a sparse time index, version 3 has transactions. A partition keeps its version
#: until it gets the first one of either.
LAYOUT_VERSION = 3
SPARSE_TIMES_VERSION = 2
#: How many leader epochs are left to each takeover, for truncations by its owner; see `current_epoch`.
EPOCHS_PER_TAKEOVER = 16
#: Frames have 31 bits for their leader epoch. Above this number takeovers do not count any more.
_TAKEOVER_EPOCH_MAX = 1 << 30


class SealedInfo(msgspec.Struct, frozen=True):
    """A sealed segment: never changed in place, so what is said here stays true of its file."""

    base: int
    size: int
    next_offset: int
    max_timestamp: int = NO_TIMESTAMP
    index_interval_bytes: int = 4096
    index_crc32c: int = 0
    time_index_crc32c: int = 0
    sha256: str | None = None
    #: When it got its first record and when it was sealed; how often compaction has rewritten it since, which
    #: leaves gaps between its offsets.
    opened_ms: int = NO_TIMESTAMP
    sealed_ms: int = NO_TIMESTAMP
    generation: int = 0
    #: Since when the tombstones in it have nothing left to delete; NO_TIMESTAMP while they may have.
    tombstones_since_ms: int = NO_TIMESTAMP
    #: The number of records between two index entries in formats with a record in each frame, else 0.
    index_interval_records: int = 0
    #: The carry-over of the frame before the first one, in hex; empty if frames are independent.
    before: str = ""
    #: Whether the time index has few entries; see `TimeIndex`. Layout version 1 had one for each growth.
    time_index_sparse: bool = False
    #: When it took its last append, by our own clock; version 0.1.0 did not write it.
    appended_ms: int = NO_TIMESTAMP
    #: How many aborted transactions have their marker in it, and the checksum of their index.
    aborted_count: int = 0
    aborted_crc32c: int = 0

    @property
    def last_append_ms(self) -> int:
        """A time that no record of it was appended after, by our own clock; NO_TIMESTAMP if unknown."""
        return self.sealed_ms if self.appended_ms == NO_TIMESTAMP else self.appended_ms


def age_from(info: SealedInfo, config: TopicConfig, max_timestamp: int | None = None) -> int:
    """Return since when the newest record of a segment ages, NO_TIMESTAMP if that is unknown.

    With ``cordwood.retention.clock=append`` that is its last append by our own clock, whatever the timestamps
    of producers say. With ``timestamp`` it is *max_timestamp*, the segment's if None, and not later than the
    sealing.
    """
    if config.retention_clock == "append":
        return info.last_append_ms
    largest = info.max_timestamp if max_timestamp is None else max_timestamp
    known = [ms for ms in (largest, info.sealed_ms) if ms != NO_TIMESTAMP]
    return min(known, default=NO_TIMESTAMP)


class Epoch(msgspec.Struct, frozen=True):
    """A leader epoch and the first offset appended under it."""

    epoch: int
    start_offset: int


class Bound(msgspec.Struct, frozen=True):
    """Every byte of segment ``base`` before ``position`` is synced; ``next_offset`` comes there."""

    base: int
    position: int
    next_offset: int


class Cut(Bound, frozen=True):
    """Where a truncation ends the log; ``copied`` if that segment has a new file prepared for it."""

    copied: bool = False

    @property
    def end(self) -> Bound:
        """Where the log ends."""
        return Bound(self.base, self.position, self.next_offset)


class PartitionState(msgspec.Struct, frozen=True, kw_only=True):
    """The content of `partition.json`; docs/formats/directory.md says what each field means."""

    format: int = SPARSE_TIMES_VERSION
    topic: str
    topic_id: str
    partition: int
    record_format: str = "batch"
    index_interval_bytes: int = 4096
    log_start_offset: int = 0
    leader_epoch: int = 0
    epochs: tuple[Epoch, ...]
    epoch_start: Bound
    active_base: int
    sealed: tuple[SealedInfo, ...] = ()
    truncating: Cut | None = None
    #: The generation of the active segment: not 0 where a truncation made a compacted one active again.
    active_generation: int = 0
    #: The base of a segment whose new files may not have their names yet.
    swapping: int | None = None
    #: As of a sealed segment, for those that are yet to be sealed and for the active one.
    index_interval_records: int = 0
    before: str = ""
    #: As of a sealed segment, for the active one.
    time_index_sparse: bool = False
    #: The tenant in its records, in formats that store one: the org of the topic, or 0 in partitions that
    #: were created when records of every org had 0.
    tenant: int = 0
    #: The bases of segments that the last change of the log start removed, whose files may still be there.
    removing: tuple[int, ...] = ()
    #: Whether it has, or ever had, records of transactions.
    transactional: bool = False
    #: The takeover of the directory that was the newest one when ``leader_epoch`` began.
    takeover: int = 0

    def epochs_within(self, start_offset: int, end_offset: int) -> tuple[tuple[int, int], ...]:
        """Return (start offset, epoch) of the leader epochs that frames of [start, end) carry."""
        starts = [epoch.start_offset for epoch in self.epochs]
        first = max(bisect_right(starts, start_offset) - 1, 0)
        last = max(bisect_right(starts, max(end_offset - 1, start_offset)) - 1, 0)
        return tuple((epoch.start_offset, epoch.epoch) for epoch in self.epochs[first : last + 1])


_DECODER = msgspec.json.Decoder(PartitionState)


def new_state(
    topic: str,
    topic_id: str,
    partition: int,
    *,
    initial_offset: int,
    index_interval_bytes: int,
    record_format: str = "batch",
    index_interval_records: int = 0,
    tenant: int = 0,
) -> PartitionState:
    """Return the state of a partition without records whose first offset will be *initial_offset*."""
    return PartitionState(
        topic=topic,
        topic_id=topic_id,
        partition=partition,
        record_format=record_format,
        index_interval_bytes=index_interval_bytes,
        index_interval_records=index_interval_records,
        log_start_offset=initial_offset,
        epochs=(Epoch(0, initial_offset),),
        epoch_start=Bound(initial_offset, 0, initial_offset),
        active_base=initial_offset,
        time_index_sparse=True,
        tenant=tenant,
    )


def active_info(state: PartitionState, end: Bound) -> SealedInfo:
    """Return what is known of the active segment if it ends at *end*."""
    return SealedInfo(
        base=end.base,
        size=end.position,
        next_offset=end.next_offset,
        index_interval_bytes=state.index_interval_bytes,
        generation=state.active_generation,
        index_interval_records=state.index_interval_records,
        before=state.before,
        time_index_sparse=state.time_index_sparse,
    )


def sealed_state(state: PartitionState, info: SealedInfo, left: bytes = b"") -> PartitionState:
    """Return the state after the active segment was sealed as *info* and the next one opened.

    *left* is what its last frame leaves for the first one of the next segment.
    """
    return msgspec.structs.replace(
        state,
        format=max(state.format, SPARSE_TIMES_VERSION),
        sealed=(*state.sealed, info),
        active_base=info.next_offset,
        active_generation=0,
        before=left.hex(),
        time_index_sparse=True,
    )


def swapped_state(state: PartitionState, info: SealedInfo) -> PartitionState:
    """Return the state that commits a swap: *info* takes the place of the segments whose offsets it has."""
    before = tuple(s for s in state.sealed if s.next_offset <= info.base)
    after = tuple(s for s in state.sealed if s.base >= info.next_offset)
    return msgspec.structs.replace(
        state,
        format=max(state.format, SPARSE_TIMES_VERSION),
        sealed=(*before, info, *after),
        swapping=info.base,
    )


def transactional_state(state: PartitionState) -> PartitionState:
    """Return the state of a partition that is about to get its first record of a transaction."""
    return msgspec.structs.replace(state, format=LAYOUT_VERSION, transactional=True)


def current_epoch(state: PartitionState, takeover: int) -> int:
    """Return the leader epoch that the next record gets, in a directory whose newest takeover is *takeover*.

    A machine that takes a log over does not know what its last owner appended and never shipped. So it begins
    an epoch of its own, which depends on the number of the takeover: two machines that take over one after
    the other, from the same state, must not begin the same one. Whoever shipped nothing of it may have
    truncated the log too, hence `EPOCHS_PER_TAKEOVER`.
    """
    if state.takeover >= takeover:
        return state.leader_epoch
    return max(state.leader_epoch + 1, min(takeover * EPOCHS_PER_TAKEOVER, _TAKEOVER_EPOCH_MAX))


def first_epoch(takeover: int) -> int:
    """Return the leader epoch of the first record of a partition that was never used; see `current_epoch`."""
    return min(takeover * EPOCHS_PER_TAKEOVER, _TAKEOVER_EPOCH_MAX)


def begun_state(state: PartitionState, end: Bound, takeover: int) -> PartitionState:
    """Return the state in which the epoch of *takeover* has begun at *end*, where the log ends."""
    epoch = current_epoch(state, takeover)
    assert epoch > state.leader_epoch, "the epoch of the takeover has begun already"
    assert end.base == state.active_base, "an epoch begins in the active segment"
    return msgspec.structs.replace(
        state,
        leader_epoch=epoch,
        epochs=(*epochs_below(state.epochs, end.next_offset), Epoch(epoch, end.next_offset)),
        epoch_start=end,
        takeover=takeover,
    )


def epochs_below(epochs: Iterable[Epoch], end_offset: int) -> tuple[Epoch, ...]:
    """Return the epochs that have records in a log that ends at *end_offset*."""
    return tuple(each for each in epochs if each.start_offset < end_offset)


def truncated_state(state: PartitionState, cut: Cut, takeover: int = 0) -> PartitionState:
    """Return the state that commits a truncation: the segment that is cut is active again and ends there.

    *takeover* is the newest takeover of the directory.
    """
    end = cut.end
    # Clients may know the epoch of the takeover already: it ended, for them, where the log ended.
    epoch = current_epoch(state, takeover) + 1
    sealed = next((s for s in state.sealed if s.base == end.base), None)
    generation = state.active_generation if sealed is None else sealed.generation
    return msgspec.structs.replace(
        state,
        leader_epoch=epoch,
        epochs=(*epochs_below(state.epochs, end.next_offset), Epoch(epoch, end.next_offset)),
        epoch_start=end,
        takeover=max(state.takeover, takeover),
        active_base=end.base,
        sealed=tuple(s for s in state.sealed if s.base < end.base),
        truncating=cut,
        active_generation=generation,
        before=state.before if sealed is None else sealed.before,
        time_index_sparse=state.time_index_sparse if sealed is None else sealed.time_index_sparse,
    )


def advanced_state(
    state: PartitionState, log_start_offset: int, unremoved: Iterable[int] = ()
) -> PartitionState:
    """Return the state after the log start moved; segments with nothing left to read are not in it.

    *unremoved* are the bases of segments that left the state before and whose files are still there.
    """
    going = (s.base for s in state.sealed if s.next_offset <= log_start_offset)
    return msgspec.structs.replace(
        state,
        log_start_offset=log_start_offset,
        sealed=tuple(s for s in state.sealed if s.next_offset > log_start_offset),
        removing=(*unremoved, *going),
    )


def state_path(directory: str) -> str:
    """Return the path of `partition.json`."""
    return join(directory, "partition.json")


def mark_path(directory: str) -> str:
    """Return the path of the partition's mark."""
    return join(directory, "mark")


def write_state(files: Files, directory: str, state: PartitionState) -> None:
    """Commit *state*. Durable on return."""
    write_metadata(files, state_path(directory), state)


def _check_names(path: str, state: PartitionState) -> None:
    """Refuse names and numbers that files would be called by."""
    check_stored_place(path, state.topic, state.topic_id, state.partition)
    for segment in state.sealed:
        check_stored_number(path, "base offset", segment.base)
        check_stored_number(path, "next offset", segment.next_offset)
    for bound in (state.epoch_start, *(() if state.truncating is None else (state.truncating,))):
        check_stored_number(path, "base offset", bound.base)
        check_stored_number(path, "position", bound.position)
        check_stored_number(path, "next offset", bound.next_offset)
    check_stored_number(path, "base offset", state.active_base)
    check_stored_number(path, "base offset", state.swapping or 0)
    for base in state.removing:
        check_stored_number(path, "base offset", base)


def read_state(files: Files, directory: str) -> PartitionState:
    """Return the committed state.

    Raises:
        MetadataDamaged: If it cannot be read, or contradicts itself.
        DirectoryRefused: If a newer version of Cordwood wrote it.
    """
    path = state_path(directory)
    state = read_metadata(files, path, _DECODER)
    if state.format > LAYOUT_VERSION:
        raise DirectoryRefused(f"{path} has format {state.format}; this version reads up to {LAYOUT_VERSION}")
    _check_names(path, state)
    bases = [segment.base for segment in state.sealed] + [state.active_base]
    ends = [segment.next_offset for segment in state.sealed]
    if any(end != base for end, base in zip(ends, bases[1:], strict=True)) or not state.epochs:
        raise MetadataDamaged(path, "its segments do not follow each other")
    return state
