"""gzip, snappy, lz4 and zstd in the framings Kafka's clients use, with a bound on what comes out.

The bound is checked before memory is touched: output goes into a buffer of at most that size, so a
small input that claims to be huge costs a refused call and nothing else.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from enum import IntEnum

import cramjam

from cordwood.errors import FrameTooLarge, InvalidBatch
from cordwood.kernels import Buffer

#: Xerial's snappy stream, which Kafka's Java client writes: magic, version 1, readable since version 1,
#: then blocks of a big-endian length and raw snappy.
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK_SIZE = 32 * 1024
_INT32 = struct.Struct(">i")

_FIRST_GUESS_MIN = 64 * 1024
#: Stands behind the room for decompressed data: data that needs more room is written over it. Only the text
#: of its error tells whether a decompressor ran out of room or read invalid data.
_UNTOUCHED = bytes.fromhex("9d3b5c01e8f27a464fb1d6620a97cc35")


class Compression(IntEnum):
    """The number a batch's attributes carry."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


def compress(compression: Compression, data: Buffer, level: int | None = None) -> Buffer:
    """Compress *data*; *level* is the codec's own scale, None its usual one, and snappy has none."""
    if compression is Compression.GZIP:
        return memoryview(cramjam.gzip.compress(data, level=6 if level is None else level))
    if compression is Compression.SNAPPY:
        return _snappy_compress(data)
    if compression is Compression.LZ4:
        # Kafka's Java client refuses frames whose blocks depend on each other.
        encoder = cramjam.lz4.Compressor(
            level=0 if level is None else level, content_checksum=False, block_linked=False
        )
        encoder.compress(bytes(data))  # it takes nothing but bytes
        return memoryview(encoder.finish())
    if compression is Compression.ZSTD:
        return memoryview(cramjam.zstd.compress(data, level=3 if level is None else level))
    return data


def decompress(compression: Compression, data: Buffer, limit: int, position: int = 0) -> Buffer:
    """Decompress *data* to at most *limit* bytes. *position* is where the batch stands, for errors.

    Raises:
        FrameTooLarge: If more than *limit* bytes would come out; none beyond it were produced.
        InvalidBatch: If *data* is not what its compression says.
    """
    if compression is Compression.NONE:
        return data
    if compression is Compression.SNAPPY:
        return _snappy_decompress(data, limit, position)
    return _decompress_growing(_DECOMPRESS_INTO[compression], compression, data, limit, position)


_DECOMPRESS_INTO: dict[Compression, Callable[[Buffer, bytearray], int]] = {
    Compression.GZIP: cramjam.gzip.decompress_into,
    Compression.LZ4: cramjam.lz4.decompress_into,
    Compression.ZSTD: cramjam.zstd.decompress_into,
}


def _decompress_growing(
    decompress_into: Callable[[Buffer, bytearray], int],
    compression: Compression,
    data: Buffer,
    limit: int,
    position: int,
) -> Buffer:
    """Decompress into a buffer of a likely size, then into larger ones up to the limit.

    The data may not say how many bytes will come out, and may say a wrong number.
    """
    size = min(limit, max(8 * len(data), _FIRST_GUESS_MIN))
    while True:
        out = bytearray(size + len(_UNTOUCHED))
        out[size:] = _UNTOUCHED
        try:
            count = decompress_into(data, out)
            if count <= limit:
                return memoryview(out)[:count]
        except cramjam.DecompressionError as error:
            if out[size:] == _UNTOUCHED:
                raise _invalid(compression, error, position) from None
        # More than *size* bytes came.
        if size == limit:
            name = compression.name.lower()
            raise FrameTooLarge(
                position=position, expected=f"at most {limit} bytes", found="more", what=f"{name} records"
            )
        size = min(limit, size * 8)


def _invalid(compression: Compression, error: Exception, position: int) -> InvalidBatch:
    name = compression.name.lower()
    return InvalidBatch(position=position, expected=f"{name} data", found=str(error), what="records")


def _snappy_compress(data: Buffer) -> Buffer:
    view = memoryview(data)
    out = bytearray(_XERIAL_HEADER)
    for start in range(0, len(view), _XERIAL_BLOCK_SIZE):
        block = cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK_SIZE])
        out += _INT32.pack(len(block))
        out += memoryview(block)
    return out


def _snappy_decompress(data: Buffer, limit: int, position: int) -> Buffer:
    """Decompress a xerial stream or, as librdkafka writes it, one raw block."""
    blocks = _snappy_blocks(memoryview(data), position)
    # Each block says its size up front; the sum is checked before any of them is opened.
    try:
        size = sum(cramjam.snappy.decompress_raw_len(block) for block in blocks)
        if size > limit:
            raise FrameTooLarge(
                position=position, expected=f"at most {limit} bytes", found=size, what="snappy records"
            )
        out = memoryview(bytearray(size))
        end = 0
        for block in blocks:
            end += cramjam.snappy.decompress_raw_into(block, out[end:])
    except cramjam.DecompressionError as error:
        raise _invalid(Compression.SNAPPY, error, position) from None
    return out[:end]


def _snappy_blocks(data: memoryview, position: int) -> list[memoryview]:
    if data[: len(_XERIAL_MAGIC)] != _XERIAL_MAGIC:
        return [data]
    blocks, start = [], len(_XERIAL_HEADER)
    while start < len(data):
        rest = len(data) - start - _INT32.size
        size = _INT32.unpack_from(data, start)[0] if rest >= 0 else -1
        if not 0 <= size <= rest:
            raise InvalidBatch(
                position=position,
                expected=f"a block of at most {max(rest, 0)} bytes",
                found=size,
                what="snappy",
            )
        start += _INT32.size
        blocks.append(data[start : start + size])
        start += size
    return blocks
