"""The parts that all messages share: varints, tagged fields, and errors.

The readers take the frame and a position and return the position after the value. They raise IndexError if
the frame ends too early; each decoder converts that to :class:`MalformedMessage` in one place, where it knows
the field.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from cordwood.errors import MalformedMessage

#: The type of a received frame, and of each part of a frame to send.
WireBytes = bytes | bytearray | memoryview
#: Decodes a message that begins at a position of a frame.
Decode = Callable[[WireBytes, int], Any]
#: Encodes a message as a list of buffers, the first of which is always ``bytes``.
Encode = Callable[[Any], list[WireBytes]]

#: The topic id that means none.
NULL_ID = bytes(16)

#: The exceptions of a read past the end of a frame or of invalid text.
READ_ERRORS = (struct.error, IndexError, UnicodeDecodeError)
#: The exceptions of encoding an invalid value.
WRITE_ERRORS = (struct.error, AttributeError, TypeError, UnicodeEncodeError)

#: The one-byte varints by their value.
SHORT_VARINTS = tuple(bytes((value,)) for value in range(128))


def malformed(position: int, what: str, found: object) -> MalformedMessage:
    """Return the error to raise for the bytes at *position*."""
    return MalformedMessage(position=position, what=what, found=found)


def unreadable(error: Exception, position: int, what: str, size: int) -> MalformedMessage:
    """Return the error for one of ``READ_ERRORS`` at *position* of a frame of *size* bytes."""
    if isinstance(error, UnicodeDecodeError):
        return malformed(position, f"{what} is not UTF-8", f"{error.reason} at its byte {error.start}")
    position = min(position, size)
    return malformed(position, f"{what} goes on past the end", f"{size - position} bytes left")


def read_varint(data: WireBytes, position: int) -> tuple[int, int]:
    """Return the unsigned varint at *position*, of at most five bytes, and the position after it.

    Raises:
        IndexError: If the frame ends within it.
        MalformedMessage: If it does not end within five bytes or is over 32 bits.
    """
    value = data[position] & 0x7F
    end = position + 1
    if data[position] > 127:
        shift = 7
        while True:
            byte = data[end]
            end += 1
            value |= (byte & 0x7F) << shift
            if byte < 128:
                break
            shift += 7
            if shift > 28:
                raise malformed(position, "a varint of more than five bytes", bytes(data[position:end]).hex())
        if value > 0xFFFF_FFFF:
            raise malformed(position, "a varint over 32 bits", value)
    return value, end


def varint(value: int) -> bytes:
    """Return *value*, at least 0 and below 2**32, as an unsigned varint."""
    if value < 128:
        return SHORT_VARINTS[value]
    pieces = bytearray()
    while value > 127:
        pieces.append(value & 0x7F | 0x80)
        value >>= 7
    pieces.append(value)
    return bytes(pieces)


def read_tag_count(data: WireBytes, position: int) -> tuple[int, int]:
    """Return the number of tagged fields at *position*, and the position of the first."""
    count, first = read_varint(data, position)
    # A tagged field has at least a tag and a size.
    if count * 2 > len(data) - first:
        raise malformed(position, "more tagged fields than bytes are left", count)
    return count, first


def read_tag(data: WireBytes, position: int, previous: int) -> tuple[int, int, int]:
    """Return the tag at *position*, where its bytes start and where they end.

    Raises:
        IndexError: If the frame ends within tag or size.
        MalformedMessage: If the tag does not come after *previous*, or its bytes do not fit the frame.
    """
    tag, start = read_varint(data, position)
    if tag <= previous:
        raise malformed(position, f"a tagged field after {previous}, out of order", tag)
    size, start = read_varint(data, start)
    if size > len(data) - start:
        raise malformed(position, f"tagged field {tag} goes on past the end", f"{size} bytes")
    return tag, start, start + size


def skip_tags(data: WireBytes, position: int) -> int:
    """Return the position after the tagged fields that begin with their count at *position*.

    Unknown fields come from newer peers and are not an error.
    """
    count, position = read_tag_count(data, position)
    tag = -1
    for _ in range(count):
        tag, _, position = read_tag(data, position, tag)
    return position
