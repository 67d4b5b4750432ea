"""Quotas of an org: bytes per second and stored bytes of all its clients together."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable

from cordwood.config import OrgQuota
from cordwood.host import Clock
from cordwood.protocol import ApiKey

#: Before a batch is refused, the stored bytes are counted again unless the last count is younger than this.
RECOUNT_NS = 1_000_000_000
#: The interval of counts while no batch is refused.
COUNT_AGAIN_NS = 60_000_000_000
_THROTTLE_MS_MAX = 2**31 - 1
_NO_LIMIT = 1 << 63
_LOGGER = logging.getLogger("cordwood.server")

Count = Callable[[], int]
RunUsageWork = Callable[[Callable[[], int], Callable[["int | Exception"], None]], None]
Decide = Callable[[bool], None]


class Rate:
    """A rate limit in bytes per second. On the loop only.

    Unused bytes accumulate for one second at most, which limits a burst. Bytes above the limit are a debt;
    a client waits as long as the rate needs to repay it.
    """

    def __init__(self, bytes_per_second: int, clock: Clock) -> None:
        self.bytes_per_second = bytes_per_second
        self._clock = clock
        self._left = float(bytes_per_second)
        self._since_ns = clock.monotonic_ns()

    def reconfigure(self, bytes_per_second: int) -> None:
        """Change the rate. An existing debt remains."""
        self._refill()
        self.bytes_per_second = bytes_per_second
        self._left = min(self._left, float(bytes_per_second))

    def _refill(self) -> None:
        now_ns = self._clock.monotonic_ns()
        gained = (now_ns - self._since_ns) / 1e9 * self.bytes_per_second
        self._left = min(self._left + gained, float(self.bytes_per_second))
        self._since_ns = now_ns

    def use(self, size: int) -> int:
        """Count *size* bytes; return the milliseconds to wait."""
        self._refill()
        self._left -= size
        return self._wait_ms()

    def owed_ms(self) -> int:
        """Return the milliseconds until the debt is repaid."""
        self._refill()
        return self._wait_ms()

    def _wait_ms(self) -> int:
        # Rounded up: a client must not return before the debt is repaid.
        owed_ms = -(self._left * 1000 // self.bytes_per_second)
        return int(min(max(owed_ms, 0), _THROTTLE_MS_MAX))


class StoredBytes:
    """A limit on the stored bytes of an org. On the loop only, except *count*.

    Appended bytes are added to the last count; bytes freed by retention or deletion are found by another
    count, in a thread. No batch is refused on an old count. Requests that need a new count wait in a queue,
    so that the batches of a producer stay in order; all requests wait for the first count.
    """

    def __init__(self, limit: int, count: Count, run_in_thread: RunUsageWork, clock: Clock) -> None:
        self.limit = limit
        self._count = count
        self._run_in_thread = run_in_thread
        self._clock = clock
        self._stored: int | None = None
        self._counted_ns = 0
        self._counting = False
        self._outdated = False
        self._added = 0
        # Bytes that are admitted and neither appended nor given up: a count may or may not include them.
        self._under_way = 0
        self._line: deque[tuple[int, Decide]] = deque()

    def admit(self, size: int, decide: Decide) -> Callable[[], None] | None:
        """Call *decide*, now or later, with whether *size* more bytes may be stored, and add them if so.

        After admission the caller must call `settle`. Returns None if *decide* was called, else a function
        that cancels the request.
        """
        turn = (size, decide)
        if not self._line and self._try(turn, last_word=False):
            if self._clock.monotonic_ns() - self._counted_ns >= COUNT_AGAIN_NS:
                self._recount()
            return None
        self._line.append(turn)
        self._recount()
        return lambda: self._leave(turn)

    def _leave(self, turn: tuple[int, Decide]) -> None:
        if turn in self._line:
            self._line.remove(turn)

    def settle(self, size: int, refused: int) -> None:
        """Note that *size* admitted bytes were appended, except *refused* of them."""
        self._under_way -= size
        self._added -= refused
        if self._stored is not None:
            self._stored -= refused

    def count_again(self) -> None:
        """Note that the stored bytes changed by an unknown amount: a count is due."""
        self._counted_ns = -COUNT_AGAIN_NS
        self._outdated = True

    def _try(self, turn: tuple[int, Decide], *, last_word: bool) -> bool:
        """Decide if the current count allows a decision; return whether it did."""
        size, decide = turn
        if self._stored is None:
            return False
        admitted = self._stored + size <= self.limit
        recent = self._clock.monotonic_ns() - self._counted_ns < RECOUNT_NS
        if not admitted and not last_word and not recent:
            return False
        if admitted:
            self._stored += size
            self._added += size
            self._under_way += size
        decide(admitted)
        return True

    def _recount(self) -> None:
        if not self._counting:
            self._counting = True
            self._outdated = False
            self._added = self._under_way
            self._run_in_thread(self._count, self._counted)

    def _counted(self, result: int | Exception) -> None:
        self._counting = False
        if isinstance(result, Exception):
            # Continue with the old count: waiting requests must not wait forever.
            _LOGGER.warning("the stored bytes of an org could not be counted: %s", result)
            self._stored = self._stored or 0
        else:
            # The count may already include some bytes added since: an overestimate is the safe error.
            self._stored = result + self._added
        if self._outdated and self._line:
            # Data was deleted during the count, maybe by a client that waits for it.
            self._recount()
            return
        if not self._outdated:
            self._counted_ns = self._clock.monotonic_ns()
        line, self._line = self._line, deque()
        for turn in line:
            self._try(turn, last_word=True)


class OrgQuotas:
    """The limits of one org and their usage. On the loop only."""

    def __init__(
        self, quota: OrgQuota, org: int, count: Count, run_in_thread: RunUsageWork, clock: Clock
    ) -> None:
        self._org = org
        self._count = count
        self._run_in_thread = run_in_thread
        self._clock = clock
        self._produced: Rate | None = None
        self._fetched: Rate | None = None
        self.stored: StoredBytes | None = None
        self.reconfigure(quota)

    def reconfigure(self, quota: OrgQuota) -> None:
        """Apply other limits. The usage so far still counts."""
        self._produced = self._rate(self._produced, quota.producer_byte_rate)
        self._fetched = self._rate(self._fetched, quota.consumer_byte_rate)
        limit = quota.stored_bytes
        if self.stored is not None:
            # Requests in the queue are decided by the new limit.
            self.stored.limit = _NO_LIMIT if limit is None else limit
        if limit is None:
            self.stored = None
        elif self.stored is None:
            self.stored = StoredBytes(limit, self._count, self._run_in_thread, self._clock)

    def _rate(self, before: Rate | None, bytes_per_second: int | None) -> Rate | None:
        if before is None or bytes_per_second is None:
            return None if bytes_per_second is None else Rate(bytes_per_second, self._clock)
        if before.bytes_per_second != bytes_per_second:
            before.reconfigure(bytes_per_second)
        return before

    def produced(self, size: int) -> int:
        """Count a produce request of *size* bytes; return the milliseconds that its client must wait."""
        return 0 if self._produced is None else self._produced.use(size)

    def fetched(self, size: int) -> int:
        """Count *size* fetched bytes; return the milliseconds that the client must wait."""
        return 0 if self._fetched is None else self._fetched.use(size)

    def fetch_max(self, size: int) -> int:
        """Return *size* limited to the bytes that the org may fetch in one second."""
        return size if self._fetched is None else min(size, self._fetched.bytes_per_second)

    def owed_ms(self, api_key: ApiKey) -> int:
        """Return the milliseconds that a new connection must wait with its first request of this kind."""
        if api_key is ApiKey.PRODUCE and self._produced is not None:
            return self._produced.owed_ms()
        if api_key is ApiKey.FETCH and self._fetched is not None:
            return self._fetched.owed_ms()
        return 0

    def freed(self) -> None:
        """Note that the stored bytes changed other than by admitted batches."""
        if self.stored is not None:
            self.stored.count_again()

    def stored_refusal(self) -> str:
        """Return the error message for a batch that exceeds the limit."""
        assert self.stored is not None
        return f"cordwood.org.{self._org}.stored.bytes is {self.stored.limit}, and the batch would exceed it"
