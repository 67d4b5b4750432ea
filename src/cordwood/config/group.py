"""Kafka's settings of consumer groups, with their defaults.

They are about the consumer, share and streams protocols, which are not offered: tools that list the settings
of a group find them, and none can be set.
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
    _setting("consumer.assignment.interval.ms", "int", 1000, "How often a consumer group is assigned anew."),
    _setting("consumer.heartbeat.interval.ms", "int", 5000, "How often members of a consumer group report."),
    _setting("consumer.session.timeout.ms", "int", 45_000, "How long a silent member stays in its group."),
    _setting("share.assignment.interval.ms", "int", 1000, "How often a share group is assigned anew."),
    _setting("share.auto.offset.reset", "string", "latest", "Where a share group begins."),
    _setting("share.delivery.count.limit", "int", 5, "How often a record is delivered to a share group."),
    _setting("share.heartbeat.interval.ms", "int", 5000, "How often members of a share group report."),
    _setting("share.isolation.level", "string", "read_uncommitted", "Which records a share group is given."),
    _setting("share.partition.max.record.locks", "int", 2000, "How many records a share group may hold."),
    _setting("share.record.lock.duration.ms", "int", 30_000, "How long a member holds a record."),
    _setting("share.renew.acknowledge.enable", "boolean", True, "Whether a member may hold it for longer."),
    _setting("share.session.timeout.ms", "int", 45_000, "How long a silent member stays in its share group."),
    _setting("streams.assignment.interval.ms", "int", 1000, "How often a streams group is assigned anew."),
    _setting("streams.heartbeat.interval.ms", "int", 5000, "How often members of a streams group report."),
    _setting("streams.initial.rebalance.delay.ms", "int", 3000, "How long a new streams group waits."),
    _setting("streams.num.standby.replicas", "int", 0, "How many standby tasks a streams group has."),
    _setting("streams.session.timeout.ms", "int", 45_000, "How long a silent member stays in its group."),
)
