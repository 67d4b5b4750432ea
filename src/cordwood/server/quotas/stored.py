"""The client quotas of the orgs of a server, which are in the catalogue of its data directory."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping

from cordwood.errors import MetadataDamaged
from cordwood.security import ClientEntity, ClientQuotas, entity_fault, entity_of, limit_fault
from cordwood.storage.directory import DataDirectory
from cordwood.storage.meta import ClientQuotaEntry, SecurityStore, catalogue_path

RunChange = Callable[[Callable[[], list[bool]]], Awaitable[list[bool]]]
"""Runs a call that may block in a thread, and returns its result."""
LimitChanges = Mapping[str, float | None]
"""Limits to set by name, and those to remove with None."""


class StoredQuotas:
    """The client quotas of *org*, and durable changes to them. On the loop only."""

    def __init__(self, limits: ClientQuotas, org: int, store: SecurityStore) -> None:
        self.limits = limits
        self._org = org
        self._store = store
        # A change sets all limits of an entity, so it must know the ones before it.
        self._changing = asyncio.Lock()

    async def alter(self, changes: Mapping[ClientEntity, LimitChanges], run: RunChange) -> None:
        """Apply valid *changes*, all or none; what they do not name stays. Durable and in force on return.

        Raises:
            QuotaExceeded: If there would be too many. Nothing was changed.
            StorageError: If they cannot be stored.
        """
        async with self._changing:
            altered = {
                entity: _altered(self.limits.of(entity), limits)
                for entity, limits in changes.items()
                if limits
            }
            entries = [
                ClientQuotaEntry(self._org, entity.parts(), limits) for entity, limits in altered.items()
            ]
            await run(lambda: self._store.change(entries))
            for entity, limits in altered.items():
                self.limits.set(entity, limits)


def _altered(before: Mapping[str, float], changes: LimitChanges) -> dict[str, float]:
    merged = {**before, **changes}
    return {limit: value for limit, value in merged.items() if value is not None}


def load_client_quotas(directory: DataDirectory) -> Callable[[int], StoredQuotas]:
    """Return a function that returns the client quotas of an org.

    Those of all orgs are read here: the function itself neither blocks nor fails. Call it on the loop.

    Raises:
        MetadataDamaged: If a stored quota cannot be enforced.
    """
    store = directory.security

    def having(org: int, entries: Iterable[ClientQuotaEntry]) -> StoredQuotas:
        limits = ClientQuotas()
        for entry in entries:
            faults = [entity_fault(entry.entity), *(limit_fault(*each) for each in entry.limits.items())]
            fault = next(filter(None, faults), None)
            if fault is not None:
                raise MetadataDamaged(catalogue_path(directory.path), f"a client quota of org {org}: {fault}")
            limits.set(entity_of(entry.entity), entry.limits)
        return StoredQuotas(limits, org, store)

    kept = {org: having(org, store.client_quotas(org)) for org in store.orgs_with_client_quotas()}

    def of(org: int) -> StoredQuotas:
        if org not in kept:
            # There was none at start, and every change since then has come through this function.
            kept[org] = having(org, ())
        return kept[org]

    return of
