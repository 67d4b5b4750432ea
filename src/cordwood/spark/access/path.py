"""Read a data directory directly, without a broker, beside its writer and never past the mark."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from cordwood.config import load_broker_config
from cordwood.disk import Files, as_storage_error, files_of, join, read_file
from cordwood.embedded import decoded_rows, in_batches, place_columns
from cordwood.errors import (
    ConfigError,
    CordwoodError,
    CorruptRange,
    DirectoryLocked,
    DirectoryRefused,
    OffsetOutOfRange,
    RecordsLost,
    StorageError,
    UnknownTopic,
)
from cordwood.host import process
from cordwood.spark.access.access import UNKNOWN_ID, Ends, Measure, Piece, TopicState
from cordwood.spark.access.committed import CommittedSource, check_ended
from cordwood.spark.access.gathering import Gathered, Gathering
from cordwood.spark.access.planning import PIECE_BYTES_MAX
from cordwood.spark.access.positions import find_loss
from cordwood.spark.access.shared import SharedAccess
from cordwood.storage.chain import ComparedPartition, ReadSource, WithoutLeaf, followed_to
from cordwood.storage.log import state_path
from cordwood.storage.meta import TopicEntry, is_shared, partition_directory
from cordwood.storage.readonly import PublishedPartition, ReadOnlyDirectory

if TYPE_CHECKING:
    import pyarrow as pa

#: The bytes read with one call. Tasks do not map files, because their address space may be limited.
WINDOW_BYTES = 8 << 20
#: The time limit in seconds for committing offsets to a server; no task waits for it.
COMMIT_SECONDS = 5.0
_PLACED = ("topic", "partition")


class PathAccess:
    """Access to a data directory for driver and tasks; see `Access`."""

    def __init__(
        self,
        path: str,
        *,
        verify: bool,
        committed: bool = True,
        chain: bool = False,
        task: bool = False,
        files: Files | None = None,
    ) -> None:
        self._path = path
        self._committed = committed
        self._chain = chain
        self._silent: str | None = None
        config, _ = load_broker_config()
        self._files = files or files_of(path, config)
        try:
            self._directory = ReadOnlyDirectory(self._files, path, config, mapped=False, verify=verify)
        except (OSError, StorageError) as error:
            raise self._refused(error, task) from error
        self._shared = SharedAccess(self._files, self._directory, committed=committed, chain=chain)

    def _refused(self, error: Exception, task: bool) -> StorageError:
        """Return *error* as one sentence for a process that cannot see the directory."""
        if isinstance(error, OSError):
            return as_storage_error(error, "opening the data directory")
        assert isinstance(error, StorageError)
        if not isinstance(error, DirectoryRefused):
            return error
        if task:
            return DirectoryRefused(
                f"host {process.host()} cannot see {self._path}, which the driver reads: put it where "
                "every executor has it, or read by address with kafka.bootstrap.servers"
            )
        missing = not self._files.exists(self._path)
        return DirectoryRefused(f"there is no data directory {self._path}") if missing else error

    def topics(self, names: Collection[str] | None = None) -> Mapping[str, int]:
        """Return all topics, or those of *names* that exist, with their numbers of partitions."""
        there = self._directory.topics
        found = there if names is None else [name for name in names if name in there]
        return {name: there[name].partitions for name in found}

    def standing(self, topic: str, partitions: tuple[int, ...] | None) -> TopicState | None:
        """Return the state of a topic."""
        return self.standings({topic: partitions}).get(topic)

    def standings(self, wanted: Mapping[str, tuple[int, ...] | None]) -> dict[str, TopicState]:
        """Return the states of topics; those in the shared log are read together.

        A batch of the sink is below the ends of all partitions, or of none.
        """
        if [len(numbers or ()) for numbers in wanted.values()] == [1]:
            return self._standings(wanted)
        found, intents = self._directory.look_at_once(lambda: self._standings(wanted))
        return {
            topic: TopicState(
                state.topic_id,
                {
                    number: ends._replace(end=intents.end_before(topic, state.topic_id, number, ends.end))
                    for number, ends in state.partitions.items()
                },
            )
            for topic, state in found.items()
        }

    def _standings(self, wanted: Mapping[str, tuple[int, ...] | None]) -> dict[str, TopicState]:
        entries = self._directory.topics
        there = {topic: (entries[topic], numbers) for topic, numbers in wanted.items() if topic in entries}
        shared = {topic: found for topic, found in there.items() if is_shared(found[0])}
        together = self._shared.standings(shared) if shared else {}
        found = {}
        for topic, (entry, numbers) in there.items():
            if topic not in shared:
                self._shared.forget(topic)
                found[topic] = self._own_standing(entry, numbers)
            elif topic in together:
                found[topic] = together[topic]
        return found

    def _own_standing(self, entry: TopicEntry, partitions: tuple[int, ...] | None) -> TopicState:
        """Return the state of a topic with its own files."""
        topic, found = entry.name, {}
        for number in range(entry.partitions) if partitions is None else partitions:
            now = self._directory.readable(topic, number, entry).published()
            cut = now.epochs[-1][0]
            end = now.last_stable_offset if self._committed else now.high_watermark
            if self._chain:
                self._check_chained(topic, entry)
                end = max(min(end, self._followed(topic, number)), now.log_start_offset)
            found[number] = Ends(now.log_start_offset, end, now.leader_epoch, cut)
        return TopicState(entry.id, found)

    def _check_chained(self, topic: str, entry: TopicEntry) -> None:
        """Refuse to compare a topic that has no chain."""
        if not self._directory.config_of(entry.config).chain:
            raise ConfigError(
                "verify",
                f"verify=chain: topic {topic} keeps no chain; have it keep one with "
                f"cordwood topic alter {topic} --config cordwood.chain=true, or read without it",
            )

    def _followed(self, topic: str, number: int) -> int:
        """Return the first offset of a partition without a leaf; 0 before the first record."""
        place = partition_directory(self._path, topic, number)
        if not self._files.exists(state_path(place)):
            return 0
        return followed_to(self._files, place, topic, number) or 0

    def offsets_at(self, times: Mapping[tuple[str, int], int]) -> dict[tuple[str, int], int | None]:
        """Return the offset of the first record at or after the time given for each partition.

        Exactly, but it may be of an aborted transaction: no committed record before it is as late.
        """
        found: dict[tuple[str, int], int | None] = {}
        for (topic, number), timestamp in times.items():
            partition = self._directory.readable(topic, number)
            at = partition.offset_at(timestamp)
            if at is not None and self._committed and at[0] >= partition.last_stable_offset:
                at = None
            found[topic, number] = None if at is None else at[0]
        return found

    def measure(self, pieces: Sequence[Piece]) -> list[Measure]:
        """Return the sizes of *pieces* in files, and index offsets that split them into 64 to 128 MiB."""
        return [self._measure(piece) for piece in pieces]

    def _measure(self, piece: Piece) -> Measure:
        partition = self._directory.readable(piece.topic, piece.partition)
        cuts = partition.cuts(piece.start, piece.end, PIECE_BYTES_MAX)
        return Measure(partition.bytes_within(piece.start, piece.end), cuts)

    def gather(
        self, pieces: Sequence[Piece], *, fail_on_data_loss: bool
    ) -> tuple[list[Piece], Gathering | None]:
        """Return the *pieces* to read one by one, and those in the shared log as one gathering."""
        return self._shared.gather(pieces, fail_on_data_loss=fail_on_data_loss)

    def with_aborted(self, pieces: Sequence[Piece | Gathered]) -> list[Piece | Gathered]:
        """Return *pieces* with the aborted transactions in them, if only committed records are read."""
        if not self._committed:
            return list(pieces)
        return [
            self._shared.with_aborted(piece) if isinstance(piece, Gathered) else self._with_aborted(piece)
            for piece in pieces
        ]

    def _with_aborted(self, piece: Piece) -> Piece:
        try:
            found = self._directory.readable(piece.topic, piece.partition).aborted(piece.start, piece.end)
        except UnknownTopic:
            # Deleted since it was planned: the task says what is lost.
            return piece
        return piece._replace(aborted=tuple(found))

    def read(
        self, pieces: Sequence[Piece | Gathered], schema: pa.Schema, *, fail_on_data_loss: bool
    ) -> Iterator[pa.RecordBatch]:
        """Yield the records of *pieces*, one after the other, decoding only the columns of *schema*."""
        for piece in pieces:
            if isinstance(piece, Gathered):
                yield from self._shared.read(piece, schema, WINDOW_BYTES, fail_on_data_loss=fail_on_data_loss)
            else:
                yield from self._read_own(piece, schema, fail_on_data_loss)

    def _read_own(self, piece: Piece, schema: pa.Schema, fail_on_data_loss: bool) -> Iterator[pa.RecordBatch]:
        """Yield the records of a range of a topic with its own files."""
        try:
            with contextlib.closing(self._source(piece)) as source:
                yield from self._read(piece, source, schema, fail_on_data_loss)
        except UnknownTopic:
            if fail_on_data_loss:
                reason = "the topic was deleted"
                raise RecordsLost(*piece[:4], reason) from None

    def _source(self, piece: Piece) -> ReadSource:
        """Return the reader of a task: the partition, or one that compares each frame with its leaf."""
        partition = self._directory.readable(piece.topic, piece.partition)
        if not self._chain:
            return ReadSource(partition)
        place = partition_directory(self._path, piece.topic, piece.partition)
        return ComparedPartition(self._files, place, piece.topic, piece.partition, partition)

    def _read(
        self, piece: Piece, source: ReadSource, schema: pa.Schema, fail_on_data_loss: bool
    ) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        fields = [field for field in schema if field.name not in _PLACED]
        constant = place_columns(piece.topic, piece.partition, schema)
        partition = self._directory.readable(piece.topic, piece.partition)
        committed = CommittedSource(source, piece.aborted)
        offset = self._begin(partition, piece, fail_on_data_loss)
        while offset < piece.end:
            try:
                for rows in decoded_rows(committed, offset, piece.end, fields, WINDOW_BYTES):
                    yield from in_batches(committed.without_aborted(rows), schema, constant)
                    if rows.num_rows:
                        offset = rows.column("offset")[-1].as_py() + 1
            except OffsetOutOfRange as error:
                # The log start moved past the range, or a truncation removed it.
                self._begin(partition, piece._replace(start=offset), fail_on_data_loss)
                if error.start <= offset:
                    return
                offset = error.start
                continue
            except pa.ArrowInvalid as error:
                where = f"partition {piece.partition} of topic {piece.topic} from offset {offset} on"
                raise CordwoodError(f"{where}: a timestamp does not fit Spark's: {error}") from error
            except (CorruptRange, WithoutLeaf):
                # A truncation without a statement yet is a loss, not tampering.
                self._begin(partition, piece._replace(start=offset), fail_on_data_loss)
                raise
            break
        # The read records are the planned ones only if nothing was truncated and appended again in the
        # meantime; a log start that moves behind the reader changes nothing.
        now = partition.published()
        loss = find_loss(piece, partition.topic_id, piece.start, now.high_watermark, now.epochs)
        if loss is not None and fail_on_data_loss:
            raise loss

    def _begin(self, partition: PublishedPartition, piece: Piece, fail_on_data_loss: bool) -> int:
        """Return where reading *piece* begins: at its start, or at what is left of it.

        Raises:
            RecordsLost: If a part of it is gone and loss must fail.
            CordwoodError: If only committed records are read and a transaction in it is open.
        """
        if not fail_on_data_loss and piece.topic_id not in (UNKNOWN_ID, partition.topic_id):
            # These are records of a new topic, which a later batch reads.
            return piece.end
        now = partition.published()
        loss = find_loss(piece, partition.topic_id, now.log_start_offset, now.high_watermark, now.epochs)
        if loss is not None and fail_on_data_loss:
            raise loss
        if self._committed and piece.end <= now.high_watermark:
            check_ended(piece, now.last_stable_offset)
        return max(piece.start, now.log_start_offset)

    def commit(self, group_id: str, offsets: Mapping[tuple[str, int], int]) -> None:
        """Commit through the server that holds the directory, if any; groups are not stored otherwise."""
        from cordwood.spark.access.broker import BrokerAccess

        address = self.holder_address()
        if address is None or address == self._silent:
            return
        # Wait for its answer: a killed server leaves its address in the lock.
        self._silent = address
        entries = self._directory.topics
        client = {"bootstrap.servers": address}
        with contextlib.closing(BrokerAccess(client, verify=True, seconds=COMMIT_SECONDS)) as broker:
            # Another server that listens there now must not get commits for topics of this directory.
            served = broker.topic_ids({topic for topic, _ in offsets})
            if any(topic not in entries or entries[topic].id != served.get(topic) for topic, _ in offsets):
                raise CordwoodError(f"{address}, which the lock of {self._path} names, does not serve it")
            broker.commit(group_id, offsets)
        self._silent = None

    def holder_address(self) -> str | None:
        """Return the address of the server that holds the directory, if it is in the lock's text."""
        try:
            text = read_file(self._files, join(self._path, "meta", "lock"))
        except OSError:
            return None
        return DirectoryLocked.address_in(text.decode(errors="replace"))

    def close(self) -> None:
        """Close."""
        self._directory.close()
