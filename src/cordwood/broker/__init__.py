"""Topics, producers and groups in domain words: no sockets, no wire types."""

from cordwood.broker.committed import CommittedOffsets, last_rows
from cordwood.broker.fetch_sessions import (
    NO_SESSION,
    OPENING,
    PARTITIONS_MAX,
    SESSIONLESS,
    Asked,
    FetchSession,
    FetchSessions,
    Key,
    SessionProblem,
    TopicRef,
    next_epoch,
)
from cordwood.broker.fetching import FetchResult, Got, PartitionFetch
from cordwood.broker.node import Node, PartitionStanding, Placed
from cordwood.broker.partitioner import partition_for_key
from cordwood.broker.staging import COMMANDS, Command, FrameKey, StagedFrames, is_command, staging_topic
from cordwood.broker.tenants import Tenant
from cordwood.broker.topics import INTERNAL, OFFSETS_PARTITIONS, BrokerTopic, NewTopic, Topics, is_internal

__all__ = [
    "COMMANDS",
    "INTERNAL",
    "NO_SESSION",
    "OFFSETS_PARTITIONS",
    "OPENING",
    "PARTITIONS_MAX",
    "SESSIONLESS",
    "Asked",
    "BrokerTopic",
    "Command",
    "CommittedOffsets",
    "FetchResult",
    "FetchSession",
    "FetchSessions",
    "FrameKey",
    "Got",
    "Key",
    "NewTopic",
    "Node",
    "PartitionFetch",
    "PartitionStanding",
    "Placed",
    "SessionProblem",
    "StagedFrames",
    "Tenant",
    "TopicRef",
    "Topics",
    "is_command",
    "is_internal",
    "last_rows",
    "next_epoch",
    "partition_for_key",
    "staging_topic",
]
