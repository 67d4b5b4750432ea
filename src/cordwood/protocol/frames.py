"""Frames: every request comes behind four bytes that say its length. Bytes in, whole requests out.

What a length claims is never allocated before about as many bytes have come: a buffer starts small and
doubles as it fills, unless the same peer has sent a frame that large before.
"""

from __future__ import annotations

from cordwood.errors import MalformedMessage

#: Frames up to this size are cut out of the shared buffer; larger ones are received where they stay.
SMALL = 64 << 10
_PREFIX = 4


class Inbox:
    """The receiving half of one connection: `space` says where bytes go, `take` gives frames.

    *shared* is a buffer that any number of inboxes use in turn: what is left in it after `take` belongs
    to nobody, so bytes must be taken before another inbox is asked for space.
    """

    def __init__(self, shared: bytearray, size_max: int) -> None:
        assert len(shared) >= 2 * SMALL
        self._shared = shared
        self._size_max = size_max
        self._rest = b""
        self._frame: bytearray | None = None
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
        return len(self._rest) if self._frame is None else len(self._frame)

    @property
    def missing(self) -> int:
        """How many bytes complete the frame, or at least its length, that has begun; 0 if none has."""
        if self._frame is not None:
            return self._size - self._filled
        rest = self._rest
        if len(rest) < _PREFIX:
            return _PREFIX - len(rest) if rest else 0
        return _PREFIX + int.from_bytes(rest[:_PREFIX], "big", signed=True) - len(rest)

    def space(self) -> memoryview:
        """Return where the next bytes are to be put; never empty."""
        frame = self._frame
        if frame is not None:
            if self._filled == len(frame):
                frame = self._frame = self._grown(min(self._size, 2 * len(frame)), frame)
            return memoryview(frame)[self._filled :]
        rest = len(self._rest)
        self._shared[:rest] = self._rest
        return memoryview(self._shared)[rest:]

    def take(self, count: int) -> list[bytearray]:
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
            return [frame]
        frames: list[bytearray] = []
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

    def _begin(self, size: int, received: memoryview) -> None:
        """Go on receiving a large frame in a buffer of its own."""
        self._size, self._filled = size, len(received)
        self._frame = self._grown(min(size, max(self._trusted, len(received))), received)

    def _grown(self, size: int, content: bytearray | memoryview) -> bytearray:
        grown = bytearray(size)
        grown[: len(content)] = content
        return grown
