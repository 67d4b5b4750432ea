"""Consumer groups.

The state machine of one group, the coordinator of all groups, and the topic that stores them.
"""

from cordwood.broker.groups import offsets_topic
from cordwood.broker.groups.actions import GroupReply, Joined, JoinRequest, Protocol, Refusal, Synced
from cordwood.broker.groups.coordinator import Coordinator, Effect, GroupLimits, StoreGroup
from cordwood.broker.groups.group import Group
from cordwood.broker.groups.offsets_topic import NAME, TEXT_BYTES_MAX, Committed, OffsetsRow

__all__ = [
    "NAME",
    "TEXT_BYTES_MAX",
    "Committed",
    "Coordinator",
    "Effect",
    "Group",
    "GroupLimits",
    "GroupReply",
    "JoinRequest",
    "Joined",
    "OffsetsRow",
    "Protocol",
    "Refusal",
    "StoreGroup",
    "Synced",
    "offsets_topic",
]
