"""Bring a data directory and the log in a bucket together, before the directory is opened.

Either the directory continues what is in the bucket, and what differs is shipped again. Or another machine
wrote to the bucket since, and then the bucket is right: local bytes that it lacks go to ``quarantine/``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import google_crc32c
import msgspec

from cordwood.bucket.fetching import fetch_file, sync_directories
from cordwood.bucket.state import BucketFiles, BucketTreeFile, Tree
from cordwood.bucket.versions import VERSION_FILE, read_version
from cordwood.disk import (
    DiskJournal,
    Files,
    ReadableFile,
    join,
    parent,
    read_file,
    read_metadata,
    remove_tree,
    write_all,
    write_atomically,
    write_metadata,
)
from cordwood.errors import BucketDamaged, BucketRefused
from cordwood.storage.meta import BUCKET_RECORD

#: Files up to this size are compared byte for byte, and so are larger ones of partitions that changed.
COMPARED_BYTES = 1 << 20
_QUARANTINE = "quarantine"


class CopiedUpTo(msgspec.Struct, frozen=True):
    """The directory has all pieces below ``next_seq``; the last one that counts has the hash ``previous``.

    Later ones may be there in part: applying them again, in order, gives what they say. With the number 0 an
    unknown part of the log is there, and nothing else.
    """

    next_seq: int = 0
    previous: str = ""


class BucketRecord(msgspec.Struct, frozen=True):
    """The content of ``meta/bucket.json``.

    ``nonces`` are those of this directory's ownerships: of the last start that attached it, and of later
    starts that failed. It is not ``attached`` while files of the bucket are fetched: a directory that has
    only some of them must never be shipped. ``copied`` is set while the
    directory is the copy of a standby: then all that it has comes from the bucket.
    """

    broker_id: str
    nonces: tuple[str, ...]
    attached: bool
    copied: CopiedUpTo | None = None
    #: The bucket epoch under which the directory last became what another machine had shipped; 0 if never.
    #: `storage.meta.read_takeover` reads it.
    takeover: int = 0


_DECODER = msgspec.json.Decoder(BucketRecord)
#: How many nonces of failed starts are kept. A takeover may fail after its nonce was recorded, any number of
#: times; such an owner ships nothing, so it may be forgotten.
_NONCES_MAX = 64


def is_ignored(path: str) -> bool:
    """Return whether a path of a data directory is not shipped.

    Locks and markers are of one machine, the reserve is only space, keys go nowhere unasked, and of the
    temporary files only those of Spark's sink may be promised to somebody.
    """
    return (
        path in _IGNORED
        or path.startswith(_IGNORED_BELOW)
        or (path.startswith("tmp/") and path != "tmp/sink" and not path.startswith("tmp/sink/"))
    )


_MARKERS = ("meta/lock", "meta/clean", "meta/reserve", BUCKET_RECORD, f"{BUCKET_RECORD}.tmp", VERSION_FILE)
_IGNORED = frozenset({*_MARKERS, "tmp", _QUARANTINE})
_IGNORED_BELOW = ("meta/keys/checkpoint.key", f"{_QUARANTINE}/")


def is_overwritten(path: str) -> bool:
    """Return whether a file is small and overwritten in place: its unsynced content counts too."""
    return path.endswith("/mark") or path == "meta/catalogue.mark"


def read_record(files: Files, data: str) -> BucketRecord | None:
    """Return which bucket the directory is shipped to, None if to none.

    Raises:
        MetadataDamaged: If that cannot be read.
    """
    path = join(data, BUCKET_RECORD)
    return read_metadata(files, path, _DECODER) if files.exists(path) else None


def note_nonce(files: Files, data: str, broker_id: str, nonce: str, *, attached: bool) -> None:
    """Record that this directory is about to own the log under *nonce*. Durable on return.

    *attached* counts if it was not shipped to any bucket before.

    Raises:
        BucketRefused: If the directory is shipped to the log of another broker.
    """
    before = read_record(files, data)
    if before is not None and before.broker_id != broker_id:
        reason = f"says that {data} is shipped to the log of {before.broker_id}; the bucket has {broker_id}"
        raise BucketRefused(f"{join(data, BUCKET_RECORD)} {reason}")
    if before is None:
        before = BucketRecord(broker_id, (), attached)
    # The first is that of the last start that succeeded. Without it the directory would seem to be another's.
    nonces = (*before.nonces[:1], *before.nonces[1:][-_NONCES_MAX:], nonce)
    write_metadata(files, join(data, BUCKET_RECORD), msgspec.structs.replace(before, nonces=nonces))


def note_fetching(files: Files, data: str) -> None:
    """Record that the directory has only some files of the bucket from now on. Durable on return."""
    before = read_record(files, data)
    assert before is not None, "files are fetched by an owner, whose nonce is recorded"
    if before.attached:
        write_metadata(files, join(data, BUCKET_RECORD), msgspec.structs.replace(before, attached=False))


def note_attached(files: Files, data: str, takeover: int = 0) -> None:
    """Record that the directory has everything that the bucket has. Durable on return.

    *takeover* is the bucket epoch of the caller's ownership if another machine owned the log before.
    """
    before = read_record(files, data)
    assert before is not None, "a directory is attached by an owner, whose nonce is recorded"
    nonces, takeover = before.nonces[-1:], max(before.takeover, takeover)
    after = msgspec.structs.replace(before, attached=True, nonces=nonces, takeover=takeover, copied=None)
    write_metadata(files, join(data, BUCKET_RECORD), after)


def note_copied(files: Files, data: str, broker_id: str, copied: CopiedUpTo | None) -> None:
    """Record that the directory is not attached, and how far it is a copy. Durable on return."""
    before = read_record(files, data) or BucketRecord(broker_id, (), attached=False)
    assert before.broker_id == broker_id, "a directory follows the log that it is of"
    after = msgspec.structs.replace(before, attached=False, copied=copied)
    if after != before or not files.exists(join(data, BUCKET_RECORD)):
        write_metadata(files, join(data, BUCKET_RECORD), after)


@dataclass(slots=True)
class AttachReport:
    """What bringing both together did."""

    shipped_again: list[str] = field(default_factory=list)
    fetched: list[str] = field(default_factory=list)
    quarantined: list[str] = field(default_factory=list)


def check_shippable(tree: Tree) -> None:
    """Refuse a state with files that no owner ships: a key, for example, that somebody else has planted.

    Raises:
        BucketDamaged: If there is one.
    """
    for path, _ in tree.files():
        if is_ignored(path):
            raise BucketDamaged(path, "is in the bucket, and nothing ships it")


class Attachment:
    """A local directory and the state of its log in the bucket. Used before the directory is opened."""

    def __init__(self, files: Files, data: str, tree: Tree, source: BucketFiles) -> None:
        self._files = files
        self._data = data
        self._tree = tree
        self._source = source
        self.report = AttachReport()

    # --- the directory is right -------------------------------------------------------------------

    def is_behind(self) -> bool:
        """Return whether the directory lost what the bucket has.

        It is an older copy of the directory, or a log has fewer bytes in the same state. Such a directory
        does not continue the log.
        """
        if read_version(self._files, self._data) < self._tree.at_ms:
            return True
        for path, stored in self._tree.files():
            if not path.endswith(".log") or not self._files.exists(join(self._data, path)):
                continue
            partition = parent(parent(path))
            if self._size(path) < _written(stored) and self._is_same(f"{partition}/partition.json"):
                return True
        return False

    def ship_differences(self, journal: DiskJournal) -> None:
        """Note in *journal* everything in which the bucket differs from the directory."""
        there = set[str]()
        for path, is_directory in self._walk(""):
            there.add(path)
            stored = self._tree.find(path)
            if is_directory:
                if not isinstance(stored, dict):
                    journal.made(path)
                continue
            if not isinstance(stored, BucketTreeFile):
                journal.include(path)
                self.report.shipped_again.append(path)
            elif self._grew(path, stored):
                if self._size(path) > stored.size:
                    journal.append_from(path, stored.size)
                    self.report.shipped_again.append(path)
            else:
                journal.include(path)
                self.report.shipped_again.append(path)
        gone = [path for path, _ in self._tree.files() if path not in there]
        gone += [path for path in self._tree.directories() if path not in there]
        for path in gone:
            journal.remove(path)

    def _grew(self, path: str, stored: BucketTreeFile) -> bool:
        """Return whether the local file begins with the bytes that the bucket has."""
        size = self._size(path)
        if size < stored.size:
            return False
        settled = stored.size > COMPARED_BYTES and self._is_settled(path)
        with contextlib.closing(self._files.open(join(self._data, path), "read")) as file:
            if settled:
                tail = [each for each in stored.extents if each.end > stored.size - COMPARED_BYTES]
                stored = BucketTreeFile(stored.size, tail)
                return common_prefix(stored, file, tail[0].start if tail else stored.size) >= stored.size
            return is_prefix(stored, file)

    def _is_settled(self, path: str) -> bool:
        """Return whether nothing says that a large file was replaced since it was shipped.

        A file of a segment changes only with ``partition.json``, and one of a chain only grows.
        """
        names = path.split("/")
        if names[0] != "topics" or len(names) < 4:
            return False
        return names[3] == "chain" or self._is_same("/".join([*names[:3], "partition.json"]))

    def _is_same(self, path: str) -> bool:
        stored = self._tree.find(path)
        if not isinstance(stored, BucketTreeFile) or not self._files.exists(join(self._data, path)):
            return False
        with contextlib.closing(self._files.open(join(self._data, path), "read")) as file:
            return file.size() == stored.size and is_prefix(stored, file)

    # --- the bucket is right ----------------------------------------------------------------------

    def fetch_differences(
        self, *, is_copy: bool = False, progress: Callable[[int], None] = lambda size: None
    ) -> None:
        """Make the directory what the bucket says. Durable; what it had beyond that is in ``quarantine/``.

        With *is_copy* nothing is kept, because all that it has comes from the bucket. *progress* is told the
        bytes that were fetched; what it raises ends the work.
        """
        files, data = self._files, self._data
        check_shippable(self._tree)
        self._fetch_identity()
        kept = [path for path, is_directory in self._walk("") if not is_directory]
        for path in kept:
            stored = self._tree.find(path)
            if isinstance(stored, BucketTreeFile) and self._is_same(path):
                continue
            if not is_copy:
                self._quarantine(path, stored if isinstance(stored, BucketTreeFile) else None)
            files.unlink(join(data, path))
        # First what says that it is a data directory: a crash may leave any part of the rest.
        self._fetch(progress, lambda path: path.split("/", 1)[0] == "meta")
        sync_directories(files, data, [path for path in self._tree.directories() if path == "meta"])
        self._fetch(progress, lambda path: True)
        wanted = set(self._tree.directories())
        for path in sorted((path for path, is_directory in self._walk("") if is_directory), reverse=True):
            if path not in wanted and path.startswith("topics/"):
                remove_tree(files, join(data, path))
        sync_directories(files, data, wanted)

    def _fetch(self, progress: Callable[[int], None], chosen: Callable[[str], bool]) -> None:
        """Make the directories and fetch the files that are *chosen*, as far as they are not there."""
        files, data = self._files, self._data
        for path in filter(chosen, self._tree.directories()):
            if files.exists(join(data, path)) and not files.is_directory(join(data, path)):
                files.unlink(join(data, path))
            files.make_directories(join(data, path))
        for path, _ in self._tree.files():
            if chosen(path) and not files.exists(join(data, path)):
                fetch_file(self._source, path, files, join(data, path), progress)
                self.report.fetched.append(path)

    def _fetch_identity(self) -> None:
        """Fetch ``broker.id``, durably, before all else: a directory with topics and without it is refused.

        Until all is fetched the directory is not attached, and cannot be opened without its bucket either.
        """
        path = "meta/broker.id"
        if self._tree.find(path) is not None and not self._files.exists(join(self._data, path)):
            write_atomically(self._files, join(self._data, path), read_file(self._source, path))
            self.report.fetched.append(path)

    def _quarantine(self, path: str, stored: BucketTreeFile | None) -> None:
        """Keep what a local file has beyond the bytes that the bucket has of it, if it is a log."""
        if not path.endswith(".log"):
            return
        files, local = self._files, join(self._data, path)
        with contextlib.closing(files.open(local, "read")) as file:
            size = file.size()
            start = 0 if stored is None else self._same_up_to(path, common_prefix(stored, file), file)
            if not _has_content(file, start, size):
                return
            name = f"{path.removeprefix('topics/').replace('/', '_')}.{start}.not-in-bucket"
            target = join(self._data, _QUARANTINE, name)
            files.make_directories(join(self._data, _QUARANTINE))
            number = 0
            while files.exists(target):
                number += 1
                target = join(self._data, _QUARANTINE, f"{name}.{number}")
            with contextlib.closing(files.open(target, "create")) as kept:
                for position in range(start, size, COMPARED_BYTES):
                    data = file.read_at(position, min(COMPARED_BYTES, size - position))
                    write_all(kept, position - start, data)
                kept.sync()
            files.sync_directory(join(self._data, _QUARANTINE))
            files.sync_directory(self._data)
            self.report.quarantined.append(target)

    def _same_up_to(self, path: str, start: int, file: ReadableFile) -> int:
        """Return up to where *file* has the bytes that the bucket has of it, which it does up to *start*."""
        with contextlib.closing(self._source.open(path, "read")) as stored:
            while ours := file.read_at(start, COMPARED_BYTES):
                theirs = stored.read_at(start, len(ours))
                if ours != theirs:
                    same = zip(ours, theirs, strict=False)
                    return start + next((n for n, (a, b) in enumerate(same) if a != b), len(theirs))
                start += len(ours)
        return start

    # --- both -------------------------------------------------------------------------------------

    def _size(self, path: str) -> int:
        with contextlib.closing(self._files.open(join(self._data, path), "read")) as file:
            return file.size()

    def _walk(self, below: str) -> Iterator[tuple[str, bool]]:
        """Yield the paths of the directory that are shipped, and whether each is a directory."""
        for name in self._files.list(join(self._data, below) if below else self._data):
            path = f"{below}/{name}" if below else name
            if is_ignored(path) and path != "tmp":
                continue
            is_directory = self._files.is_directory(join(self._data, path))
            if not is_ignored(path):
                yield path, is_directory
            if is_directory:
                yield from self._walk(path)


def is_prefix(stored: BucketTreeFile, file: ReadableFile) -> bool:
    """Return whether *file* begins with the bytes of *stored*, by their checksums."""
    return common_prefix(stored, file) >= stored.size


def common_prefix(stored: BucketTreeFile, file: ReadableFile, start: int = 0) -> int:
    """Return up to where *file* has the bytes of *stored* from *start* on, by whole stretches."""
    at = start
    for extent in stored.extents:
        if any(file.read_at(at, extent.start - at)):
            return at
        local = file.read_at(extent.start, extent.end - extent.start)
        if extent.data:
            same = local == extent.data
        else:
            whole = not extent.before and extent.whole == extent.end - extent.start
            same = whole and google_crc32c.value(local) == extent.crc32c
        if not same:
            return at
        at = extent.end
    end = min(stored.size, file.size())
    while at < end:
        size = min(COMPARED_BYTES, end - at)
        if any(file.read_at(at, size)):
            return at
        at += size
    return at


def _written(stored: BucketTreeFile) -> int:
    """Return where the written bytes of a file end."""
    return stored.extents[-1].end if stored.extents else 0


def _has_content(file: ReadableFile, start: int, end: int) -> bool:
    return any(
        any(file.read_at(position, min(COMPARED_BYTES, end - position)))
        for position in range(start, end, COMPARED_BYTES)
    )
