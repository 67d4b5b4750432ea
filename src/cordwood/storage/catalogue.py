"""The catalogue of topics: an append-only checksummed log. docs/formats/directory.md has its bytes."""

from __future__ import annotations

import contextlib
import errno
import struct
from collections.abc import Sequence
from dataclasses import dataclass

import google_crc32c
import msgspec

from cordwood.errors import LogFailed, MetadataDamaged
from cordwood.storage.files import Files, join, os_error, read_file, write_atomically
from cordwood.storage.mark import Mark, MarkFile, read_marks

MAGIC = b"CWCATLG1"
_HEAD = struct.Struct(">II")
ENTRY_MAX = 16 << 20
#: The topic that holds the records of all those kept in the shared log. No client ever sees it.
SHARED_TOPIC = "__shared"


class TopicEntry(msgspec.Struct, frozen=True, tag_field="kind", tag="topic"):
    """A topic that was created."""

    name: str
    id: str
    partitions: int
    config: dict[str, str] = {}


class DeletedEntry(msgspec.Struct, frozen=True, tag_field="kind", tag="deleted"):
    """The topic with this id is no more."""

    id: str


class ProducerIdsEntry(msgspec.Struct, frozen=True, tag_field="kind", tag="producer-ids"):
    """Ids of idempotent producers below this one may have been given out."""

    next_id: int


Entry = TopicEntry | DeletedEntry | ProducerIdsEntry


def is_shared(entry: TopicEntry) -> bool:
    """Return whether the records of a topic are kept in the shared log. What it says itself counts."""
    return entry.config.get("cordwood.storage") == "shared"


_DECODER: msgspec.json.Decoder[Entry] = msgspec.json.Decoder(Entry)


@dataclass(frozen=True, slots=True)
class Scanned:
    """What the bytes of a catalogue say: entries, and where the valid ones end."""

    entries: list[Entry]
    end: int
    fault: str | None


def scan(data: bytes) -> Scanned:
    """Read entries until the end or the first that is not whole and valid. Any bytes may come in."""
    if data[: len(MAGIC)] != MAGIC:
        return Scanned([], 0, "does not begin as a catalogue")
    entries: list[Entry] = []
    position = len(MAGIC)
    while position < len(data):
        fault = f"at byte {position}: "
        if len(data) - position < _HEAD.size:
            return Scanned(entries, position, fault + "an entry is cut off")
        size, crc = _HEAD.unpack_from(data, position)
        body = data[position + _HEAD.size : position + _HEAD.size + size]
        if len(body) < size or not size:
            return Scanned(entries, position, fault + f"an entry of {size} bytes is cut off")
        if google_crc32c.value(body) != crc:
            return Scanned(entries, position, fault + "an entry does not have its checksum")
        try:
            entries.append(_DECODER.decode(body))
        except msgspec.MsgspecError as error:
            return Scanned(entries, position, fault + f"an entry cannot be parsed: {error}")
        position += _HEAD.size + size
    return Scanned(entries, position, None)


class Contents:
    """What the entries of a catalogue add up to: topics by name and by id, those deleted, producer ids.

    One writer; other threads may look names up, and list them in one step (``list(topics)``).
    """

    def __init__(self, entries: Sequence[Entry]) -> None:
        self.topics: dict[str, TopicEntry] = {}
        self.by_id: dict[str, TopicEntry] = {}
        self.deleted: dict[str, TopicEntry] = {}
        #: The last deleted topic of each name.
        self.deleted_names: dict[str, TopicEntry] = {}
        self.next_producer_id = 0
        self.apply(entries)

    def apply(self, entries: Sequence[Entry]) -> None:
        """Add what *entries* say, in order; the last word on a topic counts."""
        for entry in entries:
            match entry:
                case TopicEntry():
                    self.topics[entry.name] = self.by_id[entry.id] = entry
                case DeletedEntry():
                    topic = self.by_id.pop(entry.id, None)
                    if topic is not None:
                        self.deleted[topic.id] = self.deleted_names[topic.name] = topic
                        if self.topics.get(topic.name) is topic:
                            del self.topics[topic.name]
                case ProducerIdsEntry():
                    self.next_producer_id = max(self.next_producer_id, entry.next_id)


def catalogue_path(data: str) -> str:
    """Return the path of the catalogue."""
    return join(data, "meta", "catalogue.log")


def catalogue_mark_path(data: str) -> str:
    """Return the path of the catalogue's mark."""
    return join(data, "meta", "catalogue.mark")


