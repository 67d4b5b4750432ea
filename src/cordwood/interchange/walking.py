"""Read the segments of a partition whose records contain their length and offset."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Generic, NamedTuple, Protocol, TypeVar

from cordwood.disk import Files
from cordwood.errors import FrameError, InvalidBatch, TruncatedFrame
from cordwood.formats import only_zeros
from cordwood.interchange.directories import content
from cordwood.interchange.kept import NewSegment, StoredFrame, StoredItem
from cordwood.interchange.losses import Losses
from cordwood.kernels import Buffer


class Numbered(Protocol):
    """A record found in a buffer."""

    @property
    def offset(self) -> int:
        """Its offset."""

    @property
    def end(self) -> int:
        """The position after it."""


FoundItem = TypeVar("FoundItem", bound=Numbered)


class RecordLayout(NamedTuple, Generic[FoundItem]):
    """The records of a system: how one is parsed, where its offset is in it, and its name in reports."""

    parse: Callable[[Buffer, int], FoundItem]
    offset_at: int
    what: str


def walk(
    files: Files, segments: Iterable[tuple[int, str]], layout: RecordLayout[FoundItem], losses: Losses
) -> Iterator[tuple[FoundItem, Buffer]]:
    """Yield each record of *segments*, (base offset, path) in order, and its buffer.

    Zeros end a segment; an incomplete last record ends the last segment, and its bytes are counted as a loss.

    Raises:
        FrameError: If a record is damaged or its offset does not ascend; names the place.
    """
    paths, next_offset = list(segments), 0
    for number, (base, path) in enumerate(paths):
        is_last = number == len(paths) - 1
        for record, data in _walk_one(files, path, max(next_offset, base), layout, losses, is_last=is_last):
            yield record, data
            next_offset = record.offset + 1


def walk_frames(
    files: Files,
    segments: Iterable[tuple[int, str]],
    layout: RecordLayout[FoundItem],
    losses: Losses,
    timestamp_of: Callable[[FoundItem], int],
) -> Iterator[StoredItem]:
    """Yield each segment, also an empty one, and its records byte for byte; see `walk`.

    Raises as `walk` does, and if a segment does not begin where the one before ends.
    """
    paths = list(segments)
    for number, (base, path) in enumerate(paths):
        yield NewSegment(base)
        is_last, at = number == len(paths) - 1, 0
        for record, data in _walk_one(files, path, base, layout, losses, is_last=is_last):
            frame = bytes(memoryview(data)[at : record.end])
            yield StoredFrame(record.offset, timestamp_of(record), frame)
            at = record.end


def _walk_one(
    files: Files, path: str, lowest: int, layout: RecordLayout[FoundItem], losses: Losses, *, is_last: bool
) -> Iterator[tuple[FoundItem, Buffer]]:
    """Yield the records of one segment, whose offsets ascend from *lowest* on."""
    data, at = content(files, path), 0
    while at < len(data):
        try:
            record = layout.parse(data, at)
            if record.offset < lowest:
                expected = f"{lowest} or more"
                raise InvalidBatch(
                    position=at + layout.offset_at, expected=expected, found=record.offset, what="offset"
                )
        except FrameError as error:
            if only_zeros(data, at):
                break
            if isinstance(error, TruncatedFrame) and is_last:
                losses.add(f"bytes of a last {layout.what} that is not whole", len(data) - at)
                break
            raise error.at(path, 0) from None
        yield record, data
        lowest, at = record.offset + 1, record.end
