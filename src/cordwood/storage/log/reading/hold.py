"""A hold on visibility: what is appended to several partitions comes into view in all of them at once."""

from __future__ import annotations


class VisibilityHold:
    """Keeps records that are appended to several partitions from readers until it ends.

    All of these partitions look at one flag, so they change for readers at the same moment, without a lock.
    A hold that never ends keeps the records from readers until the directory is opened again.
    """

    __slots__ = ("ended",)

    def __init__(self) -> None:
        self.ended = False

    def end(self) -> None:
        """Show everything that was held back. All of it must be durable."""
        self.ended = True
