"""Reading in a task what was gathered from the shared log: windows of it, and of these what is wanted.

A task never learns which records every topic has. It is told which offsets of which partitions lie in its
stretches, takes the frames that say they are theirs, and knows at the end whether all of them were there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, TypeAlias

from cordwood.errors import CordwoodError, CorruptRange, OffsetOutOfRange, RecordsLost
from cordwood.formats import batch
from cordwood.formats.envelope import Envelope, EnvelopeTable, Kind
from cordwood.formats.registry import BATCH
from cordwood.kernels.layout import INT32_MAX
from cordwood.scan import BATCH_ROWS, decoded_rows
from cordwood.spark.gathering import Gathered, Wanted
from cordwood.storage.compared import ComparedPartition, ReadSource
from cordwood.storage.reading import FrameRun
from cordwood.storage.view import Fetched
from cordwood.storage.virtual_reading import Found

if TYPE_CHECKING:
    import pyarrow as pa

#: Kept of a window until there is enough to decode at once.
DECODE_BYTES = 4 << 20
_PLACED = ("topic", "partition", "offset")
_GONE = "they are in the shared log no more"


Behind: TypeAlias = Callable[[int, int], Iterable[Found]]
"""From a range of ids to the frames there that can be read, in order."""


class _Taken:
    """What is wanted of one partition, and up to where it was found."""

    __slots__ = ("next_id", "next_offset", "number", "wanted")

    def __init__(self, number: int, wanted: Wanted) -> None:
        self.number = number
        self.wanted = wanted
        self.next_offset = wanted.piece.start
        self.next_id = wanted.first_id

    def has(self, found: Envelope) -> bool:
        """Return whether a frame of the owner holds some of it."""
        inside = found.first_id < self.wanted.end_id and self.wanted.first_id < found.next_id
        return inside and found.kind is Kind.RECORDS


class _Batches:
    """Batches copied together, numbered as if they were of one topic, and what tells them apart again."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.rows = 0
        #: Of each batch: which row it begins with, its first id and offset, and the number of its partition.
        self.places: list[tuple[int, int, int, int]] = []

    def add(self, content: memoryview, found: Envelope, number: int) -> None:
        """Take a batch."""
        position = len(self.data)
        self.data += content
        batch.place(self.data, position, self.rows, 0)
        self.places.append((self.rows, found.first_id, found.first_offset, number))
        self.rows += found.id_count

    def read(self, offset: int, max_bytes: int, stop: int | None = None) -> Fetched:
        """Return all of them; their checksums were compared with those of their envelopes."""
        data = self.data
        table = BATCH.scan(
            data, next_offset=0, dense=True, epochs=None, size_max=INT32_MAX, checked_before=len(data)
        )
        if table.end != len(data):
            raise table.error()
        run = FrameRun(0, data, table, 0, len(table) - 1, BATCH)
        return Fetched((run,), self.rows, self.rows, self.rows, 0)


class GatheredReader:
    """Reads one piece of work. *source* is the shared log; windows of it are of *window_bytes*.

    Where it is damaged, *behind* finds frames without going through those before them.
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
        """Yield what is wanted, each partition's records in order.

        Raises:
            RecordsLost: If some of it is not there any more and that is to fail; else it is skipped.
            CorruptRange: If some of it is not what was written. What is wrong with other topics is not.
        """
        gathered = _Batches()
        for found, content in self._frames():
            taken = self._taken[found.owner]
            if taken.has(found):
                self._note(taken, found)
                gathered.add(content, found, taken.number)
                if len(gathered.data) >= DECODE_BYTES:
                    yield from self._decoded(gathered)
                    gathered = _Batches()
        if gathered.rows:
            yield from self._decoded(gathered)
        for taken in self._taken.values():
            if taken.next_offset < taken.wanted.piece.end:
                self._miss(taken, taken.wanted.piece.end, taken.wanted.end_id)

    def _frames(self) -> Iterator[Found]:
        """Yield the frames of wanted owners in all stretches, as far as they can be read."""
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
                    if isinstance(self._source, ComparedPartition):
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

    def _wanted_of(self, run: FrameRun, end: int) -> Iterator[Found]:
        """Yield the frames of wanted owners that begin before the id *end*.

        What else was read along is neither asked for here nor compared; another stretch may begin with it.
        """
        table = run.table
        assert isinstance(table, EnvelopeTable)
        for frame in range(run.first, run.last + 1):
            found = table.envelope(frame)
            if found.first_id >= end:
                return
            if found.owner in self._taken:
                yield Found(found, table.content(frame))

    def _note(self, taken: _Taken, found: Envelope) -> None:
        """Take note of a frame, after all those of its partition with lower ids."""
        if found.first_offset > taken.next_offset:
            self._miss(taken, found.first_offset, found.first_id)
        taken.next_offset = found.first_offset + found.id_count
        taken.next_id = found.next_id

    def _miss(self, taken: _Taken, offset: int, id_: int) -> None:
        """Say that what should come before *offset*, whose record has the id *id_*, was not found."""
        for damage in self._damage:
            if damage.offset < id_ and taken.next_id < damage.resume_offset:
                raise damage
        if self._fail:
            piece = taken.wanted.piece
            raise RecordsLost(piece.topic, piece.partition, taken.next_offset, offset, _GONE)

    def _decoded(self, gathered: _Batches) -> Iterator[pa.RecordBatch]:
        """Yield the wanted records of batches as record batches of the schema, in the order of their ids."""
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

    def _placed(self, rows: pa.RecordBatch, gathered: _Batches) -> pa.RecordBatch:
        """Return those of *rows* that are wanted, with their topics, partitions and offsets."""
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
