"""Kimberlite's directories: ``log/00000000.segment`` and so on, one chain through all of them.

Each partition has its own directory and its own chain. A log that Kimberlite wrote may have several streams
in one chain; each becomes a partition.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import partial

import msgspec

from cordwood import tenancy
from cordwood.disk import Files, join
from cordwood.errors import DirectoryRefused, FrameError, InvalidBatch, RecordRefused, TruncatedFrame
from cordwood.formats import only_zeros
from cordwood.formats.per_record import NO_HASH, KimberliteFormat, KimberliteRecord, kimberlite
from cordwood.interchange.directories import PARTITION_MAX, NewDirectory, content, find_partitions, segments
from cordwood.interchange.kept import KeptPartition, NewSegment, StoredFrame, StoredItem
from cordwood.interchange.losses import Losses
from cordwood.interchange.outgoing import Outgoing, SegmentFiles, SegmentLimits, rolled, time_and_headers
from cordwood.kernels import Buffer
from cordwood.records import Record, split_timestamp_us

SEGMENT_BYTES = 1 << 30
_FORMAT = KimberliteFormat()


class SegmentMeta(msgspec.Struct, frozen=True):
    """The entry of one segment in ``index.meta``, a line of JSON."""

    segment: int
    first_position: int | None
    size: int
    sha256: str


_META = msgspec.json.Decoder(SegmentMeta)


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


def read_frames(
    files: Files, directory: str, losses: Losses, *, topic: str, tenant: int
) -> dict[int, KeptPartition]:
    """Return the frames of each partition, byte for byte: each a chain of one stream, which has its number.

    *topic* is the name for *tenant* that the records go to. The chains are checked before they are returned.

    Raises:
        DirectoryRefused: If records are of another tenant, or a chain has several streams; says what to do.
        FrameError: If a record is damaged or breaks its chain; names the place.
    """
    found: dict[int, KeptPartition] = {}
    for number, path in find_partitions(files, directory, ".segment", inner="log").items():
        owners = _follow(files, path, losses)
        streams = sorted({stream for _, stream in owners} or {number})
        tenants = sorted({each for each, _ in owners})
        if len(tenants) > 1:
            raise DirectoryRefused(
                f"{path} has one chain of the tenants {_shown(tenants)}, and a topic in the format "
                "kimberlite has a chain of its own: leave cordwood.format out and import each tenant as a "
                f"topic, with --tenant {tenants[0]} and so on"
            )
        for other in set(tenants) - {tenant}:
            named = tenancy.qualify(tenancy.split(topic).name, other)
            raise DirectoryRefused(
                f"{path} has records of tenant {other}, and topic {topic} has tenant {tenant}: import it as "
                f"topic {named}, or leave cordwood.format out"
            )
        if len(streams) > 1 or streams[0] > PARTITION_MAX or streams[0] in found:
            raise DirectoryRefused(
                f"{path} has a chain of the streams {_shown(streams)}, and a topic in the format kimberlite "
                f"has a chain for each partition, whose stream is its number from 0 to {PARTITION_MAX}: "
                "leave cordwood.format out"
            )
        first = next(_walk(files, path, None, checked=True), None)
        before = b"" if first is None or first[2].prev_hash == NO_HASH else first[2].prev_hash
        found[streams[0]] = KeptPartition(partial(_frames, files, path), before)
    return found


def _shown(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers[:5])) + (" and more" if len(numbers) > 5 else "")


def _frames(files: Files, directory: str) -> Iterator[StoredItem]:
    """Yield each segment and its records; the next position is the base of an empty one."""
    next_position, begun = 0, ""
    for path, data, record in _walk(files, directory, None, checked=True):
        if path != begun:
            yield NewSegment(record.position)
            begun = path
        frame = bytes(memoryview(data)[record.at : record.end])
        yield StoredFrame(record.position, record.timestamp_us // 1000, frame)
        next_position = record.position + 1
    last = segments(files, directory, ".segment")[-1][1]
    if last != begun:
        yield NewSegment(next_position)


def _follow(files: Files, directory: str, losses: Losses) -> set[tuple[int, int]]:
    """Check the chain of a log; return the tenants and streams of its records."""
    _check_meta(files, directory, losses)
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


def _check_meta(files: Files, directory: str, losses: Losses) -> None:
    """Compare segments with their sizes and hashes in ``index.meta``, if it is there and in our layout.

    A chain cannot show that its last records are missing; this can.

    Raises:
        InvalidBatch: If a segment is missing, too short or another.
    """
    path = join(directory, "index.meta")
    if not files.exists(path):
        return
    try:
        listed = [_META.decode(line) for line in bytes(content(files, path)).splitlines()]
    except (msgspec.MsgspecError, UnicodeDecodeError):
        losses.add("an index.meta in another layout, which was not compared")
        return
    present = dict(segments(files, directory, ".segment"))
    for each in listed:
        place = present.get(each.segment, join(directory, f"{each.segment:08d}.segment"))
        data = content(files, place) if each.segment in present else b""
        found = hashlib.sha256(memoryview(data)[: each.size]).hexdigest()
        if len(data) < each.size or found != each.sha256:
            expected = f"{each.size} bytes with SHA-256 {each.sha256}"
            said = f"{len(data)} bytes" if len(data) < each.size else f"SHA-256 {found}"
            raise InvalidBatch(position=0, expected=expected, found=said, what="segment", path=place)


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
            _, value, headers = _FORMAT.decode_frame(data, record.at, record.end - record.at)
        except FrameError as error:
            raise error.at(path, 0) from None
        losses.add("microseconds of timestamps", int(record.timestamp_us % 1000 > 0))
        _, headers = split_timestamp_us(record.timestamp_us // 1000, headers)
        yield Record(record.position, record.timestamp_us // 1000, None, value, headers)


def write_partitions(
    out: NewDirectory, outgoing: Outgoing, losses: Losses, limits: SegmentLimits, *, tenant: int = 0
) -> None:
    """Write ``<n>/log/<number>.segment`` and ``index.meta`` for each partition, as records of *tenant*."""
    for partition, records in outgoing:
        place = (str(partition), "log")
        previous, listed = NO_HASH, list[SegmentMeta]()
        names = SegmentFiles(place, ("segment",), digits=8, counted=True)
        for segment in rolled(out, records, names, limits, SEGMENT_BYTES):
            (log,) = segment.files
            hashed, first = hashlib.sha256(), None
            for record in segment.records:
                if isinstance(record, StoredFrame):
                    data = record.data
                else:
                    data = _encode(record, previous, tenant, partition, losses)
                    previous = hashlib.sha256(data).digest()
                hashed.update(data)
                first = record.offset if first is None else first
                log.append(data)
            listed.append(SegmentMeta(len(listed), first, log.size, hashed.hexdigest()))
        index = out.create(*place, "index.meta")
        index.append(b"".join(msgspec.json.encode(each) + b"\n" for each in listed))
        out.finish(index)


def _encode(record: Record, previous: bytes, tenant: int, partition: int, losses: Losses) -> bytes:
    timestamp_us, headers = time_and_headers(record)
    try:
        event_type, others = kimberlite.split_event_type(record.value, headers)
    except ValueError:
        # In a topic of another format the header may have any value.
        event_type, others = kimberlite.split_event_type(record.value, ())[0], headers
    losses.add("keys", int(record.key is not None))
    losses.add("headers", len(others))
    if abs(timestamp_us) >= 1 << 63:
        raise RecordRefused(f"record {record.offset} has a time that has no microseconds: {record.timestamp}")
    return kimberlite.encode_record(
        record.offset,
        timestamp_us,
        record.value or b"",
        previous,
        tenant=tenant,
        stream=partition,
        event_type=event_type,
        size_max=1 << 32,
    )
