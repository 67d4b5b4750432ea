"""Truncation as a plan, a commit point and steps that can be finished after a crash.

A sealed file is never changed in place: the part that is kept is copied, and the copy takes its name. All
files are prepared first; the rename of `partition.json` commits; the rest makes the disk agree.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Iterable
from typing import NamedTuple

import msgspec

from cordwood.disk import Files, os_error, write_all
from cordwood.errors import OffsetOutOfRange, StorageError
from cordwood.formats import EVERY_FORMAT
from cordwood.kernels import Buffer
from cordwood.storage.log.active_segment import ActiveSegment, reopen_active
from cordwood.storage.log.changes.change import SegmentChange
from cordwood.storage.log.log_core import LogCore
from cordwood.storage.log.reading import Bounds, read_run
from cordwood.storage.log.segment import Segment, segment_path, segments_directory, sidecar_end
from cordwood.storage.log.state import Cut, PartitionState, truncated_state, write_state
from cordwood.telemetry import SEGMENTS

COPY_BYTES = 8 << 20
#: Every file a segment has. The log is removed last, so that a half-removed segment is recognized.
SUFFIXES = ("idx", "timeidx", "txnindex", "oidx", "sum", "index", "log")
#: The files that some formats have beside the log, as authoritative as it is.
SIDECAR_SUFFIXES = ("sum", "index")
#: The file that is to become ``<base>.log`` once the truncation is committed.
CUT_SUFFIX = "log.cut"
#: The file that marks a segment, which no state names any more, as being removed.
TOMB_SUFFIX = "tomb"


class TruncationReport(NamedTuple):
    """The log end after a truncation, and how many offsets and bytes it removed."""

    end_offset: int
    removed_offsets: int
    removed_bytes: int


class Truncate(SegmentChange):
    """Drop every record at or above *end_offset*; nothing happens if it is the log end."""

    doing = "truncating"
    _cut: Cut

    def __init__(self, log: LogCore, end_offset: int) -> None:
        super().__init__(log)
        self._end_offset = end_offset
        self._at = 0
        self.report = TruncationReport(end_offset, 0, 0)

    def prepare(self) -> bool:
        """Sync the log, find the cut, and copy the part of its segment that is kept."""
        log, end_offset, before = self.log, self._end_offset, self.log.end.next_offset
        if not log.log_start_offset <= end_offset <= before:
            raise OffsetOutOfRange(end_offset, log.log_start_offset, before)
        if end_offset == before:
            return False
        self.report = TruncationReport(end_offset, before - end_offset, log.size())
        log.sync_now()
        # Producers are learnt now or, if the log cannot be read, from the records that are left.
        with contextlib.suppress(StorageError):
            log.known_producers.learn(log.context.clock.now_ms())
        view = log.view
        self._at = view.find_segment(end_offset)
        self._cut = plan_cut(view.segments[self._at], end_offset, view.bounds(self._at))
        assert self._cut.base == view.segments[self._at].base, "the cut is in another segment"
        assert self._cut.position <= view.bounds(self._at).end, "the cut lies beyond the end of the segment"
        return True

    def commit(self) -> PartitionState:
        """Write the state that has the new end and the next leader epoch."""
        context = self.log.context
        return commit_cut(context.files, self.log.directory, self.log.state, self._cut, context.takeover)

    def apply(self, state: PartitionState) -> None:
        """Cut the files, and append after the cut from now on."""
        log, context, segments = self.log, self.log.context, self.log.view.segments
        for segment in segments[self._at :]:
            context.open_files.forget(segment.number)
        context.telemetry.add(SEGMENTS, self._at + 1 - len(segments))
        finished = context.reserve.freeing(lambda: finish_cut(context.files, log.directory, state))
        active = reopen_active(context, log.directory, log.config, log.format, finished, self._cut.end)
        if finished.transactional:
            log.known_producers.hold(finished.log_start_offset)
        log.switch_to(active, finished, segments[: self._at])
        log.known_producers.cut(finished.leader_epoch, active.next_offset, context.clock.now_ms())
        if finished.transactional:
            log.show_ended()
            log.move_mark(log.end, sync=True)
        log.note_for_chain()
        self.report = self.report._replace(removed_bytes=self.report.removed_bytes - log.size())


def plan_cut(segment: Segment, end_offset: int, bounds: Bounds) -> Cut:
    """Find where *segment* has to end to hold only records below *end_offset*, and prepare its file.

    An active segment that is cut between frames needs no copy: it is shortened in place.

    Raises:
        CorruptRange: If the frame at the cut is damaged.
        OSError: If the copy could not be made. Nothing has changed.
    """
    run = read_run(segment, end_offset, bounds, 1)
    if run is None:
        return Cut(segment.base, bounds.end, end_offset)
    position, base_offset = run.table.position(run.first), run.table.base_offset(run.first)
    tail = run.table.keep_before(run.first, end_offset) if base_offset < end_offset else None
    position += run.start
    in_place = isinstance(segment, ActiveSegment) and tail is None
    if not in_place:
        _prepare(segment, position, tail or b"", end_offset)
    return Cut(segment.base, position + len(tail or b""), end_offset, copied=not in_place)


def _prepare(segment: Segment, size: int, tail: bytes | bytearray, end_offset: int) -> None:
    """Write *size* bytes of a segment and *tail* to its cut files. Durable, names included."""
    files, sidecar = segment.open_files.files, segment.format.sidecar
    _copy(files, segment.read_at, segment.path, _cut_path(segment, "log"), size, tail)
    if sidecar is not None:
        # As the log itself it may be mapped, and must not become shorter under a reader.
        kept = sidecar_end(sidecar, segment.base, end_offset)
        path = _cut_path(segment, sidecar.suffix)
        _copy(files, segment.read_sidecar, segment.sidecar_path, path, kept, b"")
    files.sync_directory(segments_directory(segment.directory))


def _cut_path(segment: Segment, suffix: str) -> str:
    return segment_path(segment.directory, segment.base, f"{suffix}.cut")


def _copy(
    files: Files,
    read_at: Callable[[int, int], Buffer],
    source: str,
    path: str,
    size: int,
    tail: bytes | bytearray,
) -> None:
    """Write the first *size* bytes that *read_at* gives, then *tail*, to *path*. Synced, its name aside."""
    with contextlib.suppress(FileNotFoundError):
        files.unlink(path)
    with contextlib.closing(files.open(path, "create")) as file:
        position = 0
        while position < size:
            data = read_at(position, min(COPY_BYTES, size - position))
            if not data:
                raise os_error(errno.EIO, source)
            write_all(file, position, data)
            position += len(data)
        write_all(file, position, tail)
        file.sync()


def commit_cut(
    files: Files, directory: str, state: PartitionState, cut: Cut, takeover: int = 0
) -> PartitionState:
    """Write the state with the new log end, and return it. After this the truncation has happened."""
    assert state.truncating is None, "the truncation before is not finished"
    committed = truncated_state(state, cut, takeover)
    write_state(files, directory, committed)
    return committed


def finish_cut(files: Files, directory: str, state: PartitionState) -> PartitionState:
    """Make the disk agree with a committed truncation, also after a crash on the way. Durable on return."""
    assert state.truncating is not None
    end = state.truncating.end
    segments = segments_directory(directory)
    sidecar = EVERY_FORMAT[state.record_format].sidecar
    ends = {"log": end.position}
    if sidecar is not None:
        ends[sidecar.suffix] = sidecar_end(sidecar, end.base, end.next_offset)
    for suffix, position in ends.items():
        path = segment_path(directory, end.base, suffix)
        if state.truncating.copied and files.exists(f"{path}.cut"):
            files.rename(f"{path}.cut", path)
        with contextlib.closing(files.open(path, "write")) as file:
            file.truncate(position)
            file.sync()
    files.sync_directory(segments)
    later = (int(name[:20]) for name in files.list(segments) if name.endswith(".log") and name[:20].isdigit())
    remove_segments(files, directory, [base for base in later if base > end.base])
    finished = msgspec.structs.replace(state, truncating=None)
    write_state(files, directory, finished)
    return finished


def remove_segments(files: Files, directory: str, bases: Iterable[int]) -> None:
    """Remove the files of segments that no state names any more. Durable on return.

    Each gets a tomb first: recovery that finds part of a segment after a crash sees from the tomb that the
    segment was being removed, and removes the rest.
    """
    going, segments = list(bases), segments_directory(directory)
    if not going:
        return
    for base in going:
        with contextlib.suppress(FileExistsError):
            files.open(segment_path(directory, base, TOMB_SUFFIX), "create").close()
    files.sync_directory(segments)
    for base in going:
        for suffix in SUFFIXES:
            with contextlib.suppress(FileNotFoundError):
                files.unlink(segment_path(directory, base, suffix))
    files.sync_directory(segments)
    for base in going:
        files.unlink(segment_path(directory, base, TOMB_SUFFIX))
    files.sync_directory(segments)
