"""Check segments ahead of the walk, possibly in parallel or in other processes.

Reading segments takes most of the time, and each can be read independently. So all segments in the metadata
are given out together, and the walk evaluates the results. It uses a result only if the metadata of the
segment have not changed since, and otherwise reads the segment itself: a concurrent writer costs time, but
never makes the answer wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from cordwood.disk import ReadableFiles, join, read_file
from cordwood.verify.frame import PlacedHeader
from cordwood.verify.irregular import check_regular_partition, check_regular_topic
from cordwood.verify.plans import PARTITION_NAME, SUFFIXES, take_snapshot
from cordwood.verify.producers import ProducersCheck
from cordwood.verify.report import Only, Tally
from cordwood.verify.segments import (
    EnvelopeFrame,
    SegmentOwners,
    SegmentPlan,
    SegmentTransactions,
    check_segment,
)


@dataclass(frozen=True, slots=True)
class SegmentCheck:
    """A segment to check, and the base offsets of the batches that the walk needs."""

    plan: SegmentPlan
    wanted: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class SegmentResult:
    """Findings and counts of a check, the offset after the last sound frame, and the requested frames.

    ``owners`` has the owners of frames of the shared log, ``transactions`` where transactions begin and end.
    """

    tally: Tally
    end_offset: int
    shown: tuple[PlacedHeader, ...]
    owners: SegmentOwners
    transactions: SegmentTransactions


Checker: TypeAlias = Callable[[Sequence[SegmentCheck]], Iterable[SegmentResult]]
"""Runs checks in any process and order; returns results in the order of the checks."""


@dataclass(slots=True)
class PartitionAhead:
    """The results for a partition ahead of the walk. ``producers`` was read before its segments were."""

    topic_id: str
    producers: ProducersCheck
    results: dict[SegmentPlan, SegmentResult] = field(default_factory=dict)

    def take(self, plan: SegmentPlan) -> SegmentResult | None:
        """Return the result for the segment of *plan*, once; a second call returns None."""
        result = self.results.pop(plan, None)
        if result is not None and result.tally.corrupt and self.producers.claims:
            # A frame of a damaged segment may claim any offset, and only offsets of the segment were
            # requested.
            return None
        return result


def run_check(files: ReadableFiles, check: SegmentCheck) -> SegmentResult:
    """Check one segment. Read-only, in bounded memory; any bytes give a result."""
    shown: list[PlacedHeader] = []

    def see(frame: PlacedHeader) -> None:
        if frame.base_offset in check.wanted:
            shown.append(frame)

    result = check_seeing(files, check.plan, Tally(), see)
    return replace(result, shown=tuple(shown))


def check_seeing(
    files: ReadableFiles, plan: SegmentPlan, tally: Tally, see: Callable[[PlacedHeader], None]
) -> SegmentResult:
    """Check one segment and call *see* with its batches, which are not in the result."""
    owners, transactions = SegmentOwners(plan.base, plan.generation), SegmentTransactions()

    def sort(frame: PlacedHeader | EnvelopeFrame) -> None:
        if isinstance(frame, EnvelopeFrame):
            owners.add(frame)
        else:
            see(frame)

    end_offset = check_segment(files, plan, tally, sort, transactions)
    owners.damaged = tally.corrupt
    return SegmentResult(tally, end_offset, (), owners, transactions)


def check_ahead(files: ReadableFiles, topics: str, only: Only, check: Checker) -> dict[str, PartitionAhead]:
    """Check the requested segments of partitions in *topics* with *check*; return results by partition.

    Partitions that cannot be planned now are left to the walk, which reports why.
    """
    found: dict[str, PartitionAhead] = {}
    planned: list[tuple[str, SegmentCheck]] = []
    for path, topic, partition in _partitions(files, topics, only):
        with Tally().reading(path):
            snapshot = take_snapshot(files, path, topic, partition)
            state = snapshot.state
            if state is None or state.record_format not in SUFFIXES:
                continue
            # Before the log, which only grows: the batches in the snapshot were in it when it was written.
            producers_path = join(path, "producers.json")
            data = read_file(files, producers_path) if files.exists(producers_path) else None
            producers = ProducersCheck(producers_path, data, state.record_format)
            found[path] = PartitionAhead(state.topic_id, producers)
            planned += (
                (path, SegmentCheck(plan, producers.claimed(plan))) for plan in snapshot.plans.values()
            )
    results = check([each for _, each in planned])
    for (path, each), result in zip(planned, results, strict=True):
        found[path].results[each.plan] = result
    return found


def _partitions(files: ReadableFiles, topics: str, only: Only) -> Iterator[tuple[str, str, int]]:
    """Yield path, topic and number of possible partition directories, as far as they can be listed."""
    ignored = Tally()
    with ignored.reading(topics):
        for topic in files.list(topics) if files.exists(topics) else []:
            path = join(topics, topic)
            if not only.has_topic(topic):
                continue
            with ignored.reading(path):
                if not files.is_directory(path) or not check_regular_topic(files, path, ignored):
                    continue
                for name in files.list(path):
                    wanted = PARTITION_NAME.match(name) and only.has(topic, int(name))
                    if wanted and check_regular_partition(files, join(path, name), ignored):
                        yield join(path, name), topic, int(name)
