"""Reading a data directory directly: no broker, beside whoever writes it, never past the mark."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from cordwood import process
from cordwood.config import load_broker_config
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
from cordwood.scan import decoded_rows, in_batches, place_columns
from cordwood.spark.access import Ends, Piece, Standing
from cordwood.spark.gathering import Gathered, Gathering
from cordwood.spark.planning import PIECE_BYTES_MAX
from cordwood.spark.positions import find_loss
from cordwood.spark.shared_access import SharedAccess
from cordwood.storage.catalogue import TopicEntry, is_shared
from cordwood.storage.compared import ComparedPartition, ReadSource, WithoutLeaf, followed_to
from cordwood.storage.data_directory import partition_directory
from cordwood.storage.files import Files, join, read_file
from cordwood.storage.partition_state import state_path
from cordwood.storage.posix_files import PosixFiles
from cordwood.storage.read_only import AnyReadOnly, ReadOnlyDirectory
from cordwood.storage.store import as_storage_error

if TYPE_CHECKING:
    import pyarrow as pa

#: Read at a time with one call: tasks may not map files, because their address space may be limited.
WINDOW_BYTES = 8 << 20
#: What a server is given to take committed offsets, which nobody waits for.
COMMIT_SECONDS = 5.0
_PLACED = ("topic", "partition")


class PathAccess:
    """A data directory as driver and tasks see it; see `Access`."""

    def __init__(
        self,
        path: str,
        *,
        verify: bool,
        chain: bool = False,
        task: bool = False,
        files: Files | None = None,
    ) -> None:
        self._path = path
        self._chain = chain
        self._silent: str | None = None
        self._files = files or PosixFiles()
        config, _ = load_broker_config()
        try:
            self._directory = ReadOnlyDirectory(self._files, path, config, mapped=False, verify=verify)
        except (OSError, StorageError) as error:
            raise self._refused(error, task) from error
        self._shared = SharedAccess(self._files, self._directory, chain=chain)

    def _refused(self, error: Exception, task: bool) -> StorageError:
        """Return *error* as one sentence for whoever cannot see the directory from where they are."""
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

    def topics(self) -> Mapping[str, int]:
        """Return the topics there are and their numbers of partitions."""
        return {name: entry.partitions for name, entry in self._directory.topics.items()}

    def standing(self, topic: str, partitions: tuple[int, ...] | None) -> Standing | None:
        """Return where a topic stands."""
        return self.standings({topic: partitions}).get(topic)

    def standings(self, wanted: Mapping[str, tuple[int, ...] | None]) -> dict[str, Standing]:
        """Return where topics stand; those in the shared log are looked at together."""
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

    def _own_standing(self, entry: TopicEntry, partitions: tuple[int, ...] | None) -> Standing:
        """Return where a topic stands that has files of its own."""
        topic, found = entry.name, {}
        for number in range(entry.partitions) if partitions is None else partitions:
            now = self._directory.readable(topic, number, entry).published()
            cut = now.epochs[-1][0]
            end = now.high_watermark
            if self._chain:
                self._check_chained(topic, entry)
                end = max(min(end, self._followed(topic, number)), now.log_start_offset)
            found[number] = Ends(now.log_start_offset, end, now.leader_epoch, cut)
        return Standing(entry.id, found)

    def _check_chained(self, topic: str, entry: TopicEntry) -> None:
        """Refuse to compare a topic that keeps no chain."""
        if not self._directory.config_of(entry.config).chain:
            raise ConfigError(
                "verify",
                f"verify=chain: topic {topic} keeps no chain; have it keep one with "
                f"cordwood topic alter {topic} --config cordwood.chain=true, or read without it",
            )

    def _followed(self, topic: str, number: int) -> int:
        """Return up to where a partition has leaves; nowhere before its first record."""
        place = partition_directory(self._path, topic, number)
        if not self._files.exists(state_path(place)):
            return 0
        return followed_to(self._files, place, topic, number) or 0

    def offset_at(self, topic: str, partition: int, timestamp: int) -> int | None:
        """Return the offset of the first record at or after *timestamp*, exactly."""
        found = self._directory.readable(topic, partition).offset_at(timestamp)
        return None if found is None else found[0]

    def cuts(self, topic: str, partition: int, start: int, end: int) -> list[int]:
        """Return the offsets that cut a range into pieces of 64 to 128 MiB, by the index."""
        return self._directory.readable(topic, partition).cuts(start, end, PIECE_BYTES_MAX)

    def gather(
        self, pieces: Sequence[Piece], *, fail_on_data_loss: bool
    ) -> tuple[list[Piece], Gathering | None]:
        """Return those of *pieces* that are read one by one, and those in the shared log together."""
        return self._shared.gather(pieces, fail_on_data_loss=fail_on_data_loss)

    def read(
        self, piece: Piece | Gathered, schema: pa.Schema, *, fail_on_data_loss: bool
    ) -> Iterator[pa.RecordBatch]:
        """Yield the records of *piece*, decoding only what *schema* asks for."""
        if isinstance(piece, Gathered):
            yield from self._shared.read(piece, schema, WINDOW_BYTES, fail_on_data_loss=fail_on_data_loss)
            return
        try:
            with contextlib.closing(self._source(piece)) as source:
                yield from self._read(piece, source, schema, fail_on_data_loss)
        except UnknownTopic:
            if fail_on_data_loss:
                reason = "the topic was deleted"
                raise RecordsLost(*piece[:4], reason) from None

    def _source(self, piece: Piece) -> ReadSource:
        """Return what a task reads from: the partition, or one that compares each frame with its leaf."""
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
        offset = self._begin(partition, piece, fail_on_data_loss)
        while offset < piece.end:
            try:
                for rows in decoded_rows(source, offset, piece.end, fields, WINDOW_BYTES):
                    yield from in_batches(rows, schema, constant)
                    if rows.num_rows:
                        offset = rows.column("offset")[-1].as_py() + 1
            except OffsetOutOfRange as error:
                # The log start moved past what is read, or a truncation took it.
                self._begin(partition, piece._replace(start=offset), fail_on_data_loss)
                if error.start <= offset:
                    return
                offset = error.start
                continue
            except pa.ArrowInvalid as error:
                where = f"partition {piece.partition} of topic {piece.topic} from offset {offset} on"
                raise CordwoodError(f"{where}: a timestamp does not fit Spark's: {error}") from error
            except (CorruptRange, WithoutLeaf):
                # A truncation that the chain does not tell of yet is a loss, and no tampering.
                self._begin(partition, piece._replace(start=offset), fail_on_data_loss)
                raise
            break
        # What was read is only what was planned if nothing was cut and appended again meanwhile; a log start
        # that moves behind the reading takes nothing from it.
        now = partition.published()
        loss = find_loss(piece, partition.topic_id, piece.start, now.high_watermark, now.epochs)
        if loss is not None and fail_on_data_loss:
            raise loss

    def _begin(self, partition: AnyReadOnly, piece: Piece, fail_on_data_loss: bool) -> int:
        """Return where reading *piece* begins: at its start, or at what is left of it."""
        if not fail_on_data_loss and partition.topic_id != piece.topic_id:
            # Records of another topic, which are read when their time comes.
            return piece.end
        now = partition.published()
        loss = find_loss(piece, partition.topic_id, now.log_start_offset, now.high_watermark, now.epochs)
        if loss is not None and fail_on_data_loss:
            raise loss
        return max(piece.start, now.log_start_offset)

    def commit(self, group_id: str, offsets: Mapping[tuple[str, int], int]) -> None:
        """Commit through the server that holds the directory, if one does; else nobody keeps groups."""
        from cordwood.spark.broker_access import BrokerAccess

        address = self.holder_address()
        if address is None or address == self._silent:
            return
        # Until it answered: a server that was killed leaves its address in the lock.
        self._silent = address
        entries = self._directory.topics
        client = {"bootstrap.servers": address}
        with contextlib.closing(BrokerAccess(client, verify=True, seconds=COMMIT_SECONDS)) as broker:
            # Nor may another server that listens there now be told of topics that are not its own.
            topics = {topic for topic, _ in offsets}
            if any(topic not in entries or broker.topic_id(topic) != entries[topic].id for topic in topics):
                raise CordwoodError(f"{address}, which the lock of {self._path} names, does not serve it")
            broker.commit(group_id, offsets)
        self._silent = None

    def holder_address(self) -> str | None:
        """Return where the server listens that holds the directory, as far as the lock's text says so."""
        try:
            text = read_file(self._files, join(self._path, "meta", "lock"))
        except OSError:
            return None
        return DirectoryLocked.address_in(text.decode(errors="replace"))

    def close(self) -> None:
        """Let go."""
        self._directory.close()
