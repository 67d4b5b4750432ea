"""Compaction that the owner of the directory plans and swaps, and other processes carry out.

The workers find the records to keep, call `write_group` to rewrite each group of segments into ``tmp/``, in
any process with access to the files, and return the results. The bytes are the same as from compaction in one
process, except that all markers of transactions stay: a group does not know the frames of the others.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

from cordwood.config import TopicConfig
from cordwood.disk import Files, as_storage_error, join
from cordwood.errors import UnknownTopic
from cordwood.formats import EVERY_FORMAT
from cordwood.host import process
from cordwood.storage.directory import DataDirectory, Opening
from cordwood.storage.log import (
    SUFFIX,
    AbortedEntry,
    OpenFiles,
    PartitionLog,
    PartitionState,
    SealedInfo,
    Segment,
)
from cordwood.storage.log.changes import SUFFIXES, swap_path
from cordwood.storage.maintenance import (
    CompactionPlan,
    CompactionReport,
    OffsetRanges,
    RewriteInput,
    Rewritten,
    Superseding,
    compactable,
    follow,
    group_segments,
    plan_compaction,
    read_checkpoint,
    rewrite,
    rewrite_input,
    settled_view,
    swap_prepared,
    write_checkpoint,
)
from cordwood.storage.meta import is_shared
from cordwood.tenancy import suggest


class GroupWork(NamedTuple):
    """Segments to merge into one, and the input for writing it."""

    data: str
    directory: str
    infos: tuple[SealedInfo, ...]
    state: PartitionState
    config: TopicConfig
    now_ms: int
    end: int
    last_batches: frozenset[int]
    rewritable: OffsetRanges | None
    aborted: tuple[AbortedEntry, ...] = ()

    @property
    def size(self) -> int:
        """The bytes of the segments."""
        return sum(info.size for info in self.infos)


class GroupDone(NamedTuple):
    """The result of a group, and the path of its files in ``tmp/`` without suffix."""

    rewritten: Rewritten
    staged: str


Run: TypeAlias = Callable[[Sequence[GroupWork]], Sequence[GroupDone]]
"""Executes the work in any order and process; returns results in the order of the work."""


def compact_staged(opening: Opening, topic: str, run: Run, *, force: bool = False) -> list[CompactionReport]:
    """Compact the due partitions of *topic*; *run* executes the work. Durable on return.

    The directory is locked during the call. Raises the exceptions of *run*, and:

    Raises:
        DirectoryLocked: If another process writes the directory.
        UnknownTopic: If there is no such topic.
        DiskFull: Earlier swaps stay.
    """
    with contextlib.closing(DataDirectory(opening)) as directory:
        entry = directory.topics.get(topic)
        if entry is None:
            raise UnknownTopic.named(topic, suggestion=suggest(topic, directory.topics))
        numbers = range(0 if is_shared(entry) else entry.partitions)
        found = (directory.partitions.find_own(topic, number) for number in numbers)
        now_ms = opening.clock.now_ms()
        due = [
            each
            for log in found
            if log is not None and (each := _plan(directory, log, now_ms, force=force)) is not None
        ]
        try:
            done = iter(run([work for each in due for work in each.groups]))
            return [each.finish(directory, [next(done) for _ in each.groups]) for each in due]
        except OSError as error:
            raise as_storage_error(error, "compacting") from error


def write_group(files: Files, work: GroupWork, keys: Superseding) -> GroupDone:
    """Write the result of *work* to ``tmp/``, synced; each call uses unique names.

    Raises:
        CorruptRange: If a segment is damaged.
        OSError: If it could not be written.
    """
    format_ = EVERY_FORMAT[work.config.format].for_partition(work.state.partition, work.state.tenant)
    open_files = OpenFiles(files, mapped=False)
    segments = tuple(Segment(open_files, work.directory, info, format_) for info in work.infos)
    staged = join(work.data, "tmp", process.new_id())
    rewriting = RewriteInput(
        files,
        open_files,
        work.directory,
        format_,
        work.state,
        work.config,
        work.now_ms,
        work.end,
        work.last_batches,
        rewritable=work.rewritable,
        held_keys=None,
        aborted=work.aborted,
    )
    files.make_directories(join(work.data, "tmp"))
    rewritten = rewrite(rewriting, segments, keys, lambda suffix: f"{staged}-{suffix}{SUFFIX}")
    return GroupDone(rewritten, staged)


class _Due(NamedTuple):
    """A partition to compact, with its state at planning."""

    log: PartitionLog
    plan: CompactionPlan
    segments: dict[int, Segment]
    work: RewriteInput
    groups: list[GroupWork]
    chained: bool

    def finish(self, directory: DataDirectory, done: Sequence[GroupDone]) -> CompactionReport:
        """Swap the written groups into the log one by one, and update the checkpoint."""
        report, end = CompactionReport.begin(self.log, self.plan), self.plan.end
        around, place = directory.context, self.log.directory
        files, chains = around.files, directory.chains if self.chained else None
        for group, found in zip(self.groups, done, strict=True):
            old = tuple(self.segments[info.base] for info in group.infos)
            if found.rewritten.info is not None:
                for suffix in SUFFIXES:
                    staged = f"{found.staged}-{suffix}{SUFFIX}"
                    if files.exists(staged):
                        files.rename(staged, swap_path(place, old[0].base, suffix))
                files.sync_directory(join(group.data, "tmp"))
            if not swap_prepared(around, self.log, chains, self.work, old, found.rewritten):
                end = min(end, old[0].base)
                break
            report = report.with_group(found.rewritten)
        checkpoint = read_checkpoint(files, place, self.log.state, around.telemetry)
        now_ms = self.work.now_ms
        write_checkpoint(files, place, self.log.state, checkpoint, now_ms=now_ms, cleaned_offset=end)
        return report.ended(self.log, end)


def _plan(directory: DataDirectory, log: PartitionLog, now_ms: int, *, force: bool) -> _Due | None:
    """Return the plan for a partition; None if nothing is due or its topic is not compacted."""
    if "compact" not in log.config.cleanup_policy:
        return None
    around, followed = directory.context, follow(directory.chains, log)
    view = settled_view(log)
    cleaned = read_checkpoint(around.files, log.directory, view.state, around.telemetry).last_cleaned_offset
    plan = plan_compaction(compactable(view, followed), cleaned, log.config, now_ms, force=force)
    if plan is None:
        return None
    rewritable = None if followed is None else directory.chains.rewritable(log)
    work = rewrite_input(around, log, view, plan, now_ms, rewritable=rewritable)
    known = (view.state, log.config, now_ms, plan.end, work.last_batches, rewritable)
    groups = [
        GroupWork(directory.path, log.directory, group, *known, _aborted_in(work, group))
        for group in group_segments(plan, plan.end, log.config, now_ms)
    ]
    segments = {segment.base: segment for segment in view.segments[:-1]}
    return _Due(log, plan, segments, work, groups, chained=followed is not None)


def _aborted_in(work: RewriteInput, group: Sequence[SealedInfo]) -> tuple[AbortedEntry, ...]:
    """Return the aborted transactions with records or markers in a group."""
    start, end = group[0].base, group[-1].next_offset
    return tuple(each for each in work.aborted if each.first_offset < end and each.last_offset >= start)
