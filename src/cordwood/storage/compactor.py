"""Compacting a partition: learn the last offset of each key, then write segments without what is superseded.

Appends and reads go on meanwhile: sealed segments are read and their successors prepared without any lock,
and each group of them is swapped at one commit point. Whatever crashes, at any moment what was dropped has a
later record with its key in the log; tombstones go only once nothing before them is left. Memory: a map of
keys of a fixed size and a few windows; keys that do not fit are left for another pass.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, replace

import msgspec

from cordwood.errors import DiskFull
from cordwood.kernels import KeyMap, Want
from cordwood.storage.active import Surroundings
from cordwood.storage.chain import Chains
from cordwood.storage.cleaner_checkpoint import read_checkpoint, write_checkpoint
from cordwood.storage.compaction import CompactionPlan, group_segments, plan_compaction
from cordwood.storage.files import Files
from cordwood.storage.partition_log import PartitionLog
from cordwood.storage.rewriting import (
    Pace,
    Rewriting,
    Rewritten,
    no_pace,
    numbers_in,
    rewrite,
)
from cordwood.storage.segment import OwnedSegment, Segment, segments_directory
from cordwood.storage.store import DISK_FULL, as_storage_error
from cordwood.storage.swapping import discard_prepared, swap_path
from cordwood.storage.view import View
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
    """What compacting a partition did. Bytes are those of the segments that took part."""

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
        """Return the report of a pass that has done nothing yet."""
        return CompactionReport(
            log.state.topic,
            log.state.partition,
            plan.reason,
            passes=1,
            bytes_before=sum(info.size for info in plan.segments),
            segments_before=len(plan.segments),
        )

    def with_group(self, found: Rewritten) -> CompactionReport:
        """Return it with what became of one more group."""
        return replace(
            self,
            records_dropped=self.records_dropped + found.records_dropped,
            tombstones_dropped=self.tombstones_dropped + found.tombstones_dropped,
        )

    def ended(self, log: PartitionLog, cleaned_offset: int) -> CompactionReport:
        """Return it at the end of its pass, which came up to *cleaned_offset*."""
        left = [info for info in log.state.sealed if info.base < cleaned_offset]
        return replace(
            self,
            cleaned_offset=cleaned_offset,
            bytes_after=sum(info.size for info in left),
            segments_after=len(left),
        )

    def plus(self, other: CompactionReport) -> CompactionReport:
        """Return both as one; *other* came later."""
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
    around: Surroundings,
    log: PartitionLog,
    chains: Chains | None = None,
    *,
    map_bytes: int,
    secret: bytes,
    pace: Pace = no_pace,
    force: bool = False,
    up_to: int | None = None,
) -> CompactionReport | None:
    """Compact *log* as far as its settings ask for it, and say what was done; None if nothing was due.

    Only segments that end at or before *up_to* take part. With *chains* the log's chain says what each
    becomes, before it does. *map_bytes* bounds the memory for keys, *secret*
    makes their hashes unguessable. One caller at a time.

    Raises:
        CorruptRange: If a segment is damaged: nobody knows which keys it holds.
        DiskFull: What was swapped before stays; nothing else has changed.
    """
    total: CompactionReport | None = None
    while True:
        now_ms, view = around.clock.now_ms(), log.view
        checkpoint = read_checkpoint(around.files, log.directory, view.state, around.telemetry)
        infos = [segment.info for segment in view.segments[:-1]]
        if up_to is not None:
            infos = [info for info in infos if info.next_offset <= up_to]
        cleaned = checkpoint.last_cleaned_offset
        plan = plan_compaction(infos, cleaned, log.config, now_ms, force=force)
        if plan is None:
            return total
        done = _Pass(around, log, chains, view, plan, now_ms, pace).run(map_bytes, secret)
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
            raise as_storage_error(error, "writing the cleaner's checkpoint") from error
        around.telemetry.add(COMPACTIONS)
        if done.cleaned_offset >= plan.end or done.cleaned_offset <= cleaned:
            return total


class _Pass:
    """One pass: as many keys as fit into the map."""

    def __init__(
        self,
        around: Surroundings,
        log: PartitionLog,
        chains: Chains | None,
        view: View,
        plan: CompactionPlan,
        now_ms: int,
        pace: Pace,
    ) -> None:
        self._around = around
        self._log = log
        self._chains = chains
        self._plan = plan
        self._segments = {segment.base: segment for segment in view.segments[:-1]}
        self._work = rewriting_of(around, log, view, plan, now_ms, pace)

    def run(self, map_bytes: int, secret: bytes) -> CompactionReport:
        """Learn keys, then swap group after group."""
        keys, end = self._learn(map_bytes, secret)
        work = replace(self._work, end=end)
        report = CompactionReport.begin(self._log, self._plan)
        for group in group_segments(self._plan, end, self._log.config, work.now_ms):
            old = tuple(self._segments[info.base] for info in group)
            found = self._rewrite(work, old, keys)
            if not put_in_place(self._around, self._log, self._chains, work, old, found):
                end = min(end, group[0].base)
                break
            report = report.with_group(found)
        return report.ended(self._log, end)

    def _learn(self, map_bytes: int, secret: bytes) -> tuple[KeyMap, int]:
        """Return the last offset of each key of the dirty part, and the offset up to which they fitted."""
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
                # What was compacted before needs no place in the map: it supersedes nothing.
                start = bisect_left(offsets, plan.dirty_from)
                noted = keys.note(columns.key, columns.offset, columns.rows, start)
                if noted < columns.rows:
                    return keys, offsets[noted]
        return keys, plan.end

    def _rewrite(self, work: Rewriting, old: tuple[Segment, ...], keys: KeyMap) -> Rewritten:
        """Prepare the segment that takes the place of *old* where a swap finds it."""
        files, directory, base = work.files, work.directory, old[0].base
        self._around.telemetry.add(COMPACTION_READ_BYTES, sum(segment.info.size for segment in old))
        with as_storage_errors(files, directory):
            return rewrite(work, old, keys, lambda suffix: swap_path(directory, base, suffix))


@contextlib.contextmanager
def as_storage_errors(files: Files, directory: str) -> Iterator[None]:
    """Let go of what is prepared when the disk refuses, and say so in an error of ours."""
    try:
        yield
    except OSError as error:
        with contextlib.suppress(OSError):
            discard_prepared(files, directory)
        if error.errno in DISK_FULL:
            raise DiskFull(f"{directory}: no space left while compacting") from error
        raise as_storage_error(error, "compacting") from error


def rewriting_of(
    around: Surroundings,
    log: PartitionLog,
    view: View,
    plan: CompactionPlan,
    now_ms: int,
    pace: Pace = no_pace,
) -> Rewriting:
    """Return what rewriting segments of *log* as *plan* has it must know.

    Raises:
        StorageError: If the log cannot be read to learn its producers.
    """
    return Rewriting(
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
    )


def put_in_place(
    around: Surroundings,
    log: PartitionLog,
    chains: Chains | None,
    work: Rewriting,
    old: tuple[Segment, ...],
    found: Rewritten,
) -> bool:
    """Swap what *old* became, prepared and synced, into the log. False if they are not there any more.

    Raises:
        DiskFull: Nothing has changed.
        EvidenceRefused: If the log is not what was signed for before. Nothing has changed.
    """
    infos = tuple(segment.info for segment in old)
    if found.info is None:
        since = work.tombstones_since(infos, has_tombstones=found.has_tombstones)
        if since != infos[0].tombstones_since_ms:
            log.note_sealed({infos[0].base: msgspec.structs.replace(infos[0], tombstones_since_ms=since)})
        return True
    with as_storage_errors(around.files, log.directory):
        around.files.sync_directory(segments_directory(log.directory))
    if chains is not None:
        prepared = Segment(around.open_files, log.directory, found.info, log.format)
        prepared.path = swap_path(log.directory, found.info.base, "log")
        try:
            chains.note_compaction(log, prepared)
        except BaseException:
            with contextlib.suppress(OSError):
                discard_prepared(around.files, log.directory)
            raise
        finally:
            around.open_files.forget(prepared.number)
    if not log.swap(old, OwnedSegment(around.open_files, log.directory, found.info, log.format)):
        # A truncation or retention was faster; what is left is planned anew next time.
        with contextlib.suppress(OSError):
            discard_prepared(around.files, log.directory)
        return False
    around.telemetry.add(BYTES_RECLAIMED, sum(info.size for info in infos) - found.info.size)
    around.telemetry.add(COMPACTION_WRITTEN_BYTES, found.info.size)
    around.telemetry.add(COMPACTION_DROPPED_RECORDS, found.records_dropped)
    return True
