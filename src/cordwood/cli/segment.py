"""``cordwood segment``: look into the files of a segment."""

from __future__ import annotations

import contextlib
import re
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple, TypeAlias

import click

from cordwood.cli.output import print_json, print_table
from cordwood.cli.rendering import record_fields
from cordwood.errors import CordwoodError, FrameError, StorageError
from cordwood.formats.compression import Compression
from cordwood.formats.native import BatchFormat
from cordwood.formats.record_per_frame import RecordPerFrame
from cordwood.formats.registry import EVERY_FORMAT
from cordwood.records import Record
from cordwood.storage.files import File, parent
from cordwood.storage.mark import read_marks
from cordwood.storage.partition_state import mark_path, read_state
from cordwood.storage.posix_files import PosixFiles
from cordwood.storage.recovery import newest_mark, synced_bound
from cordwood.storage.segment import segment_path
from cordwood.storage.verify.beside import (
    BareRustlogRecords,
    LaminarmqRecords,
    RustlogRecords,
    open_entries,
)
from cordwood.storage.verify.envelopes import EnvelopeFrame, EnvelopeFrames
from cordwood.storage.verify.frame import BatchFrames, Frame, Windows
from cordwood.storage.verify.reader import FrameReader
from cordwood.storage.verify.records import NULL, FramedRecords, KimberliteRecords, RecordFrame
from cordwood.storage.verify.report import Tally

_AnyFrame: TypeAlias = Frame | RecordFrame | EnvelopeFrame


class _Layout(NamedTuple):
    """How entries are laid out, what they say, and how many bytes come before the first one."""

    entry: struct.Struct
    fields: tuple[str, ...]
    start: int = 0


_INDEXES = {
    ".idx": _Layout(struct.Struct(">QQ"), ("offset", "position")),
    ".timeidx": _Layout(struct.Struct(">qQ"), ("timestamp", "offset")),
    ".sum": _Layout(struct.Struct(">QII"), ("position", "length", "crc32c")),
    ".index": _Layout(struct.Struct("<QII"), ("crc32", "length", "position"), 16),
    ".oidx": _Layout(
        struct.Struct("<QQQ16sIIQQIBxhqqiI"),
        (
            "first_id",
            "first_offset",
            "org",
            "topic_hash",
            "partition",
            "ids",
            "segment",
            "position",
            "size",
            "kind",
            "producer_epoch",
            "producer_id",
            "max_timestamp",
            "base_sequence",
            "crc32c",
        ),
    ),
}
_DERIVED = (".idx", ".timeidx", ".oidx")
#: A table is laid out for so many frames at a time.
_TABLE_ROWS = 1000
_HEADINGS = (
    "position",
    "size",
    "base offset",
    "last offset",
    "records",
    "compression",
    "max timestamp",
    "epoch",
    "producer",
)
_ENVELOPE_HEADINGS = (
    "position",
    "size",
    "kind",
    "owner",
    "org",
    "first id",
    "last id",
    "first offset",
    "max timestamp",
    "epoch",
)
#: What an envelope is there for, by its kind.
_KINDS = ("records", "log start", "ended")
_SHARED = "shared"
_RECORD_HEADINGS = ("position", "size", "offset", "timestamp", "key bytes", "value bytes", "compression")


@click.group()
def segment() -> None:
    """Look into a segment file.

    Example: cordwood segment dump data/topics/orders/0/segments/00000000000000000000.log
    """


@segment.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@click.option(
    "--format",
    "format_name",
    type=click.Choice(tuple(EVERY_FORMAT)),
    help="What the file holds, where no partition.json beside it says so. Default: batch.",
)
@click.option("--records", is_flag=True, help="Also the records of each frame, as JSON.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print a JSON object for each frame, or each entry of an index."
)
def dump(file: str, format_name: str | None, records: bool, as_json: bool) -> None:
    """Print the frames of a .log file, or the entries of an index or a file of checksums, and check each.

    Any file of Kafka's record batches will do, and of another record format with --format; also what is in
    quarantine/. Bytes past the mark of the partition are not judged.

    Exit status: 4 if a frame is not what was written.

    Example: cordwood segment dump --records 00000000000000000000.log
    """
    for suffix, layout in _INDEXES.items():
        if file.endswith(suffix):
            _dump_index(file, layout, as_json)
            return
    name = format_name or _format_of(file) or "batch"
    headings = {"batch": _HEADINGS, _SHARED: _ENVELOPE_HEADINGS}.get(name, _RECORD_HEADINGS)
    rows: list[tuple[object, ...]] = []
    try:
        for frame, decoded in _frames(file, name, records):
            if as_json:
                print_json({**_fields(frame), **({"content": decoded} if records else {})})
                continue
            rows.append(_row(frame))
            if len(rows) == _TABLE_ROWS or records:
                print_table(headings, rows)
                rows = []
            for record in decoded:
                print_json(record)
    finally:
        # The sound ones first, and then what is wrong.
        if rows:
            print_table(headings, rows)


