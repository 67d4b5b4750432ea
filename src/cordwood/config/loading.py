"""Typed configuration under Kafka's names; the only reader of the environment.

Each setting is declared once, as a field of :class:`TopicConfig` or :class:`BrokerConfig`. The declaration
holds its name, default, accepted values and sentence. The typed attribute, parsing, validation, the
broker-wide default and the reference table derive from it.

A topic's value comes from the first of these that has one: the topic's own setting, the broker's setting
(where ``segment.bytes`` is called ``log.segment.bytes``, as in Kafka), the default.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from cordwood import tenancy
from cordwood.config import kafka as kafka_settings
from cordwood.config.broker import BROKER_SETTINGS, BrokerConfig
from cordwood.config.families import FAMILIES, LISTENER_ORG, ORG_FAMILIES, Family
from cordwood.config.kinds import text_of
from cordwood.config.per_listener import LISTENER_SETTINGS, ListenerConfig, split_name
from cordwood.config.setting import Setting
from cordwood.config.tenant_rules import OrgQuota
from cordwood.config.topic import (
    CREATION_SETTINGS,
    FIXED_SETTINGS,
    SHARED_FORMAT,
    TOPIC_SETTINGS,
    RecordFormat,
    Storage,
    TimestampType,
    TopicConfig,
)
from cordwood.errors import InvalidSetting, UnknownSetting

__all__ = [
    "BROKER_NAMES",
    "BROKER_SETTINGS",
    "CREATION_SETTINGS",
    "FAMILIES",
    "FIXED_SETTINGS",
    "LISTENER_SETTINGS",
    "SHARED_FORMAT",
    "TOPIC_SETTINGS",
    "BrokerConfig",
    "Family",
    "OrgQuota",
    "RecordFormat",
    "Setting",
    "Storage",
    "TimestampType",
    "TopicConfig",
    "family_table",
    "load_broker_config",
    "nearest",
    "reference_table",
    "store_without_tls",
    "topic_config",
]

_NOTHING: Mapping[str, str] = MappingProxyType({})
_SETTINGS = (*BROKER_SETTINGS.values(), *LISTENER_SETTINGS.values(), *TOPIC_SETTINGS.values())
#: Every name that is valid in a broker's properties, except families, and its setting.
BROKER_NAMES = {name: setting for setting in _SETTINGS for name in setting.broker_kinds}
_TOPIC_DEFAULTS = TopicConfig()
_LEVELS = {"topic": TOPIC_SETTINGS, "broker": BROKER_SETTINGS, "listener": LISTENER_SETTINGS}


# Loading


def store_without_tls(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether an object store may be reached by ``http://``.

    ``AWS_ALLOW_HTTP`` says so, and so does an endpoint on this machine: nobody else sees what is sent there.
    """
    if environment.get("AWS_ALLOW_HTTP", "").lower() in ("1", "true", "yes"):
        return True
    endpoint = environment.get("AWS_ENDPOINT_URL") or environment.get("AWS_ENDPOINT") or ""
    return endpoint.startswith(("http://127.0.0.1:", "http://localhost:", "http://[::1]:"))


