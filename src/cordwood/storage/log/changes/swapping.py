"""New files for sealed segments: prepared, committed, and put in place, also after a crash.

A sealed file is never changed in place. The file that replaces it, and possibly segments after it, is written
beside it and synced; the rename of `partition.json` commits; the rest makes the disk agree.
"""

from __future__ import annotations

import contextlib

import msgspec

from cordwood.disk import Files, join
from cordwood.errors import DiskFull
from cordwood.storage.log.changes.change import SegmentChange
from cordwood.storage.log.changes.truncation import SUFFIXES, remove_segments
from cordwood.storage.log.log_core import LogCore
from cordwood.storage.log.segment import Segment, segment_path, segments_directory
from cordwood.storage.log.state import PartitionState, SealedInfo, swapped_state, write_state
from cordwood.telemetry import SEGMENTS

#: The suffix of prepared files until they take the names of the segment.
SWAP_SUFFIX = "swap"


class Swap(SegmentChange):
    """Put *new*, whose files are prepared and synced, in the place of *old*, which follow each other.

    Nothing happens if one of *old* is not there any more. Readers go on, with the old files or the new ones.
    """

    doing = "compacting"

    def __init__(self, log: LogCore, old: tuple[Segment, ...], new: Segment) -> None:
        super().__init__(log)
        self._old = old
        self._new = new

    def prepare(self) -> bool:
        """Check that the old segments are there, and that there is space to finish with."""
        log, segments, new = self.log, self.log.view.segments, self._new
        if any(segment not in segments for segment in self._old):
            return False
        assert new.info.base == self._old[0].info.base, "the new segment begins elsewhere"
        assert new.info.next_offset == self._old[-1].info.next_offset, "the new segment ends elsewhere"
        if not log.context.reserve.keep():
            # Finishing takes a little space, and cannot be put off once it is committed.
            raise DiskFull(f"{log.directory}: no space left to finish compacting with")
        return True

    def commit(self) -> PartitionState:
        """Write the state that names the new segment."""
        return commit_swap(self.log.context.files, self.log.directory, self.log.state, self._new.info)

    def apply(self, state: PartitionState) -> None:
        """Rename the new files, and let readers see them."""
        log, context, segments = self.log, self.log.context, self.log.view.segments
        log.swaps += 1
        finished = context.reserve.freeing(lambda: finish_swap(context.files, log.directory, state))
        at = segments.index(self._old[0])
        log.publish(finished, (*segments[:at], self._new, *segments[at + len(self._old) :]))
        log.swaps += 1
        log.note_for_hashing()
        for segment in self._old:
            context.open_files.forget(segment.number)
        context.telemetry.add(SEGMENTS, 1 - len(self._old))


def swap_path(directory: str, base: int, suffix: str) -> str:
    """Return where the new ``log``, ``idx`` or ``timeidx`` of a segment is prepared."""
    return segment_path(directory, base, f"{suffix}.{SWAP_SUFFIX}")


def commit_swap(files: Files, directory: str, state: PartitionState, info: SealedInfo) -> PartitionState:
    """Write the state in which *info*, whose files are prepared and synced, has its place; return it."""
    assert state.swapping is None, "the swap before is not finished"
    assert info.next_offset <= state.active_base, "only sealed segments are replaced"
    committed = swapped_state(state, info)
    write_state(files, directory, committed)
    return committed


def finish_swap(files: Files, directory: str, state: PartitionState) -> PartitionState:
    """Make the disk agree with a committed swap, also after a crash on the way. Durable on return."""
    base = state.swapping
    (info,) = (info for info in state.sealed if info.base == base)
    segments = segments_directory(directory)
    for suffix in SUFFIXES:
        prepared = swap_path(directory, info.base, suffix)
        if files.exists(prepared):
            files.rename(prepared, segment_path(directory, info.base, suffix))
    files.sync_directory(segments)
    names = (name.partition(".") for name in files.list(segments))
    bases = {int(number) for number, _, suffix in names if number.isdigit() and suffix in SUFFIXES}
    remove_segments(files, directory, sorted(b for b in bases if info.base < b < info.next_offset))
    finished = msgspec.structs.replace(state, swapping=None)
    write_state(files, directory, finished)
    return finished


def discard_prepared(files: Files, directory: str) -> None:
    """Remove files that were prepared and never committed."""
    segments = segments_directory(directory)
    for name in files.list(segments):
        if name.endswith(f".{SWAP_SUFFIX}"):
            with contextlib.suppress(FileNotFoundError):
                files.unlink(join(segments, name))
