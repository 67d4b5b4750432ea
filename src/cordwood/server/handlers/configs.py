"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs: settings of topics, brokers, groups and loggers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from cordwood.broker import OPERATION, TruncatePartition, decode_operation
from cordwood.config import DYNAMIC_SETTINGS, EVERY_BROKER, GROUP_SETTINGS, TOPIC_SETTINGS, Setting
from cordwood.errors import ConfigError, CordwoodError, InvalidSetting, NotAllowed, UnknownTopic
from cordwood.protocol import ErrorCode
from cordwood.protocol.messages import (
    AlterConfigsRequest,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from cordwood.security import Operation
from cordwood.server.answers import code_of, sentence_of
from cordwood.server.connections import Exchange
from cordwood.server.context import Administration, Context
from cordwood.server.handlers.broker_loggers import alter_levels
from cordwood.server.handlers.config_descriptions import (
    broker_loggers,
    broker_settings,
    every_broker_settings,
    group_settings,
    topic_settings,
)
from cordwood.server.security import Rights

TOPIC, BROKER, BROKER_LOGGER, GROUP = 2, 4, 8, 32
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3


async def describe_configs(context: Context, exchange: Exchange) -> DescribeConfigsResponse:
    """Return the named settings of a resource, or all of them."""
    request: DescribeConfigsRequest = exchange.request.body
    rights = context.rights(exchange)
    results = []
    for resource in request.resources:
        result = DescribeConfigsResult(
            error_message=None,
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
        )
        code = _refusal(rights, Operation.DESCRIBE_CONFIGS, resource.resource_type, resource.resource_name)
        try:
            if code is None:
                result.configs = _described(context, resource, request)
            else:
                result.error_code, result.error_message = code, "this needs DESCRIBE_CONFIGS"
        except CordwoodError as error:
            result.error_code, result.error_message = _code(error), sentence_of(error)
        results.append(result)
    return DescribeConfigsResponse(results=results)


def _refusal(rights: Rights, operation: Operation, kind: int, name: str) -> ErrorCode | None:
    """Return the error code if the client may not do *operation* on a resource with settings, or None."""
    if kind == TOPIC:
        return rights.topic_refusal(operation, name)
    if kind == GROUP:
        return rights.group_refusal(operation, name)
    # A kind without settings is refused as unknown; whoever asks needs a right all the same.
    return rights.cluster_refusal(operation)


def _code(error: CordwoodError) -> ErrorCode:
    if isinstance(error, ConfigError) and error.name == "resource":
        return ErrorCode.INVALID_REQUEST
    return code_of(error)


def _described(
    context: Context, resource: DescribeConfigsResource, request: DescribeConfigsRequest
) -> list[DescribeConfigsResourceResult]:
    # As in Kafka, an empty list means all settings.
    wanted = resource.configuration_keys
    chosen = [one for one in _all_of(context, resource) if not wanted or one.name in wanted]
    for one in chosen:
        if not request.include_synonyms:
            one.synonyms = []
        if not request.include_documentation:
            one.documentation = None
    return chosen


def _all_of(context: Context, resource: DescribeConfigsResource) -> list[DescribeConfigsResourceResult]:
    kind, name = resource.resource_type, resource.resource_name
    if kind == TOPIC:
        topic = context.tenant.find(name)
        if topic is None:
            raise UnknownTopic.named(name)
        return topic_settings(context.node.topics.config_of(topic.entry), context.layers)
    if kind == BROKER and name == EVERY_BROKER:
        return every_broker_settings(context.layers)
    if kind in (BROKER, BROKER_LOGGER):
        _check_broker(context, name)
        return broker_settings(context.layers) if kind == BROKER else broker_loggers()
    if kind != GROUP:
        expected = "2 for a topic, 4 for a broker, 8 for its loggers or 32 for a group"
        raise InvalidSetting("resource", kind, expected)
    if not name:
        raise InvalidSetting("resource", name, "the name of a group")
    return group_settings(context.tenant.group_settings(name), context.layers)


def _check_broker(context: Context, name: str) -> None:
    if name != str(context.config.node_id):
        raise InvalidSetting("resource", name, f"the broker's id, {context.config.node_id}")


# Changing


async def alter_configs(context: Context, exchange: Exchange) -> AlterConfigsResponse:
    """Replace all own settings of resources."""
    request: AlterConfigsRequest = exchange.request.body
    changes = [
        _ConfigChange(
            resource.resource_type,
            resource.resource_name,
            _replacing([(one.name, one.value) for one in resource.configs]),
        )
        for resource in request.resources
    ]
    responses = await _alter(context, exchange, changes, request.validate_only)
    return AlterConfigsResponse(responses=responses)


async def incremental_alter_configs(context: Context, exchange: Exchange) -> IncrementalAlterConfigsResponse:
    """Change single settings of resources."""
    request: IncrementalAlterConfigsRequest = exchange.request.body
    changes = [
        _ConfigChange(
            resource.resource_type, resource.resource_name, _changing(resource.configs), resource.configs
        )
        for resource in request.resources
    ]
    responses = await _alter(context, exchange, changes, request.validate_only)
    return IncrementalAlterConfigsResponse(responses=responses)


ConfigEdit = Callable[[Mapping[str, str], Callable[[str], str]], dict[str, str]]
"""Returns the new settings of a resource from its current ones and a function of effective values."""


class _ConfigChange(NamedTuple):
    """A change of a resource's settings; ``steps`` is None unless it is incremental."""

    kind: int
    name: str
    settings: ConfigEdit
    steps: Sequence[IncrementalAlterableConfig] | None = None

    @property
    def is_operation(self) -> bool:
        """Whether it asks for an operation on a topic instead of a change of settings."""
        return self.kind == TOPIC and any(step.name == OPERATION for step in self.steps or ())


def _replacing(given: Iterable[tuple[str, str | None]]) -> ConfigEdit:
    settings = {name: value for name, value in given if value is not None}
    return lambda before, value_of: settings


def _changing(changes: Sequence[IncrementalAlterableConfig]) -> ConfigEdit:
    def change(before: Mapping[str, str], value_of: Callable[[str], str]) -> dict[str, str]:
        settings = dict(before)
        for one in changes:
            if one.config_operation == SET and one.value is not None:
                settings[one.name] = one.value
            elif one.config_operation == DELETE:
                settings.pop(one.name, None)
            elif one.config_operation in (APPEND, SUBTRACT) and one.value is not None:
                settings[one.name] = _list_change(one, value_of(one.name))
            else:
                raise ConfigError("resource", f"unknown operation on {one.name}: {one.config_operation}")
        return settings

    return change


def _list_change(change: IncrementalAlterableConfig, value: str) -> str:
    assert change.value is not None
    before = [part for part in value.split(",") if part]
    named = [part.strip() for part in change.value.split(",")]
    if change.config_operation == SUBTRACT:
        return ",".join(part for part in before if part not in named)
    return ",".join([*before, *(part for part in named if part not in before)])


def _value_of(
    settings: Mapping[str, Setting], described: Iterable[DescribeConfigsResourceResult]
) -> Callable[[str], str]:
    """Return a function that returns the value of a list setting and refuses any other setting."""
    values = {one.name: one.value or "" for one in described}

    def value_of(name: str) -> str:
        if name not in settings or settings[name].kind.type != "list":
            raise ConfigError(name, f"{name} is not a list: append and subtract are for lists")
        return values[name]

    return value_of


async def _alter(
    context: Context, exchange: Exchange, changes: Sequence[_ConfigChange], validate_only: bool
) -> list[AlterConfigsResourceResponse]:
    rights = context.rights(exchange)
    named = Counter((change.kind, change.name) for change in changes)
    operating = any(change.is_operation for change in changes)
    # A truncation may copy a segment. Others must be able to create topics meanwhile.
    workers = context.publishing if operating else context.changes
    results = await workers.call(
        lambda: [
            _alter_one(
                context,
                rights,
                change,
                validate_only,
                twice=named[change.kind, change.name] > 1,
                operating=operating,
            )
            for change in changes
        ]
    )
    if operating:
        # Fetches that wait at an offset that is gone are answered now.
        context.parking.wake_all()
        context.quotas.freed()
    if context.administration is not None:
        context.administration.apply()
    return results


def _alter_one(
    context: Context,
    rights: Rights,
    change: _ConfigChange,
    validate_only: bool,
    *,
    twice: bool,
    operating: bool,
) -> AlterConfigsResourceResponse:
    kind, name, _, steps = change
    response = AlterConfigsResourceResponse(error_message=None, resource_type=kind, resource_name=name)
    try:
        if twice:
            raise ConfigError("resource", "a resource is named more than once")
        names = [one.name for one in steps or ()]
        if len(names) != len(set(names)):
            raise ConfigError("resource", "a setting is named more than once")
        code = _refusal(rights, Operation.ALTER_CONFIGS, kind, name)
        if code is not None:
            response.error_code, response.error_message = code, "this needs ALTER_CONFIGS"
        elif operating:
            _operate(context, rights, change, validate_only)
        elif kind == TOPIC:
            _alter_topic(context, change, validate_only)
        elif kind == GROUP:
            _alter_group(context, change, validate_only)
        elif kind not in (BROKER, BROKER_LOGGER):
            raise ConfigError("resource", f"settings of resources of type {kind} cannot be changed here")
        elif context.administration is None:
            response.error_code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
            response.error_message = "only clients of org 0 may change settings of the broker"
        elif kind == BROKER:
            _alter_broker(context, context.administration, change, validate_only)
        else:
            _alter_loggers(context, change, validate_only)
    except CordwoodError as error:
        response.error_code, response.error_message = _code(error), sentence_of(error)
        if kind == BROKER and isinstance(error, ConfigError):
            # Kafka's code for any error in settings of a broker.
            response.error_code = ErrorCode.INVALID_REQUEST
    return response


def _operate(context: Context, rights: Rights, change: _ConfigChange, validate_only: bool) -> None:
    """Execute the operation that *change* asks for.

    Raises:
        NotAllowed: If the client may not do what it does to the topic: truncating needs DELETE as
            DeleteRecords does, sealing needs ALTER.
    """
    step, *others = change.steps or (None,)
    if change.kind != TOPIC or step is None or step.name != OPERATION or others:
        raise ConfigError("resource", f"{OPERATION} cannot be combined with other changes in a request")
    if step.config_operation != SET or step.value is None:
        raise ConfigError("resource", f"unknown operation on {step.name}: {step.config_operation}")
    operation = decode_operation(step.value)
    needed = Operation.DELETE if isinstance(operation, TruncatePartition) else Operation.ALTER
    if rights.topic_refusal(needed, change.name) is not None:
        raise NotAllowed(needed.name, change.name)
    context.tenant.operate(change.name, operation, dry_run=validate_only)
    found = context.tenant.find(change.name)
    if found is not None and isinstance(operation, TruncatePartition) and not validate_only:
        # This is a thread that changes topics; transactions are for the loop.
        end_orphans = context.transactions.end_orphans
        context.loop.call_soon_threadsafe(end_orphans, found.key, operation.partition)


def _alter_topic(context: Context, change: _ConfigChange, validate_only: bool) -> None:
    tenant = context.tenant
    topic = tenant.find(change.name)
    if topic is None:
        raise UnknownTopic.named(change.name)
    described = topic_settings(context.node.topics.config_of(topic.entry), context.layers)
    settings = change.settings(topic.entry.config, _value_of(TOPIC_SETTINGS, described))
    tenant.alter(change.name, settings, validate_only=validate_only)


def _alter_group(context: Context, change: _ConfigChange, validate_only: bool) -> None:
    if not context.groups.takes(change.name):
        raise InvalidSetting("resource", change.name, "the name of a group")
    before = context.tenant.group_settings(change.name)
    known = {setting.name: setting for setting in GROUP_SETTINGS}
    settings = change.settings(before, _value_of(known, group_settings(before, context.layers)))
    context.tenant.alter_group(change.name, settings, validate_only=validate_only)


def _alter_broker(
    context: Context, administration: Administration, change: _ConfigChange, validate_only: bool
) -> None:
    layers = administration.node.directory.settings.layers
    if change.name != EVERY_BROKER:
        _check_broker(context, change.name)
    before = layers.shared if change.name == EVERY_BROKER else layers.own
    settings = change.settings(before, _value_of(DYNAMIC_SETTINGS, broker_settings(layers)))
    administration.node.directory.settings.alter(change.name, settings, validate_only=validate_only)


def _alter_loggers(context: Context, change: _ConfigChange, validate_only: bool) -> None:
    _check_broker(context, change.name)
    if change.steps is None:
        raise ConfigError("resource", "levels of loggers can only be changed by IncrementalAlterConfigs")
    alter_levels(change.steps, validate_only=validate_only)
