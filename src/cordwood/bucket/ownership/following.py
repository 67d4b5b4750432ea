"""Reading the pieces of a log in order, whoever creates them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from cordwood.bucket.ownership.manifest import MANIFEST_KEY, LogManifest, Verdict, decode_manifest, verdict
from cordwood.bucket.ownership.objects import Get, List, Steps, Stored, until_answered
from cordwood.bucket.ownership.piece import PREFIX, PieceHeader, decode_piece, hash_of, piece_key
from cordwood.errors import BucketDamaged, ObjectMissing, OwnerFenced

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
    def from_floor(cls, manifest: LogManifest) -> Reading:
        """Return a reading that begins where the pages of *manifest* end."""
        return cls(manifest.floor, manifest.floor_hash)

    def pass_own(self, seq: int, sha256: str) -> None:
        """Pass the piece *seq*, which the caller created."""
        assert seq == self.next_seq, "a piece was created before those below it were read"
        self.next_seq, self.previous = seq + 1, sha256

    def poll(self, limit: int = PIECES_PER_READ) -> Steps[tuple[list[LogPiece], LogManifest]]:
        """Return the pieces that follow, at most about *limit*, and the newest manifest.

        Only pieces that certainly count are returned, for ever: the manifest is read after them.

        Raises:
            FellBehind: If the floor has passed the next piece. Nothing was passed.
            BucketDamaged: If a piece is damaged, or does not follow the one before. Nothing was passed.
        """
        found = yield from self._present(limit)
        stored: Stored = yield from until_answered(Get(MANIFEST_KEY))
        manifest = decode_manifest(stored.data)
        return self._taken(found, manifest), manifest

    def read_on(self, claimed: LogManifest, on_piece: Callable[[LogPiece], None]) -> Steps[None]:
        """Give all pieces that follow to *on_piece*, for the process whose claim is *claimed*.

        The manifest is read after them, as by every reader: once the claim does not stand, a piece that it
        would let count may be void.

        Raises:
            OwnerFenced: If another process claims the log.
            FellBehind: As `poll` does.
            BucketDamaged: As `poll` does.
        """
        while True:
            before = self.next_seq
            pieces, manifest = yield from self.poll()
            for piece in pieces:
                on_piece(piece)
            if (manifest.epoch, manifest.nonce) != (claimed.epoch, claimed.nonce):
                raise OwnerFenced(claimed.epoch, manifest.epoch)
            # The next piece may be there and undecided: our own, if an answer was lost.
            if self.next_seq == before:
                return

    def check_end(self) -> Steps[None]:
        """Make sure that the pieces end where the reading stands.

        Raises:
            BucketDamaged: If the next piece is missing, and later ones are there.
            FellBehind: If the floor has passed the next piece.
        """
        key = piece_key(self.next_seq)
        later: list[str] = yield from until_answered(List(PREFIX, key))
        if not later:
            return
        try:
            # It may have been created between the last look and this one.
            yield from until_answered(Get(key))
        except ObjectMissing:
            stored: Stored = yield from until_answered(Get(MANIFEST_KEY))
            if decode_manifest(stored.data).floor > self.next_seq:
                raise FellBehind from None
            raise BucketDamaged(key, f"is missing, and {later[0]} is there") from None

    def _present(self, limit: int) -> Steps[list[tuple[str, bytes]]]:
        """Return the next pieces that there are, up to the first missing key."""
        found: list[tuple[str, bytes]] = []
        while len(found) < limit:
            key = piece_key(self.next_seq + len(found))
            try:
                stored: Stored = yield from until_answered(Get(key))
            except ObjectMissing:
                break
            found.append((key, stored.data))
        return found

    def _taken(self, found: list[tuple[str, bytes]], manifest: LogManifest) -> list[LogPiece]:
        """Return those of *found* that count by *manifest*, which was read after them, and pass them."""
        if manifest.floor > self.next_seq:
            raise FellBehind
        pieces: list[LogPiece] = []
        next_seq, previous = self.next_seq, self.previous
        for key, data in found:
            header, body = decode_piece(key, data)
            said = verdict(manifest, header)
            if said is Verdict.UNDECIDED:
                break
            if said is Verdict.COUNTS:
                if header.previous != previous:
                    raise BucketDamaged(
                        key, f"follows a piece {header.previous}, the one before is {previous}"
                    )
                previous = hash_of(data)
                pieces.append(LogPiece(header, body, previous, data))
            next_seq += 1
        self.next_seq, self.previous = next_seq, previous
        return pieces
