"""Topics in the shared log of a data directory: their states, planned and read together."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from pyroaring import BitMap64

from cordwood.disk import Files
from cordwood.errors import ConfigError, CorruptRange, RecordsLost, UnknownTopic
from cordwood.formats.shared import EnvelopeKind, Owner
from cordwood.spark.access.access import UNKNOWN_EPOCH, UNKNOWN_ID, Ends, Piece, TopicState
from cordwood.spark.access.committed import check_ended
from cordwood.spark.access.gathered_reading import GatheredReader
from cordwood.spark.access.gathering import Gathered, GatheredPart, GatheredRange, Gathering
from cordwood.spark.access.planning import PIECE_BYTES_MAX, Partition
from cordwood.spark.access.positions import find_loss
from cordwood.storage.chain import ComparedPartition, ReadSource, followed_to
from cordwood.storage.log import View, state_path
from cordwood.storage.meta import SHARED_TOPIC, TopicEntry, partition_directory
from cordwood.storage.readonly import ReadOnlyDirectory, ReadOnlyPartition
from cordwood.storage.shared import (
    Offsets,
    SharedFrame,
    VirtualReader,
    VirtualTopics,
    VirtualTransactions,
    owner_of,
)

if TYPE_CHECKING:
    import pyarrow as pa

#: How many times topics that are created again in the meantime are read again.
_SETTLING_TRIES = 8
#: The number of ids without an entry after damage before the following ones count as damaged too.
_UNKNOWN_MAX = 4096


class KnownPartition(NamedTuple):
    """A partition at one moment: its topic, its state, its ids and, if it has had any, its transactions."""

    topic_id: str
    owner: Owner
    ends: Ends
    offsets: Offsets
    transactions: VirtualTransactions | None


class SharedAccess:
    """The shared log of *directory*, for driver and tasks. One thread.

    Only `standings` and `gather`, which the driver calls, load the owner of every frame.
    """

    def __init__(self, files: Files, directory: ReadOnlyDirectory, *, committed: bool, chain: bool) -> None:
        self._files = files
        self._directory = directory
        self._committed = committed
        self._chain = chain
        self._known: dict[Partition, KnownPartition] = {}

    # --- the driver --------------------------------------------------------------------------------

    def standings(
        self, wanted: Mapping[str, tuple[TopicEntry, tuple[int, ...] | None]]
    ) -> dict[str, TopicState]:
        """Return the states of topics at one moment; topics deleted in the meantime are left out.

        Raises:
            UnknownTopic: If one of the partitions does not exist.
            ConfigError: If frames must be compared with leaves and there are none.
        """
        for _ in range(_SETTLING_TRIES):
            found = self._find(wanted)
            now = self._directory.topics
            # The name may belong to a new topic, created since the catalogue was read.
            wanted = {topic: (now[topic], numbers) for topic, (_, numbers) in wanted.items() if topic in now}
            same = {topic for topic, (entry, _) in wanted.items() if found[topic].topic_id == entry.id}
            if len(same) == len(wanted):
                break
        return {topic: found[topic] for topic in wanted if topic in same}

    def _find(self, wanted: Mapping[str, tuple[TopicEntry, tuple[int, ...] | None]]) -> dict[str, TopicState]:
        followed = self._followed() if self._chain else None

        def look(reader: VirtualReader, topics: VirtualTopics) -> dict[str, TopicState]:
            found: dict[str, TopicState] = {}
            for topic, (entry, numbers) in wanted.items():
                ends = {}
                for number in range(entry.partitions) if numbers is None else numbers:
                    known = self._look(reader, topics, entry, number, followed)
                    self._known[topic, number] = known
                    ends[number] = known.ends
                found[topic] = TopicState(entry.id, ends)
            return found

        return self._directory.shared().with_view(look)

    def _look(
        self,
        reader: VirtualReader,
        topics: VirtualTopics,
        entry: TopicEntry,
        number: int,
        followed: int | None,
    ) -> KnownPartition:
        """Return the state of one partition; *followed* is the first id without a leaf."""
        if not 0 <= number < entry.partitions:
            raise UnknownTopic(f"there is no partition {number} of a topic {entry.name}")
        owner = owner_of(entry.name, number)
        part = topics.find(owner)
        if part is None:
            offsets = Offsets(self._directory.config_of(entry.config).initial_offset, BitMap64())
        else:
            offsets = part.offsets
        end = reader.end_of(offsets)
        if self._committed and part is not None:
            end = part.stable_below(end)
        if followed is not None:
            end = min(end, offsets.below(followed))
        last = reader.view.state.epochs[-1]
        ends = Ends(offsets.start, end, last.epoch, offsets.below(last.start_offset))
        transactions = None if part is None else part.transactions
        return KnownPartition(entry.id, owner, ends, offsets, transactions)

    def _followed(self) -> int:
        """Return the first id without a leaf.

        Raises:
            ConfigError: If the shared log has no chain.
        """
        if not self._directory.config_of(self._directory.topics[SHARED_TOPIC].config).chain:
            raise ConfigError(
                "verify",
                f"verify=chain: the shared log keeps no chain; have it keep one with "
                f"cordwood topic alter {SHARED_TOPIC} --config cordwood.chain=true, or read without it",
            )
        place = partition_directory(self._directory.path, SHARED_TOPIC, 0)
        if not self._files.exists(state_path(place)):
            return 0
        return followed_to(self._files, place, SHARED_TOPIC, 0) or 0

    def forget(self, topic: str) -> None:
        """Record that a topic is not in the shared log, even if an earlier topic of its name was."""
        for key in [key for key in self._known if key[0] == topic]:
            del self._known[key]

    def gather(
        self, pieces: Sequence[Piece], *, fail_on_data_loss: bool
    ) -> tuple[list[Piece], Gathering | None]:
        """Return the *pieces* outside the shared log, and the rest as one gathering; see `Access`."""
        alone, parts = [], []
        for piece in pieces:
            known = self._known.get((piece.topic, piece.partition))
            if known is None:
                alone.append(piece)
                continue
            left = _left(piece, known, fail_on_data_loss=fail_on_data_loss)
            if self._committed and known.transactions is not None:
                check_ended(left, known.transactions.open_from)
            if left.start < left.end:
                parts.append(GatheredPart(left, known.owner, known.offsets))
        if not parts:
            return alone, None
        log = self._directory.shared().log
        return alone, log.with_view(lambda view: Gathering(parts, view, PIECE_BYTES_MAX))

    def with_aborted(self, gathered: Gathered) -> Gathered:
        """Return *gathered* with the aborted transactions of each of its ranges."""
        wanted = []
        for each in gathered.wanted:
            piece = each.piece
            known = self._known.get((piece.topic, piece.partition))
            if known is not None and known.transactions is not None:
                aborted = tuple(known.transactions.aborted_within(piece.start, piece.end))
                each = each._replace(piece=piece._replace(aborted=aborted))
            wanted.append(each)
        return gathered._replace(wanted=tuple(wanted))

    # --- a task ------------------------------------------------------------------------------------

    def read(
        self, gathered: Gathered, schema: pa.Schema, window_bytes: int, *, fail_on_data_loss: bool
    ) -> Iterator[pa.RecordBatch]:
        """Yield the requested records of a part of the shared log; raises as `Access.read` does."""
        try:
            log = self._directory.shared().log
            left = self._remaining(log, gathered, fail_on_data_loss=fail_on_data_loss)
            with contextlib.closing(self._source(log)) as source:
                reader = GatheredReader(
                    left, source, schema, window_bytes, self._behind, fail_on_data_loss=fail_on_data_loss
                )
                yield from reader.batches()
            # The read records are the planned ones only if nothing was removed in the meantime.
            self._remaining(log, left, fail_on_data_loss=fail_on_data_loss)
        except UnknownTopic:
            if fail_on_data_loss:
                lost = gathered.wanted[0].piece
                raise RecordsLost(*lost[:4], "the shared log was deleted") from None

    def _source(self, log: ReadOnlyPartition) -> ReadSource:
        if not self._chain:
            return ReadSource(log)
        place = partition_directory(self._directory.path, SHARED_TOPIC, 0)
        return ComparedPartition(self._files, place, SHARED_TOPIC, 0, log)

    def _behind(self, start: int, end: int) -> list[SharedFrame]:
        """Return the frames with ids in [start, end) that the dense index finds and that are sound.

        After a frame with an untrusted length, the position of the next frame is unknown from the log alone,
        and damage of one topic must not prevent reading others.
        """
        shared = self._directory.shared()

        def look(view: View) -> list[SharedFrame]:
            reader, found = VirtualReader(view, shared.find_entry), []
            id_, unknown = start, 0
            while id_ < end and unknown < _UNKNOWN_MAX:
                entry = shared.find_entry(view.segments[view.find_segment(id_)], id_)
                if entry is None:
                    id_, unknown = id_ + 1, unknown + 1
                    continue
                if entry.kind == EnvelopeKind.RECORDS:
                    ids = BitMap64(range(entry.first_id, entry.next_id))
                    with contextlib.suppress(CorruptRange):
                        place = entry.owner, Offsets(entry.first_offset, ids), entry.first_offset
                        found.append(reader.frame(*place))
                id_ = max(entry.next_id, id_ + 1)
            return found

        return shared.log.with_view(look)

    def _remaining(self, log: ReadOnlyPartition, gathered: Gathered, *, fail_on_data_loss: bool) -> Gathered:
        """Return the remaining part of the plan: existing topics, and ids that were not truncated.

        Raises:
            RecordsLost: If a part is gone and loss must fail.
        """
        topics, epochs = self._directory.topics, log.published().epochs
        left: list[GatheredRange] = []
        for wanted in gathered.wanted:
            piece = wanted.piece
            entry = topics.get(piece.topic)
            loss: RecordsLost | None
            if entry is None:
                loss = RecordsLost(*piece[:4], "the topic was deleted")
            else:
                loss = find_loss(piece, entry.id, piece.start, piece.end)
            # The shared log is truncated only by restoring it to an earlier point.
            cut = [first for first, epoch in epochs if epoch > piece.epoch != UNKNOWN_EPOCH]
            if loss is None and cut and min(cut) < wanted.end_id:
                loss = RecordsLost(*piece[:4], f"the shared log was truncated at its id {min(cut)}")
            if loss is None:
                left.append(wanted)
            elif fail_on_data_loss:
                raise loss
        return gathered._replace(wanted=tuple(left))


def _left(piece: Piece, known: KnownPartition, *, fail_on_data_loss: bool) -> Piece:
    """Return the remaining part of *piece* in a partition; nothing if it is of another topic.

    Raises:
        RecordsLost: If a part is gone and loss must fail.
    """
    offsets = known.offsets
    loss = find_loss(piece, known.topic_id, offsets.start, offsets.end)
    if loss is not None and fail_on_data_loss:
        raise loss
    if UNKNOWN_ID not in (piece.topic_id, known.topic_id) and piece.topic_id != known.topic_id:
        # These are records of a new topic, which a later batch reads.
        return piece._replace(end=piece.start)
    return piece._replace(start=max(piece.start, offsets.start), end=min(piece.end, offsets.end))
