"""Read a gathering of the shared log in a task: windows of the log, filtered by owner.

A task does not know the records of every topic. It gets the offsets and partitions in its stretches, takes
the frames of these owners, and checks at the end that all offsets were found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, TypeAlias

from cordwood.embedded import BATCH_ROWS, decoded_rows
from cordwood.errors import CordwoodError, CorruptRange, OffsetOutOfRange, RecordsLost
from cordwood.formats import BATCH, batch
from cordwood.formats.shared import Envelope, EnvelopeKind, EnvelopeTable
from cordwood.kernels import INT32_MAX
from cordwood.spark.access.gathering import Gathered, GatheredRange
from cordwood.storage.chain import ReadSource
from cordwood.storage.log import AbortedRanges, Fetched, FrameRun
from cordwood.storage.shared import SharedFrame

if TYPE_CHECKING:
    import pyarrow as pa

#: The bytes collected from windows before they are decoded together.
DECODE_BYTES = 4 << 20
_PLACED = ("topic", "partition", "offset")
_GONE = "they are in the shared log no more"


Behind: TypeAlias = Callable[[int, int], Iterable[SharedFrame]]
"""Maps a range of ids to the readable frames there, in order."""


class _Taken:
    """The requested records of one partition, and how far they were found."""

    __slots__ = ("aborted", "next_id", "next_offset", "number", "wanted")

    def __init__(self, number: int, wanted: GatheredRange) -> None:
        self.number = number
        self.wanted = wanted
        self.next_offset = wanted.piece.start
        self.next_id = wanted.first_id
        self.aborted = AbortedRanges(wanted.piece.aborted) if wanted.piece.aborted else None

    def has(self, found: Envelope) -> bool:
        """Return whether a frame of the owner has requested records."""
        inside = found.first_id < self.wanted.end_id and self.wanted.first_id < found.next_id
        return inside and found.kind is EnvelopeKind.RECORDS

    def is_committed(self, found: Envelope, content: memoryview) -> bool:
        """Return whether the batch in a frame of the owner is not of an aborted transaction."""
        if self.aborted is None:
            return True
        header = batch.read_header(content)
        return not header.is_transactional or (header.producer_id, found.first_offset) not in self.aborted


class _GatheredBatches:
    """Batches of several topics copied into one buffer, and the data to separate them again."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.rows = 0
        #: For each batch: its first row, id and offset, and the number of its partition.
        self.places: list[tuple[int, int, int, int]] = []

    def add(self, content: memoryview, found: Envelope, number: int) -> None:
        """Add a batch."""
        position = len(self.data)
        self.data += content
        batch.place(self.data, position, self.rows, 0)
        self.places.append((self.rows, found.first_id, found.first_offset, number))
        self.rows += found.id_count

    def read(
        self, offset: int, max_bytes: int, stop: int | None = None, *, committed: bool = False
    ) -> Fetched:
        """Return all batches; their checksums were checked with their envelopes."""
        data = self.data
        table = BATCH.scan(
            data, next_offset=0, dense=True, epochs=None, size_max=INT32_MAX, checked_before=len(data)
        )
        if table.end != len(data):
            raise table.error()
        run = FrameRun(0, data, table, 0, len(table) - 1, BATCH)
        return Fetched((run,), self.rows, self.rows, self.rows, 0)


