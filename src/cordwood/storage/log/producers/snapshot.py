"""The snapshot of the producers of a partition: derived from the log, and replaced as a whole."""

from __future__ import annotations

import msgspec

from cordwood.disk import PASSING, Files, as_storage_error, join, read_metadata, write_metadata
from cordwood.errors import DirectoryRefused, MetadataDamaged
from cordwood.storage.log.producers.known import KnownProducer
from cordwood.storage.log.state import PartitionState

#: Version 2 has open transactions, and how much of the index of aborted ones was written. A partition that
#: never had a transaction keeps version 1.
PLAIN_VERSION, SNAPSHOT_VERSION = 1, 2
#: A snapshot is taken after this many bytes of appends: so much is read again at most after a crash.
SNAPSHOT_BYTES = 64 << 20


class ProducersSnapshot(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The producers of all records of a partition below ``next_offset``: docs/formats/directory.md.

    The first ``aborted_count`` entries of the index of aborted transactions of the segment ``aborted_base``,
    with this checksum, are those below ``next_offset``.
    """

    format: int
    topic_id: str
    partition: int
    leader_epoch: int
    next_offset: int
    producers: tuple[KnownProducer, ...]
    aborted_base: int = 0
    aborted_count: int = 0
    aborted_crc32c: int = 0


_DECODER = msgspec.json.Decoder(ProducersSnapshot)


def snapshot_path(directory: str) -> str:
    """Return the path of a partition's snapshot of its producers."""
    return join(directory, "producers.json")


def write_snapshot(files: Files, directory: str, snapshot: ProducersSnapshot) -> None:
    """Replace the snapshot; every record it covers must be synced. Durable on return."""
    write_metadata(files, snapshot_path(directory), snapshot)


def read_snapshot(
    files: Files, directory: str, state: PartitionState, end_offset: int
) -> ProducersSnapshot | None:
    """Return the snapshot, None if there is none that speaks of the log as it is.

    It does not where it is another partition's, or where the log was truncated below what it covers, even
    if it has grown again since: a later epoch then begins below its end.

    Raises:
        ResourcesExhausted: If it cannot be read for a reason that says nothing about it.
    """
    try:
        snapshot = read_metadata(files, snapshot_path(directory), _DECODER)
    except OSError as error:
        if error.errno in PASSING:
            raise as_storage_error(error, "reading what is known of producers") from error
        return None
    except (MetadataDamaged, DirectoryRefused):
        return None
    later = [epoch.start_offset for epoch in state.epochs if epoch.epoch > snapshot.leader_epoch]
    outdated = snapshot.next_offset > min([end_offset, *later])
    ours = (snapshot.topic_id, snapshot.partition) == (state.topic_id, state.partition)
    return (
        snapshot if ours and snapshot.format in (PLAIN_VERSION, SNAPSHOT_VERSION) and not outdated else None
    )
