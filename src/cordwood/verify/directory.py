"""Walk a data directory, check everything in it, and report what was found and how much was checked.

Only authoritative data decide: no index is used to find anything, and nothing here is shared with the code
that writes the files. The walk changes no byte and takes no lock. Beside a live writer it judges nothing
past a mark, and a finding about a segment stands only if the metadata it was held against still say the
same afterwards; else the segment is read again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from cordwood.disk import ReadableFiles, join, parent, read_file
from cordwood.errors import DirectoryRefused, UnknownTopic
from cordwood.tenancy import suggest
from cordwood.verify.ahead import Checker, PartitionAhead, SegmentResult, check_ahead, check_seeing
from cordwood.verify.catalogue import (
    CATALOGUE_MAGIC,
    CatalogueContent,
    PartitionDirectory,
    VanishedTopic,
    check_brokers,
    check_catalogue,
    check_directories,
    check_moved,
    check_vanished,
    moved_topics,
)
from cordwood.verify.chain import Claims, GivenCheckpoint, check_chain, check_no_chain, check_signed_rewrites
from cordwood.verify.irregular import check_regular_directory, check_regular_partition, check_regular_topic
from cordwood.verify.metadata import TOPIC_NAME, PartitionBody, check_json, read_bytes
from cordwood.verify.plans import PARTITION_NAME, SUFFIXES, PartitionSnapshot, take_snapshot
from cordwood.verify.producers import ProducersCheck, producers_severity
from cordwood.verify.reclaimed import check_reclaimed
from cordwood.verify.report import Only, Tally, VerifyProgress, VerifyReport
from cordwood.verify.segments import SHARED, Owners, SegmentPlan, TransactionEvent, TransactionsCheck
from cordwood.verify.sink import PartitionEnd, SinkCheck
from cordwood.verify.snapshots import SnapshotFields, check_snapshots, read_snapshots
from cordwood.verify.superseded import check_superseded

_ATTEMPTS_MAX = 5
_HEAD_BYTES = 64
#: Topics of the broker itself, of which compaction keeps no evidence.
INTERNAL = frozenset({"__consumer_offsets", "__transaction_state"})
#: The topic that holds the records of all those that have no files of their own.
SHARED_LOG = "__shared"


def verify_directory(
    files: ReadableFiles,
    path: str,
    topic: str | None = None,
    progress: VerifyProgress | None = None,
    check: Checker | None = None,
    checkpoints: Sequence[GivenCheckpoint] = (),
    partition: int | None = None,
) -> VerifyReport:
    """Check the data directory at *path*, or of its topics only *topic*, and return what was found.

    Read-only; may run beside the writer. Damaged and unreadable files are findings of the report, never
    exceptions. Memory is bounded by a few windows, the largest frame and the number of partitions in the
    shared log. *check* reads all segments at once, else they are read here in turn; the report is the same.
    *checkpoints* are compared with the chains, as those in the directory are. With *partition* only that
    partition of *topic* is read; for a topic in the shared log, the whole shared log is.

    Raises:
        DirectoryRefused: If there is no data directory at *path*.
        UnknownTopic: If neither the catalogue nor any directory knows *topic*.
        OSError: If *path* itself cannot be looked at.
    """
    assert partition is None or topic is not None
    meta, topics = join(path, "meta"), join(path, "topics")
    if not files.is_directory(meta) and not files.is_directory(topics):
        raise DirectoryRefused(f"{path} is not a data directory: it has neither meta/ nor topics/")
    head = Tally(progress)
    if not check_regular_directory(files, path, head):
        return head.report()
    shared = None if topic is None else _shared_topic(files, meta, topic)
    if shared is not None:
        topic, partition = SHARED_LOG, None
    only = Only(topic, partition)
    # Both before the logs are read: the logs are at least as long as an open intent and a checkpoint say.
    sink = SinkCheck(files, path, progress) if topic is None else None
    claims = Claims(files, path, checkpoints, progress)
    ahead = {} if check is None else check_ahead(files, topics, only, check)
    walk = _Walk(files, progress, ahead, claims)
    # Directories before the catalogue: a topic enters it before it gets a directory, so a live writer
    # cannot make one appear that the catalogue does not know.
    walk.check_topics(topics, only)
    # Also before it: a topic is moved away once the catalogue says that it is deleted.
    moved = moved_topics(files, join(path, "tmp"), walk.tally) if topic is None else []
    if not walk.directories and _first_start_unfinished(files, meta):
        return _unfinished_report(meta)
    catalogue = check_catalogue(files, meta, head)
    brokers = check_brokers(files, meta, head, catalogue)
    if topic is not None and not walk.directories and not (catalogue and topic in catalogue.live):
        raise UnknownTopic.named(topic, f"in {path}", suggest(topic, catalogue.live if catalogue else ()))
    if catalogue is not None:
        check_directories(head, catalogue, topics, walk.directories, topic)
        check_moved(head, catalogue, moved)
        walk.check_known(catalogue, head)
    _note_shared(head, topics, shared)
    _count_topics(head, walk.directories, catalogue, only)
    head.absorb(walk.tally)
    head.absorb(claims.finish(brokers, catalogue, only))
    if sink is not None:
        head.absorb(sink.finish(walk.ends))
    return head.report()


def _shared_topic(files: ReadableFiles, meta: str, topic: str) -> str | None:
    """Return *topic* if it is one whose records are in the shared log."""
    catalogue = check_catalogue(files, meta, Tally())
    known = None if catalogue is None else catalogue.live.get(topic)
    return topic if known is not None and known.is_shared else None


def _note_shared(tally: Tally, topics: str, topic: str | None) -> None:
    """Report that all of the shared log was checked in place of *topic*, if it has no files of its own."""
    if topic is None:
        return
    found = "its records in the shared log, all of which was checked"
    place, what = join(topics, SHARED_LOG), f"topic {topic}"
    tally.add("note", place, None, expected="files", found=found, what=what)


def _first_start_unfinished(files: ReadableFiles, meta: str) -> bool:
    """Return whether a crash during the first start explains why there is no ``broker.id``.

    It is made last, after an empty catalogue; once that has an entry, the first start was finished.
    """
    path = join(meta, "catalogue.log")
    try:
        if files.exists(join(meta, "broker.id")):
            return False
        if not files.exists(path):
            return True
        with contextlib.closing(files.open(path, "read")) as file:
            return file.size() <= len(CATALOGUE_MAGIC)
    except OSError:
        return False  # Checking the files will say what is wrong with them.


def _unfinished_report(meta: str) -> VerifyReport:
    tally = Tally()
    path, what = join(meta, "broker.id"), "first start was not finished"
    tally.add("note", path, None, expected="a file", found="none, and no topics", what=what)
    return tally.report()


def _count_topics(
    tally: Tally, directories: list[PartitionDirectory], catalogue: CatalogueContent | None, only: Only
) -> None:
    """Count topics and partitions as the catalogue does, also those without a file and in the shared log."""
    known = {(directory.topic, directory.partition) for directory in directories}
    for name, topic in (catalogue.live if catalogue else {}).items():
        known |= {(name, number) for number in range(topic.partitions)}
    checked = {place for place in known if only.has(*place)}
    topics = {name for name, _ in checked}
    tally.topics, tally.partitions = len(topics), len(checked)
    tally.internal_topics = sum(name.startswith("__") for name in topics)


class _Walk:
    """The walk over the partitions.

    ``directories`` are the ones that were there, ``vanished`` the topics that went while they were read,
    ``ends`` those of the logs that are sound, ``owners`` whose the frames of the shared log are.
    """

    def __init__(
        self,
        files: ReadableFiles,
        progress: VerifyProgress | None,
        ahead: dict[str, PartitionAhead],
        claims: Claims,
    ) -> None:
        self.tally = Tally(progress)
        self.directories: list[PartitionDirectory] = []
        self.vanished: list[VanishedTopic] = []
        self.ends: dict[tuple[str, int], PartitionEnd] = {}
        self._files = files
        self._ahead = ahead
        self._claims = claims
        self.owners: Owners | None = None
        self._gone = False
        self._unsettled = False

    def check_known(self, catalogue: CatalogueContent, tally: Tally) -> None:
        """Check that the catalogue explains the topics that vanished and the owners in the shared log."""
        check_vanished(tally, catalogue, self.vanished)
        if self.owners is not None:
            self.owners.check_known(catalogue, tally)

    def check_topics(self, path: str, only: Only) -> None:
        """Check every partition that is wanted."""
        with self.tally.reading(path):
            names = self._files.list(path) if self._files.exists(path) else []
            for name in filter(only.has_topic, names):
                self._check_settled_topic(join(path, name), name, only)

    def _check_settled_topic(self, path: str, topic: str, only: Only) -> None:
        """Check a topic until what is found, if anything, is true of the topic that is there now.

        A writer may delete it meanwhile, and create another one of its name.
        """
        for _ in range(_ATTEMPTS_MAX):
            walk = _Walk(self._files, self.tally.progress, self._ahead, self._claims)
            walk._check_topic(path, topic, only)
            if walk.tally.sound and not walk._gone:
                break
            before = frozenset(each.topic_id for each in walk.directories if each.topic_id is not None)
            now = self._topic_ids(path)
            if now is None:
                self.vanished.append(VanishedTopic(path, before))
                return
            if not walk._gone and not walk._unsettled and (not before or before == now):
                break
        self.tally.absorb(walk.tally)
        self.directories += walk.directories
        self.ends |= walk.ends
        self.owners = walk.owners or self.owners

    def _topic_ids(self, path: str) -> frozenset[str] | None:
        """Return the topic ids of the partitions in *path* that can be read, None if it is gone."""
        found, ignored = set(), Tally()
        with ignored.reading(path):
            if not self._files.exists(path):
                return None
            regular = check_regular_topic(self._files, path, ignored) and self._files.is_directory(path)
            for name in self._files.list(path) if regular else []:
                if not check_regular_partition(self._files, join(path, name), ignored):
                    continue
                state_path = join(path, name, "partition.json")
                data = read_bytes(ignored, self._files, state_path)
                state = None if data is None else check_json(ignored, state_path, data, PartitionBody)
                if state is not None:
                    found.add(state.topic_id)
        return frozenset(found)

    def _check_topic(self, path: str, topic: str, only: Only) -> None:
        with self.tally.reading(path):
            if not TOPIC_NAME.match(topic) or not self._files.is_directory(path):
                self._unexpected(path, "a directory named like a topic")
                return
            try:
                names = self._files.list(path)
            except FileNotFoundError:
                self._gone = True
                return
            if not check_regular_topic(self._files, path, self.tally):
                return
            for name in names:
                directory = join(path, name)
                if PARTITION_NAME.match(name) and self._files.is_directory(directory):
                    if only.has(topic, int(name)):
                        with self.tally.reading(directory):
                            self._check_partition(directory, topic, int(name))
                else:
                    self._unexpected(directory, "a directory named like a partition")

    def _unexpected(self, path: str, expected: str) -> None:
        self.tally.add("note", path, None, expected=expected, found="something else", what="unexpected name")

    def _check_partition(self, path: str, topic: str, partition: int) -> None:
        if not check_regular_partition(self._files, path, self.tally):
            self.directories.append(PartitionDirectory(path, topic, partition, None))
            return
        of_state = self._read_state_snapshots(path, topic)
        snapshot = take_snapshot(self._files, path, topic, partition, self.tally.progress)
        self.tally.absorb(snapshot.tally)
        if snapshot.state is None:
            self._note_headless(path, topic, partition, gone=snapshot.gone)
            return
        state = snapshot.state
        self.directories.append(PartitionDirectory(path, topic, partition, state.topic_id))
        if state.record_format not in SUFFIXES:
            expected, found = f"one of {', '.join(SUFFIXES)}", ascii(state.record_format)
            what = "record format, of which nothing was checked"
            self.tally.add("invalid", path, None, expected=expected, found=found, what=what)
            self._check_chain(path, snapshot, topic, partition, ())
            return
        # Once: if this is not the last word on the topic, all of it is read again.
        ahead = self._ahead.pop(path, None)
        if ahead is None or ahead.topic_id != state.topic_id:
            # Before the log, which only grows: what the snapshot covers was there when it was written.
            ahead = PartitionAhead(state.topic_id, self._read_producers(path, state))
        producers = ahead.producers
        end_offset, corruption = state.active_base, len(self.tally.findings)
        owners = Owners(cut=len(state.epochs) > 1) if state.record_format == SHARED else None
        events: list[TransactionEvent] = []
        for base, plan in snapshot.plans.items():
            result = self._check_segment(path, topic, partition, base, plan, ahead)
            end_offset = result.end_offset
            events += result.transactions.events
            if owners is not None:
                owners.add(f"{plan.path}.log", result.owners)
        intact = all(finding.severity != "corruption" for finding in self.tally.findings[corruption:])
        self._check_producers(producers, path, state, min(snapshot.plans), end_offset, intact=intact)
        if intact:
            self._check_transactions(path, topic, partition, snapshot, events, producers)
            self.ends[topic, partition] = PartitionEnd(state.topic_id, end_offset)
        if state.log_start_offset > end_offset:
            expected, what = f"at most {end_offset}, the end of the log", "log start offset"
            start = state.log_start_offset
            self.tally.add("corruption", path, None, expected=expected, found=start, what=what)
        if owners is not None:
            self._check_owners(owners, path, snapshot, topic, partition)
        self._check_names(join(path, "segments"), snapshot)
        self._check_chain(path, snapshot, topic, partition, events)
        check_snapshots(self._files, of_state, state, snapshot.chain, snapshot.plans, self.tally)

    def _read_state_snapshots(self, path: str, topic: str) -> list[SnapshotFields]:
        """Read the snapshots of a partition; with the shared log, those of all topics in it."""
        if topic != SHARED_LOG:
            return read_snapshots(self._files, join(path, "snapshots"), self.tally)
        home = join(parent(parent(parent(path))), "meta", "snapshots")
        found: list[SnapshotFields] = []
        # A writer may delete a topic, and its snapshots with it.
        with self.tally.reading(home), contextlib.suppress(FileNotFoundError):
            for topic_id in self._files.list(home) if self._files.exists(home) else ():
                for partition in self._files.list(join(home, topic_id)):
                    found += read_snapshots(self._files, join(home, topic_id, partition), self.tally)
        return found

    def _check_owners(
        self, owners: Owners, path: str, snapshot: PartitionSnapshot, topic: str, partition: int
    ) -> None:
        """Say where the frames of the shared log do not add up, unless segments were replaced meanwhile."""
        self.owners, tally = owners, owners.finish()
        if not tally.sound:
            now = take_snapshot(self._files, path, topic, partition, planned=False)
            self._unsettled = _generations(now) != _generations(snapshot)
        self.tally.absorb(tally)

    def _check_chain(
        self,
        path: str,
        snapshot: PartitionSnapshot,
        topic: str,
        partition: int,
        events: Sequence[TransactionEvent],
    ) -> None:
        """Check the chain as the snapshot has it, and what was signed of it."""
        assert snapshot.state is not None
        claims = self._claims.of(topic, snapshot.state.topic_id, partition)
        if snapshot.chain is not None:
            check_chain(self._files, snapshot.chain, snapshot.state, claims, self.tally)
            check_superseded(self._files, snapshot.chain, snapshot.state, snapshot.plans, events, self.tally)
            check_reclaimed(self._files, snapshot.chain, snapshot.state, snapshot.plans, self.tally)
            if topic not in INTERNAL:
                unlisted = [each for each in self.tally.unlisted if each.path.startswith(f"{path}/")]
                check_signed_rewrites(claims, unlisted, self.tally)
        else:
            check_no_chain(path, claims, self.tally)

    def _read_producers(self, path: str, state: PartitionBody) -> ProducersCheck:
        """Read the snapshot of a partition's producers; there need not be one."""
        path = join(path, "producers.json")
        data = None
        with self.tally.reading(path, producers_severity(state.record_format)):
            data = read_file(self._files, path) if self._files.exists(path) else None
        return ProducersCheck(path, data, state.record_format)

    def _check_producers(
        self,
        producers: ProducersCheck,
        path: str,
        state: PartitionBody,
        first_offset: int,
        end_offset: int,
        *,
        intact: bool,
    ) -> None:
        """Say what is wrong with the snapshot, unless it or the log was replaced meanwhile."""
        tally = producers.finish(state, first_offset, end_offset, intact=intact)
        if not tally.sound:
            data = read_bytes(Tally(), self._files, join(path, "partition.json"))
            same = data is not None and check_json(Tally(), path, data, PartitionBody) == state
            if not same or self._read_producers(path, state).data != producers.data:
                tally = Tally()
                found = "another one now, or another log"
                tally.add("note", producers.path, None, expected="a snapshot", found=found, what="not judged")
        self.tally.absorb(tally)

    def _check_transactions(
        self,
        path: str,
        topic: str,
        partition: int,
        snapshot: PartitionSnapshot,
        events: list[TransactionEvent],
        producers: ProducersCheck,
    ) -> None:
        """Say what does not follow from the transactions in the log, unless it was changed meanwhile."""
        state = snapshot.state
        assert state is not None
        body = producers.body
        later = [epoch.start_offset for epoch in state.epochs if body and epoch.epoch > body.leader_epoch]
        if body is not None and body.next_offset > min(later, default=body.next_offset):
            # An outdated one, which is not used.
            body = None
        tally = TransactionsCheck(self._files, path, state, snapshot.slots, events).run(body)
        if not tally.sound:
            now = take_snapshot(self._files, path, topic, partition, planned=False)
            same = (now.state, now.slots) == (state, snapshot.slots)
            if not same or self._read_producers(path, state).data != producers.data:
                tally = Tally()
                found = "something else now"
                tally.add("note", path, None, expected="transactions", found=found, what="not judged")
        self.tally.absorb(tally)

    def _check_segment(
        self,
        path: str,
        topic: str,
        partition: int,
        base: int,
        plan: SegmentPlan,
        ahead: PartitionAhead,
    ) -> SegmentResult:
        """Check a segment until what is found, if anything, is true of what metadata say now."""
        for _ in range(_ATTEMPTS_MAX):
            result = self._read_segment(plan, ahead)
            tally = result.tally
            if tally.sound:
                break
            snapshot = take_snapshot(self._files, path, topic, partition, self.tally.progress)
            if snapshot.state is None and not snapshot.gone:
                break
            now = snapshot.plans.get(base)
            if now is None:
                tally = Tally()
                found = "a change that removed it while it was read"
                tally.add("note", f"{plan.path}.log", None, expected="a segment", found=found, what="segment")
                break
            if now == plan:
                break
            plan = now
        self.tally.absorb(tally)
        return result

    def _read_segment(self, plan: SegmentPlan, ahead: PartitionAhead) -> SegmentResult:
        """Return what is found in a segment, here or ahead of the walk."""
        result = ahead.take(plan)
        if result is None:
            return check_seeing(self._files, plan, Tally(self.tally.progress), ahead.producers.see)
        for frame in result.shown:
            ahead.producers.see(frame)
        return result

    def _note_headless(self, path: str, topic: str, partition: int, *, gone: bool) -> None:
        """Say what a partition without usable metadata is: unreadable, lost, or never finished."""
        if not gone:
            self.directories.append(PartitionDirectory(path, topic, partition, None))
            found = "no partition.json that says which there are"
            self.tally.add(
                "note", path, None, expected="segments", found=found, what="segments were not checked"
            )
        elif self._has_records(join(path, "segments")):
            self.directories.append(PartitionDirectory(path, topic, partition, None, headless=True))
        elif self._files.exists(path):
            found = "none, and no records"
            self.tally.add(
                "note", path, None, expected="partition.json", found=found, what="unfinished partition"
            )

    def _has_records(self, path: str) -> bool:
        if not self._files.is_directory(path):
            return False
        for name in self._files.list(path):
            if name.endswith(".log"):
                file = self._files.open(join(path, name), "read")
                try:
                    if file.read_at(0, _HEAD_BYTES).strip(b"\0"):
                        return True
                finally:
                    file.close()
        return False

    def _check_names(self, path: str, snapshot: PartitionSnapshot) -> None:
        """Note what is in the segments' directory beside the segments."""
        with self.tally.reading(path):
            assert snapshot.state is not None
            names, suffixes = set(self._files.list(path)), SUFFIXES[snapshot.state.record_format]
            expected = {f"{base:020d}.{suffix}" for base in snapshot.plans for suffix in suffixes}
            truncating = snapshot.state.truncating is not None
            what = "leftover of a truncation under way" if truncating else "file of no segment"
            for name in sorted(names - expected):
                found = "a file that partition.json does not list"
                self.tally.add("note", join(path, name), None, expected="none", found=found, what=what)


def _generations(snapshot: PartitionSnapshot) -> list[tuple[int, int]] | None:
    """Return which segments there are, and how often each was written, the one that takes appends aside."""
    state = snapshot.state
    return None if state is None else [(each.base, each.generation) for each in state.sealed]
