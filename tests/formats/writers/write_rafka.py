"""Write a log of Rafka: a writer that knows only the table of its documentation.

Left open there: when a segment is full. Here a record that would make it larger than the limit begins the
next one. The hash of a topic is the first 16 bytes of BLAKE3 over the org, u64 little-endian, and the name.
"""

from __future__ import annotations

import struct
from pathlib import Path

import blake3


def write(place: Path, records: list[tuple[int, str, int, bytes]], *, segment_bytes: int = 1 << 30) -> Path:
    """Write records of (org, topic, partition, bytes) in their order."""
    place.mkdir(parents=True)
    segment, log, index = 0, b"", b""
    for org, topic, partition, data in records:
        if log and len(log) + 4 + len(data) > segment_bytes:
            (place / f"{segment}.log").write_bytes(log)
            (place / f"{segment}.oidx").write_bytes(index)
            segment, log, index = segment + 1, b"", b""
        hashed = blake3.blake3(struct.pack("<Q", org) + topic.encode()).digest()[:16]
        index += struct.pack("<IIIQ", segment, len(log) + 4, len(data), org)
        index += hashed + struct.pack("<I", partition)
        log += struct.pack("<I", len(data)) + data
    (place / f"{segment}.log").write_bytes(log)
    (place / f"{segment}.oidx").write_bytes(index)
    return place
