"""The received bytes of a TLS client that has not authenticated: OpenSSL gets whole records of them only.

For a part of a record OpenSSL allocates 16 KiB, and keeps them until the rest comes.
"""

from __future__ import annotations

from collections.abc import Iterator

#: A record of TLS has at most this many bytes of content.
RECORD_BYTES = 16 << 10
#: What a record adds to its content, at most, and so the largest record.
SEALED_BYTES = RECORD_BYTES + 512
#: The bytes that are received at once, and that OpenSSL gets at once: its buffer of them never shrinks.
EARLY_PIECE_BYTES = 2 << 10
_SLICE_BYTES = 512
#: What records add to a request, at most.
_SEALING_BYTES = 1 << 10
_HEADER_BYTES = 5


class EarlyRecords:
    """Received bytes, of which whole records are taken."""

    def __init__(self) -> None:
        #: What was not taken yet.
        self.waiting = bytearray()

    def add(self, received: memoryview) -> None:
        """Add *received* bytes."""
        self.waiting += received

    @property
    def first_bytes(self) -> int:
        """The size of the first record if all of it is there, otherwise 0."""
        waiting = self.waiting
        if len(waiting) < _HEADER_BYTES:
            return 0
        size = int.from_bytes(waiting[3:_HEADER_BYTES], "big")
        if size > SEALED_BYTES:
            # OpenSSL refuses it by its header.
            return len(waiting)
        return _HEADER_BYTES + size if len(waiting) >= _HEADER_BYTES + size else 0

    def take_first(self) -> Iterator[bytes]:
        """Take the first record, and yield it in small pieces."""
        size = self.first_bytes
        record = bytes(self.waiting[:size])
        # A copy: a bytearray keeps the memory of what is removed from its beginning.
        self.waiting = self.waiting[size:]
        for start in range(0, size, _SLICE_BYTES):
            yield record[start : start + _SLICE_BYTES]

    def take_all(self) -> bytearray:
        """Take everything, also a part of a record."""
        taken, self.waiting = self.waiting, bytearray()
        return taken

    def exceeds(self, room: int | None) -> bool:
        """Return whether more waits than a request of *room* bytes takes; without *room* it never does."""
        return room is not None and len(self.waiting) > room + _SEALING_BYTES
