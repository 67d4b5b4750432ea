"""Truncation as a plan, a commit point and steps that can be finished after a crash.

A sealed file is never changed in place: what is kept of it is copied and takes its name. Everything is
prepared first; the rename of `partition.json` commits; the rest only makes the disk agree.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Iterable

import msgspec

from cordwood.formats.registry import EVERY_FORMAT
from cordwood.kernels import Buffer
from cordwood.storage.files import Files, os_error, write_all
from cordwood.storage.partition_state import Cut, PartitionState, truncated_state, write_state
from cordwood.storage.reading import Bounds, read_run
from cordwood.storage.segment import (
    ActiveSegment,
    Segment,
    segment_path,
    segments_directory,
    sidecar_end,
)

COPY_BYTES = 8 << 20
#: Every file a segment has. The log goes last, so that what is left of a half-removed one can be told.
SUFFIXES = ("idx", "timeidx", "oidx", "sum", "index", "log")
#: Those that some formats have beside the log, as authoritative as it is.
SIDECAR_SUFFIXES = ("sum", "index")
#: The file that is to become ``<base>.log`` once the truncation is committed.
CUT_SUFFIX = "log.cut"
#: The file that says of a segment which no state names any more that its files are going.
TOMB_SUFFIX = "tomb"


def plan_cut(segment: Segment, end_offset: int, bounds: Bounds) -> Cut:
    """Find where *segment* is to end so that its records stop before *end_offset*, and prepare its file.

    An active segment cut between frames needs none: it is shortened in place.

    Raises:
        CorruptRange: If the frame at the cut is not what was written.
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
    """Write what is kept of a segment to its cut files: *size* bytes and *tail*. Durable, names included."""
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


def commit_cut(files: Files, directory: str, state: PartitionState, cut: Cut) -> PartitionState:
    """Write the state that says where the log ends now. From here on the truncation has happened."""
    committed = truncated_state(state, cut)
    write_state(files, directory, committed)
    return committed


def finish_cut(files: Files, directory: str, state: PartitionState) -> PartitionState:
    """Make the disk agree with a committed truncation, whatever a crash left undone. Durable on return."""
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

    Each gets a tomb first. So whoever finds part of a segment after a crash knows that it was let go, and by
    whom, and removes the rest.
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
