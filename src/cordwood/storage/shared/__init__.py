"""The shared log: one log that carries many virtual topics, its index of owners, its maintenance."""

from cordwood.storage.shared.log import SharedLog
from cordwood.storage.shared.maintenance import lapsed_frames
from cordwood.storage.shared.offsets import Offsets, VirtualPartition, VirtualTopics
from cordwood.storage.shared.owner_index import (
    SUFFIX,
    FollowedOwners,
    SealedOwners,
    Walked,
    index_path,
    missing_entries,
    saved_entries,
)
from cordwood.storage.shared.reading import SharedFrame, VirtualReader
from cordwood.storage.shared.reindex import OwnerBuilder, unsound_indexes
from cordwood.storage.shared.topics import SHARED_CONFIG, SharedTopics
from cordwood.storage.shared.transactions import VirtualTransactions
from cordwood.storage.shared.virtual_log import VirtualLog, owner_of

__all__ = [
    "SHARED_CONFIG",
    "SUFFIX",
    "FollowedOwners",
    "Offsets",
    "OwnerBuilder",
    "SealedOwners",
    "SharedFrame",
    "SharedLog",
    "SharedTopics",
    "VirtualLog",
    "VirtualPartition",
    "VirtualReader",
    "VirtualTopics",
    "VirtualTransactions",
    "Walked",
    "index_path",
    "lapsed_frames",
    "missing_entries",
    "owner_of",
    "saved_entries",
    "unsound_indexes",
]
