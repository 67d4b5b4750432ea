"""What requests changed, read from requests and their responses. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from cordwood.broker import OPERATION
from cordwood.config import DYNAMIC_SETTINGS, GROUP_SETTINGS, TOPIC_SETTINGS, quota_of
from cordwood.protocol import ApiKey, ErrorCode, Request
from cordwood.security import Operation, PatternType, Permission, ResourceType, ScramMechanism

#: The types of resources that have settings, with their numbers in requests for settings.
_CONFIG_RESOURCES = {2: "topic", 4: "broker", 8: "broker_logger", 32: "group"}
_LOGGER = 8
_OF_GROUPS = frozenset(setting.name for setting in GROUP_SETTINGS)
#: How many settings one event tells, each with a shortened value.
_SETTINGS_TOLD = 40
#: What IncrementalAlterConfigs does with a setting, by its number.
_STEPS = ("set", "delete", "append", "subtract")


class ChangedResource(NamedTuple):
    """One resource that a request was to change, its error code, and what was asked."""

    kind: str
    name: str
    code: int
    details: Mapping[str, Any]


FindChanges = Callable[[Any, Any], Iterable[ChangedResource]]
"""Takes the bodies of a request and its response."""


def find_changes(request: Request, response: Any) -> Iterable[ChangedResource] | None:
    """Return what *request* changed or failed to change; None if it changes nothing or only validates."""
    find = CHANGES.get(request.api_key)
    if find is None or getattr(request.body, "validate_only", False):
        return None
    return find(request.body, response)


def _known_values(settings: Iterable[tuple[str, str | None]]) -> dict[str, str | None]:
    """Return settings; the value of one that is not ours, which may be a secret, is left out."""
    return {name: value if _is_ours(name) else None for name, value in settings}


def _is_ours(name: str) -> bool:
    named = name in TOPIC_SETTINGS or name in DYNAMIC_SETTINGS or name in _OF_GROUPS
    return named or quota_of(name) is not None


def _create_topics(request: Any, response: Any) -> Iterator[ChangedResource]:
    asked = {topic.name: topic for topic in request.topics}
    for result in response.topics:
        details: dict[str, Any] = {}
        topic = asked.get(result.name)
        if topic is not None and not result.error_code:
            settings = _known_values((one.name, one.value) for one in topic.configs)
            details = {"partitions": result.num_partitions, "settings": settings}
        yield ChangedResource("topic", result.name, result.error_code, details)


def _delete_topics(request: Any, response: Any) -> Iterator[ChangedResource]:
    for result in response.responses:
        details = {"topic_id": bytes(result.topic_id).hex()} if any(result.topic_id) else {}
        yield ChangedResource("topic", result.name or "", result.error_code, details)


def _create_partitions(request: Any, response: Any) -> Iterator[ChangedResource]:
    counts = {topic.name: topic.count for topic in request.topics}
    for result in response.results:
        details = {"partitions": counts.get(result.name)}
        yield ChangedResource("topic", result.name, result.error_code, details)


def _delete_records(request: Any, response: Any) -> Iterator[ChangedResource]:
    asked = {
        (topic.name, part.partition_index): part.offset
        for topic in request.topics
        for part in topic.partitions
    }
    for topic in response.topics:
        for part in topic.partitions:
            before = asked.get((topic.name, part.partition_index))
            details = {
                "partition": part.partition_index,
                "before_offset": before,
                "log_start_offset": part.low_watermark,
            }
            yield ChangedResource("topic", topic.name, part.error_code, details)


def _alter_configs(request: Any, response: Any) -> Iterator[ChangedResource]:
    return _altered(request, response, lambda one: "set")


def _incremental_alter_configs(request: Any, response: Any) -> Iterator[ChangedResource]:
    return _altered(request, response, lambda one: _step_name(one.config_operation))


def _step_name(number: int) -> str:
    return _STEPS[number] if 0 <= number < len(_STEPS) else str(number)


def _altered(request: Any, response: Any, step_of: Callable[[Any], str]) -> Iterator[ChangedResource]:
    asked = {(each.resource_type, each.resource_name): each.configs for each in request.resources}
    for result in response.responses:
        configs = asked.get((result.resource_type, result.resource_name), ())
        # What failed is one event, whatever it asked for. What was changed is told in full: settings exist
        # for each org, so a request may have very many of them.
        size = len(configs) if result.error_code else _SETTINGS_TOLD
        for start in range(0, max(len(configs), 1), max(size, 1)):
            steps: dict[str, Any] = {}
            for one in configs[start : start + size]:
                if one.name == OPERATION:
                    steps["operation"] = None if result.error_code else _operation(one.value)
                else:
                    steps.setdefault(step_of(one), {})[one.name] = _value_told(result, one)
            kind = _CONFIG_RESOURCES.get(result.resource_type, str(result.resource_type))
            yield ChangedResource(kind, result.resource_name, result.error_code, steps)


def _value_told(result: Any, one: Any) -> str | None:
    """Return the value of a setting if it was accepted and is no secret."""
    if result.error_code:
        return None
    # The value of a logger is a level.
    return one.value if result.resource_type == _LOGGER else _known_values([(one.name, one.value)])[one.name]


def _operation(text: str | None) -> Any:
    """Return an operation of ours that was accepted: only what it is and numbers."""
    return None if text is None else msgspec.json.decode(text)


def _create_acls(request: Any, response: Any) -> Iterator[ChangedResource]:
    for asked, result in zip(request.creations, response.results, strict=False):
        yield _acl(asked, asked.resource_pattern_type, result.error_code)


def _delete_acls(request: Any, response: Any) -> Iterator[ChangedResource]:
    for result in response.filter_results:
        if result.error_code:
            yield ChangedResource("acl", "", result.error_code, {})
        for acl in result.matching_acls:
            yield _acl(acl, acl.pattern_type, acl.error_code)


def _acl(acl: Any, pattern: int, code: int) -> ChangedResource:
    details = {
        "acl": {
            "pattern": _named(PatternType, pattern),
            "principal": acl.principal,
            "host": acl.host,
            "operation": _named(Operation, acl.operation),
            "permission": _named(Permission, acl.permission_type),
        }
    }
    return ChangedResource(_named(ResourceType, acl.resource_type), acl.resource_name, code, details)


def _named(kind: Any, number: int) -> str:
    """Return the name of a number of Kafka's, in lower case; the number if it has none."""
    return kind(number).name.lower() if number in set(kind) else str(number)


