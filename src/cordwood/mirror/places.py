"""The topics of a mirror here: created like those of the source, or found to be the same ones."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import NamedTuple

from cordwood.broker import is_reserved
from cordwood.config import TOPIC_SETTINGS, text_of
from cordwood.errors import ConfigError, CordwoodError
from cordwood.protocol import ApiKey
from cordwood.protocol.messages import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from cordwood.storage.directory import DataDirectory
from cordwood.storage.meta import TopicEntry
from cordwood.wire_client import ClusterTopic, KafkaCluster

_TOPIC = 2
_FROM_TOPIC, _DEFAULT = 1, 5
#: What batches of Kafka need; the broker's defaults may say otherwise.
_NEEDED = {"cordwood.format": "batch", "cordwood.storage": "own", "cordwood.timestamp.order": "any"}
#: Settings of another Cordwood that are about its way of storing.
_NOT_TAKEN = {*_NEEDED, "cordwood.initial.offset", "cordwood.timestamp.precision"}


class SourceSettings(NamedTuple):
    """The settings that somebody gave a topic of the source, and a line for each that has no effect here."""

    config: dict[str, str]
    not_kept: tuple[str, ...]


def topic_id_of(directory: DataDirectory, cluster: KafkaCluster, topic: ClusterTopic) -> str:
    """Return the id of a topic here: that of the source.

    A topic that was deleted here gets another one, because what is known of the old one, such as signed
    checkpoints, must not count for it. It follows from the id of the source, so that it is found again.
    """
    found = topic.topic_id
    if found is None:
        found = str(uuid.uuid5(uuid.NAMESPACE_URL, f"kafka:{cluster.cluster_id}/{topic.name}"))
    while directory.topics.was_deleted(found):
        found = str(uuid.uuid5(uuid.UUID(found), "mirrored again"))
    return found


def find_or_create(
    directory: DataDirectory, cluster: KafkaCluster, topic: ClusterTopic, given: Mapping[str, str]
) -> tuple[TopicEntry, bool, tuple[str, ...]]:
    """Return the topic here, whether it was created now, and what could not be kept of its settings.

    *given* settings come before those of the source. A topic that grew gets its new partitions.

    Raises:
        CordwoodError: If there is another topic of this name or id, or it cannot be made.
    """
    if is_reserved(topic.name):
        raise CordwoodError(
            "it is a topic of the broker itself, which nothing is copied to; --groups copies offsets"
        )
    topic_id, count = topic_id_of(directory, cluster, topic), len(topic.leaders)
    if not count or set(topic.leaders) != set(range(count)):
        raise CordwoodError(f"the source says it has the partitions {sorted(topic.leaders)}")
    entry = directory.topics.get(topic.name)
    if entry is None:
        other = directory.topics.by_id(topic_id)
        if other is not None:
            raise CordwoodError(f"its id {topic_id} is that of topic {other.name} here")
        settings = source_settings(directory, cluster, topic.name)
        config = _completed(directory, {**settings.config, **given})
        return directory.topics.create(topic.name, topic_id, count, config), True, settings.not_kept
    if entry.id != topic_id:
        raise CordwoodError(
            f"the topic of this name here is not a mirror of it: its id is {entry.id}, that of the source "
            f"{topic_id}; it was created here, or deleted and created again at the source; cordwood topic "
            "delete makes room for a new mirror"
        )
    _check_kept(directory, entry)
    if count < entry.partitions:
        raise CordwoodError(f"it has {entry.partitions} partitions here, and {count} at the source")
    if count > entry.partitions:
        entry = directory.topics.alter(topic.name, partitions=count)
    return entry, False, ()


def source_settings(directory: DataDirectory, cluster: KafkaCluster, topic: str) -> SourceSettings:
    """Return what the source says about the settings of a topic, as far as this version has them."""
    request = DescribeConfigsRequest([DescribeConfigsResource(_TOPIC, topic, None)])
    answer: DescribeConfigsResponse = cluster.ask_any(ApiKey.DESCRIBE_CONFIGS, request)
    taken, left = dict[str, str](), list[str]()
    for result in answer.results:
        if result.error_code:
            reason = result.error_message or f"error {result.error_code}"
            left.append(f"all settings, which the source does not show: {reason}")
        for each in result.configs:
            if each.value is None or each.config_source == _DEFAULT or each.name in _NOT_TAKEN:
                continue
            line = f"{each.name}={each.value}"
            if each.name not in TOPIC_SETTINGS:
                if each.config_source == _FROM_TOPIC:
                    left.append(f"{line}, which is no setting here")
                continue
            try:
                found = directory.config_of({**taken, each.name: each.value})
            except ConfigError as error:
                left.append(f"{line}: {error}")
                continue
            attribute = TOPIC_SETTINGS[each.name].attribute
            usual = getattr(directory.config_of({}), attribute)
            if each.config_source == _FROM_TOPIC or getattr(found, attribute) != usual:
                taken[each.name] = each.value
    return SourceSettings(taken, tuple(left))


def _completed(directory: DataDirectory, config: Mapping[str, str]) -> dict[str, str]:
    """Return *config* with the settings that batches of Kafka need, where defaults say otherwise.

    Raises:
        ConfigError: If *config* itself says otherwise.
    """
    found = directory.config_of(config)
    completed = dict(config)
    for name, needed in _NEEDED.items():
        if text_of(getattr(found, TOPIC_SETTINGS[name].attribute)) != needed:
            if name in config:
                raise ConfigError(name, f"{name} must be {needed}: a mirror keeps the batches of Kafka")
            completed[name] = needed
    return completed


def _check_kept(directory: DataDirectory, entry: TopicEntry) -> None:
    found = directory.config_of(entry.config)
    if found.format != "batch" or found.storage != "own":
        raise CordwoodError("the topic of this name here does not store batches of Kafka as they are")