def _format_of(file: str) -> str | None:
    """Return the format that the partition of *file* has, None if it is in none."""
    try:
        return read_state(PosixFiles(), parent(parent(file))).record_format
    except (StorageError, OSError):
        return None


def _frames(file: str, name: str, with_records: bool) -> Iterator[tuple[_AnyFrame, list[dict[str, object]]]]:
    """Yield the frames of a file, and their records if they are wanted.

    Raises:
        FrameError: Where one is not what was written, unless it lies past the mark.
        CordwoodError: If they cannot be found without another file, which is not there.
    """
    opened = PosixFiles().open(file, "read")
    with contextlib.closing(opened), contextlib.closing(_reader(opened, name)) as reader:
        position, stop, number = 0, opened.size(), 0
        windows = Windows(opened, stop, Tally(), hashed=False)
        while position < stop:
            try:
                frame = reader.at(windows, position, stop)
                reader.check(windows, frame)
                reader.check_follows(frame)
                reader.count(windows, frame)
            except FrameError as error:
                _judge(file, error, position, number)
                return
            yield frame, _decoded(windows, frame, name) if with_records else []
            position, number = frame.end, number + 1


class _AnyEpoch(BatchFrames):
    """Reads batches of which nobody knows the leader epochs."""

    def check_follows(self, frame: Frame) -> None:
        """Do nothing."""


class _AnyEnvelopeEpoch(EnvelopeFrames):
    """Reads envelopes of which nobody knows the leader epochs."""

    def check_follows(self, frame: EnvelopeFrame) -> None:
        """Do nothing."""


def _reader(file: File, name: str) -> FrameReader[Any]:
    """Return what reads the frames of a file, with what stands beside it where that is needed.

    Raises:
        FrameError: If what stands beside it is another's.
        CordwoodError: If it is needed and not there.
    """
    if name == "batch":
        return _AnyEpoch(())
    if name == _SHARED:
        return _AnyEnvelopeEpoch(())
    if name == "frame":
        return FramedRecords()
    if name == "kimberlite":
        return KimberliteRecords()
    files, dense_index = PosixFiles(), name == "laminarmq"
    stem, _, changing = file.path.rpartition(".log") if ".log" in file.path else file.path.rpartition(".")
    path = f"{stem}.{'index' if dense_index else 'sum'}{changing if changing in ('.cut', '.swap') else ''}"
    if not files.exists(path):
        if not dense_index:
            return BareRustlogRecords()
        raise CordwoodError(
            f"{file.path}: only {path} says where its records begin and end; put it beside it"
        )
    base = _base_in(path) if dense_index else _base_of(file)
    entries = open_entries(files, path, base, dense_index=dense_index, gaps=True, sealed=False)
    return LaminarmqRecords(entries) if dense_index else RustlogRecords(entries)


def _base_in(path: str) -> int:
    """Return the first offset as laminarmq's index says it."""
    with contextlib.closing(PosixFiles().open(path, "read")) as index:
        return int.from_bytes(index.read_at(0, 8), "little")


def _base_of(file: File) -> int:
    """Return the first offset of a RustLog file: that of its name, else that of its first record."""
    name = re.search(r"(?:^|/)(\d{20})\.[^/]*$", file.path)
    return int(name[1]) if name else int.from_bytes(file.read_at(4, 8), "big")


def _decoded(windows: Windows, frame: _AnyFrame, name: str) -> list[dict[str, object]]:
    if isinstance(frame, EnvelopeFrame):
        # With the offsets of their topic, as a batch has them.
        return [] if frame.batch is None else _decoded(windows, frame.batch, "batch")
    index = windows.load(frame.position, frame.size)
    data = windows.data[index : index + frame.size]
    format_ = EVERY_FORMAT[name]
    if isinstance(frame, RecordFrame):
        assert isinstance(format_, RecordPerFrame)
        content = format_.decode_frame(data, 0, frame.size)
        records = [Record(frame.base_offset, frame.timestamp, *content)]
    else:
        records = BatchFormat().decode(data, 0)
    return [{"offset": record.offset, "ts": record.timestamp, **record_fields(record)} for record in records]


def _judge(file: str, error: FrameError, position: int, frames: int) -> None:
    """Say what lies after the last sound frame: corruption raises, what was never acknowledged does not."""
    synced = _synced(file)
    if synced is None or position < synced:
        raise error if error.path else error.at(file, 0)
    if error.found != "zeros":
        click.echo(
            f"{file} at byte {position}: past the mark, and torn or just being written; "
            f"the next open keeps the {frames} frames before it",
            err=True,
        )


