"""Read a shared log, or its dense index: a second reader, from the tables of its documentation alone.

Run it as ``python read_shared.py log DIRECTORY`` or ``python read_shared.py oidx DIRECTORY``; it prints a
line of JSON for every virtual topic: from the frames alone, or from the entries alone.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

RECORDS, LOG_START, ENDED = 0, 1, 2


def crc32c(data: bytes) -> int:
    """Return the CRC-32C (Castagnoli) of *data*, bit by bit through a table."""
    value = 0xFFFFFFFF
    for byte in data:
        value = _TABLE[(value ^ byte) & 0xFF] ^ (value >> 8)
    return value ^ 0xFFFFFFFF


def _entry_of_table(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
    return byte


_TABLE = [_entry_of_table(byte) for byte in range(256)]


def frames_of_log(data: bytes, base: int) -> Iterator[dict[str, Any]]:
    """Yield the frames of a segment. Little-endian, 80 bytes of envelope, then one record batch.

    CRC-32C u32 of all after it, magic "WENV", size u32, version u8, kind u8, 2 bytes of zeros, leader epoch
    i32, partition u32, first id u64, org u64, topic hash of 16 bytes, first offset u64, largest timestamp
    i64, how many ids u32, 4 bytes of zeros.
    """
    at = 0
    while any(data[at : at + 80]):
        size = int.from_bytes(data[at + 8 : at + 12], "little")
        frame = data[at : at + size]
        if frame[4:8] != b"WENV" or frame[12] != 1 or len(frame) != size:
            raise ValueError(f"there is no whole frame at {at}")
        if crc32c(frame[4:]) != int.from_bytes(frame[:4], "little"):
            raise ValueError(f"the frame at {at} has another checksum")
        found = {
            "kind": frame[13],
            "partition": int.from_bytes(frame[20:24], "little"),
            "first_id": int.from_bytes(frame[24:32], "little"),
            "org": int.from_bytes(frame[32:40], "little"),
            "topic_hash": int.from_bytes(frame[40:56], "little"),
            "first_offset": int.from_bytes(frame[56:64], "little"),
            "count": int.from_bytes(frame[72:76], "little"),
            "segment": base,
            "position": at,
            "size": size,
            "role": 0,
        }
        if found["kind"] == RECORDS:
            # What the envelope says of the batch in it, the batch says too: base offset, last offset delta.
            said = int.from_bytes(frame[80:88], "big"), int.from_bytes(frame[103:107], "big") + 1
            if said != (found["first_offset"], found["count"]):
                raise ValueError(f"the batch in the frame at {at} says something else: {said}")
            found["role"] = role_of(frame[80:])
        yield found
        at += size


def role_of(batch: bytes) -> int:
    """Return the role of a batch: attributes are at 21, and in a marker the key is behind 5 bytes at 61.

    Those are size, attributes, timestamp, offset and size of the key, each small enough for one byte.
    """
    attributes = int.from_bytes(batch[21:23], "big")
    if attributes & 0x30 == 0x30:
        return {0: 3, 1: 2}.get(int.from_bytes(batch[68:70], "big"), 4)
    return 4 if attributes & 0x20 else attributes >> 4 & 1


def frames_of_index(data: bytes, base: int) -> Iterator[dict[str, Any]]:
    """Yield what the index of a segment says of its frames: an entry of 96 bytes each, little-endian.

    First id u64, first offset u64, org u64, topic hash of 16 bytes, partition u32, how many ids u32, segment
    u64, position u64, size u32, kind u8, role u8, producer epoch i16, producer id i64, largest timestamp i64,
    base sequence or coordinator epoch i32, CRC-32C u32 of the 92 bytes before.
    """
    for at in range(0, len(data), 96):
        entry = data[at : at + 96]
        if crc32c(entry[:92]) != int.from_bytes(entry[92:], "little"):
            raise ValueError(f"the entry at {at} has another checksum")
        yield {
            "first_id": int.from_bytes(entry[0:8], "little"),
            "first_offset": int.from_bytes(entry[8:16], "little"),
            "org": int.from_bytes(entry[16:24], "little"),
            "topic_hash": int.from_bytes(entry[24:40], "little"),
            "partition": int.from_bytes(entry[40:44], "little"),
            "count": int.from_bytes(entry[44:48], "little"),
            "segment": int.from_bytes(entry[48:56], "little"),
            "position": int.from_bytes(entry[56:64], "little"),
            "size": int.from_bytes(entry[64:68], "little"),
            "kind": entry[68],
            "role": entry[69],
        }


def frames(directory: Path, suffix: str) -> Iterator[dict[str, Any]]:
    """Yield the frames of all segments, in order, from the files with this suffix alone."""
    read = {"log": frames_of_log, "oidx": frames_of_index}[suffix]
    for base in sorted(int(path.stem) for path in directory.glob(f"*.{suffix}")):
        yield from read((directory / f"{base:020d}.{suffix}").read_bytes(), base)


def topics(found: Iterator[dict[str, Any]]) -> dict[str, dict[str, int]]:
    """Return where each virtual topic starts and ends, and the bytes of its frames that can be read.

    The end is the start and as many as there are ids. What lies below the start may be gone.
    """
    live: dict[str, list[dict[str, Any]]] = {}
    starts: dict[str, int] = {}
    for frame in found:
        key = f"{frame['org']}-{frame['topic_hash']}-{frame['partition']}"
        if frame["kind"] == ENDED:
            live.pop(key, None)
            starts.pop(key, None)
        elif frame["kind"] == LOG_START:
            starts[key] = max(starts.get(key, 0), frame["first_offset"])
            live.setdefault(key, [])
        else:
            live.setdefault(key, []).append(frame)
    totals = {}
    for key, mine in live.items():
        start = starts.get(key, mine[0]["first_offset"] if mine else 0)
        kept = [frame for frame in mine if frame["first_offset"] + frame["count"] > start]
        # Each begins where the one before ends: offsets are dense, whatever ids lie in between.
        for before, after in itertools.pairwise(kept):
            if before["first_offset"] + before["count"] != after["first_offset"]:
                raise ValueError(f"{key} has a gap before {after['first_offset']}")
        end = kept[-1]["first_offset"] + kept[-1]["count"] if kept else start
        totals[key] = {"start": start, "end": end, "bytes": sum(frame["size"] for frame in kept)}
    return totals


if __name__ == "__main__":
    for name, total in sorted(topics(frames(Path(sys.argv[2]), sys.argv[1])).items()):
        print(json.dumps({"topic": name, **total}))
