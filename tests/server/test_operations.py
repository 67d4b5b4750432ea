"""Rolling and truncating on a running server: what clients see, and what a tenant cannot do to another."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from support.asking import Asking, values_in
from support.tenant_requests import LISTEN, ORGS, SETTINGS

from cordwood import Broker
from cordwood.broker import OPERATION
from cordwood.formats import batch
from cordwood.protocol.apis import ApiKey
from cordwood.protocol.error_codes import ErrorCode
from cordwood.protocol.messages.configs import (
    AlterConfigsResourceResponse,
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
)

TOPIC = 2
#: Of Fetch.
VERSION = 13


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


@pytest.fixture
def raw(broker: Broker) -> Iterator[Asking]:
    with Asking(broker.bootstrap) as connection:
        yield connection


def filled(client: Asking, topic: str, records: int = 5, **settings: str) -> None:
    client.create(topic, 1, **settings)
    for number in range(records):
        data = batch.encode_records([(None, b"%d" % number)], 1_000)
        assert not client.produce(topic, data).error_code


def operate(
    client: Asking, topic: str, *values: object, check: bool = False, more: dict[str, str] | None = None
) -> AlterConfigsResourceResponse:
    """Ask for operations on a topic; a value that is no text is sent as JSON."""
    texts = [value if isinstance(value, str) else json.dumps(value) for value in values]
    configs = [
        IncrementalAlterableConfig(name=name, config_operation=0, value=text)
        for name, text in [*((OPERATION, text) for text in texts), *(more or {}).items()]
    ]
    resource = IncrementalAlterConfigsResource(resource_type=TOPIC, resource_name=topic, configs=configs)
    request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=check)
    (answer,) = client.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, request).responses
    assert isinstance(answer, AlterConfigsResourceResponse)
    return answer


def truncation(end_offset: int, **more: object) -> dict[str, object]:
    return {"type": "truncate", "partition": 0, "end_offset": end_offset, **more}


def test_a_consumer_above_the_cut_is_told_that_its_offset_is_out_of_range(raw: Asking) -> None:
    filled(raw, "cut")
    (before,) = raw.topics("cut")
    assert operate(raw, "cut", truncation(2)).error_code == ErrorCode.NONE
    assert raw.fetch("cut", 4).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert values_in(raw.fetch("cut", 0)) == [b"0", b"1"]
    (after,) = raw.topics("cut")
    assert after.partitions[0].leader_epoch == before.partitions[0].leader_epoch + 1
    answer = raw.produce("cut", batch.encode_records([(None, b"new")], 1_000))
    assert answer.base_offset == 2


def test_a_fetch_that_waits_above_the_cut_is_answered(broker: Broker, raw: Asking) -> None:
    """It would otherwise wait for records at an offset that comes much later, or never."""
    filled(raw, "parked")
    with Asking(broker.bootstrap) as waiting:
        request = waiting.fetch_request("parked", {0: 5}, max_wait_ms=600_000)
        waiting.send(ApiKey.FETCH, VERSION, request)
        assert operate(raw, "parked", truncation(1)).error_code == ErrorCode.NONE
        answer = waiting.receive(ApiKey.FETCH, VERSION)
        assert answer.topics[0].partitions[0].error_code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_a_dry_run_checks_and_changes_nothing(raw: Asking) -> None:
    filled(raw, "dry")
    assert operate(raw, "dry", truncation(2), check=True).error_code == ErrorCode.NONE
    assert operate(raw, "dry", truncation(9), check=True).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert operate(raw, "dry", {"type": "roll", "partition": 0}, check=True).error_code == ErrorCode.NONE
    assert len(values_in(raw.fetch("dry", 0))) == 5


@pytest.mark.parametrize(
    "value",
    [
        "",
        "roll",
        {},
        {"type": "delete", "partition": 0},
        {"type": "roll"},
        {"type": "roll", "partition": -1},
        {"type": "truncate", "partition": 0},
        {"type": "truncate", "partition": 0, "end_offset": "2"},
        {"type": "truncate", "partition": 0, "end_offset": 2, "forced": True},
    ],
)
def test_what_is_no_operation_is_refused_by_name(raw: Asking, value: object) -> None:
    if not raw.topics("named")[0].partitions:
        filled(raw, "named")
    answer = operate(raw, "named", value)
    assert answer.error_code == ErrorCode.INVALID_CONFIG
    assert OPERATION in (answer.error_message or "")
    assert len(values_in(raw.fetch("named", 0))) == 5


def test_an_operation_comes_alone_and_is_not_stored(raw: Asking) -> None:
    filled(raw, "alone")
    mixed = operate(raw, "alone", truncation(2), more={"retention.ms": "1000"})
    assert mixed.error_code == ErrorCode.INVALID_REQUEST
    assert len(values_in(raw.fetch("alone", 0))) == 5
    assert operate(raw, "alone", {"type": "roll", "partition": 0}).error_code == ErrorCode.NONE
    assert operate(raw, "alone", {"type": "roll", "partition": 1}).error_code == (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    )


def test_a_tenant_cuts_its_own_topic_and_no_other_of_that_name() -> None:
    """T1: what is another's does not exist, and no answer names or counts it."""
    with Broker(listen=LISTEN, config=SETTINGS) as broker:
        clients = {name: Asking(broker.addresses[name]) for name in ORGS}
        for name in ("ALPHA", "BETA"):
            filled(clients[name], "orders", records=5)
        filled(clients["BETA"], "secret", records=5)
        assert operate(clients["ALPHA"], "orders", truncation(2)).error_code == ErrorCode.NONE
        assert len(values_in(clients["ALPHA"].fetch("orders", 0))) == 2
        assert len(values_in(clients["BETA"].fetch("orders", 0))) == 5
        for topic in ("secret", f"secret@{ORGS['BETA']}", f"orders@{ORGS['BETA']}"):
            for client in (clients["ALPHA"], clients["PLAIN"]):
                answers = [
                    operate(client, topic, truncation(1)),
                    operate(client, topic, truncation(99)),
                    operate(client, topic, {"type": "roll", "partition": 0}),
                ]
                nobodys = operate(client, "nobodys", truncation(1))
                for answer in answers:
                    assert answer.error_code == nobodys.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                    assert answer.error_message == (nobodys.error_message or "").replace("nobodys", topic)
        above = operate(clients["ALPHA"], "orders", truncation(99))
        assert str(ORGS["ALPHA"]) not in (above.error_message or "").replace("99", "")
        for client in clients.values():
            client.close()