def _alter_users(request: Any, response: Any) -> Iterator[ChangedResource]:
    # Never the salt or the salted password: with these a client can log in.
    asked: dict[str, list[dict[str, Any]]] = {}
    for one in request.deletions:
        asked.setdefault(one.name, []).append({"step": "delete", "mechanism": _mechanism(one.mechanism)})
    for one in request.upsertions:
        step = {"step": "set", "mechanism": _mechanism(one.mechanism), "iterations": one.iterations}
        asked.setdefault(one.name, []).append(step)
    for result in response.results:
        details = {"credentials": asked.get(result.user, [])}
        yield ChangedResource("user", result.user, result.error_code, details)


def _mechanism(number: int) -> str:
    known = {each.value: each.title for each in ScramMechanism}
    return known.get(number, str(number))


def _alter_client_quotas(request: Any, response: Any) -> Iterator[ChangedResource]:
    asked = {_entity(each.entity): each.ops for each in request.entries}
    for result in response.entries:
        name = _entity(result.entity)
        limits = {one.key: None if one.remove else one.value for one in asked.get(name, ())}
        details = {} if result.error_code else {"limits": limits}
        yield ChangedResource("client_quota", name, result.error_code, details)


def _entity(parts: Sequence[Any]) -> str:
    """Return the entity of a quota as text, such as ``user=alice, client-id=<default>``."""
    named = (
        (part.entity_type, "<default>" if part.entity_name is None else part.entity_name) for part in parts
    )
    return ", ".join(f"{kind}={name}" for kind, name in sorted(named))


def _delete_groups(request: Any, response: Any) -> Iterator[ChangedResource]:
    for result in response.results:
        yield ChangedResource("group", result.group_id, result.error_code, {})


def _offset_delete(request: Any, response: Any) -> Iterator[ChangedResource]:
    if response.error_code:
        yield ChangedResource("group", request.group_id, response.error_code, {})
    for topic in response.topics:
        for part in topic.partitions:
            if part.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                yield ChangedResource("topic", topic.name, part.error_code, {"group": request.group_id})
                continue
            details = {"topic": topic.name, "partition": part.partition_index}
            yield ChangedResource("group", request.group_id, part.error_code, details)


def _write_txn_markers(request: Any, response: Any) -> Iterator[ChangedResource]:
    committed = {marker.producer_id: marker.transaction_result for marker in request.markers}
    for marker in response.markers:
        for topic in marker.topics:
            for part in topic.partitions:
                details = {
                    "partition": part.partition_index,
                    "producer_id": marker.producer_id,
                    "committed": committed.get(marker.producer_id),
                }
                yield ChangedResource("topic", topic.name, part.error_code, details)


#: The APIs that change something other than records, offsets and members of groups, and transactions in the
#: ordinary course.
CHANGES: Mapping[ApiKey, FindChanges] = {
    ApiKey.CREATE_TOPICS: _create_topics,
    ApiKey.DELETE_TOPICS: _delete_topics,
    ApiKey.CREATE_PARTITIONS: _create_partitions,
    ApiKey.DELETE_RECORDS: _delete_records,
    ApiKey.ALTER_CONFIGS: _alter_configs,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: _incremental_alter_configs,
    ApiKey.CREATE_ACLS: _create_acls,
    ApiKey.DELETE_ACLS: _delete_acls,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: _alter_users,
    ApiKey.ALTER_CLIENT_QUOTAS: _alter_client_quotas,
    ApiKey.DELETE_GROUPS: _delete_groups,
    ApiKey.OFFSET_DELETE: _offset_delete,
    ApiKey.WRITE_TXN_MARKERS: _write_txn_markers,
}
