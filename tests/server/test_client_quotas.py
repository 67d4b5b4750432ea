"""Quotas of users and client ids: altered and listed by any admin client, stored, and enforced at once."""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.asking import Asking
from support.client_quotas import (
    Entity,
    Limits,
    alter,
    alteration,
    ask_to_alter,
    described,
    fetched,
    produced,
)
from support.clocks import ManualClock
from support.disks import FaultPlan, FaultyFiles
from support.sasl import SaslClient

import cordwood
from cordwood import Broker
from cordwood.disk.memory import MemoryFiles
from cordwood.errors import MetadataDamaged
from cordwood.formats import batch
from cordwood.protocol.apis import APIS, ApiKey
from cordwood.protocol.error_codes import ErrorCode
from cordwood.protocol.messages.client_quotas import (
    QuotaAlteration,
    QuotaEntity,
    QuotaOperation,
)
from cordwood.security import (
    CONSUMER_BYTE_RATE,
    PRODUCER_BYTE_RATE,
    ClientEntity,
    ClientQuotas,
    QuotaClient,
)
from cordwood.server.quotas import ClientRates, clients
from cordwood.storage.meta import ClientQuotaEntry

RATE = 100_000
NONE, INVALID = ErrorCode.NONE, ErrorCode.INVALID_REQUEST
ALICE: dict[str, str | None] = {"user": "alice"}
ANYONE: dict[str, str | None] = {"user": "ANONYMOUS"}
#: Who `Asking` is.
RAW: dict[str, str | None] = {"client-id": "raw"}


def versions_of(key: ApiKey) -> range:
    return range(APIS[key].advertised.first, APIS[key].advertised.last + 1)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def broker(clock: ManualClock) -> Iterator[Broker]:
    with Broker(clock=clock) as running:
        yield running


@pytest.fixture
def client(broker: Broker) -> Iterator[Asking]:
    with Asking(broker.bootstrap) as asking:
        yield asking


# --- alter and describe ---------------------------------------------------------------------------


@pytest.mark.parametrize("version", versions_of(ApiKey.ALTER_CLIENT_QUOTAS))
def test_limits_are_set_one_by_one_and_removed(client: Asking, version: int) -> None:
    steps: list[tuple[Limits, dict[str, float]]] = [
        ({PRODUCER_BYTE_RATE: 1024.0}, {PRODUCER_BYTE_RATE: 1024.0}),
        ({CONSUMER_BYTE_RATE: 2048.0}, {PRODUCER_BYTE_RATE: 1024.0, CONSUMER_BYTE_RATE: 2048.0}),
        ({PRODUCER_BYTE_RATE: 1.0, CONSUMER_BYTE_RATE: None}, {PRODUCER_BYTE_RATE: 1.0}),
        ({CONSUMER_BYTE_RATE: None, "no such limit": None}, {PRODUCER_BYTE_RATE: 1.0}),
        ({}, {PRODUCER_BYTE_RATE: 1.0}),
    ]
    both = {"user": "alice", "client-id": None}
    for limits, expected in steps:
        assert ask_to_alter(client, alteration(both, limits), version=version) == [(both, NONE)]
        assert described(client, version=version) == [(both, expected)]
    assert ask_to_alter(client, alteration(both, {PRODUCER_BYTE_RATE: None})) == [(both, NONE)]
    assert described(client, version=version) == []
    assert ask_to_alter(client, version=version) == []


def test_quotas_are_found_by_name_by_default_and_by_type(client: Asking) -> None:
    default: dict[str, str | None] = {"user": None}
    both: dict[str, str | None] = {"user": "alice", "client-id": "etl"}
    for entity in (ALICE, default, both, RAW):
        alter(client, entity, producer_byte_rate=1024.0)
    limits = {PRODUCER_BYTE_RATE: 1024.0}
    assert described(client, ("user", 2, None)) == [(each, limits) for each in (ALICE, default, both)]
    assert described(client, ("user", 2, None), strict=True) == [(ALICE, limits), (default, limits)]
    assert described(client, ("user", 0, "alice")) == [(ALICE, limits), (both, limits)]
    assert described(client, ("user", 1, None)) == [(default, limits)]
    assert described(client, ("client-id", 0, "raw")) == [(RAW, limits)]
    assert described(client, ("ip", 2, None)) == []


def twice(entity: Entity) -> QuotaAlteration:
    """Return the change of an entity that names a type twice."""
    parts = [QuotaEntity(*part) for part in entity.items()]
    return QuotaAlteration(entity=parts * 2, ops=[])


