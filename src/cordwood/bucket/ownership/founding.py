"""The first objects of a log in a bucket."""

from __future__ import annotations

import msgspec

from cordwood.bucket.ownership.manifest import MANIFEST_KEY, LogManifest, encode_manifest
from cordwood.bucket.ownership.objects import Create, Get, Pause, Steps, Stored, until_answered
from cordwood.disk import decode_sealed, encode_sealed
from cordwood.errors import BucketDamaged, BucketRefused, ObjectExists, ObjectMissing, StoreUnavailable

IDENTITY_KEY = "cordwood.json"
FORMAT = 1


class BucketIdentity(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of `cordwood.json`: whose log this is. Created once, never replaced."""

    broker_id: str
    created_at: str
    format: int = FORMAT


_DECODER = msgspec.json.Decoder(BucketIdentity)


def decode_identity(data: bytes) -> BucketIdentity:
    """Return the identity. Raises BucketDamaged if any bit of it is wrong, or it is of a newer version."""
    try:
        found = decode_sealed(data, _DECODER)
    except ValueError as error:
        raise BucketDamaged(IDENTITY_KEY, str(error)) from None
    if found.format != FORMAT:
        raise BucketDamaged(IDENTITY_KEY, f"has format {found.format}; this version reads format {FORMAT}")
    return found


def read_identity() -> Steps[BucketIdentity | None]:
    """Return whose log is in the bucket, None if there is none yet.

    Raises:
        BucketDamaged: If that cannot be read. It is never taken for none.
    """
    try:
        stored: Stored = yield from until_answered(Get(IDENTITY_KEY))
    except ObjectMissing:
        return None
    return decode_identity(stored.data)


def found(identity: BucketIdentity, nonce: str, epoch: int = 0) -> Steps[None]:
    """Begin the log of *identity* in an empty bucket, or finish what an earlier try began.

    The epochs of its owners are above *epoch*.

    Raises:
        BucketRefused: If another log is there.
    """
    there = yield from read_identity()
    if there is not None:
        # The manifest is older than the identity. If it is gone the log is damaged, and not an empty one.
        _check_whose(there, identity)
        return
    first = LogManifest(revision=0, epoch=epoch, nonce=nonce)
    # The identity is last: without it there is no log, so a crash before it leaves nothing half made.
    yield from _create(MANIFEST_KEY, encode_manifest(first))
    yield from _create(IDENTITY_KEY, encode_sealed(identity))
    _check_whose((yield from read_identity()), identity)


def _check_whose(there: BucketIdentity | None, identity: BucketIdentity) -> None:
    if there is None or there.broker_id != identity.broker_id:
        whose = "no log" if there is None else f"the log of {there.broker_id}"
        raise BucketRefused(f"the bucket has {whose}, and this directory is {identity.broker_id}")


def _create(key: str, data: bytes) -> Steps[None]:
    """Create an object unless there is one; on return there is."""
    attempt = 0
    is_said_to_exist = False
    while True:
        try:
            if is_said_to_exist:
                yield Get(key)
            else:
                yield Create(key, data)
        except ObjectExists:
            # A store may say so for two creations at the same time, of which none has happened yet.
            is_said_to_exist = True
            continue
        except ObjectMissing:
            is_said_to_exist = False
            attempt += 1
            yield Pause(attempt)
            continue
        except StoreUnavailable:
            attempt += 1
            yield Pause(attempt)
            continue
        return