class GatheredReader:
    """Reads one gathering. *source* is the shared log, read in windows of *window_bytes*.

    After damage, *behind* finds frames without reading those before them.
    """

    def __init__(
        self,
        gathered: Gathered,
        source: ReadSource,
        schema: pa.Schema,
        window_bytes: int,
        behind: Behind,
        *,
        fail_on_data_loss: bool,
    ) -> None:
        import numpy as np
        import pyarrow as pa

        self._gathered = gathered
        self._source = source
        self._schema = schema
        self._window_bytes = window_bytes
        self._behind = behind
        self._fail = fail_on_data_loss
        self._taken = {each.owner: _Taken(at, each) for at, each in enumerate(gathered.wanted)}
        self._damage: list[CorruptRange] = []
        pieces = [each.piece for each in gathered.wanted]
        self._topics = pa.array([piece.topic for piece in pieces], pa.string())
        self._partitions = np.array([piece.partition for piece in pieces], np.int32)
        self._first_ids = np.array([each.first_id for each in gathered.wanted], np.int64)
        self._end_ids = np.array([each.end_id for each in gathered.wanted], np.int64)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the requested records, each partition in order.

        Raises:
            RecordsLost: If some are gone and loss must fail; otherwise they are skipped.
            CorruptRange: If requested records are damaged. Damage of other topics is ignored.
        """
        gathered = _GatheredBatches()
        for found, content in self._frames():
            taken = self._taken[found.owner]
            if taken.has(found):
                self._note(taken, found)
                if taken.is_committed(found, content):
                    gathered.add(content, found, taken.number)
                if len(gathered.data) >= DECODE_BYTES:
                    yield from self._decoded(gathered)
                    gathered = _GatheredBatches()
        if gathered.rows:
            yield from self._decoded(gathered)
        for taken in self._taken.values():
            if taken.next_offset < taken.wanted.piece.end:
                self._miss(taken, taken.wanted.piece.end, taken.wanted.end_id)

    def _frames(self) -> Iterator[SharedFrame]:
        """Yield the readable frames of requested owners in all stretches."""
        for first, end in self._gathered.stretches:
            id_ = first
            while id_ < end:
                try:
                    fetched = self._source.read(id_, self._window_bytes, end)
                except OffsetOutOfRange as error:
                    if error.start <= id_:
                        break
                    id_ = error.start
                    continue
                except CorruptRange as damage:
                    if self._source.compares:
                        # It may be any of the frames that were read, and all of them were to be compared.
                        raise
                    self._damage.append(damage)
                    for each in self._behind(id_, min(damage.resume_offset, end)):
                        if each.envelope.owner in self._taken:
                            yield each
                    id_ = max(damage.resume_offset, id_ + 1)
                    continue
                for run in fetched.runs:
                    yield from self._wanted_of(run, end)
                if fetched.next_offset <= id_:
                    break
                id_ = fetched.next_offset

    def _wanted_of(self, run: FrameRun, end: int) -> Iterator[SharedFrame]:
        """Yield the frames of requested owners that begin before the id *end*.

        Other frames in the window are neither requested nor compared; another stretch may begin with them.
        """
        table = run.table
        assert isinstance(table, EnvelopeTable)
        for frame in range(run.first, run.last + 1):
            found = table.envelope(frame)
            if found.first_id >= end:
                return
            if found.owner in self._taken:
                yield SharedFrame(found, table.content(frame))

    def _note(self, taken: _Taken, found: Envelope) -> None:
        """Record a frame, after all frames of its partition with lower ids."""
        if found.first_offset > taken.next_offset:
            self._miss(taken, found.first_offset, found.first_id)
        taken.next_offset = found.first_offset + found.id_count
        taken.next_id = found.next_id

    def _miss(self, taken: _Taken, offset: int, id_: int) -> None:
        """Report that records before *offset*, whose id is *id_*, were not found."""
        for damage in self._damage:
            if damage.offset < id_ and taken.next_id < damage.resume_offset:
                raise damage
        if self._fail:
            piece = taken.wanted.piece
            raise RecordsLost(piece.topic, piece.partition, taken.next_offset, offset, _GONE)

    def _decoded(self, gathered: _GatheredBatches) -> Iterator[pa.RecordBatch]:
        """Yield the requested records as Arrow batches of the schema, in the order of ids."""
        import pyarrow as pa

        stored = [field for field in self._schema if field.name not in _PLACED]
        try:
            for rows in decoded_rows(ReadSource(gathered), 0, gathered.rows, stored, len(gathered.data)):
                whole = self._placed(rows, gathered)
                for start in range(0, whole.num_rows, BATCH_ROWS):
                    yield whole.slice(start, BATCH_ROWS)
        except pa.ArrowInvalid as error:
            where = f"records of the shared log from id {gathered.places[0][1]} on"
            raise CordwoodError(f"{where}: a timestamp does not fit Spark's: {error}") from error

    def _placed(self, rows: pa.RecordBatch, gathered: _GatheredBatches) -> pa.RecordBatch:
        """Return the requested ones of *rows*, with their topics, partitions and offsets."""
        import numpy as np
        import pyarrow as pa

        row = rows.column("offset").to_numpy()
        first_rows, first_ids, first_offsets, numbers = np.array(gathered.places, np.int64).T
        batch_of = np.searchsorted(first_rows, row, "right") - 1
        within, number = row - first_rows[batch_of], numbers[batch_of]
        placed = {
            "topic": self._topics.take(pa.array(number)),
            "partition": pa.array(self._partitions[number]),
            "offset": pa.array(first_offsets[batch_of] + within),
        }
        columns = [placed[name] if name in placed else rows.column(name) for name in self._schema.names]
        whole = pa.RecordBatch.from_arrays(columns, schema=self._schema)
        ids = first_ids[batch_of] + within
        inside = (self._first_ids[number] <= ids) & (ids < self._end_ids[number])
        return whole if inside.all() else whole.filter(pa.array(inside))
