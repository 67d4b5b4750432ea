"""Check snapshots of state: their own bytes, and the hash that ties them to the log.

Written against docs/formats/kimberlite.md, independent of the code that writes them. Snapshots are read
before the metadata of the log, so that everything that they are of was there when the metadata were read.
"""

from __future__ import annotations

import contextlib
import re
import struct
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import google_crc32c

from cordwood.disk import ReadableFiles, join
from cordwood.errors import FrameError
from cordwood.verify.chain import Chain, PassingTree
from cordwood.verify.frame import FileWindows, hash_of
from cordwood.verify.metadata import PartitionBody, read_bytes
from cordwood.verify.report import Tally
from cordwood.verify.segments import RecordFrame, SegmentPlan, open_reader

_NAME = re.compile(r"snapshot-([0-9]{20})\Z")
_HEADER = struct.Struct(
    ">"
    "4s"  # magic
    "I"  # version
    "I"  # leader epoch of the record before the offset
    "Q"  # offset
    "q"  # when it was taken
    "32s"  # hash
    "Q"  # size of the state
)
_TIE = struct.Struct(
    ">"
    "I"  # kind of the hash
    "Q"  # leaves under it
    "q"  # number of the record before the offset in the log that has the chain
)
_NONE, _RECORD, _TREE = 0, 1, 2
_CHAINED = "kimberlite"
_ENTRY = struct.Struct(">qq")
_HASH_BYTES = 32
_LEAVES_AT_ONCE = 1 << 15


class SnapshotFields(NamedTuple):
    """The fields of a sound snapshot at *path*."""

    path: str
    offset: int
    epoch: int
    hash: bytes
    kind: int
    leaves: int
    last: int


def read_snapshots(files: ReadableFiles, directory: str, tally: Tally) -> list[SnapshotFields]:
    """Return the sound snapshots in *directory*, lowest offset first; report those that are damaged."""
    found: list[SnapshotFields] = []
    with tally.reading(directory), contextlib.suppress(FileNotFoundError):
        for name in sorted(files.list(directory)) if files.is_directory(directory) else ():
            path, match = join(directory, name), _NAME.match(name)
            if match is None:
                what = "unexpected name"
                tally.add("note", path, None, expected="a snapshot", found="something else", what=what)
                continue
            # An application removes old ones.
            data = read_bytes(tally, files, path) if files.exists(path) else None
            fields = None if data is None else _fields_of(path, data, int(match[1]), tally)
            if fields is not None:
                found.append(fields)
    return found


def _fields_of(path: str, data: bytes, offset: int, tally: Tally) -> SnapshotFields | None:
    """Return the fields of a snapshot, None after reporting why it has none."""
    tally.bytes += len(data)
    what = "snapshot"
    if len(data) < _HEADER.size:
        expected = f"a header of {_HEADER.size} bytes"
        tally.add("corruption", path, 0, expected=expected, found=f"{len(data)} bytes", what=what)
        return None
    magic, version, epoch, said, _, hash_, size = _HEADER.unpack_from(data)
    if magic != b"CWSN" or not version:
        tally.add("corruption", path, 0, expected="CWSN, a version", found=data[:8].hex(), what=what)
        return None
    if version > 2:
        tally.add("invalid", path, 4, expected="version 1 or 2", found=version, what="version is newer")
        return None
    end = _HEADER.size + (_TIE.size if version == 2 else 0)
    crc = google_crc32c.value(data[:end] + data[end + 4 :])
    if len(data) != end + 4 + size or int.from_bytes(data[end : end + 4], "big") != crc:
        expected = f"{end + 4 + size} bytes with their CRC-32C at byte {end}"
        tally.add("corruption", path, end, expected=expected, found=f"{len(data)} others", what=what)
        return None
    if said != offset:
        tally.add("corruption", path, 12, expected=offset, found=said, what="offset of a snapshot")
        return None
    if version == 1:
        return SnapshotFields(path, offset, epoch, hash_, _RECORD if any(hash_) else _NONE, 0, offset - 1)
    kind, leaves, last = _TIE.unpack_from(data, _HEADER.size)
    if kind > _TREE:
        tally.add("invalid", path, 68, expected="0 to 2", found=kind, what="kind of a snapshot's hash")
        return None
    return SnapshotFields(path, offset, epoch, hash_, kind, leaves, last)