def read_catalogue(files: Files, data: str) -> tuple[Scanned, bytes]:
    """Return what the catalogue says and its bytes, changing nothing.

    Raises:
        MetadataDamaged: If it is missing, or wrong where it is known to be synced.
    """
    path = catalogue_path(data)
    # Before the log: a writer beside us may add to both meanwhile, and the log must have what the mark says.
    marks = read_marks(files, catalogue_mark_path(data))
    try:
        content = read_file(files, path)
    except FileNotFoundError:
        raise MetadataDamaged(path, "is missing") from None
    scanned = scan(content)
    synced = marks[0].position if marks else len(MAGIC)
    if scanned.end < synced:
        raise MetadataDamaged(path, scanned.fault or f"has {len(content)} bytes, but {synced} were synced")
    return scanned, content


def catalogue_state(files: Files, data: str) -> object:
    """Return something that is equal for as long as the catalogue says the same.

    Raises:
        MetadataDamaged: If it is missing.
    """
    # In this order, as `read_catalogue` reads them: what changes in between is seen the next time.
    marks = tuple(read_marks(files, catalogue_mark_path(data)))
    path = catalogue_path(data)
    try:
        with contextlib.closing(files.open(path, "read")) as file:
            return marks, file.size()
    except FileNotFoundError:
        raise MetadataDamaged(path, "is missing") from None


def has_entries(files: Files, data: str) -> bool:
    """Return whether a catalogue in *data* ever had an entry, as far as anything is left to say so."""
    marks = read_marks(files, catalogue_mark_path(data))
    if any(mark.position > len(MAGIC) for mark in marks):
        return True
    path = catalogue_path(data)
    return files.exists(path) and len(read_file(files, path)) > len(MAGIC)


class Catalogue:
    """The writer's side. One caller at a time."""

    def __init__(self, files: Files, data: str, scanned: Scanned, mark: MarkFile) -> None:
        self._file = files.open(catalogue_path(data), "write")
        self._end = scanned.end
        self._count = len(scanned.entries)
        self._mark = mark
        self._failed = False
        self.contents = Contents(scanned.entries)

    @classmethod
    def create(cls, files: Files, data: str) -> Catalogue:
        """Make an empty catalogue, replacing what an unfinished first boot left. Durable on return."""
        write_atomically(files, catalogue_path(data), MAGIC)
        if files.exists(catalogue_mark_path(data)):
            files.unlink(catalogue_mark_path(data))
        mark = MarkFile.create(files, catalogue_mark_path(data), _mark(len(MAGIC), 0))
        return cls(files, data, Scanned([], len(MAGIC), None), mark)

    @classmethod
    def open(cls, files: Files, data: str) -> Catalogue:
        """Open the catalogue, cutting a torn tail; a copy of it goes to the quarantine.

        Raises:
            MetadataDamaged: If it is missing, or wrong where it is known to be synced.
        """
        scanned, content = read_catalogue(files, data)
        opened = cls(files, data, scanned, MarkFile.open(files, catalogue_mark_path(data)))
        torn = content[scanned.end :]
        if torn:
            if any(torn):
                quarantine = join(data, "quarantine")
                files.make_directories(quarantine)
                files.sync_directory(data)
                write_atomically(files, join(quarantine, f"catalogue-{scanned.end}.torn"), torn)
            opened._file.truncate(scanned.end)
        # What is kept may be in the cache only, and is about to be believed.
        opened._file.sync()
        opened._mark.write(_mark(opened._end, opened._count))
        opened._mark.sync()
        return opened

    def add(self, entries: Sequence[Entry]) -> None:
        """Append *entries* with one sync, all or none. Durable on return.

        Raises:
            OSError: If there was no space. Nothing has changed.
            LogFailed: If the sync failed; the catalogue takes no more.
        """
        if self._failed:
            raise LogFailed(f"{self._file.path}: an earlier sync failed")
        data = bytearray()
        for entry in entries:
            body = msgspec.json.encode(entry)
            data += _HEAD.pack(len(body), google_crc32c.value(body)) + body
        try:
            written = self._file.write_at(self._end, [data])
            if written < len(data):
                raise os_error(errno.ENOSPC, self._file.path)
        except OSError:
            self._file.truncate(self._end)
            raise
        try:
            self._file.sync()
            self._mark.write(_mark(self._end + len(data), self._count + len(entries)))
        except OSError as error:
            self._failed = True
            raise LogFailed(f"{self._file.path}: sync failed: {error}") from error
        self._end += len(data)
        self._count += len(entries)
        self.contents.apply(entries)

    @property
    def failed(self) -> bool:
        """Whether a sync failed, so that nobody knows what of the catalogue is on the device."""
        return self._failed

    def close(self) -> None:
        """Sync the mark and let go.

        Raises:
            LogFailed: If that sync failed.
        """
        try:
            if not self._failed:
                self._mark.sync()
        except OSError as error:
            self._failed = True
            raise LogFailed(f"{self._file.path}: sync failed: {error}") from error
        finally:
            self._mark.close()
            self._file.close()


def _mark(position: int, entries: int) -> Mark:
    return Mark(0, 0, 0, position, entries, 0, 0, 0, 0, 0)