def _synced(file: str) -> int | None:
    """Return how much of *file* its partition's mark proves synced; None if all of it must be sound."""
    if file.endswith(".torn"):
        return 0
    files, directory = PosixFiles(), parent(parent(file))
    try:
        state = read_state(files, directory)
        bound = synced_bound(state, newest_mark(state, read_marks(files, mark_path(directory)), directory))
    except (StorageError, OSError):
        return None
    return bound.position if file.endswith(segment_path("", bound.base, "log").lstrip("/")) else None


def _fields(frame: _AnyFrame) -> dict[str, object]:
    if isinstance(frame, RecordFrame):
        return _record_fields(frame)
    if isinstance(frame, EnvelopeFrame):
        return _envelope_fields(frame)
    return {
        "position": frame.position,
        "size": frame.size,
        "base_offset": frame.base_offset,
        "last_offset": frame.next_offset - 1,
        "records": frame.record_count,
        "compression": _compression(frame),
        "base_timestamp": frame.base_timestamp,
        "max_timestamp": frame.max_timestamp,
        "leader_epoch": frame.leader_epoch,
        "producer_id": frame.producer_id,
        "producer_epoch": frame.producer_epoch,
        "base_sequence": frame.base_sequence,
        "crc32c": f"{frame.crc:08x}",
        "attributes": frame.attributes,
    }


def _record_fields(frame: RecordFrame) -> dict[str, object]:
    fields = {
        "position": frame.position,
        "size": frame.size,
        "offset": frame.base_offset,
        "timestamp": frame.timestamp,
        "key_bytes": _size(frame.key_bytes),
        "value_bytes": _size(frame.value_bytes),
        "compression": _compression(frame),
        "checksum": None if frame.checksum == NULL else f"{frame.checksum:08x}",
    }
    return {**fields, **({"previous_hash": frame.before.hex()} if frame.before else {})}


def _envelope_fields(frame: EnvelopeFrame) -> dict[str, object]:
    return {
        "position": frame.position,
        "size": frame.size,
        "kind": _KINDS[frame.kind],
        "owner": str(frame.place),
        "org": frame.place.org,
        "topic_hash": frame.place.topic_hash.hex(),
        "partition": frame.place.partition,
        "first_id": frame.base_offset,
        "last_id": frame.next_offset - 1,
        "first_offset": frame.first_offset,
        "max_timestamp": frame.max_timestamp,
        "leader_epoch": frame.leader_epoch,
        "crc32c": f"{frame.crc:08x}",
        "batch": None if frame.batch is None else _fields(frame.batch),
    }


def _size(size: int) -> int | None:
    return None if size == NULL else size


def _row(frame: _AnyFrame) -> tuple[object, ...]:
    if isinstance(frame, RecordFrame):
        sizes = _size(frame.key_bytes), _size(frame.value_bytes)
        timestamp = str(frame.timestamp)
        return frame.position, frame.size, frame.base_offset, timestamp, *sizes, _compression(frame)
    if isinstance(frame, EnvelopeFrame):
        # Numbers that name something, as they stand.
        return (
            frame.position,
            frame.size,
            _KINDS[frame.kind],
            frame.place,
            str(frame.place.org),
            frame.base_offset,
            frame.next_offset - 1,
            frame.first_offset,
            str(frame.max_timestamp),
            frame.leader_epoch,
        )
    made_by = f"{frame.producer_id}/{frame.producer_epoch}" if frame.producer_id >= 0 else None
    return (
        frame.position,
        frame.size,
        frame.base_offset,
        frame.next_offset - 1,
        frame.record_count,
        _compression(frame),
        # As it stands: a timestamp with commas is none.
        str(frame.max_timestamp),
        frame.leader_epoch,
        made_by,
    )


def _compression(frame: Frame | RecordFrame) -> str:
    if isinstance(frame, RecordFrame):
        return "zstd" if frame.compressed else "none"
    return Compression(frame.attributes & 0x07).name.lower()


def _dump_index(file: str, layout: _Layout, as_json: bool) -> None:
    entry, fields, start = layout
    opened = PosixFiles().open(file, "read")
    with contextlib.closing(opened):
        data = opened.read_at(start, max(opened.size() - start, 0))
    whole = len(data) // entry.size * entry.size
    rows = [
        [value.hex() if isinstance(value, bytes) else value for value in row]
        for row in entry.iter_unpack(data[:whole])
    ]
    if as_json:
        for row in rows:
            print_json(dict(zip(fields, row, strict=True)))
    else:
        print_table(fields, [[str(value) for value in row] for row in rows])
    if whole < len(data):
        then = (
            "it is rebuilt" if file.endswith(_DERIVED) else "it is cut if its record was never acknowledged"
        )
        raise CordwoodError(
            f"{file} at byte {start + whole}: an entry is cut off; {then} when the log is opened"
        )
