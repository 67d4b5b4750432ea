"""Opening a partition: create it, or recover it after a crash."""

from cordwood.storage.log.opening.existence import check_belongs, partition_exists
from cordwood.storage.log.opening.recovery import (
    RecoveryReport,
    create_partition,
    newest_mark,
    open_partition,
    sync_names,
    synced_bound,
)

__all__ = [
    "RecoveryReport",
    "check_belongs",
    "create_partition",
    "newest_mark",
    "open_partition",
    "partition_exists",
    "sync_names",
    "synced_bound",
]
