"""Tell a partition that was never created from one whose ``partition.json`` is missing."""

from __future__ import annotations

import contextlib

from cordwood import tenancy
from cordwood.disk import Files, join, read_marks
from cordwood.errors import MetadataDamaged
from cordwood.storage.log.changes import truncation
from cordwood.storage.log.segment import segments_directory
from cordwood.storage.log.state import PartitionState, mark_path, state_path
from cordwood.storage.meta import TopicEntry
from cordwood.tenancy import DEFAULT_ORG

#: The largest size of a sidecar without entries, in bytes.
SIDECAR_HEAD_MAX = 16


def partition_exists(files: Files, directory: str, initial_offset: int) -> bool:
    """Return whether a partition was ever committed in *directory*. May be called beside its writer.

    Raises:
        MetadataDamaged: If other files show that it was, but `partition.json` is missing.
    """
    if files.exists(state_path(directory)):
        return True
    trace = _trace_of_records(files, directory, initial_offset)
    if trace is None:
        return False
    # The writer commits a partition before it appends: it may have done both since the first look.
    if files.exists(state_path(directory)):
        return True
    raise MetadataDamaged(state_path(directory), f"is missing, but {trace} is there")


def _trace_of_records(files: Files, directory: str, initial_offset: int) -> str | None:
    """Return the name of a file that shows that the partition had records, None without one.

    An interrupted create_partition leaves an empty first segment and a mark at its start.
    """
    for mark in read_marks(files, mark_path(directory)):
        said = (mark.leader_epoch, mark.base, mark.position, mark.next_offset, mark.log_start_offset)
        if said != (0, initial_offset, 0, initial_offset, initial_offset):
            return "its mark"
    segments = segments_directory(directory)
    for name in files.list(segments) if files.exists(segments) else ():
        base, _, suffix = name.partition(".")
        sidecar = suffix in truncation.SIDECAR_SUFFIXES
        with contextlib.closing(files.open(join(segments, name), "read")) as file:
            begun = file.size() <= (SIDECAR_HEAD_MAX if sidecar else 0)
            if not begun or base != f"{initial_offset:020d}" or (suffix != "log" and not sidecar):
                return name
    return None


def check_belongs(
    directory: str, state: PartitionState, entry: TopicEntry, partition: int, initial_offset: int
) -> None:
    """Check that *state* belongs to the partition at *directory*.

    Raises:
        MetadataDamaged: If it is of another topic, partition or tenant, or begins before *initial_offset*.
    """
    if (state.topic, state.topic_id, state.partition) != (entry.name, entry.id, partition):
        found = f"partition {state.partition} of topic {state.topic} with id {state.topic_id}"
        raise MetadataDamaged(state_path(directory), f"belongs to {found}")
    org = tenancy.split(entry.name).org
    if state.tenant not in (DEFAULT_ORG, org):
        raise MetadataDamaged(state_path(directory), f"belongs to tenant {state.tenant}, its topic to {org}")
    if min([state.active_base, *(info.base for info in state.sealed)]) < initial_offset:
        raise MetadataDamaged(state_path(directory), f"begins before offset {initial_offset}")
