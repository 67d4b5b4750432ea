"""The body of a piece: what changed in the files of the log, with the bytes, or where they are.

docs/formats/bucket.md has the layout. It begins with a table in MessagePack, and the bytes follow.
"""

from __future__ import annotations

import struct

import cramjam
import msgspec

from cordwood.errors import BucketDamaged

_HEAD = struct.Struct(
    ">"
    "B"  # 0 if the table is as it is, 1 if it is compressed by zstd
    "I"  # length of the table in the body
    "I"  # length of the table
)
HEAD_SIZE = _HEAD.size
#: Tables from this size on are compressed.
_COMPRESSED_FROM = 512
#: A table that claims to be larger is refused.
_TABLE_BYTES_MAX = 256 << 20
#: No file system has longer names.
NAME_BYTES_MAX = 255
#: The largest stretch: a reader reads and checks it whole.
STRETCH_BYTES_MAX = 8 << 20


class StoredStretch(msgspec.Struct, frozen=True, array_like=True):
    """The bytes [start, start + size) of a file, and where they are.

    ``source`` 0 is this body, n is the n-th object of the table. ``position`` counts from the end of the
    table, or from the beginning of the object.
    """

    start: int
    size: int
    source: int
    position: int
    crc32c: int


class FilePatch(msgspec.Struct, frozen=True, array_like=True):
    """A file that changed. Apply the fields in their order."""

    path: str
    #: Nothing that was at the path before is part of the file.
    fresh: bool
    #: The file was cut to this size; -1 if it was not.
    cut_to: int
    stretches: tuple[StoredStretch, ...]
    #: Where there is no stretch below the size there are zeros.
    size: int


class ObjectRef(msgspec.Struct, frozen=True, array_like=True):
    """An object with bytes of files."""

    key: str
    size: int
    sha256: str


class BodyTable(msgspec.Struct, frozen=True, array_like=True):
    """What changed. Apply the removals first, then the directories, then the files."""

    #: When the changes were collected, by the clock of the owner, in milliseconds.
    at_ms: int
    removed: tuple[str, ...] = ()
    directories: tuple[str, ...] = ()
    objects: tuple[ObjectRef, ...] = ()
    files: tuple[FilePatch, ...] = ()


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(BodyTable)


def pack_table(table: msgspec.Struct) -> bytes:
    """Return *table* with the head that `unpack_table` needs."""
    plain = stored = _ENCODER.encode(table)
    if len(plain) >= _COMPRESSED_FROM:
        stored = bytes(cramjam.zstd.compress(plain))
    return _HEAD.pack(stored is not plain, len(stored), len(plain)) + stored


def unpack_table(key: str, data: memoryview) -> tuple[bytes, int]:
    """Return the MessagePack of the table that *data* begins with, and where it ends.

    Raises:
        BucketDamaged: If it is not one, or is larger than any that we write.
    """
    if len(data) < HEAD_SIZE:
        raise BucketDamaged(key, f"has {len(data)} bytes for a table, whose head alone has {HEAD_SIZE}")
    compressed, stored, size = _HEAD.unpack_from(data)
    end = HEAD_SIZE + stored
    if compressed > 1 or end > len(data) or size > _TABLE_BYTES_MAX or (not compressed and size != stored):
        raise BucketDamaged(key, f"says that its table has {stored} bytes, {size} when decompressed")
    table = bytes(data[HEAD_SIZE:end])
    if compressed:
        buffer = bytearray(size)
        try:
            length = cramjam.zstd.decompress_into(table, buffer)
        except cramjam.DecompressionError as error:
            raise BucketDamaged(key, f"its table cannot be decompressed: {error}") from None
        if length != size:
            raise BucketDamaged(key, f"its table has {length} bytes, its head says {size}")
        table = bytes(buffer)
    return table, end


def encode_body(table: BodyTable, content: list[bytes]) -> bytes:
    """Return the bytes of a body whose stretches of source 0 are in *content*, one after the other."""
    return b"".join([pack_table(table), *content])


def decode_body(key: str, body: memoryview) -> tuple[BodyTable, int]:
    """Return the table of the piece under *key*, and where in the body its content begins.

    An empty body has no changes.

    Raises:
        BucketDamaged: If it contradicts itself.
    """
    if not body:
        return BodyTable(0), 0
    packed, end = unpack_table(key, body)
    try:
        table = _DECODER.decode(packed)
    except msgspec.MsgspecError as error:
        raise BucketDamaged(key, f"its table cannot be parsed: {error}") from None
    for file in table.files:
        check_path(key, file.path)
        check_stretches(key, file)
        for each in file.stretches:
            sizes = len(body) - end if each.source == 0 else _size_of(key, table, each.source)
            if each.position < 0 or each.position + each.size > sizes:
                raise BucketDamaged(key, f"{file.path}: bytes from {each.position} on are not there")
    for path in (*table.removed, *table.directories):
        check_path(key, path)
    return table, end


def _size_of(key: str, table: BodyTable, source: int) -> int:
    if not 0 < source <= len(table.objects):
        raise BucketDamaged(key, f"names object {source} of {len(table.objects)}")
    return table.objects[source - 1].size


def check_stretches(key: str, file: FilePatch) -> None:
    """Refuse stretches that overlap, are not in order or do not lie within the file."""
    end = 0
    for each in file.stretches:
        if each.start < end or not 0 < each.size <= STRETCH_BYTES_MAX:
            raise BucketDamaged(key, f"{file.path}: {each.size} bytes from {each.start} on are not in order")
        end = each.start + each.size
    if end > file.size:
        raise BucketDamaged(key, f"{file.path}: has {file.size} bytes, and bytes up to {end}")


def check_path(key: str, path: str) -> None:
    """Refuse a path that could lead out of the directory that it is restored into."""
    names = path.split("/")
    too_long = any(len(name.encode(errors="replace")) > NAME_BYTES_MAX for name in names)
    if not path or too_long or "\0" in path or any(name in ("", ".", "..") for name in names):
        raise BucketDamaged(key, f"names the path {path!r}")
