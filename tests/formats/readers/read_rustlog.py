"""Read a RustLog segment: a second reader, from the table of its documentation alone.

Run it as ``python read_rustlog.py FILE``; it prints a line of JSON for every record.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any


def records(data: bytes) -> Iterator[dict[str, Any]]:
    """Yield every record of a segment: length u32, offset u64, timestamp u64 in microseconds, payload."""
    at = 0
    while at < len(data):
        length = int.from_bytes(data[at : at + 4], "big")
        offset = int.from_bytes(data[at + 4 : at + 12], "big")
        timestamp = int.from_bytes(data[at + 12 : at + 20], "big")
        payload = data[at + 20 : at + 20 + length]
        if len(payload) != length:
            raise ValueError(f"the record at {at} is cut short")
        yield {"offset": offset, "timestamp_us": timestamp, "value": payload}
        at += 20 + length


def index(data: bytes) -> list[tuple[int, int]]:
    """Return the entries of a sparse index: offset u64, position u64."""
    return [
        (int.from_bytes(data[at : at + 8], "big"), int.from_bytes(data[at + 8 : at + 16], "big"))
        for at in range(0, len(data), 16)
    ]


if __name__ == "__main__":
    with open(sys.argv[1], "rb") as file:
        for record in records(file.read()):
            print(json.dumps(record | {"value": record["value"].hex()}))
