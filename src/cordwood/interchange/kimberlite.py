"""Kimberlite's directories: ``log/00000000.segment`` and so on, one chain through all of them.

Each partition has its own directory and its own chain. A log that Kimberlite wrote may have several streams
in one chain; each becomes a partition.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import msgspec

from cordwood.disk import Files
from cordwood.errors import DirectoryRefused, FrameError, InvalidBatch, RecordRefused, TruncatedFrame
from cordwood.formats import only_zeros
from cordwood.formats.per_record import NO_HASH, EventType, KimberliteRecord, kimberlite
from cordwood.interchange.directories import PARTITION_MAX, NewDirectory, content, find_partitions, segments
from cordwood.interchange.losses import Losses
from cordwood.interchange.outgoing import Outgoing, SegmentFiles, SegmentLimits, rolled
from cordwood.kernels import Buffer
from cordwood.records import Record

SEGMENT_BYTES = 1 << 30


class SegmentMeta(msgspec.Struct, frozen=True):
    """The entry of one segment in ``index.meta``, a line of JSON."""

    segment: int
    first_position: int | None
    size: int
    sha256: str


def read_partitions(
    files: Files, directory: str, losses: Losses, *, tenant: int | None = None
) -> dict[int, Iterator[Record]]:
    """Return the records of each stream of the log in *directory*, or of the logs of its partitions.

    Every chain is checked before anything is returned. With *tenant*, records of other tenants are skipped.

    Raises:
        DirectoryRefused: If there is no log, or it has several tenants and none was given.
        FrameError: If a record is damaged or breaks the chain; names the place.
    """
    streams: dict[int, str] = {}
    tenants: set[int] = set()
    for path in find_partitions(files, directory, ".segment", inner="log").values():
        for found_tenant, stream in _follow(files, path, losses):
            tenants.add(found_tenant)
            if tenant is None or found_tenant == tenant:
                if streams.get(stream, path) != path:
                    raise DirectoryRefused(f"{path} has records of stream {stream}, as {streams[stream]} has")
                streams[stream] = path
    if tenant is None and len(tenants) > 1:
        named = ", ".join(map(str, sorted(tenants)))
        raise DirectoryRefused(f"{directory} has records of tenants {named}: name one, a topic takes one")
    numbers = {stream: stream for stream in streams}
    if streams and max(streams) > PARTITION_MAX:
        losses.add("ids of streams, which are numbered from 0 as partitions", len(streams))
        numbers = {stream: number for number, stream in enumerate(sorted(streams))}
    chosen = next(iter(tenants), 0) if tenant is None else tenant
    return {
        numbers[stream]: _records(files, path, chosen, stream, losses)
        for stream, path in sorted(streams.items())
    }


def _follow(files: Files, directory: str, losses: Losses) -> set[tuple[int, int]]:
    """Check the chain of a log; return the tenants and streams of its records."""
    found: set[tuple[int, int]] = set()
    head: bytes | None = None
    for path, data, record in _walk(files, directory, losses, checked=False):
        if head is None and record.prev_hash != NO_HASH:
            if record.position == 0:
                head = NO_HASH
            else:
                losses.add("the predecessor of the first record of a chain, which is missing")
        if head is not None and record.prev_hash != head:
            raise InvalidBatch(
                position=record.at,
                expected=head.hex(),
                found=record.prev_hash.hex(),
                what=f"hash of the record before record {record.position}",
                path=path,
            )
        head = record.hash(data)
        found.add((record.tenant, record.stream))
    return found


def _walk(
    files: Files, directory: str, losses: Losses | None, *, checked: bool
) -> Iterator[tuple[str, Buffer, KimberliteRecord]]:
    """Yield every record of a log with its file, up to preallocated zeros."""
    paths = segments(files, directory, ".segment")
    for number, (_, path) in enumerate(paths):
        data, at = content(files, path), 0
        while at < len(data):
            try:
                record = kimberlite.parse_record(data, at, checked=checked)
            except FrameError as error:
                if only_zeros(data, at):
                    break
                if isinstance(error, TruncatedFrame) and number == len(paths) - 1:
                    if losses is not None:
                        losses.add("bytes of a last record that is not whole", len(data) - at)
                    break
                raise error.at(path, 0) from None
            yield path, data, record
            at = record.end


def _records(files: Files, directory: str, tenant: int, stream: int, losses: Losses) -> Iterator[Record]:
    for path, data, record in _walk(files, directory, None, checked=True):
        if (record.tenant, record.stream) != (tenant, stream):
            continue
        try:
            value = None if record.event_type == EventType.TOMBSTONE else record.data(data)
        except FrameError as error:
            raise error.at(path, 0) from None
        losses.add("that a record is a checkpoint", int(record.event_type == EventType.CHECKPOINT))
        losses.add("microseconds of timestamps", int(record.timestamp_us % 1000 > 0))
        yield Record(record.position, record.timestamp_us // 1000, None, value)


def write_partitions(out: NewDirectory, outgoing: Outgoing, losses: Losses, limits: SegmentLimits) -> None:
    """Write ``<n>/log/<number>.segment`` and ``index.meta`` for each partition."""
    for partition, records in outgoing:
        place = (str(partition), "log")
        previous, listed = NO_HASH, list[SegmentMeta]()
        names = SegmentFiles(place, ("segment",), digits=8, counted=True)
        for segment in rolled(out, records, names, limits, SEGMENT_BYTES):
            (log,) = segment.files
            hashed, first = hashlib.sha256(), None
            for record in segment.records:
                data = _encode(record, previous, partition, losses)
                previous = hashlib.sha256(data).digest()
                hashed.update(data)
                first = record.offset if first is None else first
                log.append(data)
            listed.append(SegmentMeta(len(listed), first, log.size, hashed.hexdigest()))
        index = out.create(*place, "index.meta")
        index.append(b"".join(msgspec.json.encode(each) + b"\n" for each in listed))
        out.finish(index)


def _encode(record: Record, previous: bytes, partition: int, losses: Losses) -> bytes:
    losses.add("keys", int(record.key is not None))
    losses.add("headers", len(record.headers))
    if abs(record.timestamp) > (1 << 63) // 1001:
        raise RecordRefused(f"record {record.offset} has a time that has no microseconds: {record.timestamp}")
    return kimberlite.encode_record(
        record.offset,
        record.timestamp * 1000,
        record.value or b"",
        previous,
        stream=partition,
        event_type=EventType.TOMBSTONE if record.value is None else EventType.DATA,
        size_max=1 << 32,
    )
