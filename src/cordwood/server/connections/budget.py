"""The memory budget of requests and responses of all connections."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock

#: Requests up to this size do not wait in line while there is any room.
MEDIUM = 4 << 20
#: The bytes that an admitted request is expected to take before it is checked again.
WINDOW = 256 << 10


class MemoryClaim:
    """A partly received request: its memory, and the bytes that complete it.

    *wake* is called when the rest of a waiting request may be read.
    """

    __slots__ = ("held", "missing", "wake")

    def __init__(self, wake: Callable[[], None]) -> None:
        self.wake = wake
        self.held = 0
        self.missing = 0


class Budget:
    """A shared number of bytes. Used on the event loop only, except `reserve` and `release`.

    `take` always succeeds, because the memory is already allocated; a connection that finds the budget
    exhausted stops reading and is called when there is room again. Responses that clients do not read exhaust
    the budget for other responses only: requests are still read, or a few slow readers would block all
    clients.

    Partly received requests (`MemoryClaim`) hold memory until they are complete. Large ones share half of the
    budget; beyond that they wait in line, and the first in line is read completely: there is always room for
    one. So incomplete requests block each other for a limited time only, and never block small requests.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        #: The bytes held by incomplete requests.
        self.unfinished = 0
        self._unsent = 0
        self._reserved = 0
        self._reserving = Lock()
        self._waiting: list[Callable[[], None]] = []
        self._line: dict[MemoryClaim, None] = {}
        self._first: MemoryClaim | None = None

    @property
    def exhausted(self) -> bool:
        """Whether no more requests should be read. The bytes that complete the first in line are reserved."""
        promised = 0 if self._first is None else self._first.missing
        return self.used - self._unsent + promised >= self.limit

    @property
    def short(self) -> bool:
        """Whether any request waits for memory."""
        return bool(self._line or self._waiting)

    @property
    def overdrawn(self) -> bool:
        """Whether requests exceed the limit so far that a connection must be closed."""
        return self.used - self._unsent > 2 * self.limit

    @property
    def left(self) -> int:
        """The bytes that can be taken, 0 or more."""
        return max(self.limit - self.used, 0)

    def take(self, size: int) -> None:
        """Add *size* used bytes."""
        self.used += size

    def give(self, size: int) -> None:
        """Subtract *size* used bytes, and call the waiting callbacks if there is room again."""
        assert size <= self.used
        self.used -= size
        if self._line:
            self._admit()
        # A quarter must be free, so that the first few bytes do not wake all connections for nothing.
        if self._waiting and self.used - self._unsent <= self.limit * 3 // 4:
            waiting, self._waiting = self._waiting, []
            for call in waiting:
                call()

    def when_room(self, call: Callable[[], None]) -> None:
        """Call *call*, once, when there is room again."""
        self._waiting.append(call)

    # --- incomplete requests ----------------------------------------------------------------------

    def update(self, claim: MemoryClaim, held: int, missing: int) -> None:
        """Update the bytes of a claim. A request that is complete or given up holds nothing."""
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
        """Return whether more of a request may be read. If not, it waits in line until it is woken."""
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
        """Appoint the first claim in line that fits the budget as the one that is read completely.

        Return it, or None if no claim was appointed.
        """
        if self._first is not None:
            return None
        taken = self.used - self._unsent
        for claim in self._line:
            # If half of the budget is free, no claim waits: a request may be larger than the budget.
            if claim.missing <= MEDIUM or taken + claim.missing <= self.limit or taken <= self.limit // 2:
                self._first = claim
                del self._line[claim]
                return claim
        return None

    def _admit(self) -> None:
        """Wake as many claims in line as there is room for."""
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
        """Add *size* bytes of a response that its client does not read."""
        self._unsent += size
        self.take(size)

    def give_unsent(self, size: int) -> None:
        """Subtract *size* bytes of such a response."""
        assert size <= self._unsent
        self._unsent -= size
        self.give(size)

    def reserve(self, wanted: int, least: int) -> int:
        """Reserve the free bytes, at most *wanted* and at least *least*, and return their number.

        For a response that is about to be created. May be called from any thread.
        """
        with self._reserving:
            size = min(wanted, max(self.left - self._reserved, least))
            self._reserved += size
            return size

    def release(self, size: int) -> None:
        """Release *size* reserved bytes. May be called from any thread."""
        with self._reserving:
            self._reserved -= size
