"""The catalogue: an append-only checksummed log. docs/formats/directory.md has its bytes."""

from __future__ import annotations

import contextlib
import errno
import struct
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import google_crc32c
import msgspec

from cordwood.disk import (
    DISK_FULL,
    Files,
    Mark,
    MarkFile,
    join,
    os_error,
    read_file,
    read_marks,
    write_atomically,
)
from cordwood.errors import LogFailed, MetadataDamaged
from cordwood.storage.meta.names import PARTITIONS_MAX, check_stored_id, check_stored_topic
from cordwood.storage.meta.security_entries import SecurityContents, SecurityEntry, check_security_entry
from cordwood.tenancy import ORG_MAX

MAGIC = b"CWCATLG1"
_HEAD = struct.Struct(">II")
ENTRY_MAX = 16 << 20
#: The internal topic of the shared log. Clients never see it.
SHARED_TOPIC = "__shared"
#: The topic with the states of transactions. Without its records, nobody would end those that are open.
TRANSACTIONS_TOPIC = "__transaction_state"


class TopicEntry(msgspec.Struct, frozen=True, tag_field="kind", tag="topic"):
    """A topic that was created."""

    name: str
    id: str
    partitions: int
    config: dict[str, str] = {}


class DeletedEntry(msgspec.Struct, frozen=True, tag_field="kind", tag="deleted"):
    """The topic with this id was deleted."""

    id: str


class ProducerIdsEntry(msgspec.Struct, frozen=True, tag_field="kind", tag="producer-ids"):
    """Producer ids below this one may be in use."""

    next_id: int


class BrokerSettingsEntry(msgspec.Struct, frozen=True, tag_field="kind", tag="broker-settings"):
    """The run-time settings of a broker, or of all brokers under the empty name; replaces earlier ones."""

    broker: str
    config: dict[str, str] = {}


class GroupSettingsEntry(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="group-settings"
):
    """The settings of a group of an org; replaces earlier ones, and an empty *config* removes them."""

    org: int
    group: str
    config: dict[str, str]


class DirectoryEntry(msgspec.Struct, frozen=True, tag_field="kind", tag="directory"):
    """The identity of the directory, as in `broker.id`, and the node id of the broker that serves it."""

    uuid: str
    created_at: str
    node_name: str
    node_id: int | None = None


CatalogueEntry = (
    TopicEntry
    | DeletedEntry
    | ProducerIdsEntry
    | BrokerSettingsEntry
    | GroupSettingsEntry
    | DirectoryEntry
    | SecurityEntry
)


def is_shared(entry: TopicEntry) -> bool:
    """Return whether the records of a topic are in the shared log. Only the topic's own settings count."""
    return entry.config.get("cordwood.storage") == "shared"


def collision_form(name: str) -> str:
    """Return *name* with every ``.`` as ``_``: Kafka's clients name metrics after topics in this form.

    Two topics with one form in common cannot be told apart there, and Java's consumer ends with an error.
    """
    return name.replace(".", "_")


_DECODER: msgspec.json.Decoder[CatalogueEntry] = msgspec.json.Decoder(CatalogueEntry)


@dataclass(frozen=True, slots=True)
class Scanned:
    """Decoded bytes of a catalogue: entries, and the end of the valid ones."""

    entries: list[CatalogueEntry]
    end: int
    fault: str | None
    #: Whether the fault is in an entry with a correct checksum, so that a crash cannot be the cause.
    written_so: bool = False


def scan(data: bytes) -> Scanned:
    """Read entries up to the end or the first incomplete or invalid one. Accepts any bytes."""
    if data[: len(MAGIC)] != MAGIC:
        return Scanned([], 0, "does not begin as a catalogue")
    entries: list[CatalogueEntry] = []
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
            entry = _DECODER.decode(body)
            _check_entry("", entry)
        except msgspec.MsgspecError as error:
            return Scanned(entries, position, fault + f"an entry cannot be parsed: {error}", True)
        except MetadataDamaged as error:
            return Scanned(entries, position, fault + error.reason, True)
        entries.append(entry)
        position += _HEAD.size + size
    return Scanned(entries, position, None)


def _check_entry(path: str, entry: CatalogueEntry) -> None:
    """Refuse an entry of the catalogue at *path* whose names or numbers are unsafe in paths."""
    match entry:
        case TopicEntry():
            check_stored_topic(path, entry.name)
            check_stored_id(path, entry.id)
            if not 1 <= entry.partitions <= PARTITIONS_MAX:
                found = f"{entry.partitions} partitions of topic {entry.name}"
                raise MetadataDamaged(path, f"{found}: must be 1 to {PARTITIONS_MAX}")
        case DeletedEntry():
            check_stored_id(path, entry.id)
        case GroupSettingsEntry():
            if not 0 <= entry.org <= ORG_MAX or not entry.group:
                found = f"settings of group {entry.group[:100]!a} of org {entry.org}"
                raise MetadataDamaged(path, f"{found}: must be a group of an org from 0 to {ORG_MAX}")
        case ProducerIdsEntry() | BrokerSettingsEntry() | DirectoryEntry():
            pass
        case _:
            check_security_entry(path, entry)


