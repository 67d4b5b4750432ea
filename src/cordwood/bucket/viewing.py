"""Read the log in a bucket as it is now, without owning it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cordwood.bucket.loading import apply_piece, read_state
from cordwood.bucket.ownership import (
    IDENTITY_KEY,
    BucketIdentity,
    LogManifest,
    ObjectStore,
    Reading,
    perform,
    read_identity,
    read_manifest,
)
from cordwood.bucket.shipping import BACKOFF_MAX_MS, BACKOFF_MS
from cordwood.bucket.state import BucketFiles, ObjectReader, Tree
from cordwood.bucket.stores import store_at
from cordwood.errors import BucketDamaged, BucketRefused, ObjectMissing, StoreUnavailable
from cordwood.host import Host

#: How long a reader waits for a store that does not answer.
WAIT_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class BucketView:
    """The state of a log in a bucket at one moment."""

    identity: BucketIdentity
    manifest: LogManifest
    tree: Tree
    #: The next piece, and the hash of the last one that counts.
    reading: Reading
    files: BucketFiles
    reader: ObjectReader


def waiting(host: Host, seconds: float = WAIT_SECONDS) -> Callable[[int], None]:
    """Return what waits between the tries of a request, and gives up after *seconds* in all.

    It raises StoreUnavailable then.
    """
    deadline = host.clock.monotonic_ns() + int(seconds * 1e9)
    event = host.new_event()

    def pause(attempt: int) -> None:
        if host.clock.monotonic_ns() > deadline:
            raise StoreUnavailable(f"the store of the bucket did not answer for {seconds:g} s")
        event.wait(min(BACKOFF_MS << min(attempt, 16), BACKOFF_MAX_MS) / 1000)

    return pause


def view_bucket(bucket: str | ObjectStore, host: Host) -> BucketView:
    """Return the newest state of the log in *bucket*, a URL or a store.

    Raises:
        BucketRefused: If it cannot be opened, or has no log.
        BucketDamaged: If the state cannot be read.
        StoreUnavailable: If the store does not answer.
    """
    store = store_at(bucket) if isinstance(bucket, str) else bucket
    pause = waiting(host)
    identity = perform(store, read_identity(), pause)
    if identity is None:
        check_no_log(store, pause)
        raise BucketRefused(f"there is no log in {bucket if isinstance(bucket, str) else 'the bucket'}")
    current, tree, reading, pieces = read_state(store, pause)
    for piece in pieces:
        apply_piece(tree, piece)
    reader = ObjectReader(store, pause)
    return BucketView(identity, current.manifest, tree, reading, BucketFiles(tree, reader), reader)


def check_no_log(store: ObjectStore, pause: Callable[[int], None]) -> None:
    """Make sure that a bucket without an identity has no log either.

    Raises:
        BucketDamaged: If somebody owned one: the identity is lost.
    """
    try:
        manifest = perform(store, read_manifest(), pause).manifest
    except ObjectMissing:
        return
    if manifest.owners:
        raise BucketDamaged(IDENTITY_KEY, "is missing, and there is a log")
