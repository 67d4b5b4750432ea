"""One maintenance pass over a partition: seal an idle segment, delete expired segments, compact."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import NamedTuple

import msgspec

from cordwood.config import TopicConfig
from cordwood.disk import Files, as_storage_error
from cordwood.errors import CordwoodError, CorruptRange, LogClosed
from cordwood.index import NO_TIMESTAMP
from cordwood.storage.chain import Chains
from cordwood.storage.log import LogContext, Pace, PartitionLog, View, no_pace
from cordwood.storage.maintenance.checkpoint import read_checkpoint, write_checkpoint
from cordwood.storage.maintenance.compaction_plan import plan_compaction
from cordwood.storage.maintenance.compactor import CompactionReport, compact_partition
from cordwood.storage.maintenance.retention import Expiry, expired_segments
from cordwood.storage.maintenance.transactions import compactable
from cordwood.telemetry import BYTES_RECLAIMED, SEGMENTS_DELETED, Telemetry

NeededFrom = Callable[[str, int], int | None]
"""Maps a partition to the first offset that a consumer group has not committed past; None without groups.

Raises CordwoodError if that cannot be read.
"""


def unknown_groups(topic: str, partition: int) -> int:
    """Return 0: without known committed offsets, groups may still need every record."""
    return 0


@dataclass(frozen=True, slots=True)
class Expired:
    """Records that retention removed. ``records`` counts offsets, including compacted ones."""

    topic: str
    partition: int
    segments: tuple[Expiry, ...]
    log_start_offset: int
    records: int

    @property
    def bytes(self) -> int:
        """The bytes of the deleted segments."""
        return sum(segment.size for segment in self.segments)


class Reclaimed(NamedTuple):
    """The result of reclaiming dead frames in the shared log."""

    segments: int = 0
    bytes_freed: int = 0
    records_dropped: int = 0

    def plus(self, other: Reclaimed) -> Reclaimed:
        """Return the sum of both."""
        return Reclaimed(*(a + b for a, b in zip(self, other, strict=True)))


NOTHING_RECLAIMED = Reclaimed()


@dataclass(frozen=True, slots=True)
class MaintenanceReport:
    """The result of a maintenance pass. ``failures`` has a sentence for each partition that failed."""

    expired: tuple[Expired, ...] = ()
    compacted: tuple[CompactionReport, ...] = ()
    failures: tuple[str, ...] = ()
    segments_hashed: int = 0
    shares_removed: int = 0
    reclaimed: Reclaimed = NOTHING_RECLAIMED

    @property
    def records_removed(self) -> int:
        """The number of records removed by retention and by compaction."""
        dropped = sum(report.records_dropped for report in self.compacted)
        return dropped + sum(expired.records for expired in self.expired)


@dataclass(frozen=True, slots=True)
class Planned:
    """The work of a maintenance pass on a partition, without sealing an idle active segment."""

    topic: str
    partition: int
    expired: tuple[Expiry, ...]
    compaction: str | None


def plan_partition(
    files: Files,
    directory: str,
    view: View,
    config: TopicConfig,
    now_ms: int,
    *,
    force: bool = False,
    needed_from: int | None = None,
) -> Planned:
    """Return the work due for the partition at *directory*, whose view is *view*. Changes nothing.

    *needed_from* is the first offset that a consumer group has not read yet.
    """
    state = view.state
    expired = expired_segments(
        state.sealed,
        config,
        active_bytes=view.position,
        high_watermark=view.high_watermark,
        now_ms=now_ms,
        needed_from=needed_from,
    )
    plan = None
    if "compact" in config.cleanup_policy:
        cleaned = read_checkpoint(files, directory, state, Telemetry()).last_cleaned_offset
        left = compactable(view)[len(expired) :]
        plan = plan_compaction(left, cleaned, config, now_ms, force=force)
    return Planned(state.topic, state.partition, tuple(expired), None if plan is None else plan.reason)


def expire_partition(
    around: LogContext,
    chains: Chains,
    log: PartitionLog,
    *,
    needed_from: int | None = None,
    policy: TopicConfig | None = None,
) -> Expired | None:
    """Delete expired segments and return a report; None if there were none.

    The new log start is durable before any file is removed. *needed_from* is the first offset that a consumer
    group has not read yet. Records that the topic's chain does not cover yet stay, and the chain gets its
    statement before the removal. *policy* takes the place of the topic's settings.

    Raises:
        DiskFull: Nothing has changed.
    """
    with log.maintaining:
        config = log.config if policy is None else policy
        return around.reserve.freeing(lambda: _expire(around, chains, log, needed_from, config))


def _expire(
    around: LogContext, chains: Chains, log: PartitionLog, needed_from: int | None, config: TopicConfig
) -> Expired | None:
    """Implement `expire_partition`, with the log's maintenance lock held."""
    now_ms = around.clock.now_ms()
    log.seal_idle(now_ms, config)
    note_unknown_ages(log, now_ms)
    followed = follow(chains, log)
    if followed is not None:
        needed_from = followed if needed_from is None else min(needed_from, followed)
    before = log.log_start_offset
    going = expired_segments(
        log.state.sealed,
        config,
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
    if config.retention_ms >= 0:
        state = log.state
        checkpoint = read_checkpoint(around.files, log.directory, state, around.telemetry)
        try:
            write_checkpoint(
                around.files,
                log.directory,
                state,
                checkpoint,
                now_ms=now_ms,
                retention_horizon_ms=now_ms - config.retention_ms,
            )
        except OSError as error:
            raise as_storage_error(error, "writing the compaction checkpoint") from error
    after = log.log_start_offset
    return Expired(log.state.topic, log.state.partition, tuple(going), after, after - before)


def note_unknown_ages(log: PartitionLog, now_ms: int) -> None:
    """Let sealed segments age from now on if it is not recorded when they were sealed. Durable on return.

    Their records were appended at an unknown time before. Without this they would never expire.
    """
    unknown = [info for info in log.state.sealed if info.last_append_ms == NO_TIMESTAMP]
    log.note_sealed({info.base: msgspec.structs.replace(info, sealed_ms=now_ms) for info in unknown})


def follow(chains: Chains, log: PartitionLog) -> int | None:
    """Bring the chain of a partition up to date and return an offset it reaches; None if it has none.

    A chain that was switched off keeps its leaves, and still gets statements about their records.

    Raises:
        StorageError: If the chain cannot be read or written.
    """
    if not log.config.chain and not chains.exists(log):
        return None
    end = log.high_watermark
    chains.follow(log)
    return end


def maintain_partition(
    around: LogContext,
    chains: Chains,
    log: PartitionLog,
    *,
    map_bytes: int,
    secret: bytes,
    needed_from: int | None = None,
    pace: Pace = no_pace,
    force: bool = False,
    evidence: bool = True,
) -> MaintenanceReport:
    """Do all due maintenance of one partition. Failures are in the report.

    Without *evidence*, compaction also rewrites frames whose records cannot be kept as evidence.
    """

    def paced(size: int) -> None:
        # A deletion of the topic waits for the end of this pass.
        if log.closed:
            raise LogClosed(f"{log.directory} is closed")
        pace(size)

    expired: tuple[Expired, ...] = ()
    compacted: tuple[CompactionReport, ...] = ()
    try:
        with log.maintaining:
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
                    pace=paced,
                    force=force,
                    up_to=followed,
                    evidence=evidence,
                )
                compacted = () if report is None else (report,)
                expire_evidence(around, chains, log)
    except LogClosed:
        # Deleted or closed in the meantime: nothing is left to maintain.
        pass
    except CordwoodError as error:
        where = f"partition {log.state.partition} of topic {log.state.topic}"
        what = "is not compacted" if isinstance(error, CorruptRange) else "could not be maintained"
        return MaintenanceReport(expired, compacted, (f"{where} {what}: {error}",))
    return MaintenanceReport(expired, compacted)


def expire_evidence(around: LogContext, chains: Chains, log: PartitionLog) -> None:
    """Remove lists of what compaction dropped longer ago than the topic keeps them."""
    kept_ms = log.config.evidence_ms
    if kept_ms >= 0 and (log.config.chain or chains.exists(log)):
        reason = f"cordwood.compaction.evidence.ms={kept_ms}"
        chains.expire_lists(log, around.clock.now_ms() - kept_ms, reason)


def merged(reports: list[MaintenanceReport]) -> MaintenanceReport:
    """Return the sum of several reports."""
    return MaintenanceReport(
        tuple(each for report in reports for each in report.expired),
        tuple(each for report in reports for each in report.compacted),
        tuple(each for report in reports for each in report.failures),
        reclaimed=reduce(Reclaimed.plus, (report.reclaimed for report in reports), NOTHING_RECLAIMED),
    )
