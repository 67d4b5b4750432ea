"""Backup of a data directory beside its writer, into a directory that is a data directory itself.

Nothing is locked and no byte is changed in the source. Each partition is taken as it was at one moment of the
backup, up to its mark; sealed segments are linked where the file system allows it, else copied, and what the
last backup into the same directory brought is not brought again. docs/backup.md says what a backup survives.
"""

from __future__ import annotations

import contextlib

import msgspec

from cordwood.config import load_broker_config
from cordwood.errors import DirectoryRefused
from cordwood.storage import identity
from cordwood.storage.backup_evidence import bring_checkpoints
from cordwood.storage.backup_moving import BackupReport, Moving, Progress, Transfer, records_of
from cordwood.storage.backup_partition import written_since
from cordwood.storage.backup_record import (
    BackupRecord,
    by_partition,
    read_record,
    write_record,
)
from cordwood.storage.files import Files, join, parent
from cordwood.storage.posix_files import PosixFiles
from cordwood.storage.recovery import sync_names
from cordwood.storage.store import as_storage_error


def backup(
    path: object,
    target: object,
    *,
    link: bool = True,
    verify: bool = True,
    files: Files | None = None,
    progress: Progress = lambda done: None,
) -> BackupReport:
    """Back up the data directory at *path* to the directory *target*, beside whoever writes it.

    Again into the same directory, only what changed is brought. With *link* sealed segments are linked where
    that is possible; with *verify* everything that comes is read and checked. See `back_up`.
    """
    config, _ = load_broker_config()
    places = str(path), str(target)
    return back_up(
        Transfer(files or PosixFiles(), *places, config, link=link, verify=verify, progress=progress)
    )


def back_up(transfer: Transfer) -> BackupReport:
    """Bring the backup in ``target`` to where the data directory ``source`` is now, or make it.

    Durable on return. Damage in the source is reported: what is damaged comes as it is, unless the backup
    has it from before, and so does everything else. If this raises, or crashes, each partition in the
    backup is as it was before or as it is now, and the next backup goes on.

    Raises:
        DirectoryRefused: If the source is no data directory, or the target is one that is not its backup.
        DirectoryLocked: If another backup writes the target.
        MetadataDamaged: If the catalogue of the source cannot be read.
        DiskFull, StorageError: If the target cannot be written.
    """
    try:
        return _backed_up(transfer)
    except OSError as error:
        raise as_storage_error(error, "backing up") from error


def _backed_up(transfer: Transfer) -> BackupReport:
    files, source, target = transfer.files, transfer.source, transfer.target
    if identity.is_first_boot(files, source):
        raise DirectoryRefused(f"{source} is not a data directory")
    if join(target, "").startswith(join(source, "")) or join(source, "").startswith(join(target, "")):
        raise DirectoryRefused(f"{target} and {source} lie within each other; back up to another directory")
    origin = identity.read_identity(files, source)
    _check_target(files, target, origin)
    gained = files.make_directories(join(target, "meta"))
    with contextlib.closing(_Locked(transfer)):
        known = _check_target(files, target, origin)
        for directory in {*gained, parent(target), target}:
            files.sync_directory(directory)
        return _Run(transfer, origin, known).run()


class _Locked:
    """The lock of the target, for as long as it is written."""

    def __init__(self, transfer: Transfer) -> None:
        self._lock = transfer.files.lock(join(transfer.target, "meta", "lock"), transfer.holder)

    def close(self) -> None:
        self._lock.release()


def _check_target(files: Files, target: str, origin: identity.Identity) -> BackupRecord | None:
    """Return what a backup that is there says of itself; refuse what is not one of this source.

    Raises:
        DirectoryRefused: Says why.
    """
    record = read_record(files, target)
    if record is None:
        names = set(files.list(target)) if files.exists(target) else set()
        begun = set(files.list(join(target, "meta"))) if "meta" in names else set()
        if names - {"meta"} or begun - {"lock", "backup.json.tmp"}:
            what = "a data directory" if "broker.id" in begun else "not empty"
            raise DirectoryRefused(f"{target} is {what} and no backup; name another directory")
        return None
    if record.source_uuid != origin.uuid:
        node, made = record.source_node, record.source_created_at
        raise DirectoryRefused(
            f"{target} is a backup of another data directory, made {made} on {node}; name another directory"
        )
    if files.exists(join(target, "meta", "checkpoint.json")):
        # No backup has one; whoever opens a data directory to write it leaves one when it is closed.
        raise written_since(target)
    return record


class _Run:
    """One backup, with the target locked."""

    def __init__(self, transfer: Transfer, origin: identity.Identity, known: BackupRecord | None) -> None:
        self._transfer = transfer
        self._files = transfer.files
        self._origin = origin
        self._known = known

    def run(self) -> BackupReport:
        """Bring everything, with a record that says so at either end."""
        transfer, files, known = self._transfer, self._files, self._known
        target = transfer.target
        record = BackupRecord(
            source_uuid=self._origin.uuid,
            source_node=self._origin.node_name,
            source_created_at=self._origin.created_at,
            started_ms=transfer.clock.now_ms(),
            partitions=() if known is None else known.partitions,
        )
        complete = known is not None and known.complete
        # First of all: from here on this is a backup of that source, and one that is not finished.
        write_record(files, target, record)
        if known is not None:
            # What a killed run named may be in the cache only.
            sync_names(files, target)
        moving = Moving(transfer, {} if known is None else by_partition(known.partitions), untouched=complete)
        moving.begin()
        results = moving.bring_all()
        bring_checkpoints(files, transfer.source, target)
        if not files.exists(identity.identity_path(target)):
            identity.create_identity(files, target, transfer.clock, transfer.uuid, transfer.node_name)
        partitions = records_of(results)
        finished = transfer.clock.now_ms()
        done = msgspec.structs.replace(record, partitions=partitions, finished_ms=finished, complete=True)
        write_record(files, target, done)
        return moving.report(results)
