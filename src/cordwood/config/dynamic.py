"""Broker settings that can change at run time, layered over the static configuration.

As in Kafka, they are set for one broker, by its id, or for all brokers, under the empty name. The value of a
setting comes from the first of these that has one: the broker's own settings, the settings for all brokers,
``server.properties``, the default.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from cordwood import tenancy
from cordwood.config import kafka as kafka_settings
from cordwood.config.broker import BROKER_SETTINGS, BrokerConfig
from cordwood.config.families import FAMILIES, ORG_FAMILIES, Family
from cordwood.config.loading import BROKER_NAMES, nearest
from cordwood.config.per_listener import LISTENER_SETTINGS, split_name
from cordwood.config.setting import Setting
from cordwood.config.tenant_rules import OrgQuota
from cordwood.config.topic import FIXED_SETTINGS, TOPIC_SETTINGS
from cordwood.errors import ConfigError, InvalidSetting, UnknownSetting

#: The name of the settings for all brokers.
EVERY_BROKER = ""

_OF_BROKERS = (
    "log.cleaner.backoff.ms",
    "log.cleaner.dedupe.buffer.size",
    "log.cleaner.io.max.bytes.per.second",
    "max.connections",
    "producer.id.expiration.ms",
    "cordwood.sync.max.ms",
)
#: The settings that can change at run time, by their name: the topic defaults, except the settings that are
#: fixed when a topic is created, and a few settings of the broker.
DYNAMIC_SETTINGS: Mapping[str, Setting] = MappingProxyType(
    {
        **{
            setting.broker_name: setting
            for setting in TOPIC_SETTINGS.values()
            if setting.broker_kinds and setting.name not in FIXED_SETTINGS
        },
        **{name: BROKER_SETTINGS[name] for name in _OF_BROKERS},
    }
)


@dataclass(frozen=True, slots=True)
class LayeredConfig:
    """The configuration of a broker and its sources.

    ``static`` is the configuration at start. ``shared`` and ``own`` are the settings given at run time, as
    text, for all brokers and for this one. ``config`` is the result.
    """

    static: BrokerConfig
    shared: Mapping[str, str]
    own: Mapping[str, str]
    config: BrokerConfig

    def seen_by(self, org: int) -> LayeredConfig:
        """Return the configuration that clients of *org* may see; org 0 sees all run-time settings."""

        def own(settings: Mapping[str, str]) -> Mapping[str, str]:
            limits = {name: quota_of(name) for name in settings}
            return MappingProxyType(
                {
                    name: text
                    for name, text in settings.items()
                    if org == tenancy.DEFAULT_ORG or (limit := limits[name]) is None or limit[1] == org
                }
            )

        return LayeredConfig(
            self.static.seen_by(org), own(self.shared), own(self.own), self.config.seen_by(org)
        )


def only_static(config: BrokerConfig) -> LayeredConfig:
    """Return *config* layered with no settings from run time."""
    nothing: Mapping[str, str] = MappingProxyType({})
    return LayeredConfig(config, nothing, nothing, config)


def layered(static: BrokerConfig, given: Mapping[str, Mapping[str, str]]) -> LayeredConfig:
    """Return *static* layered with the settings *given* at run time, by broker id or `EVERY_BROKER`.

    Raises:
        ConfigError: If a setting is unknown, cannot change at run time, or does not accept its value.
    """
    shared, own = given.get(EVERY_BROKER, {}), given.get(str(static.node_id), {})
    config = static
    for settings in (shared, own):
        for name, text in settings.items():
            config = _with(config, name, text)
    return LayeredConfig(static, MappingProxyType(dict(shared)), MappingProxyType(dict(own)), config)


def layered_as_far_as_possible(
    static: BrokerConfig, given: Mapping[str, Mapping[str, str]]
) -> tuple[LayeredConfig, list[str]]:
    """Return the result of `layered` without the settings that cannot be applied, and a warning for each.

    A stored setting must not prevent the broker from starting.
    """
    taken: dict[str, dict[str, str]] = {}
    warnings = []
    for broker in (EVERY_BROKER, str(static.node_id)):
        for name, text in given.get(broker, {}).items():
            more = {**taken, broker: {**taken.get(broker, {}), name: text}}
            try:
                layered(static, more)
            except ConfigError as error:
                warnings.append(f"{name}, which was set at run time, is not applied: {error}.")
            else:
                taken = more
    return layered(static, taken), warnings


def quota_name(attribute: str, org: int) -> str:
    """Return the name of the setting for one limit of an org."""
    return ORG_FAMILIES[attribute].pattern.replace("<org>", str(org))


def quota_of(name: str) -> tuple[str, int, Family] | None:
    """Return the attribute, org and family of the quota setting *name*, or None if it is not a quota.

    Raises:
        InvalidSetting: If the org in *name* is not a valid number.
    """
    for attribute, family in ORG_FAMILIES.items():
        number = family.variable_in(name)
        if number is not None:
            try:
                return attribute, tenancy.parse_org(number), family
            except ValueError:
                raise InvalidSetting(name, number, "the number of an org in that place") from None
    return None


def _with(config: BrokerConfig, name: str, text: str) -> BrokerConfig:
    """Return *config* with one setting from run time applied. Raises like `layered`."""
    limit = quota_of(name)
    if limit is not None:
        attribute, org, family = limit
        changed = config.org_quotas.get(org, OrgQuota())._replace(**{attribute: family.parse(text, name)})
        return dataclasses.replace(config, org_quotas=MappingProxyType({**config.org_quotas, org: changed}))
    setting = DYNAMIC_SETTINGS.get(name)
    if setting is None:
        raise _refusal(name)
    value: dict[str, Any] = {setting.attribute: setting.parse(text, name)}
    if setting.name in TOPIC_SETTINGS:
        return dataclasses.replace(config, topic_defaults=dataclasses.replace(config.topic_defaults, **value))
    return dataclasses.replace(config, **value)


def _refusal(name: str) -> ConfigError:
    of_listener = split_name(name)
    if of_listener is not None and of_listener[1] in LISTENER_SETTINGS:
        return ConfigError(
            name,
            f"{name} cannot be changed at run time: change the file that it names, or restart the broker",
        )
    if name in BROKER_NAMES or any(family.variable_in(name) is not None for family in FAMILIES):
        known = BROKER_NAMES.get(name)
        if known is not None and known.broker_name != name and known.broker_name in DYNAMIC_SETTINGS:
            return ConfigError(name, f"{name} cannot be changed at run time: set {known.broker_name}")
        return ConfigError(
            name,
            f"{name} cannot be changed at run time: set it in server.properties and restart the broker",
        )
    if name in kafka_settings.NAMES or name.startswith(kafka_settings.PREFIXES):
        return ConfigError(name, f"{name} is a setting of Kafka that Cordwood does not apply")
    if name in TOPIC_SETTINGS:
        return UnknownSetting(name, next(iter(TOPIC_SETTINGS[name].broker_kinds), None))
    return UnknownSetting(name, nearest(name, DYNAMIC_SETTINGS))
