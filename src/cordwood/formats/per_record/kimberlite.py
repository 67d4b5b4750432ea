"""Kimberlite's record: checksum, hash of the record before, 40 bytes of metadata, data.

docs/formats/kimberlite.md has its byte layout. The length counts metadata and data; the checksum covers all
but itself and the length; the hash in the next record covers the whole record.
"""

from __future__ import annotations

import hashlib
import re
import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from cordwood.errors import (
    ChecksumMismatch,
    FrameError,
    FrameTooLarge,
    InvalidBatch,
    OnlyZeros,
    RecordRefused,
    TruncatedFrame,
    UnsupportedFrame,
    WrongStream,
)
from cordwood.formats.batch import DECOMPRESSED_MAX
from cordwood.formats.compression import Compression, compress, decompress
from cordwood.formats.format import Holds
from cordwood.formats.per_record.record_per_frame import Content, FoundFrame, RecordPerFrame
from cordwood.formats.streamed_record import StreamedRecord
from cordwood.formats.zeros import only_zeros
from cordwood.kernels import Buffer
from cordwood.records import EVENT_TYPE_HEADER, EVENT_TYPE_MAX, EventType, Header, timestamp_us_headers

HEAD = struct.Struct(
    "<"  # little-endian
    "I"  # length: bytes of metadata and data
    "I"  # CRC-32 of all that follows
    "32s"  # SHA-256 of the record before
)
METADATA = struct.Struct(
    "<"
    "Q"  # position: the offset
    "Q"  # tenant
    "Q"  # stream
    "q"  # timestamp: microseconds since the Unix epoch
    "H"  # event type
    "6s"  # reserved; the first byte is 1 where data is zstd
)
_RECORD = struct.Struct("<II32sQQQqH6s")
HEAD_SIZE = 40
METADATA_SIZE = 40
OVERHEAD = 80
assert HEAD.size == HEAD_SIZE
assert METADATA.size == METADATA_SIZE
assert _RECORD.size == OVERHEAD

#: The previous hash in the first record of a log.
NO_HASH = bytes(32)
#: The default size limit of a stored record in bytes.
SIZE_MAX = 16 * 1024 * 1024
#: Smaller data is not compressed.
COMPRESSED_MIN = 1024
_CRC_AT, _HASH_AT, _POSITION_AT = 4, 8, 40
_TENANT_AT, _RESERVED_AT = 48, 74
_PLAIN, _ZSTD = bytes(6), b"\x01" + bytes(5)
_INT64_MAX = (1 << 63) - 1
_EVENT_TYPE = re.compile(rb"0|[1-9][0-9]{0,4}")


class KimberliteRecord(NamedTuple):
    """One record found in a buffer; its data, as stored, lies in ``[data_at, end)``."""

    at: int
    length: int
    crc: int
    prev_hash: bytes
    position: int
    tenant: int
    stream: int
    timestamp_us: int
    event_type: int
    reserved: bytes

    @property
    def data_at(self) -> int:
        """Where the data starts."""
        return self.at + OVERHEAD

    @property
    def end(self) -> int:
        """The position in the buffer after the record."""
        return self.at + HEAD_SIZE + self.length

    @property
    def compressed(self) -> bool:
        """Whether the data is zstd."""
        return self.reserved[0] == 1

    def data(self, buffer: Buffer, *, size_max: int = SIZE_MAX) -> bytes:
        """Return the data, decompressed to at most *size_max* bytes.

        Raises:
            FrameTooLarge: If it would be larger.
            InvalidBatch: If it is not valid zstd.
        """
        stored = memoryview(buffer)[self.data_at : self.end]
        if not self.compressed:
            return bytes(stored)
        return bytes(decompress(Compression.ZSTD, stored, size_max, self.at))

    def hash(self, buffer: Buffer) -> bytes:
        """Return the SHA-256 of the whole record, which the next one contains."""
        return hashlib.sha256(memoryview(buffer)[self.at : self.end]).digest()


