"""One run of a mirror: topics are found, copied to where the source ended, or for ever, and checked."""

from __future__ import annotations

import time
from collections.abc import Sequence

from cordwood.broker import Node
from cordwood.config import BrokerConfig
from cordwood.errors import CordwoodError, FrameError, RecordRefused
from cordwood.host import Clock
from cordwood.mirror.checking import MirrorChecks
from cordwood.mirror.copying import PART_BYTES, PartitionCopy
from cordwood.mirror.groups import GroupCopies
from cordwood.mirror.options import MirrorOptions
from cordwood.mirror.places import find_or_create
from cordwood.mirror.report import MirrorCheck, MirroredTopic, MirrorFailure, MirrorReport
from cordwood.mirror.source import (
    EARLIEST,
    LATEST,
    PASSING_CODES,
    FetchedPart,
    MirrorSource,
    PartitionWish,
    leader_epochs,
    named,
)
from cordwood.protocol import ErrorCode
from cordwood.records import TopicPartition
from cordwood.storage.directory import DataDirectory
from cordwood.storage.meta import TopicEntry
from cordwood.wire_client import ClusterTopic, KafkaCluster

#: Partitions of one request, and how long a broker waits for records if there are none.
_PARTITIONS_MAX = 64
_FOLLOW_WAIT_MS, _ALONE_WAIT_MS = 500, 1000
#: Copied bytes that are synced together, unless everything is copied before.
_COMMIT_BYTES = 32 << 20
#: How often topics, partitions and groups are looked for while a mirror follows.
_LOOK_SECONDS = 5.0
_PAUSE_SECONDS = 0.2
_GLOB = frozenset("*?[")