@pytest.mark.parametrize(
    "entry",
    [
        alteration({}, {PRODUCER_BYTE_RATE: 1.0}),
        alteration({"user": ""}, {PRODUCER_BYTE_RATE: 1.0}),
        alteration({"user": "x" * 30_000}, {PRODUCER_BYTE_RATE: 1.0}),
        alteration({"group": "g"}, {PRODUCER_BYTE_RATE: 1.0}),
        alteration({"ip": "10.0.0.1"}, {"connection_creation_rate": 1.0}),
        alteration({"user": "bob", "ip": None}, {PRODUCER_BYTE_RATE: 1.0}),
        twice({"user": "bob"}),
        alteration({"user": "bob"}, {PRODUCER_BYTE_RATE: 0.0}),
        alteration({"user": "bob"}, {PRODUCER_BYTE_RATE: 1.5}),
        alteration({"user": "bob"}, {"x" * 30_000: 1.0}),
        alteration({"user": "bob"}, {"controller_mutation_rate": 1.0}),
        QuotaAlteration(
            entity=[QuotaEntity("user", "bob")], ops=[QuotaOperation(PRODUCER_BYTE_RATE, 1.0)] * 2
        ),
        alteration({"user": "bob"}, {CONSUMER_BYTE_RATE: 1.0, PRODUCER_BYTE_RATE: -1.0}),
    ],
)
def test_an_impossible_change_is_refused_as_a_whole_and_the_others_are_made(
    client: Asking, entry: QuotaAlteration
) -> None:
    (_, refused), other = ask_to_alter(client, entry, alteration(ALICE, {PRODUCER_BYTE_RATE: 1.0}))
    assert (refused, other) == (INVALID, (ALICE, NONE))
    assert described(client) == [(ALICE, {PRODUCER_BYTE_RATE: 1.0})]


def test_an_entity_that_is_named_twice_keeps_everything_and_has_one_result(client: Asking) -> None:
    """Whatever the order in which its types are named."""
    both: dict[str, str | None] = {"user": "alice", "client-id": None}
    alter(client, both, producer_byte_rate=1.0)
    changes = [
        alteration(entity, {PRODUCER_BYTE_RATE: 2.0}) for entity in (both, dict(reversed(both.items())))
    ]
    assert ask_to_alter(client, *changes) == [(both, INVALID)]
    assert described(client) == [(both, {PRODUCER_BYTE_RATE: 1.0})]


def test_a_change_that_is_only_validated_changes_nothing(client: Asking) -> None:
    good, bad = alteration(ALICE, {PRODUCER_BYTE_RATE: 1.0}), alteration({"ip": None}, {})
    results = ask_to_alter(client, good, bad, validate_only=True)
    assert results == [(ALICE, NONE), ({"ip": None}, INVALID)]
    assert described(client) == []


def test_changes_at_the_same_time_do_not_undo_each_other(broker: Broker) -> None:
    """Each sets one limit of the same entity, and keeps the others that it does not name."""
    limits = {PRODUCER_BYTE_RATE: 1.0, CONSUMER_BYTE_RATE: 2.0}

    def set_again_and_again(limit: str) -> None:
        with Asking(broker.bootstrap) as admin:
            for value in [None, limits[limit]] * 20:
                ask_to_alter(admin, alteration(ALICE, {limit: value}))

    threads = [threading.Thread(target=set_again_and_again, args=[limit]) for limit in limits]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with Asking(broker.bootstrap) as admin:
        assert described(admin) == [(ALICE, limits)]


# --- stored ---------------------------------------------------------------------------------------


def test_quotas_survive_a_restart_and_a_restore(tmp_path: Path) -> None:
    with Broker(tmp_path / "data") as broker, Asking(broker.bootstrap) as client:
        client.create("orders")
        alter(client, ALICE, producer_byte_rate=1.0)
        alter(client, {"user": None}, consumer_byte_rate=2.0)
        alter(client, ALICE, producer_byte_rate=3.0)
        expected = described(client)
    assert expected == [(ALICE, {PRODUCER_BYTE_RATE: 3.0}), ({"user": None}, {CONSUMER_BYTE_RATE: 2.0})]
    cordwood.backup(tmp_path / "data", tmp_path / "backup")
    cordwood.restore(tmp_path / "backup", tmp_path / "restored")
    for directory in ("data", "restored"):
        with Broker(tmp_path / directory) as broker, Asking(broker.bootstrap) as client:
            assert described(client) == expected, directory


