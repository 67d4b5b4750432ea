"""Write a data directory of RustLog: a writer that knows only the tables of its documentation.

Left open there: an index may have any interval, and every 100th record is its default; a sealed segment is
followed by another with its own first offset.
"""

from __future__ import annotations

import struct
from pathlib import Path

INDEX_INTERVAL = 100


def write(
    data: Path,
    topic: str,
    partition: int,
    segments: list[list[tuple[int, int, bytes]]],
    *,
    interval: int = INDEX_INTERVAL,
) -> Path:
    """Write segments of (offset, time in microseconds, payload); return the directory of the topic.

    An empty segment begins after the last record before it.
    """
    place = data / "topics" / topic / "partitions" / str(partition)
    place.mkdir(parents=True)
    next_offset = 0
    for records in segments:
        base = records[0][0] if records else next_offset
        log, index = b"", b""
        for number, (offset, timestamp_us, payload) in enumerate(records):
            if number % interval == 0:
                index += struct.pack(">QQ", offset, len(log))
            log += struct.pack(">IQQ", len(payload), offset, timestamp_us) + payload
            next_offset = offset + 1
        (place / f"{base:020d}.log").write_bytes(log)
        (place / f"{base:020d}.index").write_bytes(index)
    return data / "topics" / topic