class Contents:
    """The state after all entries: topics by name and by id, deleted topics, producer ids, security.

    One writer; other threads may look names up, and list them in one step (``list(topics)``).
    """

    def __init__(self, entries: Sequence[CatalogueEntry]) -> None:
        self.topics: dict[str, TopicEntry] = {}
        self.by_id: dict[str, TopicEntry] = {}
        self.deleted: dict[str, TopicEntry] = {}
        #: The last deleted topic of each name.
        self.deleted_names: dict[str, TopicEntry] = {}
        self.next_producer_id = 0
        #: Run-time settings by broker id; the empty id is for all brokers.
        self.broker_settings: dict[str, dict[str, str]] = {}
        #: Settings of groups by org and the clients' id of the group.
        self.group_settings: dict[tuple[int, str], dict[str, str]] = {}
        #: Whose catalogue it is; None in a directory of an earlier version, and in one without entries.
        self.directory: DirectoryEntry | None = None
        self.security = SecurityContents()
        # The number of topics with each collision form. Old directories may have two with the same form.
        self._forms: Counter[str] = Counter()
        self.apply(entries)

    def apply(self, entries: Sequence[CatalogueEntry]) -> None:
        """Apply *entries* in order; the last entry of a topic counts."""
        for entry in entries:
            match entry:
                case TopicEntry():
                    if entry.name not in self.topics:
                        self._forms[collision_form(entry.name)] += 1
                    self.topics[entry.name] = self.by_id[entry.id] = entry
                case DeletedEntry():
                    topic = self.by_id.pop(entry.id, None)
                    if topic is not None:
                        self.deleted[topic.id] = self.deleted_names[topic.name] = topic
                        if self.topics.get(topic.name) is topic:
                            del self.topics[topic.name]
                            self._forget_form(collision_form(topic.name))
                case ProducerIdsEntry():
                    self.next_producer_id = max(self.next_producer_id, entry.next_id)
                case BrokerSettingsEntry():
                    self.broker_settings[entry.broker] = entry.config
                case GroupSettingsEntry():
                    if entry.config:
                        self.group_settings[entry.org, entry.group] = entry.config
                    else:
                        self.group_settings.pop((entry.org, entry.group), None)
                case DirectoryEntry():
                    self.directory = entry
                case _:
                    self.security.apply(entry)

    def _forget_form(self, form: str) -> None:
        self._forms[form] -= 1
        if not self._forms[form]:
            del self._forms[form]

    def colliding(self, name: str) -> str | None:
        """Return a topic of another name that collides with *name*, None if there is none."""
        form = collision_form(name)
        if not self._forms[form]:
            return None
        return next(
            (each for each in list(self.topics) if each != name and collision_form(each) == form), None
        )


def catalogue_path(data: str) -> str:
    """Return the path of the catalogue."""
    return join(data, "meta", "catalogue.log")


def catalogue_mark_path(data: str) -> str:
    """Return the path of the catalogue's mark."""
    return join(data, "meta", "catalogue.mark")


def read_catalogue(files: Files, data: str) -> tuple[Scanned, bytes]:
    """Return the entries of the catalogue and its bytes. Changes nothing.

    Raises:
        MetadataDamaged: If it is missing, wrong where it is known to be synced, or has a topic name that is
            unsafe in paths.
    """
    path = catalogue_path(data)
    # Read before the log: a concurrent writer may extend both, and the log must reach the mark.
    marks = read_marks(files, catalogue_mark_path(data))
    try:
        content = read_file(files, path)
    except FileNotFoundError:
        raise MetadataDamaged(path, "is missing") from None
    scanned = scan(content)
    synced = marks[0].position if marks else len(MAGIC)
    if scanned.end < synced or scanned.written_so:
        raise MetadataDamaged(path, scanned.fault or f"has {len(content)} bytes, but {synced} were synced")
    return scanned, content


def catalogue_state(files: Files, data: str) -> object:
    """Return a value that stays equal while the catalogue does not change.

    Raises:
        MetadataDamaged: If it is missing.
    """
    # In this order, as `read_catalogue` reads them: a change in between is seen at the next call.
    marks = tuple(read_marks(files, catalogue_mark_path(data)))
    path = catalogue_path(data)
    try:
        with contextlib.closing(files.open(path, "read")) as file:
            return marks, file.size()
    except FileNotFoundError:
        raise MetadataDamaged(path, "is missing") from None


def has_entries(files: Files, data: str) -> bool:
    """Return whether the remaining files show that a catalogue in *data* ever had an entry."""
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
        #: Written with the next entries if the catalogue does not have it. `broker.id` must come first: one
        #: that is missing beside a catalogue with entries counts as lost.
        self.owner: DirectoryEntry | None = None

    @classmethod
    def create(cls, files: Files, data: str) -> Catalogue:
        """Create an empty catalogue, replacing that of an unfinished first boot. Durable on return."""
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
        # The kept entries may be unsynced and are about to be used.
        opened._file.sync()
        opened._mark.write(_mark(opened._end, opened._count))
        opened._mark.sync()
        return opened

    def add(self, entries: Sequence[CatalogueEntry]) -> None:
        """Append *entries* with one sync, all or none. Durable on return.

        Raises:
            OSError: If there was no space. Nothing has changed.
            LogFailed: If the sync failed; the catalogue refuses further entries.
        """
        if self._failed:
            raise LogFailed(f"{self._file.path}: an earlier sync failed")
        if self.owner is not None and self.owner != self.contents.directory:
            entries = [self.owner, *entries]
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
            self._move_mark(self._end + len(data), self._count + len(entries))
        except OSError as error:
            self._failed = True
            raise LogFailed(f"{self._file.path}: sync failed: {error}") from error
        self._end += len(data)
        self._count += len(entries)
        self.contents.apply(entries)

    @property
    def failed(self) -> bool:
        """Whether a sync failed, so that the content on the device is unknown."""
        return self._failed

    def _move_mark(self, end: int, count: int) -> None:
        try:
            self._mark.write(_mark(end, count))
        except OSError as error:
            # The mark is only a lower bound, and the entries are synced already.
            if error.errno not in DISK_FULL:
                raise

    def close(self) -> None:
        """Sync the mark and close.

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
