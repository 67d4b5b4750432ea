"""Frames: every request comes behind four bytes that say its length. Bytes in, whole requests out.

What a length claims is never allocated before about as many bytes have come: a buffer starts small and
doubles as it fills, unless the same peer has sent a frame that large before.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, Protocol

from cordwood.errors import MalformedMessage

#: Frames up to this size are cut out of the shared buffer; larger ones are received where they stay.
SMALL = 64 << 10
#: Frames above this size are received in buffers that grow without being copied, where there are such.
LARGE = 4 << 20
_PREFIX = 4


class Growing(Protocol):
    """A writable buffer, zeros at first, that takes memory as it is filled and grows without a copy."""

    def __len__(self) -> int: ...

    def resize(self, size: int) -> None:
        """Make it *size* bytes long.

        Raises:
            Exception: If that cannot be done, whatever the reason. It is as before.
        """


class Inbox:
    """The receiving half of one connection: `space` says where bytes go, `take` gives frames.

    *shared* is a buffer that any number of inboxes use in turn: what is left in it after `take` belongs
    to nobody, so bytes must be taken before another inbox is asked for space. *make_large* makes the buffers
    of large frames; None where there are none, or it cannot.
    """

    def __init__(
        self,
        shared: bytearray,
        size_max: int,
        make_large: Callable[[int], Growing | None] = lambda size: None,
    ) -> None:
        assert len(shared) >= 2 * SMALL
        self._shared = shared
        self._size_max = size_max
        self._make_large = make_large
        self._rest = b""
        #: A bytearray, or a growing buffer.
        self._frame: Any = None
        self._size = 0
        self._filled = 0
        self._trusted = SMALL

    @property
    def pending(self) -> int:
        """How many bytes of a frame that is not complete are here."""
        return len(self._rest) if self._frame is None else _PREFIX + self._filled

    @property
    def held(self) -> int:
        """How much memory a frame that is not complete takes."""
        if self._frame is None:
            return len(self._rest)
        return len(self._frame) if isinstance(self._frame, bytearray) else self._filled

    @property
    def is_large(self) -> bool:
        """Whether the frame that has begun is a large one."""
        return self._frame is not None and self._size > LARGE

    @property
    def missing(self) -> int:
        """How many bytes complete the frame, or at least its length, that has begun; 0 if none has."""
        if self._frame is not None:
            return self._size - self._filled
        rest = self._rest
        if len(rest) < _PREFIX:
            return _PREFIX - len(rest) if rest else 0
        return _PREFIX + int.from_bytes(rest[:_PREFIX], "big", signed=True) - len(rest)

    def space(self, most: int | None = None) -> memoryview:
        """Return where the next bytes are to be put; never empty.

        A frame that is full grows for it: to twice its size, or by *most* bytes where memory is short.
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
        """Take note of *count* bytes put at the start of the last `space`; return the frames they complete.

        Frames come without their length, each in a buffer of its own.

        Raises:
            MalformedMessage: If a length is negative or above the limit; nothing more can be read.
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
            if not 0 <= size <= self._size_max:
                raise MalformedMessage(position=0, what=f"a length from 0 to {self._size_max}", found=size)
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
        """Give up a frame that is not complete, and its memory."""
        self._rest, self._frame = b"", None

    def _begin(self, size: int, received: memoryview) -> None:
        """Go on receiving a large frame in a buffer of its own."""
        self._size, self._filled = size, len(received)
        length = min(size, max(self._trusted, len(received)))
        self._frame = (self._make_large(length) if size > LARGE else None) or bytearray(length)
        memoryview(self._frame)[: len(received)] = received

    def _grown(self, size: int, content: Any) -> Any:
        if not isinstance(content, bytearray):
            # Not on this system, or not now: then it is copied, as others are.
            with contextlib.suppress(Exception):
                content.resize(size)
                return content
        grown = bytearray(size)
        grown[: len(content)] = memoryview(content)
        return grown
