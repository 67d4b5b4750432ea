"""A file of frames becomes a segment: they get their offsets in place, and the file its indexes."""

from __future__ import annotations

import contextlib

import google_crc32c
import msgspec

from cordwood.config import TopicConfig
from cordwood.errors import RecordRefused
from cordwood.formats.native import BatchFormat
from cordwood.storage.active import Surroundings
from cordwood.storage.files import Files, write_all
from cordwood.storage.partition_state import Bound, PartitionState, active_info
from cordwood.storage.reading import index_frames
from cordwood.storage.segment import Segment, write_indexes
from cordwood.storage.view import bounds_of


def prepare(
    around: Surroundings,
    directory: str,
    state: PartitionState,
    format_: BatchFormat,
    path: str,
    size: int,
    config: TopicConfig,
) -> Segment:
    """Give the frames of the file at *path* their offsets, check them, write their indexes. Durable.

    Returns the segment as `partition.json` will have it; its file is still where it was. Doing it again,
    after a crash on the way, gives the same.

    Raises:
        RecordRefused: If the file does not hold whole, sound frames.
        OSError: If the disk refused. The log is as before.
    """
    next_offset = _number(around.files, path, size, format_, state.active_base, state.leader_epoch)
    info = active_info(state, Bound(state.active_base, size, next_offset))
    segment = Segment(around.open_files, directory, info, format_)
    segment.path = path
    index, times = segment.new_indexes()
    try:
        bounds = bounds_of(state, info, config.stored_bytes_max)
        damage = index_frames(segment, bounds, index, times, (info.base, 0))
    finally:
        around.open_files.forget(segment.number)
    if damage is not None:
        raise RecordRefused(str(damage))
    segment.use_indexes(index, times)
    write_indexes(segment, index, times)
    segment.info = msgspec.structs.replace(
        info,
        max_timestamp=times.largest,
        index_crc32c=google_crc32c.value(bytes(index.entries)),
        time_index_crc32c=google_crc32c.value(bytes(times.entries)),
        opened_ms=around.clock.now_ms(),
        sealed_ms=around.clock.now_ms(),
    )
    return segment


def _number(
    files: Files, path: str, size: int, format_: BatchFormat, base_offset: int, leader_epoch: int
) -> int:
    """Give every frame of a file its offsets, and return the offset after the last. Durable on return."""
    position, offset = 0, base_offset
    with contextlib.closing(files.open(path, "write")) as file:
        while position < size:
            head = bytearray(file.read_at(position, format_.place_size))
            frame_size, offset = format_.renumber(head, offset, leader_epoch)
            write_all(file, position, head)
            position += frame_size
        if position != size or file.size() != size:
            raise RecordRefused(f"{path}: its frames end at {position}, not at {size}")
        file.sync()
    return offset
