"""Apache Kafka's partition directories: ``<topic>-<n>/<base>.log`` with ``.index`` and ``.timeindex``.

The frames are the same as Cordwood's, so they are copied unchanged. An import removes data that only a
cluster can use: the producer of a batch, and transaction markers. So it takes committed records only: those
of aborted transactions, and of transactions without a marker, are counted and left out. An export keeps
transactions, up to the first open one, and has a ``.txnindex`` where some were aborted.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from cordwood.disk import Files, join, read_file
from cordwood.errors import DirectoryRefused, FrameError, TruncatedFrame
from cordwood.formats import BatchHeader, batch, only_zeros
from cordwood.index import AbortedEntry, AbortedIndex
from cordwood.interchange.directories import NewDirectory, check_regular, content, segments
from cordwood.interchange.frames import BatchFrame, frame_of, within
from cordwood.interchange.losses import Losses
from cordwood.interchange.outgoing import SegmentLimits
from cordwood.kernels import INT32_MAX, Buffer, Stop

SEGMENT_BYTES = 1 << 30
INDEX_INTERVAL_BYTES = 4096
OFFSET_ENTRY = struct.Struct(
    ">"  # big-endian
    "i"  # last offset of a batch, counted from the segment's base
    "i"  # position of that batch
)
TIME_ENTRY = struct.Struct(
    ">"
    "q"  # largest timestamp so far, milliseconds
    "i"  # offset of the record that has it, counted from the segment's base
)
_CONTROL_KEY = struct.Struct(">hh")
_ABORT = 0
_PRODUCER = struct.Struct(">qhi")
_PRODUCER_AT, _ATTRIBUTES_AT = 43, 21
_NOBODY = _PRODUCER.pack(batch.NO_PRODUCER_ID, batch.NO_PRODUCER_EPOCH, batch.NO_SEQUENCE)
_PARTITION = re.compile(r"(.+)-(\d{1,5})")


class _FoundBatch(NamedTuple):
    """One batch of a partition's directory."""

    path: str
    data: Buffer
    header: BatchHeader


# --- in -----------------------------------------------------------------------------------------------


def read_partitions(
    files: Files, directory: str, losses: Losses, *, topic: str
) -> dict[int, Iterator[BatchFrame]]:
    """Return the frames of each partition of a topic below *directory*, or of *directory* itself.

    The topic is *topic*, or the only one.

    Raises:
        DirectoryRefused: If there is no such partition.
        FrameError: While reading, at damage in a segment; names file and position.
    """
    found = _find(files, directory, topic)
    starts = _log_starts(files, directory)
    return {
        number: _frames(files, path, starts.get(path.rpartition("/")[2], 0), losses)
        for number, path in sorted(found.items())
    }


def _find(files: Files, directory: str, topic: str) -> dict[int, str]:
    if not files.is_directory(directory):
        raise DirectoryRefused(f"{directory} is not a directory")
    if segments(files, directory, ".log"):
        return {0: directory}
    topics: dict[str, dict[int, str]] = {}
    for name in files.list(directory):
        match = _PARTITION.fullmatch(name)
        path = join(directory, name)
        if match and files.is_directory(path) and segments(files, path, ".log"):
            check_regular(files, directory, name)
            topics.setdefault(match[1], {})[int(match[2])] = path
    if not topics:
        raise DirectoryRefused(
            f"{directory} has no directory of a partition, <topic>-<number>, with *.log files"
        )
    if len(topics) > 1 and topic not in topics:
        named = ", ".join(sorted(topics)[:5])
        raise DirectoryRefused(f"{directory} has the topics {named}, and {topic} is none of them")
    return topics[topic] if topic in topics else next(iter(topics.values()))


def _log_starts(files: Files, directory: str) -> dict[str, int]:
    """Return the log starts of partitions by the name of their directory, as far as Kafka stored them."""
    path = join(directory, "log-start-offset-checkpoint")
    if not files.exists(path):
        return {}
    check_regular(files, directory, "log-start-offset-checkpoint")
    lines = [line.split() for line in read_file(files, path).decode(errors="replace").splitlines()[2:]]
    return {
        f"{line[0]}-{line[1]}": int(line[2])
        for line in lines
        if len(line) == 3 and line[1].isdecimal() and line[2].isdecimal()
    }


