"""A limit on the stored bytes of an org."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable

from cordwood.host import Clock

#: Before a batch is refused, the stored bytes are counted again unless the last count is younger than this.
RECOUNT_NS = 1_000_000_000
#: The interval of counts while no batch is refused.
COUNT_AGAIN_NS = 60_000_000_000
_LOGGER = logging.getLogger("cordwood.server")

Count = Callable[[], int]
RunUsageWork = Callable[[Callable[[], int], Callable[["int | Exception"], None]], None]
Decide = Callable[[bool], None]


class StoredBytes:
    """A limit on the stored bytes of an org. On the loop only, except *count*.

    Appended bytes are added to the last count; bytes freed by retention or deletion are found by another
    count, in a thread. No batch is refused on an old count. Requests that need a new count wait in a queue,
    so that the batches of a producer stay in order; all requests wait for the first count.
    """

    def __init__(self, limit: int, count: Count, run_in_thread: RunUsageWork, clock: Clock) -> None:
        self.limit = limit
        self._count = count
        self._run_in_thread = run_in_thread
        self._clock = clock
        self._stored: int | None = None
        self._counted_ns = 0
        self._counting = False
        self._outdated = False
        self._added = 0
        # Bytes that are admitted and neither appended nor given up: a count may or may not include them.
        self._under_way = 0
        self._line: deque[tuple[int, Decide]] = deque()

    def admit(self, size: int, decide: Decide) -> Callable[[], None] | None:
        """Call *decide*, now or later, with whether *size* more bytes may be stored, and add them if so.

        After admission the caller must call `settle`. Returns None if *decide* was called, else a function
        that cancels the request.
        """
        turn = (size, decide)
        if not self._line and self._try(turn, last_word=False):
            if self._clock.monotonic_ns() - self._counted_ns >= COUNT_AGAIN_NS:
                self._recount()
            return None
        self._line.append(turn)
        self._recount()
        return lambda: self._leave(turn)

    def _leave(self, turn: tuple[int, Decide]) -> None:
        if turn in self._line:
            self._line.remove(turn)

    def settle(self, size: int, refused: int) -> None:
        """Note that *size* admitted bytes were appended, except *refused* of them."""
        self._under_way -= size
        self._added -= refused
        if self._stored is not None:
            self._stored -= refused

    def count_again(self) -> None:
        """Note that the stored bytes changed by an unknown amount: a count is due."""
        self._counted_ns = -COUNT_AGAIN_NS
        self._outdated = True

    def _try(self, turn: tuple[int, Decide], *, last_word: bool) -> bool:
        """Decide if the current count allows a decision; return whether it did."""
        size, decide = turn
        if self._stored is None:
            return False
        admitted = self._stored + size <= self.limit
        recent = self._clock.monotonic_ns() - self._counted_ns < RECOUNT_NS
        if not admitted and not last_word and not recent:
            return False
        if admitted:
            self._stored += size
            self._added += size
            self._under_way += size
        decide(admitted)
        return True

    def _recount(self) -> None:
        if not self._counting:
            self._counting = True
            self._outdated = False
            self._added = self._under_way
            self._run_in_thread(self._count, self._counted)

    def _counted(self, result: int | Exception) -> None:
        self._counting = False
        if isinstance(result, Exception):
            # Continue with the old count: waiting requests must not wait forever.
            _LOGGER.warning("the stored bytes of an org could not be counted: %s", result)
            self._stored = self._stored or 0
        else:
            # The count may already include some bytes added since: an overestimate is the safe error.
            self._stored = result + self._added
        if self._outdated and self._line:
            # Data was deleted during the count, maybe by a client that waits for it.
            self._recount()
            return
        if not self._outdated:
            self._counted_ns = self._clock.monotonic_ns()
        line, self._line = self._line, deque()
        for turn in line:
            self._try(turn, last_word=True)
