"""The data directory: opening, locking, topics, partitions, maintenance, deletion, snapshots."""

from cordwood.storage.directory.cutting import check_truncation, not_cut_alone
from cordwood.storage.directory.data_directory import DataDirectory, Opening
from cordwood.storage.directory.deletion import SUFFIX, finish_deletions, remove_moved
from cordwood.storage.directory.histories import History, SharedIds
from cordwood.storage.directory.own_partitions import Beginning
from cordwood.storage.directory.partitions import DirectoryPartitions
from cordwood.storage.directory.snapshot_file import (
    AnchorKind,
    StateSnapshot,
    decode_snapshot,
    snapshot_offsets,
    snapshot_path,
)
from cordwood.storage.directory.snapshots import (
    Nearest,
    Snapshots,
    find_snapshots,
    own_snapshots,
    shared_snapshots,
)
from cordwood.storage.directory.topic_settings import check_change
from cordwood.storage.directory.topics import collision
from cordwood.storage.directory.unfinished import begin_unfinished, end_unfinished
from cordwood.storage.directory.unused import UnusedPartition

__all__ = [
    "SUFFIX",
    "AnchorKind",
    "Beginning",
    "DataDirectory",
    "DirectoryPartitions",
    "History",
    "Nearest",
    "Opening",
    "SharedIds",
    "Snapshots",
    "StateSnapshot",
    "UnusedPartition",
    "begin_unfinished",
    "check_change",
    "check_truncation",
    "collision",
    "decode_snapshot",
    "end_unfinished",
    "find_snapshots",
    "finish_deletions",
    "not_cut_alone",
    "own_snapshots",
    "remove_moved",
    "shared_snapshots",
    "snapshot_offsets",
    "snapshot_path",
]
