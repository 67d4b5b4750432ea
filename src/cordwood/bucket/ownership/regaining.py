"""Reading pieces that the floor has passed, while they are still there."""

from __future__ import annotations

from collections.abc import Callable

from cordwood.bucket.ownership.following import FellBehind, LogPiece, Reading
from cordwood.bucket.ownership.manifest import LogManifest
from cordwood.bucket.ownership.objects import Get, Pause, Steps, Stored
from cordwood.bucket.ownership.piece import PieceHeader, decode_piece, hash_of, piece_key
from cordwood.errors import ObjectMissing, StoreUnavailable


def regain(reading: Reading, manifest: LogManifest, on_piece: Callable[[LogPiece], None]) -> Steps[None]:
    """Pass the pieces below the floor of *manifest*, and give those that count to *on_piece*, in order.

    The manifest does not say any more who owned them. But it has the hash of the last one that counts, which
    has the hash of the one before, and so on. Only their headers are held in memory: each is read twice.

    Raises:
        FellBehind: If one is gone, or they do not continue what was read. Nothing was passed.
    """
    headers: dict[str, PieceHeader] = {}
    for seq in range(reading.next_seq, manifest.floor):
        data = yield from _data_of(seq)
        headers[hash_of(data)], _ = decode_piece(piece_key(seq), data)
    wanted, last = list[tuple[int, str]](), manifest.floor_hash
    while last != reading.previous:
        header = headers.get(last)
        if header is None:
            raise FellBehind
        wanted.append((header.seq, last))
        last = header.previous
    for seq, sha256 in reversed(wanted):
        data = yield from _data_of(seq)
        assert hash_of(data) == sha256, "a piece was replaced, which no store does"
        header, body = decode_piece(piece_key(seq), data)
        on_piece(LogPiece(header, body, sha256, data))
        reading.next_seq, reading.previous = seq + 1, sha256
    reading.next_seq = manifest.floor


def _data_of(seq: int) -> Steps[bytes]:
    attempt = 0
    while True:
        try:
            stored: Stored = yield Get(piece_key(seq))
        except ObjectMissing:
            raise FellBehind from None
        except StoreUnavailable:
            attempt += 1
            yield Pause(attempt)
            continue
        return stored.data
