"""Adoption: a staged file of frames becomes a segment. Its frames get their offsets in place."""

from __future__ import annotations

import contextlib

import google_crc32c
import msgspec

from cordwood.config import TopicConfig
from cordwood.disk import Files, parent, write_all
from cordwood.errors import RecordRefused
from cordwood.formats import BatchFormat
from cordwood.storage.log.active_segment import Stores, create_stores
from cordwood.storage.log.changes.change import SegmentChange
from cordwood.storage.log.changes.rolling import go_on_after
from cordwood.storage.log.context import LogContext
from cordwood.storage.log.log_core import LogCore
from cordwood.storage.log.reading import bounds_of, index_frames
from cordwood.storage.log.segment import Segment, segment_path, segments_directory, write_indexes
from cordwood.storage.log.state import Bound, PartitionState, active_info, sealed_state, write_state


class Adopt(SegmentChange):
    """Make the file at *path*, *size* bytes of whole frames, the next segment by renaming it.

    The active segment must be empty: the file takes its place.
    """

    doing = "adopting a segment"
    segment: Segment
    _stores: Stores

    def __init__(self, log: LogCore, path: str, size: int) -> None:
        super().__init__(log)
        self._path = path
        self._size = size

    def prepare(self) -> bool:
        """Give the frames their offsets, write the indexes, and create the files of the next segment."""
        log = self.log
        assert log.active.store.end == 0, "the active segment has records"
        assert isinstance(log.format, BatchFormat), "only batches are staged"
        self.segment = prepare(
            log.context, log.directory, log.state, log.format, self._path, self._size, log.config
        )
        self._stores = create_stores(
            log.context.files, log.directory, self.segment.info.next_offset, log.config, log.format
        )
        return True

    def commit(self) -> PartitionState:
        """Rename the file, then write the state in which it is a sealed segment."""
        log, files, info = self.log, self.log.context.files, self.segment.info
        try:
            # In place of the active segment, which is empty. A crash between this and the commit leaves
            # frames past the mark, and recovery keeps them as it keeps any whole tail.
            with log.context.urgently():
                files.rename(self._path, segment_path(log.directory, info.base, "log"))
                files.sync_directory(segments_directory(log.directory))
                files.sync_directory(parent(self._path))
                state = sealed_state(log.state, info)
                write_state(files, log.directory, state)
        except OSError as error:
            raise log.failed(f"{self.doing} failed: {error}") from error
        return state

    def apply(self, state: PartitionState) -> None:
        """Append after the adopted segment from now on."""
        go_on_after(self.log, state, self.segment, self.segment.info, self._stores)


def prepare(
    context: LogContext,
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
    next_offset = _number(context.files, path, size, format_, state.active_base, state.leader_epoch)
    info = active_info(state, Bound(state.active_base, size, next_offset))
    segment = Segment(context.open_files, directory, info, format_)
    segment.path = path
    index, times = segment.new_indexes()
    try:
        bounds = bounds_of(state, info, config.stored_bytes_max)
        damage = index_frames(segment, bounds, index, times, (info.base, 0))
    finally:
        context.open_files.forget(segment.number)
    if damage is not None:
        raise RecordRefused(str(damage))
    segment.use_indexes(index, times)
    write_indexes(segment, index, times)
    now_ms = context.clock.now_ms()
    segment.info = msgspec.structs.replace(
        info,
        max_timestamp=times.largest,
        index_crc32c=google_crc32c.value(bytes(index.entries)),
        time_index_crc32c=google_crc32c.value(bytes(times.entries)),
        opened_ms=now_ms,
        sealed_ms=now_ms,
        appended_ms=now_ms,
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
            if format_.is_transactional(head):
                # No coordinator knows its transaction, so it might stay open for ever.
                raise RecordRefused(f"{path}: the batch at byte {position} is part of a transaction")
            write_all(file, position, head)
            position += frame_size
        if position != size or file.size() != size:
            raise RecordRefused(f"{path}: its frames end at {position}, not at {size}")
        file.sync()
    return offset
