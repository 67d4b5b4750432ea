"""Checkpoints in C2SP's format (c2sp.org/tlog-checkpoint): the signed size and root of a tree.

Cordwood's checkpoints have extension lines: the head of the chain over the same leaves, the leader epoch, the
offset after the last leaf, and the format of frames unless they are record batches.
"""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass

from cordwood.errors import EvidenceRefused
from cordwood.integrity.merkle import HASH_SIZE
from cordwood.integrity.note import SigningKey, VerifierKey, open_note, sign

_NUMBER = re.compile(r"0|[1-9][0-9]{0,18}", re.ASCII)
_CHAIN, _EPOCH, _NEXT, _FORMAT = "chain ", "leader-epoch ", "next-offset ", "record-format "
_BATCH = "batch"


def origin_of(broker: str, topic: str, partition: int) -> str:
    """Return the origin, the name of a partition's tree."""
    return f"{broker}/{topic}/{partition}"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint. ``size`` counts leaves; ``next_offset`` is the offset after the last one."""

    origin: str
    size: int
    root: bytes
    chain_head: bytes
    leader_epoch: int
    next_offset: int
    record_format: str = _BATCH

    def text(self) -> str:
        """Return the signed lines."""
        said = "" if self.record_format == _BATCH else f"{_FORMAT}{self.record_format}\n"
        return (
            f"{self.origin}\n{self.size}\n{_encoded(self.root)}\n"
            f"{_CHAIN}{_encoded(self.chain_head)}\n{_EPOCH}{self.leader_epoch}\n{_NEXT}{self.next_offset}\n{said}"
        )

    def signed(self, key: SigningKey) -> str:
        """Return the note. Raises as `note.sign`."""
        return sign(self.text(), key)


def open_checkpoint(note: str, key: VerifierKey) -> Checkpoint:
    """Return the checkpoint in *note*, which *key* must have signed.

    Raises:
        EvidenceRefused: If it is not signed by that key, or is not a checkpoint of Cordwood.
        SigningUnavailable: If the signature library is not installed.
    """
    return parse(open_note(note, key))


def unverified(note: str) -> Checkpoint:
    """Return the checkpoint in *note* without checking its signature: for notes from our own directory.

    Raises:
        EvidenceRefused: If it is not a checkpoint of Cordwood.
    """
    return parse(note.rpartition("\n\n")[0] + "\n")


def parse(text: str) -> Checkpoint:
    """Return the checkpoint in *text*; unknown extension lines may follow.

    Raises:
        EvidenceRefused: If it is not a checkpoint of Cordwood.
    """
    lines = text.split("\n")
    if len(lines) < 7 or lines.pop() or not all(lines):
        raise EvidenceRefused("not a checkpoint of Cordwood: it needs six lines, none of them empty")
    return Checkpoint(
        origin=lines[0],
        size=_number(lines[1], "", "size of the tree"),
        root=_hash(lines[2], "", "root"),
        chain_head=_hash(lines[3], _CHAIN, "head of the chain"),
        leader_epoch=_number(lines[4], _EPOCH, "leader epoch"),
        next_offset=_number(lines[5], _NEXT, "next offset"),
        record_format=next(
            (line.removeprefix(_FORMAT) for line in lines[6:] if line.startswith(_FORMAT)), _BATCH
        ),
    )


def _number(line: str, prefix: str, what: str) -> int:
    text = line.removeprefix(prefix)
    if not line.startswith(prefix) or not _NUMBER.fullmatch(text):
        raise EvidenceRefused(f"the checkpoint has {line[:60]!r} where its {what} belongs")
    return int(text)


def _hash(line: str, prefix: str, what: str) -> bytes:
    text = line.removeprefix(prefix)
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        data = b""
    if not line.startswith(prefix) or len(data) != HASH_SIZE or _encoded(data) != text:
        raise EvidenceRefused(f"the checkpoint has {line[:60]!r} where its {what} belongs")
    return data


def _encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()
