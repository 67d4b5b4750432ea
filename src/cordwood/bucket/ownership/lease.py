"""The lease: how long an owner may acknowledge what the bucket does not have; when a standby takes over.

Pure arithmetic on times that the caller reads, in milliseconds of a clock that goes on while the machine
sleeps. The clocks of two machines may differ in their rates, by less than the half lease that a standby waits
longer.

Why no two processes acknowledge at the same time. A standby claims the log by replacing a manifest that it
read *before* it looked for newer pieces a last time, and it looked when its newest piece was 1.5 leases old.
A piece that it did not see by then was created later, when the owner's lease had run out by its own clock; so
the owner replaces the manifest before it acknowledges again, and one of the two replacements is refused.
"""

from __future__ import annotations

from dataclasses import dataclass

#: How many pieces an owner creates in one lease.
PIECES_IN_A_LEASE = 3


@dataclass(slots=True)
class OwnerLease:
    """Until when the owner may acknowledge. ``lease_ms`` is 0 if no standby takes over by itself.

    ``sent_ms`` is when the newest piece was sent for the first time, taken before `add_piece`. Not a later
    try: the first one may be what a standby has seen.
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
        """Count the lease from *sent_ms*, when the piece was sent that was there by *now_ms*.

        Returns False, and changes nothing, if the lease has run out meanwhile: a standby may be about to
        claim the log, whether or not it sees the piece. The owner goes on with `renew_claim` and `restart`.
        """
        assert sent_ms >= self.sent_ms, "pieces are sent in order"
        if not self.may_acknowledge(now_ms):
            return False
        self.sent_ms = sent_ms
        return True

    def restart(self, sent_ms: int) -> None:
        """Count the lease from *sent_ms*, taken before the `renew_claim` that has ended."""
        assert sent_ms >= self.sent_ms, "requests are sent in order"
        self.sent_ms = sent_ms


@dataclass(slots=True)
class StandbyLease:
    """How long a standby has seen nothing new: neither a piece nor a manifest."""

    #: The next piece to read and the revision of the manifest at the last look.
    position: tuple[int, int]
    #: When the position was first seen.
    since_ms: int
    #: When the last look began.
    asked_ms: int

    def look(self, position: tuple[int, int], asked_ms: int, answered_ms: int) -> None:
        """Note that a look which began at *asked_ms* and ended at *answered_ms* found *position*."""
        if position != self.position:
            # Counted from the end of the look, because the piece may have been created just before that.
            self.position, self.since_ms = position, answered_ms
        self.asked_ms = asked_ms

    def has_run_out(self, lease_ms: int) -> bool:
        """Return whether the standby may claim the log. Judged by the beginning of the last look.

        The claim must replace the manifest that was read before that look.
        """
        return lease_ms > 0 and (self.asked_ms - self.since_ms) * 2 >= lease_ms * 3
