"""The state of the log in a bucket, held in memory and kept up to date without owning it."""

from __future__ import annotations

from collections.abc import Callable

from cordwood.bucket.loading import BucketState, apply_piece, is_continued_by, load_pages
from cordwood.bucket.ownership import (
    HEAD_SIZE,
    FellBehind,
    LogManifest,
    LogPiece,
    ObjectStore,
    Ownership,
    Reading,
    VersionedManifest,
    decode_piece,
    perform,
    piece_key,
    read_manifest,
    regain,
    take_over,
)
from cordwood.bucket.state import BodyTable, Tree, decode_body
from cordwood.errors import ObjectMissing

OnPiece = Callable[[LogPiece, BodyTable, int], None]
"""Told of a piece before the tree has it: the piece, its table, and where in its body the content begins."""


def ignore(piece: LogPiece, table: BodyTable, content_at: int) -> None:
    """Do nothing about a piece."""


class Replica:
    """The pages of a log and the pieces since. One thread.

    Memory is that of the tree, and of the pieces since the floor: an owner moves it before they have
    `ShippingLimits.bytes_max`.
    """

    def __init__(self, store: ObjectStore, pause: Callable[[int], None]) -> None:
        self._store = store
        self._pause = pause
        self.tree = Tree()
        self.manifest = LogManifest(revision=0, epoch=0, nonce="")
        self.reading = Reading.from_floor(self.manifest)
        #: The floor that the tree begins at; the manifest may have a later one already.
        self.floor = 0
        #: The pieces since the floor that have a body, and the nonces of their owners.
        self._pieces: dict[int, bytes] = {}
        self._nonces: dict[int, str] = {}

    def load(self) -> None:
        """Begin with the newest pages, whatever was read before.

        Raises:
            ObjectMissing: If there is no log.
            BucketDamaged: If a page or the manifest cannot be read.
        """
        attempt = 0
        while True:
            self.manifest = perform(self._store, read_manifest(), self._pause).manifest
            try:
                self.tree = load_pages(self._store, self.manifest, self._pause)
            except ObjectMissing:
                # There are newer ones already.
                attempt += 1
                self._pause(attempt)
                continue
            break
        self.floor, self._pieces, self._nonces = self.manifest.floor, {}, {}
        self.reading = Reading.from_floor(self.manifest)

    def look(self, on_piece: OnPiece = ignore) -> int:
        """Pass some of the pieces that follow; return how many. None, once all were passed.

        Raises:
            FellBehind: If the next pieces are gone: `load` again.
            BucketDamaged: If a piece cannot be read.
        """
        passed = 0

        def take(piece: LogPiece) -> None:
            nonlocal passed
            self.fold(piece, on_piece)
            passed += 1

        before = self.reading.next_seq
        try:
            pieces, self.manifest = perform(self._store, self.reading.poll(), self._pause)
        except FellBehind:
            # The usual case: the owner has moved the floor right after the piece that was waited for.
            self.manifest = perform(self._store, read_manifest(), self._pause).manifest
            perform(self._store, regain(self.reading, self.manifest, take), self._pause)
        else:
            for piece in pieces:
                take(piece)
        if self.manifest.floor > self.floor:
            self._rebase()
        return passed or self.reading.next_seq - before

    def fold(self, piece: LogPiece, on_piece: OnPiece = ignore) -> None:
        """Let the state have *piece*, after *on_piece* was told."""
        key = piece_key(piece.header.seq)
        table, content_at = decode_body(key, piece.body)
        on_piece(piece, table, content_at)
        self.tree.apply(table, key, HEAD_SIZE + content_at)
        if piece.body:
            self._pieces[piece.header.seq] = piece.data
            self._nonces[piece.header.seq] = piece.header.nonce

    def _rebase(self) -> None:
        """Begin the state with the pages of the manifest: objects that the older ones name may go."""
        manifest = self.manifest
        assert manifest.floor <= self.reading.next_seq, "pages hold pieces that were not read"
        try:
            tree = load_pages(self._store, manifest, self._pause)
        except ObjectMissing:
            # There are newer ones already, and the next look finds them.
            return
        self._pieces = {seq: data for seq, data in self._pieces.items() if seq >= manifest.floor}
        for seq, data in self._pieces.items():
            header, body = decode_piece(piece_key(seq), data)
            apply_piece(tree, LogPiece(header, body, "", data))
        self._nonces = {seq: self._nonces[seq] for seq in self._pieces}
        self.tree, self.floor = tree, manifest.floor

    # --- who owns it ------------------------------------------------------------------------------

    def is_continued_by(self, nonces: tuple[str, ...]) -> bool:
        """Return whether only owners with *nonces* changed anything since they owned the log."""
        return is_continued_by(self.manifest, self._changed_by(), nonces)

    def claim(
        self, nonce: str, lease_ms: int | None, before: VersionedManifest, on_piece: OnPiece = ignore
    ) -> tuple[Ownership, BucketState]:
        """Take the log over by replacing the manifest *before*, and return the owner and the state.

        *on_piece* is told of pieces that are found meanwhile, once it is certain that they count.

        Raises:
            OwnerFenced: If the owner is there, or another standby was faster. The replica is as before.
            FellBehind: If the floor moved meanwhile. The replica is as before.
            BucketDamaged: If a piece is missing, and later ones are there. Nothing has changed.
        """
        perform(self._store, self.reading.check_end(), self._pause)
        assert before.manifest.floor == self.floor, "the state does not begin with the pages of the manifest"
        reading, found = Reading(self.reading.next_seq, self.reading.previous), list[LogPiece]()
        steps = take_over(nonce, lease_ms, reading, found.append, before)
        owner = perform(self._store, steps, self._pause)
        for piece in found:
            self.fold(piece, on_piece)
        self.reading = reading
        pieces = {piece_key(seq): data for seq, data in self._pieces.items()}
        return owner, BucketState(before.manifest, self.tree, pieces, self._changed_by())

    def _changed_by(self) -> list[str]:
        return list(self._nonces.values())