def test_what_could_not_be_stored_is_neither_acknowledged_nor_in_force() -> None:
    files = FaultyFiles(MemoryFiles())
    with Broker(files=files) as broker, Asking(broker.bootstrap) as client:
        alter(client, ALICE, producer_byte_rate=1.0)
        files.plan(FaultPlan(1, frozenset({"write"}), errno.ENOSPC, forever=True))
        bob, change = {"user": "bob"}, {PRODUCER_BYTE_RATE: 2.0}
        results = ask_to_alter(client, alteration(bob, change), alteration({}, change))
        assert results == [(bob, ErrorCode.KAFKA_STORAGE_ERROR), ({}, INVALID)]
        assert described(client) == [(ALICE, {PRODUCER_BYTE_RATE: 1.0})]
        files.heal()
        alter(client, bob, producer_byte_rate=2.0)


@pytest.mark.parametrize(
    "entry",
    [
        ClientQuotaEntry(7, {"ip": "10.0.0.1"}, {"connection_creation_rate": 1.0}),
        ClientQuotaEntry(7, {"user": "alice"}, {"controller_mutation_rate": 1.0}),
    ],
)
def test_a_stored_quota_that_cannot_be_enforced_keeps_the_server_from_starting(
    tmp_path: Path, entry: ClientQuotaEntry
) -> None:
    """A later version may have written it; to serve without it would promise what nothing does."""
    with Broker(tmp_path) as broker:
        broker._node.directory.security.change([entry])
    with pytest.raises(MetadataDamaged, match="a client quota of org 7"), Broker(tmp_path):
        pass


# --- enforced -------------------------------------------------------------------------------------


def ahead(client: Asking) -> None:
    """Send a produce request and do not wait for the answer."""
    data = batch.encode_records([(None, b"v")], 1_000)
    client.send(ApiKey.PRODUCE, 12, client.produce_request("orders", {0: data}))


