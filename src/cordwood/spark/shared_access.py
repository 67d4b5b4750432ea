"""Topics in the shared log of a data directory: where all of them stand, planned together, read together."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from pyroaring import BitMap64

from cordwood.errors import ConfigError, CorruptRange, RecordsLost, UnknownTopic
from cordwood.formats.envelope import Kind, Owner
from cordwood.spark.access import UNKNOWN_EPOCH, UNKNOWN_ID, Ends, Piece, Standing
from cordwood.spark.gathered_reading import GatheredReader
from cordwood.spark.gathering import Gathered, Gathering, Part, Wanted
from cordwood.spark.planning import PIECE_BYTES_MAX, Partition
from cordwood.spark.positions import find_loss
from cordwood.storage.catalogue import SHARED_TOPIC, TopicEntry
from cordwood.storage.compared import ComparedPartition, ReadSource, followed_to
from cordwood.storage.data_directory import partition_directory
from cordwood.storage.files import Files
from cordwood.storage.partition_state import state_path
from cordwood.storage.read_only import ReadOnlyDirectory, ReadOnlyPartition
from cordwood.storage.view import View
from cordwood.storage.virtual_log import owner_of
from cordwood.storage.virtual_reading import Found, VirtualReader
from cordwood.storage.virtual_topics import Offsets, VirtualTopics

if TYPE_CHECKING:
    import pyarrow as pa

#: How often topics that are made again meanwhile are looked at again.
_SETTLING_TRIES = 8
#: Behind damage, so many ids may be without an entry before what follows counts as damaged too.
_UNKNOWN_MAX = 4096


class Known(NamedTuple):
    """A partition as it was found: of which topic, where it stood, and which ids it has."""

    topic_id: str
    owner: Owner
    ends: Ends
    offsets: Offsets


class SharedAccess:
    """The shared log of *directory*, as driver and tasks see it. One thread.

    Only `standings` and `gather`, which are the driver's, learn whose every frame is.
    """

    def __init__(self, files: Files, directory: ReadOnlyDirectory, *, chain: bool) -> None:
        self._files = files
        self._directory = directory
        self._chain = chain
        self._known: dict[Partition, Known] = {}

    # --- the driver --------------------------------------------------------------------------------

    def standings(
        self, wanted: Mapping[str, tuple[TopicEntry, tuple[int, ...] | None]]
    ) -> dict[str, Standing]:
        """Return where topics stand, all of one moment; one that is deleted meanwhile is left out.

        Raises:
            UnknownTopic: If one of the partitions does not exist.
            ConfigError: If frames are to be compared with leaves, and there are none.
        """
        for _ in range(_SETTLING_TRIES):
            found = self._find(wanted)
            now = self._directory.topics
            # What was found under a name may be another topic's, made since the catalogue was read.
            wanted = {topic: (now[topic], numbers) for topic, (_, numbers) in wanted.items() if topic in now}
            same = {topic for topic, (entry, _) in wanted.items() if found[topic].topic_id == entry.id}
            if len(same) == len(wanted):
                break
        return {topic: found[topic] for topic in wanted if topic in same}

    def _find(self, wanted: Mapping[str, tuple[TopicEntry, tuple[int, ...] | None]]) -> dict[str, Standing]:
        followed = self._followed() if self._chain else None

        def look(reader: VirtualReader, topics: VirtualTopics) -> dict[str, Standing]:
            found: dict[str, Standing] = {}
            for topic, (entry, numbers) in wanted.items():
                ends = {}
                for number in range(entry.partitions) if numbers is None else numbers:
                    known = self._look(reader, topics, entry, number, followed)
                    self._known[topic, number] = known
                    ends[number] = known.ends
                found[topic] = Standing(entry.id, ends)
            return found

        return self._directory.shared().looked_up(look)

    def _look(
        self,
        reader: VirtualReader,
        topics: VirtualTopics,
        entry: TopicEntry,
        number: int,
        followed: int | None,
    ) -> Known:
        """Return what is known of one partition; *followed* is the id from which on there are no leaves."""
        if not 0 <= number < entry.partitions:
            raise UnknownTopic(f"there is no partition {number} of a topic {entry.name}")
        owner = owner_of(entry.name, number)
        part = topics.find(owner)
        if part is None:
            offsets = Offsets(self._directory.config_of(entry.config).initial_offset, BitMap64())
        else:
            offsets = part.offsets
        end = reader.end_of(offsets)
        if followed is not None:
            end = min(end, offsets.below(followed))
        last = reader.view.state.epochs[-1]
        ends = Ends(offsets.start, end, last.epoch, offsets.below(last.start_offset))
        return Known(entry.id, owner, ends, offsets)

    def _followed(self) -> int:
        """Return the id from which on frames have no leaves yet.

        Raises:
            ConfigError: If the shared log keeps no chain.
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
        """Take note that a topic is not in the shared log, whatever was of its name before."""
        for key in [key for key in self._known if key[0] == topic]:
            del self._known[key]

    def gather(
        self, pieces: Sequence[Piece], *, fail_on_data_loss: bool
    ) -> tuple[list[Piece], Gathering | None]:
        """Return those of *pieces* that are not in the shared log, and the rest together; see `Access`."""
        alone, parts = [], []
        for piece in pieces:
            known = self._known.get((piece.topic, piece.partition))
            if known is None:
                alone.append(piece)
                continue
            left = _left(piece, known, fail_on_data_loss=fail_on_data_loss)
            if left.start < left.end:
                parts.append(Part(left, known.owner, known.offsets))
        if not parts:
            return alone, None
        log = self._directory.shared().log
        return alone, log.looked_up(lambda view: Gathering(parts, view, PIECE_BYTES_MAX))

    # --- a task ------------------------------------------------------------------------------------

    def read(
        self, gathered: Gathered, schema: pa.Schema, window_bytes: int, *, fail_on_data_loss: bool
    ) -> Iterator[pa.RecordBatch]:
        """Yield what is wanted of a part of the shared log; raises as `Access.read` does."""
        try:
            log = self._directory.readable(SHARED_TOPIC, 0)
            assert isinstance(log, ReadOnlyPartition)
            left = self._still_there(log, gathered, fail_on_data_loss=fail_on_data_loss)
            with contextlib.closing(self._source(log)) as source:
                reader = GatheredReader(
                    left, source, schema, window_bytes, self._behind, fail_on_data_loss=fail_on_data_loss
                )
                yield from reader.batches()
            # What was read is only what was planned if nothing was taken away meanwhile.
            self._still_there(log, left, fail_on_data_loss=fail_on_data_loss)
        except UnknownTopic:
            if fail_on_data_loss:
                lost = gathered.wanted[0].piece
                raise RecordsLost(*lost[:4], "the shared log was deleted") from None

    def _source(self, log: ReadOnlyPartition) -> ReadSource:
        if not self._chain:
            return ReadSource(log)
        place = partition_directory(self._directory.path, SHARED_TOPIC, 0)
        return ComparedPartition(self._files, place, SHARED_TOPIC, 0, log)

    def _behind(self, start: int, end: int) -> list[Found]:
        """Return the frames with ids in [start, end) that the dense index finds and that are sound.

        Behind a frame whose length is not to be trusted, the log alone does not say where the next one is;
        and what is wrong with one topic must not keep others from being read.
        """
        shared = self._directory.shared()

        def look(view: View) -> list[Found]:
            reader, found = VirtualReader(view, shared.find_entry), []
            id_, unknown = start, 0
            while id_ < end and unknown < _UNKNOWN_MAX:
                entry = shared.find_entry(view.segments[view.find_segment(id_)], id_)
                if entry is None:
                    id_, unknown = id_ + 1, unknown + 1
                    continue
                if entry.kind == Kind.RECORDS:
                    ids = BitMap64(range(entry.first_id, entry.next_id))
                    with contextlib.suppress(CorruptRange):
                        place = entry.owner, Offsets(entry.first_offset, ids), entry.first_offset
                        found.append(reader.frame(*place))
                id_ = max(entry.next_id, id_ + 1)
            return found

        return shared.log.looked_up(look)

    def _still_there(
        self, log: ReadOnlyPartition, gathered: Gathered, *, fail_on_data_loss: bool
    ) -> Gathered:
        """Return what is left of what was planned: topics that are there, and ids that nothing cut.

        Raises:
            RecordsLost: If it is not all of it, and that is to fail.
        """
        topics, epochs = self._directory.topics, log.published().epochs
        left: list[Wanted] = []
        for wanted in gathered.wanted:
            piece = wanted.piece
            entry = topics.get(piece.topic)
            loss: RecordsLost | None
            if entry is None:
                loss = RecordsLost(*piece[:4], "the topic was deleted")
            else:
                loss = find_loss(piece, entry.id, piece.start, piece.end)
            # Records of the shared log are only cut by restoring it to an earlier point.
            cut = [first for first, epoch in epochs if epoch > piece.epoch != UNKNOWN_EPOCH]
            if loss is None and cut and min(cut) < wanted.end_id:
                loss = RecordsLost(*piece[:4], f"the shared log was truncated at its id {min(cut)}")
            if loss is None:
                left.append(wanted)
            elif fail_on_data_loss:
                raise loss
        return gathered._replace(wanted=tuple(left))


def _left(piece: Piece, known: Known, *, fail_on_data_loss: bool) -> Piece:
    """Return what of *piece* there is in a partition; nothing of another topic's.

    Raises:
        RecordsLost: If it is not all of it, and that is to fail.
    """
    offsets = known.offsets
    loss = find_loss(piece, known.topic_id, offsets.start, offsets.end)
    if loss is not None and fail_on_data_loss:
        raise loss
    if UNKNOWN_ID not in (piece.topic_id, known.topic_id) and piece.topic_id != known.topic_id:
        # Records of another topic, which are read when their time comes.
        return piece._replace(end=piece.start)
    return piece._replace(start=max(piece.start, offsets.start), end=min(piece.end, offsets.end))