def _frames(files: Files, directory: str, start: int, losses: Losses) -> Iterator[BatchFrame]:
    dropped = _uncommitted(files, directory, losses)
    for found in _batches(files, directory, losses):
        header = found.header
        if header.next_offset <= start or header.is_control:
            continue
        if header.is_transactional and header.base_offset in dropped:
            continue
        data = bytearray(memoryview(found.data)[header.position : header.end])
        frame = within(frame_of(header, _cleaned(header, data, losses)), start, header.next_offset)
        if frame is not None:
            yield frame


def _cleaned(header: BatchHeader, data: bytearray, losses: Losses) -> bytearray:
    """Return a batch without its producer and transaction."""
    transactional = header.attributes & batch.TRANSACTIONAL
    if header.producer_id == batch.NO_PRODUCER_ID and not transactional:
        return data
    losses.add("batches' producer ids and sequences")
    attributes = header.attributes & ~batch.TRANSACTIONAL
    data[_ATTRIBUTES_AT : _ATTRIBUTES_AT + 2] = attributes.to_bytes(2, "big")
    data[_PRODUCER_AT : _PRODUCER_AT + _PRODUCER.size] = _NOBODY
    batch.seal(data)
    return data


def _uncommitted(files: Files, directory: str, losses: Losses) -> set[int]:
    """Return the base offsets of batches whose transaction was aborted or never ended."""
    dropped: set[int] = set()
    open_batches: dict[int, list[int]] = {}
    for found in _batches(files, directory, None):
        header = found.header
        if header.is_control:
            mine = open_batches.pop(header.producer_id, [])
            if _aborts(found):
                dropped.update(mine)
                losses.add("batches of transactions that were aborted", len(mine))
        elif header.is_transactional:
            open_batches.setdefault(header.producer_id, []).append(header.base_offset)
    for unfinished in open_batches.values():
        dropped.update(unfinished)
        losses.add("batches of transactions that never ended", len(unfinished))
    return dropped


def _aborts(found: _FoundBatch) -> bool:
    try:
        records = batch.decode_records(found.data, found.header)
    except FrameError as error:
        raise error.at(found.path, 0) from None
    key = records[0].key if records else None
    return key is not None and len(key) >= _CONTROL_KEY.size and _CONTROL_KEY.unpack_from(key)[1] == _ABORT


def _batches(files: Files, directory: str, losses: Losses | None) -> Iterator[_FoundBatch]:
    """Yield every batch; checksums are compared in the first pass, which has no *losses*."""
    paths = segments(files, directory, ".log")
    next_offset = 0
    for number, (_, path) in enumerate(paths):
        data = content(files, path)
        scanned = batch.scan(data, next_offset=next_offset, size_max=INT32_MAX)
        for header in scanned.headers():
            if losses is None:
                try:
                    batch.check_crc(data, header)
                except FrameError as error:
                    raise error.at(path, 0) from None
            next_offset = header.next_offset
            yield _FoundBatch(path, data, header)
        if scanned.reason is Stop.END:
            continue
        if only_zeros(data, scanned.stopped_at):
            continue
        ended = scanned.error(data)
        if not isinstance(ended, TruncatedFrame) or number < len(paths) - 1:
            raise ended.at(path, 0)
        if losses is not None:
            losses.add("bytes of a last batch that is not whole", len(data) - scanned.stopped_at)


# --- out ----------------------------------------------------------------------------------------------


def write_partitions(
    out: NewDirectory,
    outgoing: Iterable[tuple[int, Iterator[BatchFrame]]],
    limits: SegmentLimits,
    *,
    topic: str,
) -> None:
    """Write ``<topic>-<n>/<base>.log``, its indexes and ``leader-epoch-checkpoint`` for each partition.

    The last frame must not be part of an open transaction.
    """
    size_max = min(limits.within(SEGMENT_BYTES), INT32_MAX)
    for partition, frames in outgoing:
        place = f"{topic}-{partition}"
        epochs = _write_segments(out, place, frames, size_max)
        listed = "".join(f"{epoch} {start}\n" for epoch, start in epochs)
        checkpoint = out.create(place, "leader-epoch-checkpoint")
        checkpoint.append(f"0\n{len(epochs)}\n{listed}".encode())
        out.finish(checkpoint)


