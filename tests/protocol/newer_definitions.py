"""Kafka's definitions of the messages that kafka-python does not have, in the form of Kafka's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def _field(name: str, type_: str, versions: str = "0+", **more: Any) -> dict[str, Any]:
    return {"name": name, "type": type_, "versions": versions, **more}


def _nullable(name: str, type_: str, versions: str = "0+", **more: Any) -> dict[str, Any]:
    return _field(name, type_, versions, nullableVersions=versions, default="null", **more)


def _flexible(*fields: dict[str, Any]) -> dict[str, Any]:
    return {"flexibleVersions": "0+", "fields": list(fields)}


_PARTITIONS = [_field("TopicId", "uuid"), _field("Partitions", "[]int32")]
_NAMED_PARTITIONS = [_PARTITIONS[0], _field("TopicName", "string"), _PARTITIONS[1]]
_DESCRIBED = [_field("TopicPartitions", "[]TopicPartitions", fields=_NAMED_PARTITIONS)]

NEWER: Mapping[str, dict[str, Any]] = {
    "ConsumerGroupHeartbeatRequest": _flexible(
        _field("GroupId", "string"),
        _field("MemberId", "string"),
        _field("MemberEpoch", "int32"),
        _nullable("InstanceId", "string"),
        _nullable("RackId", "string"),
        _field("RebalanceTimeoutMs", "int32", default=-1),
        _nullable("SubscribedTopicNames", "[]string"),
        _nullable("SubscribedTopicRegex", "string", "1+"),
        _nullable("ServerAssignor", "string"),
        _nullable("TopicPartitions", "[]TopicPartitions", fields=_PARTITIONS),
    ),
    "ConsumerGroupHeartbeatResponse": _flexible(
        _field("ThrottleTimeMs", "int32"),
        _field("ErrorCode", "int16"),
        _nullable("ErrorMessage", "string"),
        _nullable("MemberId", "string"),
        _field("MemberEpoch", "int32"),
        _field("HeartbeatIntervalMs", "int32"),
        _nullable(
            "Assignment",
            "Assignment",
            fields=[_field("TopicPartitions", "[]TopicPartitions", fields=_PARTITIONS)],
        ),
    ),
    "ConsumerGroupDescribeRequest": _flexible(
        _field("GroupIds", "[]string"), _field("IncludeAuthorizedOperations", "bool")
    ),
    "ConsumerGroupDescribeResponse": _flexible(
        _field("ThrottleTimeMs", "int32"),
        _field(
            "Groups",
            "[]DescribedGroup",
            fields=[
                _field("ErrorCode", "int16"),
                _nullable("ErrorMessage", "string"),
                _field("GroupId", "string"),
                _field("GroupState", "string"),
                _field("GroupEpoch", "int32"),
                _field("AssignmentEpoch", "int32"),
                _field("AssignorName", "string"),
                _field(
                    "Members",
                    "[]Member",
                    fields=[
                        _field("MemberId", "string"),
                        _nullable("InstanceId", "string"),
                        _nullable("RackId", "string"),
                        _field("MemberEpoch", "int32"),
                        _field("ClientId", "string"),
                        _field("ClientHost", "string"),
                        _field("SubscribedTopicNames", "[]string"),
                        _nullable("SubscribedTopicRegex", "string"),
                        _field("Assignment", "Assignment", fields=_DESCRIBED),
                        _field("TargetAssignment", "Assignment", fields=_DESCRIBED),
                        _field("MemberType", "int8", "1+", default="-1"),
                    ],
                ),
                _field("AuthorizedOperations", "int32", default="-2147483648"),
            ],
        ),
    ),
}
