"""The progress of a stream in Spark's checkpoint, and its meaning if the log was replaced. Pure.

``{"orders": {"0": 123}, "orders=<topic id>/<epoch>": {}}``: the next offset to read of each partition, as
Spark's Kafka connector writes it, and the identity of the topic. A topic that was created again has another
id, a truncated one another epoch; by address these may be unknown, and an unknown value matches any.

The connector reads a map of topics to maps of partitions to offsets. A topic without partitions adds nothing
to that, so a checkpoint works with both sources. No name of a topic contains ``=``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cordwood.errors import RecordsLost
from cordwood.spark.access.access import UNKNOWN_EPOCH, UNKNOWN_ID, Piece, TopicState
from cordwood.spark.access.planning import Partition

#: Checkpoints of the first versions had all identities under this key: ``{"orders": ["<topic id>", epoch]}``.
_FORMER = "_"


@dataclass(frozen=True)
class Positions:
    """The next offset to read of each partition, and (id, epoch) of each topic."""

    offsets: Mapping[Partition, int]
    identities: Mapping[str, tuple[str, int]]

    def to_json(self) -> dict[str, Any]:
        """Return the JSON for Spark. Equal positions give equal texts, because Spark compares the text."""
        found: dict[str, Any] = {}
        for (topic, number), offset in sorted(self.offsets.items()):
            found.setdefault(topic, {})[str(number)] = offset
        for topic, (topic_id, epoch) in sorted(self.identities.items()):
            if (topic_id, epoch) != (UNKNOWN_ID, UNKNOWN_EPOCH):
                found[f"{topic}={topic_id}/{epoch}"] = {}
        return found

    def topic_id(self, topic: str) -> str:
        """Return the id of the topic, `UNKNOWN_ID` if it was unknown."""
        return self.identities.get(topic, (UNKNOWN_ID, UNKNOWN_EPOCH))[0]


def from_json(stored: Mapping[str, Any]) -> Positions:
    """Return the positions from Spark's checkpoint, of this source or of Spark's Kafka connector."""
    offsets: dict[Partition, int] = {}
    identities: dict[str, tuple[str, int]] = {}
    for name, found in stored.items():
        topic, separator, identity = name.rpartition("=")
        if separator:
            topic_id, _, epoch = identity.rpartition("/")
            identities[topic] = (topic_id, int(epoch))
        elif name == _FORMER and any(isinstance(each, list) for each in found.values()):
            identities |= {topic: (each[0], each[1]) for topic, each in found.items()}
        else:
            offsets |= {(name, int(number)): offset for number, offset in found.items()}
    return Positions(offsets, identities)


def at(offsets: Mapping[Partition, int], standing: Mapping[str, TopicState]) -> Positions:
    """Return *offsets* as positions in the current topics."""
    return Positions(offsets, {topic: (found.topic_id, found.epoch) for topic, found in standing.items()})


def settle(start: Positions, standing: Mapping[str, TopicState], *, fail_on_data_loss: bool) -> Positions:
    """Return where reading continues in the current topics, from the positions *start*.

    A new partition starts at its first record, and so does every partition of a topic that was created again.
    Removed records are skipped; positions never move back. A position beyond the end stays: its records are
    not published yet.

    Raises:
        RecordsLost: If records were removed and *fail_on_data_loss* is set.
    """
    lost = [] if not fail_on_data_loss else find_gone(start, standing)
    offsets = {}
    for topic, now in standing.items():
        made_again = is_another(start, topic, now)
        if fail_on_data_loss:
            lost += _replaced(start, topic, now)
        for number, ends in now.partitions.items():
            position = None if made_again else start.offsets.get((topic, number))
            if position is not None and position < ends.start:
                lost.append(RecordsLost(topic, number, position, ends.start, _below(ends.start)))
            offsets[topic, number] = ends.start if position is None else max(position, ends.start)
    if lost and fail_on_data_loss:
        raise lost[0]
    return at(offsets, standing)


def is_another(start: Positions, topic: str, now: TopicState) -> bool:
    """Return whether a topic is not the one of *start*."""
    known = start.topic_id(topic)
    return UNKNOWN_ID not in (known, now.topic_id) and known != now.topic_id


def find_gone(start: Positions, standing: Mapping[str, TopicState]) -> list[RecordsLost]:
    """Return the records lost with the removed topics and partitions of *start*."""
    found = []
    for (topic, number), offset in sorted(start.offsets.items()):
        if topic not in standing:
            reached = [
                f"{n} up to {end}" for (name, n), end in sorted(start.offsets.items()) if name == topic
            ]
            reason = f"the topic was deleted after the query had read partition {', '.join(reached)}"
        elif number not in standing[topic].partitions:
            reason = "there is no such partition any more"
        else:
            continue
        found.append(RecordsLost(topic, number, offset, offset, reason))
    return found


def _replaced(start: Positions, topic: str, now: TopicState) -> list[RecordsLost]:
    """Return the records lost if a topic was created again or truncated since *start*."""
    known_id, known_epoch = start.identities.get(topic, (UNKNOWN_ID, UNKNOWN_EPOCH))
    positions = {number: offset for (name, number), offset in start.offsets.items() if name == topic}
    if is_another(start, topic, now):
        reason = f"the topic was deleted and made again, with id {now.topic_id} in place of {known_id}"
        return [RecordsLost(topic, number, offset, offset, reason) for number, offset in positions.items()]
    if UNKNOWN_EPOCH in (known_epoch, now.epoch) or known_epoch == now.epoch:
        return []
    found = []
    for number, ends in now.partitions.items():
        if ends.epoch > 0 and number in positions:
            position = positions[number]
            reason = f"the partition was truncated at {ends.epoch_start} after offset {position} was reached"
            found.append(RecordsLost(topic, number, min(ends.epoch_start, position), position, reason))
    if not found:
        number, position = min(positions.items(), default=(0, 0))
        reason = f"the topic has leader epoch {now.epoch}, but it was read at {known_epoch}"
        found.append(RecordsLost(topic, number, position, position, reason))
    return sorted(found, key=lambda loss: loss.start - loss.end)


def find_loss(
    piece: Piece, topic_id: str, start: int, end: int, epochs: Sequence[tuple[int, int]] = ()
) -> RecordsLost | None:
    """Return the part of *piece* that is missing in a partition with the offsets [start, end).

    *epochs* are (start offset, leader epoch) of the partition: records truncated since *piece* was planned
    are lost, even if new ones have their offsets.
    """
    topic, number = piece.topic, piece.partition
    if UNKNOWN_ID not in (piece.topic_id, topic_id) and piece.topic_id != topic_id:
        return RecordsLost(topic, number, piece.start, piece.end, "the topic was deleted and made again")
    if piece.start < start:
        return RecordsLost(topic, number, piece.start, min(start, piece.end), _below(start))
    cut = min((first for first, epoch in epochs if epoch > piece.epoch != UNKNOWN_EPOCH), default=piece.end)
    if min(cut, end) < piece.end:
        reason = f"the partition was truncated at {min(cut, end)}"
        return RecordsLost(topic, number, max(min(cut, end), piece.start), piece.end, reason)
    return None


def _below(start: int) -> str:
    return f"the log starts at {start} now"
