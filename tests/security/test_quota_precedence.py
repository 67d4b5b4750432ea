"""Which limit a client has, who shares it, which entities a filter selects, and what is refused: pure."""

from __future__ import annotations

import math

import pytest

from cordwood.security import (
    ABSENT,
    CONSUMER_BYTE_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    ClientEntity,
    ClientQuotas,
    QuotaClient,
    QuotaFilter,
    entity_fault,
    entity_of,
    limit_fault,
)

ALICE_ETL = QuotaClient("alice", "etl")
BOTH, OF_USER = ClientEntity("alice", "etl"), ClientEntity("alice")
OF_CLIENT_ID = ClientEntity(client_id="etl")
#: Kafka's eight levels, first the most specific: the entity with the limit, and who shares it if it applies
#: to alice's client etl.
LEVELS = [
    (ClientEntity("alice", "etl"), BOTH),
    (ClientEntity("alice", None), BOTH),
    (ClientEntity("alice"), OF_USER),
    (ClientEntity(None, "etl"), BOTH),
    (ClientEntity(None, None), BOTH),
    (ClientEntity(None), OF_USER),
    (ClientEntity(client_id="etl"), OF_CLIENT_ID),
    (ClientEntity(client_id=None), OF_CLIENT_ID),
]
#: Entities that look like one of these, and do not apply.
OTHERS = [
    ClientEntity("bob", "etl"),
    ClientEntity("alice", "web"),
    ClientEntity("bob", None),
    ClientEntity(None, "web"),
    ClientEntity("bob"),
    ClientEntity("etl"),
    ClientEntity(client_id="alice"),
    ClientEntity("etl", "alice"),
]


def quotas_of(*entities: ClientEntity) -> ClientQuotas:
    """Return quotas in which each entity has another limit: 1, 2, 3 and so on."""
    quotas = ClientQuotas()
    for number, entity in enumerate(entities, 1):
        quotas.set(entity, {PRODUCER_BYTE_RATE: float(number)})
    return quotas


@pytest.mark.parametrize("level", range(len(LEVELS)))
def test_the_limit_of_the_most_specific_entity_applies(level: int) -> None:
    """Whatever less specific ones there are, in whatever order they were set."""
    entities = [entity for entity, _ in LEVELS[level:]]
    for order in (entities, entities[::-1]):
        quotas = quotas_of(*order, *OTHERS)
        applied = quotas.applied(PRODUCER_BYTE_RATE, ALICE_ETL)
        assert applied == (order.index(entities[0]) + 1, LEVELS[level][1])


@pytest.mark.parametrize("other", OTHERS, ids=str)
def test_what_is_set_for_others_does_not_apply(other: ClientEntity) -> None:
    assert quotas_of(other).applied(PRODUCER_BYTE_RATE, ALICE_ETL) is None


def test_each_limit_has_its_own_precedence() -> None:
    quotas = ClientQuotas()
    quotas.set(BOTH, {CONSUMER_BYTE_RATE: 5.0})
    quotas.set(ClientEntity(client_id=None), {PRODUCER_BYTE_RATE: 7.0, CONSUMER_BYTE_RATE: 9.0})
    assert quotas.applied(CONSUMER_BYTE_RATE, ALICE_ETL) == (5.0, BOTH)
    assert quotas.applied(PRODUCER_BYTE_RATE, ALICE_ETL) == (7.0, OF_CLIENT_ID)


def test_a_default_is_for_each_name_on_its_own() -> None:
    quotas = quotas_of(ClientEntity(None))
    shared = {
        quotas.applied(PRODUCER_BYTE_RATE, QuotaClient(user, client_id))
        for user in ("alice", "bob")
        for client_id in ("etl", "web", ABSENT)
    }
    assert shared == {(1.0, ClientEntity("alice")), (1.0, ClientEntity("bob"))}


def test_a_client_without_a_client_id_has_the_limits_of_its_user_only() -> None:
    nameless = QuotaClient("alice", ABSENT)
    of_client_ids = [entity for entity, _ in LEVELS if entity.client_id != ABSENT]
    assert quotas_of(*of_client_ids).applied(PRODUCER_BYTE_RATE, nameless) is None
    every = quotas_of(*(entity for entity, _ in LEVELS))
    assert every.applied(PRODUCER_BYTE_RATE, nameless) == (3.0, OF_USER)


