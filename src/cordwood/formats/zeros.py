"""Zeros after the last record, left by preallocation and crashes."""

from __future__ import annotations

from cordwood.kernels import Buffer

_WINDOW = bytes(64 << 10)


def only_zeros(buffer: Buffer, start: int) -> bool:
    """Return whether there are only zeros from *start* on. Fast enough for a gigabyte."""
    view = memoryview(buffer)
    for at in range(start, len(view), len(_WINDOW)):
        # Compared as bytes: a memoryview would be compared byte by byte.
        window = bytes(view[at : at + len(_WINDOW)])
        if window != _WINDOW[: len(window)]:
            return False
    return True
