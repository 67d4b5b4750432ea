"""Reading from many partitions within one limit."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from cordwood.broker.leader_epochs import NO_EPOCH, check_leader_epoch
from cordwood.errors import CordwoodError, LeaderEpochFenced, LeaderEpochUnknown, OffsetOutOfRange
from cordwood.formats import batch
from cordwood.storage.log import AbortedEntry, ServedPartition, Standing
from cordwood.telemetry import FETCH_READ, Tracer, no_tracing


class PartitionFetch(NamedTuple):
    """A request for records of a partition from an offset on, with a limit in bytes."""

    topic: str
    partition: int
    offset: int
    max_bytes: int
    #: The partition's leader epoch known to the client; it is checked unless it is `NO_EPOCH`.
    leader_epoch: int = NO_EPOCH


class Got(msgspec.Struct, frozen=True):
    """The result for one partition: batches, uncopied if the store has batches, or the error."""

    frames: tuple[memoryview, ...] = ()
    high_watermark: int = -1
    log_start_offset: int = -1
    error: Exception | None = None
    #: The first offset that a reader of committed records may not read.
    last_stable_offset: int = -1
    #: For a reader of committed records, the aborted transactions with records in the frames.
    aborted: Sequence[AbortedEntry] = ()

    def standing(self, *, committed: bool) -> Standing:
        """Return the offsets that a client with this isolation has to know; last, where its records end."""
        end = self.last_stable_offset if committed else self.high_watermark
        return self.high_watermark, self.log_start_offset, end

    @property
    def size(self) -> int:
        """The bytes of the frames."""
        return sum(map(len, self.frames))


class FetchResult(NamedTuple):
    """The results of all requests, in their order."""

    each: list[Got]
    size: int
    failed: bool


Find = Callable[[str, int], ServedPartition]
"""Returns the partition for a topic and a partition number."""
Name = Callable[[str, int], str]
"""Returns the name of a partition in spans."""


def _plain_name(topic: str, partition: int) -> str:
    return f"{topic}-{partition}"


def read_all(
    find: Find,
    wishes: Sequence[PartitionFetch],
    max_bytes: int,
    tracer: Tracer = no_tracing,
    name: Name = _plain_name,
    *,
    committed: bool = False,
) -> FetchResult:
    """Read the requested partitions in order, up to *max_bytes* in total.

    With *committed*, reading stops at the last stable offset, and the aborted transactions among the records
    are listed. The first frame is always returned whole: a consumer would otherwise never get past a large
    one. If one partition cannot be read, the others are still read.
    """
    each: list[Got] = []
    left, failed = max_bytes, False
    size = 0
    for wanted in wishes:
        limit = max(min(wanted.max_bytes, left), 0)
        if tracer is no_tracing:
            got = _read(find, wanted, limit, whole_first=not size, committed=committed)
        else:
            got = _read_traced(tracer, name, find, wanted, limit, whole_first=not size, committed=committed)
        each.append(got)
        failed = failed or got.error is not None
        size += got.size
        left -= got.size
    return FetchResult(each, size, failed)


def _read_traced(
    tracer: Tracer,
    name: Name,
    find: Find,
    wanted: PartitionFetch,
    max_bytes: int,
    *,
    whole_first: bool,
    committed: bool,
) -> Got:
    """Read in a span. The span has the number of records, for which every batch is parsed."""
    got = Got()
    # Raised so that the span ends as failed, and suppressed here.
    with contextlib.suppress(CordwoodError), tracer.start(FETCH_READ) as span:
        got = _read(find, wanted, max_bytes, whole_first=whole_first, committed=committed)
        count = sum(_count_from(wanted.offset, frame) for frame in got.frames)
        span.set(virtual_topic=name(wanted.topic, wanted.partition), fetch_offset=wanted.offset)
        span.set(topic=wanted.topic, partition=wanted.partition)
        span.set(returned_count=count, high_watermark=got.high_watermark)
        if got.error is not None:
            raise got.error
    return got


def _count_from(offset: int, frame: memoryview) -> int:
    """Return the number of records of *frame*, whole batches, at or after *offset*."""
    count = 0
    for header in batch.scan(frame).headers():
        if header.base_offset >= offset:
            count += header.record_count
        elif header.record_count == header.last_offset_delta + 1:
            count += max(header.next_offset - offset, 0)
        else:
            # Compaction removed records from the batch, so its records must be decoded.
            records = batch.decode_records(frame, header)
            count += sum(record.offset >= offset for record in records)
    return count


def _read(find: Find, wanted: PartitionFetch, max_bytes: int, *, whole_first: bool, committed: bool) -> Got:
    log: ServedPartition | None = None
    try:
        log = find(wanted.topic, wanted.partition)
        if wanted.leader_epoch != NO_EPOCH:
            check_leader_epoch(wanted.leader_epoch, log.leader_epoch)
        high_watermark, start, stable = log.standing
        end = stable if committed else high_watermark
        no_room = not max_bytes and not whole_first
        if start <= wanted.offset <= high_watermark and (wanted.offset >= end or no_room):
            return Got((), high_watermark, start, None, stable)
        fetched = log.read(wanted.offset, max_bytes, committed=committed)
        frames = tuple(memoryview(batch) for run in fetched.runs for batch in run.batches())
    except OffsetOutOfRange as error:
        return Got((), error.end, error.start, error, error.end)
    except (LeaderEpochFenced, LeaderEpochUnknown) as error:
        # The client's view of the partition may be wrong, so it gets no offsets.
        return Got(error=error)
    except CordwoodError as error:
        if log is None:
            return Got(error=error)
        return Got((), log.high_watermark, log.log_start_offset, error, log.last_stable_offset)
    aborted: Sequence[AbortedEntry] = fetched.aborted
    if frames and not whole_first and len(frames[0]) > max_bytes:
        frames, aborted = (), ()
    high_watermark, stable = fetched.high_watermark, log.last_stable_offset
    if stable > high_watermark:
        stable = high_watermark
    return Got(frames, high_watermark, fetched.log_start_offset, None, stable, aborted)
