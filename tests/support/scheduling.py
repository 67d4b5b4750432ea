"""A host whose threads run one at a time, in an order that a seed decides.

Each is a thread of the system, but all of them wait for their turn: one gives it up only where it waits for
another, or wakes one. So a run is the same each time that it gets the same seed. There is no time but that
which a wait with a limit takes: it passes when no thread can run otherwise.
"""

from __future__ import annotations

import asyncio
import random
import selectors
from collections import deque
from collections.abc import Callable, Coroutine
from threading import Event, Thread
from typing import Any

from cordwood.host import Host

#: How long a turn may take before a test gives up, in seconds of the machine.
TURN_SECONDS_MAX = 60.0


class VirtualClock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.ns = 1_700_000_000_000_000_000

    def now_ms(self) -> int:
        return self.ns // 1_000_000

    def now_us(self) -> int:
        return self.ns // 1_000

    def monotonic_ns(self) -> int:
        return self.ns


class _Runner:
    """A thread under the scheduler; the test itself is one too."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.turn = Event()
        self.ready: Callable[[], bool] = lambda: True
        self.until_ns: int | None = None
        self.ended = False


class Scheduler:
    """Decides who runs. `trace` has the name of each that got a turn."""

    def __init__(self, seed: int) -> None:
        self.trace: list[str] = []
        self.clock = VirtualClock()
        self._random = random.Random(seed)
        self._current = _Runner("test")
        self._runners = [self._current]
        #: The only ones that may run; see `wait_for_test`.
        self._pair: list[_Runner] = []
        #: Who waits for what never comes, once nobody can run. The test is told.
        self._stuck: str | None = None
        self.host = Host(
            clock=self.clock,
            start_thread=self._start,
            new_queue=lambda: ScheduledQueue(self),
            new_condition=lambda: ScheduledCondition(self),
        )

    def _start(self, target: Callable[[], None], name: str) -> ScheduledThread:
        runner = _Runner(name)

        def run() -> None:
            assert runner.turn.wait(TURN_SECONDS_MAX)
            runner.turn.clear()
            try:
                target()
            finally:
                runner.ended = True
                self._runners.remove(runner)
                self._give_turn()

        self._runners.append(runner)
        thread = Thread(target=run, name=f"scheduled-{name}", daemon=True)
        thread.start()
        return ScheduledThread(self, runner, thread)

    def _give_turn(self) -> _Runner:
        """Wake one of those that can run; if none can, let time pass until one can."""
        able = [each for each in self._pair or self._runners if each.ready()]
        if not able:
            limited = [each.until_ns for each in self._runners if each.until_ns is not None]
            if not limited:
                return self._tell_test()
            self.clock.ns = max(self.clock.ns, min(limited))
            now_ns = self.clock.ns
            able = [each for each in self._runners if each.until_ns is not None and each.until_ns <= now_ns]
        chosen = self._random.choice(able)
        self.trace.append(chosen.name)
        self._current = chosen
        chosen.turn.set()
        return chosen

    def _tell_test(self) -> _Runner:
        """Wake the test, whose wait fails: no thread can run, and no time that passes would change that."""
        self._stuck = f"all wait: {[each.name for each in self._runners]}"
        self._current = self._runners[0]
        self._current.turn.set()
        return self._current

    def quiesce(self) -> None:
        """Give the turn up until all others wait for something."""
        me = self._current
        self.wait(lambda: not any(each.ready() for each in self._runners if each is not me))

    def wait_for_test(self, ready: Callable[[], bool]) -> None:
        """Give the turn to the test alone until *ready*.

        The caller may hold locks of the machine: another thread that wants one would keep its turn for ever.
        """
        self._pair = [self._runners[0], self._current]
        self.wait(ready)
        self._pair = []

    def wait(self, ready: Callable[[], bool] = lambda: True, timeout: float | None = None) -> bool:
        """Give the turn up until *ready*; return whether it was within *timeout* seconds."""
        me = self._current
        me.ready = ready
        me.until_ns = None if timeout is None else self.clock.ns + int(timeout * 1e9)
        self._give_turn()
        assert me.turn.wait(TURN_SECONDS_MAX), f"{me.name} got no turn"
        me.turn.clear()
        me.until_ns = None
        if self._stuck is not None:
            stuck, self._stuck = self._stuck, None
            raise AssertionError(stuck)
        return ready()


class ScheduledLoop(asyncio.SelectorEventLoop):
    """An event loop whose thread is one of those under the scheduler: where it would block, it gives way."""

    def __init__(self, scheduler: Scheduler) -> None:
        loop = self

        class Selector(selectors.DefaultSelector):
            def select(self, timeout: float | None = None) -> Any:
                # A timer is only the limit of the test: if nobody can run, the scheduler says so.
                idle = timeout is None or timeout > 0
                scheduler.wait(lambda: not idle or bool(loop._ready))  # type: ignore[attr-defined]
                return super().select(0)

        super().__init__(Selector())


def run_scheduled(main: Callable[[Scheduler], Coroutine[Any, Any, None]], seed: int) -> None:
    """Run *main* on an event loop under a scheduler, to the end of all threads that it started."""
    scheduler = Scheduler(seed)
    with asyncio.Runner(loop_factory=lambda: ScheduledLoop(scheduler)) as runner:
        runner.run(main(scheduler))
        scheduler.wait(lambda: len(scheduler._runners) == 1)


class ScheduledThread:
    def __init__(self, scheduler: Scheduler, runner: _Runner, thread: Thread) -> None:
        self._scheduler = scheduler
        self._runner = runner
        self._thread = thread

    def join(self) -> None:
        self._scheduler.wait(lambda: self._runner.ended)
        self._thread.join(TURN_SECONDS_MAX)

    def is_alive(self) -> bool:
        return not self._runner.ended


class ScheduledQueue:
    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._items: deque[Any] = deque()

    def put(self, item: Any, /) -> None:
        self._items.append(item)
        self._scheduler.wait()

    def get(self) -> Any:
        self._scheduler.wait(lambda: bool(self._items))
        return self._items.popleft()


class ScheduledCondition:
    """Nobody runs beside the one that has its turn, which it keeps while it holds the lock."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._waiting: deque[list[bool]] = deque()

    def __enter__(self) -> bool:
        return True

    def __exit__(self, *raised: Any) -> None:
        if raised[0] is None:
            self._scheduler.wait()

    def wait(self, timeout: float | None = None) -> bool:
        notified = [False]
        self._waiting.append(notified)
        self._scheduler.wait(lambda: notified[0], timeout)
        if not notified[0]:
            self._waiting.remove(notified)
        return notified[0]

    def notify(self) -> None:
        if self._waiting:
            self._waiting.popleft()[0] = True
