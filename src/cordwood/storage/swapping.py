"""New files for sealed segments: prepared, committed, and put in place, also after a crash.

A sealed file is never changed in place. What takes its place, and maybe that of segments after it, is written
beside it and synced; the rename of `partition.json` commits; the rest only makes the disk agree.
"""

from __future__ import annotations

import contextlib

import msgspec

from cordwood.storage.files import Files, join
from cordwood.storage.partition_state import PartitionState, SealedInfo, swapped_state, write_state
from cordwood.storage.segment import segment_path, segments_directory
from cordwood.storage.truncation import SUFFIXES, remove_segments

#: What the files of a segment are called until they have their names.
SWAP_SUFFIX = "swap"


def swap_path(directory: str, base: int, suffix: str) -> str:
    """Return where the new ``log``, ``idx`` or ``timeidx`` of a segment is prepared."""
    return segment_path(directory, base, f"{suffix}.{SWAP_SUFFIX}")


def commit_swap(files: Files, directory: str, state: PartitionState, info: SealedInfo) -> PartitionState:
    """Write the state in which *info*, whose files are prepared and synced, has taken its place."""
    committed = swapped_state(state, info)
    write_state(files, directory, committed)
    return committed


def finish_swap(files: Files, directory: str, state: PartitionState) -> PartitionState:
    """Make the disk agree with a committed swap, whatever a crash left undone. Durable on return."""
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
    """Remove whatever was prepared and never committed."""
    segments = segments_directory(directory)
    for name in files.list(segments):
        if name.endswith(f".{SWAP_SUFFIX}"):
            with contextlib.suppress(FileNotFoundError):
                files.unlink(join(segments, name))
