"""Frames: splits received bytes into requests, each of which has a length prefix of four bytes.

Memory for a frame is not allocated on the claim of its length alone: a buffer starts small and doubles as it
fills, unless the same peer has sent a frame of that size before.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, Protocol

from cordwood.errors import MalformedMessage

#: Frames up to this size are copied from the shared buffer; larger ones are received in their own buffer.
SMALL = 64 << 10
#: Frames above this size are received in buffers that grow without a copy, if available.
LARGE = 4 << 20
_PREFIX = 4


class Growing(Protocol):
    """A writable buffer of zeros that takes memory as it is filled and grows without a copy."""

    def __len__(self) -> int: ...

    def resize(self, size: int) -> None:
        """Change the length to *size* bytes.

        Raises:
            Exception: If that fails for any reason. The buffer is unchanged.
        """


class Inbox:
    """The receiving half of one connection: `space` returns a buffer for bytes, `take` returns frames.

    Any number of inboxes use the buffer *shared* in turn: its content is invalid after `take`, so `take` must
    be called before `space` of another inbox. *make_large* creates the buffers of large frames, or returns
    None.
    """

    def __init__(
        self,
        shared: bytearray,
        size_max: int,
        make_large: Callable[[int], Growing | None] = lambda size: None,
    ) -> None:
        assert len(shared) >= 2 * SMALL
        self._shared = shared
        #: The size of the largest frame.
        self.size_max = size_max
        self._make_large = make_large
        self._rest = b""
        #: A bytearray, or a growing buffer.
        self._frame: Any = None
        self._size = 0
        self._filled = 0
        self._trusted = SMALL

    @property
    def pending(self) -> int:
        """The received bytes of an incomplete frame."""
        return len(self._rest) if self._frame is None else _PREFIX + self._filled

    @property
    def held(self) -> int:
        """The memory of an incomplete frame, in bytes."""
        if self._frame is None:
            return len(self._rest)
        return len(self._frame) if isinstance(self._frame, bytearray) else self._filled

    @property
    def is_large(self) -> bool:
        """Whether the incomplete frame is a large one."""
        return self._frame is not None and self._size > LARGE

    @property
    def missing(self) -> int:
        """The bytes that complete the incomplete frame, or its length prefix; 0 if there is none."""
        if self._frame is not None:
            return self._size - self._filled
        rest = self._rest
        if len(rest) < _PREFIX:
            return _PREFIX - len(rest) if rest else 0
        return _PREFIX + int.from_bytes(rest[:_PREFIX], "big", signed=True) - len(rest)

    def space(self, most: int | None = None) -> memoryview:
        """Return the buffer for the next bytes; never empty.

        The buffer of an incomplete frame grows if it is full: to twice its size, or by *most* bytes.
        """
        frame = self._frame
        if frame is not None:
            if self._filled == len(frame):
                wanted = 2 * len(frame) if most is None else len(frame) + most
                frame = self._frame = self._grown(min(self._size, wanted), frame)
            return memoryview(frame)[self._filled :][:most]
        rest = len(self._rest)
        self._shared[:rest] = self._rest
        return memoryview(self._shared)[rest:]

    def take(self, count: int) -> list[bytearray | memoryview]:
        """Process *count* bytes at the start of the last `space`; return the frames that they complete.

        Frames are without their length, each in its own buffer.

        Raises:
            MalformedMessage: If a length is negative or above the limit; the connection must be closed.
        """
        frame = self._frame
        if frame is not None:
            self._filled += count
            if self._filled < self._size:
                return []
            self._frame, self._trusted = None, max(self._trusted, self._size)
            return [frame if isinstance(frame, bytearray) else memoryview(frame)]
        frames: list[bytearray | memoryview] = []
        view, end, position = memoryview(self._shared), len(self._rest) + count, 0
        while end - position >= _PREFIX:
            start = position + _PREFIX
            size = int.from_bytes(view[position:start], "big", signed=True)
            if not 0 <= size <= self.size_max:
                raise MalformedMessage(position=0, what=f"a length from 0 to {self.size_max}", found=size)
            if size <= end - start:
                frames.append(bytearray(view[start : start + size]))
                position = start + size
                continue
            if size > SMALL:
                self._begin(size, view[start:end])
                position = end
            break
        self._rest = bytes(view[position:end])
        return frames

    def clear(self) -> None:
        """Drop an incomplete frame and its memory."""
        self._rest, self._frame = b"", None

    def _begin(self, size: int, received: memoryview) -> None:
        """Continue to receive a large frame in its own buffer."""
        self._size, self._filled = size, len(received)
        length = min(size, max(self._trusted, len(received)))
        self._frame = (self._make_large(length) if size > LARGE else None) or bytearray(length)
        memoryview(self._frame)[: len(received)] = received

    def _grown(self, size: int, content: Any) -> Any:
        if not isinstance(content, bytearray):
            # If the system cannot resize it, the content is copied, as in other buffers.
            with contextlib.suppress(Exception):
                content.resize(size)
                return content
        grown = bytearray(size)
        grown[: len(content)] = memoryview(content)
        return grown
