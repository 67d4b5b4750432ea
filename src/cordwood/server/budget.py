"""How much memory requests and responses of all connections may take together."""

from __future__ import annotations

from collections.abc import Callable


class Budget:
    """A number of bytes that many share. Used on the event loop only.

    Taking always succeeds, since what is taken is there already; who sees the budget exhausted stops making
    more of it, and is called when there is room again.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._waiting: list[Callable[[], None]] = []

    @property
    def exhausted(self) -> bool:
        """Whether no more should be taken."""
        return self.used >= self.limit

    @property
    def overdrawn(self) -> bool:
        """Whether so much was taken beyond the limit that somebody has to go."""
        return self.used > 2 * self.limit

    @property
    def left(self) -> int:
        """How much can be taken, 0 or more."""
        return max(self.limit - self.used, 0)

    def take(self, size: int) -> None:
        """Count *size* bytes more."""
        self.used += size

    def give(self, size: int) -> None:
        """Count *size* bytes less, and call who waits if there is room again."""
        assert size <= self.used
        self.used -= size
        # A quarter free, so that the first few bytes do not wake everyone for nothing.
        if self._waiting and self.used <= self.limit * 3 // 4:
            waiting, self._waiting = self._waiting, []
            for call in waiting:
                call()

    def when_room(self, call: Callable[[], None]) -> None:
        """Call *call*, once, when there is room again."""
        self._waiting.append(call)
