"""Batches that their topic stores in another codec: compressed beside the writer, appended in their order.

Compressing takes far longer than appending. The writer goes on with the batches of other partitions
meanwhile; those for the same partitions wait, so that each partition keeps the order of the requests.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Generic, NamedTuple, Protocol, TypeVar

from cordwood.server.threads import Crew

#: How many batches are compressed at a time. Each takes a processor.
COMPRESSORS = 2
_LOGGER = logging.getLogger("cordwood.server")


class Batch(NamedTuple):
    """A batch for one partition, in a buffer that may be changed."""

    topic: str
    partition: int
    data: memoryview
    topic_id: str | None = None


class Batched(Protocol):
    """Something with batches, which may be taken away by another thread."""

    batches: Sequence[Batch]


AnyJob = TypeVar("AnyJob", bound=Batched)


class _Held(Generic[AnyJob]):
    """A job that waits: for its own batches, or for a job before it."""

    def __init__(self, job: AnyJob, batches: Sequence[Batch], prepared: Sequence[Future[memoryview] | None]):
        self.job = job
        self._batches = batches
        self._prepared = prepared

    @property
    def partitions(self) -> set[tuple[str, int]]:
        """The partitions that the batches are for."""
        return {(batch.topic, batch.partition) for batch in self._batches}

    @property
    def is_untouched(self) -> bool:
        """Whether all batches are as they came."""
        return not any(self._prepared)

    @property
    def is_prepared(self) -> bool:
        """Whether all batches are as their topics ask for."""
        return all(future is None or future.done() for future in self._prepared)

    def release(self) -> AnyJob:
        """Return the job with its batches as they were prepared."""
        if self.job.batches:
            # Else it was cancelled meanwhile, and nobody wants them any more.
            self.job.batches = [
                batch if future is None else batch._replace(data=future.result())
                for batch, future in zip(self._batches, self._prepared, strict=True)
            ]
        return self.job


def _attempt(batch: Batch, work: Callable[[], memoryview]) -> memoryview:
    try:
        return work()
    except Exception:
        # Ours, or no memory: the writer takes the batch as it came and tells the client what is wrong.
        _LOGGER.exception("compressing a batch for %s-%d failed", batch.topic, batch.partition)
        return batch.data


class Recompressor(Generic[AnyJob]):
    """Sorts jobs into those that can be appended now and those that wait. One caller at a time.

    *find* returns what brings a batch into the codec of its topic, None if it is in that. The threads of
    *crew* do it. *wake* is called from them when a job may have become ready.
    """

    def __init__(
        self,
        find: Callable[[Batch], Callable[[], memoryview] | None],
        wake: Callable[[], None],
        crew: Crew,
    ) -> None:
        self._find = find
        self._wake = wake
        self._held: list[_Held[AnyJob]] = []
        self._crew = crew

    def __bool__(self) -> bool:
        """Return whether any job waits."""
        return bool(self._held)

    def has_ready(self) -> bool:
        """Return whether a job that waits could be appended now."""
        blocked: set[tuple[str, int]] = set()
        for held in self._held:
            if held.is_prepared and blocked.isdisjoint(held.partitions):
                return True
            blocked |= held.partitions
        return False

    def sift(self, jobs: Sequence[AnyJob]) -> Sequence[AnyJob]:
        """Return the jobs that can be appended now, in the order in which they came, and hold the others."""
        came = [self._prepare(job) for job in jobs]
        if not self._held and all(held.is_untouched for held in came):
            return jobs
        waiting, ready = [*self._held, *came], []
        self._held = []
        blocked: set[tuple[str, int]] = set()
        for held in waiting:
            if held.is_prepared and blocked.isdisjoint(held.partitions):
                ready.append(held.release())
            else:
                blocked |= held.partitions
                self._held.append(held)
        return ready

    def _prepare(self, job: AnyJob) -> _Held[AnyJob]:
        """Begin to bring the batches of *job* into the codecs of their topics."""
        # Taken once: the job may be cancelled meanwhile.
        batches = job.batches
        works = [self._find(batch) for batch in batches]
        futures = [
            None if work is None else self._begin(batch, work)
            for batch, work in zip(batches, works, strict=True)
        ]
        return _Held(job, batches, futures)

    def _begin(self, batch: Batch, work: Callable[[], memoryview]) -> Future[memoryview]:
        future: Future[memoryview] = Future()
        future.add_done_callback(lambda _: self._wake())
        self._crew.submit(lambda: future.set_result(_attempt(batch, work)))
        return future
