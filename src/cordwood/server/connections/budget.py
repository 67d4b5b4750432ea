"""How much memory requests and responses of all connections may take together."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock

#: Requests up to this size wait for nobody while there is room at all.
MEDIUM = 4 << 20
#: What one that may go on is expected to take before it is asked again.
WINDOW = 256 << 10


class MemoryClaim:
    """A request that has begun to come: how much memory it takes, and how many bytes complete it.

    *wake* is called when the rest of it may be read after all.
    """

    __slots__ = ("held", "missing", "wake")

    def __init__(self, wake: Callable[[], None]) -> None:
        self.wake = wake
        self.held = 0
        self.missing = 0


class Budget:
    """A number of bytes that many share. Used on the event loop only, but for `reserve` and `release`.

    Taking always succeeds, since what is taken is there already; who sees the budget exhausted stops making
    more of it, and is called when there is room again. Responses that their clients do not take exhaust it
    for other responses only: requests are read all the same, or a few who do not read would hold up all.

    Requests that have begun (`MemoryClaim`) hold memory until they are complete. Large ones share half of
    the budget; beyond that they wait in line, and the first in line is read to its end: there is always
    room for one. So half-sent requests hold up neither each other for ever nor small ones at all.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        #: How much of it is held by requests that are not complete.
        self.unfinished = 0
        self._unsent = 0
        self._reserved = 0
        self._reserving = Lock()
        self._waiting: list[Callable[[], None]] = []
        self._line: dict[MemoryClaim, None] = {}
        self._first: MemoryClaim | None = None

    @property
    def exhausted(self) -> bool:
        """Whether no more requests should be taken. What completes the first in line is spoken for."""
        promised = 0 if self._first is None else self._first.missing
        return self.used - self._unsent + promised >= self.limit

    @property
    def short(self) -> bool:
        """Whether anybody waits for memory."""
        return bool(self._line or self._waiting)

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
        if self._line:
            self._admit()
        # A quarter free, so that the first few bytes do not wake everyone for nothing.
        if self._waiting and self.used - self._unsent <= self.limit * 3 // 4:
            waiting, self._waiting = self._waiting, []
            for call in waiting:
                call()

    def when_room(self, call: Callable[[], None]) -> None:
        """Call *call*, once, when there is room again."""
        self._waiting.append(call)

    # --- requests that are not complete -----------------------------------------------------------

    def update(self, claim: MemoryClaim, held: int, missing: int) -> None:
        """Count a request that has begun as it is now; one that is complete or given up holds nothing."""
        grown = held - claim.held
        claim.held, claim.missing = held, missing
        self.unfinished += grown
        if not held:
            self._line.pop(claim, None)
            if self._first is claim:
                self._first = None
        if grown > 0:
            self.take(grown)
        elif grown < 0:
            self.give(-grown)

    def may_go_on(self, claim: MemoryClaim) -> bool:
        """Return whether more of a request may be read. If not, it is in line, and is woken in its turn."""
        if claim is self._first:
            return True
        if self._has_room_for(claim):
            self._line.pop(claim, None)
            return True
        self._line.setdefault(claim)
        self._appoint()
        return claim is self._first

    def _has_room_for(self, claim: MemoryClaim) -> bool:
        large = claim.held + claim.missing > MEDIUM
        return not self.exhausted and (not large or self.unfinished < self.limit // 2)

    def _appoint(self) -> MemoryClaim | None:
        """Let the first in line for which there is room in the end be the one that is read to its end.

        Return it, None if nobody was appointed now.
        """
        if self._first is not None:
            return None
        taken = self.used - self._unsent
        for claim in self._line:
            # Where half of it is free nobody waits for more: a request may be larger than the budget.
            if claim.missing <= MEDIUM or taken + claim.missing <= self.limit or taken <= self.limit // 2:
                self._first = claim
                del self._line[claim]
                return claim
        return None

    def _admit(self) -> None:
        """Wake those in line who may go on, no more of them than there is room for."""
        appointed = self._appoint()
        if appointed is not None:
            appointed.wake()
        room = min(self.limit - self.used + self._unsent, self.limit // 2)
        for claim in list(self._line)[: max(room // WINDOW, 1)]:
            if claim in self._line and self._has_room_for(claim):
                del self._line[claim]
                claim.wake()

    # --- responses --------------------------------------------------------------------------------

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
