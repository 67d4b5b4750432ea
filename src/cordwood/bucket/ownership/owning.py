"""Owning the log in a bucket: taking over, creating pieces, confirming, and moving the floor.

Each function is a part of the protocol, as requests (`objects.Steps`). They yield `Pause` between tries and
never give up: the function that `perform` is given to wait with may end them by raising.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from cordwood.bucket.ownership.following import FellBehind, LogPiece, Reading
from cordwood.bucket.ownership.manifest import (
    MANIFEST_KEY,
    Departed,
    Freed,
    LogManifest,
    LogOwner,
    PageRef,
    decode_manifest,
    encode_manifest,
    needed_owners,
)
from cordwood.bucket.ownership.objects import (
    Create,
    Delete,
    Get,
    List,
    Pause,
    Replace,
    Steps,
    Stored,
    until_answered,
)
from cordwood.bucket.ownership.piece import (
    PREFIX,
    PieceHeader,
    decode_piece,
    encode_piece,
    hash_of,
    piece_key,
    seq_of,
)
from cordwood.errors import (
    BucketDamaged,
    ObjectExists,
    ObjectMissing,
    OwnerFenced,
    StoreUnavailable,
    VersionChanged,
)

#: How long objects stay after the manifest stopped naming them: a reader may be using them.
KEEP_MS = 3_600_000


class VersionedManifest(msgspec.Struct, frozen=True):
    """A manifest, and the version that is replaced by the next one."""

    manifest: LogManifest
    version: str


@dataclass(slots=True)
class Ownership:
    """An owner of the log: what it claimed, and the piece that it creates next. One thread at a time."""

    epoch: int
    nonce: str
    next_seq: int
    previous: str
    current: VersionedManifest
    #: The bytes of the piece that was created last.
    last_piece: bytes = b""

    def check(self, manifest: LogManifest) -> None:
        """Raise OwnerFenced if *manifest* has a newer claim than that of this owner."""
        if (manifest.epoch, manifest.nonce) != (self.epoch, self.nonce):
            raise OwnerFenced(self.epoch, manifest.epoch)


def read_manifest() -> Steps[VersionedManifest]:
    """Return the manifest. Raises ObjectMissing, or BucketDamaged."""
    stored: Stored = yield from until_answered(Get(MANIFEST_KEY))
    return VersionedManifest(decode_manifest(stored.data), stored.version)


def take_over(
    nonce: str,
    lease_ms: int | None = None,
    reading: Reading | None = None,
    on_piece: Callable[[LogPiece], None] = lambda piece: None,
    before: VersionedManifest | None = None,
) -> Steps[Ownership]:
    """Become the owner, after every owner before: nothing that they create later counts.

    *reading* is how far the caller has read already; None reads from the floor on. *on_piece* is called with
    every piece that counts and was not read before, in order, also if the takeover fails in the end: then
    *reading* has passed just these. None for *lease_ms* keeps the lease of the log. *before* is the manifest
    that the claim replaces; a standby gives the one that it read before its last look (see `lease`).

    Raises:
        OwnerFenced: If another process claimed the log meanwhile. Nothing has changed but for a claim.
        FellBehind: If the floor has passed *reading*.
    """
    if before is None:
        before = yield from read_manifest()
    if reading is not None and before.manifest.floor > reading.next_seq:
        # The numbers from there on were used, and their pieces may be gone.
        raise FellBehind
    # (a) The claim. From now on no other process can complete an earlier one, nor move the floor.
    claimed = msgspec.structs.replace(
        before.manifest,
        revision=before.manifest.revision + 1,
        epoch=before.manifest.epoch + 1,
        nonce=nonce,
        lease_ms=before.manifest.lease_ms if lease_ms is None else lease_ms,
    )
    current = yield from _swap(before, claimed)
    if reading is None:
        reading = Reading.from_floor(claimed)
    # (b) A barrier: the first key that nobody used. Whatever an owner before us creates comes after it.
    barrier, sha256 = yield from _create_barrier(claimed, reading, on_piece)
    # (c) The claim is complete: pieces below the barrier count as before, those from it on are ours.
    owner = LogOwner(claimed.epoch, nonce, barrier)
    complete = msgspec.structs.replace(
        claimed, revision=claimed.revision + 1, owners=(*needed_owners(claimed.owners, claimed.floor), owner)
    )
    current = yield from _swap(current, complete)
    # Not before: a barrier of a claim that fails is void.
    reading.pass_own(barrier, sha256)
    return Ownership(claimed.epoch, nonce, barrier + 1, sha256, current)


def _create_barrier(
    claimed: LogManifest, reading: Reading, on_piece: Callable[[LogPiece], None]
) -> Steps[tuple[int, str]]:
    """Create an empty piece after all others, which *reading* has then passed; return its number and hash."""
    attempt = 0
    while True:
        yield from reading.read_on(claimed, on_piece)
        seq = reading.next_seq
        data = encode_piece(PieceHeader(seq, claimed.epoch, claimed.nonce, reading.previous), b"")
        try:
            yield Create(piece_key(seq), data)
        except ObjectExists:
            there = yield from _content_of(piece_key(seq))
            if there != data:
                # An owner before us was faster: its piece is read and passed, if the claim still stands. Or
                # nobody was, and the store said so for two creations at the same time.
                attempt += 1
                yield Pause(attempt)
                continue
        except StoreUnavailable:
            attempt += 1
            yield Pause(attempt)
            continue
        return seq, hash_of(data)


def add_piece(owner: Ownership, body: bytes) -> Steps[int]:
    """Create the next piece and return its number. Acknowledge nothing before `confirm`.

    The bytes are fixed before the first try, and every try sends the same. A caller that gave up may
    call this again with the same *body* only.

    Raises:
        OwnerFenced: If another process owns or claims the log. The piece may still count.
        BucketDamaged: If the piece that this owner gave up before is there, with another body.
    """
    attempt = 0
    while True:
        seq = owner.next_seq
        data = encode_piece(PieceHeader(seq, owner.epoch, owner.nonce, owner.previous), body)
        try:
            yield Create(piece_key(seq), data)
        except ObjectExists:
            there = yield from _content_of(piece_key(seq))
            if there is None:
                # A store may say so for two creations at the same time: the same bytes again.
                attempt += 1
                yield Pause(attempt)
                continue
            if there != data:
                newest = yield from read_manifest()
                owner.check(newest.manifest)
                header, _ = decode_piece(piece_key(seq), there)
                if (header.epoch, header.nonce) == (owner.epoch, owner.nonce):
                    # It counts, so what this caller gave up must be finished first: it cannot be passed.
                    raise BucketDamaged(
                        piece_key(seq), "is of this owner, with other content than now"
                    ) from None
                # It belongs to a claim that was given up: it is void, and so its number is used up.
                owner.next_seq += 1
                continue
        except StoreUnavailable:
            attempt += 1
            yield Pause(attempt)
            continue
        owner.next_seq = seq + 1
        owner.previous = hash_of(data)
        owner.last_piece = data
        return seq


def confirm(owner: Ownership) -> Steps[None]:
    """Make sure that every piece created so far counts, whoever owns the log next.

    Raises:
        OwnerFenced: If another process owns or claims the log.
    """
    newest = yield from read_manifest()
    owner.check(newest.manifest)
    owner.current = newest


def renew_claim(owner: Ownership) -> Steps[None]:
    """Replace the manifest by one that differs in its revision only.

    A standby that found the lease run out, and has read the manifest before, cannot claim the log any more.

    Raises:
        OwnerFenced: If another process owns or claims the log.
    """
    yield from confirm(owner)
    before = owner.current.manifest
    owner.current = yield from _swap(
        owner.current, msgspec.structs.replace(before, revision=before.revision + 1)
    )


def move_floor(
    owner: Ownership,
    pages: Sequence[PageRef],
    floor: int,
    floor_hash: str,
    departed: Sequence[str],
    now_ms: int,
) -> Steps[None]:
    """Let the state begin with *pages*, which hold everything below the piece *floor*.

    *departed* are keys that nothing names any more; they and the pieces below the floor are deleted later, by
    `collect`.

    Raises:
        OwnerFenced: If another process owns or claims the log. The pages are not used.
    """
    before = owner.current.manifest
    owner.check(before)
    names = {page.key for page in pages}
    gone = [page.key for page in before.pages if page.key not in names] + list(departed)
    freed = (Freed(before.floor, floor, now_ms),) if floor > before.floor else ()
    after = msgspec.structs.replace(
        before,
        revision=before.revision + 1,
        owners=needed_owners(before.owners, floor),
        floor=floor,
        floor_hash=floor_hash,
        pages=tuple(pages),
        departed=(*before.departed, *(Departed(key, now_ms) for key in gone)),
        freed=(*before.freed, *freed),
    )
    owner.current = yield from _swap(owner.current, after)


def collect(owner: Ownership, now_ms: int, keep_ms: int = KEEP_MS) -> Steps[int]:
    """Delete what the manifest stopped naming *keep_ms* ago, and return how many objects.

    The manifest forgets them with `forget_collected`; after a crash in between they are deleted again.
    """
    yield from confirm(owner)
    manifest = owner.current.manifest
    count = 0
    for departed in manifest.departed:
        if is_due(departed.at_ms, now_ms, keep_ms):
            yield from until_answered(Delete(departed.key))
            count += 1
    freed = [each for each in manifest.freed if is_due(each.at_ms, now_ms, keep_ms)]
    if freed:
        # Listed, because void pieces have numbers too, and an earlier try may have deleted some.
        count += yield from _delete_pieces_below(max(each.end_seq for each in freed))
    return count


def forget_collected(owner: Ownership, now_ms: int, keep_ms: int = KEEP_MS) -> Steps[None]:
    """Let the manifest forget what `collect` deleted at *now_ms*.

    Raises:
        OwnerFenced: If another process owns or claims the log.
    """
    before = owner.current.manifest
    owner.check(before)
    departed = tuple(each for each in before.departed if not is_due(each.at_ms, now_ms, keep_ms))
    freed = tuple(each for each in before.freed if not is_due(each.at_ms, now_ms, keep_ms))
    if (departed, freed) != (before.departed, before.freed):
        after = msgspec.structs.replace(before, revision=before.revision + 1, departed=departed, freed=freed)
        owner.current = yield from _swap(owner.current, after)


def is_due(at_ms: int, now_ms: int, keep_ms: int) -> bool:
    """Return whether what departed at *at_ms* may be deleted."""
    return now_ms - at_ms >= keep_ms


def _delete_pieces_below(end_seq: int) -> Steps[int]:
    count, after = 0, ""
    while True:
        keys: list[str] = yield from until_answered(List(PREFIX, after))
        due = [key for key in keys if (seq := seq_of(key)) is not None and seq < end_seq]
        for key in due:
            yield from until_answered(Delete(key))
            count += 1
        if not keys or len(due) < len(keys):
            return count
        after = keys[-1]


def _swap(before: VersionedManifest, after: LogManifest) -> Steps[VersionedManifest]:
    """Replace *before* by *after*.

    A refusal is a success where the manifest read back is just this one: an earlier try had taken effect.

    Raises:
        OwnerFenced: If another process replaced it.
    """
    data, attempt = encode_manifest(after), 0
    while True:
        try:
            version: str = yield Replace(MANIFEST_KEY, data, before.version)
        except (VersionChanged, StoreUnavailable):
            stored: Stored = yield from until_answered(Get(MANIFEST_KEY))
            if stored.data == data:
                return VersionedManifest(after, stored.version)
            if stored.version != before.version:
                raise OwnerFenced(after.epoch, decode_manifest(stored.data).epoch) from None
            attempt += 1
            yield Pause(attempt)
            continue
        return VersionedManifest(after, version)


def create_object(key: str, data: bytes) -> Steps[None]:
    """Create the object *key*, which no other process ever creates, with *data*; on return it is there."""
    attempt = 0
    while True:
        try:
            yield Create(key, data)
        except ObjectExists:
            # An earlier try was slow to take effect, or the store said so for two at the same time.
            if (yield from _content_of(key)) == data:
                return
        except StoreUnavailable:
            pass
        else:
            return
        attempt += 1
        yield Pause(attempt)


def list_all(prefix: str) -> Steps[list[str]]:
    """Return all keys that begin with *prefix*."""
    found: list[str] = []
    while True:
        keys: list[str] = yield from until_answered(List(prefix, found[-1] if found else ""))
        if not keys:
            return found
        found += keys


def _content_of(key: str) -> Steps[bytes | None]:
    """Return the bytes of an object, None if there is none."""
    try:
        stored: Stored = yield from until_answered(Get(key))
    except ObjectMissing:
        return None
    return stored.data
