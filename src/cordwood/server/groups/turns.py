"""Many short calls that must not keep the event loop from everyone else."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

#: How many calls run in one turn of the loop. Each is a request of a member or its answer, of about 0.1 ms.
EACH_TURN = 50


class Turns:
    """Runs calls at once, but at most `EACH_TURN` of them in one turn of the loop.

    The others wait for the next turns, in their order: when a large group rebalances, all its members ask and
    are answered at the same moment. On the loop only.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[Callable[[], None]] = deque()
        self._left = EACH_TURN
        self._scheduled = False

    def run(self, call: Callable[[], None]) -> None:
        """Run *call* now or in a later turn, after all calls before it."""
        self._schedule()
        if self._left and not self._waiting:
            self._left -= 1
            call()
        else:
            self._waiting.append(call)

    @property
    def is_waiting(self) -> bool:
        """Whether a call waits for its turn."""
        return bool(self._waiting)

    def run_later(self, call: Callable[[], None]) -> None:
        """Run *call*, which takes long, in one of the next turns, after all calls before it."""
        self._schedule()
        self._waiting.append(call)

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._begin_turn)

    def _begin_turn(self) -> None:
        self._scheduled, self._left = False, EACH_TURN
        while self._waiting and self._left:
            self._left -= 1
            call = self._waiting.popleft()
            if self._waiting:
                # Before the call, which may fail.
                self._schedule()
            call()

    def finish(self) -> None:
        """Run all calls that wait, now."""
        while self._waiting:
            self._waiting.popleft()()
