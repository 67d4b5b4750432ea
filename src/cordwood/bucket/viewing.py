"""Read the log in a bucket as it is now, without owning it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cordwood.bucket.ownership import (
    BucketIdentity,
    FellBehind,
    LogManifest,
    ObjectStore,
    Reading,
    perform,
    read_identity,
    read_manifest,
)
from cordwood.bucket.shipping import BACKOFF_MAX_MS, BACKOFF_MS, apply_piece, load_pages
from cordwood.bucket.state import BucketFiles, ObjectReader, Tree
from cordwood.bucket.stores import store_at
from cordwood.errors import BucketRefused, ObjectMissing, StoreUnavailable
from cordwood.host import Host

#: How long a reader waits for a store that does not answer.
WAIT_SECONDS = 60.0
#: How often reading begins again because the owner moved the floor meanwhile.
_TRIES = 8


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
        raise BucketRefused(f"there is no log in {bucket if isinstance(bucket, str) else 'the bucket'}")
    for attempt in range(_TRIES):
        try:
            return _view(store, identity, pause)
        except (FellBehind, ObjectMissing):
            # The owner wrote new pages while the old ones were read.
            pause(attempt)
    raise StoreUnavailable("the log in the bucket changed faster than it could be read")


def _view(store: ObjectStore, identity: BucketIdentity, pause: Callable[[int], None]) -> BucketView:
    manifest = perform(store, read_manifest(), pause).manifest
    tree = load_pages(store, manifest, pause)
    reading = Reading.from_floor(manifest)
    while True:
        pieces, manifest = perform(store, reading.poll(), pause)
        for piece in pieces:
            apply_piece(tree, piece)
        if not pieces:
            break
    reader = ObjectReader(store, pause)
    return BucketView(identity, manifest, tree, reading, BucketFiles(tree, reader), reader)
