"""Recompression of batches whose topic has another compression, in threads beside the writer.

Compression takes far longer than an append. Meanwhile the writer appends the batches of other partitions;
batches of the same partitions wait, so that each partition keeps the order of the requests.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Generic, NamedTuple, Protocol, TypeVar

from cordwood.formats import Marker
from cordwood.host import Crew

#: The number of batches that are compressed at a time. Each takes a processor.
COMPRESSORS = 2
#: The size of a batch with one record that ends a transaction.
MARKER_BYTES = 78
_LOGGER = logging.getLogger("cordwood.server")


class Batch(NamedTuple):
    """A batch for one partition, in a writable buffer, or the end of a transaction there."""

    topic: str
    partition: int
    data: memoryview
    topic_id: str | None = None
    #: The end of a transaction; ``data`` is empty then.
    marker: Marker | None = None

    @property
    def size(self) -> int:
        """The number of bytes that the batch adds to its partition."""
        return len(self.data) if self.marker is None else MARKER_BYTES


class Batched(Protocol):
    """An object with batches, which another thread may remove."""

    batches: Sequence[Batch]


AnyJob = TypeVar("AnyJob", bound=Batched)


class _Held(Generic[AnyJob]):
    """A job that waits for its own batches or for an earlier job."""

    def __init__(self, job: AnyJob, batches: Sequence[Batch], prepared: Sequence[Future[memoryview] | None]):
        self.job = job
        self._batches = batches
        self._prepared = prepared

    @property
    def partitions(self) -> set[tuple[str, int]]:
        """The partitions of the batches."""
        return {(batch.topic, batch.partition) for batch in self._batches}

    @property
    def is_untouched(self) -> bool:
        """Whether no batch needs recompression."""
        return not any(self._prepared)

    @property
    def is_prepared(self) -> bool:
        """Whether all batches have the compression of their topics."""
        return all(future is None or future.done() for future in self._prepared)

    def release(self) -> AnyJob:
        """Return the job with its prepared batches."""
        if self.job.batches:
            # Otherwise the job was cancelled, and its batches are not needed.
            self.job.batches = [
                batch if future is None else batch._replace(data=future.result())
                for batch, future in zip(self._batches, self._prepared, strict=True)
            ]
        return self.job


def _attempt(batch: Batch, work: Callable[[], memoryview]) -> memoryview:
    try:
        return work()
    except Exception:
        # A bug or lack of memory: the writer handles the original batch and reports its error to the client.
        _LOGGER.exception("compressing a batch for %s-%d failed", batch.topic, batch.partition)
        return batch.data


class Recompressor(Generic[AnyJob]):
    """Separates jobs that can be appended now from jobs that wait. One caller at a time.

    *find* returns a function that recompresses a batch, or None if that is not needed. The threads of *crew*
    call it, and call *wake* when a job may have become ready.
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
        """Return whether a waiting job can be appended now."""
        blocked: set[tuple[str, int]] = set()
        for held in self._held:
            if held.is_prepared and blocked.isdisjoint(held.partitions):
                return True
            blocked |= held.partitions
        return False

    def sift(self, jobs: Sequence[AnyJob]) -> Sequence[AnyJob]:
        """Return the jobs that can be appended now, in their order, and hold the others."""
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
        """Start the recompression of the batches of *job*."""
        # Read once: the job may be cancelled concurrently.
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
