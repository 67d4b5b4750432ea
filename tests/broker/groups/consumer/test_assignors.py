"""The server's assignors give the partitions to the members that Apache Kafka's give them to."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest
from support.assignments import differences
from support.seeds import seeds_from

from cordwood.broker.groups.consumer.assignors import ASSIGNORS, Subscriber, TargetAssignment

#: What Kafka 4.3.1 printed for ``Assignors.java 1 24``; ``make interop`` compares thousands more.
TABLE = Path(__file__).parent / "assignments_of_kafka.jsonl"
SEEDS = seeds_from(20_261_119, 300)


def test_assignments_are_those_of_apache_kafka() -> None:
    with TABLE.open() as lines:
        compared, found = differences(lines)
    assert compared == 96
    assert found == []


def check(
    members: dict[str, Subscriber], counts: dict[bytes, int], assigned: dict[str, TargetAssignment]
) -> None:
    """Check that each partition of a topic that somebody is subscribed to has one owner, a subscriber."""
    owners = Counter(
        (topic, partition)
        for name, target in assigned.items()
        for topic, partitions in target.items()
        for partition in partitions
        if topic in members[name].topics
    )
    subscribed = {topic for member in members.values() for topic in member.topics}
    assert owners == Counter((topic, partition) for topic in subscribed for partition in range(counts[topic]))
    assert all(
        list(each) == sorted(each) and each for target in assigned.values() for each in target.values()
    )


@pytest.mark.parametrize("name", ASSIGNORS)
def test_every_partition_has_one_owner_whatever_changes(name: str) -> None:
    for seed in SEEDS:
        draw = random.Random(seed)
        counts = {draw.randbytes(16): draw.randint(1, 20) for _ in range(draw.randint(1, 6))}
        members: dict[str, Subscriber] = {}
        alike = draw.random() < 0.4
        for _ in range(5):
            for _ in range(draw.randint(0, 8)):
                chosen = frozenset(topic for topic in counts if alike or draw.random() < 0.6)
                members[draw.randbytes(8).hex()] = Subscriber(None, chosen, {})
            members = {key: member for key, member in members.items() if draw.random() < 0.8}
            homogeneous = len({member.topics for member in members.values()}) < 2
            assigned = ASSIGNORS[name](members, counts, homogeneous=homogeneous)
            check(members, counts, assigned)
            members = {key: each._replace(assigned=assigned.get(key, {})) for key, each in members.items()}


def test_a_member_that_joins_takes_only_what_it_needs() -> None:
    counts = {bytes(15) + b"\1": 12}
    subscribed = frozenset(counts)
    members = {name: Subscriber(None, subscribed, {}) for name in ("a", "b", "c")}
    first = ASSIGNORS["uniform"](members, counts, homogeneous=True)
    members = {name: Subscriber(None, subscribed, first[name]) for name in members}
    members["d"] = Subscriber(None, subscribed, {})
    then = ASSIGNORS["uniform"](members, counts, homogeneous=True)
    moved = sum(len(set(first[name][topic]) - set(then[name][topic])) for name in first for topic in counts)
    assert moved == 3
    assert sorted(len(target[topic]) for target in then.values() for topic in target) == [3, 3, 3, 3]
