"""Fetches that wait until enough bytes arrive or their time is up. On the loop only.

Bytes of an open transaction do not arrive for a reader of committed records: they arrive with its end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

from cordwood.records import TopicPartition


class Waiter:
    """One waiting fetch. ``missing`` counts down as its partitions get bytes.

    ``withheld`` are the partitions that it reads up to an open transaction, with the last stable offset.
    """

    __slots__ = ("missing", "places", "wake", "withheld")

    def __init__(self, places: frozenset[TopicPartition], missing: int, wake: Callable[[], None]) -> None:
        self.places = places
        self.missing = missing
        self.wake = wake
        self.withheld: Mapping[TopicPartition, int] = _NOTHING


_NOTHING: Mapping[TopicPartition, int] = MappingProxyType({})


class Parking:
    """The waiting fetches by partition. *last_stable* returns the last stable offset of an open partition."""

    def __init__(self, last_stable: Callable[[str, int], int | None]) -> None:
        self._last_stable = last_stable
        self._waiters: dict[TopicPartition, set[Waiter]] = {}

    def __len__(self) -> int:
        return len({waiter for waiters in self._waiters.values() for waiter in waiters})

    def add(self, places: Iterable[TopicPartition], missing: int, wake: Callable[[], None]) -> Waiter:
        """Start counting bytes for a fetch; call *wake* on every append while no bytes are missing.

        Called before the fetch first reads, so that no append during the read is missed.
        """
        waiter = Waiter(frozenset(places), missing, wake)
        for place in waiter.places:
            self._waiters.setdefault(place, set()).add(waiter)
        return waiter

    def withhold(self, waiter: Waiter, withheld: Mapping[TopicPartition, int]) -> None:
        """Note where a fetch found open transactions, and the last stable offsets that it found.

        No bytes are missing once one of these offsets has moved, also if it moved since it was found.
        """
        waiter.withheld = withheld
        if any(self._last_stable(*place) != found for place, found in withheld.items()):
            waiter.missing = 0

    def remove(self, waiter: Waiter) -> None:
        """Remove a fetch that was answered. Idempotent."""
        for place in waiter.places:
            waiters = self._waiters.get(place)
            if waiters is not None:
                waiters.discard(waiter)
                if not waiters:
                    del self._waiters[place]

    def advance(self, place: TopicPartition, size: int) -> None:
        """Note that *size* more bytes can be read from the partition *place*."""
        for waiter in list(self._waiters.get(place, ())):
            withheld = waiter.withheld.get(place)
            if withheld is None:
                waiter.missing -= size
            elif self._last_stable(*place) != withheld:
                waiter.missing = 0
            if waiter.missing <= 0:
                waiter.wake()

    def wake_topic(self, topic: str) -> None:
        """Wake all fetches that wait for a deleted topic, regardless of missing bytes."""
        self._wake_at([place for place in self._waiters if place[0] == topic])

    def wake_all(self) -> None:
        """Wake all fetches, regardless of missing bytes."""
        self._wake_at(list(self._waiters))

    def _wake_at(self, places: Iterable[TopicPartition]) -> None:
        for waiter in {waiter for place in places for waiter in self._waiters[place]}:
            waiter.missing = 0
            waiter.wake()
