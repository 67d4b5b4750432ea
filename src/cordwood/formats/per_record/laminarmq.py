"""laminarmq's store and dense index. docs/formats/laminarmq.md has their byte layout.

The store has records back to back without their ends: the index has an entry with end and checksum for every
record. So the index is as authoritative as the store.

Metadata has Cordwood's layout, or that of the program that wrote an imported record. The latter is not
interpreted: it is the header ``FOREIGN_METADATA`` of a record without key and time.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from cordwood.errors import ChecksumMismatch, FrameTooLarge, InvalidBatch, RecordRefused, TruncatedFrame
from cordwood.formats.format import Holds
from cordwood.formats.per_record.record_per_frame import Content, FoundFrame, RecordPerFrame
from cordwood.formats.sidecar import DenseIndexFile
from cordwood.formats.streamed_record import StreamedRecord
from cordwood.kernels import Buffer
from cordwood.records import Header

BASE_MARKER = struct.Struct(
    "<"  # little-endian
    "Q"  # base index: that of the first record
    "Q"  # padding
)
INDEX_RECORD = struct.Struct(
    "<"
    "Q"  # checksum: CRC-32 of the record's bytes, widened
    "I"  # length of the record's bytes
    "I"  # position of the record in the store
)
ENTRY_SIZE = 16
assert BASE_MARKER.size == ENTRY_SIZE
assert INDEX_RECORD.size == ENTRY_SIZE

METADATA_LENGTH = struct.Struct("<I")
_METADATA = struct.Struct(
    "<"
    "q"  # timestamp: milliseconds since the Unix epoch
    "B"  # flags
    "i"  # key length, -1 for none
)
_COUNT = struct.Struct("<I")
#: The bytes of a record with neither key nor headers nor value.
OVERHEAD = METADATA_LENGTH.size + _METADATA.size + _COUNT.size
assert OVERHEAD == 21

NULL_VALUE = 0x01
#: The default size limit of a stored record in bytes.
SIZE_MAX = 16 * 1024 * 1024
#: Positions have 32 bits, so no record may reach beyond this.
STORE_SIZE_MAX = 1 << 32
#: The header of a record whose metadata another program wrote: all bytes of it.
FOREIGN_METADATA = "cordwood.laminarmq.metadata"
#: The time of such a record, as in Kafka: none.
NO_TIMESTAMP = -1


class IndexRecord(NamedTuple):
    """The position of a record in the store, and the checksum of its bytes."""

    checksum: int
    length: int
    position: int

    @property
    def end(self) -> int:
        """The position after the record."""
        return self.position + self.length


class StoredRecord(NamedTuple):
    """The fields of a record; its value is in ``[value_at, end)`` of the store."""

    timestamp_ms: int
    key: bytes | None
    headers: tuple[Header, ...]
    null_value: bool
    value_at: int
    end: int

    def value(self, store: Buffer) -> bytes | None:
        """Return the value, None for a tombstone."""
        return None if self.null_value else bytes(memoryview(store)[self.value_at : self.end])


def encode_record(
    timestamp_ms: int,
    key: bytes | None,
    value: bytes | None,
    headers: Iterable[Header] = (),
    *,
    size_max: int = SIZE_MAX,
) -> bytes:
    """Encode the bytes of one record, as they are in the store.

    Raises:
        RecordRefused: If a header has no value: the metadata cannot store that.
        FrameTooLarge: If the record would exceed *size_max* bytes.
    """
    head = encode_head(timestamp_ms, key, headers, null_value=value is None)
    encoded = head if value is None else head + value
    check_size(len(encoded), size_max)
    return encoded


def encode_head(
    timestamp_ms: int, key: bytes | None, headers: Iterable[Header], *, null_value: bool = False
) -> bytes:
    """Encode the bytes before the value; raises as `encode_record` does, except for the size."""
    metadata = bytearray(METADATA_LENGTH.size)
    metadata += _METADATA.pack(timestamp_ms, NULL_VALUE if null_value else 0, -1 if key is None else len(key))
    metadata += key or b""
    named = tuple(headers)
    metadata += _COUNT.pack(len(named))
    for name, value in named:
        if value is None:
            raise RecordRefused(f"laminarmq's metadata cannot hold header {name!r} without a value")
        for text in (name.encode(), value):
            metadata += _COUNT.pack(len(text))
            metadata += text
    METADATA_LENGTH.pack_into(metadata, 0, len(metadata) - METADATA_LENGTH.size)
    return bytes(metadata)


def check_size(size: int, size_max: int) -> None:
    """Refuse a record of more than *size_max* bytes.

    Raises:
        FrameTooLarge: If it has more.
    """
    if size > size_max:
        raise FrameTooLarge(position=0, expected=f"at most {size_max} bytes", found=size, what="record")


def index_record(record: Buffer, position: int) -> bytes:
    """Return the index's entry for a record's bytes at *position* of the store.

    Raises:
        FrameTooLarge: If the record would reach beyond 4 GiB, the largest position.
    """
    return encode_entry(zlib.crc32(record), len(record), position)


def encode_entry(checksum: int, length: int, position: int) -> bytes:
    """Return an index entry; raises as `index_record` does."""
    if position + length > STORE_SIZE_MAX:
        raise FrameTooLarge(
            position=position,
            expected=f"an end at or before {STORE_SIZE_MAX}",
            found=position + length,
            what="store",
        )
    return INDEX_RECORD.pack(checksum, length, position)


def parse_base_marker(index: Buffer) -> int:
    """Return the base index with which an index begins.

    Raises:
        FrameError: If there is no base marker.
    """
    if len(index) < ENTRY_SIZE:
        raise TruncatedFrame(
            position=0, expected=f"{ENTRY_SIZE} bytes", found=f"{len(index)} bytes", what="base marker"
        )
    base, padding = BASE_MARKER.unpack_from(index, 0)
    if padding:
        raise InvalidBatch(position=8, expected="zeros", found=f"{padding:#x}", what="padding of the marker")
    return int(base)


def parse_index(index: Buffer) -> Iterator[IndexRecord]:
    """Yield the complete entries after the base marker; a torn last entry is ignored."""
    whole = len(index) // ENTRY_SIZE * ENTRY_SIZE
    for entry in INDEX_RECORD.iter_unpack(memoryview(index)[ENTRY_SIZE:whole]):
        yield IndexRecord(*entry)


def check_record(
    store: Buffer, entry: IndexRecord, *, size_max: int = SIZE_MAX, checked: bool = False
) -> None:
    """Compare a record's bytes with its index entry.

    With *checked* its checksum was compared earlier.

    Raises:
        FrameError: The subclass says what is wrong, with the position in the store.
    """
    if entry.length > size_max:
        raise FrameTooLarge(
            position=entry.position,
            expected=f"at most {size_max} bytes",
            found=f"{entry.length} bytes",
            what="record",
        )
    if entry.end > len(store):
        raise TruncatedFrame(
            position=entry.position,
            expected=f"{entry.length} bytes",
            found=f"{max(len(store) - entry.position, 0)} bytes",
            what="record",
        )
    if checked:
        return
    actual = zlib.crc32(memoryview(store)[entry.position : entry.end])
    if actual != entry.checksum:
        raise ChecksumMismatch(
            position=entry.position,
            expected=f"{entry.checksum:#018x}",
            found=f"{actual:#018x}",
            what="CRC-32 of the record",
        )


def split_record(store: Buffer, position: int, end: int) -> tuple[memoryview, int]:
    """Return the metadata of the record in ``[position, end)``, by any writer, and where its value starts.

    Raises:
        InvalidBatch: If the metadata would be longer than the record.
    """
    room = end - position - METADATA_LENGTH.size
    length = METADATA_LENGTH.unpack_from(store, position)[0] if room >= 0 else -1
    if not 0 <= length <= room:
        raise InvalidBatch(
            position=position, expected=f"at most {max(room, 0)}", found=length, what="metadata length"
        )
    start = position + METADATA_LENGTH.size
    return memoryview(store)[start : start + length], start + length


def parse_record(store: Buffer, position: int, end: int) -> StoredRecord:
    """Read the record in ``[position, end)``, whose metadata must be in Cordwood's layout.

    Raises:
        InvalidBatch: If it contradicts itself, with the position of the record.
    """
    metadata, value_at = split_record(store, position, end)
    try:
        timestamp_ms, flags, key_length = _METADATA.unpack_from(metadata, 0)
        at = _METADATA.size
        key, at = (None, at) if key_length == -1 else _take(metadata, at, key_length)
        (count,) = _COUNT.unpack_from(metadata, at)
        at += _COUNT.size
        headers = []
        for _ in range(count):
            name, at = _take(metadata, at + _COUNT.size, _COUNT.unpack_from(metadata, at)[0])
            value, at = _take(metadata, at + _COUNT.size, _COUNT.unpack_from(metadata, at)[0])
            headers.append((name.decode(), value))
        null_value = bool(flags & NULL_VALUE)
        if at != len(metadata) or flags & ~NULL_VALUE or (null_value and value_at != end):
            raise ValueError("parts that do not add up")
    except (struct.error, ValueError) as error:
        raise InvalidBatch(
            position=position, expected="metadata of ours", found=error, what="record"
        ) from None
    return StoredRecord(timestamp_ms, key, tuple(headers), null_value, value_at, end)


def read_record(store: Buffer, position: int, end: int) -> StoredRecord:
    """Read the record in ``[position, end)``, by any writer.

    If its metadata does not have Cordwood's layout, it is in the only header; see ``FOREIGN_METADATA``.

    Raises:
        InvalidBatch: If the metadata would be longer than the record.
    """
    try:
        return parse_record(store, position, end)
    except InvalidBatch:
        metadata, value_at = split_record(store, position, end)
        headers = ((FOREIGN_METADATA, bytes(metadata)),)
        return StoredRecord(NO_TIMESTAMP, None, headers, False, value_at, end)


def foreign_metadata(key: bytes | None, value: bytes | None, headers: tuple[Header, ...]) -> bytes | None:
    """Return the metadata of another program that a record has as its only part besides a value, else None.

    Bytes in Cordwood's layout are never that: written back, they would be read as a key, time and headers.
    """
    if key is not None or value is None or len(headers) != 1:
        return None
    ((name, metadata),) = headers
    if name != FOREIGN_METADATA or metadata is None:
        return None
    stored = METADATA_LENGTH.pack(len(metadata)) + metadata + value
    return metadata if read_record(stored, 0, len(stored)).headers == headers else None


def encode_foreign(metadata: bytes, value: bytes, *, size_max: int = SIZE_MAX) -> bytes:
    """Encode a record with the metadata of another program; raises as `encode_record` does."""
    encoded = METADATA_LENGTH.pack(len(metadata)) + metadata + value
    check_size(len(encoded), size_max)
    return encoded


def _take(metadata: memoryview, at: int, length: int) -> tuple[bytes, int]:
    if not 0 <= length <= len(metadata) - at:
        raise ValueError(f"{length} bytes at {at} of {len(metadata)}")
    return bytes(metadata[at : at + length]), at + length


class LaminarmqFormat(RecordPerFrame):
    """laminarmq's records, implementing the engine's contract; see `record_per_frame.RecordPerFrame`.

    Only the index has the end of a record.
    """

    name = "laminarmq"
    header_size = 0
    holds = Holds(keys=True, headers=True, null_values=True)
    # The smallest record has empty metadata of another program, and an empty value.
    sidecar = DenseIndexFile(METADATA_LENGTH.size)
    store_bytes_max = STORE_SIZE_MAX

    def frame_size(self, header: Buffer) -> int | None:
        """Return None: a record does not contain its size."""
        return None

    def encode_frame(
        self, content: Content, *, offset: int, timestamp_us: int, before: bytes, size_max: int
    ) -> bytes:
        """Encode one record."""
        return encode_record(
            timestamp_us // 1000, content.key, content.value, content.headers, size_max=size_max
        )

    def find_frame(
        self, buffer: Buffer, position: int, *, size: int | None, size_max: int, checked: bool
    ) -> FoundFrame:
        """Read the record of *size* bytes at *position*; its checksum is in the index."""
        assert size is not None, "a record of laminarmq is found by its index"
        if size > size_max:
            raise FrameTooLarge(
                position=position, expected=f"at most {size_max} bytes", found=f"{size} bytes", what="record"
            )
        return FoundFrame(size, None, _timestamp_of(buffer, position, position + size))

    def decode_frame(self, buffer: Buffer, position: int, size: int) -> Content:
        """Decode one record, by any writer."""
        found = read_record(buffer, position, position + size)
        return Content(found.key, found.value(buffer), found.headers)

    def stream_frame(
        self,
        key: bytes | None,
        headers: tuple[Header, ...],
        value_size: int,
        *,
        offset: int,
        timestamp_us: int,
        before: bytes,
        size_max: int,
    ) -> StreamedRecord:
        """Lay out a record around a value that is not in memory."""
        timestamp = timestamp_us // 1000
        head = encode_head(timestamp, key, headers)
        check_size(len(head) + value_size, size_max)
        return StreamedRecord(head, value_size, offset=offset, timestamp=timestamp, sidecar=self.sidecar)


def _timestamp_of(store: Buffer, position: int, end: int) -> int:
    """Return the time of the record in ``[position, end)``, none if another program wrote its metadata.

    Raises:
        InvalidBatch: If the metadata would be longer than the record.
    """
    metadata, value_at = split_record(store, position, end)
    size = len(metadata)
    if size >= OVERHEAD - METADATA_LENGTH.size:
        timestamp_ms, flags, key_length = _METADATA.unpack_from(metadata, 0)
        plain = flags == 0 or (flags == NULL_VALUE and value_at == end)
        count_at = _METADATA.size + max(key_length, 0)
        whole = key_length >= -1 and count_at == size - _COUNT.size
        if plain and whole and not any(metadata[count_at:]):
            # Nearly every record: it has no headers.
            return int(timestamp_ms)
    return read_record(store, position, end).timestamp_ms
