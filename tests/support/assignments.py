"""Assignments that Apache Kafka's own assignors made, as ``interop/java/Assignors.java`` prints them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from cordwood.broker.groups.consumer.assignors import ASSIGNORS, Subscriber


def differences(lines: Iterable[str]) -> tuple[int, list[str]]:
    """Return how many assignments were compared, and the lines of those that are not the same here."""
    compared, found = 0, []
    for line in lines:
        case: dict[str, Any] = json.loads(line)
        ids = [bytes.fromhex(name) for name, _ in case["topics"]]
        counts = {topic: count for topic, (_, count) in zip(ids, case["topics"], strict=True)}
        members = {
            name: Subscriber(instance, frozenset(ids[number] for number in topics), _partitions(had, ids))
            for name, instance, topics, had in case["members"]
        }
        assign = ASSIGNORS[case["assignor"]]
        made = assign(members, counts, homogeneous=case["homogeneous"])
        wanted = [_partitions(each, ids) for each in case["assigned"]]
        if [dict(made.get(name, {})) for name in members] != wanted:
            found.append(line)
        compared += 1
    return compared, found


def _partitions(stored: dict[str, list[int]], ids: list[bytes]) -> dict[bytes, tuple[int, ...]]:
    return {ids[int(number)]: tuple(partitions) for number, partitions in stored.items()}
