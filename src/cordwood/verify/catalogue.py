"""Check the catalogue of topics, and compare existing directories with it."""

from __future__ import annotations

import base64
import contextlib
import struct
from dataclasses import dataclass, field
from typing import Annotated, Literal

import google_crc32c
import msgspec

from cordwood.disk import ReadableFiles, join, read_file
from cordwood.errors import FrameError, OnlyZeros
from cordwood.verify.frame import FileWindows
from cordwood.verify.metadata import (
    JSON_ERRORS,
    Backup,
    BrokerId,
    Text,
    TopicId,
    TopicName,
    check_json,
    check_mark,
    read_bytes,
    shown,
)
from cordwood.verify.report import Tally

CATALOGUE_MAGIC = b"CWCATLG1"
_DELETED = ".deleted"
_ENTRY_HEADER = struct.Struct(
    ">"
    "I"  # length of the JSON
    "I"  # CRC-32C of it
)


class _EntryKind(msgspec.Struct):
    kind: str


class CreatedTopic(msgspec.Struct):
    """A topic that was created."""

    name: TopicName
    id: TopicId
    partitions: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
    config: dict[str, str]

    @property
    def is_shared(self) -> bool:
        """Whether its records are in the shared log, so that it has no files."""
        return self.config.get("cordwood.storage") == "shared"


class _Deleted(msgspec.Struct):
    id: TopicId


class _ProducerIds(msgspec.Struct):
    next_id: Annotated[int, msgspec.Meta(ge=0)]


class _BrokerSettings(msgspec.Struct):
    broker: Annotated[str, msgspec.Meta(pattern="^[0-9]{0,10}$")]
    config: dict[str, str]


class _GroupSettings(msgspec.Struct, forbid_unknown_fields=True, tag_field="kind", tag="group-settings"):
    org: Annotated[int, msgspec.Meta(ge=0)]
    group: Annotated[str, msgspec.Meta(min_length=1)]
    config: dict[str, str]


class _DirectoryOwner(msgspec.Struct):
    uuid: Text
    created_at: str
    node_name: str
    node_id: Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)] | None


_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=1000)]
_Base64 = Annotated[str, msgspec.Meta(pattern="^[A-Za-z0-9+/]{1,344}={0,2}$")]
_Mechanism = Literal["SCRAM-SHA-256", "SCRAM-SHA-512"]


class _OfOrg(msgspec.Struct, forbid_unknown_fields=True):
    kind: str
    org: Annotated[int, msgspec.Meta(ge=0)]

    def __post_init__(self) -> None:
        if self.org >= 1 << 64:
            raise ValueError(f"there is no org {self.org}")


class _Acl(_OfOrg, forbid_unknown_fields=True):
    resource_type: Annotated[int, msgspec.Meta(ge=2, le=7)]
    resource_name: _Name
    pattern_type: Annotated[int, msgspec.Meta(ge=3, le=4)]
    principal: Annotated[str, msgspec.Meta(pattern="^[^:]+:.", max_length=1000)]
    host: _Name
    operation: Annotated[int, msgspec.Meta(ge=2, le=15)]
    permission: Annotated[int, msgspec.Meta(ge=2, le=3)]


class _ScramUser(msgspec.Struct, forbid_unknown_fields=True):
    kind: str
    name: _Name
    mechanism: _Mechanism
    iterations: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
    salt: _Base64
    stored_key: _Base64
    server_key: _Base64

    def __post_init__(self) -> None:
        size = 32 if self.mechanism == "SCRAM-SHA-256" else 64
        if any(len(base64.b64decode(key)) != size for key in (self.stored_key, self.server_key)):
            raise ValueError(f"a key does not have {size} bytes")


class _DeletedScramUser(msgspec.Struct, forbid_unknown_fields=True):
    kind: str
    name: _Name
    mechanism: _Mechanism


class _DecoySeed(msgspec.Struct, forbid_unknown_fields=True):
    kind: str
    seed: _Base64

    def __post_init__(self) -> None:
        if len(base64.b64decode(self.seed)) != 32:
            raise ValueError("the seed does not have 32 bytes")


