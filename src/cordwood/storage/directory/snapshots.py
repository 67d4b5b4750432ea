"""Snapshots of a state derived from a partition's records, so that a replay need not begin at the first one.

A snapshot is the state after every record below an offset, in ``snapshots/snapshot-<offset>`` of the
partition. The state can always be derived again. A snapshot that is damaged, or of records that were
truncated since, is skipped and reported.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import google_crc32c

from cordwood.disk import Files, join, parent, read_file, read_published, write_atomically
from cordwood.errors import OffsetOutOfRange, RecordRefused
from cordwood.host import Clock, SystemClock
from cordwood.storage.log import PartitionState, mark_path, newest_mark, read_state, synced_bound

MAGIC = b"CWSN"
VERSION = 1
HASH_SIZE = 32
_HEADER = struct.Struct(
    ">"  # big-endian
    "4s"  # magic
    "I"  # version
    "I"  # leader epoch of the record before the offset
    "Q"  # offset
    "q"  # when it was taken: milliseconds since the Unix epoch
    "32s"  # hash of the record before the offset, zeros if none was given
    "Q"  # size of the state
)
_CRC = struct.Struct(">I")
HEADER_SIZE = 72
assert _HEADER.size + _CRC.size == HEADER_SIZE
_PREFIX = "snapshot-"


class StateSnapshot(NamedTuple):
    """The state after every record below ``offset``.

    ``chain_head`` is the hash of the last of those, as it was given, zeros if none was.
    """

    offset: int
    timestamp: int
    state: bytes
    chain_head: bytes = bytes(HASH_SIZE)


class Nearest(NamedTuple):
    """The snapshot to begin at, if there is one, and why later ones were passed over, a sentence each."""

    snapshot: StateSnapshot | None
    skipped: tuple[str, ...] = ()


class Snapshots:
    """The snapshots of one partition. One caller at a time saves; any number read."""

    def __init__(self, files: Files, partition_directory: str, clock: Clock | None = None) -> None:
        self._files = files
        self._clock = clock or SystemClock()
        self._partition = partition_directory
        self.directory = join(partition_directory, "snapshots")

    def offsets(self) -> list[int]:
        """Return the offsets there are snapshots of, damaged ones included, in order."""
        if not self._files.exists(self.directory):
            return []
        names = (name.removeprefix(_PREFIX) for name in self._files.list(self.directory))
        return sorted(int(name) for name in names if len(name) == 20 and name.isdigit())

    def save(self, offset: int, state: bytes, *, chain_head: bytes = bytes(HASH_SIZE)) -> StateSnapshot:
        """Write *state*, the state after every record below *offset*. Durable on return, whole or not at all.

        *chain_head* is the hash of the record before *offset*, where records are chained and it is known.

        Raises:
            OffsetOutOfRange: If records below *offset* are missing, or not synced: a crash could still
                replace them with others.
        """
        if len(chain_head) != HASH_SIZE:
            raise RecordRefused(f"the hash of a record has {HASH_SIZE} bytes, not {len(chain_head)}")
        partition = read_state(self._files, self._partition)
        marks, _ = read_published(self._files, mark_path(self._partition))
        synced = synced_bound(partition, newest_mark(partition, marks, self._partition)).next_offset
        if not partition.log_start_offset <= offset <= synced:
            raise OffsetOutOfRange(offset, partition.log_start_offset, synced)
        snapshot = StateSnapshot(offset, self._clock.now_ms(), bytes(state), bytes(chain_head))
        for made in self._files.make_directories(self.directory):
            self._files.sync_directory(made)
        # The process that created the directory may have been killed before its name was synced.
        self._files.sync_directory(parent(self.directory))
        write_atomically(self._files, self._path(offset), _encode(snapshot, _epoch_before(partition, offset)))
        return snapshot

    def nearest(self, offset: int) -> Nearest:
        """Return the last sound snapshot at or before *offset*, and why others were passed over."""
        listed = self.offsets()
        if not listed:
            return Nearest(None)
        partition = read_state(self._files, self._partition)
        skipped = []
        for at in reversed(listed):
            if at > offset:
                continue
            path = self._path(at)
            try:
                snapshot, epoch = _decode(read_file(self._files, path))
                if snapshot.offset != at:
                    raise ValueError(f"is that of offset {snapshot.offset}")
                if epoch != _epoch_before(partition, at):
                    raise ValueError("is of records that were cut from the log since")
            except FileNotFoundError:
                # Removed by another process after it was listed.
                continue
            except ValueError as error:
                skipped.append(f"{path}: {error}; it was passed over")
                continue
            return Nearest(snapshot, tuple(skipped))
        return Nearest(None, tuple(skipped))

    def keep_newest(self, count: int) -> int:
        """Remove all snapshots but the newest *count*; return how many that were."""
        gone = self.offsets()[: -count or None]
        for offset in gone:
            self._files.unlink(self._path(offset))
        return len(gone)

    def _path(self, offset: int) -> str:
        return join(self.directory, f"{_PREFIX}{offset:020d}")


def _epoch_before(partition: PartitionState, offset: int) -> int:
    """Return the leader epoch under which the record before *offset* was appended.

    A truncation raises it, so records appended in place of the cut ones have another epoch.
    """
    return partition.epochs_within(max(offset - 1, 0), offset)[0][1]


def _encode(snapshot: StateSnapshot, epoch: int) -> bytes:
    offset, timestamp, state, chain_head = snapshot
    header = _HEADER.pack(MAGIC, VERSION, epoch, offset, timestamp, chain_head, len(state))
    return header + _CRC.pack(google_crc32c.extend(google_crc32c.value(header), state)) + state


def _decode(data: bytes) -> tuple[StateSnapshot, int]:
    """Return a snapshot and its leader epoch.

    Raises:
        ValueError: If one bit of it is not as written; says what.
    """
    if len(data) < HEADER_SIZE:
        raise ValueError(f"has {len(data)} bytes, less than a header")
    magic, version, epoch, offset, timestamp, chain_head, size = _HEADER.unpack_from(data)
    if (magic, version) != (MAGIC, VERSION):
        raise ValueError("is not a snapshot of this version")
    state = data[HEADER_SIZE:]
    if len(state) != size:
        raise ValueError(f"has a state of {len(state)} bytes, not {size}")
    (crc,) = _CRC.unpack_from(data, _HEADER.size)
    found = google_crc32c.extend(google_crc32c.value(data[: _HEADER.size]), state)
    if crc != found:
        raise ValueError(f"has the checksum {crc:#010x}, but its content has {found:#010x}")
    return StateSnapshot(offset, timestamp, state, chain_head), epoch
