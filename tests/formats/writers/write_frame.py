"""Write a data directory of the broker with framed records: a writer that knows only the layout's tables.

Left open there: how sparse the indexes are. Here ``.idx`` has every 100th record, and ``.timeidx`` the first
record and, at every 100th, the one before it with the latest time so far, if that is later than the last.
``broker.id`` and ``checkpoint.json`` belong to a broker, not to a topic, and the document defines what they
say, not their bytes.
"""

from __future__ import annotations

import binascii
import struct
from pathlib import Path

INDEX_INTERVAL = 100
FramedRow = tuple[int, int, bytes | None, bytes | None]


def frame(offset: int, timestamp_ms: int, key: bytes | None, value: bytes | None) -> bytes:
    """Return one frame: header, body, checksum, length."""
    flags = (value is None) | (key == b"") << 1
    sizes = len(key or b""), len(value or b"")
    body = struct.pack("<IHHqqII", 0xB10B5E01, 1, flags, offset, timestamp_ms, *sizes)
    body += (key or b"") + (value or b"")
    return body + struct.pack("<II", binascii.crc32(body), len(body) + 8)


def write(
    data: Path,
    topic: str,
    partition: int,
    segments: list[list[FramedRow]],
    *,
    interval: int = INDEX_INTERVAL,
    with_times: bool = True,
) -> Path:
    """Write segments of (offset, time in milliseconds, key, value); return the directory of the topic."""
    place = data / "topics" / topic / str(partition) / "segments"
    place.mkdir(parents=True)
    (data / "meta").mkdir(exist_ok=True)
    (data / "meta" / "broker.id").write_text("uuid=6f9619ff-8b86-d011-b42d-00cf4fc964ff\n")
    (data / "meta" / "checkpoint.json").write_text("{}\n")
    next_offset = 0
    for rows in segments:
        log, index, times = b"", b"", b""
        latest: tuple[int, int] | None = None
        recorded: int | None = None
        base = rows[0][0] if rows else next_offset
        for number, row in enumerate(rows):
            if number % interval == 0:
                index += struct.pack(">QQ", row[0], len(log))
                if latest is not None and recorded is not None and latest[0] > recorded:
                    times += struct.pack(">qQ", *latest)
                    recorded = latest[0]
            if latest is None or row[1] > latest[0]:
                latest = (row[1], row[0])
            if recorded is None:
                times += struct.pack(">qQ", *latest)
                recorded = latest[0]
            log += frame(*row)
            next_offset = row[0] + 1
        for suffix, content in (("log", log), ("idx", index), ("timeidx", times))[: 3 if with_times else 2]:
            (place / f"{base:020d}.{suffix}").write_bytes(content)
    return data / "topics" / topic
