"""Reading the pieces of a log in order, whoever creates them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from cordwood.bucket.ownership.manifest import MANIFEST_KEY, BucketManifest, Verdict, decode_manifest, verdict
from cordwood.bucket.ownership.objects import Get, Pause, Steps, Stored
from cordwood.bucket.ownership.piece import PieceHeader, decode_piece, hash_of, piece_key
from cordwood.errors import BucketDamaged, ObjectMissing, StoreUnavailable

#: How many pieces are read before the manifest is.
PIECES_PER_READ = 8


class LogPiece(NamedTuple):
    """A piece that counts."""

    header: PieceHeader
    body: memoryview
    sha256: str
    #: The whole object.
    data: bytes


class FellBehind(Exception):
    """The pieces that follow are not needed any more and may be gone: the state begins with newer pages."""


@dataclass(slots=True)
class Reading:
    """How far the pieces were read: all that count below ``next_seq``, the last with hash ``previous``."""

    next_seq: int
    previous: str

    @classmethod
    def from_floor(cls, manifest: BucketManifest) -> Reading:
        """Return a reading that begins where the pages of *manifest* end."""
        return cls(manifest.floor, manifest.floor_hash)

    def pass_own(self, seq: int, sha256: str) -> None:
        """Pass the piece *seq*, which the caller created."""
        assert seq == self.next_seq, "a piece was created before those below it were read"
        self.next_seq, self.previous = seq + 1, sha256

    def poll(self, limit: int = PIECES_PER_READ) -> Steps[tuple[list[LogPiece], BucketManifest]]:
        """Return the pieces that follow, at most about *limit*, and the newest manifest.

        Only pieces that certainly count are returned, for ever: the manifest is read after them.

        Raises:
            FellBehind: If the floor has passed the next piece. Nothing was passed.
            BucketDamaged: If a piece is damaged, or does not follow the one before.
        """
        found = yield from self._present(limit)
        stored: Stored = yield from _get_answered(MANIFEST_KEY)
        manifest = decode_manifest(stored.data)
        return self._taken(found, manifest), manifest

    def read_on(self, claimed: BucketManifest, on_piece: Callable[[LogPiece], None]) -> Steps[None]:
        """Give all pieces that follow to *on_piece*, for the process whose claim is *claimed*.

        No owner is added while the claim stands, so the manifest need not be read again. Raises as
        `poll` does.
        """
        while found := (yield from self._present(PIECES_PER_READ)):
            for piece in self._taken(found, claimed):
                on_piece(piece)

    def _present(self, limit: int) -> Steps[list[tuple[str, bytes]]]:
        """Return the next pieces that there are, up to the first missing key."""
        found: list[tuple[str, bytes]] = []
        while len(found) < limit:
            key = piece_key(self.next_seq + len(found))
            try:
                stored: Stored = yield from _get_answered(key)
            except ObjectMissing:
                break
            found.append((key, stored.data))
        return found

    def _taken(self, found: list[tuple[str, bytes]], manifest: BucketManifest) -> list[LogPiece]:
        """Return those of *found* that count by *manifest*, which was read after them, and pass them."""
        if manifest.floor > self.next_seq:
            raise FellBehind
        pieces: list[LogPiece] = []
        for key, data in found:
            header, body = decode_piece(key, data)
            said = verdict(manifest, header)
            if said is Verdict.UNDECIDED:
                break
            if said is Verdict.COUNTS:
                if header.previous != self.previous:
                    raise BucketDamaged(
                        key, f"follows a piece {header.previous}, the one before is {self.previous}"
                    )
                self.previous = hash_of(data)
                pieces.append(LogPiece(header, body, self.previous, data))
            self.next_seq += 1
        return pieces


def _get_answered(key: str) -> Steps[Stored]:
    attempt = 0
    while True:
        try:
            stored: Stored = yield Get(key)
        except StoreUnavailable:
            attempt += 1
            yield Pause(attempt)
            continue
        return stored
