"""One partition on its way into another data directory, as it was at one moment of its writer.

A partition that is new there is made in ``tmp/`` and takes its place with one rename. One that is there is
brought from what it was to what the source is now, by commits of its `partition.json`, each of which leaves a
log that can be opened: files that are new come first, a file that takes another one's name is prepared beside
it, the segment that took appends when the last backup was made is carried on where it ended, and what is not
needed any more goes last.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field

import google_crc32c
import msgspec

from cordwood.errors import DirectoryRefused
from cordwood.storage import swapping, truncation
from cordwood.storage.backup_record import PartitionRecord
from cordwood.storage.backup_segment import (
    Carrier,
    remove,
)
from cordwood.storage.backup_taking import TRIES, Moved, SourcePartition, Taking, restless
from cordwood.storage.deletion import remove_tree
from cordwood.storage.files import Files, join, parent, write_atomically
from cordwood.storage.mark import SIZE, Mark, encode_slot, read_marks
from cordwood.storage.open_files import OpenFiles
from cordwood.storage.partition_state import (
    Bound,
    Cut,
    PartitionState,
    SealedInfo,
    active_info,
    mark_path,
    read_state,
    state_path,
    write_state,
)
from cordwood.storage.recovery import newest_mark, synced_bound
from cordwood.storage.reindex import Damaged
from cordwood.storage.segment import Segment, segment_path, segments_directory
from cordwood.storage.swapping import swap_path
from cordwood.storage.truncation import CUT_SUFFIX
from cordwood.storage.view import View, bounds_of


@dataclass
class PartitionResult:
    """What became of a partition: its record if the target has it, and what is wrong in the source."""

    place: tuple[str, int]
    record: PartitionRecord | None
    copied_bytes: int = 0
    removed: int = 0
    damaged: list[Damaged] = field(default_factory=list)


Settle = Callable[[PartitionState, Bound], PartitionState]
"""From what the source says, and where its log ends, to what the target is to say."""


class PartitionCarrier:
    """Brings one partition. One user.

    *data* is the target's data directory, *known* what the last backup says of the partition, which must
    still be so if it was left *untouched*.
    """

    def __init__(
        self,
        carrier: Carrier,
        source: SourcePartition,
        source_directory: str,
        data: str,
        directory: str,
        known: PartitionRecord | None = None,
        *,
        untouched: bool = True,
        settle: Settle = lambda state, end: state,
    ) -> None:
        self._files: Files = carrier.files
        self._source = source
        self._taking = Taking(carrier, source, source_directory)
        self._data = data
        self._to = directory
        self._known = known
        self._untouched = untouched
        self._settle = settle
        self._removed = 0

    def bring(self) -> PartitionResult:
        """Bring the partition to where its source is now. Durable on return.

        Raises:
            NeverUsed, UnknownTopic: If there is nothing, or nothing any more. Nothing has changed.
            MetadataDamaged: If the source cannot be read. Nothing has changed.
            StorageError: If it never stood still for long enough.
        """
        for _ in range(TRIES):
            view = self._taking.begin()
            with contextlib.suppress(Moved):
                if self._files.exists(state_path(self._to)):
                    self._update(view)
                else:
                    self._make(view)
                return self._result(view)
        raise restless(self._taking.directory)

    def _result(self, view: View) -> PartitionResult:
        state = view.state
        files = tuple(self._taking.hows[info.base] for info in state.sealed)
        record = PartitionRecord(
            state.topic,
            state.topic_id,
            state.partition,
            state.log_start_offset,
            view.high_watermark,
            state.leader_epoch,
            files,
            self._taking.active_damaged,
        )
        place = (state.topic, state.partition)
        return PartitionResult(place, record, self._taking.copied, self._removed, self._taking.damaged)

    # --- a partition that is not there yet --------------------------------------------------------

    def _make(self, view: View) -> None:
        """Make the partition in ``tmp/``, then rename it into place."""
        files, place = self._files, self._to
        made = join(self._data, "tmp", f"{view.state.topic_id}-{view.state.partition}.new")
        if files.exists(made):
            remove_tree(files, made)
        files.make_directories(segments_directory(made))
        sealed = tuple(
            self._taking.bring_sealed(at, made, segment_path(made, segment.base, "log"), link=True)
            for at, segment in enumerate(view.segments[:-1])
        )
        entries = self._taking.bring_active(made, 0)
        self._taking.confirm()
        state = self._state_of(view, sealed)
        self._put_mark(made, state, view, entries)
        write_state(files, made, state)
        self._taking.bring_beside(made)
        files.sync_directory(segments_directory(made))
        files.sync_directory(made)
        files.make_directories(parent(place))
        files.rename(made, place)
        for directory in (parent(place), join(self._data, "tmp"), join(self._data, "topics"), self._data):
            files.sync_directory(directory)

    # --- a partition that is there ----------------------------------------------------------------

    def _update(self, view: View) -> None:
        """Bring the partition from what it is to what *view* says, commit by commit."""
        files, directory = self._files, self._to
        before = self._finished(read_state(files, directory))
        end = self._end_of(before)
        self._check_ours(before, end)
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
            elif _goes_on(before, end, base, info.generation, info.size):
                sealed.append(self._taking.seal_active(at, directory, end.position))
            elif base in names or base == before.active_base:
                info = self._taking.bring_sealed(at, directory, swap_path(directory, base, "log"), link=True)
                if info.next_offset <= before.active_base:
                    if info.next_offset not in {each.next_offset for each in before.sealed}:
                        raise written_since(self._data)
                    self._taking.confirm()
                    files.sync_directory(segments_directory(directory))
                    before = swapping.commit_swap(files, directory, before, info)
                    before = swapping.finish_swap(files, directory, before)
                else:
                    final_swap = base
                sealed.append(info)
            else:
                # Where the old log ends, recovery of a log that lost its last segment begins a new one in
                # place: that name is never a link.
                link = base != end.next_offset
                path = segment_path(directory, base, "log")
                sealed.append(self._taking.bring_sealed(at, directory, path, link=link))
        state = self._state_of(view, tuple(sealed))
        self._commit(view, before, end, state, final_swap)

    def _finished(self, state: PartitionState) -> PartitionState:
        """Finish what a crash left undone of a change that an earlier backup committed."""
        if state.truncating is not None:
            state = truncation.finish_cut(self._files, self._to, state)
        if state.swapping is not None:
            state = swapping.finish_swap(self._files, self._to, state)
        return state

    def _end_of(self, state: PartitionState) -> Bound:
        marks = read_marks(self._files, mark_path(self._to))
        return synced_bound(state, newest_mark(state, marks, self._to))

    def _check_ours(self, state: PartitionState, end: Bound) -> None:
        """Refuse a backup that somebody has appended to: it is a log of its own now."""
        known = self._known if self._untouched else None
        if known is not None and (known.end_offset, known.leader_epoch) != (
            end.next_offset,
            state.leader_epoch,
        ):
            raise written_since(self._data)

    def _cut(self, state: PartitionState, end: Bound, offset: int) -> PartitionState:
        """Truncate the target where the source was. A sealed file is never cut, only copied."""
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
        """Return what to say of a segment that is there already, None if it is not, or not as it is now."""
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
        self._taking.note(info, "kept", sha256)
        self._taking.carrier.advance(info.size)
        return msgspec.structs.replace(info, sha256=sha256)

    def _commit(
        self, view: View, before: PartitionState, end: Bound, state: PartitionState, final_swap: int | None
    ) -> None:
        """Commit *state*, with the active segment that belongs to it."""
        files, directory, active = self._files, self._to, state.active_base
        same_active = _goes_on(before, end, active, state.active_generation, view.position)
        replaced = not same_active and active in {before.active_base, *(i.base for i in before.sealed)}
        whole = self._untouched and self._known is not None and not self._known.damaged
        if whole and same_active and state == before and end.position == view.position:
            self._taking.bring_beside(directory)
            self._remove_unnamed(state)
            return
        entries = (b"", b"")
        if not replaced:
            entries = self._taking.bring_active(directory, end.position if same_active else 0)
        self._taking.confirm()
        files.sync_directory(segments_directory(directory))
        # Readers between this commit and the mark see a log that ends where its active segment begins.
        low = min(state.log_start_offset, active)
        committed = msgspec.structs.replace(state, log_start_offset=low, swapping=final_swap)
        if replaced:
            committed = self._prepare_cut(view, committed)
        write_state(files, directory, committed)
        if committed.truncating is not None:
            truncation.finish_cut(files, directory, committed)
            entries = self._taking.bring_active(directory, committed.truncating.position)
        if final_swap is not None:
            swapping.finish_swap(files, directory, committed)
        self._put_mark(directory, msgspec.structs.replace(state, log_start_offset=low), view, entries)
        if low < state.log_start_offset:
            write_state(files, directory, state)
            self._put_mark(directory, state, view, entries)
        self._taking.bring_beside(directory)
        self._remove_unnamed(state)

    def _prepare_cut(self, view: View, state: PartitionState) -> PartitionState:
        """Prepare the file of a segment that takes appends again, up to where its epoch began."""
        base, start = state.active_base, state.epoch_start
        if start.base != base:
            start = Bound(base, 0, base)
        path = segment_path(self._to, base, CUT_SUFFIX)
        self._taking.copied += self._taking.carrier.copy_as_it_is(view.segments[-1], start.position, path)
        self._files.sync_directory(segments_directory(self._to))
        cut = Cut(start.base, start.position, start.next_offset, copied=True)
        return msgspec.structs.replace(state, truncating=cut)

    def _remove_unnamed(self, state: PartitionState) -> None:
        """Remove the files that *state*, which is committed, does not name."""
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

    # --- what goes with them ----------------------------------------------------------------------

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
        )
        data = encode_slot(mark).ljust(SIZE, b"\0")
        write_atomically(self._files, mark_path(directory), data)


def written_since(data: str) -> DirectoryRefused:
    """Return the error for a backup that was opened and written since."""
    return DirectoryRefused(
        f"{data} was written to since the last backup and is a log of its own; back up to another directory"
    )


def _goes_on(before: PartitionState, end: Bound, base: int, generation: int, size: int) -> bool:
    """Return whether a segment is the one that took appends when *before* ended at *end*."""
    return (base, generation) == (before.active_base, before.active_generation) and size >= end.position


def _agreed_end(before: PartitionState, now: PartitionState, end: int) -> int:
    """Return the offset up to which two states of one partition have the same records, *end* at most.

    Every truncation begins an epoch where it cut, so they agree up to the first epoch that only one has.
    """
    ours = [(each.epoch, each.start_offset) for each in before.epochs if each.start_offset < end]
    theirs = [(each.epoch, each.start_offset) for each in now.epochs if each.start_offset < end]
    for at in range(max(len(ours), len(theirs))):
        if ours[at : at + 1] != theirs[at : at + 1]:
            return min(start for _, start in (*ours[at : at + 1], *theirs[at : at + 1]))
    return end
