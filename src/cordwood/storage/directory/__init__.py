"""The data directory: opening, locking, topics, partitions, maintenance, deletion, snapshots."""

from cordwood.storage.directory.data_directory import DataDirectory, Opening
from cordwood.storage.directory.deletion import SUFFIX, finish_deletions, remove_moved
from cordwood.storage.directory.partitions import DirectoryPartitions
from cordwood.storage.directory.snapshots import Snapshots
from cordwood.storage.directory.topic_settings import check_change
from cordwood.storage.directory.topics import collision
from cordwood.storage.directory.unused import UnusedPartition

__all__ = [
    "SUFFIX",
    "DataDirectory",
    "DirectoryPartitions",
    "Opening",
    "Snapshots",
    "UnusedPartition",
    "check_change",
    "collision",
    "finish_deletions",
    "remove_moved",
]
