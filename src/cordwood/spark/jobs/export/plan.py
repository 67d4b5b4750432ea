"""The manifest and the plan: two small files that make an export incremental. Pure.

``manifest.json`` has for each topic its id and how many times it was created again since the first export,
and for each partition the next offset to export and the leader epoch at that time. ``plan.json`` is the work
of one run: its slices, and the manifest that holds once all of them are written. By address an id or an epoch
may not be known; an unknown value matches any.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import msgspec

from cordwood.errors import CordwoodError, RecordsLost
from cordwood.spark.access import UNKNOWN_EPOCH, UNKNOWN_ID, Ends, Piece, TopicState

FORMAT = 1

CutPiece = Callable[[Piece], Iterable[Piece]]
"""Splits a range of offsets into pieces of one file each."""


class PartitionProgress(msgspec.Struct, frozen=True):
    """The progress of a partition."""

    next: int
    epoch: int


class TopicProgress(msgspec.Struct, frozen=True):
    """The progress of a topic. ``made_again`` counts earlier topics of its name."""

    id: str
    made_again: int
    partitions: dict[int, PartitionProgress]


class Manifest(msgspec.Struct, frozen=True):
    """The exported state: everything below these offsets. ``run`` is the number of its last plan."""

    format: int = FORMAT
    run: int = 0
    topics: dict[str, TopicProgress] = {}


class ExportSlice(msgspec.Struct, frozen=True):
    """The work of one task: offsets of one partition, and the name of its files."""

    topic: str
    partition: int
    start: int
    end: int
    id: str
    epoch: int
    made_again: int

    @property
    def stem(self) -> str:
        """The name of its files without the suffix; a topic that was created again has the same offsets."""
        again = f"-{self.made_again}" if self.made_again else ""
        return f"{self.start:020}-{self.end:020}{again}"

    @property
    def piece(self) -> Piece:
        """The range to read for it."""
        return Piece(self.topic, self.partition, self.start, self.end, self.id, self.epoch)


class ExportPlan(msgspec.Struct, frozen=True):
    """One run: its slices, and the manifest after it."""

    format: int
    run: int
    slices: list[ExportSlice]
    after: Manifest


def plan_next(
    before: Manifest, standing: Mapping[str, TopicState], cut: CutPiece, *, skip_lost: bool
) -> tuple[ExportPlan, list[str]]:
    """Return the records since *before* in the current topics, and a sentence for each skipped loss.

    A partition continues at its next offset and never moves back, even if new records have exported offsets
    after a truncation; a new partition begins at its first record, and so does a topic that was created
    again.

    Raises:
        CordwoodError: If records are lost, unless *skip_lost*.
    """
    slices: list[ExportSlice] = []
    topics = dict(before.topics)
    lost: list[RecordsLost] = []
    for name, now in sorted(standing.items()):
        known = before.topics.get(name)
        lost += [] if known is None else _find_losses(name, known, now)
        after = _after(known, now)
        topics[name] = after
        continued = known if known is not None and not _is_another(known, now) else None
        for number, ends in sorted(now.partitions.items()):
            reached = continued.partitions.get(number) if continued is not None else None
            start = ends.start if reached is None else max(reached.next, ends.start)
            if start < ends.end:
                pieces = cut(Piece(name, number, start, ends.end, now.topic_id, ends.epoch))
                slices += [ExportSlice(*piece[:6], after.made_again) for piece in pieces]
    if lost and not skip_lost:
        raise loss_refused(lost[0])
    run = before.run + 1
    return ExportPlan(FORMAT, run, slices, Manifest(FORMAT, run, topics)), [loss_text(each) for each in lost]


def loss_text(loss: RecordsLost) -> str:
    """Return the lost records and the reason, as the beginning of a sentence."""
    offsets = (
        f"offsets {loss.start} up to {loss.end}" if loss.start < loss.end else f"offsets from {loss.start} on"
    )
    return f"{offsets} of partition {loss.partition} of topic {loss.topic} are lost: {loss.reason}"


def loss_refused(loss: RecordsLost) -> CordwoodError:
    """Return *loss* as the sentence that ends an export."""
    return CordwoodError(f"{loss_text(loss)}; with --skip-lost the export continues at the next record")


def _is_another(known: TopicProgress, now: TopicState) -> bool:
    return UNKNOWN_ID not in (known.id, now.topic_id) and known.id != now.topic_id


def _after(known: TopicProgress | None, now: TopicState) -> TopicProgress:
    """Return the progress of a topic after all its current records are exported."""
    made_again = known.made_again if known is not None else 0
    partitions: dict[int, PartitionProgress] = {}
    if known is not None and _is_another(known, now):
        made_again, known = made_again + 1, None
    if known is not None:
        partitions.update(known.partitions)
    for number, ends in sorted(now.partitions.items()):
        reached = partitions.get(number, PartitionProgress(ends.start, UNKNOWN_EPOCH))
        # Values that are unknown by address now are kept for a later run.
        epoch = reached.epoch if ends.epoch == UNKNOWN_EPOCH else ends.epoch
        partitions[number] = PartitionProgress(max(reached.next, ends.end), epoch)
    topic_id = now.topic_id
    if topic_id == UNKNOWN_ID and known is not None:
        topic_id = known.id
    return TopicProgress(topic_id, made_again, partitions)


def _find_losses(topic: str, known: TopicProgress, now: TopicState) -> list[RecordsLost]:
    """Return the losses of a topic: truncated exported records, and records removed before export."""
    if _is_another(known, now):
        reason = f"the topic was deleted and made again, with id {now.topic_id} in place of {known.id}"
        number, reached = min(known.partitions.items(), default=(0, PartitionProgress(0, UNKNOWN_EPOCH)))
        return [RecordsLost(topic, number, reached.next, reached.next, reason)]
    found = []
    for number, reached in sorted(known.partitions.items()):
        ends = now.partitions.get(number)
        if ends is None:
            reason = "there is no such partition any more"
            found.append(RecordsLost(topic, number, reached.next, reached.next, reason))
        elif (cut := _cut_below(reached, ends)) is not None:
            reason = f"the partition was truncated at {cut} after it was exported up to {reached.next}"
            found.append(RecordsLost(topic, number, min(cut, reached.next), reached.next, reason))
        elif reached.next < ends.start:
            reason = f"the log starts at {ends.start} now"
            found.append(RecordsLost(topic, number, reached.next, ends.start, reason))
    return found


def _cut_below(reached: PartitionProgress, ends: Ends) -> int | None:
    """Return where the partition was truncated if that removed exported records, else None.

    A truncation above the exported offsets removed none of them. But only the last one is known: an earlier
    one may have been lower.
    """
    if UNKNOWN_EPOCH in (reached.epoch, ends.epoch):
        return ends.end if ends.end < reached.next and ends.epoch == UNKNOWN_EPOCH else None
    if ends.epoch == reached.epoch:
        return None
    several = ends.epoch > reached.epoch + 1
    return ends.epoch_start if several or ends.epoch_start < reached.next else None
