"""Making and reopening the segment that takes appends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cordwood.clock import Clock
from cordwood.config import TopicConfig
from cordwood.formats.format import Format
from cordwood.index.time import TimeIndex
from cordwood.storage.files import File, Files, write_all
from cordwood.storage.mark import Mark
from cordwood.storage.open_files import OpenFiles
from cordwood.storage.partition_state import Bound, PartitionState, active_info
from cordwood.storage.reading import index_frames, left_before
from cordwood.storage.segment import (
    ActiveSegment,
    Segment,
    Stores,
    segment_path,
    segments_directory,
    sidecar_end,
)
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


def create_stores(files: Files, directory: str, base: int, config: TopicConfig, format_: Format) -> Stores:
    """Make the empty files of the segment that starts at *base*. Their names are durable on return.

    Files of these names are what a crash left of an earlier try: nothing committed ever named them.
    """
    file = _create(files, segment_path(directory, base, "log"), b"")
    beside = None
    sidecar = format_.sidecar
    if sidecar is not None:
        head = sidecar.head(base)
        beside = Store(_create(files, segment_path(directory, base, sidecar.suffix), head), len(head))
    # The new segment's name lives in the directory, not in the file. Without this sync a power cut can
    # leave acknowledged records in a file no listing shows.
    files.sync_directory(segments_directory(directory))
    return Stores(Store(file, 0, preallocate=may_preallocate(config, format_)), beside)


def _create(files: Files, path: str, content: bytes) -> File:
    try:
        file = files.open(path, "create")
    except FileExistsError:
        file = files.open(path, "write")
        file.truncate(0)
        file.sync()
    if content:
        write_all(file, 0, content)
        file.sync()
    return file


def open_stores(files: Files, directory: str, end: Bound, config: TopicConfig, format_: Format) -> Stores:
    """Open the files of the segment that ends at *end*, where they end too, to go on appending."""
    log = files.open(segment_path(directory, end.base, "log"), "write")
    beside = None
    sidecar = format_.sidecar
    if sidecar is not None:
        file = files.open(segment_path(directory, end.base, sidecar.suffix), "write")
        beside = Store(file, sidecar_end(sidecar, end.base, end.next_offset))
    return Stores(Store(log, end.position, preallocate=may_preallocate(config, format_)), beside)


def may_preallocate(config: TopicConfig, format_: Format) -> bool:
    """Return whether space is reserved ahead: not beside a sidecar, where zeros say nothing."""
    return config.preallocate and format_.sidecar is None


def empty_active(
    around: Surroundings, directory: str, state: PartitionState, stores: Stores, format_: Format
) -> ActiveSegment:
    """Return the active segment of *state*, without frames."""
    info = active_info(state, Bound(state.active_base, 0, state.active_base))
    left = bytes.fromhex(state.before)
    return ActiveSegment(around.open_files, directory, info, format_, stores, NOT_OPENED, left)


def reopen_active(
    around: Surroundings,
    directory: str,
    config: TopicConfig,
    format_: Format,
    state: PartitionState,
    end: Bound,
) -> ActiveSegment:
    """Open the segment that ends at *end* to go on appending, its indexes built anew and written."""
    info = active_info(state, end)
    segment = Segment(around.open_files, directory, info, format_)
    bounds = bounds_of(state, info, config.stored_bytes_max)
    index, times = segment.new_indexes()
    index_frames(segment, bounds, index, times, (end.base, 0))
    left = left_before(segment, bounds, index) or b""
    around.open_files.forget(segment.number)
    stores = open_stores(around.files, directory, end, config, format_)
    opened = opened_ms(times, around.clock)
    active = ActiveSegment(around.open_files, directory, info, format_, stores, opened, left)
    active.take_indexes(index, times)
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
