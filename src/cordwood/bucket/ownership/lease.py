"""The lease: until when the owner may acknowledge, and when a standby may claim the log.

A standby claims it when it has seen nothing new for one and a half leases. The half lease more than the owner
has is room for clocks that run at different rates. A claim replaces the manifest that was read before the
last look: an owner that was slow, and comes back, replaces the manifest before it acknowledges again, so one
of both is refused. Times are in milliseconds of a clock that the caller reads.
"""

from __future__ import annotations

from dataclasses import dataclass

#: How many pieces an owner creates in one lease.
PIECES_IN_A_LEASE = 3


@dataclass(slots=True)
class OwnerLease:
    """Until when the owner may acknowledge. ``lease_ms`` is 0 where no standby takes over by itself.

    ``sent_ms`` is when the newest piece was sent for the first time: a standby may have seen that try.
    """

    lease_ms: int
    sent_ms: int

    def may_acknowledge(self, now_ms: int) -> bool:
        """Return whether no standby can have taken over before *now_ms*."""
        return self.lease_ms == 0 or now_ms - self.sent_ms < self.lease_ms

    def is_due(self, now_ms: int) -> bool:
        """Return whether it is time to create a piece, even an empty one."""
        return self.lease_ms > 0 and (now_ms - self.sent_ms) * PIECES_IN_A_LEASE >= self.lease_ms

    def renew(self, sent_ms: int, now_ms: int) -> bool:
        """Count the lease from *sent_ms*, when a piece was sent that was there by *now_ms*.

        Returns False, and changes nothing, if the lease has run out meanwhile: a standby may be about to
        claim the log, without having seen the piece. Go on with `renew_claim` and `restart`.
        """
        if not self.may_acknowledge(now_ms):
            return False
        self.sent_ms = max(self.sent_ms, sent_ms)
        return True

    def restart(self, sent_ms: int) -> None:
        """Count the lease from *sent_ms*, before the `renew_claim` that has ended."""
        self.sent_ms = max(self.sent_ms, sent_ms)


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
