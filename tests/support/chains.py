"""Chains made by hand, from docs/integrity.md and with no code of the engine."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from cordwood.disk.files import Files, join
from cordwood.integrity.checkpoint import Checkpoint
from cordwood.integrity.note import SigningKey
from support.data_directory import Frame, envelope, put

NOTED_MS = 1_767_323_045_000


def leaf_of(data: bytes) -> bytes:
    return sha256(b"\0" + data).digest()


def root_of(leaves: Sequence[bytes]) -> bytes:
    if len(leaves) < 2:
        return leaves[0] if leaves else sha256(b"").digest()
    split = 1 << ((len(leaves) - 1).bit_length() - 1)
    return sha256(b"\1" + root_of(leaves[:split]) + root_of(leaves[split:])).digest()


def head_of(leaves: Sequence[bytes]) -> bytes:
    head = bytes(32)
    for leaf in leaves:
        head = sha256(head + leaf).digest()
    return head


def tree_of(leaves: Sequence[bytes]) -> bytes:
    """Return the complete subtrees of two or more leaves, in the order in which they become complete."""
    nodes = b""
    for end in range(1, len(leaves) + 1):
        size = 2
        while end % size == 0:
            nodes += root_of(leaves[end - size : end])
            size *= 2
    return nodes


@dataclass
class HandChain:
    """The chain of a partition, to which frames and statements are added."""

    topic_id: str = "id-orders"
    first_offset: int = 0
    epoch: int = 0
    next_offset: int = -1
    leaves: list[bytes] = field(default_factory=list)
    entries: list[tuple[int, int]] = field(default_factory=list)
    lines: list[bytes] = field(default_factory=list)
    changes: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.next_offset < 0:
            self.next_offset = self.first_offset

    def follow(self, frames: Sequence[Frame]) -> HandChain:
        for each in frames:
            self._add(leaf_of(each.data), each.base_offset, each.next_offset)
            self.next_offset = each.next_offset
        return self

    def say(self, kind: str, start: int, end: int, goes_on: int | None = None, **more: Any) -> HandChain:
        said = {"kind": kind, "leaf": len(self.leaves), "start": start, "end": end}
        said |= {"leader_epoch": self.epoch, "noted_ms": NOTED_MS, **more}
        line = json.dumps(said, separators=(",", ":")).encode()
        if goes_on is not None:
            self.next_offset = goes_on
        self._add(leaf_of(b"\xff" + line), self.next_offset, self.next_offset)
        self.lines.append(line)
        return self

    def cut(self, start: int, goes_on: int | None = None, kind: str = "truncated") -> HandChain:
        """Say that the log was cut at *start*, which began another epoch unless it got lost."""
        self.epoch += kind == "truncated"
        return self.say(kind, start, self.next_offset, start if goes_on is None else goes_on)

    def compact(
        self, start: int, end: int, generation: int, frames: Sequence[Frame], moved: Sequence[Frame]
    ) -> HandChain:
        """Say that the segment [start, end) has *frames* now, of which *moved* are not as they were."""
        for each in moved:
            self._add(leaf_of(each.data), each.base_offset, each.next_offset)
        root = root_of([leaf_of(each.data) for each in frames]).hex()
        more: dict[str, Any] = {
            "generation": generation,
            "frames": len(frames),
            "moved": len(moved),
            "root": root,
        }
        return self.say("compacted", start, end, **more)

    def _add(self, leaf: bytes, first: int, end: int) -> None:
        self.leaves.append(leaf)
        self.entries.append((first, end))

    @property
    def size(self) -> int:
        return len(self.leaves)

    def head(self) -> bytes:
        body = {
            "format": 1,
            "topic_id": self.topic_id,
            "size": self.size,
            "root": root_of(self.leaves).hex(),
            "chain_head": head_of(self.leaves).hex(),
            "first_offset": self.first_offset,
            "next_offset": self.next_offset,
            "leader_epoch": self.epoch,
            "statements_size": sum(len(line) + 1 for line in self.lines),
        }
        return envelope(body | self.changes)

    def contents(self) -> dict[str, bytes]:
        return {
            "leaves": b"".join(self.leaves),
            "frames": b"".join(struct.pack(">qq", *entry) for entry in self.entries),
            "tree": tree_of(self.leaves),
            "statements": b"".join(line + b"\n" for line in self.lines),
            "head": self.head(),
        }

    def write(self, files: Files, directory: str) -> None:
        for name, data in self.contents().items():
            put(files, join(directory, "chain", name), data)

    def checkpoint(self, origin: str) -> Checkpoint:
        return Checkpoint(
            origin=origin,
            size=self.size,
            root=root_of(self.leaves),
            chain_head=head_of(self.leaves),
            leader_epoch=self.epoch,
            next_offset=self.next_offset,
        )

    def note(self, key: SigningKey, topic: str = "orders", partition: int = 0) -> str:
        return self.checkpoint(f"{key.name}/{topic}/{partition}").signed(key)


def keep_note(files: Files, root: str, topic_id: str, partition: int, size: int, note: str) -> str:
    """Keep a note where its broker does, and return where that is."""
    path = join(root, "meta/checkpoints", topic_id, f"{partition}-{size}.note")
    put(files, path, note.encode())
    return path


def keep_key(files: Files, root: str, key: SigningKey) -> None:
    put(files, join(root, "meta/keys/checkpoint.pub"), f"{key.verifier}\n".encode())
