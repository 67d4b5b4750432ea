"""The deadlines of the members of a group."""

from __future__ import annotations

import heapq
from enum import Enum
from typing import NamedTuple


class Waiting(Enum):
    """What a member must do before a deadline."""

    #: Send a heartbeat.
    SESSION = "the member session expired"
    #: Stop owning partitions; the deadline is that of one epoch.
    REVOKE = "the member failed to revoke partitions within the rebalance timeout"
    #: Join again, as a member of the classic protocol.
    JOIN = "the member failed to join within the rebalance timeout"
    #: Ask for its assignment, as a member of the classic protocol.
    SYNC = "the member failed to sync within the rebalance timeout"


class DeadlineKey(NamedTuple):
    """Whose deadline it is, and for what."""

    member_id: str
    waiting: Waiting


class Deadlines:
    """Deadlines by member. Extending one costs constant time."""

    def __init__(self) -> None:
        self._at: dict[DeadlineKey, int] = {}
        # At least one time per deadline, none of them later than it.
        self._times: list[tuple[int, str, str]] = []
        self._listed: dict[DeadlineKey, int] = {}

    def __contains__(self, key: DeadlineKey) -> bool:
        return key in self._at

    def set(self, key: DeadlineKey, at_ms: int) -> None:
        """Set or move a deadline."""
        self._at[key] = at_ms
        if self._listed.get(key, at_ms + 1) > at_ms:
            self._listed[key] = at_ms
            heapq.heappush(self._times, (at_ms, key.member_id, key.waiting.name))

    def cancel(self, key: DeadlineKey) -> None:
        """Remove a deadline, if it is set."""
        self._at.pop(key, None)

    def cancel_all(self, member_id: str) -> None:
        """Remove all deadlines of a member."""
        for waiting in Waiting:
            self.cancel(DeadlineKey(member_id, waiting))

    def next(self) -> int | None:
        """Return a time that is not later than the first deadline, or None."""
        return self._times[0][0] if self._times else None

    def due(self, now_ms: int) -> list[DeadlineKey]:
        """Remove and return the deadlines that have passed."""
        passed = []
        while self._times and self._times[0][0] <= now_ms:
            listed_ms, member_id, name = heapq.heappop(self._times)
            key = DeadlineKey(member_id, Waiting[name])
            if self._listed.get(key) != listed_ms:
                continue
            del self._listed[key]
            at_ms = self._at.get(key)
            if at_ms is None:
                continue
            if at_ms <= now_ms:
                del self._at[key]
                passed.append(key)
            else:
                self.set(key, at_ms)
        return passed
