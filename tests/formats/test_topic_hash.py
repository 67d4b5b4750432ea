"""The hash of a topic's name, against the vectors that BLAKE3's authors publish."""

from __future__ import annotations

import pytest
from blake3 import blake3

from cordwood.formats.shared.topic_hashing import topic_hash, topic_hash_bytes

# From test_vectors.json of the BLAKE3 repository: input length, and the first 32 bytes of the hash.
VECTORS = {
    0: "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262",
    1: "2d3adedff11b61f14c886e35afa036736dcd87a74d27b5c1510225d0f592e213",
    1023: "10108970eeda3eb932baac1428c7a2163b0e924c9a9e25b35bba72b28f70bd11",
    1024: "42214739f095a406f3fc83deb889744ac00df831c10daa55189b5d121c855af7",
}


@pytest.mark.parametrize("size", VECTORS)
def test_what_hashes_is_blake3(size: int) -> None:
    assert blake3(bytes(i % 251 for i in range(size))).hexdigest() == VECTORS[size]


def test_it_is_the_first_16_bytes_over_the_org_and_the_name() -> None:
    salted = (1).to_bytes(8, "little") + b"orders"
    assert topic_hash_bytes(1, "orders") == blake3(salted).digest()[:16]
    assert topic_hash(1, "orders") == int.from_bytes(topic_hash_bytes(1, "orders"), "little") < 2**128
    assert topic_hash_bytes(7, "orders").hex() == "fe3bd977193282a3a3e9cd6a42964952"


def test_the_same_name_differs_between_tenants() -> None:
    assert len({topic_hash_bytes(org, "orders") for org in (0, 1, 2, 7, 2**64 - 1)}) == 5
