"""What the clients of an org may do together: bytes a second, and bytes stored."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable

from cordwood.config import OrgQuota
from cordwood.host import Clock
from cordwood.protocol import ApiKey

#: Before anything is refused for being too much it is counted again, unless that was done so recently.
RECOUNT_NS = 1_000_000_000
#: … and while nothing is refused, so often.
COUNT_AGAIN_NS = 60_000_000_000
_THROTTLE_MS_MAX = 2**31 - 1
_NO_LIMIT = 1 << 63
_LOGGER = logging.getLogger("cordwood.server")

Count = Callable[[], int]
RunUsageWork = Callable[[Callable[[], int], Callable[["int | Exception"], None]], None]
Decide = Callable[[bool], None]


class Rate:
    """A number of bytes a second. On the loop only.

    What was not used is kept for one second at most, so that is the longest burst. What was used too much is
    owed, and the time it takes to make up for that is the time that whoever used it waits.
    """

    def __init__(self, bytes_per_second: int, clock: Clock) -> None:
        self.bytes_per_second = bytes_per_second
        self._clock = clock
        self._left = float(bytes_per_second)
        self._since_ns = clock.monotonic_ns()

    def reconfigure(self, bytes_per_second: int) -> None:
        """Allow another number of bytes a second. What is owed stays owed."""
        self._refill()
        self.bytes_per_second = bytes_per_second
        self._left = min(self._left, float(bytes_per_second))

    def _refill(self) -> None:
        now_ns = self._clock.monotonic_ns()
        gained = (now_ns - self._since_ns) / 1e9 * self.bytes_per_second
        self._left = min(self._left + gained, float(self.bytes_per_second))
        self._since_ns = now_ns

    def use(self, size: int) -> int:
        """Count *size* bytes, and return for how many milliseconds to wait now."""
        self._refill()
        self._left -= size
        return self._wait_ms()

    def owed_ms(self) -> int:
        """Return how long it takes to make up for what was used."""
        self._refill()
        return self._wait_ms()

    def _wait_ms(self) -> int:
        # Rounded up: a client that came back a moment too early would be counted as ahead of its time.
        owed_ms = -(self._left * 1000 // self.bytes_per_second)
        return int(min(max(owed_ms, 0), _THROTTLE_MS_MAX))


class StoredBytes:
    """A number of bytes that an org may have stored. On the loop only, but for *count*.

    What is appended is added; what retention or a deletion freed is found by counting again, in a thread.
    Nothing is refused on an old count. Who has to wait for a new one waits in line, so that the batches of
    a producer stay in order; so does everyone until the first count is there.
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
        # Admitted and neither appended nor given up: a count may or may not have it.
        self._under_way = 0
        self._line: deque[tuple[int, Decide]] = deque()

    def admit(self, size: int, decide: Decide) -> Callable[[], None] | None:
        """Call *decide*, now or later, with whether *size* bytes more may be stored; they are added if so.

        Whoever is admitted calls `settle`. Returns None if that is decided, else what to call if nobody
        waits for it any more.
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
        """Take note that *size* bytes that were admitted were appended, but for *refused* of them."""
        self._under_way -= size
        self._added -= refused
        if self._stored is not None:
            self._stored -= refused

    def count_again(self) -> None:
        """Take note that more or less may be stored than was added: a count is due."""
        self._counted_ns = -COUNT_AGAIN_NS
        self._outdated = True

    def _try(self, turn: tuple[int, Decide], *, last_word: bool) -> bool:
        """Decide if that can be done on the count there is."""
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
            # As good as it gets; who waits must not wait for ever.
            _LOGGER.warning("what an org has stored could not be counted: %s", result)
            self._stored = self._stored or 0
        else:
            # Some of what was added since may have been counted, too: rather too much than too little.
            self._stored = result + self._added
        if self._outdated and self._line:
            # Something was deleted while we counted, and who waits may have done that.
            self._recount()
            return
        if not self._outdated:
            self._counted_ns = self._clock.monotonic_ns()
        line, self._line = self._line, deque()
        for turn in line:
            self._try(turn, last_word=True)


class OrgQuotas:
    """The limits of one org, and how much of them is used. On the loop only."""

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
        """Apply other limits. What was used under those before counts on."""
        self._produced = self._rate(self._produced, quota.producer_byte_rate)
        self._fetched = self._rate(self._fetched, quota.consumer_byte_rate)
        limit = quota.stored_bytes
        if self.stored is not None:
            # Those who wait in line are decided by the limit that holds then.
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
        """Count a produce request of *size* bytes; return for how many milliseconds its client is to wait."""
        return 0 if self._produced is None else self._produced.use(size)

    def fetched(self, size: int) -> int:
        """Count *size* bytes of records that were fetched; return how many milliseconds to wait."""
        return 0 if self._fetched is None else self._fetched.use(size)

    def fetch_max(self, size: int) -> int:
        """Return how much of *size* bytes one fetch may return: no more than the org may have in a second."""
        return size if self._fetched is None else min(size, self._fetched.bytes_per_second)

    def owed_ms(self, api_key: ApiKey) -> int:
        """Return how long a client that only now connects is to wait with its first request of this kind."""
        if api_key is ApiKey.PRODUCE and self._produced is not None:
            return self._produced.owed_ms()
        if api_key is ApiKey.FETCH and self._fetched is not None:
            return self._fetched.owed_ms()
        return 0

    def freed(self) -> None:
        """Take note that less may be stored than before, or more than was admitted."""
        if self.stored is not None:
            self.stored.count_again()

    def stored_refusal(self) -> str:
        """Return why a batch is refused that would be too much."""
        assert self.stored is not None
        return (
            f"cordwood.org.{self._org}.stored.bytes is {self.stored.limit}, and that much would be exceeded"
        )