def check_snapshots(
    files: ReadableFiles,
    found: Sequence[SnapshotFields],
    state: PartitionBody,
    chain: Chain | None,
    plans: Mapping[int, SegmentPlan],
    tally: Tally,
) -> None:
    """Compare snapshots with the log that they are of. *state*, *chain* and *plans* are its.

    One of records that were cut since is a note: a replay passes it over.
    """
    current = []
    for each in found:
        if each.epoch != _epoch_of(state, each.last) or _is_cut(chain, each):
            what = "snapshot of records that were cut since, which is passed over"
            tally.add(
                "note", each.path, None, expected="a snapshot", found=f"offset {each.offset}", what=what
            )
        else:
            current.append(each)
    if state.record_format == _CHAINED:
        _check_records(files, [each for each in current if each.kind == _RECORD], plans, tally)
    trees = [each for each in current if each.kind == _TREE]
    if trees and chain is not None:
        _check_trees(files, trees, chain, tally)
    elif trees:
        for each in trees:
            what = "hash of a snapshot, which was not compared"
            tally.add("invalid", each.path, 28, expected="a chain", found="none", what=what)


def _epoch_of(state: PartitionBody, number: int) -> int:
    """Return the leader epoch of the record with that number."""
    started = [each.epoch for each in state.epochs if each.start_offset <= max(number, 0)]
    return started[-1] if started else state.epochs[0].epoch


def _is_cut(chain: Chain | None, snapshot: SnapshotFields) -> bool:
    if chain is None or snapshot.kind != _TREE:
        return False
    later = (each for each in chain.statements or () if each.leaf >= snapshot.leaves and each.is_cut)
    return any(each.start <= snapshot.last for each in later)


def _check_records(
    files: ReadableFiles, found: Sequence[SnapshotFields], plans: Mapping[int, SegmentPlan], tally: Tally
) -> None:
    """Compare the hashes of records with those in snapshots, segment by segment."""
    for plan in plans.values():
        wanted = {each.last: each for each in found if plan.base <= each.last < plan.next_offset}
        if not wanted:
            continue
        path = f"{plan.path}.{plan.log_suffix}"
        # What cannot be read is reported by the check of the segment.
        with contextlib.suppress(OSError, FrameError), contextlib.closing(files.open(path, "read")) as file:
            windows, reader = FileWindows(file, plan.stop, Tally(), hashed=False), open_reader(files, plan)
            position = 0
            while position < plan.stop and wanted:
                frame: RecordFrame = reader.at(windows, position, plan.stop)
                position = frame.end
                each = wanted.pop(frame.base_offset, None)
                if each is not None:
                    actual = hash_of(windows, frame.position, frame.end)
                    _compare(each, actual, f"hash of record {each.last} in a snapshot", tally)


def _check_trees(files: ReadableFiles, found: Sequence[SnapshotFields], chain: Chain, tally: Tally) -> None:
    """Compare the roots of the leaves with those in snapshots, in one pass over the leaves."""
    tree = PassingTree()
    with contextlib.ExitStack() as stack, contextlib.suppress(FileNotFoundError):
        # Files that are missing or too short are reported by the check of the chain.
        leaves = stack.enter_context(contextlib.closing(files.open(join(chain.path, "leaves"), "read")))
        frames = stack.enter_context(contextlib.closing(files.open(join(chain.path, "frames"), "read")))
        for each in sorted(found, key=lambda each: each.leaves):
            if not 0 < each.leaves <= chain.head.size:
                what = "leaves under the hash of a snapshot"
                expected = f"1 to {chain.head.size}"
                tally.add("corruption", each.path, 72, expected=expected, found=each.leaves, what=what)
                continue
            while tree.size < each.leaves:
                count = min(each.leaves - tree.size, _LEAVES_AT_ONCE)
                data = leaves.read_at(tree.size * _HASH_BYTES, count * _HASH_BYTES)
                if len(data) < count * _HASH_BYTES:
                    return
                tree.add(data[at : at + _HASH_BYTES] for at in range(0, len(data), _HASH_BYTES))
            _compare(each, tree.root(), f"root of {each.leaves} leaves in a snapshot", tally)
            entry = frames.read_at((each.leaves - 1) * _ENTRY.size, _ENTRY.size)
            if len(entry) == _ENTRY.size:
                first, end = _ENTRY.unpack(entry)
                if not first <= each.last < end:
                    expected, what = f"{first} to {end - 1}", "record before the offset of a snapshot"
                    tally.add("corruption", each.path, 80, expected=expected, found=each.last, what=what)


def _compare(snapshot: SnapshotFields, actual: bytes, what: str, tally: Tally) -> None:
    if snapshot.hash != actual:
        tally.add(
            "corruption", snapshot.path, 28, expected=actual.hex(), found=snapshot.hash.hex(), what=what
        )
