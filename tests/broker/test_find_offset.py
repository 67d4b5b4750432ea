"""What a time stands for, exactly as Kafka's clients ask for it."""

from __future__ import annotations

from typing import cast

import pytest
from broker.nodes import batch_of, open_on

from cordwood.broker.node import Node
from cordwood.broker.offsets import (
    EARLIEST,
    EARLIEST_LOCAL,
    EARLIEST_PENDING,
    LATEST,
    LATEST_TIERED,
    NEWEST,
    Position,
    find_offset,
)
from cordwood.disk.memory import MemoryFiles
from cordwood.storage.log import Partition

NOWHERE = Position(-1, -1)


class Sorted:
    """A partition from offset *start* on, with the timestamps given: all that is asked of one."""

    def __init__(self, start: int, *timestamps: int) -> None:
        self.log_start_offset = start
        self.high_watermark = start + len(timestamps)
        self._records = list(enumerate(timestamps, start))

    def offset_at(self, timestamp: int) -> tuple[int, int] | None:
        return next((record for record in self._records if record[1] >= timestamp), None)

    def newest(self) -> tuple[int, int] | None:
        return max(self._records, key=lambda record: (record[1], -record[0]), default=None)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (LATEST, Position(13, -1)),
        (EARLIEST, Position(10, -1)),
        (EARLIEST_LOCAL, Position(10, -1)),
        (NEWEST, Position(11, 300)),
        (LATEST_TIERED, NOWHERE),
        (EARLIEST_PENDING, NOWHERE),
        (0, Position(10, 100)),
        (100, Position(10, 100)),
        (101, Position(11, 300)),
        (300, Position(11, 300)),
        (301, NOWHERE),
    ],
)
def test_each_stand_in_and_each_time_finds_its_place(asked: int, expected: Position) -> None:
    assert find_offset(cast("Partition", Sorted(10, 100, 300, 200)), asked) == expected


@pytest.mark.parametrize(
    ("asked", "expected"),
    [(LATEST, Position(7)), (EARLIEST, Position(7)), (NEWEST, NOWHERE), (0, NOWHERE), (2**62, NOWHERE)],
)
def test_a_partition_without_records_has_both_ends_and_nothing_between(
    asked: int, expected: Position
) -> None:
    assert find_offset(cast("Partition", Sorted(7)), asked) == expected


@pytest.mark.parametrize("asked", [-7, -100, -(2**63)])
def test_any_other_negative_time_is_refused(asked: int) -> None:
    with pytest.raises(ValueError, match=f"no such time: {asked}"):
        find_offset(cast("Partition", Sorted(0, 1)), asked)


def asked_of(node: Node, *times: int) -> list[Position]:
    return [node.find_offset("orders", 0, time) for time in times]


def at(offset: int, timestamp: int = -1) -> Position:
    """Return a place in a log that was never truncated."""
    return Position(offset, timestamp, leader_epoch=0)


def test_a_real_partition_answers_before_its_first_record_and_after() -> None:
    with open_on(MemoryFiles(), {"cordwood.initial.offset": "5"}) as node:
        node.topics.create("orders")
        assert asked_of(node, LATEST, EARLIEST, NEWEST, 0) == [at(5), at(5), NOWHERE, NOWHERE]
        for timestamp in (1000, 3000, 2000):
            placed = node.append("orders", 0, batch_of(b"value", timestamp=timestamp))
        # What is not durable is not there for a reader.
        assert asked_of(node, LATEST, NEWEST, 1000) == [at(5), NOWHERE, NOWHERE]
        placed.log.commit()
        assert asked_of(node, LATEST, EARLIEST) == [at(8), at(5)]
        assert asked_of(node, NEWEST, 1001, 3001) == [at(6, 3000), at(6, 3000), NOWHERE]
