"""The assignor ``range``: each member gets consecutive partitions of each topic that it is subscribed to.

Topics with as many partitions and the same subscribers are assigned alike, so equal keys of both meet in one
member. Static members come first, in the order of their instance ids, so that their ranges rarely change.
"""

from __future__ import annotations

from collections.abc import Mapping

from cordwood.broker.groups.consumer.assignors.contract import Partitions, Subscriber, TargetAssignment
from cordwood.broker.groups.consumer.assignors.ordering import order_of_text


def assign_ranges(
    members: Mapping[str, Subscriber], counts: Mapping[bytes, int], *, homogeneous: bool
) -> dict[str, TargetAssignment]:
    """Return the target assignment of each member; see `Assignor`."""

    def order(member_id: str) -> tuple[bool, bytes]:
        instance_id = members[member_id].instance_id
        return instance_id is None, order_of_text(member_id if instance_id is None else instance_id)

    subscribers: dict[bytes, list[str]] = {}
    for member_id in sorted(members, key=order):
        for topic in members[member_id].topics:
            subscribers.setdefault(topic, []).append(member_id)
    assigned: dict[str, dict[bytes, Partitions]] = {member_id: {} for member_id in members}
    for topic, names in subscribers.items():
        share, more = divmod(counts[topic], len(names))
        first = 0
        for number, member_id in enumerate(names):
            end = first + share + (number < more)
            if first == end:
                break
            assigned[member_id][topic] = tuple(range(first, end))
            first = end
    return dict(assigned)
