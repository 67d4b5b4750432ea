"""Appending and syncing off the event loop: one thread writes, one makes durable, many share each sync.

Produce requests of all connections go through here in the order in which they came. The writer checks and
appends their batches; the committer syncs every partition that was written to since its last round and
answers all who waited for that together. The loop never waits for either.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Condition, Thread
from typing import NamedTuple

from cordwood.broker.node import Node, Placed
from cordwood.clock import Clock
from cordwood.errors import CordwoodError, LogFailed
from cordwood.storage.virtual_log import AnyLog

#: Partitions are synced by this many threads when a round has more than one of them.
SYNC_THREADS = 8
_LOGGER = logging.getLogger("cordwood.server")


class Batch(NamedTuple):
    """A batch for one partition, in a buffer that may be changed."""

    topic: str
    partition: int
    data: memoryview
    topic_id: str | None = None


Outcome = Placed | Exception
"""Where a batch was put, or why it was not."""


class Advance(NamedTuple):
    """A partition has more to read than before."""

    topic: str
    partition: int
    size: int


class Job:
    """The batches of one request, and what became of them."""

    __slots__ = ("batches", "done", "outcomes", "wait")

    def __init__(
        self, batches: Sequence[Batch], wait: bool, done: Callable[[Sequence[Outcome]], None]
    ) -> None:
        self.batches = batches
        self.wait = wait
        self.done = done
        self.outcomes: list[Outcome] = []

    def let_go(self) -> Callable[[Sequence[Outcome]], None]:
        """Return whom to tell, and hold nothing of the request any more; who waits still knows the job."""
        done, self.done, self.batches = self.done, _tell_nobody, ()
        return done

    def cancel(self) -> None:
        """Append nothing more of it: nobody waits for an answer, and what it holds is no longer counted."""
        self.batches = ()


def _tell_nobody(outcomes: Sequence[Outcome]) -> None:
    """Take the place of who was told already."""


class Pipeline:
    """The two threads. `submit` is called on the event loop, and so is everything *post* is given."""

    def __init__(
        self,
        node: Node,
        clock: Clock,
        post: Callable[[Callable[[], None]], None],
        on_advance: Callable[[Advance], None],
        on_failure: Callable[[LogFailed], None],
    ) -> None:
        self._node = node
        self._clock = clock
        self._post = post
        self._on_advance = on_advance
        self._on_failure = on_failure
        self._failure: LogFailed | None = None
        self._stopping = False
        self._written = False
        self._incoming: list[Job] = []
        self._arrived = Condition()
        self._waiting: list[Job] = []
        self._dirty: dict[AnyLog, _Dirty] = {}
        self._due = Condition()
        self._syncers = ThreadPoolExecutor(SYNC_THREADS, "cordwood-sync")
        self._writer = Thread(target=self._write_all, name="cordwood-writer", daemon=True)
        self._committer = Thread(target=self._commit_all, name="cordwood-committer", daemon=True)
        self._writer.start()
        self._committer.start()

    def submit(self, batches: Sequence[Batch], acks: int, done: Callable[[Sequence[Outcome]], None]) -> Job:
        """Append *batches*, then call *done* on the loop: after the sync where *acks* is -1, else before."""
        job = Job(batches, acks == -1, done)
        with self._arrived:
            self._incoming.append(job)
            self._arrived.notify()
        return job

    def close(self) -> None:
        """Finish what was submitted and end both threads. Not on the event loop."""
        with self._arrived:
            self._stopping = True
            self._arrived.notify()
        self._writer.join()
        with self._due:
            self._written = True
            self._due.notify()
        self._committer.join()
        self._syncers.shutdown()

    # --- the writer -------------------------------------------------------------------------------

    def _write_all(self) -> None:
        while True:
            with self._arrived:
                while not self._incoming and not self._stopping:
                    self._arrived.wait()
                jobs, self._incoming = self._incoming, []
            if not jobs:
                return
            answered, advances = [], []
            for job in jobs:
                # Taken once: the job may be cancelled on the loop meanwhile.
                batches = job.batches
                advances += self._append_all(job, batches)
                if not self._hand_over(job, batches):
                    answered.append(job)
            if answered or advances:
                self._post(partial(self._deliver, answered, advances))

    def _append_all(self, job: Job, batches: Sequence[Batch]) -> list[Advance]:
        """Append the batches of *job*; return what can be read already, under a weak sync policy."""
        advances = []
        for batch in batches:
            outcome = self._append(batch)
            job.outcomes.append(outcome)
            if isinstance(outcome, Placed) and not outcome.log.config.sync.durable:
                advances.append(Advance(batch.topic, batch.partition, len(batch.data)))
        return advances

    def _append(self, batch: Batch) -> Outcome:
        if self._failure is not None:
            return self._failure
        try:
            return self._node.append(batch.topic, batch.partition, batch.data, batch.topic_id)
        except LogFailed as error:
            # A segment could not be sealed, or an append not undone: a failed sync like any other.
            self.fail(error)
            return error
        except CordwoodError as error:
            return _bare(error)
        except Exception as error:
            # Ours, and this batch's alone: whoever sent it is told, everyone else goes on.
            _LOGGER.exception("appending to %s-%d failed", batch.topic, batch.partition)
            return error

    def _hand_over(self, job: Job, batches: Sequence[Batch]) -> bool:
        """Tell the committer what was written; return whether *job* waits for it."""
        now_ns = self._clock.monotonic_ns()
        waits = False
        with self._due:
            for batch, outcome in zip(batches, job.outcomes, strict=True):
                if isinstance(outcome, Placed):
                    self._note_dirty(outcome.log, len(batch.data), now_ns)
                    waits = waits or (job.wait and outcome.log.config.sync.durable)
            if waits:
                self._waiting.append(job)
            self._due.notify()
        return waits

    def _note_dirty(self, log: AnyLog, size: int, now_ns: int) -> None:
        """Take note that *log* is to be synced, and by when, as its policy says."""
        policy = log.config.sync
        if policy.mode == "never" or (policy.mode == "every" and log.unsynced_records < policy.amount):
            return
        before = self._dirty.get(log)
        if before is not None:
            before.size += size
            return
        # Under cordwood.sync=each this is for appends that nobody waits for; who waits begins a round.
        within_ms = {"each": self._node.config.sync_max_ms, "ms": policy.amount, "every": 0}[policy.mode]
        self._dirty[log] = _Dirty(size, now_ns + within_ms * 1_000_000)

    # --- the committer ----------------------------------------------------------------------------

    def _commit_all(self) -> None:
        while True:
            with self._due:
                while (wait := self._seconds_to_round()) != 0.0:
                    self._due.wait(wait)
                jobs, self._waiting = self._waiting, []
                logs = self._take_due()
                if self._written and not jobs and not logs:
                    return
            self._commit(jobs, logs)

    def _seconds_to_round(self) -> float | None:
        """Return how long to wait before the next round: 0 to begin, None for as long as nobody comes."""
        if self._waiting or self._written:
            return 0.0
        if not self._dirty:
            return None
        due_ns = min(dirty.due_ns for dirty in self._dirty.values())
        return max(due_ns - self._clock.monotonic_ns(), 0) / 1e9

    def _take_due(self) -> dict[AnyLog, _Dirty]:
        """Return what to sync in this round; the rest has time."""
        now_ns = self._clock.monotonic_ns()
        due = {
            log: dirty
            for log, dirty in self._dirty.items()
            if log.config.sync.durable or dirty.due_ns <= now_ns or self._written
        }
        for log in due:
            del self._dirty[log]
        return due

    def _commit(self, jobs: list[Job], logs: Mapping[AnyLog, _Dirty]) -> None:
        failures = self._sync(list(logs))
        for job in jobs:
            job.outcomes = [
                failures.get(outcome.log, outcome) if isinstance(outcome, Placed) else outcome
                for outcome in job.outcomes
            ]
        advances = [
            Advance(log.state.topic, log.state.partition, dirty.size)
            for log, dirty in logs.items()
            if log.config.sync.durable and log not in failures
        ]
        self._post(partial(self._deliver, jobs, advances))

    def _sync(self, logs: Sequence[AnyLog]) -> dict[AnyLog, Exception]:
        """Make everything appended to *logs* durable; return those where that failed, with the reason."""
        run = map if len(logs) < 2 else self._syncers.map
        results = zip(logs, run(_commit_one, logs), strict=True)
        failures = {log: error for log, error in results if error is not None}
        for error in failures.values():
            if isinstance(error, LogFailed):
                self.fail(error)
        return failures

    # --- both -------------------------------------------------------------------------------------

    def fail(self, error: LogFailed) -> None:
        """Take nothing further for any partition: what the device holds is not known any more."""
        with self._due:
            if self._failure is None:
                self._failure = error
                self._post(partial(self._on_failure, error))

    def _deliver(self, jobs: Sequence[Job], advances: Sequence[Advance]) -> None:
        """Answer *jobs* and tell who waits for records, on the loop."""
        for job in jobs:
            done = job.let_go()
            try:
                done(job.outcomes)
            except Exception:
                # Ours, and this request's alone: the others are still owed their answers.
                _LOGGER.exception("a produce request could not be answered")
        for advance in advances:
            self._on_advance(advance)


class _Dirty:
    """Bytes of a log that are not synced, and when they are to be at the latest."""

    __slots__ = ("due_ns", "size")

    def __init__(self, size: int, due_ns: int) -> None:
        self.size = size
        self.due_ns = due_ns


def _bare(error: Exception) -> Exception:
    """Return *error* without what it was raised in and from.

    That would hold, for as long as the outcome is known, everything that was made to find it: of a batch of
    a few kilobytes all that it was decompressed to before it was refused.
    """
    error.__traceback__ = error.__context__ = error.__cause__ = None
    return error


def _commit_one(log: AnyLog) -> Exception | None:
    try:
        log.commit()
    except CordwoodError as error:
        return error
    except Exception as error:
        # Ours. It must not end the thread, or nobody would be answered any more.
        _LOGGER.exception("syncing %s failed", log.directory)
        return error
    return None
