"""A segment: a byte file and its derived indexes under one base offset."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import google_crc32c

from cordwood.errors import CorruptRange, LogFailed
from cordwood.formats.format import Encoded, Format, StreamedFrame
from cordwood.formats.sidecar import ENTRY_SIZE, Sidecar
from cordwood.index.dense import DenseIndex
from cordwood.index.sparse import SparseIndex
from cordwood.index.time import TimeIndex
from cordwood.kernels import Buffer
from cordwood.storage.files import Files, join, parent, read_file, write_all, write_atomically
from cordwood.storage.mark import Mark
from cordwood.storage.open_files import CheckedRanges, OpenFiles, sidecar_number
from cordwood.storage.partition_state import SealedInfo
from cordwood.storage.store import Store, as_storage_error

#: Looks up by offset: entries of its own, or those of the sidecar.
OffsetIndex = SparseIndex | DenseIndex
#: How much of a frame is read at a time to learn what it leaves for the next one.
_COPY_BYTES = 1 << 20


def segments_directory(directory: str) -> str:
    """Return the directory that holds the segments of the partition at *directory*."""
    return join(directory, "segments")


def segment_path(directory: str, base: int, suffix: str) -> str:
    """Return the path of a segment's ``log``, ``idx`` or ``timeidx`` file, or of its sidecar."""
    return join(directory, "segments", f"{base:020d}.{suffix}")


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
        self._index: OffsetIndex | None = None
        self._times: TimeIndex | None = None
        self._sidecar_begins = False
        #: Where the sidecar is, if that cannot be told from where the store is.
        self.sidecar_at: str | None = None

    @property
    def base(self) -> int:
        """The offset of the first record."""
        return self.info.base

    @property
    def next_offset_now(self) -> int:
        """The offset after the last record."""
        return self.info.next_offset

    @property
    def before(self) -> bytes:
        """What the frame before the first one left for it."""
        return bytes.fromhex(self.info.before)

    def read_at(self, position: int, size: int) -> Buffer:
        """Return up to *size* bytes from *position*."""
        return self.open_files.read_at(self.number, self.path, position, size, sealed=False)

    # --- the sidecar -------------------------------------------------------------------------------

    def sidecar_from(self, offset: int, size: int, *, dense: bool) -> Buffer:
        """Return the sidecar's entries from that of *offset* on, for *size* bytes of the store, or some more.

        Nothing in a format that has none.

        Raises:
            CorruptRange: If it is that of another segment.
            OSError: If it cannot be read.
        """
        sidecar = self.format.sidecar
        if sidecar is None:
            return b""
        self._check_sidecar_head(sidecar)
        count = self.next_offset_now - offset if not dense else size // sidecar.frame_size_min + 1
        return self.read_sidecar(sidecar_end(sidecar, self.base, offset), count * ENTRY_SIZE)

    def _check_sidecar_head(self, sidecar: Sidecar) -> None:
        """Compare what stands before the first entry, once."""
        if self._sidecar_begins or not sidecar.head_size:
            return
        if bytes(self.read_sidecar(0, sidecar.head_size)) != sidecar.head(self.base):
            reason = f"does not begin as that of offset {self.base}"
            raise CorruptRange(self.sidecar_path, 0, self.base, self.info.next_offset, reason)
        self._sidecar_begins = True

    @property
    def sidecar_path(self) -> str:
        """Where the sidecar is: beside the store, whatever that is called until it has its name."""
        assert self.format.sidecar is not None
        return self.sidecar_at or sidecar_beside(self.path, self.format.sidecar)

    def read_sidecar(self, position: int, size: int) -> Buffer:
        """Return up to *size* bytes of the sidecar from *position*."""
        number = sidecar_number(self.number)
        return self.open_files.read_at(number, self.sidecar_path, position, size, sealed=False)

    def _position_of(self, offset: int) -> int | None:
        """Return what the sidecar says about where the frame of *offset* starts; None if nothing."""
        sidecar = self.format.sidecar
        assert sidecar is not None
        try:
            entry = self.read_sidecar(sidecar_end(sidecar, self.base, offset), ENTRY_SIZE)
        except OSError:
            # Whoever reads the segment meets it again, and says so.
            return None
        return next((found.position for found in sidecar.unpack(entry)), None)

    # --- indexes -----------------------------------------------------------------------------------

    @property
    def has_sparse_index(self) -> bool:
        """Whether there is an ``.idx``: not where the sidecar takes its place."""
        return self.format.sidecar is None or not self.format.sidecar.is_index

    def new_indexes(self, entries: bytes = b"", times: bytes = b"") -> tuple[OffsetIndex, TimeIndex]:
        """Return indexes that have these entries, as this segment keeps them."""
        if not self.has_sparse_index:
            return DenseIndex(self.base, self._position_of, lambda: self.next_offset_now), TimeIndex(times)
        info = self.info
        return (
            SparseIndex(info.index_interval_bytes, entries, interval_records=info.index_interval_records),
            TimeIndex(times),
        )

    def indexes(self) -> tuple[OffsetIndex, TimeIndex] | None:
        """Return both indexes, or None where one is missing or not as it was sealed: rebuild it."""
        index, times = self._index, self._times
        if index is None or times is None:
            info = self.info
            try:
                files, entries = self.open_files.files, b""
                if self.has_sparse_index:
                    entries = read_file(files, segment_path(self.directory, info.base, "idx"))
                time_entries = read_file(files, segment_path(self.directory, info.base, "timeidx"))
            except OSError:
                # Derived, so whatever is wrong with it, it can be built again.
                return None
            found = (google_crc32c.value(entries), google_crc32c.value(time_entries))
            if found != (info.index_crc32c, info.time_index_crc32c):
                return None
            index, times = self.new_indexes(entries, time_entries)
            self._index, self._times = index, times
        self.note_indexes()
        return index, times

    def note_indexes(self) -> None:
        """Say that the indexes are in memory. Here they are wherever they are."""

    def forget_indexes(self) -> None:
        """Let go of the indexes; they are loaded again when somebody asks."""
        self._index = self._times = None

    def use_indexes(self, index: OffsetIndex, times: TimeIndex) -> None:
        """Take *index* and *times* for the indexes of this segment from now on.

        An index that only looks into a sidecar looks into that of this segment.
        """
        self._index = index if self.has_sparse_index else self.new_indexes()[0]
        self._times = times
        self.note_indexes()

    def repair_indexes(self, index: OffsetIndex, times: TimeIndex) -> None:
        """Put indexes that were built from the log where they belong. Here nothing may be written."""


