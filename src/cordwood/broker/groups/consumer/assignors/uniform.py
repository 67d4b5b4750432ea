"""The assignor ``uniform``: each member gets as many partitions as the others, and keeps those that it had.

If all members are subscribed to the same topics, shares differ by at most one, and this takes time in
proportion to the numbers of members and partitions.
"""

from __future__ import annotations

from collections.abc import Mapping

from cordwood.broker.groups.consumer.assignors.contract import Partitions, Subscriber, TargetAssignment
from cordwood.broker.groups.consumer.assignors.mixed import assign_mixed
from cordwood.broker.groups.consumer.assignors.ordering import (
    hash_of_id,
    hash_of_number,
    hash_of_text,
    in_table_order,
    order_of_id,
    slots_of_copied,
    slots_of_grown,
)

TopicIdPartition = tuple[bytes, int]


def assign_uniform(
    members: Mapping[str, Subscriber], counts: Mapping[bytes, int], *, homogeneous: bool
) -> dict[str, TargetAssignment]:
    """Return the target assignment of each member; see `Assignor`."""
    if not members:
        return {}
    if not homogeneous:
        return assign_mixed(members, counts)
    # Sorted, so that topics of one slot have an order too.
    topics = sorted(next(iter(members.values())).topics, key=order_of_id)
    return _assign_equal(members, {topic: counts[topic] for topic in topics}) if topics else {}


def _assign_equal(
    members: Mapping[str, Subscriber], counts: Mapping[bytes, int]
) -> dict[str, TargetAssignment]:
    """Return the assignment of members that are all subscribed to the topics in *counts*."""
    free = _unassigned(members, counts)
    share, more = divmod(sum(counts.values()), len(members))
    unfilled: list[tuple[str, int]] = []
    target: dict[str, TargetAssignment] = {}
    names = in_table_order(members, hash_of_text, slots_of_grown(len(members)))
    for number, name in enumerate(names):
        has_extra = more > 0
        kept, left = _kept(members[name].assigned, counts, share + has_extra, free)
        if left > 0 and has_extra and len(names) - number > more:
            # Another member may claim the extra partition, unless every member that is left has to take one.
            left -= 1
            has_extra = False
        if left > 0:
            unfilled.append((name, left))
        more -= has_extra
        target[name] = kept
    taken = 0
    for name, left in unfilled:
        target[name] = _with(target[name], free[taken : taken + left])
        taken += left
    assert taken >= len(free), "a partition was left unassigned"
    return target


def _unassigned(members: Mapping[str, Subscriber], counts: Mapping[bytes, int]) -> list[TopicIdPartition]:
    """Return the partitions that no member has, in order."""
    owned: dict[bytes, set[int]] = {topic: set() for topic in counts}
    for member in members.values():
        for topic, partitions in member.assigned.items():
            if topic in owned:
                owned[topic].update(partitions)
    return [
        (topic, partition)
        for topic in in_table_order(counts, hash_of_id, slots_of_copied(len(counts)))
        for partition in range(counts[topic])
        if partition not in owned[topic]
    ]


def _kept(
    assigned: TargetAssignment, counts: Mapping[bytes, int], quota: int, free: list[TopicIdPartition]
) -> tuple[TargetAssignment, int]:
    """Return what a member with *quota* keeps, and how many more it may get; add what it loses to *free*."""
    kept: dict[bytes, Partitions] = {}
    changed = False
    topics = sorted(assigned, key=order_of_id)
    for topic in in_table_order(topics, hash_of_id, slots_of_grown(len(topics))):
        partitions = assigned[topic]
        if topic not in counts:
            changed = True
        elif len(partitions) <= quota:
            quota -= len(partitions)
            kept[topic] = partitions
        else:
            changed = True
            order = in_table_order(partitions, hash_of_number, slots_of_copied(len(partitions)))
            free += ((topic, partition) for partition in order[quota:])
            if quota:
                kept[topic] = tuple(sorted(order[:quota]))
            quota = 0
    return kept if changed else assigned, quota


def _with(assigned: TargetAssignment, more: list[TopicIdPartition]) -> TargetAssignment:
    """Return *assigned* and *more*."""
    added: dict[bytes, list[int]] = {}
    for topic, partition in more:
        added.setdefault(topic, []).append(partition)
    joined = dict(assigned)
    for topic, partitions in added.items():
        joined[topic] = tuple(sorted((*assigned.get(topic, ()), *partitions)))
    return joined if added else assigned
