"""Snapshots of the state that an application derives from a partition, so that a replay begins at the last.

A snapshot is the state after every record below an offset, in ``snapshot-<offset>``. It is below the
partition, or in ``meta/snapshots/`` for a topic in the shared log, by its id: a later topic of the same name
has another. It contains the hash of the chain at its offset. A snapshot that is damaged, or of another
history than the log has, is skipped and reported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from cordwood.config import TopicConfig
from cordwood.disk import Files, join, parent, read_file, write_atomically
from cordwood.errors import OffsetOutOfRange
from cordwood.host import Clock, SystemClock
from cordwood.storage.directory.histories import Contradiction, History, SharedHistory, SharedIds
from cordwood.storage.directory.snapshot_file import (
    StateSnapshot,
    decode_snapshot,
    encode_snapshot,
    snapshot_offsets,
    snapshot_path,
)
from cordwood.storage.meta import SHARED_TOPIC, TopicEntry, partition_directory


class Nearest(NamedTuple):
    """The snapshot that was looked for, if there is one, and why others were passed over, a sentence each.

    ``refuted`` are those of ``skipped`` whose hash is not that of the log: one of the two was changed.
    """

    snapshot: StateSnapshot | None
    skipped: tuple[str, ...] = ()
    refuted: tuple[str, ...] = ()


def own_snapshots(partition_directory: str) -> str:
    """Return the directory of the snapshots of a partition with files of its own."""
    return join(partition_directory, "snapshots")


def shared_snapshots(data: str, topic_id: str, partition: int) -> str:
    """Return the directory of the snapshots of a partition in the shared log."""
    return join(data, "meta", "snapshots", topic_id, str(partition))


class Snapshots:
    """The snapshots of one partition. One caller at a time saves; any number read."""

    def __init__(self, files: Files, directory: str, history: History, clock: Clock | None = None) -> None:
        self._files = files
        self._clock = clock or SystemClock()
        self._history = history
        self.directory = directory

    def offsets(self) -> list[int]:
        """Return the offsets there are snapshots of, damaged ones included, in order."""
        return snapshot_offsets(self._files, self.directory)

    def save(self, offset: int, state: bytes) -> StateSnapshot:
        """Write *state*, the state after every record below *offset*. Durable on return, whole or not at all.

        It contains the hash of the chain at *offset*: that of the record before it in the format kimberlite,
        else the root of the leaves up to that record. It has none in a topic without a chain, and beside a
        writer that has not added those leaves yet.

        Raises:
            OffsetOutOfRange: If records below *offset* are missing, or not synced: a crash could still
                replace them with others.
        """
        start, synced = self._history.offsets()
        if not start <= offset <= synced:
            raise OffsetOutOfRange(offset, start, synced)
        snapshot = self._history.tied(StateSnapshot(offset, self._clock.now_ms(), bytes(state)))
        for made in self._files.make_directories(self.directory):
            self._files.sync_directory(made)
        # The process that created the directory may have been killed before its name was synced.
        self._files.sync_directory(parent(self.directory))
        write_atomically(self._files, self._path(offset), encode_snapshot(snapshot))
        return snapshot

    def nearest(self, offset: int) -> Nearest:
        """Return the last sound snapshot at or before *offset*, and why others were passed over."""
        return self._first_sound(at for at in reversed(self.offsets()) if at <= offset)

    def after(self, offset: int) -> Nearest:
        """Return the first sound snapshot after *offset*, and why others were passed over."""
        return self._first_sound(at for at in self.offsets() if at > offset)

    def _first_sound(self, offsets: Iterable[int]) -> Nearest:
        skipped, refuted = list[str](), list[str]()
        for offset in offsets:
            path = self._path(offset)
            try:
                snapshot = decode_snapshot(read_file(self._files, path), offset)
                fault = self._history.contradiction(snapshot)
            except FileNotFoundError:
                # Removed by another process after it was listed.
                continue
            except ValueError as error:
                fault = Contradiction(str(error))
            if fault is None:
                return Nearest(snapshot, tuple(skipped), tuple(refuted))
            skipped.append(f"{path}: {fault.sentence}; it was passed over")
            if fault.refuted:
                refuted.append(f"{path}: {fault.sentence}")
        return Nearest(None, tuple(skipped), tuple(refuted))

    def keep_newest(self, count: int) -> int:
        """Remove all snapshots but the newest *count*; return how many that were."""
        gone = self.offsets()[: -count or None]
        for offset in gone:
            self._files.unlink(self._path(offset))
        return len(gone)

    def _path(self, offset: int) -> str:
        return snapshot_path(self.directory, offset)


def find_snapshots(
    files: Files,
    data: str,
    entry: TopicEntry,
    partition: int,
    config: TopicConfig,
    ids: SharedIds | None,
    commit: Callable[[], object] = lambda: None,
) -> Snapshots:
    """Return the snapshots of a partition of the data directory *data*.

    *ids* is the partition if its topic is in the shared log, else None. *commit* adds the leaves of all
    records to the chain, if this process may do that.
    """
    if ids is None:
        place = partition_directory(data, entry.name, partition)
        history = History(files, place, entry, partition, config, commit)
        return Snapshots(files, own_snapshots(place), history)
    log = partition_directory(data, SHARED_TOPIC, 0)
    home = shared_snapshots(data, entry.id, partition)
    return Snapshots(files, home, SharedHistory(files, log, ids, commit))
