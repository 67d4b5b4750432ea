"""Walking the segments of a partition whose records say where they end and which offset they have."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, TypeVar

from cordwood.errors import FrameError, InvalidBatch, TruncatedFrame
from cordwood.formats.zeros import only_zeros
from cordwood.interchange.directories import content
from cordwood.interchange.losses import Losses
from cordwood.kernels import Buffer
from cordwood.storage.files import Files


class Numbered(Protocol):
    """A record that was found in a buffer."""

    @property
    def offset(self) -> int:
        """Its offset."""

    @property
    def end(self) -> int:
        """The position after it."""


Found = TypeVar("Found", bound=Numbered)


def walk(
    files: Files,
    segments: Iterable[tuple[int, str]],
    parse: Callable[[Buffer, int], Found],
    offset_at: int,
    what: str,
    losses: Losses,
) -> Iterator[tuple[Found, Buffer]]:
    """Yield each record of *segments*, (base offset, path) in order, and the buffer that it lies in.

    *offset_at* is where in a record its offset stands. Zeros end a segment; a last record that is not whole
    ends the last one, and its bytes are a loss, *what* of them.

    Raises:
        FrameError: Where a record is not as it should be, or its offset does not rise; names the place.
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
