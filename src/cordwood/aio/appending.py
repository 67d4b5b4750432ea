"""Appends of many tasks through one thread, which share syncs.

The writer takes all appends that wait, writes their frames in the order of the calls, syncs each partition
that was written to once, and then answers all of them. What comes meanwhile is the next round.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple, TypeVar

from cordwood.aio.calls import post, retrieve, settle_future
from cordwood.embedded import TopicWriter, UnsettledAppend
from cordwood.errors import LogClosed
from cordwood.host import Crew, Host, closing_on_failure
from cordwood.storage.log import WritablePartition

Result = TypeVar("Result")

#: Threads that sync, if a round has more than one partition.
SYNC_THREADS = 2
#: The largest number of appends in a round: who came first does not wait for everybody's frames.
ROUND_APPENDS_MAX = 4096


class AppendState(Enum):
    """How far an append is."""

    WAITING = 1
    TAKEN = 2
    WITHDRAWN = 3


class WrittenFrames:
    """The frames that one append has written, and that must be settled before it is answered."""

    def __init__(self) -> None:
        self.written: dict[WritablePartition, tuple[TopicWriter, UnsettledAppend]] = {}
        #: The offset up to which a partition must be synced, whatever its sync policy.
        self.durable: dict[WritablePartition, int] = {}

    def add(self, writer: TopicWriter, written: UnsettledAppend) -> UnsettledAppend:
        """Note a frame and return it."""
        self.written[written.log] = (writer, written)
        return written


class NextStep(NamedTuple):
    """The result of an append that continues in the next round, once its frames are settled.

    *call* gets the frames of that round, and the exception if settling has failed.
    """

    call: Callable[[WrittenFrames, BaseException | None], object]


class _QueuedAppend:
    """One append and who waits for it."""

    __slots__ = ("frames", "future", "outcome", "state", "write")

    def __init__(self, write: Callable[[WrittenFrames], object], future: asyncio.Future[Any]) -> None:
        self.write = write
        self.future = future
        self.state = AppendState.WAITING
        self.frames = WrittenFrames()
        self.outcome: object = None

    def go_on(self, step: NextStep, failure: BaseException | None) -> None:
        """Continue with *step* in the next round."""
        self.write = lambda frames: step.call(frames, failure)
        self.frames = WrittenFrames()
        self.outcome = None


class AppendQueue:
    """The appends that wait, and the writer thread. `run` is called on the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, host: Host, on_end: Callable[[], None]) -> None:
        """Start the threads. *on_end* is the last call of the writer thread, after `end`.

        Raises:
            ResourcesExhausted: If a thread cannot be started. None is left then.
        """
        self._loop = loop
        self._on_end = on_end
        self._ending = False
        self._waiting: list[_QueuedAppend] = []
        self._arrived = host.new_condition()
        self._syncers = Crew("aio-sync", SYNC_THREADS, host)
        with closing_on_failure(self._syncers):
            host.start_thread(self._work, "aio-writer")

    async def run(self, write: Callable[[WrittenFrames], Result]) -> Result:
        """Call *write* in the writer thread and return its result once its frames are settled.

        If the task is cancelled before the writer comes to it, *write* is never called. Afterwards it is
        called and its frames are settled all the same. If *write* returns a `NextStep`, the result is that of
        the last step.

        Raises:
            LogClosed: If the queue has ended.
        """
        future: asyncio.Future[Result] = self._loop.create_future()
        job = _QueuedAppend(write, future)
        with self._arrived:
            if self._ending:
                raise LogClosed("the log is closed")
            self._waiting.append(job)
            self._arrived.notify()
        try:
            return await future
        except asyncio.CancelledError:
            with self._arrived:
                if job.state is AppendState.WAITING:
                    job.state = AppendState.WITHDRAWN
            retrieve(future)
            raise

    def end(self) -> None:
        """Let the writer finish all appends and end. Does not wait. Idempotent."""
        with self._arrived:
            self._ending = True
            self._arrived.notify()

    # --- the writer -------------------------------------------------------------------------------

    def _work(self) -> None:
        while taken := self._take():
            self._perform(taken)
        self._syncers.close()
        self._on_end()

    def _take(self) -> list[_QueuedAppend]:
        """Return the appends of the next round, none if there will be no more."""
        with self._arrived:
            while not self._waiting and not self._ending:
                self._arrived.wait()
            taken = self._waiting[:ROUND_APPENDS_MAX]
            del self._waiting[:ROUND_APPENDS_MAX]
        return taken

    def _perform(self, appends: Sequence[_QueuedAppend]) -> None:
        every = WrittenFrames()
        done = [append for append in appends if self._write(append)]
        for append in done:
            every.written |= append.frames.written
            for log, offset in append.frames.durable.items():
                every.durable[log] = max(offset, every.durable.get(log, 0))
        failures = self._settle(every)
        continued: list[_QueuedAppend] = []
        for append in done:
            failure = _failure_of(append.frames, failures) if failures else None
            if isinstance(append.outcome, NextStep):
                append.go_on(append.outcome, failure)
                continued.append(append)
            elif failure is not None and not isinstance(append.outcome, BaseException):
                append.outcome = failure
        if continued:
            with self._arrived:
                # Before all others: what they have begun must be finished, also when the queue ends.
                self._waiting[:0] = continued
            done = [append for append in done if append not in continued]
        post(self._loop, lambda: _answer(done))

    def _write(self, append: _QueuedAppend) -> bool:
        """Write the frames of *append*, unless it was withdrawn; return whether they were."""
        with self._arrived:
            if append.state is AppendState.WITHDRAWN:
                return False
            append.state = AppendState.TAKEN
        try:
            append.outcome = append.write(append.frames)
        except BaseException as error:
            append.outcome = error
        return True

    def _settle(self, every: WrittenFrames) -> dict[WritablePartition, BaseException]:
        """Settle the last frame of each partition, which settles those before it; return what failed."""
        logs = list(dict.fromkeys((*every.written, *every.durable)))

        def settle(log: WritablePartition) -> BaseException | None:
            try:
                if log in every.written:
                    writer, written = every.written[log]
                    writer.settle(written)
                if log in every.durable:
                    log.commit(every.durable[log])
            except BaseException as error:
                return error
            return None

        found = [settle(log) for log in logs] if len(logs) < 2 else self._syncers.map(settle, logs)
        return {log: error for log, error in zip(logs, found, strict=True) if error is not None}


def _failure_of(
    frames: WrittenFrames, failures: Mapping[WritablePartition, BaseException]
) -> BaseException | None:
    """Return the failure of a partition that *frames* are in, or None."""
    return next((failures[log] for log in (*frames.written, *frames.durable) if log in failures), None)


def _answer(appends: Sequence[_QueuedAppend]) -> None:
    """Answer the tasks that wait. On the loop."""
    for append in appends:
        settle_future(append.future, append.outcome)
