"""The metadata of laminarmq's records: Cordwood's layout, or that of the program that wrote the record.

Written against docs/formats/laminarmq.md, independent of the code that writes records.
"""

from __future__ import annotations

import struct

LAMINARMQ_HEAD = struct.Struct(
    "<"
    "I"  # metadata length
    "q"  # timestamp, milliseconds
    "B"  # flags: bit 0, the value is null
    "i"  # key length, -1 for none
)
LAMINARMQ_COUNT = struct.Struct("<I")
assert (LAMINARMQ_HEAD.size, LAMINARMQ_COUNT.size) == (17, 4)


def own_metadata_problem(data: memoryview) -> str | None:
    """Return why the metadata at the beginning of *data* is not in Cordwood's layout, None if it is."""
    if len(data) < LAMINARMQ_HEAD.size:
        return f"a record of {len(data)} bytes"
    length, _, flags, key_bytes = LAMINARMQ_HEAD.unpack_from(data)
    end = LAMINARMQ_COUNT.size + length
    if end > len(data):
        return f"a length of {length} in a record of {len(data)} bytes"
    if flags > 1 or (flags and end != len(data)):
        return f"flags {flags:#04x} and a value of {len(data) - end} bytes"
    if key_bytes < -1:
        return f"a key of {key_bytes} bytes"
    try:
        at = LAMINARMQ_HEAD.size + max(key_bytes, 0)
        (headers,) = LAMINARMQ_COUNT.unpack_from(data[:end], at)
        at += LAMINARMQ_COUNT.size
        for _ in range(headers):
            for text in (True, False):
                (size,) = LAMINARMQ_COUNT.unpack_from(data[:end], at)
                start, at = at + LAMINARMQ_COUNT.size, at + LAMINARMQ_COUNT.size + size
                if text and at <= end:
                    bytes(data[start:at]).decode()
    except (struct.error, UnicodeDecodeError) as error:
        return str(error)
    return None if at == end else f"{at} bytes of metadata where its length says {end}"
