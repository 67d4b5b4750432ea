"""Numbers in sentences for people."""

from __future__ import annotations


def counted(count: int, noun: str) -> str:
    """Return a number with its noun: ``1 partition``, ``2 partitions``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def bytes_text(size: int) -> str:
    """Return *size* for people: ``1.5 GiB``."""
    amount = float(size)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "bytes" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"
