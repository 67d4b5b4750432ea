"""Write a partition of laminarmq: a writer that knows only its documentation and the layout's tables.

Left open there: how a program serialises metadata. Here it is any bytes, given by the caller.
"""

from __future__ import annotations

import binascii
import struct
from pathlib import Path


def write(place: Path, base: int, segments: list[list[tuple[bytes, bytes]]]) -> Path:
    """Write segments of (metadata, value), the first record of which has the index *base*."""
    place.mkdir(parents=True)
    for rows in segments:
        store, index = b"", struct.pack("<QQ", base, 0)
        for metadata, value in rows:
            record = struct.pack("<I", len(metadata)) + metadata + value
            index += struct.pack("<QII", binascii.crc32(record), len(record), len(store))
            store += record
        (place / f"{base}.store").write_bytes(store)
        (place / f"{base}.index").write_bytes(index)
        base += len(rows)
    return place


def metadata_of_ours(
    timestamp_ms: int, key: bytes | None, headers: list[tuple[bytes, bytes]], *, null: bool = False
) -> bytes:
    """Return metadata in Cordwood's layout, by its table."""
    made = struct.pack("<qBi", timestamp_ms, null, -1 if key is None else len(key)) + (key or b"")
    made += struct.pack("<I", len(headers))
    for name, value in headers:
        made += struct.pack("<I", len(name)) + name + struct.pack("<I", len(value)) + value
    return made
