"""Check the catalogue of topics, and hold the directories that are there against it."""

from __future__ import annotations

import contextlib
import re
import struct
from dataclasses import dataclass, field
from typing import Annotated

import google_crc32c
import msgspec

from cordwood.errors import FrameError
from cordwood.storage.files import Files, join
from cordwood.storage.verify.frame import Windows
from cordwood.storage.verify.metadata import JSON_ERRORS, Text, check_mark, read_bytes
from cordwood.storage.verify.report import Tally

#: A name, and behind it the org whose topic it is, if that is not 0.
TOPIC_NAME = re.compile(r"^(?=.{1,249}\Z)(?!\.{1,2}(?:@|\Z))[a-zA-Z0-9._-]+(?:@[1-9][0-9]{0,19})?\Z")
CATALOGUE_MAGIC = b"CWCATLG1"
_ENTRY_HEADER = struct.Struct(
    ">"
    "I"  # length of the JSON
    "I"  # CRC-32C of it
)


class _Kind(msgspec.Struct):
    kind: str


class Topic(msgspec.Struct):
    """A topic that was created."""

    name: Annotated[str, msgspec.Meta(pattern=TOPIC_NAME.pattern.replace(r"\Z", "$"))]
    id: Text
    partitions: Annotated[int, msgspec.Meta(ge=1, le=(1 << 31) - 1)]
    config: dict[str, str]

    @property
    def is_shared(self) -> bool:
        """Whether its records are in the shared log, so that it has no files of its own."""
        return self.config.get("cordwood.storage") == "shared"


class _Deleted(msgspec.Struct):
    id: Text


class _ProducerIds(msgspec.Struct):
    next_id: Annotated[int, msgspec.Meta(ge=0)]


@dataclass(slots=True)
class Catalogue:
    """The topics that exist, by name, and the ids of those that did. Entries past the mark count too.

    ``names`` has the name of each id there ever was, ``gone`` the topics that were deleted, by id.
    """

    live: dict[str, Topic] = field(default_factory=dict)
    deleted: set[str] = field(default_factory=set)
    names: dict[str, str] = field(default_factory=dict)
    gone: dict[str, Topic] = field(default_factory=dict)
    producer_ids: int = 0
    entries: int = 0


@dataclass(frozen=True, slots=True)
class PartitionDirectory:
    """A directory that was there. ``topic_id`` is None where nothing readable said so."""

    path: str
    topic: str
    partition: int
    topic_id: str | None
    headless: bool = False
    """There is no ``partition.json``, but there are records."""


@dataclass(frozen=True, slots=True)
class VanishedTopic:
    """A directory that went while it was read, and the topic ids that were in it."""

    path: str
    topic_ids: frozenset[str]


def check_catalogue(files: Files, meta: str, tally: Tally) -> Catalogue | None:
    """Check every entry and return what they say, or None if they cannot be read to the mark."""
    path, mark_path = join(meta, "catalogue.log"), join(meta, "catalogue.mark")
    # The mark first: it only moves on, so what it says is true of the log read after it.
    mark = read_bytes(tally, files, mark_path)
    slots = [] if mark is None else check_mark(tally, mark_path, mark)
    try:
        file = files.open(path, "read")
    except OSError as error:
        tally.add_unreadable(path, error)
        return None
    found = None
    with contextlib.closing(file), tally.reading(path):
        stop = slots[0].position if slots else 0
        walk = _CatalogueWalk(Windows(file, file.size(), tally, hashed=False), stop, tally)
        found = walk.catalogue if walk.run() else None
    return found  # noqa: RET504 - `reading` takes errors in, so there may be none