class _ClientQuota(_OfOrg, forbid_unknown_fields=True):
    entity: Annotated[dict[Literal["user", "client-id", "ip"], _Name | None], msgspec.Meta(min_length=1)]
    limits: dict[
        Literal[
            "connection_creation_rate",
            "consumer_byte_rate",
            "controller_mutation_rate",
            "producer_byte_rate",
            "request_percentage",
        ],
        Annotated[float, msgspec.Meta(gt=0)],
    ]

    def __post_init__(self) -> None:
        super().__post_init__()
        if "ip" in self.entity and len(self.entity) > 1:
            raise ValueError("an address has no other part")


#: Entries about security: here they only must be complete.
_SECURITY: dict[str, type[msgspec.Struct]] = {
    "acl": _Acl,
    "acl-deleted": _Acl,
    "scram-user": _ScramUser,
    "scram-user-deleted": _DeletedScramUser,
    "decoy-seed": _DecoySeed,
    "client-quota": _ClientQuota,
}


@dataclass(slots=True)
class CatalogueContent:
    """Existing topics by name, and the ids of deleted ones. Entries past the mark count too.

    ``names`` has the name of every id ever created, ``gone`` the deleted topics by id.
    """

    live: dict[str, CreatedTopic] = field(default_factory=dict)
    deleted: set[str] = field(default_factory=set)
    names: dict[str, str] = field(default_factory=dict)
    gone: dict[str, CreatedTopic] = field(default_factory=dict)
    producer_ids: int = 0
    entries: int = 0
    #: The uuid of the directory, None if no entry has it.
    uuid: str | None = None


@dataclass(frozen=True, slots=True)
class PartitionDirectory:
    """An existing directory. ``topic_id`` is None if it cannot be read."""

    path: str
    topic: str
    partition: int
    topic_id: str | None
    headless: bool = False
    """``partition.json`` is missing, but there are records."""


@dataclass(frozen=True, slots=True)
class VanishedTopic:
    """A directory that was removed while it was read, and the topic ids in it."""

    path: str
    topic_ids: frozenset[str]


def check_catalogue(files: ReadableFiles, meta: str, tally: Tally) -> CatalogueContent | None:
    """Check every entry and return the content, or None if it cannot be read up to the mark."""
    path, mark_path = join(meta, "catalogue.log"), join(meta, "catalogue.mark")
    # The mark first: it only moves forward, so it is valid for the log read after it.
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
        walk = _CatalogueWalk(FileWindows(file, file.size(), tally, hashed=False), stop, tally)
        found = walk.catalogue if walk.run() else None
    return found  # noqa: RET504 - `reading` takes errors in, so there may be none


class _UnacceptableEntry(FrameError):
    """An unacceptable entry with a correct checksum: a crash is not the cause, wherever the mark is."""


