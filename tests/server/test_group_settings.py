"""Settings of single groups of the consumer protocol: within the broker's bounds, kept, and in force."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.serving import RawClient

import cordwood
from cordwood.protocol.apis import ApiKey
from cordwood.protocol.error_codes import ErrorCode
from cordwood.protocol.messages import configs
from cordwood.protocol.messages.groups import ConsumerGroupHeartbeatRequest

GROUP = 32
SESSION, BEAT = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"
DEFAULT, STATIC, OF_GROUP = 5, 4, 8


def asking(broker: cordwood.Broker) -> RawClient:
    host, _, port = broker.bootstrap.rpartition(":")
    return RawClient((host, int(port)))


def alter(client: RawClient, name: str, value: str | None, group: str = "billing") -> Any:
    step = configs.IncrementalAlterableConfig(
        name=name, config_operation=0 if value is not None else 1, value=value
    )
    resource = configs.IncrementalAlterConfigsResource(
        resource_type=GROUP, resource_name=group, configs=[step]
    )
    request = configs.IncrementalAlterConfigsRequest(resources=[resource])
    (answer,) = client.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, request).responses
    return answer


def described(client: RawClient, group: str = "billing") -> dict[str, tuple[str | None, int]]:
    resource = configs.DescribeConfigsResource(
        resource_type=GROUP, resource_name=group, configuration_keys=None
    )
    (answer,) = client.ask(
        ApiKey.DESCRIBE_CONFIGS, configs.DescribeConfigsRequest(resources=[resource])
    ).results
    assert answer.error_code == 0
    return {one.name: (one.value, one.config_source) for one in answer.configs}


def interval(client: RawClient, group: str) -> int:
    """Return the interval between heartbeats that a member that joins is told."""
    request = ConsumerGroupHeartbeatRequest(
        group_id=group,
        member_id="member",
        rebalance_timeout_ms=1000,
        subscribed_topic_names=["topic"],
        topic_partitions=[],
    )
    answer = client.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, request)
    assert answer.error_code == 0, answer.error_message
    return int(answer.heartbeat_interval_ms)


def test_a_group_has_what_it_is_given_at_once_and_after_a_restart_and_others_do_not(tmp_path: Path) -> None:
    with cordwood.Broker(tmp_path) as broker, asking(broker) as client:
        assert described(client)[BEAT] == ("5000", DEFAULT)
        assert alter(client, BEAT, "7000").error_code == 0
        assert described(client)[BEAT] == ("7000", OF_GROUP)
        assert (interval(client, "billing"), interval(client, "orders")) == (7000, 5000)
    with cordwood.Broker(tmp_path) as broker, asking(broker) as client:
        assert described(client)[BEAT] == ("7000", OF_GROUP)
        assert alter(client, BEAT, None).error_code == 0
        assert described(client)[BEAT] == ("5000", DEFAULT)
    with cordwood.Broker(tmp_path) as broker, asking(broker) as client:
        assert described(client)[BEAT] == ("5000", DEFAULT)


def test_a_group_without_settings_has_those_of_the_broker() -> None:
    given = {"group.consumer.heartbeat.interval.ms": "6000"}
    with cordwood.Broker(config=given) as broker, asking(broker) as client:
        assert described(client)[BEAT] == ("6000", STATIC)
        assert interval(client, "billing") == 6000


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (SESSION, "44999"),
        (SESSION, "60001"),
        (BEAT, "4999"),
        (BEAT, "15001"),
        (BEAT, "soon"),
        ("consumer.assignment.interval.ms", "15001"),
        ("share.isolation.level", "read_committed"),
        ("consumer.heartbeat.intervall.ms", "5000"),
    ],
)
def test_what_the_broker_does_not_allow_is_refused_and_nothing_changes(name: str, value: str) -> None:
    with cordwood.Broker() as broker, asking(broker) as client:
        before = described(client)
        answer = alter(client, name, value)
        assert answer.error_code == ErrorCode.INVALID_CONFIG
        assert name in answer.error_message
        assert described(client) == before


def test_settings_that_lie_outside_of_new_bounds_are_brought_within_them(tmp_path: Path) -> None:
    with cordwood.Broker(tmp_path) as broker, asking(broker) as client:
        assert alter(client, BEAT, "14000").error_code == 0
    less = {"group.consumer.max.heartbeat.interval.ms": "8000"}
    with cordwood.Broker(tmp_path, config=less) as broker, asking(broker) as client:
        assert interval(client, "billing") == 8000
