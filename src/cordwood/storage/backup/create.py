"""Back up a data directory beside its writer, into a directory that is a data directory itself.

Nothing is locked and no byte is changed in the source. Each partition is taken as it was at one moment of the
backup, up to its mark; sealed segments are linked where the file system allows it, else copied, and files
from an earlier backup in the same directory are reused. docs/backup.md says what a backup survives.
"""

from __future__ import annotations

import contextlib

import msgspec

from cordwood.config import load_broker_config
from cordwood.disk import Files, as_storage_error, files_of, join, parent
from cordwood.errors import DirectoryRefused, NotADataDirectory
from cordwood.records import Progress
from cordwood.storage.backup.evidence import copy_checkpoints
from cordwood.storage.backup.partition import written_since
from cordwood.storage.backup.record import BackupRecord, by_partition, read_record, write_record
from cordwood.storage.backup.transfer import BackupReport, DirectoryTransfer, Transfer, records_of
from cordwood.storage.log import sync_names
from cordwood.storage.meta import check_regular_directory, identity


def backup(
    path: object,
    target: object,
    *,
    link: bool = True,
    verify: bool = True,
    files: Files | None = None,
    progress: Progress = lambda done: None,
) -> BackupReport:
    """Back up the data directory at *path* to the directory *target*, beside its writer.

    A second backup to the same directory transfers only changes. With *link*, sealed segments are hard-linked
    if possible; with *verify*, all transferred files are read and checked. See `back_up`.
    """
    config, _ = load_broker_config()
    source, target = str(path), str(target)
    files = files or files_of(target, config)
    return back_up(Transfer(files, source, target, config, link=link, verify=verify, progress=progress))


def back_up(transfer: Transfer) -> BackupReport:
    """Create the backup in ``target``, or update it to the current state of ``source``.

    Durable on return. Damage in the source is reported. A damaged file is copied as it is, unless the backup
    has a sound copy already; all other files are transferred too. If this raises or crashes, each partition
    in the backup has either its old or its new state, and the next backup continues.

    Raises:
        DirectoryRefused: If the source is not a data directory, or the target is not a backup of it.
        DirectoryLocked: If another backup is writing the target.
        MetadataDamaged: If the catalogue of the source cannot be read.
        DiskFull, StorageError: If the target cannot be written.
    """
    try:
        return _backed_up(transfer)
    except OSError as error:
        raise as_storage_error(error, "backing up") from error


def _backed_up(transfer: Transfer) -> BackupReport:
    files, source, target = transfer.files, transfer.source, transfer.target
    check_regular_directory(files, source)
    if identity.is_first_boot(files, source):
        raise NotADataDirectory(source)
    if join(target, "").startswith(join(source, "")) or join(source, "").startswith(join(target, "")):
        raise DirectoryRefused(f"{target} and {source} lie within each other; back up to another directory")
    origin = identity.read_identity(files, source)
    # Before the lock file is written.
    check_regular_directory(files, target)
    _read_target(files, target, origin)
    gained = files.make_directories(join(target, "meta"))
    with contextlib.closing(_Locked(transfer)):
        known = _read_target(files, target, origin)
        if known is not None and files.exists(join(target, "meta", "checkpoint.json")):
            # A backup never has this file. It exists if a writer has opened the target.
            raise written_since(target)
        for directory in {*gained, parent(target), target}:
            files.sync_directory(directory)
        return _BackupRun(transfer, origin, known).run()


class _Locked:
    """The lock of the target, for as long as it is written."""

    def __init__(self, transfer: Transfer) -> None:
        self._lock = transfer.files.lock(join(transfer.target, "meta", "lock"), transfer.holder)

    def close(self) -> None:
        self._lock.release()


def _read_target(files: Files, target: str, origin: identity.Identity) -> BackupRecord | None:
    """Return the record of an existing backup; refuse a target that is not a backup of this source.

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
    return record


class _BackupRun:
    """One backup, with the target locked."""

    def __init__(self, transfer: Transfer, origin: identity.Identity, known: BackupRecord | None) -> None:
        self._transfer = transfer
        self._files = transfer.files
        self._origin = origin
        self._known = known

    def run(self) -> BackupReport:
        """Transfer everything; write the record at the beginning and at the end."""
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
        # Written first: from here on, the target is an unfinished backup of that source.
        write_record(files, target, record)
        if known is not None:
            # Names from a killed run may not be synced yet.
            sync_names(files, target)
        moving = DirectoryTransfer(
            transfer, {} if known is None else by_partition(known.partitions), untouched=complete
        )
        moving.begin()
        results = moving.copy_all()
        copy_checkpoints(files, transfer.source, target)
        if not files.exists(identity.identity_path(target)):
            identity.create_identity(files, target, transfer.clock, transfer.uuid, transfer.node_name)
        partitions = records_of(results)
        finished = transfer.clock.now_ms()
        done = msgspec.structs.replace(record, partitions=partitions, finished_ms=finished, complete=True)
        write_record(files, target, done)
        return moving.report(results)
