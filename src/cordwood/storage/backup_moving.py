"""A whole data directory on its way into another one: catalogue, partitions, journals of queries.

Shared by backup, whose target is there again and again, and by restore, whose target is new.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from threading import Event

import msgspec

from cordwood import process
from cordwood.clock import Clock, SystemClock
from cordwood.config import BrokerConfig, topic_config
from cordwood.errors import CordwoodError, MetadataDamaged, UnknownTopic
from cordwood.storage.backup_evidence import ChainOnItsWay
from cordwood.storage.backup_partition import PartitionCarrier, PartitionResult, Settle, written_since
from cordwood.storage.backup_record import (
    PartitionRecord,
)
from cordwood.storage.backup_segment import Carrier, remove
from cordwood.storage.backup_taking import TRIES, NeverUsed, SourcePartition, restless
from cordwood.storage.catalogue import (
    Catalogue,
    Contents,
    DeletedEntry,
    Entry,
    TopicEntry,
    catalogue_mark_path,
    catalogue_path,
    read_catalogue,
)
from cordwood.storage.data_directory import partition_directory
from cordwood.storage.deletion import finish_deletions, remove_moved, remove_tree
from cordwood.storage.files import Files, join, read_file, write_atomically
from cordwood.storage.mark import SIZE, Mark, encode_slot
from cordwood.storage.metadata import write_metadata
from cordwood.storage.open_files import OpenFiles
from cordwood.storage.publishing import Journal, decode_journal, journal_path, journal_paths
from cordwood.storage.reindex import Damaged

#: Topics of which nothing is worth keeping: what tasks of a query sent and nobody published yet.
STAGING_PREFIX = "__cordwood_staging-"
Progress = Callable[[int], None]
"""Told how many bytes of segments are done by now."""


@dataclass(frozen=True, slots=True)
class BackupReport:
    """What a backup did. Segments are counted by how they came; ``copied_bytes`` includes active ones."""

    source: str
    target: str
    topics: int
    partitions: tuple[PartitionRecord, ...]
    linked: int
    copied: int
    kept: int
    removed: int
    copied_bytes: int
    damaged: tuple[Damaged, ...]
    notes: tuple[str, ...]

    @property
    def sound(self) -> bool:
        """Whether everything in the source was as written, as far as it was read."""
        return not self.damaged


@dataclass(frozen=True, slots=True)
class Transfer:
    """Everything that bringing a data directory elsewhere is told."""

    files: Files
    source: str
    target: str
    config: BrokerConfig
    link: bool = True
    verify: bool = True
    clock: Clock = field(default_factory=SystemClock)
    holder: str = field(default_factory=process.holder)
    uuid: str = field(default_factory=process.new_id)
    node_name: str = field(default_factory=process.host)
    progress: Progress = lambda done: None


def records_of(results: list[PartitionResult]) -> tuple[PartitionRecord, ...]:
    """Return the records of those partitions that have one."""
    return tuple(result.record for result in results if result.record is not None)


def _settled_entries(files: Files, data: str) -> list[Entry]:
    """Return the entries of a catalogue that may be growing: its mark may be newer than what was read."""
    for _ in range(TRIES):
        with contextlib.suppress(MetadataDamaged):
            return read_catalogue(files, data)[0].entries
    return read_catalogue(files, data)[0].entries


class Moving:
    """A data directory on its way into another one that is locked, or nobody knows of. One user."""

    def __init__(
        self,
        transfer: Transfer,
        known: Mapping[tuple[str, int], PartitionRecord],
        *,
        untouched: bool,
        settle: Settle | None = None,
    ) -> None:
        self._transfer = transfer
        self._files = transfer.files
        self._known = known
        self._untouched = untouched
        self._settle: Settle = settle or (lambda state, end: state)
        self._topics: dict[str, TopicEntry] = {}
        self._entries: list[Entry] = []
        self._damaged: list[Damaged] = []
        self._notes: list[str] = []
        self._left_out: set[str] = set()
        self._done = 0

    def begin(self, *, journals: bool = True) -> None:
        """Take over the catalogue, and let go of topics that were deleted."""
        files, source, target = self._files, self._transfer.source, self._transfer.target
        # Before the logs: a batch that is said to be published is in them, and maybe more.
        taken = self._read_journals() if journals else []
        self._entries = _settled_entries(files, source)
        topics = Contents(self._entries).topics.values()
        self._left_out = {entry.id for entry in topics if entry.name.startswith(STAGING_PREFIX)}
        files.make_directories(join(target, "topics"))
        files.make_directories(join(target, "tmp"))
        files.sync_directory(target)
        self._give_up_names()
        self._take_catalogue()
        for name in files.list(join(target, "tmp")):
            if name.endswith(".new"):
                remove_tree(files, join(target, "tmp", name))
        self._discard_deleted()
        self._write_journals(taken)

    def bring_all(self) -> list[PartitionResult]:
        """Bring every partition of every topic there was when the catalogue was read."""
        found: dict[str, list[PartitionResult]] = {}
        for entry in self._topics.values():
            # One that is deleted meanwhile is told by the catalogue, below.
            with contextlib.suppress(UnknownTopic):
                partitions = (self._bring(entry, partition) for partition in range(entry.partitions))
                found[entry.id] = [result for result in partitions if result is not None]
        now = Contents(_settled_entries(self._files, self._transfer.source))
        gone = {entry.id for entry in self._topics.values() if entry.id not in now.by_id}
        if gone:
            self._leave_out(gone)
        results = [result for topic_id in found.keys() - gone for result in found[topic_id]]
        results.sort(key=lambda result: result.place)
        self._damaged += [damage for result in results for damage in result.damaged]
        return results

    def _bring(self, entry: TopicEntry, partition: int) -> PartitionResult | None:
        source = partition_directory(self._transfer.source, entry.name, partition)
        target = partition_directory(self._transfer.target, entry.name, partition)
        known = self._known.get((entry.id, partition))
        try:
            return self._bring_with_chain(entry, partition, source, target, known)
        except FileNotFoundError:
            if self._files.exists(source):
                raise
            raise UnknownTopic(f"topic {entry.name} was deleted meanwhile") from None
        except NeverUsed:
            if known is None:
                return None
            lost = Damaged(source, None, "is gone; the backup has what it held before")
        except MetadataDamaged as error:
            if not error.path.startswith(join(self._transfer.source, "")):
                raise
            lost = Damaged(error.path, None, error.reason)
        return PartitionResult((entry.name, partition), known, damaged=[lost])

    def _bring_with_chain(
        self, entry: TopicEntry, partition: int, source: str, target: str, known: PartitionRecord | None
    ) -> PartitionResult:
        """Bring a partition and its chain as it was before: which lacks frames at most, and no statement.

        What upkeep or a truncation did meanwhile is in a chain that has more to say; then both come again.
        """
        files, copied, removed = self._files, 0, 0
        for _ in range(TRIES):
            chain, damaged = self._chain_of(source)
            if chain is not None:
                chain.make_way(files, target)
            result = self._carrier(entry, partition, source, target, known).bring()
            copied += result.copied_bytes
            removed += result.removed
            now, _ = self._chain_of(source)
            if chain is None or now is None or now.says_as_much_as(chain):
                copied += 0 if chain is None else chain.bring(files, target)
                result.copied_bytes, result.removed = copied, removed
                result.damaged += damaged
                return result
            known = result.record
        raise restless(source)

    def _chain_of(self, directory: str) -> tuple[ChainOnItsWay | None, list[Damaged]]:
        try:
            return ChainOnItsWay.of(self._files, directory), []
        except MetadataDamaged as error:
            return None, [Damaged(error.path, None, error.reason)]

    def _carrier(
        self, entry: TopicEntry, partition: int, source: str, target: str, known: PartitionRecord | None
    ) -> PartitionCarrier:
        transfer = self._transfer
        size_max = topic_config(entry.config, transfer.config).stored_bytes_max
        reading = SourcePartition(
            OpenFiles(self._files, mapped=False), source, entry, partition, size_max, Event()
        )
        carrier = Carrier(self._files, link=transfer.link, verify=transfer.verify, advance=self._advance)
        return PartitionCarrier(
            carrier,
            reading,
            source,
            transfer.target,
            target,
            known,
            untouched=self._untouched,
            settle=self._settle,
        )

    # --- the catalogue and what follows from it ---------------------------------------------------

    def _give_up_names(self) -> None:
        """Let topics go whose names others have now: no catalogue may find the files of another topic."""
        files, target = self._files, self._transfer.target
        if not files.exists(catalogue_path(target)):
            return
        there = Contents(read_catalogue(files, target)[0].entries).topics
        ours = Contents(self._entries)
        if any(entry.id not in ours.by_id and entry.id not in ours.deleted for entry in there.values()):
            raise written_since(target)
        reborn = {
            entry.id
            for name, entry in ours.topics.items()
            if files.exists(join(target, "topics", name))
            and (name not in there or there[name].id != entry.id)
        }
        if reborn:
            left_out = self._left_out
            self._left_out = left_out | reborn
            self._take_catalogue()
            self._discard_deleted()
            self._left_out = left_out

    def _take_catalogue(self) -> None:
        """Make the target's catalogue say what the source's does, but for topics that are left out."""
        files, target = self._files, self._transfer.target
        entries = [*self._entries, *(DeletedEntry(topic_id) for topic_id in sorted(self._left_out))]
        self._topics = dict(Contents(entries).topics)
        scratch = join(target, "tmp", "catalogue.new")
        if files.exists(scratch):
            remove_tree(files, scratch)
        files.make_directories(join(scratch, "meta"))
        with contextlib.closing(Catalogue.create(files, scratch)) as catalogue:
            if entries:
                catalogue.add(entries)
        data = read_file(files, catalogue_path(scratch))
        remove_tree(files, scratch)
        path = catalogue_path(target)
        if not files.exists(path) or read_file(files, path) != data:
            # The mark must never promise more than there is, so it promises nothing meanwhile.
            self._mark_catalogue(8, 0)
            write_atomically(files, path, data)
        self._mark_catalogue(len(data), len(entries))

    def _mark_catalogue(self, position: int, entries: int) -> None:
        mark = encode_slot(Mark(0, 1, 0, position, entries, 0, 0, 0, 0, 0))
        path, data = catalogue_mark_path(self._transfer.target), mark.ljust(SIZE, b"\0")
        if not self._files.exists(path) or read_file(self._files, path) != data:
            write_atomically(self._files, path, data)

    def _discard_deleted(self) -> None:
        """Remove topics that the catalogue has no more, as the directory's own writer does."""
        files, target = self._files, self._transfer.target
        contents = Contents(read_catalogue(files, target)[0].entries)
        finish_deletions(files, target, contents.topics, contents.deleted)
        remove_moved(files, target)

    def _leave_out(self, gone: set[str]) -> None:
        """Delete topics from the target that the source has deleted while it was read."""
        for entry in self._topics.values():
            if entry.id in gone:
                self._notes.append(f"topic {entry.name} was deleted meanwhile and is left out")
        self._left_out |= gone
        self._take_catalogue()
        self._discard_deleted()

    # --- journals of queries ----------------------------------------------------------------------

    def _read_journals(self) -> list[Journal]:
        found = []
        for path in journal_paths(self._files, self._transfer.source):
            try:
                # What it was about to publish may not be in the logs that we read, and its shares are not
                # taken: so the query publishes that batch again.
                found.append(msgspec.structs.replace(decode_journal(self._files, path), intent=None))
            except MetadataDamaged as error:
                self._damaged.append(Damaged(error.path, None, error.reason))
        return found

    def _write_journals(self, journals: list[Journal]) -> None:
        files, target = self._files, self._transfer.target
        wanted = {journal_path(target, journal.query): journal for journal in journals}
        for path in journal_paths(files, target):
            if path not in wanted:
                remove(files, path)
        if wanted:
            files.make_directories(join(target, "meta", "sink"))
            files.sync_directory(join(target, "meta"))
        for path, journal in wanted.items():
            with contextlib.suppress(CordwoodError):
                if files.exists(path) and decode_journal(files, path) == journal:
                    continue
            write_metadata(files, path, journal)

    # --- what was done ----------------------------------------------------------------------------

    def _advance(self, size: int) -> None:
        self._done += size
        self._transfer.progress(self._done)

    def report(self, results: list[PartitionResult]) -> BackupReport:
        """Return what was done."""
        partitions = records_of(results)
        hows = [file.how for record in partitions for file in record.files]
        return BackupReport(
            self._transfer.source,
            self._transfer.target,
            len(self._topics),
            partitions,
            hows.count("linked"),
            hows.count("copied") + hows.count("damaged"),
            hows.count("kept"),
            sum(result.removed for result in results),
            sum(result.copied_bytes for result in results),
            tuple(self._damaged),
            tuple(self._notes),
        )