@pytest.mark.parametrize("entity", [ANYONE, RAW, {"user": None, "client-id": "raw"}], ids=str)
def test_a_producer_beyond_its_rate_waits_and_loses_nothing(
    broker: Broker, clock: ManualClock, client: Asking, entity: Entity
) -> None:
    """And so does a client that connects again; requests that use nothing of the rate are answered."""
    client.create("orders")
    alter(client, entity, producer_byte_rate=RATE)
    with Asking(broker.bootstrap) as looking, Asking(broker.bootstrap) as fresh:
        assert produced(client, RATE + RATE // 20) in range(50, 60)
        ahead(client)
        ahead(fresh)
        assert looking.offset_at("orders", -1).offset == 1
        assert client.is_silent()
        assert fresh.is_silent()
        clock.advance(100)
        for each in (client, fresh):
            assert each.receive(ApiKey.PRODUCE, 12).topics[0].partitions[0].error_code == NONE
        assert looking.offset_at("orders", -1).offset == 3


def test_a_consumer_beyond_its_rate_waits_and_a_fetch_is_no_larger_than_a_second(client: Asking) -> None:
    client.create("orders")
    for _ in range(8):
        assert produced(client, RATE // 3) == 0
    alter(client, ANYONE, consumer_byte_rate=RATE)
    assert fetched(client) == (2, 0)
    count, throttle_ms = fetched(client)
    assert count == 2
    assert throttle_ms in range(320, 350)


def test_connections_of_the_same_entity_share_its_rate_and_others_have_their_own(broker: Broker) -> None:
    with Asking(broker.bootstrap) as one, Asking(broker.bootstrap) as two, Asking(broker.bootstrap) as other:
        one.create("orders")
        alter(one, {"client-id": None}, producer_byte_rate=RATE)
        assert produced(one, RATE // 2) == 0
        assert produced(two, RATE) in range(490, 520)
        data = batch.encode_records([(None, b"v" * RATE)], 1_000)
        other.send(ApiKey.PRODUCE, 12, other.produce_request("orders", {0: data}), client_id="another")
        assert other.receive(ApiKey.PRODUCE, 12).throttle_time_ms in range(5)


def test_a_change_applies_to_clients_that_are_connected(
    broker: Broker, clock: ManualClock, client: Asking
) -> None:
    client.create("orders")
    with Asking(broker.bootstrap) as admin:
        assert produced(client, 10 * RATE) == 0
        alter(admin, ANYONE, producer_byte_rate=RATE)
        assert produced(client, 2 * RATE) in range(1_000, 1_020)
        alter(admin, ANYONE, producer_byte_rate=2 * RATE)
        clock.advance(2_000)
        assert produced(client, 3 * RATE) in range(1_000, 1_020), "a second was left"
        alter(admin, RAW | ANYONE, producer_byte_rate=4 * RATE)
        clock.advance(2_000)
        assert produced(client, 3 * RATE) == 0, "a more specific limit"
        alter(admin, RAW | ANYONE, producer_byte_rate=None)
        alter(admin, ANYONE, producer_byte_rate=None)
        assert produced(client, 10 * RATE) == 0


def test_the_longer_time_counts_if_the_org_has_a_quota_as_well(clock: ManualClock) -> None:
    config = {"cordwood.org.0.producer.byte.rate": str(RATE)}
    with Broker(config=config, clock=clock) as broker, Asking(broker.bootstrap) as client:
        client.create("orders")
        alter(client, ANYONE, producer_byte_rate=2 * RATE)
        assert produced(client, 3 * RATE) in range(2_000, 2_020), "that of the org"
        clock.advance(10_000)
        alter(client, ANYONE, producer_byte_rate=RATE // 2)
        assert produced(client, 3 * RATE) in range(5_000, 5_030), "that of the user"


def test_users_are_those_that_authenticated(clock: ManualClock) -> None:
    settings = {
        "listener.security.protocol.map": "OPEN:PLAINTEXT,USERS:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
    }
    listen = "OPEN://localhost:0,USERS://localhost:0"
    with (
        Broker(listen=listen, config=settings, clock=clock, users={"alice": "a", "bob": "b"}) as broker,
        Asking(broker.addresses["OPEN"]) as admin,
        SaslClient(broker.addresses["USERS"]) as alice,
        SaslClient(broker.addresses["USERS"]) as bob,
    ):
        admin.create("orders")
        alter(admin, ALICE, producer_byte_rate=RATE)
        for each, name in ((alice, "alice"), (bob, "bob")):
            each.log_in(name, name[0], "PLAIN")
        assert produced(alice, 2 * RATE) in range(1_000, 1_020)
        assert produced(bob, 2 * RATE) == produced(admin, 2 * RATE) == 0


def test_an_org_has_client_quotas_of_its_own(tmp_path: Path, clock: ManualClock) -> None:
    """Neither seen, nor altered, nor enforced in another org."""
    listen, settings = "OWN://localhost:0,SEVEN://localhost:0", {"cordwood.listener.SEVEN.org": "7"}
    for restarted in (False, True):
        with (
            Broker(tmp_path, listen=listen, config=settings, clock=clock) as broker,
            Asking(broker.addresses["OWN"]) as own,
            Asking(broker.addresses["SEVEN"]) as other,
        ):
            if not restarted:
                for each in (own, other):
                    each.create("orders")
                alter(other, ANYONE, producer_byte_rate=RATE)
                alter(own, ANYONE, producer_byte_rate=None)
            assert described(own) == []
            assert described(other) == [(ANYONE, {PRODUCER_BYTE_RATE: RATE})]
            assert produced(own, 5 * RATE) == 0
            assert produced(other, 2 * RATE) in range(1_000, 1_020)


# --- memory ---------------------------------------------------------------------------------------


def rates_of(quotas: ClientQuotas, clock: ManualClock) -> tuple[ClientRates, dict[ClientEntity, Any]]:
    rates = ClientRates(quotas, clock)
    return rates, rates._rates[PRODUCER_BYTE_RATE]


def test_entities_that_were_not_used_for_a_second_are_forgotten(clock: ManualClock) -> None:
    """Client ids are chosen by clients. One that must still wait is not forgotten for others that come."""
    quotas = ClientQuotas()
    quotas.set(ClientEntity(client_id=None), {PRODUCER_BYTE_RATE: 1000.0})
    rates, kept = rates_of(quotas, clock)

    def use(client_id: str, size: int) -> int:
        rate = rates.find(PRODUCER_BYTE_RATE, QuotaClient("alice", client_id))
        assert rate is not None
        return rate.use(size)

    for number in range(500):
        use(f"first-{number}", 1)
    clock.advance(1_000)
    assert use("debtor", 101_000) == 100_000
    for number in range(500):
        use(f"second-{number}", 1)
        clock.advance(1)
    assert len(kept) < 520
    assert use("debtor", 0) == 99_500


def test_the_number_of_entities_whose_usage_is_known_is_bounded(
    monkeypatch: pytest.MonkeyPatch, clock: ManualClock
) -> None:
    monkeypatch.setattr(clients, "ENTITIES_MAX", 10)
    quotas = ClientQuotas()
    quotas.set(ClientEntity(client_id=None), {PRODUCER_BYTE_RATE: 1.0})
    rates, kept = rates_of(quotas, clock)
    for number in range(100):
        rate = rates.find(PRODUCER_BYTE_RATE, QuotaClient("alice", f"client-{number}"))
        assert rate is not None
        rate.use(1_000)
        assert len(kept) <= 10
    assert ClientEntity(client_id="client-99") in kept
    assert rates.find(CONSUMER_BYTE_RATE, QuotaClient("alice", "client-1")) is None
