"""Read the state of a log from its pages and pieces."""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import NamedTuple

from cordwood.bucket.ownership import (
    HEAD_SIZE,
    MANIFEST_KEY,
    FellBehind,
    Get,
    LogManifest,
    LogPiece,
    ObjectStore,
    Reading,
    VersionedManifest,
    hash_of,
    perform,
    piece_key,
    read_manifest,
    until_answered,
)
from cordwood.bucket.state import Tree, decode_body, read_page
from cordwood.errors import BucketDamaged, ObjectMissing

#: How often a missing object is looked for again, before it counts as lost.
_TRIES = 6


class BucketState(NamedTuple):
    """The state of the log in a bucket when it was taken over."""

    #: The manifest that the claim replaced.
    manifest: LogManifest
    tree: Tree
    #: The pieces since the floor that have a body, by their keys.
    pieces: dict[str, bytes]
    #: The nonces of the owners of those pieces.
    changed_by: list[str]


def is_continued_by(manifest: LogManifest, changed_by: Container[str], nonces: Container[str]) -> bool:
    """Return whether only owners with *nonces* changed anything since the first of their pieces.

    *changed_by* are the owners of the pieces since the floor that have a body. An owner that shipped nothing
    has changed nothing.
    """
    if not manifest.owners:
        # The log was founded, and its founder had no time to ship anything.
        return True
    for owner in reversed(manifest.owners):
        if owner.nonce in nonces:
            return True
        if owner.first_seq < manifest.floor or owner.nonce in changed_by:
            return False
    return False


def load_pages(store: ObjectStore, manifest: LogManifest, pause: Callable[[int], None]) -> Tree:
    """Return the state as of the floor of *manifest*.

    Raises:
        ObjectMissing: If a page is gone: the manifest is not in force any more.
        BucketDamaged: If a page is not the one that the manifest names.
    """
    tree = Tree()
    for ref in manifest.pages:
        stored = perform(store, until_answered(Get(ref.key)), pause)
        if hash_of(stored.data) != ref.sha256:
            raise BucketDamaged(ref.key, "is not the page that the manifest names: its SHA-256 differs")
        read_page(tree, ref.key, stored.data)
    tree.touched.clear()
    tree.gone.clear()
    return tree


def read_state(
    store: ObjectStore, pause: Callable[[int], None]
) -> tuple[VersionedManifest, Tree, Reading, list[LogPiece]]:
    """Return the manifest, the state as of its floor, the reading after all pieces, and these pieces.

    Raises:
        BucketDamaged: If an object is missing or cannot be read.
    """
    attempt = 0
    while True:
        pieces: list[LogPiece] = []
        try:
            current = perform(store, read_manifest(), pause)
            reading = Reading.from_floor(current.manifest)
            tree = load_pages(store, current.manifest, pause)
            while found := perform(store, reading.poll(), pause)[0]:
                pieces += found
            perform(store, reading.check_end(), pause)
        except (FellBehind, ObjectMissing) as error:
            # The owner wrote new pages meanwhile, unless it goes on like that.
            attempt += 1
            if isinstance(error, ObjectMissing) and (error.key == MANIFEST_KEY or attempt >= _TRIES):
                raise BucketDamaged(error.key, "is missing") from None
            pause(attempt)
            continue
        return current, tree, reading, pieces


def apply_piece(tree: Tree, piece: LogPiece) -> None:
    """Apply *piece* to *tree*.

    Raises:
        BucketDamaged: If it contradicts itself.
    """
    key = piece_key(piece.header.seq)
    table, content_at = decode_body(key, piece.body)
    tree.apply(table, key, HEAD_SIZE + content_at)
