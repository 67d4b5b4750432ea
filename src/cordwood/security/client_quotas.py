"""Quotas of clients by user and client id, with Kafka's precedence. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

USER, CLIENT_ID, IP = "user", "client-id", "ip"
PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE = "producer_byte_rate", "consumer_byte_rate"
REQUEST_PERCENTAGE = "request_percentage"
#: The limits that are enforced.
LIMITS = (PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE, REQUEST_PERCENTAGE)
#: Limits of Kafka that are refused: to store them would promise what nothing does.
REFUSED_LIMITS = ("controller_mutation_rate",)
#: The longest name of a user or a client id in a quota, in characters.
QUOTA_NAME_MAX = 1000
#: In the place of a name: the entity has no part of this type. A name is never empty.
ABSENT = ""
_LISTED = f"{', '.join(LIMITS[:-1])} or {LIMITS[-1]}"
_INT64_MAX = 2**63 - 1
_FRACTION_MAX = 1e-6


class QuotaClient(NamedTuple):
    """Who makes a request, as quotas know it: the name of its user, and its client id or ``ABSENT``."""

    user: str
    client_id: str


class ClientEntity(NamedTuple):
    """Whose limits or usage: for each type a name, None for the default of the type, or ``ABSENT``."""

    user: str | None = ABSENT
    client_id: str | None = ABSENT

    def parts(self) -> dict[str, str | None]:
        """Return the name for each type that is part of the entity."""
        named = ((USER, self.user), (CLIENT_ID, self.client_id))
        return {kind: name for kind, name in named if name != ABSENT}


class AppliedLimit(NamedTuple):
    """The limit of a client, and the entity whose clients share it."""

    value: float
    shared_by: ClientEntity


class QuotaFilter(NamedTuple):
    """A choice of entities: by the names of types, None for the default, and by types with any name.

    With *strict*, an entity has no further types.
    """

    names: Mapping[str, str | None]
    types: Collection[str]
    strict: bool

    def selects(self, entity: ClientEntity) -> bool:
        """Return whether *entity* is one of those."""
        parts = entity.parts()
        return (
            all(kind in parts and parts[kind] == name for kind, name in self.names.items())
            and all(kind in parts for kind in self.types)
            and (not self.strict or len(parts) == len(self.names) + len(self.types))
        )


class ClientQuotas:
    """The limits of all entities. Not for several threads."""

    def __init__(self) -> None:
        self._of: dict[ClientEntity, Mapping[str, float]] = {}
        self._by_limit: dict[str, dict[ClientEntity, float]] = {limit: {} for limit in LIMITS}

    def set(self, entity: ClientEntity, limits: Mapping[str, float]) -> None:
        """Set all limits of *entity*; without limits it is removed."""
        if limits:
            self._of[entity] = dict(limits)
        else:
            self._of.pop(entity, None)
        for limit, values in self._by_limit.items():
            if limit in limits:
                values[entity] = limits[limit]
            else:
                values.pop(entity, None)

    def of(self, entity: ClientEntity) -> Mapping[str, float]:
        """Return the limits that *entity* itself was given."""
        return self._of.get(entity, {})

    def values(self, limit: str) -> Mapping[ClientEntity, float]:
        """Return the entities that have *limit*, and its values, as they change."""
        return self._by_limit[limit]

    def matching(self, wanted: QuotaFilter) -> Iterator[tuple[ClientEntity, Mapping[str, float]]]:
        """Yield the entities that *wanted* selects, with their limits."""
        return ((entity, limits) for entity, limits in self._of.items() if wanted.selects(entity))

    def applied(self, limit: str, client: QuotaClient) -> AppliedLimit | None:
        """Return the limit of *client*: that of the most specific entity which has it, or None."""
        values = self._by_limit[limit]
        if not values:
            return None
        for entity, shared_by in _precedence(*client):
            if entity in values:
                return AppliedLimit(values[entity], shared_by)
        return None


def _precedence(user: str, client_id: str) -> Iterable[tuple[ClientEntity, ClientEntity]]:
    """Return the entities whose limit may apply, first the most specific, each with who then shares it.

    A default is a limit for each name of its own, not for all of them together. As in Kafka, a client without
    a client id has the limits of its user only.
    """
    of_user = ClientEntity(user)
    if client_id == ABSENT:
        return (of_user, of_user), (ClientEntity(None), of_user)
    both, of_client_id = ClientEntity(user, client_id), ClientEntity(client_id=client_id)
    return (
        (both, both),
        (ClientEntity(user, None), both),
        (of_user, of_user),
        (ClientEntity(None, client_id), both),
        (ClientEntity(None, None), both),
        (ClientEntity(None), of_user),
        (of_client_id, of_client_id),
        (ClientEntity(client_id=None), of_client_id),
    )


def entity_fault(parts: Mapping[str, str | None]) -> str | None:
    """Return what is wrong with an entity of these types and names, or None."""
    if not parts:
        return "the entity is empty: expected a user, a client-id or both"
    for kind, name in parts.items():
        if kind == IP:
            return "quotas of addresses are not supported: expected a user, a client-id or both"
        if kind not in (USER, CLIENT_ID):
            return f"unknown entity type {kind!r}: expected user or client-id"
        if name is not None and not 1 <= len(name) <= QUOTA_NAME_MAX:
            return f"a {kind} of {len(name)} characters: expected 1 to {QUOTA_NAME_MAX}"
    return None


def entity_of(parts: Mapping[str, str | None]) -> ClientEntity:
    """Return an entity without a fault."""
    return ClientEntity(parts.get(USER, ABSENT), parts.get(CLIENT_ID, ABSENT))


def limit_fault(limit: str, value: float) -> str | None:
    """Return what is wrong with a limit, or None."""
    if limit in REFUSED_LIMITS:
        return f"{limit} is not supported: expected {_LISTED}"
    if limit not in LIMITS:
        return f"unknown limit {limit!r}: expected {_LISTED}"
    if not (math.isfinite(value) and value > 0):
        return f"{limit} must be greater than 0, not {value}"
    # The float that is nearest to the greatest number may be given, as in Kafka, although it is one more.
    if value > float(_INT64_MAX):
        return f"{limit} must be at most {_INT64_MAX}, not {value}"
    if limit != REQUEST_PERCENTAGE and value % 1 > _FRACTION_MAX:
        return f"{limit} must be a whole number, not {value}"
    return None
