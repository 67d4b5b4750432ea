"""Read the segments of a partition whose records contain their length and offset."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, TypeVar

from cordwood.disk import Files
from cordwood.errors import FrameError, InvalidBatch, TruncatedFrame
from cordwood.formats import only_zeros
from cordwood.interchange.directories import content
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


def walk(
    files: Files,
    segments: Iterable[tuple[int, str]],
    parse: Callable[[Buffer, int], FoundItem],
    offset_at: int,
    what: str,
    losses: Losses,
) -> Iterator[tuple[FoundItem, Buffer]]:
    """Yield each record of *segments*, (base offset, path) in order, and its buffer.

    *offset_at* is the position of the offset in a record. Zeros end a segment; an incomplete last record ends
    the last segment, and its bytes are counted as a loss named *what*.

    Raises:
        FrameError: If a record is damaged or its offset does not ascend; names the place.
    """
    paths, next_offset = list(segments), 0
    for number, (base, path) in enumerate(paths):
        data, at = content(files, path), 0
        while at < len(data):
            try:
                record = parse(data, at)
                lowest = max(next_offset, base)
                if record.offset < lowest:
                    expected = f"{lowest} or more"
                    raise InvalidBatch(
                        position=at + offset_at, expected=expected, found=record.offset, what="offset"
                    )
            except FrameError as error:
                if only_zeros(data, at):
                    break
                if isinstance(error, TruncatedFrame) and number == len(paths) - 1:
                    losses.add(f"bytes of a last {what} that is not whole", len(data) - at)
                    break
                raise error.at(path, 0) from None
            yield record, data
            next_offset, at = record.offset + 1, record.end
