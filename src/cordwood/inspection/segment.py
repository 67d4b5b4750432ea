"""The frames of a segment file, decoded and checked one by one."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from cordwood.disk import File, PosixFiles, parent, read_marks
from cordwood.errors import CordwoodError, FrameError, OnlyZeros, StorageError
from cordwood.formats import EVERY_FORMAT, BatchFormat, Compression
from cordwood.formats.per_record import RecordPerFrame
from cordwood.records import Record
from cordwood.storage.log import mark_path, newest_mark, read_state, segment_path, synced_bound
from cordwood.verify import BatchFrames, FileWindows, PlacedHeader, Tally
from cordwood.verify.segments import (
    CONTROL,
    NULL,
    BareRustlogRecords,
    EnvelopeFrame,
    EnvelopeFrames,
    FramedRecords,
    FrameReader,
    KimberliteRecords,
    LaminarmqRecords,
    RecordFrame,
    RustlogRecords,
    marker_type,
    open_entries,
)

_AnyFrame: TypeAlias = PlacedHeader | RecordFrame | EnvelopeFrame


#: The kinds of envelopes, by number.
_KINDS = ("records", "log start", "ended")
_SHARED = "shared"
#: The ends of transactions, by the type of a control batch; other control batches have no name.
_MARKERS: dict[int | None, str] = {0: "abort", 1: "commit"}


@dataclass(frozen=True, slots=True)
class InspectedFrame:
    """One sound frame: its kind, its fields by name, and its records if they were wanted.

    The fields of each kind are those that ``cordwood segment dump --json`` prints.
    """

    kind: Literal["batch", "record", "envelope"]
    fields: dict[str, object]
    records: tuple[Record, ...]


class SegmentFrames:
    """An iterator over the frames of a file. After the last one, ``tail`` says what follows it, if anything.

    Iterating raises FrameError where a frame is not what was written. Bytes past the mark of the partition
    were never acknowledged: they are described by ``tail``, and raise nothing.
    """

    def __init__(self, frames: Iterator[InspectedFrame | str]) -> None:
        self._frames = frames
        self.tail: str | None = None

    def __iter__(self) -> SegmentFrames:
        return self

    def __next__(self) -> InspectedFrame:
        found = next(self._frames)
        if isinstance(found, str):
            self.tail = found
            raise StopIteration
        return found


def inspect_segment(
    file: str | os.PathLike[str], *, record_format: str | None = None, records: bool = False
) -> SegmentFrames:
    """Return the frames of *file*, decoded and checked: of a segment, or of any file in a record format.

    *record_format* is needed where no ``partition.json`` beside the file says it; ``batch`` if nothing does.
    With *records* each frame comes with its records. The file is open until the last frame.

    Raises:
        OSError: While iterating, if the file cannot be read.
        FrameError: While iterating, where a frame is not what was written, unless it lies past the mark.
        CordwoodError: While iterating, if frames can be found by another file only, and that is missing.
    """
    path = os.fspath(file)
    return SegmentFrames(_frames(path, record_format or format_of(path) or "batch", records))


def format_of(file: str) -> str | None:
    """Return the record format of the partition that *file* is in, None if it is in none."""
    try:
        return read_state(PosixFiles(), parent(parent(file))).record_format
    except (StorageError, OSError):
        return None


def _frames(file: str, name: str, with_records: bool) -> Iterator[InspectedFrame | str]:
    """Yield the frames of a file, and at the end a sentence about what follows the last one, if anything."""
    opened = PosixFiles().open(file, "read")
    with contextlib.closing(opened), contextlib.closing(_reader(opened, name)) as reader:
        position, stop, number = 0, opened.size(), 0
        windows = FileWindows(opened, stop, Tally(), hashed=False)
        while position < stop:
            try:
                frame = reader.at(windows, position, stop)
                reader.check(windows, frame)
                reader.check_follows(frame)
                reader.count(windows, frame)
            except FrameError as error:
                yield from _judge(file, error, position, number)
                return
            inspected = _inspected(frame, _decoded(windows, frame, name) if with_records else ())
            if isinstance(frame, PlacedHeader) and frame.attributes & CONTROL:
                inspected.fields["marker"] = _MARKERS.get(marker_type(windows, frame))
            yield inspected
            position, number = frame.end, number + 1


class _AnyEpoch(BatchFrames):
    """Reads batches whose leader epochs are unknown."""

    def check_follows(self, frame: PlacedHeader) -> None:
        """Do nothing."""


class _AnyEnvelopeEpoch(EnvelopeFrames):
    """Reads envelopes whose leader epochs are unknown."""

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


def _decoded(windows: FileWindows, frame: _AnyFrame, name: str) -> tuple[Record, ...]:
    if isinstance(frame, EnvelopeFrame):
        # The batch in it has the offsets of its topic.
        return () if frame.batch is None else _decoded(windows, frame.batch, "batch")
    index = windows.load(frame.position, frame.size)
    data = windows.data[index : index + frame.size]
    format_ = EVERY_FORMAT[name]
    if isinstance(frame, RecordFrame):
        assert isinstance(format_, RecordPerFrame)
        content = format_.decode_frame(data, 0, frame.size)
        return (Record(frame.base_offset, frame.timestamp, *content),)
    return tuple(BatchFormat().decode(data, 0))


def _judge(file: str, error: FrameError, position: int, frames: int) -> Iterator[str]:
    """Raise if bytes after the last sound frame are corrupt; describe bytes that were never acknowledged."""
    synced = _synced(file)
    if synced is None or position < synced:
        raise error if error.path else error.at(file, 0)
    if not isinstance(error, OnlyZeros):
        yield (
            f"{file} at byte {position}: past the mark, and torn or just being written; "
            f"the next open keeps the {frames} frames before it"
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


def _inspected(frame: _AnyFrame, records: tuple[Record, ...]) -> InspectedFrame:
    if isinstance(frame, RecordFrame):
        return InspectedFrame("record", _record_fields(frame), records)
    if isinstance(frame, EnvelopeFrame):
        return InspectedFrame("envelope", _envelope_fields(frame), records)
    return InspectedFrame("batch", _batch_fields(frame), records)


def _batch_fields(frame: PlacedHeader) -> dict[str, object]:
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
    fields: dict[str, object] = {
        "position": frame.position,
        "size": frame.size,
        "offset": frame.base_offset,
        "timestamp": frame.timestamp,
        "key_bytes": _size(frame.key_bytes),
        "value_bytes": _size(frame.value_bytes),
        "compression": _compression(frame),
        "checksum": None if frame.checksum == NULL else f"{frame.checksum:08x}",
    }
    if frame.labels is not None:
        fields |= dict(zip(("tenant", "stream", "event_type"), frame.labels, strict=True))
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
        "batch": None if frame.batch is None else _batch_fields(frame.batch),
    }


def _size(size: int) -> int | None:
    return None if size == NULL else size


def _compression(frame: PlacedHeader | RecordFrame) -> str:
    if isinstance(frame, RecordFrame):
        return "zstd" if frame.compressed else "none"
    return Compression(frame.attributes & 0x07).name.lower()
