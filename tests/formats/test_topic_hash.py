"""The hash of a topic's name, against the vectors that BLAKE3's authors publish."""

from __future__ import annotations

import pytest

from cordwood.formats.topic_hash import blake3, topic_hash

# From test_vectors.json of the BLAKE3 repository: input length, and the first 32 bytes of the hash.
VECTORS = {
    0: "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262",
    1: "2d3adedff11b61f14c886e35afa036736dcd87a74d27b5c1510225d0f592e213",
    1023: "10108970eeda3eb932baac1428c7a2163b0e924c9a9e25b35bba72b28f70bd11",
    1024: "42214739f095a406f3fc83deb889744ac00df831c10daa55189b5d121c855af7",
}


@pytest.mark.parametrize("size", VECTORS)
def test_it_is_blake3(size: int) -> None:
    assert blake3(bytes(i % 251 for i in range(size))).hex() == VECTORS[size]


def test_more_than_a_chunk_is_refused() -> None:
    with pytest.raises(ValueError, match="1025"):
        blake3(bytes(1025))


def test_the_same_name_differs_between_tenants() -> None:
    assert topic_hash(1, "orders") != topic_hash(2, "orders")
    salted = (1).to_bytes(8, "little") + b"orders"
    assert topic_hash(1, "orders") == int.from_bytes(blake3(salted)[:16], "little")
    assert topic_hash(1, "orders") < 2**128