def encode_record(
    position: int,
    timestamp_us: int,
    data: Buffer,
    prev_hash: bytes,
    *,
    tenant: int = 0,
    stream: int = 0,
    event_type: int = EventType.DATA,
    compressed_min: int | None = COMPRESSED_MIN,
    size_max: int = SIZE_MAX,
) -> bytes:
    """Encode one record, whose hash is SHA-256 of the result.

    Data of at least *compressed_min* bytes is compressed if that makes it smaller; None disables compression.

    Raises:
        FrameTooLarge: If the record, or its data before compression, would exceed *size_max* bytes.
    """
    if OVERHEAD + len(data) > size_max:
        raise FrameTooLarge(
            position=0, expected=f"at most {size_max} bytes", found=OVERHEAD + len(data), what="record"
        )
    reserved = _PLAIN
    if compressed_min is not None and len(data) >= compressed_min:
        smaller = compress(Compression.ZSTD, data)
        if len(smaller) < len(data):
            data, reserved = smaller, _ZSTD
    covered = prev_hash + METADATA.pack(position, tenant, stream, timestamp_us, event_type, reserved)
    covered += bytes(data)
    return struct.pack("<II", METADATA_SIZE + len(data), zlib.crc32(covered)) + covered


def parse_record(
    buffer: Buffer, at: int = 0, *, size_max: int = SIZE_MAX, checked: bool = False
) -> KimberliteRecord:
    """Read the record at byte *at*, all of whose bytes must be there.

    With *checked* its checksum was compared earlier. `verify_chain` compares the hash of the previous record.

    Raises:
        FrameError: The subclass says what is wrong, with the position of the field.
    """
    left = len(buffer) - at
    if left < OVERHEAD:
        raise TruncatedFrame(
            position=at, expected=f"at least {OVERHEAD} bytes", found=f"{max(left, 0)} bytes", what="record"
        )
    found = KimberliteRecord(at, *_RECORD.unpack_from(buffer, at))
    if found.length < METADATA_SIZE:
        zeros = not any(memoryview(buffer)[at : at + OVERHEAD])
        raise (OnlyZeros if zeros else InvalidBatch)(
            position=at,
            expected=f"at least {METADATA_SIZE}",
            found="zeros" if zeros else found.length,
            what="record length",
        )
    size = HEAD_SIZE + found.length
    if size > size_max:
        raise FrameTooLarge(
            position=at, expected=f"at most {size_max} bytes", found=f"{size} bytes", what="record"
        )
    if size > left:
        raise TruncatedFrame(position=at, expected=f"{size} bytes", found=f"{left} bytes", what="record")
    if not checked:
        actual = zlib.crc32(memoryview(buffer)[at + _HASH_AT : at + size])
        if actual != found.crc:
            raise ChecksumMismatch(
                position=at + _CRC_AT,
                expected=f"{found.crc:#010x}",
                found=f"{actual:#010x}",
                what="CRC-32 of the record",
            )
    if found.position > _INT64_MAX or found.reserved != _PLAIN:
        _check_metadata(found)
    return found


def check_stream(found: KimberliteRecord, tenant: int | None, stream: int) -> None:
    """Refuse a record of another tenant or stream; None is any tenant.

    Raises:
        WrongStream: With both values.
    """
    if tenant is None:
        tenant = found.tenant
    if (found.tenant, found.stream) != (tenant, stream):
        raise WrongStream(
            position=found.at + _TENANT_AT,
            expected=f"tenant {tenant} and stream {stream}",
            found=f"tenant {found.tenant} and stream {found.stream}",
            what=f"record {found.position}",
        )


@dataclass(frozen=True, slots=True)
class ChainBreak:
    """The first record with a wrong hash of its predecessor, by buffer and position."""

    buffer: int
    at: int
    position: int
    expected: bytes
    actual: bytes

    def __str__(self) -> str:
        """Return the record, the expected hash and the found one."""
        return (
            f"record {self.position} at byte {self.at} should follow {self.expected.hex()}, "
            f"but says {self.actual.hex()}"
        )


@dataclass(frozen=True, slots=True)
class ChainReport:
    """The result of checking a chain. ``head`` is the hash of the last record that was sound.

    ``broken`` is the place of a break, ``invalid`` another fault with its place; both are None if sound.
    """

    record_count: int
    head: bytes
    broken: ChainBreak | None = None
    invalid: FrameError | None = None

    @property
    def sound(self) -> bool:
        """Whether every record was complete, valid, and had the hash of its predecessor."""
        return self.broken is None and self.invalid is None


