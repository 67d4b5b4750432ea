"""The segment that takes appends: made, appended to, and reopened."""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import google_crc32c

from cordwood.config import TopicConfig
from cordwood.disk import (
    File,
    Files,
    Mark,
    Store,
    as_storage_error,
    parent,
    write_all,
)
from cordwood.errors import LogFailed
from cordwood.formats import Encoded, Format, StreamedFrame
from cordwood.host import Clock
from cordwood.index import NO_TIMESTAMP, AbortedIndex, TimeIndex
from cordwood.kernels import Buffer
from cordwood.storage.log.aborted_file import AbortedFile
from cordwood.storage.log.context import LogContext
from cordwood.storage.log.file_cache import OpenFiles
from cordwood.storage.log.reading import bounds_of, index_frames, left_before
from cordwood.storage.log.segment import (
    ABORTED_SUFFIX,
    OffsetIndex,
    Segment,
    segment_path,
    segments_directory,
    sidecar_end,
    write_indexes,
)
from cordwood.storage.log.state import Bound, PartitionState, SealedInfo, active_info

if TYPE_CHECKING:
    pass

#: An active segment without frames has not begun to age.
NOT_OPENED = -1
#: How much of a frame is read at a time to learn what it leaves for the next one.
_COPY_BYTES = 1 << 20


class Stores(NamedTuple):
    """The files that an active segment appends to."""

    log: Store
    sidecar: Store | None


class Flushed(NamedTuple):
    """How many entries of each index are in its file, synced, and their checksums."""

    index_entries: int
    time_entries: int
    index_crc: int
    time_crc: int


NOTHING_FLUSHED = Flushed(0, 0, 0, 0)


