"""The manifest, the one object that is replaced: who owns the log, and where its state begins.

docs/formats/bucket.md has the meaning of every field. Everything here is a pure function of its content.
"""

from __future__ import annotations

from enum import Enum

import msgspec

from cordwood.bucket.ownership.piece import PieceHeader
from cordwood.disk import decode_sealed, encode_sealed
from cordwood.errors import BucketDamaged

MANIFEST_KEY = "manifest.json"
FORMAT = 1
#: The hash of the piece before the first one.
NO_HASH = "0" * 64


class LogOwner(msgspec.Struct, frozen=True):
    """Who wrote the pieces from ``first_seq`` on, up to the first piece of the next owner."""

    epoch: int
    nonce: str
    first_seq: int


class PageRef(msgspec.Struct, frozen=True):
    """A page of the state as of the floor."""

    key: str
    sha256: str
    size: int


class Departed(msgspec.Struct, frozen=True):
    """An object that the manifest named until ``at_ms``. Readers may still use it, so it is deleted later."""

    key: str
    at_ms: int


class Freed(msgspec.Struct, frozen=True):
    """The pieces [first_seq, end_seq), which the floor passed at ``at_ms``."""

    first_seq: int
    end_seq: int
    at_ms: int


class LogManifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of `manifest.json`."""

    format: int = FORMAT
    revision: int
    #: The newest claim. Its owner is in ``owners`` once the claim is complete.
    epoch: int
    nonce: str
    owners: tuple[LogOwner, ...] = ()
    #: How long an owner may acknowledge after it sent its last piece; 0 if no standby takes over by itself.
    lease_ms: int = 0
    #: The first piece that is not in the pages, and the hash of the counting piece before it.
    floor: int = 1
    floor_hash: str = NO_HASH
    pages: tuple[PageRef, ...] = ()
    departed: tuple[Departed, ...] = ()
    freed: tuple[Freed, ...] = ()


class Verdict(Enum):
    """Whether a piece is part of the log."""

    COUNTS = "counts"
    VOID = "void"
    #: It is the first piece of a claim that is not complete: a later manifest says.
    UNDECIDED = "undecided"


_DECODER = msgspec.json.Decoder(LogManifest)


def encode_manifest(manifest: LogManifest) -> bytes:
    """Return the bytes of the object."""
    return encode_sealed(manifest)


def decode_manifest(data: bytes) -> LogManifest:
    """Return the manifest. Raises BucketDamaged if any bit of it is wrong, or it is of a newer version."""
    try:
        manifest = decode_sealed(data, _DECODER)
    except ValueError as error:
        raise BucketDamaged(MANIFEST_KEY, str(error)) from None
    if manifest.format != FORMAT:
        raise BucketDamaged(MANIFEST_KEY, f"has format {manifest.format}; this version reads format {FORMAT}")
    return manifest


def owner_of(manifest: LogManifest, seq: int) -> LogOwner | None:
    """Return the owner whose pieces count at *seq*: of those that began there or before, the last one."""
    owners = [owner for owner in manifest.owners if owner.first_seq <= seq]
    return max(owners, key=lambda owner: owner.first_seq, default=None)


def verdict(manifest: LogManifest, header: PieceHeader) -> Verdict:
    """Return whether the piece with *header* counts by *manifest*, which was read after the piece."""
    owner = owner_of(manifest, header.seq)
    if owner is not None and (owner.epoch, owner.nonce) == (header.epoch, header.nonce):
        return Verdict.COUNTS
    claims = (manifest.epoch, manifest.nonce) == (header.epoch, header.nonce)
    if claims and all(each.epoch != manifest.epoch for each in manifest.owners):
        return Verdict.UNDECIDED
    return Verdict.VOID


def needed_owners(owners: tuple[LogOwner, ...], floor: int) -> tuple[LogOwner, ...]:
    """Return the owners that say something about pieces from *floor* on."""
    last = max((each.first_seq for each in owners if each.first_seq <= floor), default=0)
    return tuple(each for each in owners if each.first_seq >= last)
