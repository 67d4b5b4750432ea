"""Compaction that is planned and swapped here, by the owner of the directory, and done elsewhere.

Whoever does the work finds out which records stay, has `write_group` write each group of segments anew into
``tmp/``, in any process that sees the files, and gives back what came of it. The bytes are those that
compacting in one process gives.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

from cordwood import process
from cordwood.config import TopicConfig
from cordwood.errors import UnknownTopic
from cordwood.formats.registry import EVERY_FORMAT
from cordwood.storage.cleaner_checkpoint import read_checkpoint, write_checkpoint
from cordwood.storage.compaction import CompactionPlan, group_segments, plan_compaction
from cordwood.storage.compactor import CompactionReport, put_in_place, rewriting_of
from cordwood.storage.data_directory import DataDirectory, Opening
from cordwood.storage.files import Files, join
from cordwood.storage.maintenance import follow
from cordwood.storage.open_files import OpenFiles
from cordwood.storage.partition_log import PartitionLog
from cordwood.storage.partition_state import PartitionState, SealedInfo
from cordwood.storage.rewriting import Rewriting, Rewritten, Superseding, rewrite
from cordwood.storage.segment import Segment
from cordwood.storage.spool import SUFFIX
from cordwood.storage.store import as_storage_error
from cordwood.storage.swapping import swap_path
from cordwood.storage.truncation import SUFFIXES


class GroupWork(NamedTuple):
    """Segments that become one, and what writing that must know."""

    data: str
    directory: str
    infos: tuple[SealedInfo, ...]
    state: PartitionState
    config: TopicConfig
    now_ms: int
    end: int
    last_batches: frozenset[int]

    @property
    def size(self) -> int:
        """The bytes of the segments."""
        return sum(info.size for info in self.infos)


class GroupDone(NamedTuple):
    """What became of a group, and how its files in ``tmp/`` are called, up to their suffix."""

    rewritten: Rewritten
    staged: str


Run: TypeAlias = Callable[[Sequence[GroupWork]], Sequence[GroupDone]]
"""Does the work, in any order and any process; results in the order of the work."""


def compact_staged(opening: Opening, topic: str, run: Run, *, force: bool = False) -> list[CompactionReport]:
    """Compact the partitions of *topic* that are due, all of whose work *run* does. Durable on return.

    The directory is locked meanwhile. Raises what *run* does, and:

    Raises:
        DirectoryLocked: If another process writes the directory.
        UnknownTopic: If there is no such topic.
        DiskFull: What was swapped before stays.
    """
    with contextlib.closing(DataDirectory(opening)) as directory:
        entry = directory.topics.get(topic)
        if entry is None:
            raise UnknownTopic(f"there is no topic {topic}")
        found = (directory.find_partition(topic, number) for number in range(entry.partitions))
        now_ms = opening.clock.now_ms()
        due = [
            each
            for log in found
            if isinstance(log, PartitionLog)
            and (each := _plan(directory, log, now_ms, force=force)) is not None
        ]
        try:
            done = iter(run([work for each in due for work in each.groups]))
            return [each.finish(directory, [next(done) for _ in each.groups]) for each in due]
        except OSError as error:
            raise as_storage_error(error, "compacting") from error


def write_group(files: Files, work: GroupWork, keys: Superseding) -> GroupDone:
    """Write what *work* becomes to ``tmp/``, synced; each call under names of its own.

    Raises:
        CorruptRange: If a segment is damaged.
        OSError: If it could not be written.
    """
    format_ = EVERY_FORMAT[work.config.format].for_partition(work.state.partition)
    open_files = OpenFiles(files, mapped=False)
    segments = tuple(Segment(open_files, work.directory, info, format_) for info in work.infos)
    staged = join(work.data, "tmp", process.new_id())
    known = (work.state, work.config, work.now_ms, work.end, work.last_batches)
    rewriting = Rewriting(files, open_files, work.directory, format_, *known)
    files.make_directories(join(work.data, "tmp"))
    rewritten = rewrite(rewriting, segments, keys, lambda suffix: f"{staged}-{suffix}{SUFFIX}")
    return GroupDone(rewritten, staged)


class _Due(NamedTuple):
    """A partition that is to be compacted, as it was when that was planned."""

    log: PartitionLog
    plan: CompactionPlan
    segments: dict[int, Segment]
    work: Rewriting
    groups: list[GroupWork]
    chained: bool

    def finish(self, directory: DataDirectory, done: Sequence[GroupDone]) -> CompactionReport:
        """Swap what was written into the log, group after group, and say so in the checkpoint."""
        report, end = CompactionReport.begin(self.log, self.plan), self.plan.end
        around, place = directory.surroundings, self.log.directory
        files, chains = around.files, directory.chains if self.chained else None
        for group, found in zip(self.groups, done, strict=True):
            old = tuple(self.segments[info.base] for info in group.infos)
            if found.rewritten.info is not None:
                for suffix in SUFFIXES:
                    staged = f"{found.staged}-{suffix}{SUFFIX}"
                    if files.exists(staged):
                        files.rename(staged, swap_path(place, old[0].base, suffix))
                files.sync_directory(join(group.data, "tmp"))
            if not put_in_place(around, self.log, chains, self.work, old, found.rewritten):
                end = min(end, old[0].base)
                break
            report = report.with_group(found.rewritten)
        checkpoint = read_checkpoint(files, place, self.log.state, around.telemetry)
        now_ms = self.work.now_ms
        write_checkpoint(files, place, self.log.state, checkpoint, now_ms=now_ms, cleaned_offset=end)
        return report.ended(self.log, end)


def _plan(directory: DataDirectory, log: PartitionLog, now_ms: int, *, force: bool) -> _Due | None:
    """Return what is to be done to a partition; None if nothing is, or its topic is not compacted."""
    if "compact" not in log.config.cleanup_policy:
        return None
    around, followed = directory.surroundings, follow(directory.chains, log)
    view = log.view
    cleaned = read_checkpoint(around.files, log.directory, view.state, around.telemetry).last_cleaned_offset
    infos = [
        segment.info
        for segment in view.segments[:-1]
        if followed is None or segment.info.next_offset <= followed
    ]
    plan = plan_compaction(infos, cleaned, log.config, now_ms, force=force)
    if plan is None:
        return None
    work = rewriting_of(around, log, view, plan, now_ms)
    known = (view.state, log.config, now_ms, plan.end, work.last_batches)
    groups = [
        GroupWork(directory.path, log.directory, group, *known)
        for group in group_segments(plan, plan.end, log.config, now_ms)
    ]
    segments = {segment.base: segment for segment in view.segments[:-1]}
    return _Due(log, plan, segments, work, groups, chained=followed is not None)
