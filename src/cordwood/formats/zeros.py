"""Zeros after the last record: what preallocation and crashes leave."""

from __future__ import annotations

from cordwood.kernels import Buffer

_WINDOW = bytes(64 << 10)


def only_zeros(buffer: Buffer, start: int) -> bool:
    """Return whether nothing but zeros comes from *start* on. Fast enough for a gigabyte of them."""
    view = memoryview(buffer)
    for at in range(start, len(view), len(_WINDOW)):
        # Compared as bytes: a memoryview is compared, or walked, a byte at a time.
        window = bytes(view[at : at + len(_WINDOW)])
        if window != _WINDOW[: len(window)]:
            return False
    return True
