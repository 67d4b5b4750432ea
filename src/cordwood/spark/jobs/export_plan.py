"""What an export has done and what it does next: the two small files that make it incremental. Pure.

``manifest.json`` says of each topic which one it was (its id, and how often it was made again since the first
export), and of each partition the next offset to export and the leader epoch at which that was said.
``plan.json`` is the work of one run: its slices, and the manifest that holds once all of them are written.
By address an id or an epoch may not be known; what is not known agrees with everything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import msgspec

from cordwood.errors import CordwoodError, RecordsLost
from cordwood.spark.access import UNKNOWN_EPOCH, UNKNOWN_ID, Ends, Piece, Standing

FORMAT = 1

Cut = Callable[[Piece], Iterable[Piece]]
"""From a range of offsets to the pieces that are one file's share each."""


class Progress(msgspec.Struct, frozen=True):
    """How far a partition is exported."""

    next: int
    epoch: int


class TopicProgress(msgspec.Struct, frozen=True):
    """How far a topic is exported. ``made_again`` counts the topics of its name before this one."""

    id: str
    made_again: int
    partitions: dict[int, Progress]


class Manifest(msgspec.Struct, frozen=True):
    """What is exported: everything below these offsets. ``run`` numbers the plan that led here."""

    format: int = FORMAT
    run: int = 0
    topics: dict[str, TopicProgress] = {}


class Slice(msgspec.Struct, frozen=True):
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
        """The name of its files without the suffix; a topic made again has the same offsets again."""
        again = f"-{self.made_again}" if self.made_again else ""
        return f"{self.start:020}-{self.end:020}{again}"

    @property
    def piece(self) -> Piece:
        """What is read for it."""
        return Piece(self.topic, self.partition, self.start, self.end, self.id, self.epoch)


class Plan(msgspec.Struct, frozen=True):
    """One run: what it writes, and what is exported after that."""

    format: int
    run: int
    slices: list[Slice]
    after: Manifest


def plan_next(
    before: Manifest, standing: Mapping[str, Standing], cut: Cut, *, skip_lost: bool
) -> tuple[Plan, list[str]]:
    """Return what came since *before* in the topics as they stand, and a sentence for each loss skipped.

    A partition goes on at its next offset and never goes back, also where a truncation let others take
    offsets that were exported; one that is new begins at its first record, and so does a topic that was made
    again.

    Raises:
        CordwoodError: If records are lost, unless *skip_lost*.
    """
    slices: list[Slice] = []
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
                slices += [Slice(*piece, after.made_again) for piece in pieces]
    if lost and not skip_lost:
        raise loss_refused(lost[0])
    run = before.run + 1
    return Plan(FORMAT, run, slices, Manifest(FORMAT, run, topics)), [loss_text(each) for each in lost]


def loss_text(loss: RecordsLost) -> str:
    """Return what is lost, and why, as the beginning of a sentence."""
    offsets = (
        f"offsets {loss.start} up to {loss.end}" if loss.start < loss.end else f"offsets from {loss.start} on"
    )
    return f"{offsets} of partition {loss.partition} of topic {loss.topic} are lost: {loss.reason}"


def loss_refused(loss: RecordsLost) -> CordwoodError:
    """Return *loss* as the sentence that ends an export."""
    return CordwoodError(
        f"{loss_text(loss)}; with --skip-lost the export goes on at the next record there is"
    )


def _is_another(known: TopicProgress, now: Standing) -> bool:
    return UNKNOWN_ID not in (known.id, now.topic_id) and known.id != now.topic_id


def _after(known: TopicProgress | None, now: Standing) -> TopicProgress:
    """Return the progress of a topic once all that it holds now is exported."""
    made_again = known.made_again if known is not None else 0
    partitions: dict[int, Progress] = {}
    if known is not None and _is_another(known, now):
        made_again, known = made_again + 1, None
    if known is not None:
        partitions.update(known.partitions)
    for number, ends in sorted(now.partitions.items()):
        reached = partitions.get(number, Progress(ends.start, UNKNOWN_EPOCH))
        # What cannot be seen by address today is not forgotten, for the day that it can.
        epoch = reached.epoch if ends.epoch == UNKNOWN_EPOCH else ends.epoch
        partitions[number] = Progress(max(reached.next, ends.end), epoch)
    topic_id = now.topic_id
    if topic_id == UNKNOWN_ID and known is not None:
        topic_id = known.id
    return TopicProgress(topic_id, made_again, partitions)


def _find_losses(topic: str, known: TopicProgress, now: Standing) -> list[RecordsLost]:
    """Return what of a topic is gone since it was exported, or went before it could be."""
    if _is_another(known, now):
        reason = f"the topic was deleted and made again, with id {now.topic_id} in place of {known.id}"
        number, reached = min(known.partitions.items(), default=(0, Progress(0, UNKNOWN_EPOCH)))
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


def _cut_below(reached: Progress, ends: Ends) -> int | None:
    """Return where the partition was truncated if that took what was exported, else None.

    A cut above what was exported took nothing from it. But only the last one is known: before several, an
    earlier one may have gone deeper.
    """
    if UNKNOWN_EPOCH in (reached.epoch, ends.epoch):
        return ends.end if ends.end < reached.next and ends.epoch == UNKNOWN_EPOCH else None
    if ends.epoch == reached.epoch:
        return None
    several = ends.epoch > reached.epoch + 1
    return ends.epoch_start if several or ends.epoch_start < reached.next else None