def load_broker_config(
    properties: Mapping[str, str] = _NOTHING,
    overrides: Mapping[str, str] = _NOTHING,
    environment: Mapping[str, str] = os.environ,
) -> tuple[BrokerConfig, list[str]]:
    """Return the broker's configuration and one sentence for each property that has no effect.

    *overrides* take precedence over *properties*, also under another name of the same setting. A variable of
    *environment* is used only if neither has the setting and the variable is not empty.

    Raises:
        UnknownSetting: For a name that neither Cordwood nor Kafka knows.
        InvalidSetting: For a value that its setting does not accept.
    """
    warnings = [
        f"{name} is a setting of Kafka that Cordwood does not apply."
        for name in {**properties, **overrides}
        if not _is_applied(name)
    ]
    values: dict[str, dict[str, Any]] = {"topic": {}, "broker": {}, "listener": {}}
    explicit = set()
    for level, settings in _LEVELS.items():
        for setting in settings.values():
            given = _given(setting, overrides, properties, environment)
            if given:
                (name, text), *ignored = given
                warnings += [f"{other} is ignored because {name} is set." for other, _ in ignored]
                if not _is_honoured(setting, text, name):
                    warnings.append(f"{name}={text} has no effect: expected {setting.kind.expected}.")
                    continue
                values[level][setting.attribute] = setting.parse(text, name)
                explicit.add(name)
    defaults = TopicConfig(**values["topic"])
    if defaults.format != _TOPIC_DEFAULTS.format:
        # A topic without a format of its own would become unreadable when the default changes.
        raise InvalidSetting("cordwood.format", defaults.format, "batch: other formats are set per topic")
    families = {name: text for name, text in {**properties, **overrides}.items() if name not in BROKER_NAMES}
    own, more = _listener_configs(families, values["listener"])
    warnings += more
    config = BrokerConfig(
        **values["broker"],
        listener_defaults=ListenerConfig(
            **values["listener"], explicit=frozenset(explicit & LISTENER_SETTINGS.keys())
        ),
        listener_configs=own,
        topic_defaults=defaults,
        explicit=frozenset(explicit),
        listener_orgs=_listener_orgs(families),
        org_quotas=_org_quotas(families),
    )
    by_rule = config.tenant_rules.orgs()
    orgs = {config.org_of(endpoint.name) for endpoint in config.listeners.each} | (by_rule or set())
    warnings += [
        f"The quotas of org {org} have no effect: no listener belongs to it."
        for org in config.org_quotas
        if org not in orgs and by_rule is not None
    ]
    return config, warnings


def _is_applied(name: str) -> bool:
    """Return whether *name* is a setting of ours, and False if it is only one of Kafka's.

    Raises:
        UnknownSetting: If it is neither.
    """
    if name in BROKER_NAMES or any(family.variable_in(name) is not None for family in FAMILIES):
        return True
    of_listener = split_name(name)
    known: Mapping[str, Setting] = BROKER_NAMES
    if of_listener is not None:
        name, known = of_listener[1], LISTENER_SETTINGS
        if name in LISTENER_SETTINGS:
            return True
    if name in kafka_settings.NAMES or name.startswith(kafka_settings.PREFIXES):
        return False
    if of_listener is not None and kafka_settings.may_belong_to_a_listener(name):
        return False
    if name in TOPIC_SETTINGS:
        raise UnknownSetting(name, next(iter(TOPIC_SETTINGS[name].broker_kinds), None))
    raise UnknownSetting(name, nearest(name, {*known, *kafka_settings.NAMES}))


def _listener_configs(
    given: Mapping[str, str], defaults: Mapping[str, Any]
) -> tuple[Mapping[str, ListenerConfig], list[str]]:
    """Return the configuration of each listener with settings of its own, and warnings.

    *defaults* are the values of the attributes that are set for all listeners.
    """
    values: dict[str, dict[str, Any]] = {}
    names: dict[str, set[str]] = {}
    warnings = []
    for full, text in given.items():
        listener, name = split_name(full) or ("", "")
        if name not in LISTENER_SETTINGS:
            continue
        setting = LISTENER_SETTINGS[name]
        if not _is_honoured(setting, text, name):
            warnings.append(f"{full}={text} has no effect: expected {setting.kind.expected}.")
            continue
        try:
            value = setting.parse(text)
        except InvalidSetting as error:
            raise InvalidSetting(full, error.value, error.expected) from None
        values.setdefault(listener, dict(defaults))[setting.attribute] = value
        names.setdefault(listener, set()).add(name)
    configs = {name: ListenerConfig(**each, explicit=frozenset(names[name])) for name, each in values.items()}
    return MappingProxyType(configs), warnings


def _is_honoured(setting: Setting, text: str, name: str) -> bool:
    """Return False for a value that Kafka accepts and Cordwood cannot honour. Raises nothing."""
    try:
        setting.parse(text, name)
    except InvalidSetting:
        if setting.kafka_kind is None:
            return True
        with contextlib.suppress(ValueError):
            setting.kafka_kind.parse(text.strip())
            return False
    return True


