"""Transfer a whole data directory to another one: catalogue, partitions, journals of queries.

Used by backup, whose target may exist already, and by restore, whose target is new.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from threading import Event

import msgspec

from cordwood.config import BrokerConfig, topic_config
from cordwood.disk import (
    SIZE,
    Files,
    Mark,
    encode_slot,
    join,
    read_file,
    remove_tree,
    write_atomically,
    write_metadata,
)
from cordwood.errors import CordwoodError, MetadataDamaged, UnknownTopic
from cordwood.host import Clock, SystemClock, process
from cordwood.records import Progress
from cordwood.storage.backup.evidence import ChainCopy
from cordwood.storage.backup.partition import PartitionBackup, PartitionCopier, Settle, written_since
from cordwood.storage.backup.record import PartitionRecord
from cordwood.storage.backup.segment import SegmentCopier, remove
from cordwood.storage.backup.snapshots import TakenChain, copy_snapshots, topics_with_snapshots
from cordwood.storage.backup.source import TRIES, NeverUsed, SourcePartition, unsettled
from cordwood.storage.chain import read_head
from cordwood.storage.directory import finish_deletions, own_snapshots, remove_moved, shared_snapshots
from cordwood.storage.log import OpenFiles
from cordwood.storage.meta import (
    SHARED_TOPIC,
    Catalogue,
    CatalogueEntry,
    Contents,
    DeletedEntry,
    DirectoryEntry,
    ProducerIdsEntry,
    TopicEntry,
    catalogue_mark_path,
    catalogue_path,
    check_regular_partition,
    partition_directory,
    read_catalogue,
)
from cordwood.storage.offline import Damaged
from cordwood.storage.sink import Journal, decode_journal, journal_path, journal_paths

#: Topics that are not transferred: unpublished records that tasks of a query sent.
STAGING_PREFIX = "__cordwood_staging-"
#: The topics that are copied first, in this order.
_FIRST = ("__consumer_offsets", "__transaction_state")


@dataclass(frozen=True, slots=True)
class BackupReport:
    """The result of a backup. Segments are counted by method; ``copied_bytes`` includes active ones."""

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
        """Whether no damage was found in the parts of the source that were read."""
        return not self.damaged


@dataclass(frozen=True, slots=True)
class Transfer:
    """The parameters of a transfer."""

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


def records_of(results: list[PartitionBackup]) -> tuple[PartitionRecord, ...]:
    """Return the records of the partitions that have one."""
    return tuple(result.record for result in results if result.record is not None)


def _settled_entries(files: Files, data: str) -> list[CatalogueEntry]:
    """Return the entries of a catalogue that may be growing: its mark may be newer than the read bytes."""
    for _ in range(TRIES):
        with contextlib.suppress(MetadataDamaged):
            return read_catalogue(files, data)[0].entries
    return read_catalogue(files, data)[0].entries


def _turn(entry: TopicEntry) -> int:
    """Return when a topic is copied, for `sorted`: what says how far others are comes before them.

    So what committed offsets count as processed is in the copy. A decision is replaced only once its markers
    are synced: whatever is decided in the copy of the states is finished in the others, or can be.
    """
    return _FIRST.index(entry.name) if entry.name in _FIRST else len(_FIRST)


class DirectoryTransfer:
    """A running transfer to a target that is locked or not visible yet. One user."""

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
        self._entries: list[CatalogueEntry] = []
        self._damaged: list[Damaged] = []
        self._notes: list[str] = []
        self._left_out: set[str] = set()
        self._done = 0

    def begin(self, *, journals: bool = True) -> None:
        """Copy the catalogue and remove deleted topics."""
        files, source, target = self._files, self._transfer.source, self._transfer.target
        # Read before the logs, so that every batch recorded as published is in them.
        taken = self._read_journals() if journals else []
        self._entries = _settled_entries(files, source)
        topics = Contents(self._entries).topics.values()
        self._left_out = {entry.id for entry in topics if entry.name.startswith(STAGING_PREFIX)}
        files.make_directories(join(target, "topics"))
        files.make_directories(join(target, "tmp"))
        files.sync_directory(target)
        self._remove_reused_names()
        self._take_catalogue()
        for name in files.list(join(target, "tmp")):
            if name.endswith(".new"):
                remove_tree(files, join(target, "tmp", name))
        self._discard_deleted()
        self._write_journals(taken)

    def copy_all(self) -> list[PartitionBackup]:
        """Transfer every partition of every topic in the catalogue."""
        found: dict[str, list[PartitionBackup]] = {}
        known = {topic_id for topic_id, _ in self._known}
        for entry in sorted(self._topics.values(), key=_turn):
            directory = join(self._transfer.source, "topics", entry.name)
            if entry.id not in known and not self._files.exists(directory):
                # Never used: it may have a million partitions without a single file.
                found[entry.id] = []
                continue
            # A topic that is deleted in the meantime is found by reading the catalogue again below.
            with contextlib.suppress(UnknownTopic):
                partitions = (self._bring(entry, partition) for partition in range(entry.partitions))
                found[entry.id] = [result for result in partitions if result is not None]
        now = Contents(_settled_entries(self._files, self._transfer.source))
        gone = {entry.id for entry in self._topics.values() if entry.id not in now.by_id}
        self._reserve_producer_ids(now)
        if gone:
            self._leave_out(gone)
        results = [result for topic_id in found.keys() - gone for result in found[topic_id]]
        self._copy_shared_snapshots(results)
        results.sort(key=lambda result: result.place)
        self._damaged += [damage for result in results for damage in result.damaged]
        return results

    def _bring(self, entry: TopicEntry, partition: int) -> PartitionBackup | None:
        source = partition_directory(self._transfer.source, entry.name, partition)
        target = partition_directory(self._transfer.target, entry.name, partition)
        known = self._known.get((entry.id, partition))
        check_regular_partition(self._files, target)
        try:
            check_regular_partition(self._files, source)
            return self._copy_with_chain(entry, partition, source, target, known)
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
        return PartitionBackup((entry.name, partition), known, damaged=[lost])

    def _copy_with_chain(
        self, entry: TopicEntry, partition: int, source: str, target: str, known: PartitionRecord | None
    ) -> PartitionBackup:
        """Transfer a partition, and its chain as it was before: leaves may be missing, statements not.

        If maintenance or a truncation added a statement in the meantime, both are transferred again.
        """
        files, copied, removed = self._files, 0, 0
        for _ in range(TRIES):
            chain, damaged = self._chain_of(source)
            if chain is not None:
                chain.reset(files, target)
            result = self._copier(entry, partition, source, target, known).copy()
            copied += result.copied_bytes
            removed += result.removed
            now, _ = self._chain_of(source)
            if chain is None or now is None or now.has_statements_of(chain):
                copied += 0 if chain is None else chain.copy(files, target)
                if result.record is not None:
                    taken = TakenChain(result.record.end_offset, 0 if chain is None else chain.head.size)
                    copied += copy_snapshots(files, own_snapshots(source), own_snapshots(target), taken)
                result.copied_bytes, result.removed = copied, removed
                result.damaged += damaged
                return result
            known = result.record
        raise unsettled(source)

    def _copy_shared_snapshots(self, results: list[PartitionBackup]) -> None:
        """Transfer the snapshots of topics in the shared log, which have no files of their own."""
        files, source, target = self._files, self._transfer.source, self._transfer.target
        shared = next((each for each in results if each.place == (SHARED_TOPIC, 0)), None)
        if shared is None or shared.record is None:
            return
        head = read_head(files, partition_directory(target, SHARED_TOPIC, 0))
        taken = TakenChain(shared.record.end_offset, 0 if head is None else head.size)
        having = {*topics_with_snapshots(files, source), *topics_with_snapshots(files, target)}
        for entry in self._topics.values():
            for partition in range(entry.partitions if entry.id in having else 0):
                place = shared_snapshots(source, entry.id, partition)
                there = shared_snapshots(target, entry.id, partition)
                shared.copied_bytes += copy_snapshots(files, place, there, taken)

    def _chain_of(self, directory: str) -> tuple[ChainCopy | None, list[Damaged]]:
        try:
            return ChainCopy.of(self._files, directory), []
        except MetadataDamaged as error:
            return None, [Damaged(error.path, None, error.reason)]

    def _copier(
        self, entry: TopicEntry, partition: int, source: str, target: str, known: PartitionRecord | None
    ) -> PartitionCopier:
        transfer = self._transfer
        size_max = topic_config(entry.config, transfer.config).stored_bytes_max
        reading = SourcePartition(
            OpenFiles(self._files, mapped=False), source, entry, partition, size_max, Event()
        )
        copier = SegmentCopier(self._files, link=transfer.link, verify=transfer.verify, advance=self._advance)
        return PartitionCopier(
            copier,
            reading,
            source,
            transfer.target,
            target,
            known,
            untouched=self._untouched,
            settle=self._settle,
        )

    # --- the catalogue and what follows from it ---------------------------------------------------

    def _remove_reused_names(self) -> None:
        """Remove topics whose names other topics have now, so that no entry finds files of another topic."""
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
        """Write the source's catalogue to the target, without the topics that are left out.

        Also without the identity of the source: the target has a `broker.id` of its own.
        """
        files, target = self._files, self._transfer.target
        kept = [entry for entry in self._entries if not isinstance(entry, DirectoryEntry)]
        entries = [*kept, *(DeletedEntry(topic_id) for topic_id in sorted(self._left_out))]
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
            # The mark must never exceed the synced bytes, so it is reset during the change.
            self._mark_catalogue(8, 0)
            write_atomically(files, path, data)
        self._mark_catalogue(len(data), len(entries))

    def _reserve_producer_ids(self, now: Contents) -> None:
        """Note which producer ids the source has reserved *now*, after its partitions were read.

        They may have records of producers that came after the catalogue was read. If another producer got
        the id of one of these, its batches could be taken for those that are stored already.
        """
        if now.next_producer_id > Contents(self._entries).next_producer_id:
            self._entries.append(ProducerIdsEntry(now.next_producer_id))
            self._take_catalogue()

    def _mark_catalogue(self, position: int, entries: int) -> None:
        mark = encode_slot(Mark(0, 1, 0, position, entries, 0, 0, 0, 0, 0))
        path, data = catalogue_mark_path(self._transfer.target), mark.ljust(SIZE, b"\0")
        if not self._files.exists(path) or read_file(self._files, path) != data:
            write_atomically(self._files, path, data)

    def _discard_deleted(self) -> None:
        """Remove topics that are not in the catalogue any more, as the directory's writer does."""
        files, target = self._files, self._transfer.target
        contents = Contents(read_catalogue(files, target)[0].entries)
        finish_deletions(files, target, contents.topics, contents.deleted)
        remove_moved(files, target)

    def _leave_out(self, gone: set[str]) -> None:
        """Delete topics from the target that the source has deleted while it was read."""
        for entry in sorted(self._topics.values(), key=_turn):
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
                # The logs may lack the batch of an open intent, and shares are not transferred, so the query
                # must publish that batch again.
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

    # --- report -----------------------------------------------------------------------------------

    def _advance(self, size: int) -> None:
        self._done += size
        self._transfer.progress(self._done)

    def report(self, results: list[PartitionBackup]) -> BackupReport:
        """Return the report."""
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
