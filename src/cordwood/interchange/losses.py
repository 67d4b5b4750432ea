"""Count the details that an import or export could not keep."""

from __future__ import annotations


class Losses:
    """Counts by name; names are nouns, so that they can be listed."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def add(self, what: str, count: int = 1) -> None:
        """Count *what* as not kept."""
        if count:
            self._counts[what] = self._counts.get(what, 0) + count

    def lines(self) -> tuple[str, ...]:
        """Return a line for each lost detail, with its count."""
        return tuple(f"{what}: {count}" for what, count in self._counts.items())
