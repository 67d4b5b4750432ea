"""Make the body of a piece of a cut: with bytes that the journal kept, and bytes read from the files."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

import google_crc32c

from cordwood.bucket.ownership import hash_of
from cordwood.bucket.state.body import (
    STRETCH_BYTES_MAX,
    BodyTable,
    FilePatch,
    ObjectRef,
    StoredStretch,
    encode_body,
)
from cordwood.disk import CutChange, DiskJournal, JournalCut, ReadableFiles, changed_bytes, join

#: A piece has at most so many bytes of files; the rest are objects of their own, so that they are sent beside
#: each other and memory stays bounded.
PIECE_BYTES = 16 << 20
#: The size of such an object, but for its last stretch.
OBJECT_BYTES = 32 << 20


class Disturbed(Exception):
    """A file changed while the bytes of a cut were read: the changes since belong to the same piece."""


class Body(NamedTuple):
    """The body of a piece, and how many bytes of files it and its objects have."""

    data: bytes
    content_bytes: int


class BodyBuilder:
    """Builds bodies. One thread at a time.

    *create* is called with each object of its own that a body names, before the body is returned.
    """

    def __init__(
        self,
        files: ReadableFiles,
        root: str,
        journal: DiskJournal,
        new_key: Callable[[], str],
        create: Callable[[str, bytes], None],
    ) -> None:
        self._files = files
        self._root = root
        self._journal = journal
        self._new_key = new_key
        self._create = create

    def build(self, cut: JournalCut, at_ms: int) -> Body:
        """Return the body that says what *cut* does.

        Raises:
            Disturbed: If a file changed meanwhile. Add what was cut since, and try again.
        """
        sizes = changed_bytes(cut)
        content = _PieceContent(sizes > PIECE_BYTES, self._new_key, self._create)
        patches: list[FilePatch] = []
        for path, change in cut.files.items():
            stretches = tuple(content.add(start, data) for start, data in self._stretches(path, change))
            cut_to = -1 if change.change.cut_to is None else change.change.cut_to
            patches.append(FilePatch(path, change.change.fresh, cut_to, stretches, change.change.size))
        content.finish()
        table = BodyTable(at_ms, cut.removed, cut.directories, tuple(content.objects), tuple(patches))
        return Body(encode_body(table, content.inline), sizes)

    def _stretches(self, path: str, change: CutChange) -> Iterator[tuple[int, bytes]]:
        """Yield the positions and bytes of a changed file, in stretches of a bounded size."""
        kept, start = bytearray(), 0
        with contextlib.ExitStack() as stack:
            file = None
            for each in change.change.patches:
                if each.data is not None:
                    fits = len(kept) + len(each.data) <= STRETCH_BYTES_MAX
                    if kept and (start + len(kept) != each.start or not fits):
                        yield start, bytes(kept)
                        kept = bytearray()
                    if not kept:
                        start = each.start
                    kept += each.data
                    continue
                if kept:
                    yield start, bytes(kept)
                    kept = bytearray()
                if file is None:
                    try:
                        file = self._files.open(join(self._root, path), "read")
                    except FileNotFoundError:
                        raise Disturbed from None
                    stack.callback(file.close)
                for position in range(each.start, each.end, STRETCH_BYTES_MAX):
                    size = min(STRETCH_BYTES_MAX, each.end - position)
                    data = file.read_at(position, size)
                    if len(data) != size or not self._journal.is_undisturbed(change):
                        raise Disturbed
                    yield position, data
            if kept:
                yield start, bytes(kept)


class _PieceContent:
    """The bytes of a body, in it or in objects of their own."""

    def __init__(self, apart: bool, new_key: Callable[[], str], create: Callable[[str, bytes], None]) -> None:
        self.inline: list[bytes] = []
        self.objects: list[ObjectRef] = []
        self._apart = apart
        self._new_key = new_key
        self._create = create
        self._waiting: list[bytes] = []
        self._position = 0

    def add(self, start: int, data: bytes) -> StoredStretch:
        """Add the bytes at *start* of a file."""
        if self._apart and self._position >= OBJECT_BYTES:
            self.finish()
        source = len(self.objects) + 1 if self._apart else 0
        stretch = StoredStretch(start, len(data), source, self._position, google_crc32c.value(data))
        self._position += len(data)
        (self._waiting if self._apart else self.inline).append(data)
        return stretch

    def finish(self) -> None:
        """Create the object that is being filled, if there is one."""
        if self._waiting:
            data, key = b"".join(self._waiting), self._new_key()
            self._create(key, data)
            self.objects.append(ObjectRef(key, len(data), hash_of(data)))
            self._waiting, self._position = [], 0
