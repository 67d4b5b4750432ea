"""Pages: the files of the log as of the floor, spread over objects by the partition that they belong to.

docs/formats/bucket.md has the layout. A page has all files of its groups, so a change rewrites one page.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

import google_crc32c
import msgspec

from cordwood.bucket.state.body import ObjectRef, check_path, pack_table, unpack_table
from cordwood.bucket.state.tree import BucketTreeFile, Extent, Tree
from cordwood.errors import BucketDamaged

MAGIC = b"CWPG"
FORMAT = 1
#: With more bytes than this on average, twice as many pages are made.
PAGE_BYTES_MAX = 512 << 10

_HEAD = struct.Struct(
    ">"
    "4s"  # magic
    "H"  # format
    "H"  # reserved, 0
)
_CRC = struct.Struct(">I")


class PagedExtent(msgspec.Struct, frozen=True, array_like=True):
    """An extent whose object is the n-th of the page, or -1 if its bytes are in ``data``."""

    start: int
    end: int
    source: int
    position: int
    crc32c: int
    before: int
    whole: int
    data: bytes


class PagedFile(msgspec.Struct, frozen=True, array_like=True):
    """A file of a page."""

    path: str
    size: int
    extents: tuple[PagedExtent, ...]


class Page(msgspec.Struct, frozen=True, array_like=True):
    """The content of a page."""

    at_ms: int
    objects: tuple[ObjectRef, ...]
    directories: tuple[str, ...]
    files: tuple[PagedFile, ...]


_DECODER = msgspec.msgpack.Decoder(Page)


def group_of(path: str) -> str:
    """Return what decides which page a path belongs to: its partition, or the directory it is in."""
    return "/".join(path.split("/", 3)[:3])


def page_of(path: str, count: int) -> int:
    """Return which of *count* pages a path belongs to."""
    return int(google_crc32c.value(group_of(path).encode())) % count


def make_pages(tree: Tree, count: int, wanted: Iterable[int]) -> dict[int, bytes]:
    """Return those of *count* pages of *tree* that are *wanted*. Every extent has bytes or a known object."""
    numbers = set(wanted)
    files: dict[int, list[PagedFile]] = {number: [] for number in numbers}
    directories: dict[int, list[str]] = {number: [] for number in numbers}
    objects: dict[int, dict[str, int]] = {number: {} for number in numbers}
    for path in tree.directories():
        if (number := page_of(path, count)) in numbers:
            directories[number].append(path)
    for path, file in tree.files():
        number = page_of(path, count)
        if number in numbers:
            files[number].append(_paged(path, file, objects[number]))
    made: dict[int, bytes] = {}
    for number in sorted(numbers):
        refs = tuple(tree.objects[key] for key in objects[number])
        page = Page(tree.at_ms, refs, tuple(directories[number]), tuple(files[number]))
        made[number] = encode_page(page)
    return made


def _paged(path: str, file: BucketTreeFile, sources: dict[str, int]) -> PagedFile:
    extents = tuple(
        PagedExtent(
            each.start,
            each.end,
            sources.setdefault(each.key, len(sources)) if each.key else -1,
            each.position,
            each.crc32c,
            each.before,
            each.whole,
            each.data,
        )
        for each in file.extents
    )
    return PagedFile(path, file.size, extents)


def encode_page(page: Page) -> bytes:
    """Return the bytes of a page."""
    data = _HEAD.pack(MAGIC, FORMAT, 0) + pack_table(page)
    return data + _CRC.pack(google_crc32c.value(data))


def read_page(tree: Tree, key: str, data: bytes) -> None:
    """Add the files of the page under *key* to *tree*.

    Raises:
        BucketDamaged: If any bit of it is wrong, or it is of a newer version.
    """
    end = len(data) - _CRC.size
    if end < _HEAD.size:
        raise BucketDamaged(key, f"has {len(data)} bytes, a page has more", len(data))
    magic, version, _ = _HEAD.unpack_from(data)
    if magic != MAGIC:
        raise BucketDamaged(key, f"begins with {magic!r}, a page with {MAGIC!r}", 0)
    (crc,) = _CRC.unpack_from(data, end)
    found = google_crc32c.value(data[:end])
    if crc != found:
        raise BucketDamaged(key, f"checksum is {crc:08x}, but its content has {found:08x}", end)
    if version != FORMAT:
        raise BucketDamaged(key, f"has format {version}; this version reads format {FORMAT}", 4)
    packed, _ = unpack_table(key, memoryview(data)[_HEAD.size : end])
    try:
        page = _DECODER.decode(packed)
    except msgspec.MsgspecError as error:
        raise BucketDamaged(key, f"cannot be parsed: {error}") from None
    tree.at_ms = max(tree.at_ms, page.at_ms)
    for ref in page.objects:
        tree.objects[ref.key] = ref
    for path in page.directories:
        check_path(key, path)
        tree.add_directory(path)
    for file in page.files:
        check_path(key, file.path)
        tree.put(
            file.path, BucketTreeFile(file.size, [_extent(key, file, each, page) for each in file.extents])
        )


def _extent(key: str, file: PagedFile, paged: PagedExtent, page: Page) -> Extent:
    size = paged.end - paged.start
    if not 0 <= paged.start < paged.end <= file.size:
        raise BucketDamaged(
            key, f"{file.path}: has {file.size} bytes, and some from {paged.start} to {paged.end}"
        )
    if paged.source < 0:
        if len(paged.data) != size:
            raise BucketDamaged(key, f"{file.path}: {size} bytes are said to be {len(paged.data)}")
        return Extent(paged.start, paged.end, "", 0, 0, 0, size, paged.data)
    if paged.source >= len(page.objects):
        raise BucketDamaged(key, f"{file.path}: names object {paged.source} of {len(page.objects)}")
    ref = page.objects[paged.source]
    first = paged.position - paged.before
    if first < 0 or first + paged.whole > ref.size or paged.before + size > paged.whole:
        raise BucketDamaged(key, f"{file.path}: bytes from {paged.position} on are not in {ref.key}")
    return Extent(
        paged.start, paged.end, ref.key, paged.position, paged.crc32c, paged.before, paged.whole, b""
    )
