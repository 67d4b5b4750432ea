"""Kafka's settings of consumer groups, with their defaults.

They belong to the consumer, share and streams protocols, which Cordwood does not offer. Tools that list the
settings of a group find them; none can be set.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

from cordwood.config.kinds import SettingKind, ValueType, integer, one_of, parse_boolean
from cordwood.config.setting import Setting

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