class _CatalogueWalk:
    def __init__(self, windows: FileWindows, stop: int, tally: Tally) -> None:
        self.catalogue = CatalogueContent()
        self._windows = windows
        self._stop = stop
        self._tally = tally

    def run(self) -> bool:
        """Read every entry. Return whether all entries below the mark are complete."""
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
            if error.position < stop or position < stop or isinstance(error, _UnacceptableEntry):
                self._tally.add_error("corruption", path, error)
                return False
            if not isinstance(error, OnlyZeros):
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
            FrameError: If it is incomplete or damaged.
        """
        windows = self._windows
        index = windows.load(position, min(_ENTRY_HEADER.size, windows.stop - position))
        header = windows.data[index : index + _ENTRY_HEADER.size]
        if not header.strip(b"\0"):
            raise OnlyZeros(position=position, expected="an entry", found="zeros", what="entry")
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
            # Keys of users are for nobody's eyes.
            found = f"{error}" if b"scram" in body else f"{error}, in {shown(body)}"
            raise _UnacceptableEntry(
                position=start, expected="an entry", found=found, what="JSON of the entry"
            ) from None
        return end

    def _apply(self, position: int, body: bytes) -> None:
        catalogue, path = self.catalogue, self._windows.path
        catalogue.entries += 1
        kind = msgspec.json.decode(body, type=_EntryKind).kind
        if kind == "topic":
            topic = msgspec.json.decode(body, type=CreatedTopic)
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
        elif kind == "broker-settings":
            # The broker checks their values; here they only must be settings.
            msgspec.json.decode(body, type=_BrokerSettings)
        elif kind == "group-settings":
            msgspec.json.decode(body, type=_GroupSettings)
        elif kind == "directory":
            catalogue.uuid = msgspec.json.decode(body, type=_DirectoryOwner).uuid
        elif kind in _SECURITY:
            msgspec.json.decode(body, type=_SECURITY[kind])
        else:
            kinds = ["topic", "deleted", "producer-ids", "broker-settings", "group-settings", "directory"]
            kinds += _SECURITY
            expected = f"{', '.join(kinds[:-1])} or {kinds[-1]}"
            self._tally.add(
                "note", path, position, expected=expected, found=ascii(kind), what="kind of entry"
            )


def check_directories(
    tally: Tally,
    catalogue: CatalogueContent,
    path: str,
    directories: list[PartitionDirectory],
    topic: str | None,
) -> None:
    """Compare the partition directories with the catalogue, which was read after them."""
    for directory in directories:
        _check_directory(tally, catalogue, directory)
    seen = {directory.topic for directory in directories}
    own = {name for name, entry in catalogue.live.items() if not entry.is_shared}
    wanted = own if topic is None else own & {topic}
    # A topic gets its directory with its first append, so a missing directory only means that it is empty.
    empty = sorted(wanted - seen)
    if empty:
        names = ", ".join(empty[:3]) + (", …" if len(empty) > 3 else "")
        found = f"none for {len(empty)} that nothing was appended to: {names}"
        tally.add("note", path, None, expected="a directory a topic", found=found, what="topics")


def check_moved(tally: Tally, catalogue: CatalogueContent, moved: list[tuple[str, str]]) -> None:
    """Compare directories (path, topic id) moved away for removal with the catalogue, read after them."""
    for path, topic_id in moved:
        if topic_id in catalogue.deleted:
            found = "files that are yet to be removed"
            tally.add("note", path, None, expected="nothing", found=found, what="deleted topic")
        elif topic_id.startswith("import-"):
            found = "files that the next open removes"
            tally.add("note", path, None, expected="nothing", found=found, what="import that was killed")
        else:
            known = topic_id in catalogue.names
            found = "a topic that is not deleted" if known else "a topic that the catalogue does not know"
            tally.add("corruption", path, None, expected="a deleted topic", found=found, what="moved topic")


def check_vanished(tally: Tally, catalogue: CatalogueContent, vanished: list[VanishedTopic]) -> None:
    """Compare directories that disappeared with the catalogue: only a deletion removes one."""
    for topic in vanished:
        if topic.topic_ids <= catalogue.deleted:
            found = "a deletion that removed it while it was read"
            tally.add("note", topic.path, None, expected="a topic", found=found, what="topic")
        else:
            found = "a directory that went while it was read"
            tally.add("corruption", topic.path, None, expected="a topic", found=found, what="topic")


def _check_directory(tally: Tally, catalogue: CatalogueContent, directory: PartitionDirectory) -> None:
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


def moved_topics(files: ReadableFiles, path: str, tally: Tally) -> list[tuple[str, str]]:
    """Return (path, topic id) of every directory that a deletion has moved away and not removed yet."""
    found: list[tuple[str, str]] = []
    with tally.reading(path, "invalid"):
        names = files.list(path) if files.exists(path) else []
        found = [(join(path, name), name.removesuffix(_DELETED)) for name in names if name.endswith(_DELETED)]
    return found  # noqa: RET504 - `reading` takes errors in, so there may be none


def check_brokers(
    files: ReadableFiles, meta: str, tally: Tally, catalogue: CatalogueContent | None
) -> tuple[str, ...]:
    """Return the id of the directory, and of its source if it is a backup; nothing if unknown.

    The *catalogue* may have that id too.
    """
    path, backup_path = join(meta, "broker.id"), join(meta, "backup.json")
    data = read_bytes(tally, files, path)
    body = None if data is None else check_json(tally, path, data, BrokerId)
    if body is None:
        return ()
    if catalogue is not None and catalogue.uuid not in (None, body.uuid):
        expected = f"{catalogue.uuid!a}, as in the catalogue"
        tally.add("corruption", path, None, expected=expected, found=ascii(body.uuid), what="uuid")
    backup = None
    with tally.reading(backup_path):
        data = read_file(files, backup_path) if files.exists(backup_path) else None
        backup = None if data is None else check_json(tally, backup_path, data, Backup)
    # Checkpoints in a backup were signed for the directory that was backed up.
    return (body.uuid,) if backup is None else (body.uuid, backup.source_uuid)
