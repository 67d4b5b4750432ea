"""Every bit of some bytes, wrong once: how many of those errors a reader finds."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from cordwood.errors import FrameError


def flipped(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield *data* with each of its bits turned, and the byte that it is in."""
    for bit in range(8 * len(data)):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        yield bit // 8, bytes(changed)


def undetected(data: bytes, read: Callable[[bytes], object]) -> list[int]:
    """Return the bytes in which a turned bit goes unnoticed: *read* neither fails nor gives what it gave."""
    sound, missed, noticed = read(data), [], 0
    for byte, changed in flipped(data):
        try:
            found = read(changed)
        except FrameError:
            noticed += 1
        else:
            assert found != sound, f"a turned bit in byte {byte} changes nothing that is read"
            missed.append(byte)
    assert noticed + len(missed) == 8 * len(data)
    print(f"{noticed} of {8 * len(data)} single-bit errors detected")
    return missed
