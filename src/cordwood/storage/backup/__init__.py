"""Backup and restore: taking files beside the writer, transfer, records of what was taken, restore."""

from cordwood.storage.backup.create import backup
from cordwood.storage.backup.restoring import RestoreReport, restore
from cordwood.storage.backup.transfer import BackupReport

__all__ = [
    "BackupReport",
    "RestoreReport",
    "backup",
    "restore",
]