def _listener_orgs(given: Mapping[str, str]) -> Mapping[str, int]:
    named = [(LISTENER_ORG.variable_in(name), name, text) for name, text in given.items()]
    found = {listener: LISTENER_ORG.parse(text, name) for listener, name, text in named if listener}
    return MappingProxyType(found)


def _org_quotas(given: Mapping[str, str]) -> Mapping[int, OrgQuota]:
    found: dict[int, OrgQuota] = {}
    for name, text in given.items():
        for attribute, family in ORG_FAMILIES.items():
            number = family.variable_in(name)
            if number is not None:
                try:
                    org = tenancy.parse_org(number)
                except ValueError:
                    raise InvalidSetting(
                        name, text, f"<org> in its name to be {LISTENER_ORG.kind.expected}"
                    ) from None
                found[org] = found.get(org, OrgQuota())._replace(**{attribute: family.parse(text, name)})
    return MappingProxyType(found)


def _given(
    setting: Setting,
    overrides: Mapping[str, str],
    properties: Mapping[str, str],
    environment: Mapping[str, str],
) -> list[tuple[str, str]]:
    """Return each name and text for *setting* in the first source that has any; the first pair is used."""
    for layer in (overrides, properties):
        given = [(name, layer[name]) for name in setting.broker_kinds if name in layer]
        if given:
            return given
    variable = environment.get(setting.environment) if setting.environment else None
    return [(setting.environment, variable)] if variable else []


def topic_config(overrides: Mapping[str, str] = _NOTHING, broker: BrokerConfig | None = None) -> TopicConfig:
    """Return the configuration of a topic whose own settings are *overrides*, on *broker*.

    Raises:
        UnknownSetting: For a name that is not a setting of a topic.
        InvalidSetting: For a value that its setting does not accept.
    """
    defaults = broker.topic_defaults if broker else _TOPIC_DEFAULTS
    if not overrides and not defaults.explicit and defaults.storage == _TOPIC_DEFAULTS.storage:
        return defaults
    return _topic_config(defaults, tuple(overrides.items()))


# Cached, so that topics with equal settings, such as most of 100,000 topics, share one configuration.
@functools.lru_cache(maxsize=1024)
def _topic_config(defaults: TopicConfig, overrides: tuple[tuple[str, str], ...]) -> TopicConfig:
    values: dict[str, Any] = {
        TOPIC_SETTINGS[name].attribute: TOPIC_SETTINGS[name].default for name in CREATION_SETTINGS
    }
    for name, text in overrides:
        if name not in TOPIC_SETTINGS:
            meant = BROKER_NAMES[name].name if name in BROKER_NAMES else None
            raise UnknownSetting(name, meant if meant in TOPIC_SETTINGS else nearest(name, TOPIC_SETTINGS))
        values[TOPIC_SETTINGS[name].attribute] = TOPIC_SETTINGS[name].parse(text)
    return dataclasses.replace(defaults, **values, explicit=frozenset(name for name, _ in overrides))


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the most similar name in *known*, or None if no name is similar enough."""
    # The cutoff is strict because many names share their last word: segment.ms is no hint for retention.ms.
    # Loaded here, because most programs never need a suggestion.
    import difflib

    return next(iter(difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.8)), None)


def reference_table(settings: Iterable[Setting]) -> str:
    """Return the Markdown table that documents *settings*."""
    rows = ["| Name | Default | Takes | In server.properties | Meaning |", "|---|---|---|---|---|"]
    for setting in settings:
        names = ", ".join(f"`{name}`" for name in setting.broker_kinds) or "topics only"
        names += f"; `{setting.environment}` in the environment" if setting.environment else ""
        rows.append(
            f"| `{setting.name}` | `{text_of(setting.default)}` | {setting.kind.expected} "
            f"| {names} | {setting.sentence} |"
        )
    return "\n".join(rows) + "\n"


def family_table(families: Iterable[Family]) -> str:
    """Return the Markdown table that documents *families*."""
    rows = ["| Name | Takes | Meaning |", "|---|---|---|"]
    rows += [f"| `{each.pattern}` | {each.kind.expected} | {each.sentence} |" for each in families]
    return "\n".join(rows) + "\n"
