"""``cordwood segment``: look into the files of a segment."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator

import click

from cordwood.cli.output import print_json, print_table
from cordwood.cli.rendering import record_fields
from cordwood.errors import CordwoodError, FrameError, StorageError
from cordwood.formats.compression import Compression
from cordwood.formats.native import BatchFormat
from cordwood.storage.files import parent
from cordwood.storage.mark import read_marks
from cordwood.storage.partition_state import mark_path, read_state
from cordwood.storage.posix_files import PosixFiles
from cordwood.storage.recovery import newest_mark, synced_bound
from cordwood.storage.segment import segment_path
from cordwood.storage.verify.frame import Frame, Windows, check_crc, check_header, check_records, frame_at
from cordwood.storage.verify.report import Tally

_INDEXES = {
    ".idx": (struct.Struct(">QQ"), "offset", "position"),
    ".timeidx": (struct.Struct(">qQ"), "timestamp", "offset"),
}
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


@click.group()
def segment() -> None:
    """Look into a segment file.

    Example: cordwood segment dump data/topics/orders/0/segments/00000000000000000000.log
    """


@segment.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@click.option("--records", is_flag=True, help="Also the records of each frame, as JSON.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print a JSON object for each frame, or each entry of an index."
)
def dump(file: str, records: bool, as_json: bool) -> None:
    """Print the frames of a .log file, or the entries of an .idx or .timeidx file, and check each.

    Any file of Kafka's record batches will do, also what is in quarantine/. Bytes past the
    mark of the partition are not judged.

    Exit status: 4 if a frame is not what was written.

    Example: cordwood segment dump --records 00000000000000000000.log
    """
    for suffix, (entry, *fields) in _INDEXES.items():
        if file.endswith(suffix):
            _dump_index(file, entry, fields, as_json)
            return
    rows: list[tuple[object, ...]] = []
    try:
        for frame, decoded in _frames(file, records):
            if as_json:
                print_json({**_fields(frame), **({"content": decoded} if records else {})})
                continue
            rows.append(_row(frame))
            if len(rows) == _TABLE_ROWS or records:
                print_table(_HEADINGS, rows)
                rows = []
            for record in decoded:
                print_json(record)
    finally:
        # The sound ones first, and then what is wrong.
        if rows:
            print_table(_HEADINGS, rows)


def _frames(file: str, with_records: bool) -> Iterator[tuple[Frame, list[dict[str, object]]]]:
    """Yield the frames of a file, and their records if they are wanted.

    Raises:
        FrameError: Where one is not what was written, unless it lies past the mark.
    """
    opened = PosixFiles().open(file, "read")
    with contextlib.closing(opened):
        position, stop, number = 0, opened.size(), 0
        windows = Windows(opened, stop, Tally(), hashed=False)
        while position < stop:
            try:
                frame = frame_at(windows, position, stop)
                check_crc(windows, frame)
                check_header(frame)
                check_records(windows, frame)
            except FrameError as error:
                _judge(file, error, position, number)
                return
            yield frame, _decoded(windows, frame) if with_records else []
            position, number = frame.end, number + 1


def _decoded(windows: Windows, frame: Frame) -> list[dict[str, object]]:
    index = windows.load(frame.position, frame.size)
    data = windows.data[index : index + frame.size]
    return [
        {"offset": record.offset, "ts": record.timestamp, **record_fields(record)}
        for record in BatchFormat().decode(data, 0)
    ]


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


def _fields(frame: Frame) -> dict[str, object]:
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


def _row(frame: Frame) -> tuple[object, ...]:
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


def _compression(frame: Frame) -> str:
    return Compression(frame.attributes & 0x07).name.lower()


def _dump_index(file: str, entry: struct.Struct, fields: list[str], as_json: bool) -> None:
    opened = PosixFiles().open(file, "read")
    with contextlib.closing(opened):
        data = opened.read_at(0, opened.size())
    whole = len(data) // entry.size * entry.size
    rows = [[str(value) for value in row] for row in entry.iter_unpack(data[:whole])]
    if as_json:
        for row in rows:
            print_json(dict(zip(fields, map(int, row), strict=True)))
    else:
        print_table(fields, rows)
    if whole < len(data):
        raise CordwoodError(
            f"{file} at byte {whole}: an entry is cut off; it is rebuilt when the log is opened"
        )