def test_a_removed_limit_leaves_the_less_specific_one() -> None:
    quotas = quotas_of(BOTH, OF_USER)
    quotas.set(BOTH, {CONSUMER_BYTE_RATE: 1.0})
    assert quotas.applied(PRODUCER_BYTE_RATE, ALICE_ETL) == (2.0, OF_USER)
    quotas.set(OF_USER, {})
    assert quotas.applied(PRODUCER_BYTE_RATE, ALICE_ETL) is None
    assert quotas.of(OF_USER) == {}
    assert quotas.of(BOTH) == {CONSUMER_BYTE_RATE: 1.0}


# --- filters --------------------------------------------------------------------------------------

EVERY = [entity for entity, _ in LEVELS]


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (QuotaFilter({}, [], strict=False), EVERY),
        (QuotaFilter({}, [], strict=True), []),
        (QuotaFilter({"user": "alice"}, [], strict=False), EVERY[0:3]),
        (QuotaFilter({"user": "alice"}, [], strict=True), [OF_USER]),
        (QuotaFilter({"user": None}, [], strict=False), EVERY[3:6]),
        (QuotaFilter({"user": None}, [], strict=True), [ClientEntity(None)]),
        (QuotaFilter({}, ["user"], strict=False), EVERY[0:6]),
        (QuotaFilter({}, ["user"], strict=True), [OF_USER, ClientEntity(None)]),
        (QuotaFilter({}, ["user", "client-id"], strict=True), [*EVERY[0:2], *EVERY[3:5]]),
        (QuotaFilter({"user": "alice"}, ["client-id"], strict=True), EVERY[0:2]),
        (QuotaFilter({"user": "alice", "client-id": None}, [], strict=False), [EVERY[1]]),
        (QuotaFilter({"client-id": "etl"}, [], strict=False), [EVERY[0], EVERY[3], EVERY[6]]),
        (QuotaFilter({"user": "bob"}, [], strict=False), []),
        (QuotaFilter({}, ["ip"], strict=False), []),
    ],
)
def test_a_filter_selects_by_name_by_default_and_by_type(
    wanted: QuotaFilter, found: list[ClientEntity]
) -> None:
    quotas = quotas_of(*EVERY)
    assert [entity for entity, _ in quotas.matching(wanted)] == found


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize("entity", EVERY, ids=str)
def test_an_entity_is_what_its_types_and_names_say(entity: ClientEntity) -> None:
    assert entity_fault(entity.parts()) is None
    assert entity_of(entity.parts()) == entity


@pytest.mark.parametrize(
    ("parts", "sentence"),
    [
        ({}, "empty"),
        ({"user": ""}, "0 characters"),
        ({"user": "alice", "client-id": "x" * 1001}, "1001 characters"),
        ({"ip": "10.0.0.1"}, "quotas of addresses are not supported"),
        ({"ip": None}, "quotas of addresses are not supported"),
        ({"group": "g"}, "unknown entity type 'group'"),
    ],
)
def test_an_impossible_entity_is_refused(parts: dict[str, str | None], sentence: str) -> None:
    assert sentence in (entity_fault(parts) or "")


@pytest.mark.parametrize(
    ("limit", "value", "sentence"),
    [
        (PRODUCER_BYTE_RATE, 1024.0, None),
        (CONSUMER_BYTE_RATE, float(2**63 - 1), None),
        (PRODUCER_BYTE_RATE, 0.0, "greater than 0"),
        (PRODUCER_BYTE_RATE, -1.0, "greater than 0"),
        (PRODUCER_BYTE_RATE, math.nan, "greater than 0"),
        (PRODUCER_BYTE_RATE, math.inf, "greater than 0"),
        (PRODUCER_BYTE_RATE, 2.0**64, "at most"),
        (PRODUCER_BYTE_RATE, 10.5, "whole number"),
        (REQUEST_PERCENTAGE, 0.5, None),
        (REQUEST_PERCENTAGE, 400.0, None),
        (REQUEST_PERCENTAGE, 0.0, "greater than 0"),
        ("controller_mutation_rate", 10.0, "not supported"),
        ("connection_creation_rate", 10.0, "unknown limit"),
        ("", 10.0, "unknown limit"),
    ],
)
def test_an_impossible_limit_is_refused(limit: str, value: float, sentence: str | None) -> None:
    fault = limit_fault(limit, value)
    assert (sentence in fault) if sentence and fault else fault == sentence
