"""Transfer one partition to another data directory, as it was at one moment.

A partition that is new in the target is built in ``tmp/`` and renamed into place. An existing one is updated
to the source's state by commits of its `partition.json`, each of which leaves a log that can be opened. New
files are written first, a file that replaces another one is prepared beside it, the segment that was active
at the last backup is continued where it ended, and unneeded files are removed last.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field

import google_crc32c
import msgspec

from cordwood.disk import (
    SIZE,
    Files,
    Mark,
    encode_slot,
    join,
    parent,
    read_marks,
    remove_tree,
    write_atomically,
)
from cordwood.errors import DirectoryRefused
from cordwood.index import ABORTED_ENTRY_SIZE
from cordwood.storage.backup.record import PartitionRecord
from cordwood.storage.backup.segment import SegmentCopier, remove
from cordwood.storage.backup.source import TRIES, PartitionTransfer, SourceChanged, SourcePartition, unsettled
from cordwood.storage.log import (
    Bound,
    Cut,
    OpenFiles,
    PartitionState,
    SealedInfo,
    Segment,
    View,
    active_info,
    bounds_of,
    mark_path,
    newest_mark,
    read_state,
    segment_path,
    segments_directory,
    state_path,
    synced_bound,
    write_state,
)
from cordwood.storage.log.changes import CUT_SUFFIX, swap_path, swapping, truncation
from cordwood.storage.offline import Damaged


@dataclass
class PartitionBackup:
    """The result for a partition: its record if the target has it, and damage found in the source."""

    place: tuple[str, int]
    record: PartitionRecord | None
    copied_bytes: int = 0
    removed: int = 0
    damaged: list[Damaged] = field(default_factory=list)


Settle = Callable[[PartitionState, Bound], PartitionState]
"""Maps the state of the source and the end of its log to the state of the target."""


class PartitionCopier:
    """Transfers one partition. One user.

    *data* is the target's data directory, *known* is the partition's record from the last backup, which must
    still hold if it was left *untouched*.
    """

    def __init__(
        self,
        copier: SegmentCopier,
        source: SourcePartition,
        source_directory: str,
        data: str,
        directory: str,
        known: PartitionRecord | None = None,
        *,
        untouched: bool = True,
        settle: Settle = lambda state, end: state,
    ) -> None:
        self._files: Files = copier.files
        self._source = source
        self._transfer = PartitionTransfer(copier, source, source_directory)
        self._data = data
        self._to = directory
        self._known = known
        self._untouched = untouched
        self._settle = settle
        self._removed = 0

    def copy(self) -> PartitionBackup:
        """Transfer the current state of the partition. Durable on return.

        Raises:
            NeverUsed, UnknownTopic: If the partition is empty or was deleted. Nothing has changed.
            MetadataDamaged: If the source cannot be read. Nothing has changed.
            StorageError: If it changed during every attempt.
        """
        for _ in range(TRIES):
            view = self._transfer.begin()
            with contextlib.suppress(SourceChanged):
                if self._files.exists(state_path(self._to)):
                    self._update(view)
                else:
                    self._make(view)
                return self._result(view)
        raise unsettled(self._transfer.directory)

    def _result(self, view: View) -> PartitionBackup:
        state = view.state
        files = tuple(self._transfer.hows[info.base] for info in state.sealed)
        record = PartitionRecord(
            state.topic,
            state.topic_id,
            state.partition,
            state.log_start_offset,
            view.high_watermark,
            state.leader_epoch,
            files,
            self._transfer.active_damaged,
        )
        place = (state.topic, state.partition)
        return PartitionBackup(place, record, self._transfer.copied, self._removed, self._transfer.damaged)

    # --- a new partition --------------------------------------------------------------------------

    def _make(self, view: View) -> None:
        """Build the partition in ``tmp/``, then rename it into place."""
        files, place = self._files, self._to
        made = join(self._data, "tmp", f"{view.state.topic_id}-{view.state.partition}.new")
        if files.exists(made):
            remove_tree(files, made)
        files.make_directories(segments_directory(made))
        sealed = tuple(
            self._transfer.copy_sealed(at, made, segment_path(made, segment.base, "log"), link=True)
            for at, segment in enumerate(view.segments[:-1])
        )
        entries = self._transfer.copy_active(made, 0)
        self._transfer.confirm()
        state = self._state_of(view, sealed)
        self._put_mark(made, state, view, entries)
        write_state(files, made, state)
        self._transfer.copy_derived(made)
        files.sync_directory(segments_directory(made))
        files.sync_directory(made)
        files.make_directories(parent(place))
        files.rename(made, place)
        for directory in (parent(place), join(self._data, "tmp"), join(self._data, "topics"), self._data):
            files.sync_directory(directory)

    # --- an existing partition --------------------------------------------------------------------

    def _update(self, view: View) -> None:
        """Update the partition to *view*, commit by commit."""
        files, directory = self._files, self._to
        before = self._finish_interrupted(read_state(files, directory))
        end = self._end_of(before)
        self._check_unwritten(before, end)
        agreed = _agreed_end(before, view.state, end.next_offset)
        if agreed < end.next_offset:
            before = self._cut(before, end, agreed)
            end = self._end_of(before)
        names = {info.base: info for info in before.sealed}
        sealed: list[SealedInfo] = []
        final_swap = None
        for at, segment in enumerate(view.segments[:-1]):
            info, base = segment.info, segment.base
            kept = self._kept(view, info, before, names.get(base))
            if kept is not None:
                sealed.append(kept)
            elif _was_active(before, end, base, info.generation, info.size):
                sealed.append(self._transfer.copy_newly_sealed(at, directory, end.position))
            elif base in names or base == before.active_base:
                info = self._transfer.copy_sealed(at, directory, swap_path(directory, base, "log"), link=True)
                if info.next_offset <= before.active_base:
                    if info.next_offset not in {each.next_offset for each in before.sealed}:
                        raise written_since(self._data)
                    self._transfer.confirm()
                    files.sync_directory(segments_directory(directory))
                    before = swapping.commit_swap(files, directory, before, info)
                    before = swapping.finish_swap(files, directory, before)
                else:
                    final_swap = base
                sealed.append(info)
            else:
                # If the last segment is lost, recovery creates a new one at the end of the old log, so this
                # name must never be a link.
                link = base != end.next_offset
                path = segment_path(directory, base, "log")
                sealed.append(self._transfer.copy_sealed(at, directory, path, link=link))
        state = self._state_of(view, tuple(sealed))
        self._commit(view, before, end, state, final_swap)

    def _finish_interrupted(self, state: PartitionState) -> PartitionState:
        """Finish a change that an earlier backup committed before a crash."""
        if state.truncating is not None:
            state = truncation.finish_cut(self._files, self._to, state)
        if state.swapping is not None:
            state = swapping.finish_swap(self._files, self._to, state)
        return state

    def _end_of(self, state: PartitionState) -> Bound:
        marks = read_marks(self._files, mark_path(self._to))
        return synced_bound(state, newest_mark(state, marks, self._to))

    def _check_unwritten(self, state: PartitionState, end: Bound) -> None:
        """Refuse a backup that was appended to: it is a separate log now."""
        known = self._known if self._untouched else None
        if known is not None and (known.end_offset, known.leader_epoch) != (
            end.next_offset,
            state.leader_epoch,
        ):
            raise written_since(self._data)

    def _cut(self, state: PartitionState, end: Bound, offset: int) -> PartitionState:
        """Truncate the target where the source was truncated. A sealed file is copied, never cut."""
        active = active_info(state, end)
        info = next((info for info in state.sealed if info.base <= offset < info.next_offset), active)
        open_files = OpenFiles(self._files, mapped=False)
        segment = Segment(open_files, self._to, info, self._source.format)
        bounds = bounds_of(state, info, self._source.frame_size_max)
        cut = truncation.plan_cut(segment, offset, bounds)
        committed = truncation.commit_cut(self._files, self._to, state, cut)
        return truncation.finish_cut(self._files, self._to, committed)

    def _kept(
        self, view: View, info: SealedInfo, before: PartitionState, there: SealedInfo | None
    ) -> SealedInfo | None:
        """Return the description of a segment in the target, None if it is missing or differs."""
        record = None
        if self._known is not None:
            record = next((each for each in self._known.files if each.base == info.base), None)
        if there is None or record is None or not record.is_of(info) or not record.is_of(there):
            return None
        span = (info.base, info.next_offset)
        if view.state.epochs_within(*span) != before.epochs_within(*span):
            return None
        try:
            path = segment_path(self._to, info.base, "log")
            with contextlib.closing(self._files.open(path, "read")) as file:
                if file.size() != info.size:
                    return None
        except FileNotFoundError:
            return None
        sha256 = info.sha256 or there.sha256
        self._transfer.note(info, "kept", sha256)
        self._transfer.copier.advance(info.size)
        return msgspec.structs.replace(info, sha256=sha256)

    def _commit(
        self, view: View, before: PartitionState, end: Bound, state: PartitionState, final_swap: int | None
    ) -> None:
        """Commit *state* with its active segment."""
        files, directory, active = self._files, self._to, state.active_base
        same_active = _was_active(before, end, active, state.active_generation, view.position)
        replaced = not same_active and active in {before.active_base, *(i.base for i in before.sealed)}
        whole = self._untouched and self._known is not None and not self._known.damaged
        if whole and same_active and state == before and end.position == view.position:
            self._transfer.copy_derived(directory)
            self._remove_unnamed(state)
            return
        entries = (b"", b"")
        if not replaced:
            entries = self._transfer.copy_active(directory, end.position if same_active else 0)
        self._transfer.confirm()
        files.sync_directory(segments_directory(directory))
        # Readers between this commit and the mark see a log that ends where its active segment begins.
        low = min(state.log_start_offset, active)
        committed = msgspec.structs.replace(state, log_start_offset=low, swapping=final_swap)
        if replaced:
            committed = self._prepare_cut(view, committed)
        write_state(files, directory, committed)
        if committed.truncating is not None:
            truncation.finish_cut(files, directory, committed)
            entries = self._transfer.copy_active(directory, committed.truncating.position)
        if final_swap is not None:
            swapping.finish_swap(files, directory, committed)
        self._put_mark(directory, msgspec.structs.replace(state, log_start_offset=low), view, entries)
        if low < state.log_start_offset:
            write_state(files, directory, state)
            self._put_mark(directory, state, view, entries)
        self._transfer.copy_derived(directory)
        self._remove_unnamed(state)

    def _prepare_cut(self, view: View, state: PartitionState) -> PartitionState:
        """Prepare the file of a sealed segment that becomes active again, up to the start of its epoch."""
        base, start = state.active_base, state.epoch_start
        if start.base != base:
            start = Bound(base, 0, base)
        path = segment_path(self._to, base, CUT_SUFFIX)
        self._transfer.copied += self._transfer.copier.copy_damaged(view.segments[-1], start.position, path)
        self._files.sync_directory(segments_directory(self._to))
        cut = Cut(start.base, start.position, start.next_offset, copied=True)
        return msgspec.structs.replace(state, truncating=cut)

    def _remove_unnamed(self, state: PartitionState) -> None:
        """Remove the files that the committed *state* does not name."""
        files, segments = self._files, segments_directory(self._to)
        named = {f"{base:020d}" for base in (*(info.base for info in state.sealed), state.active_base)}
        bases, others = [], []
        for name in files.list(segments):
            base, _, suffix = name.partition(".")
            if base.isdigit() and base not in named and suffix == "log":
                bases.append(int(base))
            elif base not in named or suffix not in truncation.SUFFIXES:
                others.append(join(segments, name))
        truncation.remove_segments(files, self._to, bases)
        for path in others:
            remove(files, path)
        self._removed += len(bases)

    # --- derived files -----------------------------------------------------------------------------

    def _state_of(self, view: View, sealed: tuple[SealedInfo, ...]) -> PartitionState:
        state = msgspec.structs.replace(view.state, sealed=sealed, truncating=None, swapping=None)
        return self._settle(state, Bound(state.active_base, view.position, view.high_watermark))

    def _put_mark(
        self, directory: str, state: PartitionState, view: View, entries: tuple[bytes, bytes]
    ) -> None:
        mark = Mark(
            state.leader_epoch,
            1,
            state.active_base,
            view.position,
            view.high_watermark,
            state.log_start_offset,
            len(entries[0]) // 16,
            len(entries[1]) // 16,
            google_crc32c.value(entries[0]),
            google_crc32c.value(entries[1]),
            last_stable_offset=view.last_stable_offset,
            aborted_entries=len(self._transfer.active_aborted) // ABORTED_ENTRY_SIZE,
            aborted_crc=google_crc32c.value(self._transfer.active_aborted),
        )
        data = encode_slot(mark).ljust(SIZE, b"\0")
        write_atomically(self._files, mark_path(directory), data)


def written_since(data: str) -> DirectoryRefused:
    """Return the error for a backup that a writer has opened since."""
    return DirectoryRefused(
        f"{data} was written to since the last backup and is a separate log; back up to another directory"
    )


def _was_active(before: PartitionState, end: Bound, base: int, generation: int, size: int) -> bool:
    """Return whether a segment was the active one when *before* ended at *end*."""
    return (base, generation) == (before.active_base, before.active_generation) and size >= end.position


def _agreed_end(before: PartitionState, now: PartitionState, end: int) -> int:
    """Return the offset up to which two states of one partition have the same records, *end* at most.

    Every truncation begins an epoch at its offset, so both agree up to the first epoch that only one has.
    """
    ours = [(each.epoch, each.start_offset) for each in before.epochs if each.start_offset < end]
    theirs = [(each.epoch, each.start_offset) for each in now.epochs if each.start_offset < end]
    for at in range(max(len(ours), len(theirs))):
        if ours[at : at + 1] != theirs[at : at + 1]:
            return min(start for _, start in (*ours[at : at + 1], *theirs[at : at + 1]))
    return end
