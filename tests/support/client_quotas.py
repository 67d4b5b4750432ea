"""Requests for client quotas, and requests that are throttled by them."""

from __future__ import annotations

from collections.abc import Mapping

from cordwood.formats import batch
from cordwood.protocol.apis import ApiKey
from cordwood.protocol.error_codes import ErrorCode
from cordwood.protocol.messages.client_quotas import (
    AlterClientQuotasRequest,
    DescribeClientQuotasRequest,
    QuotaAlteration,
    QuotaComponent,
    QuotaEntity,
    QuotaOperation,
)
from cordwood.protocol.messages.fetch import FetchResponse
from cordwood.protocol.messages.produce import ProduceResponse
from support.asking import Asking, values_in

NONE = ErrorCode.NONE
Entity = Mapping[str, str | None]
Limits = Mapping[str, float | None]


def alteration(entity: Entity, limits: Limits) -> QuotaAlteration:
    """Return the change of an entity's limits; None removes a limit."""
    ops = [
        QuotaOperation(key=limit, value=0.0 if value is None else value, remove=value is None)
        for limit, value in limits.items()
    ]
    return QuotaAlteration(entity=[QuotaEntity(*part) for part in entity.items()], ops=ops)


def quotas_of(entity: Entity, limits: Limits, *, validate_only: bool = False) -> AlterClientQuotasRequest:
    """Return the request that changes limits of one entity; None removes a limit."""
    return AlterClientQuotasRequest(entries=[alteration(entity, limits)], validate_only=validate_only)


def ask_to_alter(
    client: Asking, *entries: QuotaAlteration, validate_only: bool = False, version: int | None = None
) -> list[tuple[dict[str, str | None], ErrorCode]]:
    """Ask for changes and return the result for each entity."""
    request = AlterClientQuotasRequest(entries=list(entries), validate_only=validate_only)
    results = client.ask(ApiKey.ALTER_CLIENT_QUOTAS, request, version).entries
    assert all((each.error_message is None) == (not each.error_code) for each in results)
    return [
        ({part.entity_type: part.entity_name for part in each.entity}, ErrorCode(each.error_code))
        for each in results
    ]


def alter(client: Asking, entity: Entity, **limits: float | None) -> None:
    """Change limits of one entity; None removes a limit."""
    assert ask_to_alter(client, alteration(entity, limits)) == [(entity, NONE)]


def described(
    client: Asking, *components: tuple[str, int, str | None], strict: bool = False, version: int | None = None
) -> list[tuple[dict[str, str | None], dict[str, float]]]:
    """Return the entities that match *components* (type, match type, name), with their limits."""
    asked = [QuotaComponent(*each) for each in components]
    request = DescribeClientQuotasRequest(components=asked, strict=strict)
    answer = client.ask(ApiKey.DESCRIBE_CLIENT_QUOTAS, request, version)
    assert (answer.error_code, answer.error_message) == (NONE, None)
    return [
        (
            {part.entity_type: part.entity_name for part in each.entity},
            {one.key: one.value for one in each.values},
        )
        for each in answer.entries
    ]


def produced(client: Asking, size: int) -> int:
    """Produce a record of *size* bytes and return the throttle time."""
    data = batch.encode_records([(None, b"v" * size)], 1_000)
    answer: ProduceResponse = client.ask(ApiKey.PRODUCE, client.produce_request("orders", {0: data}))
    assert answer.topics[0].partitions[0].error_code == NONE
    return answer.throttle_time_ms


def fetched(client: Asking) -> tuple[int, int]:
    """Fetch from offset 0; return the number of records and the throttle time."""
    answer: FetchResponse = client.ask(ApiKey.FETCH, client.fetch_request("orders", {0: 0}))
    return len(values_in(answer.topics[0].partitions[0])), answer.throttle_time_ms
