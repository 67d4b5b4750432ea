"""Checks of positions and read-only views, shared by all reference kernels."""

from __future__ import annotations

from cordwood.kernels.layout import (
    Buffer,
)


def readonly(source: Buffer, start: int, stop: int) -> Buffer:
    """Return bytes [start, stop) of *source* as an object that C functions accept like ``bytes``."""
    check_bounds(source, start, stop)
    return bytes(memoryview(source)[start:stop])


def check_bounds(buffer: Buffer, start: int, stop: int) -> None:
    """Raise IndexError unless [start, stop) lies within *buffer*."""
    if not 0 <= start <= stop <= len(buffer):
        raise IndexError(f"[{start}, {stop}) is not within {len(buffer)} bytes")
