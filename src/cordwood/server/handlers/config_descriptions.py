"""Settings in the form of DescribeConfigs: their values and sources."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cordwood.config import (
    BROKER_SETTINGS,
    CREATION_SETTINGS,
    DYNAMIC_SETTINGS,
    FIXED_SETTINGS,
    GROUP_SETTINGS,
    LISTENER_SETTINGS,
    TOPIC_SETTINGS,
    BrokerConfig,
    LayeredConfig,
    Setting,
    TopicConfig,
    listener_name,
    quota_name,
    quota_of,
    text_of,
)
from cordwood.protocol.messages import DescribeConfigsResourceResult, DescribeConfigsSynonym
from cordwood.server.handlers.broker_loggers import logger_levels

#: The source of a value: the topic, run-time settings of this broker or of all brokers, the broker's file,
#: the default; the source of logger levels, and the settings of a group.
SOURCE_TOPIC, SOURCE_BROKER, SOURCE_EVERY_BROKER, SOURCE_FILE, SOURCE_DEFAULT, SOURCE_LOGGER = range(1, 7)
SOURCE_GROUP = 8
#: Kafka's numbers for the types of values.
_TYPES = {"boolean": 1, "string": 2, "int": 3, "long": 5, "double": 6, "list": 7}
Synonyms = Sequence[tuple[str, object, int]]
"""Names, values and sources, highest precedence first."""


def topic_settings(config: TopicConfig, layers: LayeredConfig) -> list[DescribeConfigsResourceResult]:
    """Return every setting of a topic."""
    listed = []
    for setting in TOPIC_SETTINGS.values():
        synonyms: list[tuple[str, object, int]] = []
        if setting.name in config.explicit:
            synonyms.append((setting.name, getattr(config, setting.attribute), SOURCE_TOPIC))
        if setting.name in CREATION_SETTINGS:
            # The broker's value is for new topics only.
            synonyms.append((setting.name, setting.default, SOURCE_DEFAULT))
        else:
            synonyms += _broker_synonyms(setting, layers)
        listed.append(_result(setting.name, setting, synonyms, read_only=setting.name in FIXED_SETTINGS))
    return listed


def broker_settings(layers: LayeredConfig) -> list[DescribeConfigsResourceResult]:
    """Return every setting of the broker, including topic defaults under the broker's names."""
    listed = [
        _result(
            setting.broker_name,
            setting,
            _broker_synonyms(setting, layers),
            read_only=setting.broker_name not in DYNAMIC_SETTINGS,
        )
        for setting in (*BROKER_SETTINGS.values(), *LISTENER_SETTINGS.values(), *TOPIC_SETTINGS.values())
        if setting.broker_kinds
    ]
    return [*listed, *_own_of_listeners(layers.static), *_quotas(layers)]


def every_broker_settings(layers: LayeredConfig) -> list[DescribeConfigsResourceResult]:
    """Return only the settings that were given to all brokers at run time."""
    return [_given(name, text, SOURCE_EVERY_BROKER) for name, text in layers.shared.items()]


def group_settings(own: Mapping[str, str], layers: LayeredConfig) -> list[DescribeConfigsResourceResult]:
    """Return every setting of a group that was given *own* ones."""
    listed = []
    for setting in GROUP_SETTINGS:
        synonyms: list[tuple[str, object, int]] = []
        if setting.name in own:
            synonyms.append((setting.name, setting.parse(own[setting.name]), SOURCE_GROUP))
        of_broker = BROKER_SETTINGS.get(f"group.{setting.name}")
        if of_broker is None:
            synonyms.append((setting.name, setting.default, SOURCE_DEFAULT))
        else:
            synonyms += _broker_synonyms(of_broker, layers)
        listed.append(_result(setting.name, setting, synonyms, read_only=False))
    return listed


def broker_loggers() -> list[DescribeConfigsResourceResult]:
    """Return the levels of Cordwood's loggers."""
    return [
        DescribeConfigsResourceResult(name=name, value=level, config_source=SOURCE_LOGGER, documentation=None)
        for name, level in logger_levels().items()
    ]


def _broker_synonyms(setting: Setting, layers: LayeredConfig) -> list[tuple[str, object, int]]:
    name = setting.broker_name
    found: list[tuple[str, object, int]] = [
        (name, setting.parse(given[name], name), source)
        for given, source in ((layers.own, SOURCE_BROKER), (layers.shared, SOURCE_EVERY_BROKER))
        if name in given
    ]
    static = layers.static
    if not static.explicit.isdisjoint({*setting.broker_kinds, setting.environment}):
        holder: object = static
        if setting.name not in BROKER_SETTINGS:
            holder = static.listener_defaults if setting.name in LISTENER_SETTINGS else static.topic_defaults
        found.append((name, getattr(holder, setting.attribute), SOURCE_FILE))
    return [*found, (name, setting.default, SOURCE_DEFAULT)]


def _own_of_listeners(config: BrokerConfig) -> list[DescribeConfigsResourceResult]:
    """Return the settings that listeners have of their own."""
    listed = []
    for listener, own in config.listener_configs.items():
        for name in sorted(own.explicit):
            setting, full = LISTENER_SETTINGS[name], listener_name(name, listener)
            value = getattr(own, setting.attribute)
            listed.append(_result(full, setting, [(full, value, SOURCE_FILE)], read_only=True))
    return listed


def _quotas(layers: LayeredConfig) -> list[DescribeConfigsResourceResult]:
    """Return the limits of orgs, each from the source with the highest precedence."""
    found = {
        quota_name(attribute, org): _given(quota_name(attribute, org), text_of(value), SOURCE_FILE)
        for org, quota in layers.static.org_quotas.items()
        for attribute, value in quota._asdict().items()
        if value is not None
    }
    for given, source in ((layers.shared, SOURCE_EVERY_BROKER), (layers.own, SOURCE_BROKER)):
        for name, text in given.items():
            if quota_of(name) is not None:
                found[name] = _given(name, text, source)
    return list(found.values())


def _given(name: str, text: str, source: int) -> DescribeConfigsResourceResult:
    """Return a setting that was given at run time or belongs to a family."""
    setting = DYNAMIC_SETTINGS.get(name)
    if setting is not None:
        return _result(name, setting, [(name, setting.parse(text, name), source)], read_only=False)
    limit = quota_of(name)
    assert limit is not None
    family = limit[2]
    return DescribeConfigsResourceResult(
        name=name,
        value=text,
        config_source=source,
        synonyms=[DescribeConfigsSynonym(name=name, value=text, source=source)],
        config_type=_TYPES[family.kind.type],
        documentation=family.sentence,
    )


def _result(
    name: str, setting: Setting, synonyms: Synonyms, *, read_only: bool
) -> DescribeConfigsResourceResult:
    _, value, source = synonyms[0]
    return DescribeConfigsResourceResult(
        name=name,
        value=None if setting.secret else text_of(value),
        read_only=read_only,
        config_source=source,
        is_sensitive=setting.secret,
        synonyms=[
            DescribeConfigsSynonym(
                name=synonym, value=None if setting.secret else text_of(given), source=where
            )
            for synonym, given, where in synonyms
        ],
        config_type=_TYPES[setting.kind.type],
        documentation=setting.sentence,
    )
