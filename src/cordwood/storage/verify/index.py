"""Compare an index file with what the log says it must be."""

from __future__ import annotations

from dataclasses import dataclass

import google_crc32c

from cordwood.storage.files import File, Files
from cordwood.storage.verify.report import Tally

ENTRY_BYTES = 16
_WINDOW_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class IndexClaim:
    """What the file *source* says of an index: so many ``entries`` are synced and have this checksum.

    ``entries`` is None for a sealed segment: all that the log gives, and no others.
    """

    source: str
    entries: int | None = None
    crc32c: int | None = None


class IndexFile:
    """Compares the entries of an index, as they are computed anew, with those in its file.

    Memory is bounded by a window, however many entries there are.
    """

    def __init__(self, files: Files, path: str, what: str, claim: IndexClaim) -> None:
        self.path = path
        self.entries = 0
        self._what = what
        self._claim = claim
        self._crc32c = 0
        self._pending = bytearray()
        # Entry number, expected and found, of the first one that is not as computed.
        self._difference: tuple[int, bytes, bytes] | None = None
        self._file: File | None = None
        self._failure: OSError | None = None
        try:
            self._file = files.open(path, "read")
        except OSError as error:
            self._failure = error

    def close(self) -> None:
        """Close the file, if it could be opened."""
        if self._file is not None:
            self._file.close()

    def add(self, entry: bytes) -> None:
        """Expect *entry* next."""
        self._pending += entry
        self.entries += 1
        if len(self._pending) >= _WINDOW_BYTES:
            self._compare()

    def finish(self, tally: Tally) -> None:
        """Say what differs, now that the log has no more entries to give."""
        self._compare()
        required = self.entries if self._claim.entries is None else self._claim.entries
        self._check_claim(tally, required)
        try:
            size = self._size()
        except OSError as error:
            if required:
                tally.add_unreadable(self.path, error, "index")
            return
        tally.bytes += min(size, required * ENTRY_BYTES)
        if self._difference is not None:
            self._add_difference(tally, required, self._difference)
        elif self._claim.entries is None and size != self.entries * ENTRY_BYTES:
            tally.add(
                "index",
                self.path,
                self.entries * ENTRY_BYTES,
                expected=f"the end of the file after {self.entries} entries",
                found=f"{size - self.entries * ENTRY_BYTES} bytes more",
                what=self._what,
            )

    def _compare(self) -> None:
        expected, self._pending = bytes(self._pending), bytearray()
        first = self.entries - len(expected) // ENTRY_BYTES
        claimed = (
            len(expected) if self._claim.entries is None else (self._claim.entries - first) * ENTRY_BYTES
        )
        self._crc32c = google_crc32c.extend(self._crc32c, expected[: max(claimed, 0)])
        if self._file is None or self._failure is not None or self._difference is not None:
            return
        try:
            found = self._file.read_at(first * ENTRY_BYTES, len(expected))
        except OSError as error:
            self._failure = error
            return
        if found != expected:
            for start in range(0, len(expected), ENTRY_BYTES):
                pair = expected[start : start + ENTRY_BYTES], found[start : start + ENTRY_BYTES]
                if pair[0] != pair[1]:
                    self._difference = (first + start // ENTRY_BYTES, *pair)
                    break

    def _size(self) -> int:
        if self._failure is not None:
            raise self._failure
        assert self._file is not None
        return self._file.size()

    def _check_claim(self, tally: Tally, required: int) -> None:
        """Hold what metadata say of the index against the log. The file has no part in this."""
        claim = self._claim
        if required > self.entries:
            tally.add(
                "corruption",
                claim.source,
                None,
                expected=f"at most the {self.entries} entries that the log gives",
                found=required,
                what=f"entries of the {self._what}",
            )
        elif claim.crc32c is not None and claim.crc32c != self._crc32c:
            tally.add(
                "corruption",
                claim.source,
                None,
                expected=f"{self._crc32c:#010x}, which the log gives",
                found=f"{claim.crc32c:#010x}",
                what=f"CRC-32C of the {self._what}",
            )

    def _add_difference(self, tally: Tally, required: int, difference: tuple[int, bytes, bytes]) -> None:
        entry, expected, found = difference
        unsynced = entry >= required
        if unsynced and len(found) < ENTRY_BYTES:
            return  # Not written yet.
        tally.add(
            "note" if unsynced else "index",
            self.path,
            entry * ENTRY_BYTES,
            expected=expected.hex(),
            found=found.hex() or "the end of the file",
            what=f"{self._what}, past what the mark counts" if unsynced else self._what,
        )
