"""The segments of a topic as `partition.json` and the mark have them, without a lock."""

from __future__ import annotations

import os
from dataclasses import dataclass

from cordwood.config import BrokerConfig
from cordwood.disk import PosixFiles, read_marks
from cordwood.errors import RecordRefused, UnknownTopic
from cordwood.index import NO_TIMESTAMP
from cordwood.storage.log import mark_path, newest_mark, read_state, state_path, synced_bound
from cordwood.storage.meta import is_shared, partition_directory
from cordwood.storage.readonly import ReadOnlyDirectory
from cordwood.tenancy import suggest


@dataclass(frozen=True, slots=True)
class ListedSegment:
    """A segment. The active one ends where the mark says, and only its offsets and bytes are known.

    Times that are not recorded are None, and so is ``sha256`` until it is recorded. ``appended_ms`` is when
    it took its last append and ``sealed_ms`` when it was sealed, by the writer's clock; ``max_timestamp`` is
    the largest timestamp of its records.
    """

    partition: int
    base_offset: int
    next_offset: int
    bytes: int
    is_active: bool
    max_timestamp: int | None = None
    appended_ms: int | None = None
    sealed_ms: int | None = None
    sha256: str | None = None


def list_segments(path: str | os.PathLike[str], topic: str) -> list[ListedSegment]:
    """Return the segments of *topic* in the data directory at *path*, the active one of each partition last.

    Raises:
        UnknownTopic: If there is no such topic.
        RecordRefused: If it is in the shared log and has no segments of its own.
        StorageError: If what says which segments there are cannot be read.
    """
    files, data, found = PosixFiles(), os.path.abspath(os.fspath(path)), []
    topics = ReadOnlyDirectory(files, data, BrokerConfig(), mapped=False).topics
    entry = topics.get(topic)
    if entry is None:
        raise UnknownTopic.named(topic, suggestion=suggest(topic, topics))
    if is_shared(entry):
        raise RecordRefused(f"topic {topic} is in the shared log: its records are in segments of __shared")
    for partition in range(entry.partitions):
        directory = partition_directory(data, topic, partition)
        if not files.exists(state_path(directory)):
            continue
        state = read_state(files, directory)
        found += [
            ListedSegment(
                partition,
                info.base,
                info.next_offset,
                info.size,
                is_active=False,
                max_timestamp=_known(info.max_timestamp),
                appended_ms=_known(info.last_append_ms),
                sealed_ms=_known(info.sealed_ms),
                sha256=info.sha256,
            )
            for info in state.sealed
        ]
        mark = newest_mark(state, read_marks(files, mark_path(directory)), directory)
        end = synced_bound(state, mark)
        found.append(ListedSegment(partition, end.base, end.next_offset, end.position, is_active=True))
    return found


def _known(time_ms: int) -> int | None:
    return None if time_ms == NO_TIMESTAMP else time_ms
