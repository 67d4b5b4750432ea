"""One pass of upkeep over a partition: seal what is idle, let expired segments go, compact."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import NamedTuple

from cordwood.config import TopicConfig
from cordwood.errors import CordwoodError, CorruptRange, LogClosed
from cordwood.storage.active import Surroundings
from cordwood.storage.chain import Chains
from cordwood.storage.cleaner_checkpoint import read_checkpoint, write_checkpoint
from cordwood.storage.compaction import plan_compaction
from cordwood.storage.compactor import CompactionReport, compact_partition
from cordwood.storage.files import Files
from cordwood.storage.partition_log import PartitionLog
from cordwood.storage.retention import Expiry, expired_segments
from cordwood.storage.rewriting import Pace, no_pace
from cordwood.storage.store import as_storage_error
from cordwood.storage.view import View
from cordwood.telemetry import BYTES_RECLAIMED, SEGMENTS_DELETED, Telemetry


@dataclass(frozen=True, slots=True)
class Expired:
    """What retention removed from a partition. ``records`` counts offsets, gaps of compaction included."""

    topic: str
    partition: int
    segments: tuple[Expiry, ...]
    log_start_offset: int
    records: int

    @property
    def bytes(self) -> int:
        """The bytes of the segments that went."""
        return sum(segment.size for segment in self.segments)


class Reclaimed(NamedTuple):
    """What freeing the space of dead frames in the shared log came to."""

    segments: int = 0
    bytes_freed: int = 0
    records_dropped: int = 0

    def plus(self, other: Reclaimed) -> Reclaimed:
        """Return both together."""
        return Reclaimed(*(a + b for a, b in zip(self, other, strict=True)))


NOTHING_RECLAIMED = Reclaimed()


@dataclass(frozen=True, slots=True)
class MaintenanceReport:
    """What a pass of upkeep did. ``failures`` are sentences about partitions that it could not keep up."""

    expired: tuple[Expired, ...] = ()
    compacted: tuple[CompactionReport, ...] = ()
    failures: tuple[str, ...] = ()
    segments_hashed: int = 0
    shares_removed: int = 0
    reclaimed: Reclaimed = NOTHING_RECLAIMED

    @property
    def records_removed(self) -> int:
        """How many records went, by retention and by compaction."""
        dropped = sum(report.records_dropped for report in self.compacted)
        return dropped + sum(expired.records for expired in self.expired)


@dataclass(frozen=True, slots=True)
class Planned:
    """What a pass of upkeep would do to a partition now; an active segment that is due to be sealed aside."""

    topic: str
    partition: int
    expired: tuple[Expiry, ...]
    compaction: str | None


def plan_partition(
    files: Files, directory: str, view: View, config: TopicConfig, now_ms: int, *, force: bool = False
) -> Planned:
    """Return what would be done to the partition at *directory*, of which *view* is. Changes nothing."""
    state = view.state
    expired = expired_segments(
        state.sealed,
        config,
        active_bytes=view.position,
        high_watermark=view.high_watermark,
        now_ms=now_ms,
    )
    plan = None
    if "compact" in config.cleanup_policy:
        cleaned = read_checkpoint(files, directory, state, Telemetry()).last_cleaned_offset
        left = state.sealed[len(expired) :]
        plan = plan_compaction(left, cleaned, config, now_ms, force=force)
    return Planned(state.topic, state.partition, tuple(expired), None if plan is None else plan.reason)


def expire_partition(
    around: Surroundings, chains: Chains, log: PartitionLog, *, needed_from: int | None = None
) -> Expired | None:
    """Let go of what retention no longer keeps, and say what that was; None if nothing was.

    The log start moves, durably, before any file goes. *needed_from* is the first offset that somebody has
    not read yet. What the chain of a topic that has one does not cover yet stays as well, and the chain says
    what goes before it does.

    Raises:
        DiskFull: Nothing has changed.
    """
    now_ms = around.clock.now_ms()
    log.seal_idle(now_ms)
    followed = follow(chains, log)
    if followed is not None:
        needed_from = followed if needed_from is None else min(needed_from, followed)
    before = log.log_start_offset
    going = expired_segments(
        log.state.sealed,
        log.config,
        active_bytes=log.active_size,
        high_watermark=log.high_watermark,
        now_ms=now_ms,
        needed_from=needed_from,
    )
    if not going:
        return None
    if followed is not None:
        chains.note_removal(log, going[-1].next_offset, going[-1].reason)
    log.advance_log_start(going[-1].next_offset)
    around.telemetry.add(SEGMENTS_DELETED, len(going))
    around.telemetry.add(BYTES_RECLAIMED, sum(segment.size for segment in going))
    if log.config.retention_ms >= 0:
        state = log.state
        checkpoint = read_checkpoint(around.files, log.directory, state, around.telemetry)
        try:
            write_checkpoint(
                around.files,
                log.directory,
                state,
                checkpoint,
                now_ms=now_ms,
                retention_horizon_ms=now_ms - log.config.retention_ms,
            )
        except OSError as error:
            raise as_storage_error(error, "writing the cleaner's checkpoint") from error
    after = log.log_start_offset
    return Expired(log.state.topic, log.state.partition, tuple(going), after, after - before)


def follow(chains: Chains, log: PartitionLog) -> int | None:
    """Bring the chain of a partition up to date and return an offset it reaches; None if it has none.

    One that was switched off has what there was until then, and goes on telling what becomes of it.

    Raises:
        StorageError: If the chain cannot be read or written.
    """
    if not log.config.chain and not chains.exists(log):
        return None
    end = log.high_watermark
    chains.follow(log)
    return end


def maintain_partition(
    around: Surroundings,
    chains: Chains,
    log: PartitionLog,
    *,
    map_bytes: int,
    secret: bytes,
    needed_from: int | None = None,
    pace: Pace = no_pace,
    force: bool = False,
) -> MaintenanceReport:
    """Do all that is due for one partition. What cannot be done is said in the report."""
    expired: tuple[Expired, ...] = ()
    compacted: tuple[CompactionReport, ...] = ()
    try:
        found = expire_partition(around, chains, log, needed_from=needed_from)
        expired = () if found is None else (found,)
        if "compact" in log.config.cleanup_policy:
            followed = follow(chains, log)
            report = compact_partition(
                around,
                log,
                None if followed is None else chains,
                map_bytes=map_bytes,
                secret=secret,
                pace=pace,
                force=force,
                up_to=followed,
            )
            compacted = () if report is None else (report,)
    except LogClosed:
        # Deleted or closed meanwhile: there is nothing left to keep up.
        pass
    except CordwoodError as error:
        where = f"partition {log.state.partition} of topic {log.state.topic}"
        what = "is not compacted" if isinstance(error, CorruptRange) else "could not be kept up"
        return MaintenanceReport(expired, compacted, (f"{where} {what}: {error}",))
    return MaintenanceReport(expired, compacted)


def merged(reports: list[MaintenanceReport]) -> MaintenanceReport:
    """Return several reports as one."""
    return MaintenanceReport(
        tuple(each for report in reports for each in report.expired),
        tuple(each for report in reports for each in report.compacted),
        tuple(each for report in reports for each in report.failures),
        reclaimed=reduce(Reclaimed.plus, (report.reclaimed for report in reports), NOTHING_RECLAIMED),
    )
