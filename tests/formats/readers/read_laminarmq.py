"""Read a laminarmq store by its dense index: a second reader, from the layout's tables alone.

Run it as ``python read_laminarmq.py STORE INDEX``; it prints a line of JSON for every record.
"""

from __future__ import annotations

import binascii
import json
import sys
from collections.abc import Iterator
from typing import Any


def little(data: bytes, at: int, size: int, signed: bool = False) -> int:
    """Return the little-endian number of *size* bytes at *at*."""
    return int.from_bytes(data[at : at + size], "little", signed=signed)


def records(store: bytes, index: bytes) -> Iterator[dict[str, Any]]:
    """Yield every record: the index has its checksum, length and position, 16 bytes after a marker of 16."""
    base = little(index, 0, 8)
    for number, at in enumerate(range(16, len(index), 16)):
        length, position = little(index, at + 8, 4), little(index, at + 12, 4)
        record = store[position : position + length]
        if binascii.crc32(record) != little(index, at, 8):
            raise ValueError(f"record {base + number} has another checksum")
        yield {"index": base + number, **parts(record)}


def parts(record: bytes) -> dict[str, Any]:
    """Take a record apart: metadata length, timestamp, flags, key, headers, value."""
    size = 4 + little(record, 0, 4)
    timestamp, flags, key_size = little(record, 4, 8, True), record[12], little(record, 13, 4, True)
    at, key = 17, None
    if key_size >= 0:
        key = record[at : at + key_size]
        at += key_size
    count, texts = little(record, at, 4), []
    at += 4
    for _ in range(2 * count):
        length = little(record, at, 4)
        texts.append(record[at + 4 : at + 4 + length])
        at += 4 + length
    if at != size:
        raise ValueError("the metadata does not end where it says")
    headers = [(name.decode(), value) for name, value in zip(texts[::2], texts[1::2], strict=True)]
    value = None if flags & 1 else record[size:]
    return {"timestamp_ms": timestamp, "key": key, "headers": headers, "value": value}


if __name__ == "__main__":
    with open(sys.argv[1], "rb") as store_file, open(sys.argv[2], "rb") as index_file:
        for each in records(store_file.read(), index_file.read()):
            print(json.dumps(each, default=bytes.hex))
