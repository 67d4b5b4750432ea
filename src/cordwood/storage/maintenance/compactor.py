"""Compact a partition: collect the last offset of each key, then write segments without superseded records.

Appends and reads continue: sealed segments are read and their replacements prepared without a lock, and each
group is swapped at one commit point. At any moment, also after a crash, each dropped record has a later
record with its key in the log; a tombstone is removed only after all records before it. Memory: a key map of
fixed size and a few windows; keys that do not fit are left for another pass.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, replace

import msgspec

from cordwood.disk import DISK_FULL, Files, as_storage_error
from cordwood.errors import DiskFull
from cordwood.kernels import KeyMap, Want
from cordwood.storage.chain import Chains, keeps_evidence
from cordwood.storage.log import (
    LogContext,
    OwnedSegment,
    Pace,
    PartitionLog,
    Segment,
    View,
    aborted_within,
    no_pace,
    segments_directory,
)
from cordwood.storage.log.changes import discard_prepared, swap_path
from cordwood.storage.maintenance.checkpoint import read_checkpoint, write_checkpoint
from cordwood.storage.maintenance.compaction_plan import CompactionPlan, group_segments, plan_compaction
from cordwood.storage.maintenance.rewriting import OffsetRanges, RewriteInput, Rewritten, numbers_in, rewrite
from cordwood.storage.maintenance.transactions import (
    FollowedTransactions,
    aborted_rows,
    compactable,
    rows_between,
)
from cordwood.telemetry import (
    BYTES_RECLAIMED,
    COMPACTION_DROPPED_RECORDS,
    COMPACTION_READ_BYTES,
    COMPACTION_WRITTEN_BYTES,
    COMPACTIONS,
)

_SLOT_BYTES = 24


@dataclass(frozen=True, slots=True)
class CompactionReport:
    """The result of compacting a partition. Bytes are those of the compacted segments."""

    topic: str
    partition: int
    reason: str
    passes: int = 0
    cleaned_offset: int = 0
    records_dropped: int = 0
    tombstones_dropped: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    segments_before: int = 0
    segments_after: int = 0

    @staticmethod
    def begin(log: PartitionLog, plan: CompactionPlan) -> CompactionReport:
        """Return an empty report for a new pass."""
        return CompactionReport(
            log.state.topic,
            log.state.partition,
            plan.reason,
            passes=1,
            bytes_before=sum(info.size for info in plan.segments),
            segments_before=len(plan.segments),
        )

    def with_group(self, found: Rewritten) -> CompactionReport:
        """Return the report with one more group added."""
        return replace(
            self,
            records_dropped=self.records_dropped + found.records_dropped,
            tombstones_dropped=self.tombstones_dropped + found.tombstones_dropped,
        )

    def ended(self, log: PartitionLog, cleaned_offset: int) -> CompactionReport:
        """Return the report of a finished pass that reached *cleaned_offset*."""
        left = [info for info in log.state.sealed if info.base < cleaned_offset]
        return replace(
            self,
            cleaned_offset=cleaned_offset,
            bytes_after=sum(info.size for info in left),
            segments_after=len(left),
        )

    def plus(self, other: CompactionReport) -> CompactionReport:
        """Return the sum of both reports; *other* is the later one."""
        return replace(
            other,
            reason=self.reason,
            passes=self.passes + other.passes,
            records_dropped=self.records_dropped + other.records_dropped,
            tombstones_dropped=self.tombstones_dropped + other.tombstones_dropped,
            bytes_before=max(self.bytes_before, other.bytes_before),
            segments_before=max(self.segments_before, other.segments_before),
        )


def compact_partition(
    around: LogContext,
    log: PartitionLog,
    chains: Chains | None = None,
    *,
    map_bytes: int,
    secret: bytes,
    pace: Pace = no_pace,
    force: bool = False,
    up_to: int | None = None,
    evidence: bool = True,
) -> CompactionReport | None:
    """Compact *log* as its settings require and return a report; None if nothing was due.

    Only segments that end at or before *up_to* and the last stable offset are compacted. With *chains*, the
    log's chain gets a statement before each swap, and frames whose records cannot be kept as evidence stay as
    they are; without *evidence*, those are rewritten as well, and records compacted before are looked at
    again. *map_bytes* limits the memory for keys, *secret* makes their hashes unpredictable. One caller at a
    time.

    Raises:
        CorruptRange: If a segment is damaged: its keys are unknown.
        DiskFull: Earlier swaps stay; nothing else has changed.
    """
    total: CompactionReport | None = None
    while True:
        now_ms, view = around.clock.now_ms(), settled_view(log)
        checkpoint = read_checkpoint(around.files, log.directory, view.state, around.telemetry)
        infos = compactable(view, up_to)
        cleaned = checkpoint.last_cleaned_offset if evidence or total is not None else 0
        plan = plan_compaction(infos, cleaned, log.config, now_ms, force=force or not evidence)
        if plan is None:
            return total
        if log.format.record_per_frame:
            # A superseded record that ended a segment stayed. It can go now that later segments follow, but
            # only if the key of the record that superseded it is known again.
            plan = replace(plan, dirty_from=plan.segments[0].base)
        rewritable = None if chains is None or not evidence else chains.rewritable(log)
        work = rewrite_input(around, log, view, plan, now_ms, pace, rewritable=rewritable, evidence=evidence)
        if view.state.transactional and (chains is None or not keeps_evidence(view.state.topic)):
            # With evidence every marker stays: it proves that the records which were dropped were aborted.
            work = replace(work, transactions=FollowedTransactions())
        done = _CompactionPass(around, log, chains, view, plan, work).run(map_bytes, secret)
        total = done if total is None else total.plus(done)
        try:
            write_checkpoint(
                around.files,
                log.directory,
                log.state,
                checkpoint,
                now_ms=now_ms,
                cleaned_offset=done.cleaned_offset,
                compacting=done.cleaned_offset < plan.end,
            )
        except OSError as error:
            raise as_storage_error(error, "writing the compaction checkpoint") from error
        around.telemetry.add(COMPACTIONS)
        if done.cleaned_offset >= plan.end or done.cleaned_offset <= cleaned:
            return total


class _CompactionPass:
    """One pass over as many keys as fit into the map."""

    def __init__(
        self,
        around: LogContext,
        log: PartitionLog,
        chains: Chains | None,
        view: View,
        plan: CompactionPlan,
        work: RewriteInput,
    ) -> None:
        self._around = around
        self._log = log
        self._chains = chains
        self._plan = plan
        self._segments = {segment.base: segment for segment in view.segments[:-1]}
        self._work = work

    def run(self, map_bytes: int, secret: bytes) -> CompactionReport:
        """Collect keys, then swap one group after another."""
        keys, end = self._collect_keys(map_bytes, secret)
        work = replace(self._work, end=end)
        report = CompactionReport.begin(self._log, self._plan)
        for group in group_segments(self._plan, end, self._log.config, work.now_ms):
            old = tuple(self._segments[info.base] for info in group)
            found = self._rewrite(work, old, keys)
            if not swap_prepared(self._around, self._log, self._chains, work, old, found):
                end = min(end, group[0].base)
                break
            report = report.with_group(found)
        return report.ended(self._log, end)

    def _collect_keys(self, map_bytes: int, secret: bytes) -> tuple[KeyMap, int]:
        """Return the last offset of each dirty key, and the offset up to which keys fitted into the map."""
        plan, telemetry = self._plan, self._around.telemetry
        slots = 1 << ((map_bytes // _SLOT_BYTES).bit_length() - 1)
        keys = KeyMap(max(1, min(slots * 3 // 4, plan.end - plan.dirty_from)), secret)
        for info in plan.segments:
            if info.next_offset <= plan.dirty_from:
                continue
            telemetry.add(COMPACTION_READ_BYTES, info.size)
            for window in self._work.windows(self._segments[info.base]):
                columns = window.table.columns(0, len(window.table), Want.KEY | Want.OFFSET)
                assert columns.key is not None
                assert columns.offset is not None
                offsets = numbers_in(columns.offset)
                # Compacted records need no place in the map: they supersede nothing. Records of frames that
                # must stay whole supersede nothing either: after a truncation, nothing would show them.
                aborted = aborted_rows(window.table, self._work.aborted_ranges)
                for first, after in self._work.movable(max(info.base, plan.dirty_from), info.next_offset):
                    rows = bisect_left(offsets, first), bisect_left(offsets, after)
                    for start, stop in rows_between(*rows, aborted):
                        noted = keys.note(columns.key, columns.offset, stop, start)
                        if noted < stop:
                            return keys, offsets[noted]
        return keys, plan.end

    def _rewrite(self, work: RewriteInput, old: tuple[Segment, ...], keys: KeyMap) -> Rewritten:
        """Write the segment that replaces *old* to the path where a swap finds it."""
        files, directory, base = work.files, work.directory, old[0].base
        self._around.telemetry.add(COMPACTION_READ_BYTES, sum(segment.info.size for segment in old))
        with as_storage_errors(files, directory):
            return rewrite(work, old, keys, lambda suffix: swap_path(directory, base, suffix))


@contextlib.contextmanager
def as_storage_errors(files: Files, directory: str) -> Iterator[None]:
    """On an OSError, remove the prepared files and raise a StorageError."""
    try:
        yield
    except OSError as error:
        with contextlib.suppress(OSError):
            discard_prepared(files, directory)
        if error.errno in DISK_FULL:
            raise DiskFull(f"{directory}: no space left while compacting") from error
        raise as_storage_error(error, "compacting") from error


def settled_view(log: PartitionLog) -> View:
    """Return the view of a log; the markers below its last stable offset are synced.

    A transaction whose marker a power cut loses would be open again, without its records.
    """
    view = log.view
    if view.state.transactional:
        log.commit()
    return view


def rewrite_input(
    around: LogContext,
    log: PartitionLog,
    view: View,
    plan: CompactionPlan,
    now_ms: int,
    pace: Pace = no_pace,
    *,
    rewritable: OffsetRanges | None = None,
    evidence: bool = True,
) -> RewriteInput:
    """Return the input for rewriting the segments of *plan*.

    Raises:
        StorageError: If the log cannot be read to find its producers.
    """
    return RewriteInput(
        around.files,
        around.open_files,
        log.directory,
        log.format,
        view.state,
        log.config,
        now_ms,
        plan.end,
        log.last_batches(),
        pace,
        rewritable,
        evidence,
        aborted=aborted_within(view, view.state.log_start_offset, plan.end),
    )


def swap_prepared(
    around: LogContext,
    log: PartitionLog,
    chains: Chains | None,
    work: RewriteInput,
    old: tuple[Segment, ...],
    found: Rewritten,
) -> bool:
    """Swap the prepared, synced replacement of *old* into the log. Return False if *old* is gone.

    Raises:
        DiskFull: Nothing has changed.
        EvidenceRefused: If the log differs from an earlier signed checkpoint. Nothing has changed.
    """
    infos = tuple(segment.info for segment in old)
    if found.info is None:
        since = work.tombstones_since(infos, found)
        if since != infos[0].tombstones_since_ms:
            log.note_sealed({infos[0].base: msgspec.structs.replace(infos[0], tombstones_since_ms=since)})
        return True
    with as_storage_errors(around.files, log.directory):
        around.files.sync_directory(segments_directory(log.directory))
    if chains is not None:
        prepared = Segment(around.open_files, log.directory, found.info, log.format)
        prepared.path = swap_path(log.directory, found.info.base, "log")
        try:
            chains.note_compaction(log, old, prepared, evidence=work.evidence)
        except BaseException:
            with contextlib.suppress(OSError):
                discard_prepared(around.files, log.directory)
            raise
        finally:
            around.open_files.forget(prepared.number)
    swapped = False
    try:
        swapped = log.swap(old, OwnedSegment(around.open_files, log.directory, found.info, log.format))
    finally:
        if not swapped and log.failure is None:
            # A truncation, retention or deletion came first; the next pass plans again.
            with contextlib.suppress(OSError):
                discard_prepared(around.files, log.directory)
    if not swapped:
        return False
    around.telemetry.add(BYTES_RECLAIMED, sum(info.size for info in infos) - found.info.size)
    around.telemetry.add(COMPACTION_WRITTEN_BYTES, found.info.size)
    around.telemetry.add(COMPACTION_DROPPED_RECORDS, found.records_dropped)
    return True
