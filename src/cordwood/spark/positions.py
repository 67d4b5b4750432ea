"""How far a stream has read, as Spark's checkpoint keeps it, and what it means when the log is another. Pure.

``{"orders": {"0": 123}, "_": {"orders": ["<topic id>", epoch]}}``: the next offset to read of each partition,
and of which topic that was said. A topic made again has another id, a truncated one another epoch; by
address neither is always known, and what is not known agrees with everything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cordwood.errors import ConfigError, RecordsLost
from cordwood.spark.access import UNKNOWN_EPOCH, UNKNOWN_ID, Piece, Standing
from cordwood.spark.planning import Partition

_IDENTITIES = "_"


@dataclass(frozen=True)
class Positions:
    """The next offset to read of each partition, and (id, epoch) of each topic."""

    offsets: Mapping[Partition, int]
    identities: Mapping[str, tuple[str, int]]

    def to_json(self) -> dict[str, Any]:
        """Return what Spark keeps. Equal positions give equal texts, which is how Spark compares them."""
        found: dict[str, Any] = {}
        for (topic, number), offset in sorted(self.offsets.items()):
            found.setdefault(topic, {})[str(number)] = offset
        return found | {_IDENTITIES: {name: list(self.identities[name]) for name in sorted(self.identities)}}


def from_json(stored: Mapping[str, Any]) -> Positions:
    """Return the positions that Spark kept."""
    topics = [topic for topic in stored if topic != _IDENTITIES]
    return Positions(
        {(topic, int(number)): offset for topic in topics for number, offset in stored[topic].items()},
        {topic: (found[0], found[1]) for topic, found in stored.get(_IDENTITIES, {}).items()},
    )


def at(offsets: Mapping[Partition, int], standing: Mapping[str, Standing]) -> Positions:
    """Return *offsets* as positions in the topics as they stand.

    Raises:
        ConfigError: If a topic has the one name that the checkpoint needs for itself.
    """
    if _IDENTITIES in standing:
        raise ConfigError("subscribe", f"a topic named {_IDENTITIES} cannot be read as a stream")
    return Positions(offsets, {topic: (found.topic_id, found.epoch) for topic, found in standing.items()})


def settle(start: Positions, standing: Mapping[str, Standing], *, fail_on_data_loss: bool) -> Positions:
    """Return where reading goes on in the topics as they stand, from where it was at *start*.

    A partition that is new starts at its first record, and so does every one of a topic that was made again.
    What was removed is skipped; nothing ever goes back. A position beyond the end stays: what it waits for
    is not published yet.

    Raises:
        RecordsLost: If something was removed and *fail_on_data_loss* is set.
    """
    lost = [] if not fail_on_data_loss else _gone(start, standing)
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


def is_another(start: Positions, topic: str, now: Standing) -> bool:
    """Return whether a topic is not the one that *start* was said of."""
    known = start.identities.get(topic, (UNKNOWN_ID, UNKNOWN_EPOCH))[0]
    return UNKNOWN_ID not in (known, now.topic_id) and known != now.topic_id


def _gone(start: Positions, standing: Mapping[str, Standing]) -> list[RecordsLost]:
    return [
        RecordsLost(topic, number, offset, offset, "there is no such partition any more")
        for (topic, number), offset in start.offsets.items()
        if topic not in standing or number not in standing[topic].partitions
    ]


def _replaced(start: Positions, topic: str, now: Standing) -> list[RecordsLost]:
    """Return what is lost if a topic was made again or truncated since *start* was said of it."""
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
    """Return what of *piece* is not in a partition that now begins at *start* and ends at *end*.

    *epochs* are (start offset, leader epoch) of the partition: records cut since *piece* was planned are
    lost even where others have taken their offsets.
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
