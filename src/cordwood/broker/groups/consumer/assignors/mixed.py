"""``uniform`` for members with different subscriptions.

Members keep their partitions; free ones go to the subscriber with the fewest. Then, topic by topic,
partitions move from the subscribers with the most to those with the fewest, until no move makes them more
equal, or until `ROUNDS_MAX` rounds over all topics.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from cordwood.broker.groups.consumer.assignors.contract import Subscriber, TargetAssignment
from cordwood.broker.groups.consumer.assignors.ordering import (
    hash_of_text,
    in_table_order,
    order_of_id,
    slots_of_grown,
)

#: Subscriptions that overlap without being equal may take many rounds; each about halves the imbalance.
ROUNDS_MAX = 16
_FREE = -1


def assign_mixed(
    members: Mapping[str, Subscriber], counts: Mapping[bytes, int]
) -> dict[str, TargetAssignment]:
    """Return the target assignment of each member; see `Assignor`."""
    names = in_table_order(members, hash_of_text, slots_of_grown(len(members)))
    shares = _Shares([members[name] for name in names], counts)
    if not shares.subscribers:
        return {}
    shares.assign_free()
    shares.balance()
    return dict(zip(names, shares.assignments(), strict=True))


class _Shares:
    """The owner of each partition while an assignment is made. Members are numbers."""

    def __init__(self, members: list[Subscriber], counts: Mapping[bytes, int]) -> None:
        self.subscribers: dict[bytes, list[int]] = {}
        for number, member in enumerate(members):
            for topic in member.topics:
                self.subscribers.setdefault(topic, []).append(number)
        self.sizes = [0] * len(members)
        self.owners = {topic: [_FREE] * counts[topic] for topic in self.subscribers}
        for number, member in enumerate(members):
            for topic, partitions in member.assigned.items():
                if topic in member.topics:
                    for partition in partitions:
                        self.owners[topic][partition] = number
                    self.sizes[number] += len(partitions)

    def assign_free(self) -> None:
        """Assign partitions without an owner."""
        free = {
            topic: [partition for partition, owner in enumerate(owners) if owner == _FREE]
            for topic, owners in self.owners.items()
        }
        for topic in self._sorted(topic for topic, partitions in free.items() if partitions):
            scales = _Scales(self.subscribers[topic], self.sizes)
            for partition in free[topic]:
                self._give(topic, partition, scales.next_lightest())

    def balance(self) -> None:
        """Move partitions between subscribers of the same topic, in rounds over all topics."""
        topics = self._sorted(topic for topic, names in self.subscribers.items() if len(names) > 1)
        last_moved: bytes | None = None
        for _ in range(ROUNDS_MAX):
            for topic in topics:
                if topic == last_moved:
                    return
                if self._balance_topic(topic) or last_moved is None:
                    last_moved = topic

    def _balance_topic(self, topic: bytes) -> int:
        """Move partitions of *topic* from the heaviest subscribers to the lightest; return how many."""
        scales = _Scales(self.subscribers[topic], self.sizes)
        if scales.difference <= 1:
            return 0
        owned: dict[int, list[int]] = {}
        for partition, owner in enumerate(self.owners[topic]):
            owned.setdefault(owner, []).append(partition)
        moved = 0
        while not scales.is_level():
            heaviest = scales.next_heaviest(owned)
            if heaviest is None:
                break
            partition = owned[heaviest].pop()
            lightest = scales.next_lightest()
            if scales.is_level():
                break
            self._give(topic, partition, lightest)
            moved += 1
        return moved

    def _give(self, topic: bytes, partition: int, member: int) -> None:
        old = self.owners[topic][partition]
        if old != _FREE:
            self.sizes[old] -= 1
        self.owners[topic][partition] = member
        self.sizes[member] += 1

    def _sorted(self, topics: Iterable[bytes]) -> list[bytes]:
        """Return *topics* by their partitions per subscriber: first the one with the most."""

        def order(topic: bytes) -> tuple[float, int, tuple[int, int]]:
            names = len(self.subscribers[topic])
            return -len(self.owners[topic]) / names, names, order_of_id(topic)

        return sorted(topics, key=order)

    def assignments(self) -> list[TargetAssignment]:
        """Return the assignment of each member."""
        lists: list[dict[bytes, list[int]]] = [{} for _ in self.sizes]
        for topic, owners in self.owners.items():
            for partition, owner in enumerate(owners):
                if owner != _FREE:
                    lists[owner].setdefault(topic, []).append(partition)
        return [{topic: tuple(partitions) for topic, partitions in each.items()} for each in lists]


class _Scales:
    """The subscribers of a topic by their numbers of partitions, which change while it is used.

    Two ranges grow towards each other: the lightest members, which have got as many partitions as each other,
    and the heaviest, which have given up as many. Members behind the heaviest have nothing to give up.
    """

    def __init__(self, members: Sequence[int], sizes: list[int]) -> None:
        self._sizes = sizes
        self._order = sorted(members, key=lambda member: (sizes[member], member))
        smallest, largest = sizes[self._order[0]], sizes[self._order[-1]]
        #: How many more partitions the heaviest has than the lightest, at first.
        self.difference = largest - smallest
        self._light_end, self._light_size, self._next_light = 0, smallest - 1, 0
        self._heavy_start = self._heavy_end = len(self._order)
        self._heavy_size, self._next_heavy = largest + 1, len(self._order) - 1

    def is_level(self) -> bool:
        """Return whether no move between the ranges makes them more equal."""
        return self._heavy_size - self._light_size <= 1

    def next_lightest(self) -> int:
        """Return the member that gets the next partition."""
        if self._next_light >= self._light_end:
            self._light_size += 1
            while self._light_end < len(self._order) and self._size(self._light_end) == self._light_size:
                self._light_end += 1
            self._next_light = 0
        self._next_light += 1
        return self._order[self._next_light - 1]

    def next_heaviest(self, owned: Mapping[int, Sequence[int]]) -> int | None:
        """Return the member that gives up the next partition of *owned*, or None if none has any."""
        while True:
            if self._next_heavy < self._heavy_start:
                self._extend_heavy()
            if self._next_heavy < 0:
                return None
            member = self._order[self._next_heavy]
            if owned.get(member):
                self._next_heavy -= 1
                return member
            last = self._heavy_end - 1
            self._order[self._next_heavy], self._order[last] = self._order[last], member
            self._heavy_end = last
            self._next_heavy -= 1

    def _extend_heavy(self) -> None:
        if self._heavy_end <= self._heavy_start and self._heavy_start > 0:
            self._heavy_size = self._size(self._heavy_start - 1)
        else:
            self._heavy_size -= 1
        while self._heavy_start > 0 and self._size(self._heavy_start - 1) == self._heavy_size:
            self._heavy_start -= 1
        self._next_heavy = self._heavy_end - 1

    def _size(self, at: int) -> int:
        return self._sizes[self._order[at]]
