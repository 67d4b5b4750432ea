"""Truncation as a plan, a commit point and steps that can be finished after a crash.

A sealed file is never changed in place: what is kept of it is copied and takes its name. Everything is
prepared first; the rename of `partition.json` commits; the rest only makes the disk agree.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterable

import msgspec

from cordwood.storage.files import Files, os_error, write_all
from cordwood.storage.partition_state import Cut, PartitionState, truncated_state, write_state
from cordwood.storage.reading import Bounds, read_run
from cordwood.storage.segment import ActiveSegment, Segment, segment_path, segments_directory

COPY_BYTES = 8 << 20
#: Every file a segment has. The log goes last, so that what is left of a half-removed one can be told.
SUFFIXES = ("idx", "timeidx", "log")
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
    tail = segment.format.keep_before(run.buffer, position, end_offset) if base_offset < end_offset else None
    position += run.start
    in_place = isinstance(segment, ActiveSegment) and tail is None
    if not in_place:
        _copy(segment, position, tail or b"")
    return Cut(segment.base, position + len(tail or b""), end_offset, copied=not in_place)


def _copy(segment: Segment, size: int, tail: bytes | bytearray) -> None:
    """Write the first *size* bytes of a segment and then *tail* to its cut file. Durable, name included."""
    files = segment.open_files.files
    path = segment_path(segment.directory, segment.base, CUT_SUFFIX)
    with contextlib.suppress(FileNotFoundError):
        files.unlink(path)
    with contextlib.closing(files.open(path, "create")) as file:
        position = 0
        while position < size:
            data = segment.read_at(position, min(COPY_BYTES, size - position))
            if not data:
                raise os_error(errno.EIO, segment.path)
            write_all(file, position, data)
            position += len(data)
        write_all(file, position, tail)
        file.sync()
    files.sync_directory(segments_directory(segment.directory))


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
    path, prepared = segment_path(directory, end.base, "log"), segment_path(directory, end.base, CUT_SUFFIX)
    if state.truncating.copied and files.exists(prepared):
        files.rename(prepared, path)
    with contextlib.closing(files.open(path, "write")) as file:
        file.truncate(end.position)
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