class _CatalogueWalk:
    def __init__(self, windows: Windows, stop: int, tally: Tally) -> None:
        self.catalogue = Catalogue()
        self._windows = windows
        self._stop = stop
        self._tally = tally

    def run(self) -> bool:
        """Read every entry. Return whether all those below the mark are whole."""
        windows, path, stop = self._windows, self._windows.path, self._stop
        if windows.stop < stop:
            found = f"{windows.stop} bytes"
            self._tally.add(
                "corruption", path, windows.stop, expected=f"{stop} bytes", found=found, what="size"
            )
        position = 0
        try:
            position = self._check_magic()
            while position < windows.stop:
                position = self._check_entry(position)
        except FrameError as error:
            if error.position < stop or position < stop:
                self._tally.add_error("corruption", path, error)
                return False
            if error.found != "zeros":
                self._tally.add_error("note", path, error)
        self._tally.bytes += min(position, stop)
        return windows.stop >= stop

    def _check_magic(self) -> int:
        index = self._windows.load(0, len(CATALOGUE_MAGIC))
        found = self._windows.data[index : index + len(CATALOGUE_MAGIC)]
        if found != CATALOGUE_MAGIC:
            raise FrameError(position=0, expected=CATALOGUE_MAGIC, found=found, what="magic")
        return len(CATALOGUE_MAGIC)

    def _check_entry(self, position: int) -> int:
        """Check the entry at *position* and return where it ends.

        Raises:
            FrameError: If it is not whole or not what was written.
        """
        windows = self._windows
        index = windows.load(position, min(_ENTRY_HEADER.size, windows.stop - position))
        header = windows.data[index : index + _ENTRY_HEADER.size]
        if not header.strip(b"\0"):
            raise FrameError(position=position, expected="an entry", found="zeros", what="entry")
        index = windows.load(position, _ENTRY_HEADER.size)
        size, crc = _ENTRY_HEADER.unpack_from(windows.data, index)
        start: int = position + _ENTRY_HEADER.size
        end: int = start + size
        # An entry that begins below the mark also ends there.
        limit = self._stop if position < self._stop else windows.stop
        if end > limit or size == 0:
            expected = f"1 to {max(limit - start, 0)}"
            raise FrameError(position=position, expected=expected, found=size, what="length of the entry")
        index = windows.load(start, size)
        body = windows.data[index : index + size]
        actual = google_crc32c.value(body)
        if actual != crc:
            raise FrameError(
                position=position + 4,
                expected=f"{crc:#010x}",
                found=f"{actual:#010x}",
                what="CRC-32C of the entry",
            )
        try:
            self._apply(position, body)
        except JSON_ERRORS as error:
            raise FrameError(
                position=start, expected="an entry", found=error, what="JSON of the entry"
            ) from None
        return end

    def _apply(self, position: int, body: bytes) -> None:
        catalogue, path = self.catalogue, self._windows.path
        catalogue.entries += 1
        kind = msgspec.json.decode(body, type=_Kind).kind
        if kind == "topic":
            topic = msgspec.json.decode(body, type=Topic)
            known = catalogue.live.get(topic.name)
            if known is not None and known.id != topic.id:
                found = f"{topic.id!a} as well"
                what = f"id of topic {topic.name}"
                self._tally.add(
                    "corruption", path, position, expected=ascii(known.id), found=found, what=what
                )
            catalogue.live[topic.name] = topic
            catalogue.names[topic.id] = topic.name
        elif kind == "deleted":
            gone = msgspec.json.decode(body, type=_Deleted).id
            catalogue.deleted.add(gone)
            name = catalogue.names.get(gone, "")
            if name in catalogue.live and catalogue.live[name].id == gone:
                catalogue.gone[gone] = catalogue.live.pop(name)
        elif kind == "producer-ids":
            reserved = msgspec.json.decode(body, type=_ProducerIds).next_id
            if reserved < catalogue.producer_ids:
                self._tally.add(
                    "corruption",
                    path,
                    position,
                    expected=f"at least {catalogue.producer_ids}",
                    found=reserved,
                    what="next producer id",
                )
            catalogue.producer_ids = reserved
        else:
            expected = "topic, deleted or producer-ids"
            self._tally.add(
                "note", path, position, expected=expected, found=ascii(kind), what="kind of entry"
            )


def check_directories(
    tally: Tally, catalogue: Catalogue, path: str, directories: list[PartitionDirectory], topic: str | None
) -> None:
    """Hold the partition directories that were there against the catalogue, read after them."""
    for directory in directories:
        _check_directory(tally, catalogue, directory)
    seen = {directory.topic for directory in directories}
    own = {name for name, entry in catalogue.live.items() if not entry.is_shared}
    wanted = own if topic is None else own & {topic}
    # A topic gets its directory with its first append, so none says only that it is empty.
    empty = sorted(wanted - seen)
    if empty:
        names = ", ".join(empty[:3]) + (", …" if len(empty) > 3 else "")
        found = f"none for {len(empty)} that nothing was appended to: {names}"
        tally.add("note", path, None, expected="a directory a topic", found=found, what="topics")


def check_moved(tally: Tally, catalogue: Catalogue, moved: list[tuple[str, str]]) -> None:
    """Hold (path, topic id) of what was moved away to be removed against the catalogue, read after it."""
    for path, topic_id in moved:
        if topic_id in catalogue.deleted:
            found = "files that are yet to be removed"
            tally.add("note", path, None, expected="nothing", found=found, what="deleted topic")
        else:
            known = topic_id in catalogue.names
            found = "a topic that is not deleted" if known else "a topic that the catalogue does not know"
            tally.add("corruption", path, None, expected="a deleted topic", found=found, what="moved topic")


def check_vanished(tally: Tally, catalogue: Catalogue, vanished: list[VanishedTopic]) -> None:
    """Hold directories that went meanwhile against the catalogue: only a deletion takes one away."""
    for topic in vanished:
        if topic.topic_ids <= catalogue.deleted:
            found = "a deletion that removed it while it was read"
            tally.add("note", topic.path, None, expected="a topic", found=found, what="topic")
        else:
            found = "a directory that went while it was read"
            tally.add("corruption", topic.path, None, expected="a topic", found=found, what="topic")


def _check_directory(tally: Tally, catalogue: Catalogue, directory: PartitionDirectory) -> None:
    known = catalogue.live.get(directory.topic)
    if directory.topic_id in catalogue.deleted or (
        known is None and directory.headless and catalogue.deleted
    ):
        found = "files that are yet to be removed"
        tally.add("note", directory.path, None, expected="nothing", found=found, what="deleted topic")
    elif known is None:
        expected = "a topic in the catalogue"
        tally.add("corruption", directory.path, None, expected=expected, found="none", what="unknown topic")
    elif known.is_shared:
        found = "a directory of its own"
        tally.add(
            "corruption",
            directory.path,
            None,
            expected="its records in the shared log",
            found=found,
            what="topic",
        )
    elif directory.headless:
        found = "records without it"
        tally.add(
            "corruption", directory.path, None, expected="partition.json", found=found, what="partition"
        )
    elif directory.topic_id is not None and directory.topic_id != known.id:
        found, what = ascii(directory.topic_id), "topic id"
        tally.add("corruption", directory.path, None, expected=ascii(known.id), found=found, what=what)
    elif directory.partition >= known.partitions:
        expected = f"partitions 0 to {known.partitions - 1}"
        tally.add(
            "corruption", directory.path, None, expected=expected, found=directory.partition, what="partition"
        )
