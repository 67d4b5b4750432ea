"""Write a log of Kimberlite: a writer that knows only the tables of its documentation.

Left open there: the bytes of ``index.meta``, which here are a line of JSON for each segment as docs/formats
has it, and whether a sealed segment keeps the zeros that were reserved for it: here it ends with its last
record.
"""

from __future__ import annotations

import binascii
import hashlib
import json
import struct
from pathlib import Path
from typing import NamedTuple


class Event(NamedTuple):
    """A record to write; ``reserved`` begins with 1 where the data is zstd.

    ``tenant`` and ``stream`` are its own in a log that several have in common.
    """

    timestamp_us: int
    data: bytes
    event_type: int = 0
    reserved: bytes = bytes(6)
    tenant: int | None = None
    stream: int | None = None


def write(
    place: Path,
    segments: list[list[Event]],
    *,
    tenant: int,
    stream: int,
    first: int = 0,
    previous: bytes = bytes(32),
) -> Path:
    """Write the chain of a stream to ``place/log``; return *place*."""
    (place / "log").mkdir(parents=True)
    position, listed = first, b""
    for number, events in enumerate(segments):
        log, begins = b"", position if events else None
        for event in events:
            owner = tenant if event.tenant is None else event.tenant
            part = stream if event.stream is None else event.stream
            covered = previous + struct.pack(
                "<QQQqH6s", position, owner, part, event.timestamp_us, event.event_type, event.reserved
            )
            covered += event.data
            record = struct.pack("<II", 40 + len(event.data), binascii.crc32(covered)) + covered
            previous = hashlib.sha256(record).digest()
            log += record
            position += 1
        (place / "log" / f"{number:08d}.segment").write_bytes(log)
        said = {
            "segment": number,
            "first_position": begins,
            "size": len(log),
            "sha256": hashlib.sha256(log).hexdigest(),
        }
        listed += json.dumps(said, separators=(",", ":")).encode() + b"\n"
    (place / "log" / "index.meta").write_bytes(listed)
    return place
