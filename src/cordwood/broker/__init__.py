"""Topics, producers and groups in domain words: no sockets, no wire types."""

from cordwood.broker.committed import CommittedOffsets, read_offsets_topic
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
from cordwood.broker.offsets import LATEST
from cordwood.broker.operations import (
    OPERATION,
    Operation,
    RollPartition,
    TruncatePartition,
    decode_operation,
    encode_operation,
)
from cordwood.broker.partitioner import partition_for_key
from cordwood.broker.staging import (
    COMMANDS,
    STAGING_PREFIX,
    Command,
    FrameKey,
    StagedFrames,
    is_command,
    staging_topic,
)
from cordwood.broker.tenants import Tenant
from cordwood.broker.topics import (
    OFFSETS_PARTITIONS,
    BrokerTopic,
    NewTopic,
    Topics,
    is_internal,
    is_read_only,
    is_reserved,
)
from cordwood.broker.transaction_recovery import (
    NOT_NEEDED,
    RecoveredTransactions,
    find_orphans,
    marker_of,
    recover_transactions,
)

__all__ = [
    "COMMANDS",
    "LATEST",
    "NOT_NEEDED",
    "NO_SESSION",
    "OFFSETS_PARTITIONS",
    "OPENING",
    "OPERATION",
    "PARTITIONS_MAX",
    "SESSIONLESS",
    "STAGING_PREFIX",
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
    "Operation",
    "PartitionFetch",
    "PartitionStanding",
    "Placed",
    "RecoveredTransactions",
    "RollPartition",
    "SessionProblem",
    "StagedFrames",
    "Tenant",
    "TopicRef",
    "Topics",
    "TruncatePartition",
    "decode_operation",
    "encode_operation",
    "find_orphans",
    "is_command",
    "is_internal",
    "is_read_only",
    "is_reserved",
    "marker_of",
    "next_epoch",
    "partition_for_key",
    "read_offsets_topic",
    "recover_transactions",
    "staging_topic",
]