class SealedSegment(Segment):
    """A segment that changes no more."""

    def note_indexes(self) -> None:
        """Say that the indexes are in memory, which others may have to make room for."""
        self.open_files.indexes.use(self.number, self)

    def read_at(self, position: int, size: int) -> Buffer:
        """Return up to *size* bytes from *position*, mapped where that is wanted."""
        return self.open_files.read_at(self.number, self.path, position, size, sealed=True)

    def read_sidecar(self, position: int, size: int) -> Buffer:
        """Return up to *size* bytes of the sidecar from *position*, mapped where that is wanted."""
        number = sidecar_number(self.number)
        return self.open_files.read_at(number, self.sidecar_path, position, size, sealed=True)


class OwnedSegment(SealedSegment):
    """A sealed segment in the hands of the directory's writer, who repairs its indexes."""

    def repair_indexes(self, index: OffsetIndex, times: TimeIndex) -> None:
        """Write the indexes again if they are byte for byte what was sealed. Durable, or as before."""
        found = tuple(google_crc32c.value(bytes(each.entries)) for each in (index, times))
        if found == (self.info.index_crc32c, self.info.time_index_crc32c):
            with contextlib.suppress(OSError):
                write_indexes(self, index, times)


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
    frame leaves for the next one.
    """

    def __init__(
        self,
        open_files: OpenFiles,
        directory: str,
        info: SealedInfo,
        format_: Format,
        stores: Stores,
        opened_ms: int,
        left: bytes = b"",
    ) -> None:
        super().__init__(open_files, directory, info, format_)
        self.store, self.sidecar = stores
        self.index, self.times = self.new_indexes()
        self.use_indexes(self.index, self.times)
        self.next_offset = info.next_offset
        self.opened_ms = opened_ms
        self.flushed = NOTHING_FLUSHED
        self.left = left

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

    def append(self, frames: Encoded) -> None:
        """Append frames, whole or not at all. Not durable. Raises as `Store.append` does."""
        position = self.store.append([frames.data])
        self._append_entries(position, frames.sizes, frames.checksums)
        if frames.sizes:
            offset = self.next_offset
            for size, timestamp in zip(frames.sizes, frames.timestamps, strict=True):
                self.index.add(offset, position)
                self.times.add(timestamp, offset)
                position += size
                offset += 1
        else:
            self.index.add(self.next_offset, position)
            self.times.add(frames.max_timestamp, self.next_offset)
        self.next_offset = frames.next_offset
        self.left = frames.left

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
        self.index.add(self.next_offset, position)
        self.times.add(frame.max_timestamp, self.next_offset)
        self.next_offset = frame.next_offset

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
            index_interval_bytes=self.info.index_interval_bytes,
            index_crc32c=self.flushed.index_crc,
            time_index_crc32c=self.flushed.time_crc,
            opened_ms=self.opened_ms,
            sealed_ms=now_ms,
            generation=self.info.generation,
            index_interval_records=self.info.index_interval_records,
            before=self.info.before,
        )


def sidecar_beside(path: str, sidecar: Sidecar) -> str:
    """Return where the sidecar of the store at *path* is."""
    stem, _, rest = path.rpartition(".log")
    # What a truncation keeps of a sidecar is the beginning of what was there: either will do.
    return f"{stem}.{sidecar.suffix}{'' if rest == '.cut' else rest}"


def sidecar_end(sidecar: Sidecar, base_offset: int, next_offset: int) -> int:
    """Return where a sidecar ends whose segment begins at *base_offset* and goes on with *next_offset*."""
    return sidecar.head_size + (next_offset - base_offset) * ENTRY_SIZE


def load_vouched(segment: Segment, mark: Mark) -> tuple[OffsetIndex, TimeIndex] | None:
    """Return the index entries of the active segment that *mark* vouches for, None if they are not there."""
    files, directory = segment.open_files.files, segment.directory
    entries = b""
    try:
        if segment.has_sparse_index:
            entries = read_file(files, segment_path(directory, mark.base, "idx"))
        times = read_file(files, segment_path(directory, mark.base, "timeidx"))
    except FileNotFoundError:
        entries = times = b""
    entries, times = entries[: mark.index_entries * 16], times[: mark.time_index_entries * 16]
    if (google_crc32c.value(entries), google_crc32c.value(times)) != (mark.index_crc, mark.time_index_crc):
        return None
    return segment.new_indexes(entries, times)


def write_indexes(segment: Segment, index: OffsetIndex, times: TimeIndex) -> None:
    """Write the index files of a segment, replacing what is there. Durable on return."""
    files = segment.open_files.files
    if segment.has_sparse_index:
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
