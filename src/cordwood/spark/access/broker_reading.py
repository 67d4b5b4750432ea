"""Read ranges of several partitions concurrently with one consumer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from cordwood.embedded import in_batches, place_columns
from cordwood.errors import CordwoodError, RecordsLost
from cordwood.kafka_client import KafkaClient
from cordwood.spark.access.access import Piece
from cordwood.spark.access.planning import Partition

if TYPE_CHECKING:
    import pyarrow as pa

#: The number of records taken from the client at a time.
CHUNK_ROWS = 32 * 1024
_POLL_SECONDS = 0.1

Begin = Callable[[Sequence[Piece]], list[int]]
"""Maps ranges to the offsets at which to begin: their starts, or their first remaining records.

Raises RecordsLost if a part of a range is gone and loss must fail. The end of a range means that nothing is
left.
"""


class _Range:
    """A range being read, and its progress."""

    __slots__ = ("constant", "piece", "position")

    def __init__(self, piece: Piece, position: int, schema: pa.Schema) -> None:
        self.piece = piece
        self.position = position
        self.constant = place_columns(piece.topic, piece.partition, schema)

    @property
    def left(self) -> int:
        """The number of offsets still to read."""
        return max(self.piece.end - self.position, 0)


class RangeReader:
    """Reads ranges, no two of the same partition, as batches of *schema*. One thread.

    Offsets may have no records: transaction markers, and records that compaction removed. So a range is
    complete at the first record beyond it, or at the end of the partition.
    """

    def __init__(
        self,
        client: KafkaClient,
        consumer: Any,
        schema: pa.Schema,
        begin: Begin,
        *,
        fail_on_data_loss: bool,
    ) -> None:
        self._client = client
        self._kafka = client.kafka
        self._consumer = consumer
        # A consumer looks for the coordinator of its group, which nothing here needs: what a query may read
        # does not depend on rights for groups.
        self._no_group = self._kafka.KafkaError.GROUP_AUTHORIZATION_FAILED
        self._schema = schema
        self._begin = begin
        self._fail = fail_on_data_loss

    def read(self, pieces: Sequence[Piece]) -> Iterator[pa.RecordBatch]:
        """Yield the records of *pieces*, each partition in order; raises as `Access.read` does."""
        begun = zip(pieces, self._begin(pieces), strict=True)
        ranges = {piece[:2]: _Range(piece, at, self._schema) for piece, at in begun if at < piece.end}
        self._consumer.assign([self._place(each) for each in ranges.values()])
        alone = len(ranges) == 1
        waited = 0.0
        while ranges:
            count = min(CHUNK_ROWS, sum(each.left for each in ranges.values()))
            messages = self._consumer.consume(count, _POLL_SECONDS)
            if not messages:
                waited += _POLL_SECONDS
                if waited >= self._client.seconds:
                    raise self._silent(ranges)
                continue
            waited = 0.0
            for place, found in (
                dict.fromkeys(ranges, messages) if alone else by_partition(messages)
            ).items():
                each = ranges.get(place)
                if each is None:
                    # From a finished range, or a client error that concerns no partition.
                    self._check(found, place)
                    continue
                yield from self._taken(each, found)
                if not each.left:
                    del ranges[place]
                    if ranges:
                        self._consumer.incremental_unassign([self._place(each)])
        self._consumer.unassign()

    def _taken(self, each: _Range, messages: Sequence[Any]) -> Iterator[pa.RecordBatch]:
        """Yield the records among *messages* of a range and advance past them."""
        records, stopped = self._sorted(messages)
        inside = [message for message in records if message.offset() < each.piece.end]
        if records:
            each.position = max(each.position, records[-1].offset() + 1)
        if inside:
            yield from in_batches(_rows(inside, self._schema), self._schema, each.constant)
        if stopped is not None and each.left:
            self._stop(each, stopped)

    def _stop(self, each: _Range, stopped: Any) -> None:
        """Decide how to continue after a message that is not a record."""
        piece, error = each.piece, stopped.error()
        if error.code() == self._kafka.KafkaError._PARTITION_EOF:
            if stopped.offset() < piece.end and self._fail:
                end = stopped.offset()
                raise RecordsLost(
                    piece.topic, piece.partition, end, piece.end, f"the partition ends at {end} now"
                )
            each.position = piece.end
        elif error.code() in (
            self._kafka.KafkaError._AUTO_OFFSET_RESET,
            self._kafka.KafkaError.OFFSET_OUT_OF_RANGE,
            *self._client.unknown,
        ):
            (each.position,) = self._begin([piece._replace(start=each.position)])
            self._consumer.incremental_unassign([self._place(each)])
            if each.left:
                self._consumer.incremental_assign([self._place(each)])
        else:
            self._check([stopped], piece[:2])

    def _check(self, messages: Sequence[Any], place: tuple[str | None, int]) -> None:
        """Raise the first error among *messages* from which the client does not recover."""
        for message in messages:
            error = message.error()
            if error is None or error.code() in (self._kafka.KafkaError._PARTITION_EOF, self._no_group):
                continue
            if error.fatal() or not error.retriable():
                topic, number = place
                where = "" if topic is None else f" partition {number} of topic {topic}"
                raise CordwoodError(f"reading{where} at {self._client.address} failed: {error.str()}")

    def _sorted(self, messages: Sequence[Any]) -> tuple[list[Any], Any]:
        """Return the records among *messages*, and the first of the others that concerns them."""
        if messages[-1].error() is None and all(message.error() is None for message in messages):
            return list(messages), None
        records = [message for message in messages if message.error() is None]
        others = (message for message in messages if message.error() is not None)
        return records, next((each for each in others if each.error().code() != self._no_group), None)

    def _silent(self, ranges: dict[Partition, _Range]) -> CordwoodError:
        first = next(iter(ranges.values()))
        others = f" and of {len(ranges) - 1} others" if len(ranges) > 1 else ""
        return CordwoodError(
            f"{self._client.address} sends nothing of partition {first.piece.partition} of topic "
            f"{first.piece.topic} after {first.position}{others}"
        )

    def _place(self, each: _Range) -> Any:
        return self._kafka.TopicPartition(each.piece.topic, each.piece.partition, each.position)


def by_partition(messages: Sequence[Any]) -> dict[Partition, list[Any]]:
    """Return *messages* by their partitions, in order; errors of the client have no topic."""
    found: dict[Partition, list[Any]] = {}
    for message in messages:
        found.setdefault((message.topic(), message.partition()), []).append(message)
    return found


def _rows(messages: Sequence[Any], schema: pa.Schema) -> pa.RecordBatch:
    """Return *messages* as columns: those of *schema*, and the offset."""
    import pyarrow as pa

    wanted = set(schema.names)
    # One call returns both, as (kind, milliseconds).
    stamps = [message.timestamp() for message in messages] if wanted & {"timestamp", "timestampType"} else []
    columns: dict[str, Any] = {"offset": pa.array([message.offset() for message in messages], pa.int64())}
    for field in schema:
        match field.name:
            case "key":
                columns["key"] = pa.array([message.key() for message in messages], field.type)
            case "value":
                columns["value"] = pa.array([message.value() for message in messages], field.type)
            case "timestamp":
                times = pa.array([milliseconds for _, milliseconds in stamps], pa.int64())
                columns["timestamp"] = times.cast(pa.timestamp("ms", "UTC")).cast(field.type)
            case "timestampType":
                # Kafka's client counts kinds from 1; 0 means no timestamp, which is -1 here.
                kinds = [kind - 1 for kind, _ in stamps]
                columns["timestampType"] = pa.array(kinds, field.type)
            case "headers":
                columns["headers"] = pa.array([_headers(message) for message in messages], field.type)
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def _headers(message: Any) -> list[dict[str, Any]]:
    return [{"key": key, "value": value} for key, value in message.headers() or ()]
