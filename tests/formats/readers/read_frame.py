"""Read a segment of framed records: a second reader, from the table of the layout alone.

Run it as ``python read_frame.py FILE``; it prints a line of JSON for every record.
"""

from __future__ import annotations

import binascii
import json
import sys
from collections.abc import Iterator
from typing import Any


def records(data: bytes) -> Iterator[dict[str, Any]]:
    """Yield every record; magic, checksum and both lengths must agree. All numbers are little-endian."""
    at = 0
    while at < len(data):

        def number(start: int, size: int, signed: bool = False, at: int = at) -> int:
            return int.from_bytes(data[at + start : at + start + size], "little", signed=signed)

        if number(0, 4) != 0xB10B5E01 or number(4, 2) != 1:
            raise ValueError(f"no frame at {at}")
        flags, key_size, value_size = number(6, 2), number(24, 4), number(28, 4)
        size = 40 + key_size + value_size
        if number(size - 4, 4) != size:
            raise ValueError(f"the frame at {at} has another length at its end")
        if binascii.crc32(data[at : at + size - 8]) != number(size - 8, 4):
            raise ValueError(f"the frame at {at} has another checksum")
        key: bytes | None = data[at + 32 : at + 32 + key_size]
        if key_size == 0 and not flags & 2:
            key = None
        value: bytes | None = data[at + 32 + key_size : at + 32 + key_size + value_size]
        if flags & 1:
            value = None
        yield {
            "offset": number(8, 8, True),
            "timestamp_ms": number(16, 8, True),
            "key": key,
            "value": value,
        }
        at += size


if __name__ == "__main__":
    with open(sys.argv[1], "rb") as file:
        for record in records(file.read()):
            shown = {name: each.hex() if isinstance(each, bytes) else each for name, each in record.items()}
            print(json.dumps(shown))
