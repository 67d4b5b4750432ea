"""A data directory taken apart and put together again by somebody who makes everything agree.

Checksums, indexes, ``partition.json``, leaves, tree, chain and head are computed from what the test wants
them to say. What an insider cannot compute is a checkpoint that somebody else holds.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from hashlib import sha256
from typing import Any

import google_crc32c

from cordwood.disk.files import Files, join
from cordwood.disk.memory import MemoryFiles
from support.chains import head_of, root_of, tree_of
from support.data_directory import envelope
from support.disks import image
from support.logs import DATA, disk_of, frames_of

Row = tuple[int, int, bytes | None, bytes | None]
"""Offset, timestamp, key, value."""


def moved_leaf(frame: bytes) -> bytes:
    return sha256(b"\0\xfdCWM1" + frame).digest()


def plain_leaf(frame: bytes) -> bytes:
    return sha256(b"\0" + frame).digest()


def bounds(frame: bytes) -> tuple[int, int]:
    """Return the offsets [first, next) of a batch."""
    (base,), (delta,) = struct.unpack_from(">q", frame), struct.unpack_from(">i", frame, 23)
    return base, base + delta + 1


def batch_of(base: int, last_delta: int, rows: Sequence[Row], epoch: int = 0) -> bytes:
    """Return a batch with these records, whose offsets may have gaps."""
    first, body = rows[0][1] if rows else 0, b""
    for offset, timestamp, key, value in rows:
        record = b"\0" + _varint(timestamp - first) + _varint(offset - base)
        for part in (key, value):
            record += _varint(-1) if part is None else _varint(len(part)) + part
        record += _varint(0)
        body += _varint(len(record)) + record
    largest = max((row[1] for row in rows), default=first)
    fields = (base, 49 + len(body), epoch, 2, 0, 0, last_delta, first, largest, -1, -1, -1, len(rows))
    frame = bytearray(struct.pack(">qiibIhiqqqhii", *fields) + body)
    struct.pack_into(">I", frame, 17, google_crc32c.value(bytes(frame[21:])))
    return bytes(frame)


def _varint(number: int) -> bytes:
    raw, out = (number << 1) ^ (number >> 63), bytearray()
    while True:
        raw, low = raw >> 7, raw & 0x7F
        out.append(low | (0x80 if raw else 0))
        if not raw:
            return bytes(out)


class Forgery:
    """The files of one partition, to be changed and written again."""

    def __init__(self, files: Files, topic: str = "orders") -> None:
        self.whole = dict(image(files, DATA))
        self.place = join(DATA, "topics", topic, "0")
        self.state = self._body("partition.json")
        self.head = self._body("chain/head")
        leaves, entries = self._bytes("chain/leaves"), self._bytes("chain/frames")
        numbers = range(self.head["size"])
        self.leaves = [leaves[32 * number : 32 * (number + 1)] for number in numbers]
        self.entries = [struct.unpack_from(">qq", entries, 16 * number) for number in numbers]
        self.lines = self._bytes("chain/statements")[: self.head["statements_size"]].splitlines()
        self.changed: dict[str, bytes] = {}
        self.gone: list[str] = []

    def _bytes(self, name: str) -> bytes:
        return self.whole.get(join(self.place, name)) or b""

    def _body(self, name: str) -> dict[str, Any]:
        body: dict[str, Any] = json.loads(self._bytes(name))["body"]
        return body

    @property
    def end(self) -> int:
        """The offset after the last leaf."""
        return int(self.head["next_offset"])

    def frames(self) -> list[bytes]:
        """Return the frames of the sealed segments."""
        logs = (self._bytes(f"segments/{each['base']:020d}.log") for each in self.state["sealed"])
        return [log[start:stop] for log in logs for start, stop in frames_of(log)]

    def say(self, kind: str, start: int, end: int, goes_on: int, **more: Any) -> None:
        """Add a statement and its leaf."""
        said = {"kind": kind, "leaf": len(self.leaves), "start": start, "end": end}
        said |= {"leader_epoch": self.state["leader_epoch"], "noted_ms": 1_700_000_000_999, **more}
        self.lines.append(json.dumps(said, separators=(",", ":")).encode())
        self.leaves.append(sha256(b"\0\xff" + self.lines[-1]).digest())
        self.entries.append((goes_on, goes_on))
        self.head["next_offset"] = goes_on

    def say_compacted(
        self,
        start: int,
        end: int,
        generation: int,
        frames: Sequence[bytes],
        moved: Sequence[bytes] | None = None,
    ) -> None:
        """Add the leaves of rewritten frames, and the statement of their compaction."""
        written = list(frames if moved is None else moved)
        marked = self.head["format"] > 1
        for frame in written:
            self.leaves.append(moved_leaf(frame) if marked else plain_leaf(frame))
            self.entries.append(bounds(frame))
        root = root_of([plain_leaf(frame) for frame in frames]).hex()
        more = {"generation": generation, "frames": len(frames), "moved": len(written), "root": root}
        self.say("compacted", start, end, self.end, **more)

    def use_segments(self, made: Sequence[tuple[int, int, int, Sequence[bytes]]]) -> None:
        """Replace the sealed segments by (base, next offset, generation, frames), with their indexes."""
        pattern = self.state["sealed"][0]
        for each in self.state["sealed"]:
            self.gone += [self._segment(each["base"], suffix) for suffix in ("log", "idx", "timeidx")]
        self.state["sealed"] = []
        for base, end, generation, frames in made:
            index, times, largest, position = b"", b"", -1, 0
            for frame in frames:
                (timestamp,) = struct.unpack_from(">q", frame, 35)
                if not position:
                    # The only indexed frame, so the only one in the time index too, which is sparse.
                    index += struct.pack(">QQ", bounds(frame)[0], 0)
                    times += struct.pack(">qQ", timestamp, bounds(frame)[0])
                largest = max(largest, timestamp)
                position += len(frame)
            described: dict[str, Any] = {
                "base": base,
                "size": position,
                "next_offset": end,
                "max_timestamp": largest,
            }
            described |= {
                "index_crc32c": google_crc32c.value(index),
                "sha256": None,
                "generation": generation,
            }
            described |= {"time_index_crc32c": google_crc32c.value(times)}
            self.state["sealed"].append(pattern | described)
            for suffix, data in (("log", b"".join(frames)), ("idx", index), ("timeidx", times)):
                path = self._segment(base, suffix)
                self.changed[path] = data
                self.gone = [each for each in self.gone if each != path]

    def _segment(self, base: int, suffix: str) -> str:
        return join(self.place, "segments", f"{base:020d}.{suffix}")

    def written(self) -> MemoryFiles:
        """Return a disk on which everything agrees with what was forged."""
        text = b"".join(line + b"\n" for line in self.lines)
        self.head |= {"size": len(self.leaves), "root": root_of(self.leaves).hex()}
        self.head |= {"chain_head": head_of(self.leaves).hex(), "statements_size": len(text)}
        files = {
            "chain/leaves": b"".join(self.leaves),
            "chain/frames": b"".join(struct.pack(">qq", *entry) for entry in self.entries),
            "chain/statements": text,
            "chain/tree": tree_of(self.leaves),
            "chain/head": envelope(self.head),
            "partition.json": envelope(self.state),
        }
        self.changed |= {join(self.place, name): data for name, data in files.items()}
        return disk_of(self.whole, self.changed, self.gone)
