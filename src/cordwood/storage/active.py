"""Making and reopening the segment that takes appends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cordwood.clock import Clock
from cordwood.config import TopicConfig
from cordwood.formats.format import Format
from cordwood.index.sparse import SparseIndex
from cordwood.index.time import TimeIndex
from cordwood.storage.files import Files
from cordwood.storage.mark import Mark
from cordwood.storage.partition_state import Bound, PartitionState, SealedInfo
from cordwood.storage.reading import index_frames
from cordwood.storage.segment import ActiveSegment, OpenFiles, Segment, segment_path, segments_directory
from cordwood.storage.store import Store
from cordwood.storage.view import bounds_of
from cordwood.telemetry import Telemetry

if TYPE_CHECKING:
    from cordwood.storage.partition_log import PartitionLog

#: An active segment without frames has not begun to age.
NOT_OPENED = -1


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What every partition log of a data directory shares."""

    files: Files
    open_files: OpenFiles
    clock: Clock
    telemetry: Telemetry
    check_alive: Callable[[], None]
    """Raises LogClosed in a forked child, which must not touch its parent's files."""
    before_change: Callable[[], None]
    """Called before anything on disk changes: the directory is not cleanly closed any more."""
    producer_expiration_ms: int = 24 * 3_600_000
    """How long an idempotent producer that sends nothing is known."""
    changed: set[PartitionLog] = field(default_factory=set)
    """Logs that have a chain, and something that it does not have yet. Any thread adds and takes."""


def create_store(files: Files, directory: str, base: int, config: TopicConfig) -> Store:
    """Make the empty file of the segment that starts at *base*. Its name is durable on return.

    A file of that name is what a crash left of an earlier try: nothing committed ever named it.
    """
    path = segment_path(directory, base, "log")
    try:
        file = files.open(path, "create")
    except FileExistsError:
        file = files.open(path, "write")
        file.truncate(0)
        file.sync()
    # The new segment's name lives in the directory, not in the file. Without this sync a power cut can
    # leave acknowledged records in a file no listing shows.
    files.sync_directory(segments_directory(directory))
    return Store(file, 0, preallocate=config.preallocate)


def empty_active(
    around: Surroundings, directory: str, base: int, store: Store, format_: Format, interval: int
) -> ActiveSegment:
    """Return an active segment without frames."""
    info = SealedInfo(base=base, size=0, next_offset=base, index_interval_bytes=interval)
    indexes = (SparseIndex(interval), TimeIndex())
    return ActiveSegment(around.open_files, directory, info, format_, store, indexes, NOT_OPENED)


def reopen_active(
    around: Surroundings,
    directory: str,
    config: TopicConfig,
    format_: Format,
    state: PartitionState,
    end: Bound,
) -> ActiveSegment:
    """Open the segment that ends at *end* to go on appending, its indexes built anew and written."""
    path = segment_path(directory, end.base, "log")
    info = SealedInfo(
        base=end.base,
        size=end.position,
        next_offset=end.next_offset,
        index_interval_bytes=state.index_interval_bytes,
        generation=state.active_generation,
    )
    segment = Segment(around.open_files, directory, info, format_)
    bounds = bounds_of(state, info, config.stored_bytes_max)
    index, times = SparseIndex(state.index_interval_bytes), TimeIndex()
    index_frames(segment, bounds, index, times, (end.base, 0))
    around.open_files.forget(segment.number)
    store = Store(around.files.open(path, "write"), end.position, preallocate=config.preallocate)
    opened = opened_ms(times, around.clock)
    active = ActiveSegment(around.open_files, directory, info, format_, store, (index, times), opened)
    active.rewrite_indexes()
    return active


def opened_ms(times: TimeIndex, clock: Clock) -> int:
    """Return since when a segment ages: its first timestamp, as far as that is not in the future."""
    if not len(times):
        return NOT_OPENED
    return max(min(times.first_timestamp(), clock.now_ms()), 0)


def mark_of(state: PartitionState, active: ActiveSegment, position: int, next_offset: int) -> Mark:
    """Return the mark that says: *active* is synced up to *position*."""
    flushed = active.flushed
    return Mark(
        leader_epoch=state.leader_epoch,
        sequence=0,
        base=active.base,
        position=position,
        next_offset=next_offset,
        log_start_offset=state.log_start_offset,
        index_entries=flushed.index_entries,
        time_index_entries=flushed.time_entries,
        index_crc=flushed.index_crc,
        time_index_crc=flushed.time_crc,
    )
