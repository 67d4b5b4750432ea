"""Frames whose leaves commit to their records, and lists of the records of frames that were rewritten.

Written against docs/integrity.md, independent of the code that writes chains.
"""

from __future__ import annotations

import contextlib
import struct
from array import array
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from typing import NamedTuple

from cordwood.disk import ReadableFile, ReadableFiles, join
from cordwood.errors import FrameError
from cordwood.formats import Compression, decompress
from cordwood.kernels import (
    INT64_MAX,
    ITEM_SIZE,
    NO_KEY,
    NO_VALUE,
    Want,
    decode_columns,
    hash_records,
    list_roots,
)
from cordwood.verify.chain.laminarmq import own_metadata_problem
from cordwood.verify.frame import DECOMPRESSED_BYTES_MAX, HEADER

_FACTS = struct.Struct(
    ">"
    "B"  # format
    "q"  # base offset
    "i"  # last offset delta
    "i"  # leader epoch
    "h"  # attributes without the compression
    "q"  # producer id
    "h"  # producer epoch
    "i"  # base sequence
    "i"  # record count
    "32s"  # SHA-256 of the frame
)
_LIST = struct.Struct(">Q" + _FACTS.format[1:])
assert (_FACTS.size, _LIST.size) == (69, 77)
_BATCH, _LAMINARMQ, _FRAME = 0, 3, 4
#: The formats whose topics may be compacted, as leaves number them.
_CODES = {"batch": _BATCH, "laminarmq": _LAMINARMQ, "frame": _FRAME}
_CONTROL, _COMPRESSION = 0x20, 0x07
_WANT = Want.OFFSET | Want.TIMESTAMP | Want.KEY | Want.VALUE | Want.HEADERS
_PREFIX = b"\0\xfeCWR1"
_EMPTY_ROOT = sha256().digest()
_LEAVES_MAX = 1 << 40
_ENVELOPE_BYTES = 80
_DROPPED = struct.Struct(">Q80s32s")
assert _DROPPED.size == 120

Bytes = bytes | bytearray | memoryview


class CommittedFields(NamedTuple):
    """The fields of a frame that its leaf commits to, besides its records."""

    format: int
    base_offset: int
    last_delta: int
    leader_epoch: int
    attributes: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int
    frame_hash: bytes

    def differs_in(self, rewritten: CommittedFields) -> str | None:
        """Return the first field that a rewritten frame must have kept, but has not; None if it kept all."""
        kept = range(len(self) - 2)
        return next((self._fields[at] for at in kept if self[at] != rewritten[at]), None)


class FrameContent(NamedTuple):
    """What the leaf of a frame commits to: its fields, and its records as items with their offsets."""

    fields: CommittedFields
    offsets: Sequence[int]
    items: bytes

    def leaf(self) -> bytes:
        """Return the leaf."""
        root = _EMPTY_ROOT
        if self.items:
            counts = array("q", [len(self.offsets)]).tobytes()
            root = bytes(list_roots(self.items, array("q", self.offsets).tobytes(), counts))
        return sha256(_PREFIX + _FACTS.pack(*self.fields) + root).digest()


class RecordItem(NamedTuple):
    """One record of a list."""

    offset: int
    flags: int
    key: bytes

    @property
    def has_key(self) -> bool:
        """Whether the record has a key."""
        return not self.flags & NO_KEY

    @property
    def is_tombstone(self) -> bool:
        """Whether the record has no value."""
        return bool(self.flags & NO_VALUE)


def item_at(items: bytes, base_offset: int, number: int) -> RecordItem:
    """Return record *number* of a list that begins at *base_offset*."""
    at = number * ITEM_SIZE
    return RecordItem(base_offset + number, items[at], items[at + 1 : at + 33])


def keys_of(items: bytes) -> list[bytes]:
    """Return the hash of each record's key."""
    return [items[at + 1 : at + 33] for at in range(0, len(items), ITEM_SIZE)]


