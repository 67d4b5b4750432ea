"""Compression: the framings of Kafka's clients, both ways, and nothing unbounded."""

from __future__ import annotations

import resource
import struct

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordwood.errors import FrameTooLarge, InvalidBatch
from cordwood.formats.compression import Compression, compress, decompress

COMPRESSED = [c for c in Compression if c is not Compression.NONE]
LIMIT = 1 << 20


@given(
    st.sampled_from(Compression), st.binary(max_size=5_000) | st.binary(max_size=50).map(lambda b: b * 4_000)
)
def test_what_was_compressed_comes_back(compression: Compression, data: bytes) -> None:
    assert bytes(decompress(compression, compress(compression, data), LIMIT)) == data


@pytest.mark.parametrize("compression", COMPRESSED)
@pytest.mark.parametrize("size", [LIMIT - 1, LIMIT, LIMIT + 1, 64 * LIMIT])
def test_the_limit_is_exact_and_a_bomb_costs_no_more_than_it(compression: Compression, size: int) -> None:
    bomb = bytes(compress(compression, bytes(size)))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if size <= LIMIT:
        assert len(decompress(compression, bomb, LIMIT)) == size
    else:
        with pytest.raises(FrameTooLarge, match=f"at most {LIMIT} bytes"):
            decompress(compression, bomb, LIMIT)
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown_kib < 16 * 1024, f"{len(bomb)} bytes grew the process by {grown_kib} KiB"


@pytest.mark.parametrize("claimed", [2**32 - 1, 2**31, LIMIT + 1])
def test_a_snappy_length_that_lies_allocates_nothing(claimed: int) -> None:
    preamble = bytearray()
    rest = claimed
    while rest >= 0x80:
        preamble.append(rest & 0x7F | 0x80)
        rest >>= 7
    preamble.append(rest)
    with pytest.raises((FrameTooLarge, InvalidBatch)):
        decompress(Compression.SNAPPY, bytes(preamble) + b"\0", LIMIT)
    framed = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1) + struct.pack(">i", len(preamble)) + preamble
    with pytest.raises((FrameTooLarge, InvalidBatch)):
        decompress(Compression.SNAPPY, framed, LIMIT)


@pytest.mark.parametrize("size", [-1, -(2**31), 2**31 - 1, 100])
def test_a_snappy_block_that_is_not_there_is_refused(size: int) -> None:
    framed = b"\x82SNAPPY\x00" + struct.pack(">iii", 1, 1, size) + b"abc"
    with pytest.raises(InvalidBatch, match="block"):
        decompress(Compression.SNAPPY, framed, LIMIT)


def test_raw_snappy_as_librdkafka_writes_it_is_read() -> None:
    data = b"raw snappy " * 100
    assert bytes(decompress(Compression.SNAPPY, bytes(cramjam.snappy.compress_raw(data)), LIMIT)) == data


def test_lz4_blocks_do_not_depend_on_each_other() -> None:
    """Kafka's Java client refuses linked blocks; bit 5 of the second frame byte says they are not."""
    frame = bytes(compress(Compression.LZ4, bytes(1 << 20)))
    assert frame[:4] == b"\x04\x22\x4d\x18"
    assert frame[4] & 0x20


@pytest.mark.parametrize("compression", COMPRESSED)
def test_data_cut_at_any_byte_is_refused_or_shorter_never_wrong(compression: Compression) -> None:
    data = bytes(range(256)) * 3
    whole = bytes(compress(compression, data))
    refused = 0
    for size in range(len(whole)):
        try:
            out = bytes(decompress(compression, whole[:size], LIMIT))
        except InvalidBatch:
            refused += 1
        else:
            assert data.startswith(out)
    print(f"{refused} of {len(whole)} cuts refused")
    assert refused >= len(whole) - 20


@given(st.sampled_from(COMPRESSED), st.binary(max_size=200))
def test_any_bytes_are_decompressed_or_refused_by_name(compression: Compression, data: bytes) -> None:
    try:
        size = len(decompress(compression, data, LIMIT, 7))
    except (FrameTooLarge, InvalidBatch) as caught:
        error = caught
    else:
        assert size <= LIMIT
        return
    assert error.position == 7


@pytest.mark.parametrize("compression", [Compression.GZIP, Compression.LZ4, Compression.ZSTD])
def test_data_that_fills_its_room_and_is_damaged_is_invalid_and_one_byte_more_is_too_large(
    compression: Compression,
) -> None:
    """Which of both it is decides what a producer is told, and the decompressor says it in words only."""
    content = bytes(range(256)) * 300
    data = bytearray(compress(compression, content))
    assert decompress(compression, data, len(content)) == content
    with pytest.raises(FrameTooLarge):
        decompress(compression, data, len(content) - 1)
    with pytest.raises(InvalidBatch):
        decompress(compression, data[:-1], len(content))
