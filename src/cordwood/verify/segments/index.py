"""Compare an index file with the index computed from the log."""

from __future__ import annotations

from dataclasses import dataclass

import google_crc32c

from cordwood.disk import ReadableFiles
from cordwood.verify.derived import DerivedFile
from cordwood.verify.report import Tally

ENTRY_BYTES = 16


@dataclass(frozen=True, slots=True)
class IndexClaim:
    """The claim of the file *source* about an index: the number of synced ``entries`` and their checksum.

    ``entries`` is None for a sealed segment: exactly the entries computed from the log.
    """

    source: str
    entries: int | None = None
    crc32c: int | None = None


class IndexFile(DerivedFile):
    """Compares the computed entries of an index with its file."""

    def __init__(self, files: ReadableFiles, path: str, what: str, claim: IndexClaim) -> None:
        super().__init__(files, path, ENTRY_BYTES)
        self.entries = 0
        self._what = what
        self._claim = claim
        self._crc32c = 0

    def add(self, entry: bytes) -> None:
        """Expect *entry* next."""
        self.entries += 1
        self.expect(entry)

    def finish(self, tally: Tally) -> None:
        """Report differences after the last entry."""
        self.compare()
        required = self.entries if self._claim.entries is None else self._claim.entries
        self._check_claim(tally, required)
        try:
            size = self.size()
        except OSError as error:
            if required:
                tally.add_unreadable(self.path, error, "index")
            return
        tally.bytes += min(size, required * ENTRY_BYTES)
        if self.difference is not None:
            self._add_difference(tally, required, self.difference)
        elif self._claim.entries is None and size != self.entries * ENTRY_BYTES:
            tally.add(
                "index",
                self.path,
                self.entries * ENTRY_BYTES,
                expected=f"the end of the file after {self.entries} entries",
                found=f"{size - self.entries * ENTRY_BYTES} bytes more",
                what=self._what,
            )

    def _passing(self, start: int, expected: bytes) -> None:
        claimed = self._claim.entries
        size = len(expected) if claimed is None else claimed * ENTRY_BYTES - start
        self._crc32c = google_crc32c.extend(self._crc32c, expected[: max(size, 0)])

    def _check_claim(self, tally: Tally, required: int) -> None:
        """Compare the index checksum in metadata with the log. The index file is not used."""
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
        position, expected, found = difference
        unsynced = position >= required * ENTRY_BYTES
        if unsynced and len(found) < ENTRY_BYTES:
            return  # Not written yet.
        tally.add(
            "note" if unsynced else "index",
            self.path,
            position,
            expected=expected.hex(),
            found=found.hex() or "the end of the file",
            what=f"{self._what}, past what the mark counts" if unsynced else self._what,
        )
