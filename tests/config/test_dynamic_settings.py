"""What a broker can be told at run time: which settings, which of them wins, and what is refused by name."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from cordwood.config.dynamic import (
    DYNAMIC_SETTINGS,
    EVERY_BROKER,
    layered,
    layered_as_far_as_possible,
    only_static,
)
from cordwood.config.kinds import text_of
from cordwood.config.loading import BrokerConfig, OrgQuota, load_broker_config
from cordwood.errors import ConfigError, InvalidSetting, UnknownSetting


def load(properties: Mapping[str, str]) -> BrokerConfig:
    return load_broker_config(properties, environment={})[0]


STATIC = load({"node.id": "3", "log.retention.ms": "1", "log.segment.bytes": "2000"})


def test_the_brokers_own_value_wins_over_that_for_all_and_that_over_the_file() -> None:
    layers = layered(STATIC, {"3": {"log.retention.ms": "3"}, EVERY_BROKER: {"log.retention.ms": "2"}})
    assert layers.config.topic_defaults.retention_ms == 3
    assert layered(STATIC, {EVERY_BROKER: {"log.retention.ms": "2"}}).config.topic_defaults.retention_ms == 2
    assert layered(STATIC, {}).config == STATIC
    # What another broker was told is not for us.
    assert layered(STATIC, {"4": {"log.retention.ms": "4"}}).config == STATIC
    assert layers.config.topic_defaults.segment_bytes == 2000


@pytest.mark.parametrize("name", DYNAMIC_SETTINGS)
def test_every_setting_that_can_change_takes_its_default_at_run_time(name: str) -> None:
    setting = DYNAMIC_SETTINGS[name]
    layers = layered(STATIC, {EVERY_BROKER: {name: text_of(setting.default)}})
    holder = layers.config if hasattr(layers.config, setting.attribute) else layers.config.topic_defaults
    assert getattr(holder, setting.attribute) == setting.default


def test_limits_of_orgs_change_one_by_one() -> None:
    static = load({"cordwood.org.7.stored.bytes": "30", "cordwood.org.7.producer.byte.rate": "5"})
    layers = layered(static, {EVERY_BROKER: {"cordwood.org.7.stored.bytes": "40"}})
    assert layers.config.quota_of(7) == OrgQuota(5, None, 40)
    with pytest.raises(InvalidSetting):
        layered(static, {EVERY_BROKER: {"cordwood.org.seven.stored.bytes": "40"}})
    with pytest.raises(InvalidSetting):
        layered(static, {EVERY_BROKER: {"cordwood.org.7.stored.bytes": "lots"}})


REFUSED = {
    "node.id": "restart the broker",
    "listeners": "restart the broker",
    "num.partitions": "restart the broker",
    "cordwood.format": "restart the broker",
    "cordwood.storage": "restart the broker",
    "cordwood.listener.PLAINTEXT.org": "restart the broker",
    "log.retention.hours": "set log.retention.ms",
    "log.roll.hours": "set log.roll.ms",
    "num.io.threads": "a setting of Kafka that Cordwood does not apply",
    "ssl.keystore.location": "restart the broker",
    "listener.name.plaintext.ssl.client.auth": "restart the broker",
    "ssl.provider": "a setting of Kafka that Cordwood does not apply",
    "retention.ms": "did you mean log.retention.ms",
    "log.retention.mss": "did you mean log.retention.ms",
    "nothing.of.the.kind": "unknown setting nothing.of.the.kind",
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_change_at_run_time_is_refused_by_name(name: str) -> None:
    with pytest.raises(ConfigError, match=REFUSED[name]) as caught:
        layered(STATIC, {"3": {name: "1"}})
    assert caught.value.name == name


def test_what_was_stored_and_cannot_be_applied_any_more_is_left_out_with_a_sentence() -> None:
    """A broker starts whatever an earlier version, or another server.properties, left behind."""
    static = load({"cordwood.storage": "shared"})
    given = {
        EVERY_BROKER: {"log.retention.ms": "9", "of.a.later.version": "1", "log.cleanup.policy": "compact"},
        "0": {"max.connections": "none", "log.segment.bytes": "5000"},
    }
    layers, warnings = layered_as_far_as_possible(static, given)
    assert (layers.config.topic_defaults.retention_ms, layers.config.topic_defaults.segment_bytes) == (
        9,
        5000,
    )
    assert layers.config.topic_defaults.cleanup_policy == "delete"
    assert dict(layers.shared) == {"log.retention.ms": "9"}
    assert [sentence.split(",")[0] for sentence in warnings] == [
        "of.a.later.version",
        "log.cleanup.policy",
        "max.connections",
    ]


def test_an_org_is_told_nothing_of_the_limits_of_another() -> None:
    given = {EVERY_BROKER: {"cordwood.org.7.stored.bytes": "1", "log.retention.ms": "9"}}
    layers = layered(STATIC, given)
    assert dict(layers.seen_by(8).shared) == {"log.retention.ms": "9"}
    assert dict(layers.seen_by(7).shared) == given[EVERY_BROKER]
    assert dict(layers.seen_by(0).shared) == given[EVERY_BROKER], "operators are told what they set"
    assert layers.seen_by(8).config.quota_of(7) == OrgQuota()


def test_a_log_that_is_no_broker_has_what_it_was_opened_with() -> None:
    layers = only_static(STATIC)
    assert (layers.config, dict(layers.own), dict(layers.shared)) == (STATIC, {}, {})


def test_an_unknown_name_has_no_suggestion_that_is_far_away() -> None:
    with pytest.raises(UnknownSetting) as caught:
        layered(STATIC, {"3": {"zebra": "1"}})
    assert caught.value.suggestion is None
