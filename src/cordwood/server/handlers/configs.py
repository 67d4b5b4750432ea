"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs: settings, and where their values come from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from cordwood.config import (
    BROKER_SETTINGS,
    CREATION_SETTINGS,
    FIXED_SETTINGS,
    TOPIC_SETTINGS,
    BrokerConfig,
    Setting,
    TopicConfig,
)
from cordwood.errors import ConfigError, CordwoodError, InvalidSetting, UnknownTopic
from cordwood.protocol.error_codes import ErrorCode
from cordwood.protocol.messages.configs import (
    AlterConfigsRequest,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from cordwood.server.answers import code_of, sentence_of
from cordwood.server.connection import Exchange
from cordwood.server.context import Context
from cordwood.setting_kinds import text_of

TOPIC, BROKER = 2, 4
#: Where a value comes from: the topic itself, the broker's file, nowhere.
SOURCE_TOPIC, SOURCE_BROKER, SOURCE_DEFAULT = 1, 4, 5
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3
_LISTS = frozenset({"cleanup.policy", "listeners", "advertised.listeners"})
_BOOLEAN, _STRING, _LONG, _LIST = 1, 2, 5, 7


def describe_configs(context: Context, exchange: Exchange) -> None:
    """List settings of topics and of the broker: all of them, unless some are named."""
    request: DescribeConfigsRequest = exchange.request.body
    results = []
    for resource in request.resources:
        result = DescribeConfigsResult(
            error_message=None,
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
        )
        try:
            result.configs = _described(context, resource, request)
        except CordwoodError as error:
            result.error_code, result.error_message = _code(error), sentence_of(error)
        results.append(result)
    exchange.answer(DescribeConfigsResponse(results=results))


def _code(error: CordwoodError) -> ErrorCode:
    if isinstance(error, ConfigError) and error.name == "resource":
        return ErrorCode.INVALID_REQUEST
    return code_of(error)


def _described(
    context: Context, resource: DescribeConfigsResource, request: DescribeConfigsRequest
) -> list[DescribeConfigsResourceResult]:
    if resource.resource_type == TOPIC:
        topic = context.tenant.find(resource.resource_name)
        if topic is None:
            raise UnknownTopic(f"there is no topic {resource.resource_name}")
        listed = topic_settings(context.tenant.config_of(topic), context.config)
    elif resource.resource_type == BROKER and not resource.resource_name:
        # The settings that all brokers of a cluster were given together: there is no such place here.
        listed = []
    elif resource.resource_type == BROKER:
        _check_broker(context, resource.resource_name)
        listed = broker_settings(context.config)
    else:
        raise InvalidSetting("resource", resource.resource_type, "2 for a topic or 4 for a broker")
    wanted = resource.configuration_keys
    chosen = [one for one in listed if wanted is None or one.name in wanted]
    for one in chosen:
        if not request.include_synonyms:
            one.synonyms = []
        if not request.include_documentation:
            one.documentation = None
    return chosen


def _check_broker(context: Context, name: str) -> None:
    if name != str(context.config.node_id):
        raise InvalidSetting("resource", name, f"the broker's id, {context.config.node_id}")


def topic_settings(config: TopicConfig, broker: BrokerConfig) -> list[DescribeConfigsResourceResult]:
    """Return every setting of a topic."""
    listed = []
    for setting in TOPIC_SETTINGS.values():
        # From the first that counts to the last: the topic's own, the broker's, the default.
        synonyms = []
        if setting.name in config.explicit:
            synonyms.append((setting.name, getattr(config, setting.attribute), SOURCE_TOPIC))
        if setting.name in CREATION_SETTINGS:
            # What the broker says is about topics that are created from now on.
            synonyms.append((setting.name, setting.default, SOURCE_DEFAULT))
        else:
            synonyms += _broker_synonyms(setting, broker, getattr(broker.topic_defaults, setting.attribute))
        listed.append(_result(setting.name, setting, synonyms, read_only=setting.name in FIXED_SETTINGS))
    return listed


def broker_settings(config: BrokerConfig) -> list[DescribeConfigsResourceResult]:
    """Return every setting of the broker, the defaults of topics among them under their names there."""
    listed = []
    for setting in (*BROKER_SETTINGS.values(), *TOPIC_SETTINGS.values()):
        holder = config if setting.name in BROKER_SETTINGS else config.topic_defaults
        synonyms = _broker_synonyms(setting, config, getattr(holder, setting.attribute))
        listed.append(_result(next(iter(setting.broker_kinds)), setting, synonyms, read_only=True))
    return listed


def _broker_synonyms(setting: Setting, broker: BrokerConfig, value: object) -> list[tuple[str, object, int]]:
    name = next(iter(setting.broker_kinds))
    default = (name, setting.default, SOURCE_DEFAULT)
    if broker.explicit.isdisjoint({*setting.broker_kinds, setting.environment}):
        return [default]
    return [(name, value, SOURCE_BROKER), default]


def _result(
    name: str, setting: Setting, synonyms: Sequence[tuple[str, object, int]], *, read_only: bool
) -> DescribeConfigsResourceResult:
    _, value, source = synonyms[0]
    return DescribeConfigsResourceResult(
        name=name,
        value=text_of(value),
        read_only=read_only,
        config_source=source,
        synonyms=[
            DescribeConfigsSynonym(name=synonym, value=text_of(given), source=where)
            for synonym, given, where in synonyms
        ],
        config_type=_type_of(setting),
        documentation=setting.sentence,
    )


def _type_of(setting: Setting) -> int:
    if setting.name in _LISTS:
        return _LIST
    if isinstance(setting.default, bool):
        return _BOOLEAN
    return _LONG if isinstance(setting.default, int) else _STRING


# Changing


def alter_configs(context: Context, exchange: Exchange) -> None:
    """Replace all settings that topics have of their own."""
    request: AlterConfigsRequest = exchange.request.body
    changes = [
        (
            resource.resource_type,
            resource.resource_name,
            _replacing([(one.name, one.value) for one in resource.configs]),
        )
        for resource in request.resources
    ]
    context.changes.run(
        exchange,
        lambda: AlterConfigsResponse(responses=_alter(context, changes, request.validate_only)),
        exchange.answer,
    )


def incremental_alter_configs(context: Context, exchange: Exchange) -> None:
    """Change settings of topics one by one."""
    request: IncrementalAlterConfigsRequest = exchange.request.body
    changes = [
        (resource.resource_type, resource.resource_name, _changing(resource.configs))
        for resource in request.resources
    ]
    context.changes.run(
        exchange,
        lambda: IncrementalAlterConfigsResponse(responses=_alter(context, changes, request.validate_only)),
        exchange.answer,
    )


Change = Callable[[Mapping[str, str], TopicConfig], dict[str, str]]
"""Makes the settings that a topic is to have out of those it has and of what they come to."""


def _replacing(given: Iterable[tuple[str, str | None]]) -> Change:
    settings = {name: value for name, value in given if value is not None}
    return lambda before, config: settings


def _changing(changes: Sequence[IncrementalAlterableConfig]) -> Change:
    def change(before: Mapping[str, str], config: TopicConfig) -> dict[str, str]:
        names = [one.name for one in changes]
        if len(names) != len(set(names)):
            raise ConfigError("resource", "a setting is named more than once")
        settings = dict(before)
        for one in changes:
            if one.config_operation == SET and one.value is not None:
                settings[one.name] = one.value
            elif one.config_operation == DELETE:
                settings.pop(one.name, None)
            elif one.config_operation in (APPEND, SUBTRACT) and one.value is not None:
                settings[one.name] = _list_change(one, config)
            else:
                raise ConfigError("resource", f"no such change of {one.name}: {one.config_operation}")
        return settings

    return change


def _list_change(change: IncrementalAlterableConfig, config: TopicConfig) -> str:
    setting = TOPIC_SETTINGS.get(change.name)
    if setting is None or change.name not in _LISTS:
        raise ConfigError(change.name, f"{change.name} is not a list that can be added to or taken from")
    assert change.value is not None
    before = text_of(getattr(config, setting.attribute)).split(",")
    named = [part.strip() for part in change.value.split(",")]
    if change.config_operation == SUBTRACT:
        return ",".join(part for part in before if part not in named)
    # In the order that the setting is written in, whichever was there first.
    return ",".join(sorted({*before, *named}))


def _alter(
    context: Context, changes: Sequence[tuple[int, str, Change]], validate_only: bool
) -> list[AlterConfigsResourceResponse]:
    return [_alter_one(context, kind, name, change, validate_only) for kind, name, change in changes]


def _alter_one(
    context: Context, kind: int, name: str, change: Change, validate_only: bool
) -> AlterConfigsResourceResponse:
    response = AlterConfigsResourceResponse(error_message=None, resource_type=kind, resource_name=name)
    tenant = context.tenant
    try:
        if kind != TOPIC:
            raise ConfigError("resource", "settings of the broker are read when it starts")
        topic = tenant.find(name)
        if topic is None:
            raise UnknownTopic(f"there is no topic {name}")
        settings = change(topic.entry.config, tenant.config_of(topic))
        tenant.alter(name, settings, validate_only=validate_only)
    except CordwoodError as error:
        response.error_code, response.error_message = _code(error), sentence_of(error)
    return response
