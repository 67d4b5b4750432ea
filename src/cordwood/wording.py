"""Numbers and names in sentences for people."""

from __future__ import annotations

from collections.abc import Collection

#: Among more names than this, only those with the same first letter are compared.
_COMPARED_MAX = 2000


def nearest(name: str, names: Collection[str]) -> str | None:
    """Return the one of *names* that was probably meant by *name*, None if none is similar."""
    # Loaded here, because most programs never need a suggestion.
    import difflib

    if len(names) > _COMPARED_MAX:
        names = [each for each in names if each[:1] == name[:1]][:_COMPARED_MAX]
    return next(iter(difflib.get_close_matches(name, sorted(names), n=1, cutoff=0.7)), None)


def counted(count: int, noun: str) -> str:
    """Return a number with its noun: ``1 partition``, ``2 partitions``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def counted_topics(count: int, internal: int) -> str:
    """Return a number of topics and how many of them are internal: ``3 topics (1 internal)``."""
    return f"{counted(count, 'topic')}{f' ({internal:,} internal)' if internal else ''}"


def bytes_text(size: int) -> str:
    """Return *size* for people: ``1.5 GiB``."""
    amount = float(size)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "bytes" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"
