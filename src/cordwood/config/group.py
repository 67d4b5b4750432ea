"""Kafka's settings of a group, with their defaults.

Those of the consumer protocol can be set, within the bounds that the broker has for them. The others belong
to the share and streams protocols, which Cordwood does not offer: tools that list settings find them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from cordwood.config.broker_groups import BrokerGroupConfig, ConsumerGroupTimes, check_bounds
from cordwood.config.kinds import SettingKind, ValueType, integer, one_of, parse_boolean
from cordwood.config.setting import Setting
from cordwood.errors import InvalidSetting, UnknownSetting

_TYPES: dict[ValueType, SettingKind[Any]] = {
    "int": integer(0),
    "boolean": SettingKind(parse_boolean, "true or false", "boolean"),
    "string": one_of(),
}


def _setting(name: str, type_: ValueType, default: object, sentence: str) -> Setting:
    return Setting(name, _TYPES[type_], default, sentence, MappingProxyType({}))


#: The settings of a group in Kafka 4.3.
GROUP_SETTINGS = (
    _setting("consumer.assignment.interval.ms", "int", 1000, "The interval between assignments of a group."),
    _setting("consumer.heartbeat.interval.ms", "int", 5000, "The interval between a member's heartbeats."),
    _setting("consumer.session.timeout.ms", "int", 45_000, "How long a silent member stays in its group."),
    _setting("share.assignment.interval.ms", "int", 1000, "The interval between its assignments."),
    _setting("share.auto.offset.reset", "string", "latest", "The offset at which a new share group starts."),
    _setting("share.delivery.count.limit", "int", 5, "The maximum number of deliveries of a record."),
    _setting("share.heartbeat.interval.ms", "int", 5000, "The interval between a member's heartbeats."),
    _setting("share.isolation.level", "string", "read_uncommitted", "The isolation level of a share group."),
    _setting("share.partition.max.record.locks", "int", 2000, "The most locked records per partition."),
    _setting("share.record.lock.duration.ms", "int", 30_000, "How long a member locks a record."),
    _setting("share.renew.acknowledge.enable", "boolean", True, "Whether a member may renew a lock."),
    _setting("share.session.timeout.ms", "int", 45_000, "How long a silent member stays in its group."),
    _setting("streams.assignment.interval.ms", "int", 1000, "The interval between its assignments."),
    _setting("streams.heartbeat.interval.ms", "int", 5000, "The interval between a member's heartbeats."),
    _setting("streams.initial.rebalance.delay.ms", "int", 3000, "The delay before the first rebalance."),
    _setting("streams.num.standby.replicas", "int", 0, "The number of standby replicas of a task."),
    _setting("streams.session.timeout.ms", "int", 45_000, "How long a silent member stays in its group."),
)
_SETTINGS = {setting.name: setting for setting in GROUP_SETTINGS}
#: The settings that a group can be given, and what they are among its times.
_OF_TIMES = {
    "consumer.session.timeout.ms": "session_ms",
    "consumer.heartbeat.interval.ms": "heartbeat_ms",
    "consumer.assignment.interval.ms": "assignment_interval_ms",
}


def group_times(config: BrokerGroupConfig, settings: Mapping[str, str]) -> ConsumerGroupTimes:
    """Return the times of a group that is given *settings*, on a broker with *config*.

    Raises:
        ConfigError: If a setting is unknown, cannot be set, or is outside of the broker's bounds.
    """
    for name, text in settings.items():
        if name not in _SETTINGS:
            raise UnknownSetting(name, None)
        if name not in _OF_TIMES:
            raise InvalidSetting(name, text, f"one of {', '.join(_OF_TIMES)}: other groups are not offered")
    times = _given_times(config, settings)
    check_bounds(config, times, "")
    return times


def bounded_group_times(config: BrokerGroupConfig, settings: Mapping[str, str]) -> ConsumerGroupTimes:
    """Return the times of a group that was given *settings*, within bounds that may have changed since."""
    times = _given_times(config, {name: text for name, text in settings.items() if name in _OF_TIMES})
    bounded = ConsumerGroupTimes(
        _within(times.session_ms, config.group_session_timeout_min_ms, config.group_session_timeout_max_ms),
        _within(
            times.heartbeat_ms, config.group_heartbeat_interval_min_ms, config.group_heartbeat_interval_max_ms
        ),
        _within(
            times.assignment_interval_ms,
            config.group_assignment_interval_min_ms,
            config.group_assignment_interval_max_ms,
        ),
    )
    return bounded if bounded.heartbeat_ms < bounded.session_ms else ConsumerGroupTimes.of(config)


def _given_times(config: BrokerGroupConfig, settings: Mapping[str, str]) -> ConsumerGroupTimes:
    given = {_OF_TIMES[name]: _SETTINGS[name].parse(text) for name, text in settings.items()}
    return dataclasses.replace(ConsumerGroupTimes.of(config), **given)


def _within(value: int, least: int, most: int) -> int:
    return min(max(value, least), most)


def default_of_group(config: BrokerGroupConfig, setting: Setting) -> object:
    """Return the value of a setting of groups that have none of their own."""
    attribute = _OF_TIMES.get(setting.name)
    return setting.default if attribute is None else getattr(ConsumerGroupTimes.of(config), attribute)
