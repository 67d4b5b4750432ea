"""How much memory requests and responses of all connections may take together."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock


class Budget:
    """A number of bytes that many share. Used on the event loop only, but for `reserve` and `release`.

    Taking always succeeds, since what is taken is there already; who sees the budget exhausted stops making
    more of it, and is called when there is room again. Responses that their clients do not take exhaust it
    for other responses only: requests are read all the same, or a few who do not read would hold up all.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._unsent = 0
        self._reserved = 0
        self._reserving = Lock()
        self._waiting: list[Callable[[], None]] = []

    @property
    def exhausted(self) -> bool:
        """Whether no more requests should be taken."""
        return self.used - self._unsent >= self.limit

    @property
    def overdrawn(self) -> bool:
        """Whether requests took so much beyond the limit that somebody has to go."""
        return self.used - self._unsent > 2 * self.limit

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
        if self._waiting and self.used - self._unsent <= self.limit * 3 // 4:
            waiting, self._waiting = self._waiting, []
            for call in waiting:
                call()

    def when_room(self, call: Callable[[], None]) -> None:
        """Call *call*, once, when there is room again."""
        self._waiting.append(call)

    def take_unsent(self, size: int) -> None:
        """Count *size* bytes more of a response that its client does not take."""
        self._unsent += size
        self.take(size)

    def give_unsent(self, size: int) -> None:
        """Count *size* bytes less of such a response."""
        assert size <= self._unsent
        self._unsent -= size
        self.give(size)

    def reserve(self, wanted: int, least: int) -> int:
        """Set aside what is left, up to *wanted* and no less than *least*, and return how much that is.

        For a response that is about to be made. May be called from any thread.
        """
        with self._reserving:
            size = min(wanted, max(self.left - self._reserved, least))
            self._reserved += size
            return size

    def release(self, size: int) -> None:
        """Give back *size* bytes that were set aside. May be called from any thread."""
        with self._reserving:
            self._reserved -= size
