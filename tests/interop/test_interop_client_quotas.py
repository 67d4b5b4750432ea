"""Client quotas: the same requests and commands are answered by ours and by Apache Kafka."""

from __future__ import annotations

import math
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from interop.apache_kafka import apache_kafka
from interop.kafka_jars import KAFKA_VERSION, java_command
from interop.report import Report
from support.asking import Asking
from support.client_quotas import Entity, alteration

from cordwood import Broker
from cordwood.protocol.apis import ApiKey
from cordwood.protocol.messages.client_quotas import (
    AlterClientQuotasRequest,
    DescribeClientQuotasRequest,
    QuotaAlteration,
    QuotaComponent,
    QuotaEntity,
    QuotaOperation,
)

# What is not there yet is fetched, which counts.
pytestmark = [pytest.mark.interop, pytest.mark.timeout(1200)]

PRODUCE, FETCH = "producer_byte_rate", "consumer_byte_rate"
ENTITIES: list[Entity] = [
    {"user": "alice"},
    {"user": "alice", "client-id": "etl"},
    {"user": "alice", "client-id": None},
    {"user": None, "client-id": "etl"},
    {"user": None, "client-id": None},
    {"user": None},
    {"client-id": "etl"},
    {"client-id": None},
    {"user": "CN=carol, O=a/b?"},
]
#: Changes in the order in which they are asked for.
CHANGES: list[list[QuotaAlteration]] = [
    [alteration(entity, {PRODUCE: 1024.0, FETCH: 1.0 + number}) for number, entity in enumerate(ENTITIES)],
    [alteration({"user": "alice"}, {PRODUCE: None, "request_percentage": 0.5})],
    [alteration({"user": "alice"}, {"no_such_limit": None})],
    [alteration({"user": "nobody"}, {PRODUCE: None})],
    [alteration({"user": "nobody"}, {})],
    [],
    *(
        [alteration({"user": "bob"}, {limit: value}), alteration({"user": "carol"}, {PRODUCE: 5.0})]
        for limit, value in [
            (PRODUCE, 0.0),
            (PRODUCE, -1.0),
            (PRODUCE, 1.5),
            (PRODUCE, 1.0000001),
            (PRODUCE, 2.0**63),
            (PRODUCE, 2.0**64),
            (FETCH, math.inf),
            ("request_percentage", 0.0),
            ("request_percentage", 1e6),
            ("no_such_limit", 1.0),
            ("connection_creation_rate", 1.0),
        ]
    ),
    *(
        [alteration(entity, {PRODUCE: 1.0})]
        for entity in ({}, {"user": ""}, {"group": "g"}, {"user": "bob", "ip": "127.0.0.1"})
    ),
    [QuotaAlteration(entity=[QuotaEntity("user", "bob")], ops=[QuotaOperation(PRODUCE, 1.0)] * 2)],
]
FILTERS: list[list[tuple[str, int, str | None]]] = [
    [],
    [("user", 2, None)],
    [("client-id", 2, None)],
    [("ip", 2, None)],
    [("group", 2, None)],
    [("", 2, None)],
    [("user", 1, None)],
    [("client-id", 1, None)],
    [("ip", 1, None)],
    [("user", 0, "alice")],
    [("user", 0, "nobody")],
    [("user", 0, "alice"), ("client-id", 2, None)],
    [("user", 1, None), ("client-id", 1, None)],
    [("user", 2, None), ("client-id", 0, "etl")],
    [("user", 2, None), ("client-id", 2, None)],
    [("user", 2, None), ("user", 1, None)],
    [("user", 2, None), ("ip", 2, None)],
    [("user", 0, None)],
    [("user", 1, "alice")],
    [("user", 2, "alice")],
    [("user", 3, None)],
]
#: Options of kafka-configs, in order.
COMMANDS = [
    "--alter --add-config producer_byte_rate=4096,request_percentage=12.5 --entity-type users "
    "--entity-name dora",
    "--alter --add-config consumer_byte_rate=5 --entity-type users --entity-default --entity-type clients "
    "--entity-name web",
    "--alter --add-config consumer_byte_rate=0 --entity-type users --entity-name dora",
    "--alter --delete-config request_percentage --entity-type users --entity-name dora",
    "--alter --delete-config request_percentage --entity-type users --entity-name dora",
    "--describe --entity-type users --entity-name dora",
    "--describe --entity-type users --entity-default --entity-type clients --entity-name web",
    "--describe --entity-type clients --entity-name nobody",
]


