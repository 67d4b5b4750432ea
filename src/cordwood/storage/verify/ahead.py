"""Segments that are checked ahead of the walk, by whoever has the hands for it.

Reading segments is what takes long, and each can be read apart from the others. So the segments that metadata
name now are handed out together; the walk comes after that and judges. It takes a result only where metadata
still say the same of the segment as they did when it was handed out, and reads the segment itself where they
do not: what a writer does meanwhile costs time, never a right answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from cordwood.storage.files import Files, join, read_file
from cordwood.storage.verify.envelopes import EnvelopeFrame
from cordwood.storage.verify.frame import Frame
from cordwood.storage.verify.owners import SegmentOwners
from cordwood.storage.verify.plans import PARTITION_NAME, SUFFIXES, take_snapshot
from cordwood.storage.verify.producers import ProducersCheck
from cordwood.storage.verify.report import Only, Tally
from cordwood.storage.verify.segment import SegmentPlan, check_segment


@dataclass(frozen=True, slots=True)
class SegmentCheck:
    """A segment to check, and the base offsets of those of its batches that the walk wants to see."""

    plan: SegmentPlan
    wanted: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class SegmentResult:
    """What a check found and counted, the offset after the last sound frame, and the wanted frames.

    ``owners`` says whose the frames of a segment of the shared log are.
    """

    tally: Tally
    end_offset: int
    shown: tuple[Frame, ...]
    owners: SegmentOwners


Checker: TypeAlias = Callable[[Sequence[SegmentCheck]], Iterable[SegmentResult]]
"""Runs checks, anywhere and in any order, and returns their results in the order of the checks."""


@dataclass(slots=True)
class PartitionAhead:
    """What was found of a partition ahead of the walk. ``producers`` was read before its segments were."""

    topic_id: str
    producers: ProducersCheck
    results: dict[SegmentPlan, SegmentResult] = field(default_factory=dict)

    def take(self, plan: SegmentPlan) -> SegmentResult | None:
        """Return what was found of a segment of which metadata say *plan*, once: whoever asks again reads."""
        result = self.results.pop(plan, None)
        if result is not None and result.tally.corrupt and self.producers.claims:
            # A frame of a damaged segment may say any offset, and only those of the segment were wanted.
            return None
        return result


def run_check(files: Files, check: SegmentCheck) -> SegmentResult:
    """Check one segment. Read-only, in bounded memory; whatever the bytes are, there is a result."""
    shown: list[Frame] = []

    def see(frame: Frame) -> None:
        if frame.base_offset in check.wanted:
            shown.append(frame)

    tally, end_offset, owners = check_seeing(files, check.plan, Tally(), see)
    return SegmentResult(tally, end_offset, tuple(shown), owners)


def check_seeing(
    files: Files, plan: SegmentPlan, tally: Tally, see: Callable[[Frame], None]
) -> tuple[Tally, int, SegmentOwners]:
    """Check one segment, showing its batches to *see*; see `SegmentResult`."""
    owners = SegmentOwners(plan.base, plan.generation)

    def sort(frame: Frame | EnvelopeFrame) -> None:
        if isinstance(frame, EnvelopeFrame):
            owners.add(frame)
        else:
            see(frame)

    end_offset = check_segment(files, plan, tally, sort)
    owners.damaged = tally.corrupt
    return tally, end_offset, owners


def check_ahead(files: Files, topics: str, only: Only, check: Checker) -> dict[str, PartitionAhead]:
    """Have *check* check the segments of the partitions in *topics* that are wanted; return it by partition.

    What cannot be planned now is left to the walk, which says why.
    """
    found: dict[str, PartitionAhead] = {}
    planned: list[tuple[str, SegmentCheck]] = []
    for path, topic, partition in _partitions(files, topics, only):
        with Tally().reading(path):
            snapshot = take_snapshot(files, path, topic, partition)
            state = snapshot.state
            if state is None or state.record_format not in SUFFIXES:
                continue
            # Before the log, which only grows: what the snapshot covers was there when it was written.
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


def _partitions(files: Files, topics: str, only: Only) -> Iterator[tuple[str, str, int]]:
    """Yield path, topic and number of what may be a partition's directory, as far as they can be seen."""
    ignored = Tally()
    with ignored.reading(topics):
        for topic in files.list(topics) if files.exists(topics) else []:
            path = join(topics, topic)
            if not only.has_topic(topic):
                continue
            with ignored.reading(path):
                for name in files.list(path) if files.is_directory(path) else []:
                    if PARTITION_NAME.match(name) and only.has(topic, int(name)):
                        yield join(path, name), topic, int(name)
