"""Rafka's directories: one shared log, ``<segment>.log``, with its offset index ``<segment>.oidx``.

Records have only bytes there, and their virtual offset is the number of earlier records in the same topic and
partition.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from cordwood import tenancy
from cordwood.disk import Files, join
from cordwood.errors import DirectoryRefused, FrameError, InvalidBatch, RecordRefused
from cordwood.formats import only_zeros
from cordwood.formats.shared import OffsetIndexEntry, rafka, topic_hash
from cordwood.interchange.directories import PARTITION_MAX, NewDirectory, NewFile, content, segments
from cordwood.interchange.losses import Losses
from cordwood.interchange.outgoing import SegmentLimits
from cordwood.kernels import Buffer
from cordwood.records import Record

SEGMENT_BYTES = rafka.SEGMENT_SIZE_MAX
_POSITION_MAX = (1 << 32) - 1
#: About how many bytes and records of one partition are appended together.
RUN_BYTES = 256 << 10
RUN_RECORDS = 4096
#: What an import says of bytes that may be records.
UNINDEXED = "bytes of the log that no entry of its index names"
#: What every import of a record loses.
NO_TIMES = "timestamps, which the log does not have: records got the current time"


def read_partitions(
    files: Files, directory: str, losses: Losses, *, topic: str, now_ms: int, org: int | None = None
) -> dict[int, Iterator[Record]]:
    """Return the records of each partition of a topic in the shared log.

    The topic is *topic* of the tenant *org*, or the only one. The log has no times, so records get *now_ms*.

    Raises:
        DirectoryRefused: If there is no log, or the topic is not in it.
        FrameError: While reading, if log and index do not match; names file and position.
    """
    source = SharedSource(files, directory, [topic], org)
    losses.add(UNINDEXED, source.unindexed_bytes)
    return {
        partition: _numbered(source, partition, now_ms, losses) for partition in sorted(source.topics[topic])
    }


def _numbered(source: SharedSource, partition: int, now_ms: int, losses: Losses) -> Iterator[Record]:
    for offset, each in enumerate(source.records(partition)):
        losses.add(NO_TIMES)
        yield Record(offset, now_ms, None, each.value)


class SharedRecord(NamedTuple):
    """A record of a shared log, by the name of its topic."""

    topic: str
    partition: int
    value: bytes


class SharedRun(NamedTuple):
    """Records of one partition that follow each other in a shared log."""

    topic: str
    partition: int
    values: list[bytes]


class SharedSource:
    """Topics of a shared log. ``topics`` has the partitions of each; ``unnamed`` lines about the others.

    The log has hashes of names only: a single name may be any if there is one topic, others must have the
    hash of a topic. A name without an org is of *tenant*, or of any tenant if it is the only name.
    """

    def __init__(self, files: Files, directory: str, names: Sequence[str], tenant: int | None) -> None:
        """Find the topics of *names*.

        Raises:
            DirectoryRefused: If there is no log, or a topic is not in it.
        """
        self._files, self._directory = files, directory
        indexes = segments(files, directory, ".oidx") if files.is_directory(directory) else []
        if not indexes:
            raise DirectoryRefused(f"{directory} has no *.oidx files")
        found: dict[tuple[int, int], set[int]] = {}
        ends: dict[int, int] = {}
        for number, path in indexes:
            index = content(files, path)
            _check_whole(index, path)
            ends.setdefault(number, 0)
            for entry in rafka.parse_entries(index):
                found.setdefault((entry.org_id, entry.topic_hash), set()).add(entry.partition)
                end = entry.physical_offset + entry.length
                ends[entry.segment_id] = max(ends.get(entry.segment_id, 0), end)
        self._keys: dict[tuple[int, int], str] = {}
        for name in names:
            key = _chosen(directory, found, name, tenant, alone=len(names) == 1)
            if key is not None:
                self._keys[key] = name
        self.topics = {name: set[int]() for name in names}
        for key, name in self._keys.items():
            self.topics[name] = found[key]
            if max(found[key]) > PARTITION_MAX:
                raise DirectoryRefused(
                    f"{directory} has a partition {max(found[key])}, which is not a number of one"
                )
        others = sorted(found.keys() - self._keys.keys())
        lines = [f"topics of the log that were not named: {len(others)}"] if others else []
        logs = {number: join(directory, f"{number}.log") for number in ends}
        self.unindexed_bytes = sum(_bytes_after(files, logs[number], end) for number, end in ends.items())
        if self.unindexed_bytes:
            lines.append(f"{UNINDEXED}: {self.unindexed_bytes}")
        self.unnamed = tuple(lines)

    def records(self, partition: int | None = None) -> Iterator[SharedRecord]:
        """Yield the records of the topics, or those of one partition, in the order of the log, checked.

        Raises:
            FrameError: If log and index do not match; names file and position.
        """
        logs: dict[int, tuple[str, Buffer]] = {}
        for _, path in segments(self._files, self._directory, ".oidx"):
            for entry in rafka.parse_entries(content(self._files, path)):
                name = self._keys.get((entry.org_id, entry.topic_hash))
                if name is None or partition not in (None, entry.partition):
                    continue
                if entry.segment_id not in logs:
                    log_path = join(self._directory, f"{entry.segment_id}.log")
                    logs = {entry.segment_id: (log_path, content(self._files, log_path))}
                log_path, log = logs[entry.segment_id]
                try:
                    data = bytes(rafka.parse_record(log, entry))
                except FrameError as error:
                    raise error.at(log_path, 0) from None
                yield SharedRecord(name, entry.partition, data)


def _check_whole(index: Buffer, path: str) -> None:
    """Raise InvalidBatch if an index ends within an entry: records may be missing from it."""
    whole = len(index) // rafka.ENTRY_SIZE * rafka.ENTRY_SIZE
    if not only_zeros(index, whole):
        found, what = f"{len(index) - whole} bytes", "offset index"
        raise InvalidBatch(position=whole, expected="a whole entry", found=found, what=what, path=path)


def _bytes_after(files: Files, path: str, end: int) -> int:
    """Return the bytes of a log after *end*, up to zeros that fill the file; 0 if there is none."""
    if not files.exists(path):
        return 0
    log = content(files, path)
    return 0 if only_zeros(log, end) else len(log) - end


def runs(records: Iterator[SharedRecord]) -> Iterator[SharedRun]:
    """Group records of one partition that follow each other, up to a usual size of a batch."""
    run, size = SharedRun("", 0, []), 0
    for record in records:
        other = (record.topic, record.partition) != run[:2]
        if run.values and (other or size >= RUN_BYTES or len(run.values) >= RUN_RECORDS):
            yield run
            run, size = SharedRun("", 0, []), 0
        if not run.values:
            run = SharedRun(record.topic, record.partition, [])
        run.values.append(record.value)
        size += len(record.value)
    if run.values:
        yield run


def _chosen(
    directory: str, found: dict[tuple[int, int], set[int]], name: str, tenant: int | None, *, alone: bool
) -> tuple[int, int] | None:
    """Return tenant and hash of the topic *name*, None if the log is empty.

    If it is the only name, it may be that of the only topic, whatever its hash.
    """
    bare, named_org = tenancy.split(name)
    org = tenant if tenant is not None else named_org or None
    of_org = [key for key in found if org is None or key[0] == org]
    if alone and len(of_org) <= 1 and (of_org or not found):
        return of_org[0] if of_org else None
    if not alone and org is None:
        of_org = [key for key in found if key[0] == named_org]
    named = [key for key in of_org if key[1] == topic_hash(key[0], bare)]
    if len(named) == 1:
        return named[0]
    keys = ", ".join(f"{org_id}-{hashed}" for org_id, hashed in sorted(found)[:5])
    more = f" and {len(found) - 5} more" if len(found) > 5 else ""
    raise DirectoryRefused(
        f"{directory} has the topics {keys}{more}, tenant and hash, "
        f"and {name} is not the name of one of them for one tenant"
    )


class OutgoingTopic(NamedTuple):
    """A topic to export: its key in the index, and what is lost of it."""

    org: int
    topic_hash: int
    losses: Losses

    @classmethod
    def named(cls, topic: str, org: int | None, losses: Losses) -> OutgoingTopic:
        """Return the key of *topic*, which is that of the tenant behind its name unless *org* is given."""
        bare, own = tenancy.split(topic)
        org = own if org is None else org
        return cls(org, topic_hash(org, bare), losses)


def write_records(
    out: NewDirectory, records: Iterable[tuple[OutgoingTopic, int, Record]], limits: SegmentLimits
) -> None:
    """Write ``<segment>.log`` and ``<segment>.oidx``: one log of all topics, in the order of *records*."""
    writer = _RafkaLog(out, min(limits.within(SEGMENT_BYTES), _POSITION_MAX))
    written: dict[tuple[int, int, int], int] = {}
    for (org, hashed, losses), partition, record in records:
        virtual = written.get((org, hashed, partition), 0)
        written[org, hashed, partition] = virtual + 1
        losses.add("keys", int(record.key is not None))
        losses.add("headers", len(record.headers))
        losses.add("nulls, which became empty values", int(record.value is None))
        losses.add("timestamps")
        losses.add("offsets, which count from 0 without gaps", int(record.offset != virtual))
        writer.append(record, org, hashed, partition)
    writer.close()


class _RafkaLog:
    """The segments of the shared log, one open at a time."""

    def __init__(self, out: NewDirectory, size_max: int) -> None:
        self._out = out
        self._size_max = size_max
        self._segment = -1
        self._roll()

    def append(self, record: Record, org: int, hashed: int, partition: int) -> None:
        """Append one record and its entry."""
        value = record.value or b""
        if self._log.size and self._log.size + rafka.LENGTH.size + len(value) > self._size_max:
            self.close()
            self._roll()
        if rafka.LENGTH.size + len(value) > _POSITION_MAX:
            raise RecordRefused(f"record {record.offset} has {len(value)} bytes, more than a segment")
        start = self._log.size + rafka.LENGTH.size
        entry = OffsetIndexEntry(self._segment, start, len(value), org, hashed, partition)
        self._log.append(rafka.encode_record(value, size_max=_POSITION_MAX))
        self._index.append(rafka.encode_entry(entry))

    def close(self) -> None:
        """Close the segment."""
        self._out.finish(self._log)
        self._out.finish(self._index)

    def _roll(self) -> None:
        self._segment += 1
        self._log: NewFile = self._out.create(f"{self._segment}.log")
        self._index: NewFile = self._out.create(f"{self._segment}.oidx")
