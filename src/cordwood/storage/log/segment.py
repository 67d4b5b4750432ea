"""A segment: a byte file and its derived indexes under one base offset."""

from __future__ import annotations

import contextlib

import google_crc32c

from cordwood.disk import (
    PASSING,
    Mark,
    as_storage_error,
    join,
    read_file,
    write_atomically,
)
from cordwood.errors import CorruptRange
from cordwood.formats import ENTRY_SIZE, Format, Sidecar
from cordwood.index import ABORTED_ENTRY_SIZE, AbortedIndex, DenseIndex, SparseIndex, TimeIndex
from cordwood.kernels import Buffer
from cordwood.storage.log.file_cache import CheckedRanges, OpenFiles, sidecar_number
from cordwood.storage.log.segment_source import SegmentSource, read_whole
from cordwood.storage.log.state import SealedInfo

#: The index of aborted transactions has Kafka's name.
ABORTED_SUFFIX = "txnindex"
#: Looks up by offset: entries of its own, or those of the sidecar.
OffsetIndex = SparseIndex | DenseIndex


def segments_directory(directory: str) -> str:
    """Return the directory that holds the segments of the partition at *directory*."""
    return join(directory, "segments")


def segment_path(directory: str, base: int, suffix: str) -> str:
    """Return the path of a segment's ``log``, ``idx`` or ``timeidx`` file, or of its sidecar."""
    return join(directory, "segments", f"{base:020d}.{suffix}")


class Segment:
    """A segment whose end is known, open to read.

    Indexes are loaded on first use and kept. ``info`` is the entry of the segment in `partition.json`.
    """

    def __init__(self, open_files: OpenFiles, directory: str, info: SealedInfo, format_: Format) -> None:
        self.open_files = open_files
        self.number = open_files.number()
        self.directory = directory
        self.info = info
        self.format = format_
        self.path = segment_path(directory, info.base, "log")
        self.checked = CheckedRanges()
        #: The damaged range that an index built from the store had to leave out.
        self.damage: CorruptRange | None = None
        self._index: OffsetIndex | None = None
        self._times: TimeIndex | None = None
        self._sidecar_begins = False
        self._aborted: AbortedIndex | None = None
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
        """The carry-over of the frame before the first one."""
        return bytes.fromhex(self.info.before)

    @property
    def source(self) -> SegmentSource:
        """Opens the files of this segment: local ones, as long as it is not sealed."""
        return self.open_files.local

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
            # The read of the segment itself meets the same error, and reports it.
            return None
        return next((found.position for found in sidecar.unpack(entry)), None)

    # --- indexes -----------------------------------------------------------------------------------

    @property
    def has_sparse_index(self) -> bool:
        """Whether there is an ``.idx``: not where the sidecar takes its place."""
        return self.format.sidecar is None or not self.format.sidecar.is_index

    def new_indexes(self, entries: bytes = b"", times: bytes = b"") -> tuple[OffsetIndex, TimeIndex]:
        """Return indexes that have these entries, as this segment keeps them."""
        info = self.info
        if not self.has_sparse_index:
            blocks = max(info.index_interval_records, 1)
            by_time = TimeIndex(
                times, sparse=info.time_index_sparse, block_records=blocks, first_offset=info.base
            )
            return DenseIndex(self.base, self._position_of, lambda: self.next_offset_now), by_time
        return (
            SparseIndex(info.index_interval_bytes, entries, interval_records=info.index_interval_records),
            TimeIndex(times, sparse=info.time_index_sparse),
        )

    def indexes(self) -> tuple[OffsetIndex, TimeIndex] | None:
        """Return both indexes, or None where one is missing or not as it was sealed: rebuild it.

        Raises:
            ResourcesExhausted: If they cannot be read for a reason that says nothing about them.
        """
        index, times = self._index, self._times
        if index is None or times is None:
            info = self.info
            try:
                entries = b""
                if self.has_sparse_index:
                    entries = read_whole(self.source, segment_path(self.directory, info.base, "idx"))
                time_entries = read_whole(self.source, segment_path(self.directory, info.base, "timeidx"))
            except OSError as error:
                if error.errno in PASSING:
                    raise as_storage_error(error, "reading an index") from error
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
        """Drop the indexes; they are loaded again at their next use."""
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

    # --- aborted transactions ----------------------------------------------------------------------

    def aborted_index(self) -> AbortedIndex | None:
        """Return the index of aborted transactions; None if it is missing or not as it was sealed.

        Raises:
            ResourcesExhausted: If it cannot be read for a reason that says nothing about it.
        """
        if self._aborted is None:
            self._aborted = self.read_aborted(self.info.aborted_count, self.info.aborted_crc32c)
        return self._aborted

    def read_aborted(self, count: int, crc: int) -> AbortedIndex | None:
        """Return the first *count* entries of the file, None if they do not have the checksum *crc*."""
        if not count:
            return AbortedIndex()
        entries = self.aborted_entries(0, count)
        return AbortedIndex(entries) if entries and google_crc32c.value(entries) == crc else None

    def aborted_entries(self, first: int, count: int) -> bytes:
        """Return the entries [first, count) of the file of aborted transactions; nothing if it is shorter."""
        path = segment_path(self.directory, self.base, ABORTED_SUFFIX)
        start, end = first * ABORTED_ENTRY_SIZE, count * ABORTED_ENTRY_SIZE
        try:
            with contextlib.closing(self.source.open(path)) as file:
                return file.read_at(start, end - start) if end <= file.size() else b""
        except OSError as error:
            if error.errno in PASSING:
                raise as_storage_error(error, "reading an index") from error
            return b""

    def use_aborted(self, aborted: AbortedIndex) -> None:
        """Take *aborted*, which was built from the log, for the index from now on."""
        self._aborted = aborted


class SealedSegment(Segment):
    """A segment that no longer changes. All its files are read through the `SegmentSource`."""

    @property
    def source(self) -> SegmentSource:
        """Opens the files of this segment."""
        return self.open_files.source

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

    def use_aborted(self, aborted: AbortedIndex) -> None:
        """Write the index again if it is byte for byte what was sealed. Durable, or as before."""
        super().use_aborted(aborted)
        if google_crc32c.value(bytes(aborted.entries)) == self.info.aborted_crc32c:
            with contextlib.suppress(OSError):
                write_aborted(self, aborted)


def sidecar_beside(path: str, sidecar: Sidecar) -> str:
    """Return where the sidecar of the store at *path* is."""
    stem, _, rest = path.rpartition(".log")
    # A truncation keeps the beginning of a sidecar, so the sidecar before or after it can be used.
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


def write_aborted(segment: Segment, aborted: AbortedIndex) -> None:
    """Write the index of aborted transactions, replacing what is there. Durable on return."""
    path = segment_path(segment.directory, segment.base, ABORTED_SUFFIX)
    write_atomically(segment.open_files.files, path, bytes(aborted.entries))


def write_indexes(segment: Segment, index: OffsetIndex, times: TimeIndex) -> None:
    """Write the index files of a segment, replacing what is there. Durable on return."""
    files = segment.open_files.files
    if segment.has_sparse_index:
        write_atomically(files, segment_path(segment.directory, segment.base, "idx"), bytes(index.entries))
    write_atomically(files, segment_path(segment.directory, segment.base, "timeidx"), bytes(times.entries))
