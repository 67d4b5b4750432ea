"""A record whose value is not in memory: the bytes before and after it, and the checksum of the frame."""

from __future__ import annotations

from collections.abc import Iterable

from cordwood.formats.sidecar import Sidecar
from cordwood.kernels import Buffer


class StreamedRecord:
    """A frame that is a head and the value; see `format.StreamedFrame`.

    Formats with a checksum in the frame extend this class.
    """

    def __init__(
        self,
        head: bytes,
        value_size: int,
        *,
        offset: int,
        timestamp: int,
        tail_size: int = 0,
        sidecar: Sidecar | None = None,
    ) -> None:
        self.head = bytearray(head)
        self.size = len(head) + value_size + tail_size
        self.next_offset = offset + 1
        self.max_timestamp = timestamp
        self._sidecar = sidecar
        self.checksum = 0 if sidecar is None else sidecar.extend(0, head)

    def update(self, chunk: Buffer) -> None:
        """Add the next bytes of the value to the checksum."""
        if self._sidecar is not None:
            self.checksum = self._sidecar.extend(self.checksum, chunk)

    def finish(self) -> tuple[bytearray, bytes]:
        """Return the bytes before and after the value."""
        return self.head, b""

    def left(self, frame: Iterable[Buffer]) -> bytes:
        """Return no state: frames are independent."""
        return b""
