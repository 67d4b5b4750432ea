"""Consumer groups.

The state machine of one group, the coordinator of all groups, and the topic that stores them.
"""

from cordwood.broker.groups import offsets_topic
from cordwood.broker.groups.actions import (
    GroupReply,
    GroupState,
    HeartbeatAnswer,
    Joined,
    JoinRequest,
    Protocol,
    Refusal,
    Synced,
)
from cordwood.broker.groups.consumer import (
    CommitCheck,
    ConsumerBasis,
    ConsumerMember,
    ConsumerTerms,
    LiveGroup,
    MemberHeartbeat,
    MigrationPolicy,
    TopicShape,
    TopicsView,
)
from cordwood.broker.groups.coordinator import Coordinator, Effect, StoreConsumerRows, StoreGroup
from cordwood.broker.groups.group import Group
from cordwood.broker.groups.known import AnyGroup, GroupLimits
from cordwood.broker.groups.offsets_topic import NAME, TEXT_BYTES_MAX, Committed, OffsetKey, OffsetsRow
from cordwood.broker.groups.pending import TransactionKey
from cordwood.broker.groups.replaying import StoredRows

__all__ = [
    "NAME",
    "TEXT_BYTES_MAX",
    "AnyGroup",
    "CommitCheck",
    "Committed",
    "ConsumerBasis",
    "ConsumerMember",
    "ConsumerTerms",
    "Coordinator",
    "Effect",
    "Group",
    "GroupLimits",
    "GroupReply",
    "GroupState",
    "HeartbeatAnswer",
    "JoinRequest",
    "Joined",
    "LiveGroup",
    "MemberHeartbeat",
    "MigrationPolicy",
    "OffsetKey",
    "OffsetsRow",
    "Protocol",
    "Refusal",
    "StoreConsumerRows",
    "StoreGroup",
    "StoredRows",
    "Synced",
    "TopicShape",
    "TopicsView",
    "TransactionKey",
    "offsets_topic",
]
