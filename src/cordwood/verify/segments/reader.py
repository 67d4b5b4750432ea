"""The interface of frame readers, which the walk over a segment uses for each record format.

There is a reader for each format, written against its page in docs/formats, independent of the code that
writes it. A reader processes the frames of one segment in order, once, and stores the state that the next
frame needs. Positions in its errors count from the start of the log, or of the file that the error names.
"""

from __future__ import annotations

from typing import Protocol, TypeVar

from cordwood.errors import FrameError
from cordwood.verify.frame import FileWindows


class AnyFrame(Protocol):
    """A frame of any format: its position, its offsets, and its largest timestamp.

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
    """Reads the frames of one segment. Must be closed."""

    @property
    def dense(self) -> bool:
        """Whether each frame has the next offset, where compaction has left no gaps."""

    @property
    def indexed(self) -> bool:
        """Whether the log has an ``.idx``."""

    def close(self) -> None:
        """Close the sidecar."""

    def at(self, windows: FileWindows, position: int, stop: int) -> FrameKind:
        """Read enough of the frame at *position* to know its end.

        Raises:
            FrameError: If no frame starts here that also ends by *stop*.
        """

    def check(self, windows: FileWindows, frame: FrameKind) -> None:
        """Check that the bytes of the frame are as written.

        Raises:
            FrameError: If they are not.
        """

    def check_follows(self, frame: FrameKind) -> None:
        """Compare a sound frame with its partition and with the previous frame.

        Raises:
            FrameError: At the first wrong field.
        """

    def count(self, windows: FileWindows, frame: FrameKind) -> int:
        """Decode a sound frame, compare its content with its header, and return the number of records.

        Raises:
            FrameError: At the first thing that is wrong.
        """

    def check_end(self, next_offset: int) -> int:
        """Check the rest of the segment after all frames before *next_offset* were read.

        Return the number of checked bytes in the sidecar.

        Raises:
            FrameError: At the first byte that does not match.
        """

    def torn(self) -> FrameError | None:
        """Return the extra bytes in the sidecar after the last frame, None without any."""
