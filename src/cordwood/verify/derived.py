"""Compare a derived file with its expected content while that is computed."""

from __future__ import annotations

from cordwood.disk import ReadableFile, ReadableFiles

_WINDOW_BYTES = 1 << 20


class DerivedFile:
    """Takes the expected content of *path* in pieces of *width* bytes; stores the first difference.

    Memory is bounded by a window. ``difference`` is a position, what is expected there and what is found;
    ``failure`` is why the file, or part of it, could not be read.
    """

    def __init__(self, files: ReadableFiles, path: str, width: int) -> None:
        self.path = path
        self.difference: tuple[int, bytes, bytes] | None = None
        self.failure: OSError | None = None
        #: The number of compared bytes, without those that wait for comparison.
        self.position = 0
        self._width = width
        self._pending = bytearray()
        self._file: ReadableFile | None = None
        try:
            self._file = files.open(path, "read")
        except OSError as error:
            self.failure = error

    def close(self) -> None:
        """Close the file, if it could be opened."""
        if self._file is not None:
            self._file.close()

    def size(self) -> int:
        """Return the size of the file.

        Raises:
            OSError: If it could not be read.
        """
        if self.failure is not None:
            raise self.failure
        assert self._file is not None
        return self._file.size()

    def expect(self, data: bytes) -> None:
        """Expect *data*, whole pieces of it, next."""
        self._pending += data
        if len(self._pending) >= _WINDOW_BYTES:
            self.compare()

    def compare(self) -> None:
        """Compare the pending bytes."""
        expected, self._pending = bytes(self._pending), bytearray()
        start, self.position = self.position, self.position + len(expected)
        self._passing(start, expected)
        if self._file is None or self.failure is not None or self.difference is not None:
            return
        try:
            found = self._file.read_at(start, len(expected))
        except OSError as error:
            self.failure = error
            return
        if found != expected:
            for at in range(0, len(expected), self._width):
                pair = expected[at : at + self._width], found[at : at + self._width]
                if pair[0] != pair[1]:
                    self.difference = (start + at, *pair)
                    return

    def _passing(self, start: int, expected: bytes) -> None:
        """Receive the expected bytes from *start* on, whatever the file has."""