def verify_chain(
    buffers: Iterable[Buffer], *, prev_hash: bytes = NO_HASH, size_max: int = SIZE_MAX
) -> ChainReport:
    """Check the chain through *buffers*, in order, up to the first break.

    *prev_hash* is that of the record before the first one. Zeros after the last record, left by
    preallocation, end a buffer.
    """
    count, head = 0, prev_hash
    for number, buffer in enumerate(buffers):
        at = 0
        while at < len(buffer):
            try:
                found = parse_record(buffer, at, size_max=size_max)
            except FrameError as error:
                if only_zeros(buffer, at):
                    break
                return ChainReport(count, head, invalid=error)
            if found.prev_hash != head:
                broken = ChainBreak(number, at, found.position, head, found.prev_hash)
                return ChainReport(count, head, broken=broken)
            head = found.hash(buffer)
            count += 1
            at = found.end
    return ChainReport(count, head)


def _check_metadata(found: KimberliteRecord) -> None:
    if found.position > _INT64_MAX:
        raise InvalidBatch(
            position=found.at + _POSITION_AT,
            expected=f"at most {_INT64_MAX}",
            found=found.position,
            what="position",
        )
    if found.reserved not in (_PLAIN, _ZSTD):
        raise UnsupportedFrame(
            position=found.at + _RESERVED_AT,
            expected="zeros, or 1 and zeros where data is compressed",
            found=found.reserved.hex(),
            what="reserved bytes",
        )


def split_event_type(value: bytes | None, headers: Iterable[Header]) -> tuple[int, tuple[Header, ...]]:
    """Return the event type that a record is stored with, and its headers without that of the event type.

    Raises:
        ValueError: If its event type cannot be stored without a loss; says why.
    """
    said = [text for name, text in headers if name == EVENT_TYPE_HEADER]
    others = tuple(header for header in headers if header[0] != EVENT_TYPE_HEADER)
    if not said:
        return EventType.TOMBSTONE if value is None else EventType.DATA, others
    if len(said) > 1:
        raise ValueError(f"{len(said)} headers {EVENT_TYPE_HEADER}, but a record has one event type")
    text = said[0]
    if text is None or not _EVENT_TYPE.fullmatch(text) or int(text) > EVENT_TYPE_MAX:
        shown = "null" if text is None else ascii(text[:20].decode("latin-1"))
        raise ValueError(f"the event type {shown}, not a decimal number from 0 to {EVENT_TYPE_MAX}")
    event_type = int(text)
    if value is None and event_type != EventType.TOMBSTONE:
        raise ValueError(f"no value and the event type {event_type}: only a tombstone, type 2, has no value")
    if event_type == EventType.TOMBSTONE and value is not None and not len(value):
        raise ValueError("an empty value and the event type 2: a tombstone has a null value or data")
    return event_type, others


def event_type_headers(event_type: int, value: bytes | None) -> tuple[Header, ...]:
    """Return the header with the event type of a stored record; none for data, and for a null value."""
    if event_type == EventType.DATA or value is None:
        return ()
    return ((EVENT_TYPE_HEADER, b"%d" % event_type),)


