"""Rafka's directories: one shared log, ``<segment>.log``, with its offset index ``<segment>.oidx``.

Records have only bytes there, and their virtual offset is the number of earlier records in the same topic and
partition.
"""

from __future__ import annotations

from collections.abc import Iterator

from cordwood.disk import Files, join
from cordwood.errors import DirectoryRefused, FrameError, RecordRefused
from cordwood.formats.shared import OffsetIndexEntry, rafka, topic_hash
from cordwood.interchange.directories import PARTITION_MAX, NewDirectory, NewFile, content, segments
from cordwood.interchange.losses import Losses
from cordwood.interchange.outgoing import Outgoing, SegmentLimits
from cordwood.records import Record

SEGMENT_BYTES = rafka.SEGMENT_SIZE_MAX
_POSITION_MAX = (1 << 32) - 1


def read_partitions(
    files: Files, directory: str, losses: Losses, *, topic: str, now_ms: int, org: int | None = None
) -> dict[int, Iterator[Record]]:
    """Return the records of each partition of a topic in the shared log.

    The topic is *topic* of the tenant *org*, or the only one. The log has no times, so records get *now_ms*.

    Raises:
        DirectoryRefused: If there is no log, or the topic is not in it.
        FrameError: While reading, if log and index do not match; names file and position.
    """
    indexes = segments(files, directory, ".oidx") if files.is_directory(directory) else []
    if not indexes:
        raise DirectoryRefused(f"{directory} has no *.oidx files")
    found: dict[tuple[int, int], set[int]] = {}
    for _, path in indexes:
        for entry in rafka.parse_entries(content(files, path)):
            found.setdefault((entry.org_id, entry.topic_hash), set()).add(entry.partition)
    chosen = _chosen(directory, found, topic, org)
    if chosen is None:
        return {}
    if max(found[chosen]) > PARTITION_MAX:
        raise DirectoryRefused(
            f"{directory} has a partition {max(found[chosen])}, which is not a number of one"
        )
    return {
        partition: _records(files, directory, (*chosen, partition), now_ms, losses)
        for partition in sorted(found[chosen])
    }


def _chosen(
    directory: str, found: dict[tuple[int, int], set[int]], topic: str, org: int | None
) -> tuple[int, int] | None:
    """Return tenant and hash of the topic to import, None if the log is empty."""
    of_org = [key for key in found if org is None or key[0] == org]
    if len(of_org) <= 1 and (of_org or not found):
        return of_org[0] if of_org else None
    named = [key for key in of_org if key[1] == topic_hash(key[0], topic)]
    if len(named) == 1:
        return named[0]
    keys = ", ".join(f"{org_id}-{hashed}" for org_id, hashed in sorted(found)[:5])
    more = f" and {len(found) - 5} more" if len(found) > 5 else ""
    raise DirectoryRefused(
        f"{directory} has the topics {keys}{more}, tenant and hash, "
        f"and {topic} is not the name of one of them for one tenant"
    )


def _records(
    files: Files, directory: str, chosen: tuple[int, int, int], now_ms: int, losses: Losses
) -> Iterator[Record]:
    offset = 0
    logs: dict[int, tuple[str, bytes | bytearray | memoryview]] = {}
    for _, path in segments(files, directory, ".oidx"):
        for entry in rafka.parse_entries(content(files, path)):
            if entry[3:] != chosen:
                continue
            if entry.segment_id not in logs:
                log_path = join(directory, f"{entry.segment_id}.log")
                logs = {entry.segment_id: (log_path, content(files, log_path))}
            log_path, log = logs[entry.segment_id]
            try:
                data = bytes(rafka.parse_record(log, entry))
            except FrameError as error:
                raise error.at(log_path, 0) from None
            losses.add("timestamps, which the log does not have: records got the current time")
            yield Record(offset, now_ms, None, data)
            offset += 1


def write_partitions(
    out: NewDirectory, outgoing: Outgoing, losses: Losses, limits: SegmentLimits, *, topic: str, org: int = 0
) -> None:
    """Write ``<segment>.log`` and ``<segment>.oidx``, one shared log of all partitions."""
    hashed = topic_hash(org, topic)
    size_max = min(limits.within(SEGMENT_BYTES), _POSITION_MAX)
    writer = _RafkaLog(out, size_max)
    for partition, records in outgoing:
        for virtual, record in enumerate(records):
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
