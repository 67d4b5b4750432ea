"""Read Kimberlite's segments and follow their chain: a second reader, from its documentation's tables alone.

Run it as ``python read_kimberlite.py SEGMENT…``, in order; it prints a line of JSON for every record.
"""

from __future__ import annotations

import binascii
import hashlib
import json
import sys
from collections.abc import Iterator
from typing import Any

import zstandard


def records(segments: list[bytes]) -> Iterator[dict[str, Any]]:
    """Yield every record of the segments; checksums must be right and each carry the hash of the one before.

    A record is length u32 (of metadata and data), CRC-32 u32, previous hash, then position u64, tenant u64,
    stream u64, timestamp i64, event type u16, six bytes reserved, and data, which may be zstd.
    """
    previous = bytes(32)
    for data in segments:
        at = 0
        while any(data[at:]):
            length = int.from_bytes(data[at : at + 4], "little")
            record = data[at : at + 40 + length]
            if len(record) != 40 + length:
                raise ValueError(f"the record at {at} is cut short")
            if binascii.crc32(record[8:]) != int.from_bytes(record[4:8], "little"):
                raise ValueError(f"the record at {at} has another checksum")
            if record[8:40] != previous:
                raise ValueError(f"the record at {at} does not follow the one before")
            value = record[80:]
            if record[74] == 1:
                value = zstandard.ZstdDecompressor().decompressobj().decompress(value)
            yield {
                "position": int.from_bytes(record[40:48], "little"),
                "tenant": int.from_bytes(record[48:56], "little"),
                "stream": int.from_bytes(record[56:64], "little"),
                "timestamp_us": int.from_bytes(record[64:72], "little", signed=True),
                "event_type": int.from_bytes(record[72:74], "little"),
                "compressed": record[74] == 1,
                "value": value,
            }
            previous = hashlib.sha256(record).digest()
            at += len(record)


if __name__ == "__main__":
    contents = []
    for path in sys.argv[1:]:
        with open(path, "rb") as file:
            contents.append(file.read())
    for each in records(contents):
        print(json.dumps(each | {"value": each["value"].hex()}))
