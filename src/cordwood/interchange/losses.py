"""What could not be kept on the way from one system to another, counted."""

from __future__ import annotations


class Losses:
    """Counts by name; the names are those of things, so that a list of them reads as one."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def add(self, what: str, count: int = 1) -> None:
        """Count *what* as not kept."""
        if count:
            self._counts[what] = self._counts.get(what, 0) + count

    def lines(self) -> tuple[str, ...]:
        """Return a line for each thing that was not kept, with how often."""
        return tuple(f"{what}: {count}" for what, count in self._counts.items())
