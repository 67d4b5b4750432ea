"""Data directories made by hand, from docs/formats/directory.md and with no code of the engine."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import google_crc32c

from cordwood.disk.files import Files, join, parent, read_file
from cordwood.formats import batch
from cordwood.formats.batch import BatchOptions
from cordwood.formats.compression import Compression


@dataclass(frozen=True)
class Frame:
    """A batch as stored, and what the indexes need of it."""

    data: bytes
    base_offset: int
    next_offset: int
    max_timestamp: int
    record_count: int


def frame(
    base_offset: int,
    values: Sequence[bytes],
    *,
    timestamp: int = 1_000,
    epoch: int = 0,
    compression: Compression = Compression.NONE,
    attributes: int = 0,
) -> Frame:
    rows = [(b"k%d" % i, value, [("h", b"1")], timestamp + i) for i, value in enumerate(values)]
    options = BatchOptions(
        base_offset=base_offset, leader_epoch=epoch, compression=compression, attributes=attributes
    )
    data = bytes(batch.encode_records(rows, timestamp, options))
    largest = timestamp if attributes & batch.LOG_APPEND_TIME else timestamp + len(values) - 1
    return Frame(data, base_offset, base_offset + len(values), largest, len(values))


def with_crc(data: bytes) -> bytes:
    """The same batch with the checksum that its bytes have now."""
    return data[:17] + struct.pack(">I", google_crc32c.value(data[21:])) + data[21:]


def log_of(frames: Sequence[Frame]) -> bytes:
    return b"".join(each.data for each in frames)


def index_of(frames: Sequence[Frame], interval_bytes: int) -> bytes:
    entries, position, last = b"", 0, None
    for each in frames:
        if last is None or position - last >= interval_bytes:
            entries += struct.pack(">QQ", each.base_offset, position)
            last = position
        position += len(each.data)
    return entries


def time_index_of(frames: Sequence[Frame]) -> bytes:
    entries, largest = b"", None
    for each in frames:
        if each.record_count and (largest is None or each.max_timestamp > largest):
            largest = each.max_timestamp
            entries += struct.pack(">qQ", largest, each.base_offset)
    return entries


def envelope(body: dict[str, Any]) -> bytes:
    encoded = json.dumps(body, separators=(",", ":")).encode()
    return b'{"crc32c":"%08x","body":%s}' % (google_crc32c.value(encoded), encoded)


def slot(
    *,
    epoch: int = 0,
    sequence: int = 1,
    base: int = 0,
    position: int = 0,
    next_offset: int = 0,
    log_start: int = 0,
    index: bytes = b"",
    time_index: bytes = b"",
) -> bytes:
    crcs = google_crc32c.value(index), google_crc32c.value(time_index)
    counts = len(index) // 16, len(time_index) // 16
    body = b"CWMK" + struct.pack(
        ">IQQQQQIIII", epoch, sequence, base, position, next_offset, log_start, *counts, *crcs
    )
    return (body + struct.pack(">I", google_crc32c.value(body))).ljust(512, b"\0")


def catalogue_entry(entry: dict[str, Any]) -> bytes:
    body = json.dumps(entry).encode()
    return struct.pack(">II", len(body), google_crc32c.value(body)) + body


def topic_entry(name: str, topic_id: str, partitions: int) -> dict[str, Any]:
    return {"kind": "topic", "name": name, "id": topic_id, "partitions": partitions, "config": {}}


def put(files: Files, path: str, data: bytes) -> None:
    """Make a file hold *data*, whatever it held."""
    files.make_directories(parent(path))
    if files.exists(path):
        files.unlink(path)
    file = files.open(path, "create")
    if data:
        assert file.write_at(0, [data]) == len(data)
    file.close()


def all_files(files: Files, path: str) -> list[str]:
    found = []
    for name in files.list(path):
        below = join(path, name)
        found += all_files(files, below) if files.is_directory(below) else [below]
    return found


def contents(files: Files, path: str) -> dict[str, bytes]:
    return {name: read_file(files, name) for name in all_files(files, path)}


@dataclass
class Partition:
    """A partition to write: sealed segments, then an active one, whose first *marked* frames are marked."""

    topic: str
    topic_id: str
    number: int
    sealed: list[list[Frame]]
    active: list[Frame]
    marked: int
    tail: bytes = b""
    interval_bytes: int = 200
    hashed: bool = True
    epochs: list[tuple[int, int]] = field(default_factory=lambda: [(0, 0)])
    epoch_start: dict[str, int] | None = None
    truncating: dict[str, int] | None = None
    log_start: int = 0
    changes: dict[str, Any] = field(default_factory=dict)

    @property
    def active_base(self) -> int:
        return self.sealed[-1][-1].next_offset if self.sealed else 0

    def directory(self, root: str) -> str:
        return join(root, "topics", self.topic, str(self.number))

    def segment(self, root: str, base: int, suffix: str) -> str:
        return join(self.directory(root), "segments", f"{base:020d}.{suffix}")

    def sealed_entry(self, frames: list[Frame]) -> dict[str, Any]:
        log = log_of(frames)
        return {
            "base": frames[0].base_offset,
            "size": len(log),
            "next_offset": frames[-1].next_offset,
            "max_timestamp": max(each.max_timestamp for each in frames),
            "index_interval_bytes": self.interval_bytes,
            "index_crc32c": google_crc32c.value(index_of(frames, self.interval_bytes)),
            "time_index_crc32c": google_crc32c.value(time_index_of(frames)),
            "sha256": hashlib.sha256(log).hexdigest() if self.hashed else None,
        }

    def body(self) -> dict[str, Any]:
        epoch, start = self.epochs[-1]
        return {
            "format": 1,
            "topic": self.topic,
            "topic_id": self.topic_id,
            "partition": self.number,
            "record_format": "batch",
            "index_interval_bytes": self.interval_bytes,
            "log_start_offset": self.log_start,
            "leader_epoch": epoch,
            "epochs": [{"epoch": each, "start_offset": first} for each, first in self.epochs],
            "epoch_start": self.epoch_start or {"base": start, "position": 0, "next_offset": start},
            "active_base": self.active_base,
            "sealed": [self.sealed_entry(frames) for frames in self.sealed],
            "truncating": self.truncating,
        } | self.changes

    def mark_slot(self, marked: int, sequence: int) -> bytes:
        frames = self.active[:marked]
        return slot(
            epoch=self.epochs[-1][0],
            sequence=sequence,
            base=self.active_base,
            position=len(log_of(frames)),
            next_offset=frames[-1].next_offset if frames else self.active_base,
            log_start=self.log_start,
            index=index_of(frames, self.interval_bytes),
            time_index=time_index_of(frames),
        )

    def write(self, files: Files, root: str) -> None:
        for frames in self.sealed:
            base = frames[0].base_offset
            put(files, self.segment(root, base, "log"), log_of(frames))
            put(files, self.segment(root, base, "idx"), index_of(frames, self.interval_bytes))
            put(files, self.segment(root, base, "timeidx"), time_index_of(frames))
        base, marked = self.active_base, self.active[: self.marked]
        put(files, self.segment(root, base, "log"), log_of(self.active) + self.tail)
        put(files, self.segment(root, base, "idx"), index_of(marked, self.interval_bytes))
        put(files, self.segment(root, base, "timeidx"), time_index_of(marked))
        slots = self.mark_slot(max(self.marked - 1, 0), 7) + self.mark_slot(self.marked, 8)
        put(files, join(self.directory(root), "mark"), slots)
        self.write_state(files, root)

    def write_state(self, files: Files, root: str) -> None:
        put(files, join(self.directory(root), "partition.json"), envelope(self.body()))


def write_catalogue(
    files: Files, root: str, entries: Sequence[dict[str, Any]], marked: int | None = None, tail: bytes = b""
) -> None:
    """Write the catalogue with its first *marked* entries (all, if None) below the mark."""
    encoded = [catalogue_entry(entry) for entry in entries]
    position = 8 + sum(map(len, encoded if marked is None else encoded[:marked]))
    put(files, join(root, "meta/catalogue.log"), b"CWCATLG1" + b"".join(encoded) + tail)
    put(files, join(root, "meta/catalogue.mark"), slot(position=position) + bytes(512))


def write_broker_id(files: Files, root: str) -> None:
    body = {"format": 1, "uuid": "u-1", "created_at": "2026-01-01T00:00:00Z", "node_name": "here"}
    put(files, join(root, "meta/broker.id"), envelope(body))


def rising_frames(start: int, count: int, **options: Any) -> list[Frame]:
    """Return *count* frames of two records each from offset *start* on, timestamps now up, now down."""
    return [
        frame(start + 2 * i, [b"v" * (20 + 7 * i), b""], timestamp=1_000 + 10 * (i ^ 1), **options)
        for i in range(count)
    ]


def orders_partition() -> Partition:
    """Return three sealed segments and an active one with unmarked frames, a torn one and zeros."""
    sealed = [rising_frames(0, 6), rising_frames(12, 4), rising_frames(20, 5)]
    active = rising_frames(30, 5)
    torn = frame(40, [b"never finished"]).data[:50]
    return Partition("orders", "id-orders", 0, sealed, active, marked=3, tail=torn + bytes(300))


def compressed_partition() -> Partition:
    """Return a partition with every compression, append time, and three epochs, two of them truncations."""
    codecs = [frame(2 * i, [b"a" * 50, b"b"], compression=codec) for i, codec in enumerate(Compression)]
    later = [frame(10, [b"x"], epoch=1, attributes=batch.LOG_APPEND_TIME), frame(11, [b"y", b"z"], epoch=1)]
    active = [frame(13, [b"1"], epoch=1), frame(14, [b"2"], epoch=2), frame(15, [b"3"], epoch=2)]
    return Partition(
        "payments",
        "id-payments",
        1,
        [codecs, later],
        active,
        marked=3,
        hashed=False,
        epochs=[(0, 0), (1, 10), (2, 14)],
        epoch_start={"base": 13, "position": len(active[0].data), "next_offset": 14},
        log_start=3,
    )


def write_sound_directory(files: Files, root: str) -> tuple[Partition, Partition]:
    """Write a sound data directory with two topics and return their partitions."""
    files.make_directories(join(root, "topics"))
    write_broker_id(files, root)
    entries = [
        topic_entry("gone", "id-gone", 1),
        {"kind": "deleted", "id": "id-gone"},
        topic_entry("orders", "id-orders", 1),
        topic_entry("payments", "id-payments", 2),
    ]
    write_catalogue(files, root, entries)
    partitions = orders_partition(), compressed_partition()
    for each in partitions:
        each.write(files, root)
    return partitions


def flipped(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def renumbered(original: Frame, base_offset: int) -> Frame:
    data = struct.pack(">q", base_offset) + original.data[8:]
    count = original.next_offset - original.base_offset
    return replace(original, data=data, base_offset=base_offset, next_offset=base_offset + count)