class KimberliteFormat(RecordPerFrame):
    """Kimberlite's records, implementing the engine's contract; see `record_per_frame.RecordPerFrame`.

    A partition is a stream. A record without a value is a tombstone. An event type other than those of data
    and of tombstones without data is a header of the record.
    """

    name = "kimberlite"
    header_size = _HASH_AT
    holds = Holds(keys=False, headers=False, null_values=True, microseconds=True)
    chained = True

    def __init__(self, tenant: int | None = 0, stream: int = 0) -> None:
        self.tenant = tenant
        self.stream_id = stream

    def for_partition(self, partition: int, tenant: int | None = 0) -> KimberliteFormat:
        """Return the format for the stream with that number, of a tenant."""
        return KimberliteFormat(tenant, partition)

    def frame_size(self, header: Buffer) -> int | None:
        """Return the size from the length field."""
        length = int.from_bytes(memoryview(header)[:4], "little")
        return HEAD_SIZE + length if length >= METADATA_SIZE else None

    def _unheld(self, content: Content) -> str | None:
        """Return the part of a record that the format cannot store, None without one."""
        if not content.headers:
            return super()._unheld(content)
        try:
            _, others = split_event_type(content.value, content.headers)
        except ValueError as error:
            return str(error)
        return super()._unheld(content._replace(headers=others))

    def encode_frame(
        self, content: Content, *, offset: int, timestamp_us: int, before: bytes, size_max: int
    ) -> bytes:
        """Encode one record that follows the one whose hash is *before*."""
        assert self.tenant is not None
        return encode_record(
            offset,
            _checked_time(timestamp_us),
            b"" if content.value is None else content.value,
            before or NO_HASH,
            tenant=self.tenant,
            stream=self.stream_id,
            event_type=split_event_type(content.value, content.headers)[0],
            size_max=size_max,
        )

    def find_frame(
        self, buffer: Buffer, position: int, *, size: int | None, size_max: int, checked: bool
    ) -> FoundFrame:
        """Read the record at *position*, compare its checksum, and refuse one of another stream."""
        found = parse_record(buffer, position, size_max=size_max, checked=checked)
        check_stream(found, self.tenant, self.stream_id)
        return FoundFrame(found.end - position, found.position, found.timestamp_us // 1000, found.prev_hash)

    def decode_frame(self, buffer: Buffer, position: int, size: int) -> Content:
        """Decode one record. A tombstone that has data, as others may write it, keeps its data."""
        found = KimberliteRecord(position, *_RECORD.unpack_from(buffer, position))
        timed = timestamp_us_headers(found.timestamp_us)
        if found.event_type == EventType.TOMBSTONE and found.end == found.data_at:
            return Content(None, None, timed)
        value = found.data(buffer, size_max=DECOMPRESSED_MAX)
        return Content(None, value, event_type_headers(found.event_type, value) + timed)

    def left_by(self, frame: Buffer) -> bytes:
        """Return the hash of a whole record."""
        return hashlib.sha256(frame).digest()

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
        """Lay out a record around a value that is not in memory; it is not compressed."""
        assert self.tenant is not None
        if OVERHEAD + value_size > size_max:
            raise FrameTooLarge(
                position=0, expected=f"at most {size_max} bytes", found=OVERHEAD + value_size, what="record"
            )
        _checked_time(timestamp_us)
        event_type, _ = split_event_type(b"\0" if value_size else b"", headers)
        head = HEAD.pack(METADATA_SIZE + value_size, 0, before or NO_HASH) + METADATA.pack(
            offset, self.tenant, self.stream_id, timestamp_us, event_type, _PLAIN
        )
        return _StreamedKimberlite(head, value_size, offset=offset, timestamp=timestamp_us // 1000)


class _StreamedKimberlite(StreamedRecord):
    """A streamed record with its checksum before the value, and the hash for the next record."""

    _crc: int | None = None

    def update(self, chunk: Buffer) -> None:
        """Add the next bytes of the value to the checksum."""
        crc = zlib.crc32(self.head[_HASH_AT:]) if self._crc is None else self._crc
        self._crc = zlib.crc32(chunk, crc)

    def finish(self) -> tuple[bytearray, bytes]:
        """Return the bytes before the value, including the checksum."""
        crc = zlib.crc32(self.head[_HASH_AT:]) if self._crc is None else self._crc
        struct.pack_into("<I", self.head, _CRC_AT, crc)
        return self.head, b""

    def left(self, frame: Iterable[Buffer]) -> bytes:
        """Return the hash of the whole record."""
        hashed = hashlib.sha256()
        for piece in frame:
            hashed.update(piece)
        return hashed.digest()


def _checked_time(timestamp_us: int) -> int:
    if not -_INT64_MAX <= timestamp_us <= _INT64_MAX:
        raise RecordRefused(f"kimberlite cannot hold the time {timestamp_us // 1000} ms as microseconds")
    return timestamp_us