def content_of(record_format: str, data: Bytes, offset: int, salt: bytes) -> FrameContent:
    """Return the content of the sound frame *data*; *offset* is that of its record where a frame is one.

    The list of a frame that contradicts itself is empty.
    """
    code, frame_hash = _CODES.get(record_format, -1), sha256(data).digest()
    if code == _BATCH:
        return _batch_content(data, frame_hash, salt)
    fields = CommittedFields(code, offset, 0, -1, 0, -1, -1, -1, 1, frame_hash)
    with contextlib.suppress(struct.error, IndexError, ValueError):
        item = _laminarmq_item(data, salt) if code == _LAMINARMQ else _frame_item(data, salt)
        return FrameContent(fields, (offset,), item)
    return FrameContent(fields, (), b"")


def leaf_of(record_format: str, data: Bytes, offset: int, salt: bytes) -> bytes:
    """Return the leaf that commits to the parts of a sound frame; see `content_of`."""
    if record_format == "shared":
        return envelope_leaf(bytes(data[:_ENVELOPE_BYTES]), sha256(data[_ENVELOPE_BYTES:]).digest())
    return content_of(record_format, data, offset, salt).leaf()


def moved_leaf(data: Bytes) -> bytes:
    """Return the leaf of a frame that compaction wrote, in a chain with statements about policies."""
    return sha256(b"\0\xfdCWM1" + bytes(data)).digest()


def envelope_leaf(envelope: bytes, batch_hash: bytes) -> bytes:
    """Return the leaf of a frame of the shared log, which commits to its envelope and its batch."""
    return sha256(b"\0\xfeCWE1" + envelope + batch_hash).digest()


def _batch_content(data: Bytes, frame_hash: bytes, salt: bytes) -> FrameContent:
    header = HEADER.unpack_from(data)
    base, _, epoch, _, crc, attributes, last_delta, first_ms, largest_ms, *producer, count = header
    kept = attributes & ~_COMPRESSION
    fields = CommittedFields._make((_BATCH, base, last_delta, epoch, kept, *producer, count, frame_hash))
    if attributes & _CONTROL:
        return FrameContent(fields, (), b"")
    row = (0, len(data), base, epoch, crc, attributes, last_delta, first_ms, largest_ms, *producer, count)
    try:
        payload = None
        if attributes & _COMPRESSION:
            body = memoryview(data)[HEADER.size :]
            payload = decompress(Compression(attributes & _COMPRESSION), body, DECOMPRESSED_BYTES_MAX, 0)
        columns = decode_columns(bytes(data), struct.pack("=13q", *row), [payload], _WANT)
    except (FrameError, ValueError):
        return FrameContent(fields, (), b"")
    assert columns.offset is not None
    offsets = memoryview(columns.offset).cast("B").cast("q").tolist()
    return FrameContent(fields, offsets, bytes(hash_records(columns, salt)))


def _item(
    salt: bytes,
    timestamp: int,
    key: bytes | None,
    value: bytes | None,
    headers: Iterable[tuple[bytes, bytes | None]] = (),
) -> bytes:
    flags = (NO_KEY if key is None else 0) | (NO_VALUE if value is None else 0)
    listed = list(headers)
    rest = sha256(b"\2" + struct.pack(">q", timestamp) + _sized(value) + struct.pack(">i", len(listed)))
    for name, content in listed:
        rest.update(_sized(name) + _sized(content))
    return bytes([flags]) + sha256(b"\1" + salt + (key or b"")).digest() + rest.digest()


def _sized(value: bytes | None) -> bytes:
    return struct.pack(">i", -1) if value is None else struct.pack(">i", len(value)) + value


def _frame_item(data: Bytes, salt: bytes) -> bytes:
    """Return the item of a record of the format ``frame``; docs/formats/frame.md has the layout."""
    _, _, flags, _, timestamp, key_bytes, value_bytes = struct.unpack_from("<IHHqqII", data)
    body = bytes(data[32 : 32 + key_bytes + value_bytes])
    key = body[:key_bytes] if key_bytes or flags & 2 else None
    return _item(salt, timestamp, key, None if flags & 1 else body[key_bytes:])