@contextmanager
def ours(directory: Path) -> Iterator[str]:
    """Run a broker of ours and yield its address."""
    with Broker(directory) as broker:
        yield broker.bootstrap


@contextmanager
def apaches(directory: Path) -> Iterator[str]:
    """Run Apache Kafka and yield its address."""
    with apache_kafka(directory) as broker:
        yield broker.bootstrap


def altered(client: Asking, entries: Sequence[QuotaAlteration], version: int) -> set[tuple[Any, ...]]:
    """Return the error code for each entity."""
    request = AlterClientQuotasRequest(entries=list(entries))
    results = client.ask(ApiKey.ALTER_CLIENT_QUOTAS, request, version).entries
    assert all((each.error_message is None) == (not each.error_code) for each in results)
    return {(_named(each.entity), each.error_code) for each in results}


def described(client: Asking, components: Any, *, strict: bool, version: int) -> tuple[int, Any]:
    """Return the error code, and the entities with their limits."""
    asked = [QuotaComponent(*each) for each in components]
    request = DescribeClientQuotasRequest(components=asked, strict=strict)
    answer = client.ask(ApiKey.DESCRIBE_CLIENT_QUOTAS, request, version)
    if answer.error_code:
        return answer.error_code, answer.entries
    return 0, {
        (_named(each.entity), frozenset((one.key, one.value) for one in each.values))
        for each in answer.entries
    }


def _named(entity: Sequence[QuotaEntity]) -> frozenset[tuple[str, str | None]]:
    return frozenset((part.entity_type, part.entity_name) for part in entity)


def settled(client: Asking) -> None:
    """Wait until the last change is listed: a broker of Kafka learns of it after its controller."""
    last = {"user": "last"}
    altered(client, [alteration(last, {PRODUCE: 1.0})], 1)
    for _ in range(10_000):
        code, found = described(client, [("user", 0, "last")], strict=True, version=1)
        if (code, found) == (0, {(frozenset(last.items()), frozenset({(PRODUCE, 1.0)}))}):
            return
    raise AssertionError("the last change is never listed")


def answers(address: str) -> list[Any]:
    """Return what a broker answers to all changes and filters, in both versions."""
    found: list[Any] = []
    with Asking(address) as client:
        for entries in CHANGES:
            found += [altered(client, entries, version) for version in (0, 1)]
        settled(client)
        for components in FILTERS:
            for strict in (False, True):
                for version in (0, 1):
                    answer = described(client, components, strict=strict, version=version)
                    found.append((components, strict, version, answer))
    return found


def printed(address: str) -> list[tuple[int, str]]:
    """Return the exit status and the output of each command, if it did not fail."""
    found = []
    for options in COMMANDS:
        command = java_command("kafka.admin.ConfigCommand", ["--bootstrap-server", address, *options.split()])
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        found.append((done.returncode, "" if done.returncode else done.stdout))
    return found


def test_client_quotas_are_altered_and_listed_as_by_apache_kafka(report: Report, tmp_path: Path) -> None:
    with (
        report.check(
            "tools", "Apache Kafka's client quotas", KAFKA_VERSION, "the same answers; kafka-configs"
        ),
        ExitStack() as stack,
    ):
        addresses = [stack.enter_context(run(tmp_path / run.__name__)) for run in (apaches, ours)]
        apache, our = (answers(address) for address in addresses)
        assert len(apache) == len(our) > 100
        for expected, found in zip(apache, our, strict=True):
            assert found == expected
        printed_by_apache, printed_by_ours = map(printed, addresses)
        assert printed_by_ours == printed_by_apache
        assert "for user-principal 'dora' are producer_byte_rate=4096.0" in printed_by_ours[5][1]
        assert [status for status, _ in printed_by_ours] == [0, 0, 1, 0, 1, 0, 0, 0]
