"""The time that a broker works for the requests of clients with a quota for it."""

from __future__ import annotations

import types
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from typing import Any, TypeVar

from cordwood.host import Clock
from cordwood.server.quotas.rate import Rate

#: No request makes its client wait longer, however much time it took: a pause of the machine may be in it.
WAIT_MS_MAX = 1000
_Result = TypeVar("_Result")


class RequestTime:
    """Counts the time for one request: steps on the loop, and work in a thread that the loop waits for.

    On the loop only, except `work`.
    """

    def __init__(self, rate: Rate, clock: Clock) -> None:
        """Begin. The unit of *rate* is nanoseconds."""
        self._rate = rate
        self._clock = clock
        self._since_ns: int | None = None
        self._worked_ns = 0

    def run(self, step: Callable[[], _Result]) -> _Result:
        """Run *step* and count its time. A step within a step is counted once."""
        if self._since_ns is not None:
            return step()
        self._since_ns = self._clock.monotonic_ns()
        try:
            return step()
        finally:
            self._count()
            self._since_ns = None

    def work(self, call: Callable[[], _Result]) -> _Result:
        """Run *call* in a thread; its time is counted with the next step on the loop."""
        since_ns = self._clock.monotonic_ns()
        try:
            return call()
        finally:
            self._worked_ns += self._clock.monotonic_ns() - since_ns

    def owed_ms(self) -> int:
        """Return the milliseconds that the client must wait, if it is answered now."""
        self._count()
        return min(self._rate.owed_ms(), WAIT_MS_MAX)

    def _count(self) -> None:
        now_ns, worked_ns = self._clock.monotonic_ns(), self._worked_ns
        self._worked_ns = 0
        if self._since_ns is not None:
            worked_ns += now_ns - self._since_ns
            self._since_ns = now_ns
        self._rate.use(worked_ns)

    async def run_all(self, begin: Callable[[], Coroutine[Any, Any, _Result]]) -> _Result:
        """Run the coroutine that *begin* returns and count the time of its steps, but not of its waiting."""
        return await self._steps(begin())

    @types.coroutine
    def _steps(self, steps: Coroutine[Any, Any, _Result]) -> Generator[Any, Any, _Result]:
        resume = partial(steps.send, None)
        while True:
            try:
                awaited = self.run(resume)
            except StopIteration as end:
                result: _Result = end.value
                return result
            try:
                resume = partial(steps.send, (yield awaited))
            except BaseException as error:
                resume = partial(steps.throw, error)
