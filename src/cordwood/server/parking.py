"""Fetches that wait for records: parked until enough has come, or their time is up. On the loop only."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from cordwood.records import TopicPartition


class Waiter:
    """One fetch that waits. ``missing`` counts down as bytes come to the partitions it reads."""

    __slots__ = ("missing", "places", "wake")

    def __init__(self, places: frozenset[TopicPartition], missing: int, wake: Callable[[], None]) -> None:
        self.places = places
        self.missing = missing
        self.wake = wake


class Parking:
    """Who waits for which partition."""

    def __init__(self) -> None:
        self._waiters: dict[TopicPartition, set[Waiter]] = {}

    def __len__(self) -> int:
        return len({waiter for waiters in self._waiters.values() for waiter in waiters})

    def add(self, places: Iterable[TopicPartition], missing: int, wake: Callable[[], None]) -> Waiter:
        """Count bytes for a fetch from now on; call *wake*, again and again, while none are missing.

        Added before the fetch first reads, so that nothing that comes meanwhile is overlooked.
        """
        waiter = Waiter(frozenset(places), missing, wake)
        for place in waiter.places:
            self._waiters.setdefault(place, set()).add(waiter)
        return waiter

    def remove(self, waiter: Waiter) -> None:
        """Forget a fetch that was answered. Idempotent."""
        for place in waiter.places:
            waiters = self._waiters.get(place)
            if waiters is not None:
                waiters.discard(waiter)
                if not waiters:
                    del self._waiters[place]

    def advance(self, place: TopicPartition, size: int) -> None:
        """Take note that *size* bytes more can be read at *place*."""
        for waiter in list(self._waiters.get(place, ())):
            waiter.missing -= size
            if waiter.missing <= 0:
                waiter.wake()

    def wake_topic(self, topic: str) -> None:
        """Wake who waits for a topic that is gone, whatever they miss: nothing more will come."""
        self._wake_at([place for place in self._waiters if place[0] == topic])

    def wake_all(self) -> None:
        """Wake everyone, whatever they miss."""
        self._wake_at(list(self._waiters))

    def _wake_at(self, places: Iterable[TopicPartition]) -> None:
        for waiter in {waiter for place in places for waiter in self._waiters[place]}:
            waiter.missing = 0
            waiter.wake()
