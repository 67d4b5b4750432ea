"""Retention for partitions in the shared log, and the space of what nobody can read any more.

Retention only moves where a partition starts, which is one small frame; nothing is renumbered. What that
leaves dead takes space until most of a sealed segment is dead: then its live frames are copied to a new file,
as they are and with the ids they have, and the file takes the segment's place as in a compaction.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from pyroaring import BitMap64

from cordwood.config import TopicConfig
from cordwood.errors import CorruptRange, LogClosed, StorageError, UnknownTopic
from cordwood.formats.envelope import Kind, Owner
from cordwood.formats.owners import OwnerEntry, unpack_entry
from cordwood.storage.active import Surroundings
from cordwood.storage.chain import Chains
from cordwood.storage.compactor import as_storage_errors, put_in_place
from cordwood.storage.files import Files
from cordwood.storage.maintenance import NOTHING_RECLAIMED, Expired, Reclaimed, follow
from cordwood.storage.owner_index import SUFFIX, index_path, missing_entries, saved_entries
from cordwood.storage.partition_state import SealedInfo
from cordwood.storage.reading import Bounds
from cordwood.storage.retention import Expiry, lapse_reason
from cordwood.storage.rewriting import Pace, Rewriting, Rewritten, no_pace, rewrite_whole, write_synced
from cordwood.storage.segment import Segment
from cordwood.storage.shared_log import SharedLog
from cordwood.storage.swapping import discard_prepared, swap_path
from cordwood.storage.view import View, bounds_of
from cordwood.storage.virtual_log import VirtualLog
from cordwood.storage.virtual_topics import VirtualPartition
from cordwood.telemetry import BYTES_RECLAIMED, SEGMENTS_DELETED

#: A segment is written anew once so much of it is dead.
DEAD_RATIO = 0.5
#: So many partitions have their start moved with one sync.
STARTS_PER_SYNC = 1000


class Lapse(NamedTuple):
    """A partition whose records below ``start`` retention no longer keeps."""

    part: VirtualPartition
    start: int
    expired: Expired


def lapsed_frames(
    frames: Iterable[tuple[OwnerEntry, SealedInfo]],
    config: TopicConfig,
    size: int,
    now_ms: int,
    needed_from: int | None = None,
) -> list[Expiry]:
    """Return the oldest frames that *config* no longer keeps, each with its reason. Pure.

    *frames* are those of a partition in sealed segments, in order, each with what is said of its segment; all
    of the partition's take *size* bytes. The first one that is kept ends it. *needed_from* is the first
    offset that somebody has not read yet.
    """
    found: list[Expiry] = []
    for entry, info in frames:
        reason = lapse_reason(min(entry.max_timestamp, info.sealed_ms), entry.size, size, config, now_ms)
        if reason is None or (needed_from is not None and entry.next_offset > needed_from):
            break
        found.append(Expiry(entry.first_offset, entry.next_offset, entry.size, reason))
        size -= entry.size
    return found


def expire_virtual(
    shared: SharedLog, logs: Iterable[VirtualLog], now_ms: int, needed_from: int | None = None
) -> tuple[Expired, ...]:
    """Move the starts of partitions past what their retention no longer keeps. Durable on return."""
    done: list[Expired] = []
    due: list[Lapse] = []
    for log in logs:
        with contextlib.suppress(LogClosed, UnknownTopic):
            lapse = _lapse(shared, log, now_ms, needed_from)
            if lapse is not None:
                due.append(lapse)
        if len(due) == STARTS_PER_SYNC:
            done += _move(shared, due)
            due = []
    return (*done, *_move(shared, due))


def _move(shared: SharedLog, due: list[Lapse]) -> list[Expired]:
    shared.start_all_at((lapse.part, lapse.start) for lapse in due)
    return [lapse.expired for lapse in due]


def _lapse(shared: SharedLog, log: VirtualLog, now_ms: int, needed_from: int | None) -> Lapse | None:
    config, part = log.config, log.part
    if "delete" not in config.cleanup_policy or (config.retention_ms < 0 and config.retention_bytes < 0):
        return None
    expired = lapsed_frames(
        shared.reader().sealed_entries(part.offsets), config, part.size, now_ms, needed_from
    )
    if not expired:
        return None
    start, state = expired[-1].next_offset, log.state
    count = start - part.offsets.start
    return Lapse(part, start, Expired(state.topic, state.partition, tuple(expired), start, count))


# --- space -----------------------------------------------------------------------------------------


class _Load(NamedTuple):
    """A sealed segment, and how much of it is needed: frames that end topics aside.

    ``bounds`` is None where its index is not whole, which the next opening sets right; until then it stays.
    """

    segment: Segment
    bounds: Bounds | None
    live_bytes: int
    frames: int

    @property
    def is_mostly_dead(self) -> bool:
        """Whether it is worth being written anew."""
        dead = self.segment.info.size - self.live_bytes
        # The last frame stays whatever it is, so one that is alone in its segment has nothing to give.
        return self.frames > 1 and dead >= DEAD_RATIO * self.segment.info.size

    def entries(self, files: Files) -> Iterator[OwnerEntry]:
        """Yield what its index says, of every frame.

        Raises:
            StorageError: If it does not say it of all of them any more. Whoever goes by it must not go on.
        """
        assert self.bounds is not None
        end = 0
        for entry in saved_entries(files, self.segment, self.bounds):
            end = entry.end
            yield entry
        if end != self.bounds.end:
            path = index_path(self.segment.directory, self.segment.base)
            raise StorageError(f"{path}: cannot be read to its end any more, opening the log makes it again")


def reclaim(around: Surroundings, chains: Chains, shared: SharedLog, pace: Pace = no_pace) -> Reclaimed:
    """Free the space of dead frames in sealed segments that are mostly dead; say how much that was.

    Crash-safe step by step: a segment is as it was or new. Frames that stay keep their bytes and ids. The
    chain is told before anything goes. One caller at a time.

    Raises:
        CorruptRange: If a segment that was to be copied is damaged. All others were looked after.
        StorageError: If an index cannot be read.
        DiskFull: What was done before stays; nothing else has changed.
    """
    log = shared.log
    log.seal_idle(around.clock.now_ms())
    _expire_producers(shared, around.clock.now_ms() - around.producer_expiration_ms)
    followed = follow(chains, log)
    view = log.view
    loads = [
        _load(around.files, view, shared, at)
        for at, segment in enumerate(view.segments[:-1])
        if followed is None or segment.info.next_offset <= followed
    ]
    first_live = next((at for at, load in enumerate(loads) if load.live_bytes), len(loads))
    total = _remove_first(around, chains, shared, loads[:first_live], followed)
    present: set[Owner] = set()
    damage: CorruptRange | None = None
    for group in _groups(loads[first_live:], log.config.segment_bytes):
        if not group[0].is_mostly_dead:
            if group[0].bounds is None:
                # Whose frames are in there nobody knows, so whatever says that a topic ended stays.
                break
            present.update(entry.owner for entry in group[0].entries(around.files))
            continue
        kept = _kept(around.files, shared, group, present)
        if len(group) == 1 and len(kept) == group[0].frames:
            # Dead, but all of it must stay: written anew it would be the same, again and again.
            continue
        try:
            freed = _copy(around, chains, shared, view, tuple(load.segment for load in group), kept, pace)
        except CorruptRange as error:
            # These stay as they are, with all frames; what is damaged in them must not stall the others.
            damage = damage or error
            with contextlib.suppress(OSError):
                discard_prepared(around.files, log.directory)
            present.update(entry.owner for load in group for entry in load.entries(around.files))
            continue
        total = total.plus(freed)
    if damage is not None:
        raise damage
    return total


def _expire_producers(shared: SharedLog, before_ms: int) -> None:
    """Forget producers not heard of since *before_ms*: their newest batches need not be kept for them."""
    with shared.lock:
        for part in shared.topics:
            if part.producers is not None:
                part.producers.expire(before_ms, now=True)


def _load(files: Files, view: View, shared: SharedLog, at: int) -> _Load:
    segment, bounds = view.segments[at], view.bounds(at)
    live, frames, end = 0, 0, 0
    for entry in saved_entries(files, segment, bounds):
        live += 0 if entry.kind == Kind.ENDED or shared.is_dead(entry) else entry.size
        frames, end = frames + 1, entry.end
    if end != bounds.end:
        return _Load(segment, None, segment.info.size, frames)
    return _Load(segment, bounds, live, frames)


def _groups(loads: list[_Load], segment_bytes: int) -> Iterator[list[_Load]]:
    """Yield segments one by one, and those that are mostly dead and follow each other together."""
    group: list[_Load] = []
    for load in loads:
        fits = sum(each.live_bytes for each in group) + load.live_bytes <= segment_bytes
        if group and not (load.is_mostly_dead and fits):
            yield group
            group = []
        if load.is_mostly_dead:
            group.append(load)
        else:
            yield [load]
    if group:
        yield group


def _kept(files: Files, shared: SharedLog, group: list[_Load], present: set[Owner]) -> BitMap64:
    """Return the first ids of the frames of *group* that stay; *present* are owners of frames before them.

    That a topic ended is needed for as long as a frame of it is there: it would be taken for the next one's.
    """
    kept, last = BitMap64(), None
    for load in group:
        for entry in load.entries(files):
            last = entry
            ended = entry.kind == Kind.ENDED
            if entry.owner in present if ended else not shared.is_dead(entry):
                kept.add(entry.first_id)
                present.add(entry.owner)
    if last is not None:
        kept.add(last.first_id)
        present.add(last.owner)
    return kept


def _remove_first(
    around: Surroundings, chains: Chains, shared: SharedLog, loads: list[_Load], followed: int | None
) -> Reclaimed:
    """Let go of the first segments, in which nothing is live."""
    if not loads:
        return NOTHING_RECLAIMED
    log, end = shared.log, loads[-1].segment.info.next_offset
    dropped = sum(
        entry.id_count for load in loads for entry in load.entries(around.files) if entry.kind == Kind.RECORDS
    )
    if followed is not None:
        chains.note_removal(log, end, "no topic has a record in it any more")
    log.advance_log_start(end)
    shared.forget(load.segment for load in loads)
    freed = sum(load.segment.info.size for load in loads)
    around.telemetry.add(SEGMENTS_DELETED, len(loads))
    around.telemetry.add(BYTES_RECLAIMED, freed)
    return Reclaimed(len(loads), freed, dropped)


def _copy(
    around: Surroundings,
    chains: Chains,
    shared: SharedLog,
    view: View,
    old: tuple[Segment, ...],
    kept: BitMap64,
    pace: Pace,
) -> Reclaimed:
    """Put one segment with what is *kept* of *old* in their place."""
    log = shared.log
    base, now_ms = old[0].base, around.clock.now_ms()
    work = Rewriting(
        around.files,
        around.open_files,
        log.directory,
        log.format,
        view.state,
        log.config,
        now_ms,
        old[-1].info.next_offset,
        frozenset(),
        pace,
    )

    def target(suffix: str) -> str:
        return swap_path(log.directory, base, suffix)

    with as_storage_errors(around.files, log.directory):
        found = rewrite_whole(work, old, kept.__contains__, target)
        _write_index(around, shared, view, found, target(SUFFIX))
    followed = log.config.chain or chains.exists(log)
    if not put_in_place(around, log, chains if followed else None, work, old, found):
        return NOTHING_RECLAIMED
    shared.forget(old)
    assert found.info is not None
    freed = sum(segment.info.size for segment in old) - found.info.size
    return Reclaimed(len(old), freed, found.records_dropped)


def _write_index(around: Surroundings, shared: SharedLog, view: View, found: Rewritten, path: str) -> None:
    """Write the dense index of what was prepared. Synced, its name aside."""
    assert found.info is not None
    log = shared.log
    segment = Segment(around.open_files, log.directory, found.info, log.format)
    segment.path = swap_path(log.directory, found.info.base, "log")
    bounds = bounds_of(view.state, found.info, log.config.stored_bytes_max)
    entries = bytearray()
    for each in missing_entries(segment, bounds, (segment.base, 0)):
        if not isinstance(each, bytes):
            raise each
        entries += each
    around.open_files.forget(segment.number)
    assert not entries or unpack_entry(entries, 0).segment == found.info.base
    write_synced(around.files, path, bytes(entries))
