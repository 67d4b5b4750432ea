"""Quotas of an org: bytes per second and stored bytes of all its clients together, and of each of them."""

from __future__ import annotations

from cordwood.config import OrgQuota
from cordwood.host import Clock
from cordwood.protocol import ApiKey
from cordwood.security import (
    CONSUMER_BYTE_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    ClientQuotas,
    QuotaClient,
)
from cordwood.server.quotas.clients import ClientRates
from cordwood.server.quotas.rate import Rate
from cordwood.server.quotas.request_time import RequestTime
from cordwood.server.quotas.stored_bytes import Count, RunUsageWork, StoredBytes

_NO_LIMIT = 1 << 63


class OrgQuotas:
    """The limits of one org and its clients, and their usage. On the loop only.

    A client that exceeds a limit of its own and one of its org waits for the longer time of the two.
    """

    def __init__(
        self,
        quota: OrgQuota,
        org: int,
        clients: ClientQuotas,
        count: Count,
        run_in_thread: RunUsageWork,
        clock: Clock,
    ) -> None:
        """Begin to count. *clients* has the limits of clients, as they change."""
        self._org = org
        self._clients = ClientRates(clients, clock)
        # Asked for each request, so without a call for each.
        self._producers = self._clients.limited(PRODUCER_BYTE_RATE)
        self._consumers = self._clients.limited(CONSUMER_BYTE_RATE)
        self._timed = self._clients.limited(REQUEST_PERCENTAGE)
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
        if before.per_second != bytes_per_second:
            before.reconfigure(bytes_per_second)
        return before

    @property
    def limits_producers(self) -> bool:
        """Whether a producer may have to wait: if not, nothing needs to be counted."""
        return self._produced is not None or bool(self._producers)

    @property
    def limits_consumers(self) -> bool:
        """Whether a consumer may have to wait: if not, nothing needs to be counted."""
        return self._fetched is not None or bool(self._consumers)

    def produced(self, client: QuotaClient, size: int) -> int:
        """Count a produce request of *size* bytes; return the milliseconds that *client* must wait."""
        return _use(self._produced, self._clients.find(PRODUCER_BYTE_RATE, client), size)

    def fetched(self, client: QuotaClient, size: int) -> int:
        """Count *size* fetched bytes; return the milliseconds that *client* must wait."""
        return _use(self._fetched, self._clients.find(CONSUMER_BYTE_RATE, client), size)

    def fetch_max(self, client: QuotaClient, size: int) -> int:
        """Return *size* limited to the bytes that *client* may fetch in one second, which are 1 or more."""
        for rate in (self._fetched, self._clients.find(CONSUMER_BYTE_RATE, client)):
            if rate is not None:
                size = min(size, max(int(rate.per_second), 1))
        return size

    def owed_ms(self, api_key: ApiKey, client: QuotaClient) -> int:
        """Return the milliseconds that a new connection must wait with its first request of this kind."""
        time = self.time_of(client)
        wait_ms = 0 if time is None else time.owed_ms()
        if api_key is ApiKey.PRODUCE:
            return max(wait_ms, self.produced(client, 0))
        return max(wait_ms, self.fetched(client, 0)) if api_key is ApiKey.FETCH else wait_ms

    def time_of(self, client: QuotaClient) -> RequestTime | None:
        """Return what counts the time for one request of *client*, or None if that has no limit."""
        rate = self._clients.find(REQUEST_PERCENTAGE, client)
        return None if rate is None else RequestTime(rate, self._clock)

    @property
    def limits_time(self) -> bool:
        """Whether any client has a limit of time."""
        return bool(self._timed)

    def freed(self) -> None:
        """Note that the stored bytes changed other than by admitted batches."""
        if self.stored is not None:
            self.stored.count_again()

    def stored_refusal(self) -> str:
        """Return the error message for a batch that exceeds the limit."""
        assert self.stored is not None
        return f"cordwood.org.{self._org}.stored.bytes is {self.stored.limit}, and the batch would exceed it"


def _use(shared: Rate | None, own: Rate | None, size: int) -> int:
    """Count *size* for the rate of the org and that of the client; return the longer time to wait."""
    wait_ms = 0 if shared is None else shared.use(size)
    return wait_ms if own is None else max(wait_ms, own.use(size))