class MirrorRun:
    """A run into a directory that nothing else writes. One thread."""

    def __init__(
        self,
        directory: DataDirectory,
        config: BrokerConfig,
        cluster: KafkaCluster,
        options: MirrorOptions,
        clock: Clock,
    ) -> None:
        self._directory = directory
        self._cluster = cluster
        self._options = options
        self._clock = clock
        self._source = MirrorSource(cluster)
        self._groups = GroupCopies(cluster, Node(directory, config), options)
        self._checks = MirrorChecks(self._source, options)
        self._entries: dict[str, tuple[TopicEntry, bool, tuple[str, ...]]] = {}
        self._ids: dict[str, str | None] = {}
        self._copies: dict[TopicPartition, PartitionCopy] = {}
        self._failures: dict[tuple[str, int | None], MirrorFailure] = {}
        self._uncommitted = 0
        self._is_troubled = False
        self._turn = 0

    def run(self) -> MirrorReport:
        """Mirror, and return what was done. Everything that was copied is durable.

        Raises:
            CordwoodError: If the source does not answer, or nothing of it is wanted.
            StorageError: If it cannot be stored here.
        """
        try:
            self._look()
            self._copy()
        finally:
            # After Ctrl-C, too: what was copied need not be copied again.
            self._commit()
        check = None
        if self._options.verify and not self._options.stopped():
            check = self._checks.check_all([each for each in self._active() if each.log is not None])
        return self._report(check)

    def _copy(self) -> None:
        options, looked_at = self._options, time.monotonic()
        while not options.stopped():
            behind = [each for each in self._active() if each.is_behind]
            if not behind:
                self._settle()
                if not options.follow or (self._failures and not self._active()):
                    return
            if options.follow and time.monotonic() - looked_at >= _LOOK_SECONDS:
                self._look()
                looked_at = time.monotonic()
            self._round(self._active() if options.follow else behind, wait=not behind)
            if self._uncommitted >= _COMMIT_BYTES:
                self._commit()

    def _active(self) -> list[PartitionCopy]:
        return [each for place, each in self._copies.items() if not self._has_failed(place)]

    def _has_failed(self, place: TopicPartition) -> bool:
        return place in self._failures or (place[0], None) in self._failures

    # --- what there is ----------------------------------------------------------------------------

    def _look(self) -> None:
        """Find topics and partitions that are new, gone, or other ones now; ask for the offsets of groups."""
        # Before the ends of partitions: what a group has consumed is below them then.
        self._cluster.refresh()
        self._groups.read()
        self._check_known()
        places: list[TopicPartition] = []
        for topic in self._wanted():
            if (topic.name, None) in self._failures:
                continue
            if topic.error_code and topic.error_code not in PASSING_CODES:
                self._fail((topic.name, None), f"the source says {named(topic.error_code)}")
                continue
            known = self._entries.get(topic.name)
            if known is not None and known[0].partitions == len(topic.leaders):
                continue
            try:
                entry, created, not_kept = find_or_create(
                    self._directory, self._cluster, topic, self._options.config
                )
            except CordwoodError as error:
                self._fail((topic.name, None), str(error))
                continue
            before = (created, not_kept) if known is None else known[1:]
            self._entries[topic.name] = (entry, *before)
            self._ids[topic.name] = topic.topic_id
            numbers = range(entry.partitions)
            places += [(topic.name, each) for each in numbers if (topic.name, each) not in self._copies]
        self._begin(places)

    def _wanted(self) -> Sequence[ClusterTopic]:
        options, topics = self._options, self._cluster.topics
        for name in options.topics:
            if not _GLOB & set(name) and name not in topics:
                self._fail((name, None), "there is no such topic at the source")
        found = [
            topic
            for name, topic in sorted(topics.items())
            if options.wants(name, is_internal=topic.is_internal or name.startswith("__"))
        ]
        if not found and not self._failures and not options.follow and options.topics != ("*",):
            patterns = ", ".join(options.topics)
            raise CordwoodError(f"{self._cluster.address} has no topic that matches {patterns}")
        return found

    def _check_known(self) -> None:
        """Fail topics that are gone at the source, or have another id there."""
        for name, topic_id in self._ids.items():
            found = self._cluster.topics.get(name)
            if found is None:
                self._fail((name, None), "it was deleted at the source, or may not be seen any more")
            elif found.topic_id != topic_id:
                self._fail((name, None), "it was deleted at the source and created again")

    def _begin(self, places: Sequence[TopicPartition]) -> None:
        """Begin to copy partitions: find where they stand here and at the source."""
        starts, wrong = self._source.offsets(places, EARLIEST)
        ends, also_wrong = self._source.offsets([each for each in places if each in starts], LATEST)
        for place, reason in {**wrong, **also_wrong}.items():
            self._fail(place, reason)
        epochs = leader_epochs(self._cluster)
        for place in places:
            if place not in starts or place not in ends:
                continue
            log = self._directory.partitions.find_own(*place)
            copy = PartitionCopy(self._directory, place, log, starts[place], ends[place])
            copy.leader_epoch = epochs.get(place, -1)
            self._copies[place] = copy
            if self._compare_ends(copy, starts[place], ends[place]):
                self._check_continues(copy)

    def _check_continues(self, copy: PartitionCopy) -> None:
        if copy.log is None:
            if not copy.is_behind:
                copy.create_empty()
            return
        try:
            copy.last_epoch = self._checks.check_tail(copy)
        except CordwoodError as error:
            self._fail(
                copy.place,
                f"what is here is not the beginning of the source: {error}; it was truncated there, "
                "or written to here",
            )

    def _compare_ends(self, copy: PartitionCopy, start: int, end: int) -> bool:
        """Return whether the log here ends within [start, end], where the source has records."""
        position = copy.position
        if position > end:
            self._fail(
                copy.place,
                f"the source ends at offset {end}, and the log here at {position}: it was truncated there, "
                "or written to here",
            )
            return False
        if position < start:
            if not self._options.skip_deleted:
                self._fail(
                    copy.place,
                    f"the source has deleted the offsets {position} to {start - 1}, which were not copied "
                    "yet; --skip-deleted goes on without them",
                )
                return False
            copy.skip_to(start, end)
            return False
        return True

    # --- copying ----------------------------------------------------------------------------------

    def _round(self, wanted: Sequence[PartitionCopy], *, wait: bool) -> None:
        """Ask every leader once, and take what comes."""
        self._is_troubled = False
        self._check_epochs(wanted)
        active = {each.place: each for each in wanted if not self._has_failed(each.place)}
        by_leader = self._source.by_leader(list(active))
        for place, copy in active.items():
            if not any(place in theirs for theirs in by_leader.values()):
                self._trouble(copy, "no broker leads it")
        wait_ms = _FOLLOW_WAIT_MS // len(by_leader) if wait and by_leader else 0
        self._turn += 1
        for node, places in by_leader.items():
            first = self._turn * _PARTITIONS_MAX % len(places)
            copies = [active[place] for place in (*places[first:], *places[:first])]
            alone = next((each for each in copies if each.is_alone), None)
            self._ask(node, copies[:_PARTITIONS_MAX] if alone is None else [alone], wait_ms)
        if not active:
            # Following a source that has no topic yet.
            time.sleep(_PAUSE_SECONDS)
        if self._is_troubled:
            time.sleep(_PAUSE_SECONDS)
            self._cluster.refresh()
            self._check_known()

    def _ask(self, node: int, copies: Sequence[PartitionCopy], wait_ms: int) -> None:
        # A leader that was truncated has a later epoch, and refuses: `_check_epochs` looks what it has left.
        wishes = [
            PartitionWish(each.place, each.position, each.wanted_bytes, each.leader_epoch) for each in copies
        ]
        is_alone = copies[0].is_alone
        try:
            parts = self._source.fetch(node, wishes, _ALONE_WAIT_MS if is_alone else wait_ms)
        except OSError as error:
            for each in copies:
                self._trouble(each, f"its leader does not answer: {error}")
            return
        for each in copies:
            try:
                self._take(each, parts[each.place])
            except RecordRefused as refused:
                self._fail(each.place, str(refused))
            except FrameError as damage:
                self._fail(each.place, f"the batch after offset {each.position} is damaged: {damage}")

    def _take(self, copy: PartitionCopy, part: FetchedPart) -> None:
        code = part.error_code
        if code == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._out_of_range(copy)
        elif code in PASSING_CODES:
            self._trouble(copy, f"the source says {named(code)}")
        elif code:
            self._fail(copy.place, f"the source says {named(code)}")
        else:
            self._take_data(copy, part)

    def _take_data(self, copy: PartitionCopy, part: FetchedPart) -> None:
        before, asked_alone = copy.copied_bytes, copy.is_alone
        halted = False

        def continues(one: PartitionCopy) -> bool:
            nonlocal halted
            halted = not self._still_has_copied(one)
            return not halted

        if copy.take(part.data, part.high_watermark, continues):
            copy.failing_since = None
            self._uncommitted += copy.copied_bytes - before
            self._options.progress(sum(each.copied_bytes for each in self._copies.values()))
            spans = [each.reached() for each in self._copies.values()]
            self._options.reached(sum(here for here, _ in spans), sum(total for _, total in spans))
        elif halted:
            return
        elif len(part.data) and asked_alone and copy.wanted_bytes == PART_BYTES:
            raise RecordRefused(f"the source sends only batches before offset {copy.position}")
        elif part.throttled:
            copy.failing_since = None
        elif copy.position < part.high_watermark:
            if asked_alone and not len(part.data):
                self._pass_empty_end(copy, part.high_watermark)
            copy.is_alone = not asked_alone or copy.is_alone
        elif copy.is_behind:
            # After an election the high watermark may be lower for a moment.
            self._trouble(
                copy, f"the source went up to offset {copy.target}, and ends at {part.high_watermark}"
            )
        else:
            copy.failing_since = None

    def _pass_empty_end(self, copy: PartitionCopy, high_watermark: int) -> None:
        """Go on at the high watermark if the source has no batch before it any more.

        That is so where compaction has removed the last batches. Other reasons for an empty answer pass.
        """
        node = self._cluster.leader(*copy.place)
        try:
            if node is None or not self._source.is_local(copy.place, copy.position):
                self._trouble(copy, "the source has records there and does not send them")
                return
            wish = PartitionWish(copy.place, copy.position, PART_BYTES, copy.leader_epoch)
            again = self._source.fetch(node, [wish], _ALONE_WAIT_MS)[copy.place]
        except OSError as error:
            self._trouble(copy, f"its leader does not answer: {error}")
            return
        if not again.error_code and not again.throttled and not len(again.data):
            copy.fill_to(min(high_watermark, again.high_watermark))

    def _out_of_range(self, copy: PartitionCopy) -> None:
        starts, _ = self._source.offsets([copy.place], EARLIEST)
        ends, _ = self._source.offsets([copy.place], LATEST)
        if copy.place not in starts or copy.place not in ends:
            self._trouble(copy, "its leader does not say where it begins and ends")
        elif self._compare_ends(copy, starts[copy.place], ends[copy.place]):
            self._trouble(copy, f"the source says that it has no offset {copy.position}")

    def _check_epochs(self, copies: Sequence[PartitionCopy]) -> None:
        """Look whether a partition with another leader still has what was copied from the one before."""
        epochs = leader_epochs(self._cluster)
        for copy in copies:
            epoch = epochs.get(copy.place, -1)
            if epoch == copy.leader_epoch:
                continue
            if self._still_has_copied(copy):
                copy.leader_epoch = epoch

    def _still_has_copied(self, copy: PartitionCopy) -> bool:
        """Return whether the source has all of the leader epoch of the last batch that was copied.

        If it has not, or that cannot be known now, the reason is noted.
        """
        if copy.last_epoch is None or copy.last_epoch < 0:
            return True
        try:
            end = self._source.epoch_end(copy.place, copy.last_epoch)
        except OSError:
            end = None
        if end is None:
            self._trouble(copy, "its leader does not say how it continues")
            return False
        if 0 <= end.end_offset < copy.copied_end:
            self._fail(
                copy.place,
                f"the source was truncated: it ends leader epoch {copy.last_epoch} at offset "
                f"{end.end_offset}, and the log here goes up to {copy.copied_end}",
            )
            return False
        return True

    # --- failing ----------------------------------------------------------------------------------

    def _trouble(self, copy: PartitionCopy, reason: str) -> None:
        """Note that a partition cannot be read now; fail it if that lasts too long."""
        self._is_troubled = True
        now = time.monotonic()
        if copy.failing_since is None:
            copy.failing_since = now
        elif now - copy.failing_since > self._options.seconds:
            self._fail(copy.place, reason)

    def _fail(self, place: tuple[str, int | None], reason: str) -> None:
        if place not in self._failures:
            self._failures[place] = failure = MirrorFailure(*place, reason)
            self._options.failed(failure)

    # --- ending -----------------------------------------------------------------------------------

    def _commit(self) -> None:
        for copy in self._copies.values():
            copy.commit()
        self._uncommitted = 0

    def _settle(self) -> None:
        """Make everything durable, with what follows from it: chains, and offsets of groups."""
        self._commit()
        for log, error in self._directory.chains.follow_changed().items():
            self._fail((log.state.topic, log.state.partition), f"its chain cannot be written: {error}")
        ends = {place: copy.position for place, copy in self._copies.items()}
        self._groups.store(ends, self._clock.now_ms())

    def _report(self, check: MirrorCheck | None) -> MirrorReport:
        topics = []
        for name, (entry, created, not_kept) in sorted(self._entries.items()):
            copies = [
                self._copies[name, each] for each in range(entry.partitions) if (name, each) in self._copies
            ]
            partitions = tuple(each.report() for each in copies)
            topics.append(MirroredTopic(name, entry.id, created, partitions, not_kept))
        return MirrorReport(
            self._cluster.address,
            self._cluster.cluster_id,
            tuple(topics),
            self._groups.reports(),
            tuple(self._failures.values()),
            check,
        )
