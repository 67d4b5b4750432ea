"""When a standby may claim the log: it has seen nothing new for one and a half leases.

Times are in milliseconds of a clock that the caller reads. The half lease more than the owner has is room for
clocks that run at different rates. A claim replaces the manifest that was read before the last look: an owner
that was slow, and comes back, replaces the manifest before it acknowledges again, so one of both is refused.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class StandbyLease:
    """Since when a standby has seen neither a new piece nor a new manifest."""

    #: The next piece to read, and the revision of the manifest.
    position: tuple[int, int]
    #: When the position was first seen.
    since_ms: int
    #: When the last look began.
    asked_ms: int

    def look(self, position: tuple[int, int], asked_ms: int, answered_ms: int) -> None:
        """Note that a look from *asked_ms* to *answered_ms* found *position*."""
        if position != self.position:
            # The piece may have been created just before the answer.
            self.position, self.since_ms = position, answered_ms
        self.asked_ms = asked_ms

    def has_run_out(self, lease_ms: int) -> bool:
        """Return whether the log may be claimed, as of the beginning of the last look."""
        return lease_ms > 0 and (self.asked_ms - self.since_ms) * 2 >= lease_ms * 3
