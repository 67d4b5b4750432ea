"""Events that changed nothing, collected for a while: a bounded number, shared fairly by who caused them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable

from cordwood.broker.audit import AuditEvent, AuditKind, AuditRow

#: The number of different events that are kept: clients without rights must not fill the disk.
COLLECTED_MAX = 100


class CollectedEvents:
    """At most `COLLECTED_MAX` different events, each with how often it happened.

    While there is no room, an event replaces one of the org that has most, or of the client of its own org
    that has most: no org keeps another one off the record, and no client another one of its org. What is
    left out is counted with the last kept event of its client.
    """

    def __init__(self) -> None:
        self._rows: dict[Hashable, AuditRow] = {}
        # How many are of each org; for each org the events of each client, in their order; and how many of a
        # client were left out.
        self._totals: Counter[int] = Counter()
        self._kept: dict[int, dict[str, list[Hashable]]] = {}
        self._left_out: Counter[tuple[int, str]] = Counter()

    def add(self, row: AuditRow) -> int:
        """Add an event, and return how many were left out for it: it, or those that it replaces."""
        event = row.happened
        same = self._rows.get(key := _likeness(event))
        if same is not None:
            same.count += 1
            return 0
        org, client = event.org, _client(event)
        left_out = 0
        if len(self._rows) >= COLLECTED_MAX:
            found = self._replaced(org, client)
            if found is None:
                if self._mine(org, client):
                    self._left_out[org, client] += row.count
                return row.count
            left_out = self._leave_out(*found)
        self._rows[key] = row
        self._totals[org] += 1
        self._kept.setdefault(org, {}).setdefault(client, []).append(key)
        return left_out

    def take(self) -> list[AuditRow]:
        """Return the events in the order in which they came first, and begin anew."""
        for (org, client), count in self._left_out.items():
            self._rows[self._kept[org][client][-1]].omitted = count
        taken, self._rows = list(self._rows.values()), {}
        self._totals.clear()
        self._kept.clear()
        self._left_out.clear()
        return taken

    def _mine(self, org: int, client: str) -> int:
        return len(self._kept.get(org, {}).get(client, ()))

    def _replaced(self, org: int, client: str) -> tuple[int, str] | None:
        """Return the org and the client that give up an event for one of *client*; None if nobody does."""
        largest = max(self._totals, key=self._totals.__getitem__)
        if self._totals[org] + 1 < self._totals[largest]:
            return largest, _largest(self._kept[largest])
        if org not in self._kept:
            return None
        other = _largest(self._kept[org])
        return (org, other) if self._mine(org, client) + 1 < self._mine(org, other) else None

    def _leave_out(self, org: int, client: str) -> int:
        """Remove the last event of a client, and return how often it happened."""
        self._totals[org] -= 1
        count = self._rows.pop(self._kept[org][client].pop()).count
        if self._kept[org][client]:
            self._left_out[org, client] += count
        else:
            # Of an org with many clients: only the number of all lost events tells of it.
            del self._kept[org][client]
            self._left_out.pop((org, client), None)
        return count


def _largest(kept: dict[str, list[Hashable]]) -> str:
    return max(kept, key=lambda client: len(kept[client]))


def _client(event: AuditEvent) -> str:
    """Return who caused an event. Who fails to log in claims any name, but has an address."""
    return event.host if event.event is AuditKind.AUTHENTICATION else event.principal


def _likeness(event: AuditEvent) -> Hashable:
    """Return what equal events have in common, which is everything but details."""
    return (
        event.event,
        event.org,
        event.principal,
        event.host,
        event.client_id,
        event.api,
        event.resource_type,
        event.resource,
        event.error,
    )
