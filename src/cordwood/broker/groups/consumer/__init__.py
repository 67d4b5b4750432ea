"""Consumer groups of KIP-848: the coordinator assigns partitions, and members get theirs step by step."""

from cordwood.broker.groups.consumer import layout
from cordwood.broker.groups.consumer.changes import ConsumerTerms
from cordwood.broker.groups.consumer.group import ConsumerGroup, ConsumerGroupState
from cordwood.broker.groups.consumer.heartbeats import MemberHeartbeat
from cordwood.broker.groups.consumer.layout import LaterRows
from cordwood.broker.groups.consumer.live import (
    EPOCHS_FROM,
    CommitCheck,
    ConsumerBasis,
    ConsumerSurroundings,
    LiveGroup,
)
from cordwood.broker.groups.consumer.members import ConsumerMember
from cordwood.broker.groups.consumer.migration import MigrationPolicy, upgraded
from cordwood.broker.groups.consumer.rows import RowKey, RowKind
from cordwood.broker.groups.consumer.topics import TopicShape, TopicsView

__all__ = [
    "EPOCHS_FROM",
    "CommitCheck",
    "ConsumerBasis",
    "ConsumerGroup",
    "ConsumerGroupState",
    "ConsumerMember",
    "ConsumerSurroundings",
    "ConsumerTerms",
    "LaterRows",
    "LiveGroup",
    "MemberHeartbeat",
    "MigrationPolicy",
    "RowKey",
    "RowKind",
    "TopicShape",
    "TopicsView",
    "layout",
    "upgraded",
]