def _laminarmq_item(data: Bytes, salt: bytes) -> bytes:
    """Return the item of a record of the format ``laminarmq``; docs/formats/laminarmq.md has the layout."""
    if own_metadata_problem(memoryview(data)) is not None:
        (metadata,) = struct.unpack_from("<I", data)
        foreign = (b"cordwood.laminarmq.metadata", bytes(data[4 : 4 + metadata]))
        return _item(salt, -1, None, bytes(data[4 + metadata :]), [foreign])
    metadata, timestamp, flags, key_bytes = struct.unpack_from("<IqBi", data)
    at = 17
    key = None if key_bytes < 0 else bytes(data[at : at + key_bytes])
    at += max(key_bytes, 0)
    (count,) = struct.unpack_from("<I", data, at)
    at += 4
    headers = []
    for _ in range(count):
        parts = []
        for _ in range(2):
            (size,) = struct.unpack_from("<I", data, at)
            parts.append(bytes(data[at + 4 : at + 4 + size]))
            at += 4 + size
        headers.append((parts[0], parts[1]))
    value = None if flags & 1 else bytes(data[4 + metadata :])
    return _item(salt, timestamp, key, value, headers)


# --- lists --------------------------------------------------------------------------------------------


class ListPlace(NamedTuple):
    """Where a list stands, the leaf of its frame, and the fields of the leaf."""

    path: str
    position: int
    leaf: int
    fields: CommittedFields


def list_path(chain: str, number: int) -> str:
    """Return the path of the lists that belong to the statement whose first leaf is *number*."""
    return join(chain, "lists", f"{number:020d}")


def scan_lists(file: ReadableFile) -> tuple[list[ListPlace], int]:
    """Return the places of the lists in *file*, and where the last valid one ends."""
    found: list[ListPlace] = []
    position, size = 0, file.size()
    while position + _LIST.size <= size:
        leaf, *fields = _LIST.unpack(file.read_at(position, _LIST.size))
        place = ListPlace(file.path, position, leaf, CommittedFields._make(fields))
        count = place.fields.record_count
        end = position + _LIST.size + count * ITEM_SIZE
        is_place = 0 <= place.fields.base_offset <= INT64_MAX - (1 << 31) and leaf < _LEAVES_MAX
        if count < 0 or count != place.fields.last_delta + 1 or end > size or not is_place:
            break
        found.append(place)
        position = end
    return found, position


class DroppedEnvelope(NamedTuple):
    """What was kept of a frame of the shared log that was dropped."""

    leaf: int
    envelope: bytes
    batch_hash: bytes


def read_envelopes(file: ReadableFile) -> Iterator[DroppedEnvelope]:
    """Yield what *file* has of dropped frames of the shared log. Bytes after the last one are ignored."""
    for position in range(0, file.size() - _DROPPED.size + 1, _DROPPED.size * 1024):
        data = file.read_at(position, _DROPPED.size * 1024)
        for at in range(0, len(data) - _DROPPED.size + 1, _DROPPED.size):
            yield DroppedEnvelope._make(_DROPPED.unpack_from(data, at))


class ListFiles:
    """The lists of a chain in files with these *numbers*. Must be closed."""

    def __init__(self, files: ReadableFiles, chain: str, numbers: Iterable[int]) -> None:
        """Read where each list stands. Files that are not there are left out.

        Raises:
            OSError: If a file cannot be read.
        """
        self._places: dict[int, ListPlace] = {}
        self._files: dict[str, ReadableFile] = {}
        #: The files with something else than lists, and where that begins.
        self.torn: list[tuple[str, int]] = []
        try:
            for number in numbers:
                path = list_path(chain, number)
                if not files.exists(path):
                    continue
                file = self._files[path] = files.open(path, "read")
                places, end = scan_lists(file)
                self._places.update((place.leaf, place) for place in places)
                if end != file.size():
                    self.torn.append((path, end))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()

    def find(self, leaf: int) -> ListPlace | None:
        """Return the place of the list of *leaf*, None without one."""
        return self._places.get(leaf)

    def forget(self, leaf: int) -> None:
        """Drop the list of *leaf*, which is not the list that the leaf commits to."""
        del self._places[leaf]

    def places(self) -> list[ListPlace]:
        """Return the places of all lists, by their leaves."""
        return [self._places[leaf] for leaf in sorted(self._places)]

    def read(self, place: ListPlace) -> FrameContent:
        """Return the list at *place*."""
        fields = place.fields
        size = fields.record_count * ITEM_SIZE
        items = self._files[place.path].read_at(place.position + _LIST.size, size)
        offsets = range(fields.base_offset, fields.base_offset + len(items) // ITEM_SIZE)
        return FrameContent(fields, offsets, items)
