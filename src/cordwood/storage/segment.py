"""A segment: a byte file and its derived indexes under one base offset."""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from itertools import count
from threading import Lock
from typing import NamedTuple

import google_crc32c

from cordwood.errors import CorruptRange
from cordwood.formats.format import Format, StreamedFrame
from cordwood.index.sparse import SparseIndex
from cordwood.index.time import TimeIndex
from cordwood.kernels import Buffer
from cordwood.storage.files import File, Files, join, parent, read_file, write_all, write_atomically
from cordwood.storage.mark import Mark
from cordwood.storage.partition_state import SealedInfo
from cordwood.storage.store import Store


def segments_directory(directory: str) -> str:
    """Return the directory that holds the segments of the partition at *directory*."""
    return join(directory, "segments")


def segment_path(directory: str, base: int, suffix: str) -> str:
    """Return the path of a segment's ``log``, ``idx`` or ``timeidx`` file."""
    return join(directory, "segments", f"{base:020d}.{suffix}")


class CheckedRanges:
    """Byte ranges whose checksums were compared since the segment was opened. Callable from any thread.

    Two threads that check the same range at once both do the work; neither result is lost.
    """

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._lock = Lock()

    def end_from(self, position: int) -> int:
        """Return the end of the checked range that *position* lies in, or *position* itself."""
        with self._lock:
            found = bisect_right(self._starts, position) - 1
            return max(self._ends[found], position) if found >= 0 else position

    def add(self, start: int, end: int) -> None:
        """Note that [start, end) was checked, merging it with its neighbours."""
        with self._lock:
            low = bisect_right(self._ends, start - 1)
            high = bisect_right(self._starts, end)
            if low < high:
                start, end = min(start, self._starts[low]), max(end, self._ends[high - 1])
            self._starts[low:high] = [start]
            self._ends[low:high] = [end]


class OpenFiles:
    """Files and maps open to read, at most *limit* of them; the one used longest ago goes first.

    Kept by a number of the segment's own, not by path: after a truncation the same path is another file,
    and a reader that was slow to open the old one must not leave it here in the new one's place. What was
    let go is closed when its last reader is done with it. *mapped* says whether sealed
    segments are mapped: no copy, but a device that fails to read then ends the process, so it is for
    embedded use and local scans. Callable from any thread.
    """

    def __init__(
        self,
        files: Files,
        *,
        mapped: bool,
        limit: int = 256,
        on_index_rebuild: Callable[[], None] = lambda: None,
    ) -> None:
        self.files = files
        self.mapped = mapped
        self.on_index_rebuild = on_index_rebuild
        self._limit = limit
        self._open: OrderedDict[int, File | memoryview] = OrderedDict()
        self._numbers = count()
        self._lock = Lock()

    def number(self) -> int:
        """Return a number that nobody else was given."""
        return next(self._numbers)

    def read_at(self, number: int, path: str, position: int, size: int, *, sealed: bool) -> Buffer:
        """Return up to *size* bytes from *position*; only a *sealed* file is ever mapped."""
        found = self._get(number, path, mapped=sealed and self.mapped)
        if isinstance(found, memoryview):
            return found[position : position + size]
        return found.read_at(position, size)

    def _get(self, number: int, path: str, *, mapped: bool) -> File | memoryview:
        with self._lock:
            found = self._open.get(number)
            if found is not None:
                self._open.move_to_end(number)
                return found
        file = self.files.open(path, "read")
        opened = file.map() if mapped else file
        with self._lock:
            self._open[number] = opened
            while len(self._open) > self._limit:
                self._open.popitem(last=False)
        return opened

    def forget(self, number: int) -> None:
        """Let go of a segment's file."""
        with self._lock:
            self._open.pop(number, None)

    def __len__(self) -> int:
        return len(self._open)


class Segment:
    """What reading needs of any segment whose end is known.

    Indexes are loaded on first use and kept. ``info`` is what `partition.json` says of the segment.
    """

    def __init__(self, open_files: OpenFiles, directory: str, info: SealedInfo, format_: Format) -> None:
        self.open_files = open_files
        self.number = open_files.number()
        self.directory = directory
        self.info = info
        self.format = format_
        self.path = segment_path(directory, info.base, "log")
        self.checked = CheckedRanges()
        #: What an index that was built from the log had to leave out.
        self.damage: CorruptRange | None = None
        self._index: SparseIndex | None = None
        self._times: TimeIndex | None = None

    @property
    def base(self) -> int:
        """The offset of the first record."""
        return self.info.base

    def read_at(self, position: int, size: int) -> Buffer:
        """Return up to *size* bytes from *position*."""
        return self.open_files.read_at(self.number, self.path, position, size, sealed=False)

    def indexes(self) -> tuple[SparseIndex, TimeIndex] | None:
        """Return both indexes, or None where one is missing or not as it was sealed: rebuild it."""
        if self._index is None or self._times is None:
            info = self.info
            try:
                files = self.open_files.files
                entries = read_file(files, segment_path(self.directory, info.base, "idx"))
                times = read_file(files, segment_path(self.directory, info.base, "timeidx"))
            except OSError:
                # Derived, so whatever is wrong with it, it can be built again.
                return None
            found = (google_crc32c.value(entries), google_crc32c.value(times))
            if found != (info.index_crc32c, info.time_index_crc32c):
                return None
            self._index, self._times = SparseIndex(info.index_interval_bytes, entries), TimeIndex(times)
        return self._index, self._times

    def use_indexes(self, index: SparseIndex, times: TimeIndex) -> None:
        """Take *index* and *times* for the indexes of this segment from now on."""
        self._index, self._times = index, times

    def repair_indexes(self) -> None:
        """Put indexes that were built from the log where they belong. Here nothing may be written."""


