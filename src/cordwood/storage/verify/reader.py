"""How the frames of a log are found and checked: what the walk over a segment needs of each record format.

There is a reader for each, written against its page in docs/formats, apart from the code that writes it. A
reader meets the frames of one segment in their order, once, and remembers what the next one needs of those
before it. Positions in what it raises count from the start of the log, or of the file that the error names.
"""

from __future__ import annotations

from typing import Protocol, TypeVar

from cordwood.errors import FrameError
from cordwood.storage.verify.frame import Windows


class AnyFrame(Protocol):
    """A frame of any format: where it stands in its file, which offsets it takes, and its largest timestamp.

    ``end`` is the position after it, ``next_offset`` the offset after its last one, ``max_timestamp`` is in
    milliseconds.
    """

    @property
    def position(self) -> int: ...  # noqa: D102 - said above, as are the others
    @property
    def size(self) -> int: ...  # noqa: D102
    @property
    def end(self) -> int: ...  # noqa: D102
    @property
    def base_offset(self) -> int: ...  # noqa: D102
    @property
    def next_offset(self) -> int: ...  # noqa: D102
    @property
    def record_count(self) -> int: ...  # noqa: D102
    @property
    def max_timestamp(self) -> int: ...  # noqa: D102


FrameKind = TypeVar("FrameKind", bound=AnyFrame)


class FrameReader(Protocol[FrameKind]):
    """Reads the frames of one segment. To be closed."""

    @property
    def dense(self) -> bool:
        """Whether each frame has the next offset, where compaction has left no gaps."""

    @property
    def indexed(self) -> bool:
        """Whether the log has an ``.idx``."""

    def close(self) -> None:
        """Let go of what is open beside the log."""

    def at(self, windows: Windows, position: int, stop: int) -> FrameKind:
        """Read of the frame at *position* what tells where it ends.

        Raises:
            FrameError: If no frame starts here that also ends by *stop*.
        """

    def check(self, windows: Windows, frame: FrameKind) -> None:
        """Check that the bytes of the frame are those that were written.

        Raises:
            FrameError: If they are not.
        """

    def check_follows(self, frame: FrameKind) -> None:
        """Check what a frame that is sound by itself says of the partition and of the frame before it.

        Raises:
            FrameError: At the field that does not fit.
        """

    def count(self, windows: Windows, frame: FrameKind) -> int:
        """Open a sound frame, hold what is in it against its header, and return how many records it has.

        Raises:
            FrameError: At the first thing that is wrong.
        """

    def check_end(self, next_offset: int) -> int:
        """Check what else there is of the segment, now that all frames before *next_offset* have passed.

        Return how many bytes beside the log were checked.

        Raises:
            FrameError: At what does not agree with them.
        """

    def torn(self) -> FrameError | None:
        """Return what lies beside the log past the last frame that passed, None if nothing does."""
