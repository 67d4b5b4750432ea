"""Bundles: the bytes of many pieces, sorted by file, so that the pieces are not needed any more."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import google_crc32c

from cordwood.bucket.ownership import hash_of
from cordwood.bucket.state.body import STRETCH_BYTES_MAX, ObjectRef
from cordwood.bucket.state.tree import BucketTreeFile, Extent, Tree

#: The size of a bundle, but for its last stretch.
BUNDLE_BYTES = 32 << 20
#: So few bytes of a file are in its page.
INLINE_BYTES = 512


def bundle(
    tree: Tree, pieces: Mapping[str, bytes], new_key: Callable[[], str], create: Callable[[str, bytes], None]
) -> None:
    """Let no file of *tree* have bytes in one of *pieces*: those go to new objects, or into the pages.

    *create* is called with each object. Bytes of a file that lie beside each other are one stretch in it.
    """
    content, key, moved = bytearray(), new_key(), list[tuple[BucketTreeFile, list[Extent]]]()

    def finish() -> None:
        data = bytes(content)
        create(key, data)
        tree.objects[key] = ObjectRef(key, len(data), hash_of(data))
        for file, extents in moved:
            tree.replace_extents(file, extents)

    for path in sorted(tree.touched):
        file = tree.find(path)
        if not isinstance(file, BucketTreeFile) or not any(each.key in pieces for each in file.extents):
            continue
        small = sum(each.end - each.start for each in file.extents if each.key in pieces) <= INLINE_BYTES
        extents: list[Extent] = []
        for run in _runs(file.extents, pieces):
            if run[0].key not in pieces:
                extents += run
                continue
            data = b"".join(_bytes_of(each, pieces) for each in run)
            if small:
                extents.append(Extent(run[0].start, run[-1].end, "", 0, 0, 0, len(data), data))
                continue
            crc = google_crc32c.value(data)
            extents.append(Extent(run[0].start, run[-1].end, key, len(content), crc, 0, len(data)))
            content += data
        moved.append((file, extents))
        if len(content) >= BUNDLE_BYTES:
            finish()
            content, key, moved = bytearray(), new_key(), []
    if content:
        finish()
    else:
        for file, extents in moved:
            tree.replace_extents(file, extents)


def _runs(extents: list[Extent], pieces: Mapping[str, bytes]) -> Iterator[list[Extent]]:
    """Yield the extents in order; those in pieces that follow each other together, up to a stretch."""
    run: list[Extent] = []
    for each in extents:
        fits = (
            run
            and run[-1].key in pieces
            and each.key in pieces
            and run[-1].end == each.start
            and each.end - run[0].start <= STRETCH_BYTES_MAX
        )
        if run and not fits:
            yield run
            run = []
        run.append(each)
    if run:
        yield run


def _bytes_of(extent: Extent, pieces: Mapping[str, bytes]) -> bytes:
    size = extent.end - extent.start
    data = pieces[extent.key][extent.position : extent.position + size]
    assert len(data) == size, "a piece ends before its bytes do"
    return data