def _write_segments(
    out: NewDirectory, place: str, frames: Iterator[BatchFrame], size_max: int
) -> list[tuple[int, int]]:
    """Write the segments of a partition; return its leader epochs and the offset at which each begins."""
    epochs: list[tuple[int, int]] = []
    segment: _KafkaSegment | None = None
    transactions = _PassingTransactions()
    for frame in frames:
        header = batch.read_header(frame.data, size_max=INT32_MAX)
        if segment is None or segment.is_full(header, size_max):
            if segment is not None:
                segment.close()
            segment = _KafkaSegment(out, place, header.base_offset)
        segment.append(header, frame.data)
        aborted = transactions.pass_by(_FoundBatch(place, frame.data, header))
        if aborted is not None:
            segment.aborted.add(aborted)
        if not epochs or epochs[-1][0] != header.leader_epoch:
            epochs.append((header.leader_epoch, header.base_offset))
    (segment or _KafkaSegment(out, place, 0)).close()
    return epochs


class _PassingTransactions:
    """Follows the frames of a partition to tell which transactions were aborted."""

    def __init__(self) -> None:
        # In the order of their first offsets.
        self._begun: dict[int, int] = {}

    def pass_by(self, found: _FoundBatch) -> AbortedEntry | None:
        """Note a frame; return the transaction that it aborts, if it does."""
        header = found.header
        if not header.is_transactional:
            return None
        if not header.is_control:
            self._begun.setdefault(header.producer_id, header.base_offset)
            return None
        first = self._begun.pop(header.producer_id, None)
        if first is None or not _aborts(found):
            return None
        stable = min(next(iter(self._begun.values()), header.next_offset), header.next_offset)
        return AbortedEntry(header.producer_id, first, header.base_offset, stable)


class _KafkaSegment:
    """A segment and its indexes, written as a broker writes them."""

    def __init__(self, out: NewDirectory, place: str, base: int) -> None:
        self._out = out
        self._place = place
        self._base = base
        #: The aborted transactions whose markers are in it.
        self.aborted = AbortedIndex()
        self._log, self._index, self._times = (
            out.create(place, f"{base:020d}.{suffix}") for suffix in ("log", "index", "timeindex")
        )
        self._since_entry = 0
        self._largest = (-1, base)
        self._last_time_entry = -1

    def is_full(self, header: BatchHeader, size_max: int) -> bool:
        """Return whether a batch goes into the next segment: because of its size or a too large offset."""
        if not self._log.size:
            return False
        return self._log.size + header.size > size_max or header.next_offset - 1 - self._base > INT32_MAX

    def append(self, header: BatchHeader, data: Buffer) -> None:
        """Append a batch; after every 4 KiB it gets an entry in both indexes."""
        position = self._log.size
        self._log.append(data)
        if header.record_count and header.max_timestamp > self._largest[0]:
            self._largest = (header.max_timestamp, header.next_offset - 1)
        if self._since_entry > INDEX_INTERVAL_BYTES:
            self._index.append(OFFSET_ENTRY.pack(header.next_offset - 1 - self._base, position))
            self._append_time()
            self._since_entry = 0
        self._since_entry += header.size

    def close(self) -> None:
        """Write the last entry of the time index and, if there is one, the index of aborted transactions."""
        self._append_time()
        for file in (self._log, self._index, self._times):
            self._out.finish(file)
        if len(self.aborted):
            file = self._out.create(self._place, f"{self._base:020d}.txnindex")
            file.append(bytes(self.aborted.entries))
            self._out.finish(file)

    def _append_time(self) -> None:
        timestamp, offset = self._largest
        if timestamp > self._last_time_entry:
            self._times.append(TIME_ENTRY.pack(timestamp, offset - self._base))
            self._last_time_entry = timestamp