class SealedSegment(Segment):
    """A segment that changes no more."""

    def read_at(self, position: int, size: int) -> Buffer:
        """Return up to *size* bytes from *position*, mapped where that is wanted."""
        return self.open_files.read_at(self.number, self.path, position, size, sealed=True)


class OwnedSegment(SealedSegment):
    """A sealed segment in the hands of the directory's writer, who repairs its indexes."""

    def repair_indexes(self) -> None:
        """Write the indexes again if they are byte for byte what was sealed. Durable, or as before."""
        assert self._index is not None
        assert self._times is not None
        found = tuple(google_crc32c.value(bytes(i.entries)) for i in (self._index, self._times))
        if found == (self.info.index_crc32c, self.info.time_index_crc32c):
            with contextlib.suppress(OSError):
                write_indexes(self, self._index, self._times)


class Flushed(NamedTuple):
    """How many entries of each index are in its file, synced, and their checksums."""

    index_entries: int
    time_entries: int
    index_crc: int
    time_crc: int


NOTHING_FLUSHED = Flushed(0, 0, 0, 0)


class ActiveSegment(Segment):
    """The segment that takes appends. One appender at a time; readers beside it.

    ``info`` stays what it was at opening; ``store.end`` and ``next_offset`` move.
    """

    def __init__(
        self,
        open_files: OpenFiles,
        directory: str,
        info: SealedInfo,
        format_: Format,
        store: Store,
        indexes: tuple[SparseIndex, TimeIndex],
        opened_ms: int,
    ) -> None:
        super().__init__(open_files, directory, info, format_)
        self.store = store
        self.index, self.times = indexes
        self.use_indexes(*indexes)
        self.next_offset = info.next_offset
        self.opened_ms = opened_ms
        self.flushed = NOTHING_FLUSHED

    def read_at(self, position: int, size: int) -> Buffer:
        """Return up to *size* bytes from *position*."""
        return self.store.read_at(position, size)

    def append(self, frame: Buffer, next_offset: int, max_timestamp: int) -> None:
        """Append one frame, which takes the offsets up to *next_offset*. Not durable."""
        self._note(self.store.append([frame]), next_offset, max_timestamp)

    def append_stream(self, frame: StreamedFrame, chunks: Iterable[Buffer]) -> None:
        """Append the frame around a value that comes in *chunks*. Not durable."""

        def passing() -> Iterator[Buffer]:
            for chunk in chunks:
                frame.update(chunk)
                yield chunk

        position = self.store.append_around(len(frame.head), passing(), frame.finish)
        self._note(position, frame.next_offset, frame.max_timestamp)

    def _note(self, position: int, next_offset: int, max_timestamp: int) -> None:
        self.index.add(self.next_offset, position)
        self.times.add(max_timestamp, self.next_offset)
        self.next_offset = next_offset

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
        """Replace both index files by what is in memory. Durable on return."""
        write_indexes(self, self.index, self.times)
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
            index_interval_bytes=self.index.interval_bytes,
            index_crc32c=self.flushed.index_crc,
            time_index_crc32c=self.flushed.time_crc,
            opened_ms=self.opened_ms,
            sealed_ms=now_ms,
            generation=self.info.generation,
        )


def load_vouched(
    files: Files, directory: str, mark: Mark, interval_bytes: int
) -> tuple[SparseIndex, TimeIndex] | None:
    """Return the index entries of the active segment that *mark* vouches for, None if they are not there."""
    try:
        entries = read_file(files, segment_path(directory, mark.base, "idx"))
        times = read_file(files, segment_path(directory, mark.base, "timeidx"))
    except FileNotFoundError:
        entries = times = b""
    entries, times = entries[: mark.index_entries * 16], times[: mark.time_index_entries * 16]
    if (google_crc32c.value(entries), google_crc32c.value(times)) != (mark.index_crc, mark.time_index_crc):
        return None
    return SparseIndex(interval_bytes, entries), TimeIndex(times)


def write_indexes(segment: Segment, index: SparseIndex, times: TimeIndex) -> None:
    """Write both index files of a segment, replacing what is there. Durable on return."""
    files = segment.open_files.files
    write_atomically(files, segment_path(segment.directory, segment.base, "idx"), bytes(index.entries))
    write_atomically(files, segment_path(segment.directory, segment.base, "timeidx"), bytes(times.entries))


def _write_entries(files: Files, path: str, position: int, entries: bytes) -> None:
    """Write *entries* at *position* of an index file and sync it."""
    created = False
    try:
        file = files.open(path, "write")
    except FileNotFoundError:
        file = files.open(path, "create")
        created = True
    with contextlib.closing(file):
        # What lies beyond is from before a crash or a truncation and names frames that are gone.
        file.truncate(position)
        write_all(file, position, entries)
        file.sync()
    if created:
        files.sync_directory(parent(path))
