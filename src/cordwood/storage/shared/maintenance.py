"""Retention for partitions in the shared log, and reclaiming the space of dead frames.

Retention only moves the start of a partition, by appending one small frame; no record is renumbered. Dead
frames take space until most of a sealed segment is dead. Then its live frames are copied to a new file with
the same bytes and ids, and the file replaces the segment as in a compaction.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from pyroaring import BitMap64

from cordwood.config import TopicConfig
from cordwood.errors import CorruptRange, LogClosed, StorageError, UnknownTopic
from cordwood.formats.shared import EnvelopeKind, Owner, OwnerEntry, Role, unpack_entry
from cordwood.storage.chain import Chains
from cordwood.storage.log import (
    Bounds,
    LogContext,
    Pace,
    SealedInfo,
    Segment,
    View,
    age_from,
    bounds_of,
    no_pace,
)
from cordwood.storage.log.changes import discard_prepared, swap_path
from cordwood.storage.maintenance import (
    NOTHING_RECLAIMED,
    Expired,
    Expiry,
    Reclaimed,
    RewriteInput,
    Rewritten,
    as_storage_errors,
    expire_evidence,
    follow,
    lapse_reason,
    note_unknown_ages,
    rewrite_whole,
    swap_prepared,
    write_synced,
)
from cordwood.storage.shared.log import SharedLog
from cordwood.storage.shared.offsets import VirtualPartition
from cordwood.storage.shared.owner_index import SUFFIX, index_path, missing_entries, saved_entries
from cordwood.storage.shared.virtual_log import VirtualLog
from cordwood.telemetry import BYTES_RECLAIMED, SEGMENTS_DELETED

#: The dead fraction from which a segment is rewritten.
DEAD_RATIO = 0.5
#: The smallest size in bytes at which the active segment is sealed because of its dead frames.
ACTIVE_BYTES_MIN = 1 << 20
#: The number of partitions whose start is moved with one sync.
STARTS_PER_SYNC = 1000


class ExpiredStart(NamedTuple):
    """A partition whose records below ``start`` retention no longer keeps."""

    part: VirtualPartition
    start: int
    expired: Expired


def lapsed_frames(
    frames: Iterable[tuple[OwnerEntry, SealedInfo | None]],
    config: TopicConfig,
    size: int,
    now_ms: int,
    needed_from: int | None = None,
) -> Iterator[tuple[Expiry, bool]]:
    """Yield the oldest frames that *config* does not keep, each with whether its segment is sealed. Pure.

    *frames* are the partition's frames in order, each with its segment's entry in `partition.json`, None for
    the active one, whose frames expire only once it is sealed. By the clock of appends, a frame ages from the
    last append to its segment. All frames of the partition take *size* bytes.
    The first kept frame ends the result. *needed_from* is the first offset that a consumer group has not read
    yet.
    """
    for entry, info in frames:
        newest = entry.max_timestamp if info is None else age_from(info, config, entry.max_timestamp)
        reason = lapse_reason(newest, entry.size, size, config, now_ms)
        if reason is None or (needed_from is not None and entry.next_offset > needed_from):
            return
        yield Expiry(entry.first_offset, entry.next_offset, entry.size, reason), info is not None
        size -= entry.size


def expire_virtual(
    shared: SharedLog,
    logs: Iterable[VirtualLog],
    now_ms: int,
    needed_from: int | None = None,
    policy: TopicConfig | None = None,
) -> tuple[Expired, ...]:
    """Move the starts of partitions past their expired records. Durable on return.

    *policy* takes the place of the settings of each partition.
    """
    done: list[Expired] = []
    due: list[ExpiredStart] = []
    for log in logs:
        with contextlib.suppress(LogClosed, UnknownTopic):
            lapse = _lapse(shared, log, log.config if policy is None else policy, now_ms, needed_from)
            if lapse is not None:
                due.append(lapse)
        if len(due) == STARTS_PER_SYNC:
            done += _move(shared, due)
            due = []
    return (*done, *_move(shared, due))


def _move(shared: SharedLog, due: list[ExpiredStart]) -> list[Expired]:
    shared.set_starts((lapse.part, lapse.start) for lapse in due)
    return [lapse.expired for lapse in due]


def _lapse(
    shared: SharedLog, log: VirtualLog, config: TopicConfig, now_ms: int, needed_from: int | None
) -> ExpiredStart | None:
    part = log.part
    part.lapsed_bytes = 0
    if "delete" not in config.cleanup_policy or (config.retention_ms < 0 and config.retention_bytes < 0):
        return None
    frames = list(
        lapsed_frames(shared.reader().known_entries(part.offsets), config, part.size, now_ms, needed_from)
    )
    part.lapsed_bytes = sum(each.size for each, is_sealed in frames if not is_sealed)
    expired = [each for each, is_sealed in frames if is_sealed]
    if not expired:
        return None
    start, state = expired[-1].next_offset, log.state
    count = start - part.offsets.start
    return ExpiredStart(part, start, Expired(state.topic, state.partition, tuple(expired), start, count))


# --- space -----------------------------------------------------------------------------------------


def seal_mostly_dead(shared: SharedLog) -> bool:
    """Seal the active segment if at least half of it is dead, or would be once sealed; return whether it was.

    Retention and reclaiming work on sealed segments only. Without this, topics with short retention would
    fill an active segment of a gigabyte before any of it is deleted. The expired part is known from the last
    call of `expire_virtual`.
    """
    size = shared.log.active_size
    if size < ACTIVE_BYTES_MIN:
        return False
    lapsed = sum(part.lapsed_bytes for part in shared.topics)
    if shared.dead_bytes + lapsed < DEAD_RATIO * size:
        return False
    # Between an append and its entry in the index the log must not roll: the entry has the frame's position.
    with shared.lock:
        shared.log.roll()
    for part in shared.topics:
        part.lapsed_bytes = 0
    return True


class _Load(NamedTuple):
    """A sealed segment, and how much of it is live, not counting frames that end topics.

    ``bounds`` is None if its index is incomplete. The next open repairs the index; until then the segment
    stays.
    """

    segment: Segment
    bounds: Bounds | None
    live_bytes: int
    frames: int

    @property
    def is_mostly_dead(self) -> bool:
        """Whether rewriting it is worthwhile."""
        dead = self.segment.info.size - self.live_bytes
        # The last frame always stays, so a segment with one frame cannot shrink.
        return self.frames > 1 and dead >= DEAD_RATIO * self.segment.info.size

    def entries(self) -> Iterator[OwnerEntry]:
        """Yield what its index says, of every frame.

        Raises:
            StorageError: If entries are missing now. The caller must stop.
        """
        assert self.bounds is not None
        end = 0
        for entry in saved_entries(self.segment, self.bounds):
            end = entry.end
            yield entry
        if end != self.bounds.end:
            path = index_path(self.segment.directory, self.segment.base)
            raise StorageError(f"{path}: cannot be read to its end any more, opening the log makes it again")


def reclaim(around: LogContext, chains: Chains, shared: SharedLog, pace: Pace = no_pace) -> Reclaimed:
    """Free the space of dead frames in sealed segments that are mostly dead; report how much.

    Every step is crash-safe: a segment is either old or new. Live frames keep their bytes and ids. The chain
    gets its statement before frames are removed. One caller at a time.

    Raises:
        CorruptRange: If a segment to copy is damaged. All others were processed.
        StorageError: If an index cannot be read.
        DiskFull: Earlier steps stay; nothing else has changed.
    """
    log = shared.log
    # As in `seal_mostly_dead`.
    with shared.lock:
        log.seal_idle(around.clock.now_ms())
    note_unknown_ages(log, around.clock.now_ms())
    _expire_producers(shared, around.clock.now_ms() - around.producer_expiration_ms())
    followed = follow(chains, log)
    view = log.view
    loads = [
        _load(view, shared, at)
        for at, segment in enumerate(view.segments[:-1])
        if followed is None or segment.info.next_offset <= followed
    ]
    first_live = next((at for at, load in enumerate(loads) if load.live_bytes), len(loads))
    total = _remove_first(around, chains, shared, loads[:first_live], followed)
    staying = _Staying()
    damage: CorruptRange | None = None
    for group in _groups(loads[first_live:], log.config.segment_bytes):
        if not group[0].is_mostly_dead:
            if group[0].bounds is None:
                # The owners in this segment are unknown, so all frames that end a topic stay.
                break
            staying.add_all(group)
            continue
        kept = _kept(shared, group, staying)
        if len(group) == 1 and len(kept) == group[0].frames:
            # Dead, but all of it must stay: rewriting it would give the same segment each time.
            continue
        try:
            freed = _copy(around, chains, shared, view, tuple(load.segment for load in group), kept, pace)
        except CorruptRange as error:
            # These segments keep all frames; damage in them must not stop the others.
            damage = damage or error
            with contextlib.suppress(OSError):
                discard_prepared(around.files, log.directory)
            staying.add_all(group)
            continue
        total = total.plus(freed)
    expire_evidence(around, chains, log)
    if damage is not None:
        raise damage
    return total


def _expire_producers(shared: SharedLog, before_ms: int) -> None:
    """Forget producers without a batch since *before_ms*, so that their newest batches need not be kept."""
    with shared.lock:
        for part in shared.topics:
            if part.producers is not None:
                part.producers.expire(before_ms, now=True)


def _load(view: View, shared: SharedLog, at: int) -> _Load:
    segment, bounds = view.segments[at], view.bounds(at)
    live, frames, end = 0, 0, 0
    for entry in saved_entries(segment, bounds):
        live += 0 if entry.kind == EnvelopeKind.ENDED or shared.is_dead(entry) else entry.size
        frames, end = frames + 1, entry.end
    if end != bounds.end:
        return _Load(segment, None, segment.info.size, frames)
    return _Load(segment, bounds, live, frames)


def _groups(loads: list[_Load], segment_bytes: int) -> Iterator[list[_Load]]:
    """Yield single segments, and groups of adjacent segments that are mostly dead."""
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


class _Staying:
    """The frames that stay so far, in order, as far as later frames depend on them.

    The end of a topic must be kept as long as one of its frames exists: the frame would otherwise count for
    the next topic of that name. A marker must be kept as long as a batch of its transaction exists, which
    would otherwise be open for ever.
    """

    def __init__(self) -> None:
        self._owners: set[Owner] = set()
        #: Producers by owner, with a batch of a transaction whose marker is still to come.
        self._open: dict[Owner, set[int]] = {}

    def needs(self, entry: OwnerEntry) -> bool:
        """Return whether the next frame must stay because of frames before it."""
        if entry.kind == EnvelopeKind.ENDED:
            return entry.owner in self._owners
        open_ = self._open.get(entry.owner, ())
        return entry.producer_id in open_ and entry.marker is not None

    def add(self, entry: OwnerEntry) -> None:
        """Note that the next frame stays."""
        owner = entry.owner
        self._owners.add(owner)
        if entry.kind == EnvelopeKind.ENDED:
            self._open.pop(owner, None)
        elif entry.role == Role.RECORDS:
            self._open.setdefault(owner, set()).add(entry.producer_id)
        elif entry.marker is not None and owner in self._open:
            self._open[owner].discard(entry.producer_id)

    def add_all(self, group: list[_Load]) -> None:
        """Note that all frames of the next segments stay. Raises as `_Load.entries` does."""
        for load in group:
            for entry in load.entries():
                self.add(entry)


def _kept(shared: SharedLog, group: list[_Load], staying: _Staying) -> BitMap64:
    """Return the first ids of the frames of *group* that stay; *staying* are those before them."""
    kept, last = BitMap64(), None
    for load in group:
        for entry in load.entries():
            last = entry
            ended = entry.kind == EnvelopeKind.ENDED
            if staying.needs(entry) or not (ended or shared.is_dead(entry)):
                kept.add(entry.first_id)
                staying.add(entry)
    if last is not None and last.first_id not in kept:
        kept.add(last.first_id)
        staying.add(last)
    return kept


def _remove_first(
    around: LogContext, chains: Chains, shared: SharedLog, loads: list[_Load], followed: int | None
) -> Reclaimed:
    """Remove the first segments, which have no live frames."""
    if not loads:
        return NOTHING_RECLAIMED
    log, end = shared.log, loads[-1].segment.info.next_offset
    dropped = sum(
        entry.id_count for load in loads for entry in load.entries() if entry.kind == EnvelopeKind.RECORDS
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
    around: LogContext,
    chains: Chains,
    shared: SharedLog,
    view: View,
    old: tuple[Segment, ...],
    kept: BitMap64,
    pace: Pace,
) -> Reclaimed:
    """Replace the segments *old* by one with their *kept* frames."""
    log = shared.log
    base, now_ms = old[0].base, around.clock.now_ms()
    work = RewriteInput(
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
    if not swap_prepared(around, log, chains if followed else None, work, old, found):
        return NOTHING_RECLAIMED
    shared.forget(old)
    assert found.info is not None
    freed = sum(segment.info.size for segment in old) - found.info.size
    return Reclaimed(len(old), freed, found.records_dropped)


def _write_index(around: LogContext, shared: SharedLog, view: View, found: Rewritten, path: str) -> None:
    """Write the dense index of the prepared segment. The file is synced, its directory is not."""
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
