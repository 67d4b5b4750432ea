"""Notification that partitions have more to read, for a watcher that cannot wait in a thread for each."""

from __future__ import annotations

from collections.abc import Callable

Watcher = Callable[[str, int], None]
"""Takes the topic and the number of a partition."""


class GrowthWatch:
    """Tells one watcher which partitions may have more to read, or were failed, closed or deleted.

    The watcher is called in the thread that noticed, often with locks of the log held: it must return at
    once, must not raise and must not call the log.
    """

    __slots__ = ("watcher",)

    def __init__(self) -> None:
        self.watcher: Watcher | None = None

    def tell(self, topic: str, partition: int) -> None:
        """Tell the watcher, if there is one, about a partition."""
        if self.watcher is not None:
            self.watcher(topic, partition)
