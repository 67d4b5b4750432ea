"""Appending and syncing off the event loop: a writer thread, a committer thread, and shared syncs.

Produce requests of all connections pass through the pipeline in the order of arrival. The writer checks and
appends their batches. The committer syncs every partition that was written to since its last round and
answers all requests that waited for it. The loop never waits for either.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from cordwood.broker import Node, Placed
from cordwood.errors import CordwoodError, LogFailed, ResourcesExhausted
from cordwood.host import Crew, Host, closing_on_failure
from cordwood.server.recompressing import COMPRESSORS, Batch, Recompressor
from cordwood.storage.log import WritablePartition

#: The number of threads that sync partitions if a round has more than one.
SYNC_THREADS = 8
#: The delay before a log whose sync could not be tried is synced again.
RETRY_NS = 100_000_000
_LOGGER = logging.getLogger("cordwood.server")


Outcome = Placed | Exception
"""The offsets of an appended batch, or the error."""


class PartitionAdvanced(NamedTuple):
    """More bytes of a partition can be read."""

    topic: str
    partition: int
    size: int


class Job:
    """The batches of one request and their outcomes."""

    __slots__ = ("batches", "done", "outcomes", "wait")

    def __init__(
        self, batches: Sequence[Batch], wait: bool, done: Callable[[Sequence[Outcome]], None]
    ) -> None:
        self.batches = batches
        self.wait = wait
        self.done = done
        self.outcomes: list[Outcome] = []

    def release(self) -> Callable[[Sequence[Outcome]], None]:
        """Return the callback and drop the batches: the job may outlive its request."""
        done, self.done, self.batches = self.done, _tell_nobody, ()
        return done

    def cancel(self) -> None:
        """Append no further batches of the job: no client waits, and its memory is no longer counted."""
        self.batches = ()


def _tell_nobody(outcomes: Sequence[Outcome]) -> None:
    """Replace the callback of a job that is already answered."""


class Pipeline:
    """The writer thread, the committer thread and the threads that sync for it.

    `submit` is called on the event loop. *post* runs its argument on the event loop.
    """

    def __init__(
        self,
        node: Node,
        host: Host,
        post: Callable[[Callable[[], None]], None],
        on_advance: Callable[[PartitionAdvanced], None],
        on_failure: Callable[[LogFailed], None],
    ) -> None:
        self._node = node
        self._host = host
        self._clock = host.clock
        self._post = post
        self._on_advance = on_advance
        self._on_failure = on_failure
        self._failure: LogFailed | None = None
        self._stopping = False
        self._written = False
        self._incoming: list[Job] = []
        self._arrived = host.new_condition()
        self._waiting: list[Job] = []
        self._dirty: dict[WritablePartition, _Dirty] = {}
        self._due = host.new_condition()
        #: For records that wait for the bucket; started by the first of them.
        self._remote: Crew | None = None
        self._syncers = Crew("sync", SYNC_THREADS, host)
        with closing_on_failure(self._syncers):
            self._compressors = Crew("compress", COMPRESSORS, host)
        self._recompressor = Recompressor[Job](self._recompression_of, self._wake_writer, self._compressors)
        with closing_on_failure(self._syncers), closing_on_failure(self._compressors):
            self._writer = host.start_thread(self._write_all, "writer")
            try:
                self._committer = host.start_thread(self._commit_all, "committer")
            except BaseException:
                self._end_writer()
                raise

    def submit(self, batches: Sequence[Batch], acks: int, done: Callable[[Sequence[Outcome]], None]) -> Job:
        """Append *batches*, then call *done* on the loop: before the sync if *acks* is 0, else after it.

        ``acks=1`` waits like ``acks=all``: its clients expect to read acknowledged records at once, and only
        synced records are visible.
        """
        job = Job(batches, acks != 0, done)
        with self._arrived:
            self._incoming.append(job)
            self._arrived.notify()
        return job

    def close(self) -> None:
        """Finish all submitted jobs and end the threads. Not on the event loop."""
        self._end_writer()
        with self._due:
            self._written = True
            self._due.notify()
        self._committer.join()
        if self._remote is not None:
            self._remote.close()
        self._syncers.close()
        self._compressors.close()

    def _end_writer(self) -> None:
        with self._arrived:
            self._stopping = True
            self._arrived.notify()
        self._writer.join()

    # --- the writer -------------------------------------------------------------------------------

    def _write_all(self) -> None:
        while True:
            with self._arrived:
                while not self._has_work():
                    self._arrived.wait()
                came, self._incoming = self._incoming, []
            if not came and not self._recompressor:
                return
            answered, advances = [], []
            for job in self._recompressor.sift(came):
                # Read once: the loop may cancel the job concurrently.
                batches = job.batches
                advances += self._append_all(job, batches)
                if not self._hand_over(job, batches):
                    answered.append(job)
            if answered or advances:
                self._post(partial(self._deliver, answered, advances))

    def _has_work(self) -> bool:
        """Return whether the writer has jobs to append or should end."""
        if self._recompressor:
            # Waiting jobs are appended before the writer ends.
            return bool(self._incoming) or self._recompressor.has_ready()
        return bool(self._incoming) or self._stopping

    def _wake_writer(self) -> None:
        with self._arrived:
            self._arrived.notify()

    def _recompression_of(self, batch: Batch) -> Callable[[], memoryview] | None:
        if batch.marker is not None:
            return None
        return self._node.recompression_of(batch.topic, batch.partition, batch.data)

    def _append_all(self, job: Job, batches: Sequence[Batch]) -> list[PartitionAdvanced]:
        """Append the batches of *job*; return the advances that a weak sync policy makes visible at once."""
        advances = []
        for batch in batches:
            outcome = self._append(batch)
            job.outcomes.append(outcome)
            if isinstance(outcome, Placed) and not outcome.log.config.sync.durable:
                advances.append(PartitionAdvanced(batch.topic, batch.partition, batch.size))
        return advances

    def _append(self, batch: Batch) -> Outcome:
        if self._failure is not None:
            return self._failure
        try:
            if batch.marker is not None:
                return self._node.append_marker(batch.topic, batch.partition, batch.marker)
            return self._node.append(batch.topic, batch.partition, batch.data, batch.topic_id)
        except LogFailed as error:
            # A segment could not be sealed, or an append not undone: treated like a failed sync.
            self.fail(error)
            return error
        except CordwoodError as error:
            return _bare(error)
        except Exception as error:
            # A bug that affects this batch alone: its client gets an error, other batches continue.
            _LOGGER.exception("appending to %s-%d failed", batch.topic, batch.partition)
            return error

    def _hand_over(self, job: Job, batches: Sequence[Batch]) -> bool:
        """Pass the written logs to the committer; return whether *job* waits for the sync."""
        now_ns = self._clock.monotonic_ns()
        waits = False
        with self._due:
            for batch, outcome in zip(batches, job.outcomes, strict=True):
                if isinstance(outcome, Placed):
                    self._note_dirty(outcome.log, batch.size, now_ns)
                    waits = waits or (job.wait and outcome.log.config.sync.durable)
            if waits:
                self._waiting.append(job)
            self._due.notify()
        return waits

    def _note_dirty(self, log: WritablePartition, size: int, now_ns: int) -> None:
        """Note that *log* needs a sync, and its deadline by its sync policy."""
        policy = log.config.sync
        if policy.mode == "never" or (policy.mode == "every" and log.unsynced_records < policy.amount):
            return
        before = self._dirty.get(log)
        if before is not None:
            before.size += size
            return
        # Under cordwood.sync=each the deadline is for acks=0; a request that waits starts a round itself.
        within_ms = {
            "each": self._node.directory.settings.config.sync_max_ms,
            "ms": policy.amount,
            "every": 0,
        }[policy.mode]
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
        """Return the seconds until the next round: 0 to start now, None to wait for work."""
        if self._waiting or self._written:
            return 0.0
        if not self._dirty:
            return None
        due_ns = min(dirty.due_ns for dirty in self._dirty.values())
        return max(due_ns - self._clock.monotonic_ns(), 0) / 1e9

    def _take_due(self) -> dict[WritablePartition, _Dirty]:
        """Return the logs to sync in this round; the deadlines of the others are later."""
        now_ns = self._clock.monotonic_ns()
        due = {
            log: dirty
            for log, dirty in self._dirty.items()
            if log.config.sync.durable or dirty.due_ns <= now_ns or self._written
        }
        for log in due:
            del self._dirty[log]
        return due

    def _commit(self, jobs: list[Job], logs: Mapping[WritablePartition, _Dirty]) -> None:
        remote = {log: dirty for log, dirty in logs.items() if log.waits_for_remote}
        if remote:
            # They wait in a thread of their own, and nothing else waits for the bucket with them.
            waiting = [job for job in jobs if _is_in(job, remote)]
            self._begin_remote(waiting, remote)
            jobs = [job for job in jobs if job not in waiting]
            logs = {log: dirty for log, dirty in logs.items() if log not in remote}
        self._conclude(jobs, logs, self._sync(list(logs)))

    def _conclude(
        self,
        jobs: list[Job],
        logs: Mapping[WritablePartition, _Dirty],
        failures: Mapping[WritablePartition, Exception],
    ) -> None:
        """Answer *jobs* and wake fetches: *logs* are synced, except for those that failed."""
        for job in jobs:
            job.outcomes = [
                failures.get(outcome.log, outcome) if isinstance(outcome, Placed) else outcome
                for outcome in job.outcomes
            ]
        advances = [
            PartitionAdvanced(log.state.topic, log.state.partition, dirty.size)
            for log, dirty in logs.items()
            if log.config.sync.durable and log not in failures
        ]
        passing = [log for log, error in failures.items() if isinstance(error, ResourcesExhausted)]
        self._keep_dirty({log: logs[log] for log in passing})
        self._post(partial(self._deliver, jobs, advances))

    def _begin_remote(self, jobs: list[Job], logs: Mapping[WritablePartition, _Dirty]) -> None:
        """Sync *logs* on the disk, and conclude in another thread once the bucket has their records."""
        remote = self._node.directory.context.remote
        assert remote is not None, "a partition waits for a bucket that is not there"
        found = dict(zip(logs, self._syncers.map(_begin_one, list(logs)), strict=True))
        wait = remote.waiting_for_now()
        if self._remote is None:
            self._remote = Crew("remote", 1, self._host)
        self._remote.submit(partial(self._finish_remote, jobs, logs, found, wait))

    def _finish_remote(
        self,
        jobs: list[Job],
        logs: Mapping[WritablePartition, _Dirty],
        found: Mapping[WritablePartition, Callable[[], None] | Exception],
        wait: Callable[[], None],
    ) -> None:
        failures = {log: each for log, each in found.items() if isinstance(each, Exception)}
        try:
            wait()
        except OSError as error:
            failures |= {log: LogFailed(f"{log.directory}: {error.strerror}") for log in logs}
        for log, show in found.items():
            if log not in failures and not isinstance(show, Exception):
                try:
                    show()
                except CordwoodError as error:
                    failures[log] = error
        self._note_failed(failures)
        self._conclude(jobs, logs, failures)

    def _keep_dirty(self, logs: Mapping[WritablePartition, _Dirty]) -> None:
        """Schedule another sync of logs whose sync could not be tried, such as for lack of a file handle."""
        with self._due:
            if self._written:
                # Closing the logs is the next and last attempt.
                return
            due_ns = self._clock.monotonic_ns() + RETRY_NS
            for log, dirty in logs.items():
                again = self._dirty.setdefault(log, _Dirty(0, due_ns))
                again.size += dirty.size

    def _sync(self, logs: Sequence[WritablePartition]) -> dict[WritablePartition, Exception]:
        """Sync *logs*; return those that failed, with their errors."""
        found = [_commit_one(log) for log in logs] if len(logs) < 2 else self._syncers.map(_commit_one, logs)
        results = zip(logs, found, strict=True)
        failures = {log: error for log, error in results if error is not None}
        self._note_failed(failures)
        return failures

    def _note_failed(self, failures: Mapping[WritablePartition, Exception]) -> None:
        for error in failures.values():
            if isinstance(error, LogFailed):
                self.fail(error)

    # --- both -------------------------------------------------------------------------------------

    def fail(self, error: LogFailed) -> None:
        """Refuse all further appends: after a failed sync the content of the device is unknown."""
        with self._due:
            if self._failure is None:
                self._failure = error
                self._post(partial(self._on_failure, error))

    def _deliver(self, jobs: Sequence[Job], advances: Sequence[PartitionAdvanced]) -> None:
        """Answer *jobs* and wake waiting fetches, on the loop."""
        for job in jobs:
            done = job.release()
            try:
                done(job.outcomes)
            except Exception:
                # A bug that affects this request alone: the other requests must still be answered.
                _LOGGER.exception("a produce request could not be answered")
        for advance in advances:
            self._on_advance(advance)


class _Dirty:
    """The unsynced bytes of a log and the deadline of their sync."""

    __slots__ = ("due_ns", "size")

    def __init__(self, size: int, due_ns: int) -> None:
        self.size = size
        self.due_ns = due_ns


def _bare(error: Exception) -> Exception:
    """Return *error* without its traceback, context and cause.

    Their frames keep every local variable alive, such as the decompressed records of a refused batch.
    """
    error.__traceback__ = error.__context__ = error.__cause__ = None
    return error


def _is_in(job: Job, logs: Container[WritablePartition]) -> bool:
    """Return whether *job* waits for one of *logs*."""
    return any(isinstance(outcome, Placed) and outcome.log in logs for outcome in job.outcomes)


def _begin_one(log: WritablePartition) -> Callable[[], None] | Exception:
    try:
        return log.begin_sync()
    except CordwoodError as error:
        return error
    except Exception as error:
        _LOGGER.exception("syncing %s failed", log.directory)
        return error


def _commit_one(log: WritablePartition) -> Exception | None:
    try:
        log.commit()
    except CordwoodError as error:
        return error
    except Exception as error:
        # A bug must not end the thread: no request would be answered afterwards.
        _LOGGER.exception("syncing %s failed", log.directory)
        return error
    return None
