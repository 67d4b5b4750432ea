"""The usage of clients with quotas."""

from __future__ import annotations

import math
from collections.abc import Mapping

from cordwood.host import Clock
from cordwood.security import (
    CONSUMER_BYTE_RATE,
    LIMITS,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    ClientEntity,
    ClientQuotas,
    QuotaClient,
)
from cordwood.server.quotas.rate import Rate

#: The number of entities whose usage of a limit is known. Clients choose their client ids.
ENTITIES_MAX = 10_000
#: What is counted, for one of what a limit says: bytes, and nanoseconds for a percentage of each second.
_UNITS = {PRODUCER_BYTE_RATE: 1, CONSUMER_BYTE_RATE: 1, REQUEST_PERCENTAGE: 10_000_000}
#: A pause of the machine, which looks like work, must not slow a client for hours. Kafka counts as long.
_DEBT_SECONDS_MAX = {REQUEST_PERCENTAGE: 10}


class ClientRates:
    """What the clients of an org used of their limits. On the loop only.

    A limit is looked up for each request, so a change applies to the next one of every connection. The usage
    of an entity is forgotten when others come and it no longer matters, or if there are too many.
    """

    def __init__(self, quotas: ClientQuotas, clock: Clock) -> None:
        self._quotas = quotas
        self._clock = clock
        # In the order of the last use.
        self._rates: dict[str, dict[ClientEntity, Rate]] = {limit: {} for limit in LIMITS}

    def limited(self, limit: str) -> Mapping[ClientEntity, float]:
        """Return the entities that have *limit*, as they change; most servers have none."""
        return self._quotas.values(limit)

    def find(self, limit: str, client: QuotaClient) -> Rate | None:
        """Return the rate that *client* shares with all clients of its entity, or None without a limit."""
        applied = self._quotas.applied(limit, client)
        if applied is None:
            return None
        per_second = applied.value * _UNITS[limit]
        rates = self._rates[limit]
        rate = rates.pop(applied.shared_by, None)
        if rate is None:
            self._forget_oldest(rates)
            rate = Rate(per_second, self._clock, _DEBT_SECONDS_MAX.get(limit, math.inf))
        elif rate.per_second != per_second:
            rate.reconfigure(per_second)
        rates[applied.shared_by] = rate
        return rate

    def _forget_oldest(self, rates: dict[ClientEntity, Rate]) -> None:
        # Two for each new one: what many clients once left behind does not stay.
        for _ in range(2):
            oldest = next(iter(rates), None)
            if oldest is not None and (len(rates) >= ENTITIES_MAX or rates[oldest].is_unused()):
                del rates[oldest]