class ActiveSegment(Segment):
    """The segment that takes appends. One appender at a time; readers beside it.

    ``info`` stays what it was at opening; ``store.end`` and ``next_offset`` move, and ``left``, what the last
    frame leaves for the next one. ``opened_ms`` and ``appended_ms`` are the times of the first and the last
    append by our own clock, as far as they are known; NOT_OPENED without frames.
    """

    def __init__(
        self,
        open_files: OpenFiles,
        directory: str,
        info: SealedInfo,
        format_: Format,
        stores: Stores,
        opened_ms: int,
        appended_ms: int,
        left: bytes = b"",
    ) -> None:
        super().__init__(open_files, directory, info, format_)
        self.store, self.sidecar = stores
        self.index, self.times = self.new_indexes()
        self.use_indexes(self.index, self.times)
        self.next_offset = info.next_offset
        self.opened_ms = opened_ms
        self.appended_ms = appended_ms
        self.flushed = NOTHING_FLUSHED
        self.left = left
        #: The mark that the segment was opened with.
        self.opened_with: Mark | None = None
        #: Aborted transactions whose marker is in this segment.
        self.aborted = AbortedFile(open_files.files, segment_path(directory, info.base, ABORTED_SUFFIX))

    def take_indexes(self, index: OffsetIndex, times: TimeIndex) -> None:
        """Go on with indexes that have entries already."""
        self.use_indexes(index, times)
        assert self._index is not None
        self.index, self.times = self._index, times

    @property
    def next_offset_now(self) -> int:
        """The offset after the last record, written or not."""
        return self.next_offset

    def read_at(self, position: int, size: int) -> Buffer:
        """Return up to *size* bytes from *position*."""
        return self.store.read_at(position, size)

    def read_sidecar(self, position: int, size: int) -> Buffer:
        """Return up to *size* bytes of the sidecar from *position*."""
        assert self.sidecar is not None
        return self.sidecar.read_at(position, size)

    @property
    def index_size(self) -> int:
        """The bytes of the larger index, a sidecar included that is one."""
        dense = 0 if self.sidecar is None or self.has_sparse_index else self.sidecar.end
        return max(len(self.index.entries), len(self.times.entries), dense)

    def index_entries_of(self, count: int) -> int:
        """Return how many index entries *count* more frames of one record get, at most."""
        return count // max(self.index.interval_records, 1) + 1 if self.has_sparse_index else count

    def frames_within(self, index_bytes: int) -> int:
        """Return how many frames of one record an empty segment takes with indexes of *index_bytes*."""
        if self.has_sparse_index:
            return max(index_bytes // 16, 1) * max(self.index.interval_records, 1)
        assert self.format.sidecar is not None
        return max((index_bytes - self.format.sidecar.head_size) // 16, 1)

    def append(self, frames: Encoded) -> None:
        """Append frames, whole or not at all. Not durable. Raises as `Store.append` does."""
        position = self.store.append([frames.data])
        self._append_entries(position, frames.sizes, frames.checksums)
        if frames.sizes:
            offset = self.next_offset
            for size, timestamp in zip(frames.sizes, frames.timestamps, strict=True):
                self.times.add(timestamp, offset, is_indexed=self.index.add(offset, position))
                position += size
                offset += 1
        else:
            is_indexed = self.index.add(self.next_offset, position)
            reached = None if frames.empty else frames.max_timestamp
            self.times.add(reached, self.next_offset, is_indexed=is_indexed)
        self.next_offset = frames.next_offset
        self.left = frames.left
        if self.sidecar is not None:
            self.check_invariants()

    def append_stream(self, frame: StreamedFrame, chunks: Iterable[Buffer]) -> None:
        """Append the frame around a value that comes in *chunks*. Not durable."""

        def passing() -> Iterator[Buffer]:
            for chunk in chunks:
                frame.update(chunk)
                yield chunk

        position = self.store.append_around(len(frame.head), passing(), frame.finish)
        with self._undoing(position):
            left = frame.left(self._pieces(position, frame.size))
        self._append_entries(position, [frame.size], [frame.checksum])
        self.left = left
        is_indexed = self.index.add(self.next_offset, position)
        self.times.add(frame.max_timestamp, self.next_offset, is_indexed=is_indexed)
        self.next_offset = frame.next_offset
        self.check_invariants()

    def check_invariants(self) -> None:
        """Check that offsets, store and sidecar agree. Takes constant time; called by the appender.

        Raises:
            AssertionError: If they do not: a fault of this code.
        """
        next_offset, base = self.next_offset, self.info.base
        assert next_offset > base or not self.store.end, "bytes without offsets"
        if self.sidecar is not None:
            assert self.format.sidecar is not None, "a sidecar in a format that has none"
            end = sidecar_end(self.format.sidecar, base, next_offset)
            assert self.sidecar.end == end, "the sidecar does not end with the last frame"

    def _append_entries(self, position: int, sizes: Sequence[int], checksums: Sequence[int]) -> None:
        """Append the sidecar's entries of frames that stand at *position*; undo those if that fails."""
        if self.sidecar is None:
            return
        assert self.format.sidecar is not None
        with self._undoing(position):
            self.sidecar.append([self.format.sidecar.pack(position, sizes, checksums)])

    @contextlib.contextmanager
    def _undoing(self, position: int) -> Iterator[None]:
        """Cut the store back to *position* if the block fails: what stands there belongs to no append."""
        try:
            yield
        except BaseException as error:
            try:
                self.store.truncate(position)
            except OSError as failed:
                reason = f"{self.store.file.path}: a failed append could not be undone: {failed}"
                raise LogFailed(reason) from failed
            if isinstance(error, OSError):
                raise as_storage_error(error, "append") from error
            raise

    def _pieces(self, position: int, size: int) -> Iterator[Buffer]:
        """Yield *size* bytes from *position*, a piece at a time."""
        for start in range(position, position + size, _COPY_BYTES):
            yield self.read_at(start, min(_COPY_BYTES, position + size - start))

    def sync(self) -> None:
        """Make everything appended before the call durable: frames, and what the sidecar has of them."""
        self.store.sync()
        if self.sidecar is not None:
            self.sidecar.sync()

    def rest(self, *, synced: bool) -> int:
        """Close the files until they are needed again; return how many handles that gave back."""
        files = self.open_files.files
        given = self.store.rest(files, synced=synced)
        return given if self.sidecar is None else given + self.sidecar.rest(files, synced=synced)

    def close(self) -> None:
        """Close the files; syncs nothing."""
        self.store.close()
        if self.sidecar is not None:
            self.sidecar.close()

    def sync_indexes(self, index_entries: int, time_entries: int) -> None:
        """Bring the index files up to the given numbers of entries. Durable on return."""
        before = self.flushed
        new_entries = bytes(self.index.entries[before.index_entries * 16 : index_entries * 16])
        new_times = bytes(self.times.entries[before.time_entries * 16 : time_entries * 16])
        files = self.open_files.files
        for suffix, flushed, new in (
            ("idx", before.index_entries, new_entries),
            ("timeidx", before.time_entries, new_times),
        ):
            if new:
                _write_entries(files, segment_path(self.directory, self.base, suffix), flushed * 16, new)
        self.flushed = Flushed(
            index_entries,
            time_entries,
            google_crc32c.extend(before.index_crc, new_entries),
            google_crc32c.extend(before.time_crc, new_times),
        )

    def aborted_index(self) -> AbortedIndex:
        """Return the index of aborted transactions, which is in memory."""
        return self.aborted.index

    def trim_index_files(self) -> None:
        """Cut off what the index files hold beyond the entries that the mark vouches for."""
        files = self.open_files.files
        for suffix, entries in (("idx", self.flushed.index_entries), ("timeidx", self.flushed.time_entries)):
            path = segment_path(self.directory, self.base, suffix)
            if files.exists(path):
                with contextlib.closing(files.open(path, "write")) as file:
                    if file.size() > entries * 16:
                        file.truncate(entries * 16)
                        file.sync()

    def rewrite_indexes(self) -> None:
        """Replace the index files by what is in memory. Durable on return."""
        write_indexes(self, self.index, self.times)
        self.aborted.rewrite()
        self.flushed = Flushed(
            len(self.index),
            len(self.times),
            google_crc32c.value(bytes(self.index.entries)),
            google_crc32c.value(bytes(self.times.entries)),
        )

    def info_now(self, now_ms: int) -> SealedInfo:
        """Return what `partition.json` will say of this segment if it is sealed as it is, at *now_ms*."""
        return SealedInfo(
            base=self.base,
            size=self.store.end,
            next_offset=self.next_offset,
            max_timestamp=self.times.largest,
            index_interval_bytes=self.info.index_interval_bytes,
            index_crc32c=self.flushed.index_crc,
            time_index_crc32c=self.flushed.time_crc,
            opened_ms=self.opened_ms,
            sealed_ms=now_ms,
            generation=self.info.generation,
            index_interval_records=self.info.index_interval_records,
            before=self.info.before,
            time_index_sparse=self.info.time_index_sparse,
            # The clock may have been set back since.
            appended_ms=min(self.appended_ms, now_ms),
            aborted_count=self.aborted.vouched.entries,
            aborted_crc32c=self.aborted.vouched.crc,
        )


def create_stores(files: Files, directory: str, base: int, config: TopicConfig, format_: Format) -> Stores:
    """Make the empty files of the segment that starts at *base*. Their names are durable on return.

    Files of these names are what a crash left of an earlier try: nothing committed ever named them.
    """
    file = _create(files, segment_path(directory, base, "log"), b"")
    beside = None
    sidecar = format_.sidecar
    if sidecar is not None:
        head = sidecar.head(base)
        beside = Store(_create(files, segment_path(directory, base, sidecar.suffix), head), len(head))
    # The new segment's name lives in the directory, not in the file. Without this sync a power cut can
    # leave acknowledged records in a file no listing shows.
    files.sync_directory(segments_directory(directory))
    return Stores(Store(file, 0, preallocate=may_preallocate(config, format_)), beside)


def _create(files: Files, path: str, content: bytes) -> File:
    try:
        file = files.open(path, "create")
    except FileExistsError:
        file = files.open(path, "write")
        file.truncate(0)
        file.sync()
    if content:
        write_all(file, 0, content)
        file.sync()
    return file


def open_stores(files: Files, directory: str, end: Bound, config: TopicConfig, format_: Format) -> Stores:
    """Open the files of the segment that ends at *end*, where they end too, to go on appending."""
    log = files.open(segment_path(directory, end.base, "log"), "write")
    beside = None
    sidecar = format_.sidecar
    if sidecar is not None:
        file = files.open(segment_path(directory, end.base, sidecar.suffix), "write")
        beside = Store(file, sidecar_end(sidecar, end.base, end.next_offset))
    return Stores(Store(log, end.position, preallocate=may_preallocate(config, format_)), beside)


def may_preallocate(config: TopicConfig, format_: Format) -> bool:
    """Return whether space is reserved ahead: not beside a sidecar, where zeros say nothing."""
    return config.preallocate and format_.sidecar is None


def empty_active(
    context: LogContext, directory: str, state: PartitionState, stores: Stores, format_: Format
) -> ActiveSegment:
    """Return the active segment of *state*, without frames."""
    info = active_info(state, Bound(state.active_base, 0, state.active_base))
    left = bytes.fromhex(state.before)
    return ActiveSegment(context.open_files, directory, info, format_, stores, NOT_OPENED, NOT_OPENED, left)


def reopen_active(
    context: LogContext,
    directory: str,
    config: TopicConfig,
    format_: Format,
    state: PartitionState,
    end: Bound,
) -> ActiveSegment:
    """Open the segment that ends at *end* for appends; its indexes are built again and written."""
    info = active_info(state, end)
    segment = Segment(context.open_files, directory, info, format_)
    bounds = bounds_of(state, info, config.stored_bytes_max)
    index, times = segment.new_indexes()
    index_frames(segment, bounds, index, times, (end.base, 0))
    left = left_before(segment, bounds, index) or b""
    context.open_files.forget(segment.number)
    stores = open_stores(context.files, directory, end, config, format_)
    opened = opened_ms(times, context.clock)
    # When the records that are left were appended is not known: no later than now.
    appended = context.clock.now_ms() if end.position else NOT_OPENED
    active = ActiveSegment(context.open_files, directory, info, format_, stores, opened, appended, left)
    active.take_indexes(index, times)
    active.rewrite_indexes()
    return active


def opened_ms(times: TimeIndex, clock: Clock) -> int:
    """Return since when a segment ages: its first timestamp, as far as that is not in the future."""
    if not len(times):
        return NOT_OPENED
    return max(min(times.first_timestamp(), clock.now_ms()), 0)


def mark_of(
    state: PartitionState,
    active: ActiveSegment,
    position: int,
    next_offset: int,
    last_stable_offset: int,
) -> Mark:
    """Return the mark that says: *active* is synced up to *position*.

    The index of aborted transactions is written first, for readers beside this process.
    """
    flushed = active.flushed
    mark = Mark(
        leader_epoch=state.leader_epoch,
        sequence=0,
        base=active.base,
        position=position,
        next_offset=next_offset,
        log_start_offset=state.log_start_offset,
        index_entries=flushed.index_entries,
        time_index_entries=flushed.time_entries,
        index_crc=flushed.index_crc,
        time_index_crc=flushed.time_crc,
        appended_ms=active.appended_ms,
    )
    if not state.transactional:
        return mark
    entries, crc = active.aborted.write(next_offset)
    return mark._replace(last_stable_offset=last_stable_offset, aborted_entries=entries, aborted_crc=crc)


def segment_ms_of(config: TopicConfig, topic_id: str, partition: int, base: int) -> int:
    """Return how long the segment that starts at *base* may be active: segment.ms less a share of the jitter.

    The share looks random and is always the same for a segment, so that a restart does not change it.
    """
    spread = min(config.segment_jitter_ms, config.segment_ms)
    if not spread:
        return config.segment_ms
    return config.segment_ms - zlib.crc32(f"{topic_id}-{partition}-{base}".encode()) % spread


def must_seal(
    opened_ms: int,
    newest_ms: int,
    config: TopicConfig,
    now_ms: int,
    segment_ms: int | None = None,
) -> bool:
    """Return whether an active segment with records must be sealed for policies to take hold of it.

    Without this the records of a topic that gets no more appends would never age out. *newest_ms* is when
    its newest record began to age, *segment_ms* how long this one may be active, as long as the settings say
    if it is None.
    """
    if now_ms - opened_ms >= (config.segment_ms if segment_ms is None else segment_ms):
        return True
    newest = newest_ms if newest_ms != NO_TIMESTAMP else opened_ms
    if "delete" in config.cleanup_policy and 0 <= config.retention_ms < now_ms - newest:
        return True
    return "compact" in config.cleanup_policy and now_ms - opened_ms > config.max_compaction_lag_ms


def _write_entries(files: Files, path: str, position: int, entries: bytes) -> None:
    """Write *entries* at *position* of an index file and sync it."""
    created = False
    try:
        file = files.open(path, "write")
    except FileNotFoundError:
        file = files.open(path, "create")
        created = True
    with contextlib.closing(file):
        # Entries beyond are from before a crash or a truncation and name frames that no longer exist.
        file.truncate(position)
        write_all(file, position, entries)
        file.sync()
    if created:
        files.sync_directory(parent(path))
