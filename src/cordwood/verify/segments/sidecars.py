"""Find and check records of formats with checksums, or even lengths, in a sidecar.

Written against docs/formats/rustlog.md, laminarmq.md and directory.md, independent of the code that writes
them.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import google_crc32c

from cordwood.disk import ReadableFile, ReadableFiles
from cordwood.errors import FrameError, InvalidBatch, TruncatedFrame
from cordwood.verify.chain import LAMINARMQ_COUNT, LAMINARMQ_HEAD, own_metadata_problem
from cordwood.verify.frame import INT64_MAX, FileWindows, pieces
from cordwood.verify.segments.records import (
    NULL,
    RecordFrame,
    SelfContained,
    compare_checksum,
    crc32_of,
    head_at,
    wrong,
)

_ENTRY_BYTES = 16
_WINDOW_ENTRIES = 4096
_SUM_ENTRY = struct.Struct(
    ">"
    "Q"  # position
    "I"  # length
    "I"  # CRC-32C of the record
)
_INDEX_ENTRY = struct.Struct(
    "<"
    "Q"  # CRC-32 of the record, widened
    "I"  # length, 0 for a record that compaction removed
    "I"  # position
)
_INDEX_HEAD = struct.Struct(
    "<"
    "Q"  # base offset
    "Q"  # zeros
)
assert _SUM_ENTRY.size == _INDEX_ENTRY.size == _INDEX_HEAD.size == _ENTRY_BYTES


class SidecarRecord(NamedTuple):
    """The sidecar entry of one record; a size of 0 means that compaction removed it."""

    position: int
    size: int
    checksum: int


class Entries:
    """The entries of one sidecar in order, beginning with the offset *base*. Must be closed."""

    def __init__(self, file: ReadableFile, base: int, *, dense_index: bool, gaps: bool, sealed: bool) -> None:
        """Open a ``.sum``, or an ``.index`` if *dense_index*.

        With *gaps* compaction may have removed records. *sealed* means that there are no more entries than
        offsets.

        Raises:
            FrameError: If its beginning does not match *base*.
            OSError: If it cannot be read.
        """
        self.path = file.path
        self.next_offset = self._base = base
        self._file = file
        self._dense_index = dense_index
        self._gaps = gaps
        self._sealed = sealed
        self._head = _INDEX_HEAD.size if dense_index else 0
        self._data, self._start = b"", 0
        # Read before the log, to which a writer appends first: so all these entries have records.
        self._size = file.size()
        if dense_index:
            self._check_head()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def take(self, position: int) -> SidecarRecord:
        """Return the entry of the next record, which must have *position*.

        Raises:
            FrameError: If there is none, or it is invalid.
        """
        while not (entry := self._next(position)).size:
            if not self._gaps:
                raise self.wrong(self.next_offset - 1, "the length of a record", 0, "length in the entry")
        return entry

    def check_end(self, next_offset: int, position: int) -> int:
        """Check that there is an entry for every offset before *next_offset*, and none after where sealed.

        *position* is the end of the last record. Return the size of these entries in bytes.

        Raises:
            FrameError: If there is one too few or too many.
        """
        while self.next_offset < next_offset:
            entry = self._next(position)
            if entry.size or not self._gaps:
                found = f"one of {entry.size} bytes"
                raise self.wrong(self.next_offset - 1, "no entry, for there is no record", found, "entry")
        size, expected = self._file.size(), self._place(next_offset)
        if self._sealed and size != expected:
            raise self._error(expected, f"{expected} bytes", f"{size} bytes", "size")
        return expected

    def torn(self, next_offset: int) -> FrameError | None:
        """Return the extra bytes after the entries of offsets before *next_offset*, None without any."""
        end = self._place(next_offset)
        if self._size <= end:
            return None
        expected, found = "a record each, or the end of the file", f"{self._size - end} bytes past the mark"
        return self._error(end, expected, found, "torn tail")

    def _next(self, position: int) -> SidecarRecord:
        """Return the next entry, including entries of removed records."""
        place = self._place(self.next_offset)
        data = self._read(place)
        if len(data) < _ENTRY_BYTES:
            found = f"{len(data)} bytes to the end of the file"
            what = f"entry of offset {self.next_offset}"
            raise TruncatedFrame(
                position=place, expected=f"{_ENTRY_BYTES} bytes", found=found, what=what, path=self.path
            )
        if self._dense_index:
            checksum, size, found_position = _INDEX_ENTRY.unpack(data)
        else:
            found_position, size, checksum = _SUM_ENTRY.unpack(data)
        self.next_offset += 1
        if found_position != position:
            raise self.wrong(self.next_offset - 1, position, found_position, "position in the entry")
        if not size and checksum and self._gaps:
            raise self.wrong(self.next_offset - 1, 0, checksum, "checksum in the entry of no record")
        return SidecarRecord(found_position, size, checksum)

    def _check_head(self) -> None:
        head = self._read(0)
        expected = _INDEX_HEAD.pack(self._base, 0)
        if head != expected:
            raise self._error(0, expected.hex(), head.hex() or "nothing", "base offset and zeros")

    def _place(self, offset: int) -> int:
        return self._head + (offset - self._base) * _ENTRY_BYTES

    def _read(self, place: int) -> bytes:
        """Return the entry at *place* of the file, or its existing part."""
        at = place - self._start
        if not 0 <= at <= len(self._data) - _ENTRY_BYTES:
            try:
                self._data = self._file.read_at(place, _WINDOW_ENTRIES * _ENTRY_BYTES)
            except OSError as error:
                error.filename = self.path
                raise
            self._start, at = place, 0
        return self._data[at : at + _ENTRY_BYTES]

    def wrong(self, offset: int, expected: object, found: object, what: str) -> FrameError:
        """Return the error about the entry of *offset*."""
        return self._error(self._place(offset), expected, found, f"{what} of offset {offset}")

    def _error(self, place: int, expected: object, found: object, what: str) -> FrameError:
        return InvalidBatch(position=place, expected=expected, found=found, what=what, path=self.path)


def open_entries(
    files: ReadableFiles, path: str, base: int, *, dense_index: bool, gaps: bool, sealed: bool
) -> Entries:
    """Open the file at *path*; see `Entries`, which also says what is raised."""
    file = files.open(path, "read")
    try:
        return Entries(file, base, dense_index=dense_index, gaps=gaps, sealed=sealed)
    except BaseException:
        file.close()
        raise


class _SidecarReader:
    """Base of readers that compare each record with a sidecar entry."""

    dense = True

    def __init__(self, entries: Entries) -> None:
        """Take the entries; `close` closes them."""
        self._entries = entries
        # The end of the last record with an entry, and the offset after the last sound record.
        self._end = 0
        self._next_offset = entries.next_offset

    def close(self) -> None:
        """Close the file of the entries."""
        self._entries.close()

    def check_follows(self, frame: RecordFrame) -> None:
        """Record its offset; its position was already compared with its entry."""
        self._next_offset = frame.next_offset

    def check_end(self, next_offset: int) -> int:
        """Check that there are as many entries as offsets."""
        self._next_offset = next_offset
        return self._entries.check_end(next_offset, self._end)

    def torn(self) -> FrameError | None:
        """Return the extra bytes after the entries of records."""
        return self._entries.torn(self._next_offset)

    def _take(self, position: int, stop: int, size_min: int) -> tuple[SidecarRecord, int]:
        """Return the entry of the record at *position*, and its offset.

        Raises:
            FrameError: If there is none, or the record would end after *stop*.
        """
        entry = self._entries.take(position)
        offset, room = self._entries.next_offset - 1, stop - position
        if not size_min <= entry.size <= room:
            raise self._entries.wrong(offset, f"{size_min} to {room}", entry.size, "length in the entry")
        self._end = position + entry.size
        return entry, offset


_RUSTLOG = struct.Struct(
    ">"
    "I"  # length of the payload
    "Q"  # offset
    "Q"  # timestamp, microseconds
)
assert _RUSTLOG.size == 20


class RustlogRecords(_SidecarReader):
    """Reads the records of the format ``rustlog``; see `reader.FrameReader`."""

    indexed = True

    def at(self, windows: FileWindows, position: int, stop: int) -> RecordFrame:
        """Read the header at *position*; the entry has the end of the record."""
        entry, offset = self._take(position, stop, _RUSTLOG.size)
        _, _, timestamp = _RUSTLOG.unpack(head_at(windows, position, stop, _RUSTLOG.size))
        value_bytes = entry.size - _RUSTLOG.size
        return RecordFrame(position, entry.size, offset, timestamp // 1000, NULL, value_bytes, entry.checksum)

    def check(self, windows: FileWindows, frame: RecordFrame) -> None:
        """Compare header and checksum with the entry."""
        position = frame.position
        length, offset, timestamp = _RUSTLOG.unpack(head_at(windows, position, frame.end, _RUSTLOG.size))
        if length != frame.value_bytes:
            raise wrong(position, f"{frame.value_bytes}, as its entry says", length, "record length")
        if offset != frame.base_offset:
            raise wrong(position + 4, frame.base_offset, offset, "offset")
        crc = 0
        for piece in pieces(windows, position, frame.end):
            crc = google_crc32c.extend(crc, bytes(piece))
        compare_checksum(position, frame.checksum, crc, "CRC-32C of the record")
        if timestamp > INT64_MAX:
            raise wrong(position + 12, f"at most {INT64_MAX}", timestamp, "timestamp")

    def count(self, windows: FileWindows, frame: RecordFrame) -> int:
        """Return one: a payload is any bytes."""
        return 1


class BareRustlogRecords(SelfContained):
    """Reads records of the format ``rustlog`` without entries; a changed payload is not detected."""

    def at(self, windows: FileWindows, position: int, stop: int) -> RecordFrame:
        """Read the header at *position*."""
        length, offset, timestamp = _RUSTLOG.unpack(head_at(windows, position, stop, _RUSTLOG.size))
        room = stop - position - _RUSTLOG.size
        if length > room:
            raise wrong(position, f"at most {room}", length, "record length")
        size = _RUSTLOG.size + length
        return RecordFrame(position, size, offset, timestamp // 1000, NULL, length, NULL)

    def check(self, windows: FileWindows, frame: RecordFrame) -> None:
        """Check that offset and time are valid."""
        if max(frame.base_offset, frame.timestamp * 1000) > INT64_MAX:
            found = f"{frame.base_offset} and {frame.timestamp} ms"
            raise wrong(frame.position + 4, "63 bits each", found, "offset and timestamp")

    def check_follows(self, frame: RecordFrame) -> None:
        """Do nothing: a record has no other field about its place than its offset."""

    def count(self, windows: FileWindows, frame: RecordFrame) -> int:
        """Return one: a payload is any bytes."""
        return 1


#: The time of a record whose metadata another program wrote.
_NO_TIME = -1


class LaminarmqRecords(_SidecarReader):
    """Reads the records of the format ``laminarmq``, delimited by their entries; see `reader.FrameReader`."""

    #: The sidecar has an entry for every offset.
    indexed = False

    def at(self, windows: FileWindows, position: int, stop: int) -> RecordFrame:
        """Read the header of the record at *position*; the entry has its end."""
        entry, offset = self._take(position, stop, LAMINARMQ_COUNT.size)
        index = windows.load(position, entry.size)
        data = memoryview(windows.data)[index : index + entry.size]
        (metadata,) = LAMINARMQ_COUNT.unpack_from(data)
        if own_metadata_problem(data) is not None:
            # Metadata of another program: neither key nor time, and the rest is the value.
            value_bytes = max(entry.size - LAMINARMQ_COUNT.size - metadata, 0)
            return RecordFrame(position, entry.size, offset, _NO_TIME, NULL, value_bytes, entry.checksum)
        _, timestamp, flags, key_bytes = LAMINARMQ_HEAD.unpack_from(data)
        value_bytes = NULL if flags else entry.size - LAMINARMQ_COUNT.size - metadata
        return RecordFrame(
            position, entry.size, offset, timestamp, max(key_bytes, NULL), value_bytes, entry.checksum
        )

    def check(self, windows: FileWindows, frame: RecordFrame) -> None:
        """Compare the checksum with that of the entry."""
        found = crc32_of(windows, frame.position, frame.end)
        compare_checksum(frame.position, frame.checksum, found, "CRC-32 of the record")

    def count(self, windows: FileWindows, frame: RecordFrame) -> int:
        """Check that the metadata ends within the record; its layout may be that of another program."""
        index = windows.load(frame.position, LAMINARMQ_COUNT.size)
        (metadata,) = LAMINARMQ_COUNT.unpack_from(windows.data, index)
        if LAMINARMQ_COUNT.size + metadata > frame.size:
            problem = f"a length of {metadata} in a record of {frame.size} bytes"
            raise wrong(frame.position, "metadata within the record", problem, "record")
        return 1
