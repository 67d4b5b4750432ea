"""``meta/backup.json``: the source of a backup and how each file was transferred.

Unchanged files are not transferred again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, TypeAlias

import msgspec

from cordwood.disk import Files, join, read_metadata, write_metadata
from cordwood.errors import DirectoryRefused
from cordwood.storage.log import SealedInfo
from cordwood.storage.meta import check_stored_number, check_stored_place

RECORD_VERSION = 1
How: TypeAlias = Literal["linked", "copied", "kept", "damaged"]


class FileRecord(msgspec.Struct, frozen=True):
    """A sealed segment that is in the backup. ``sha256`` is null if the file was never read completely."""

    base: int
    next_offset: int
    generation: int
    size: int
    sha256: str | None
    how: How

    def is_of(self, info: SealedInfo) -> bool:
        """Return whether this is the file of *info* and was sound when it was transferred."""
        same = (self.base, self.next_offset, self.generation, self.size) == (
            info.base,
            info.next_offset,
            info.generation,
            info.size,
        )
        known = self.sha256 is not None and info.sha256 is not None
        return same and self.how != "damaged" and (not known or self.sha256 == info.sha256)


class PartitionRecord(msgspec.Struct, frozen=True):
    """A partition as stored in the backup: offsets [log start, end)."""

    topic: str
    topic_id: str
    partition: int
    log_start_offset: int
    end_offset: int
    leader_epoch: int
    files: tuple[FileRecord, ...]
    #: Whether the active segment was damaged in the source.
    damaged: bool = False


class BackupRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The content of `backup.json`. ``complete`` is false from the start of a run to its end."""

    format: int = RECORD_VERSION
    source_uuid: str
    source_node: str
    source_created_at: str
    started_ms: int
    finished_ms: int | None = None
    complete: bool = False
    partitions: tuple[PartitionRecord, ...] = ()


_DECODER = msgspec.json.Decoder(BackupRecord)


def record_path(backup: str) -> str:
    """Return the path of `backup.json`."""
    return join(backup, "meta", "backup.json")


def read_record(files: Files, backup: str) -> BackupRecord | None:
    """Return the record of a backup, None if *backup* is not one.

    Raises:
        MetadataDamaged: If the record cannot be read.
        DirectoryRefused: If a newer version of Cordwood wrote it.
    """
    path = record_path(backup)
    if not files.exists(path):
        return None
    record = read_metadata(files, path, _DECODER)
    if record.format > RECORD_VERSION:
        raise DirectoryRefused(
            f"{path} has format {record.format}; this version of Cordwood reads up to {RECORD_VERSION}"
        )
    for each in record.partitions:
        check_stored_place(path, each.topic, each.topic_id, each.partition)
        for file in each.files:
            check_stored_number(path, "base offset", file.base)
    return record


def write_record(files: Files, backup: str, record: BackupRecord) -> None:
    """Replace the record of a backup. Durable on return."""
    write_metadata(files, record_path(backup), record)


def by_partition(records: Iterable[PartitionRecord]) -> dict[tuple[str, int], PartitionRecord]:
    """Return the records by topic id and partition."""
    return {(record.topic_id, record.partition): record for record in records}
