"""``.cleaner_checkpoint``: how far compaction and retention by age have come in a partition.

It only saves work: if it is missing or damaged, compaction starts from the beginning.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Literal

import msgspec

from cordwood.disk import PASSING, Files, as_storage_error, join, read_file, write_atomically
from cordwood.storage.log import PartitionState
from cordwood.telemetry import CHECKPOINT_CORRUPTIONS, Telemetry


class CompactionCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the file. ``leader_epoch`` tells whether the log was truncated since."""

    last_cleaned_offset: int = 0
    retention_horizon_ms: int = 0
    compaction_state: Literal["Idle", "InProgress"] = "Idle"
    created_at: str = ""
    topic_id: str = ""
    leader_epoch: int = 0


_DECODER = msgspec.json.Decoder(CompactionCheckpoint)


def checkpoint_path(directory: str) -> str:
    """Return the path of a partition's checkpoint."""
    return join(directory, ".cleaner_checkpoint")


def read_checkpoint(
    files: Files, directory: str, state: PartitionState, telemetry: Telemetry
) -> CompactionCheckpoint:
    """Return the checkpoint, limited to the records that a truncation left.

    If it is damaged, of another partition, or missing after a compaction, that is counted and an empty one is
    returned.
    """
    path = checkpoint_path(directory)
    try:
        found = _DECODER.decode(read_file(files, path))
    except FileNotFoundError:
        if any(info.generation for info in state.sealed):
            telemetry.add(CHECKPOINT_CORRUPTIONS)
        return CompactionCheckpoint()
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        if isinstance(error, OSError) and error.errno in PASSING:
            raise as_storage_error(error, "reading the compaction checkpoint") from error
        telemetry.add(CHECKPOINT_CORRUPTIONS)
        return CompactionCheckpoint()
    sealed_end = state.sealed[-1].next_offset if state.sealed else state.active_base
    if found.topic_id != state.topic_id or not 0 <= found.leader_epoch <= state.leader_epoch:
        telemetry.add(CHECKPOINT_CORRUPTIONS)
        return CompactionCheckpoint()
    later = [epoch.start_offset for epoch in state.epochs if epoch.epoch > found.leader_epoch]
    cleaned = max(0, min([found.last_cleaned_offset, sealed_end, *later]))
    return msgspec.structs.replace(found, last_cleaned_offset=cleaned)


def write_checkpoint(
    files: Files,
    directory: str,
    state: PartitionState,
    before: CompactionCheckpoint,
    *,
    now_ms: int,
    cleaned_offset: int | None = None,
    retention_horizon_ms: int | None = None,
    compacting: bool = False,
) -> CompactionCheckpoint:
    """Replace the file; neither number becomes lower than in *before*. Durable on return."""
    now = CompactionCheckpoint(
        last_cleaned_offset=max(before.last_cleaned_offset, cleaned_offset or 0),
        retention_horizon_ms=max(before.retention_horizon_ms, retention_horizon_ms or 0),
        compaction_state="InProgress" if compacting else "Idle",
        created_at=datetime.fromtimestamp(now_ms / 1000, UTC).isoformat(timespec="milliseconds"),
        topic_id=state.topic_id,
        leader_epoch=state.leader_epoch,
    )
    write_atomically(
        files, checkpoint_path(directory), msgspec.json.format(msgspec.json.encode(now), indent=2)
    )
    return now
