"""Reading by address, as a Kafka client: our own server or Apache Kafka's."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cordwood.errors import ConfigError, CordwoodError, RecordsLost, UnknownTopic
from cordwood.scan import in_batches, place_columns
from cordwood.spark.access import UNKNOWN_ID, Ends, Piece, Standing
from cordwood.spark.positions import find_loss

if TYPE_CHECKING:
    import pyarrow as pa

    from cordwood.spark.gathering import Gathered, Gathering

#: Records taken from the client at a time.
CHUNK_ROWS = 32 * 1024
#: What a broker is given to answer, and a range to go on, before it counts as unreachable.
SECONDS_MAX = 60.0
_POLL_SECONDS = 0.1
_CONSUMER_ONLY = (
    "group.id",
    "fetch.queue.backoff.ms",
    "fetch.message.max.bytes",
    "queued.min.messages",
    "auto.offset.reset",
    "check.crcs",
    "enable.auto.commit",
    "enable.auto.offset.store",
    "enable.partition.eof",
    "isolation.level",
)


class BrokerAccess:
    """A broker as driver and tasks see it; see `Access`."""

    def __init__(self, client: Mapping[str, str], *, verify: bool, seconds: float = SECONDS_MAX) -> None:
        self._seconds = seconds
        self._admin: Any = None
        try:
            import confluent_kafka
        except ImportError as error:
            raise CordwoodError(
                "reading by address needs confluent-kafka: install cordwood[spark]"
            ) from error
        self._kafka: Any = confluent_kafka
        self._settings: dict[str, Any] = {
            "group.id": "cordwood-source",
            # A task reads one partition as fast as it can; by default the client rests for a second each time
            # its queue is full.
            "fetch.queue.backoff.ms": 5,
            "fetch.message.max.bytes": 8 << 20,
            "queued.min.messages": 1_000_000,
            **client,
            "auto.offset.reset": "error",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            "check.crcs": verify,
            # Errors come as answers to what is asked; librdkafka would write them to the console as well.
            "error_cb": lambda error: None,
            "log_level": 0,
        }
        self._consumer = self._connect(self._settings)

    def _connect(self, settings: Mapping[str, Any]) -> Any:
        try:
            return self._kafka.Consumer(dict(settings))
        except self._kafka.KafkaException as error:
            raise ConfigError("kafka.", f"the client refuses a kafka. option: {_said(error)}") from None

    @property
    def _address(self) -> str:
        return str(self._settings["bootstrap.servers"])

    def _asked(self, doing: str, call: Any, *arguments: Any, **options: Any) -> Any:
        """Return what the broker answers.

        Raises:
            CordwoodError: If it does not, or says no; names the address.
        """
        try:
            return call(*arguments, **options)
        except self._kafka.KafkaException as error:
            raise CordwoodError(f"{doing} at {self._address} failed: {_said(error)}") from error

    def topics(self) -> Mapping[str, int]:
        """Return the topics there are and their numbers of partitions."""
        found = self._asked("asking for the topics", self._consumer.list_topics, timeout=self._seconds)
        return {name: len(topic.partitions) for name, topic in found.topics.items()}

    def standing(self, topic: str, partitions: tuple[int, ...] | None) -> Standing | None:
        """Return where a topic stands; its leader epochs are not to be learnt this way."""
        count = self.topics().get(topic)
        if count is None:
            return None
        found = {}
        for number in range(count) if partitions is None else partitions:
            if number >= count:
                raise UnknownTopic(f"topic {topic} has {count} partitions, and no partition {number}")
            found[number] = Ends(*self._ends(topic, number))
        return Standing(self.topic_id(topic), found)

    def standings(self, wanted: Mapping[str, tuple[int, ...] | None]) -> dict[str, Standing]:
        """Return where topics stand, asked for one by one."""
        asked = ((topic, self.standing(topic, numbers)) for topic, numbers in wanted.items())
        return {topic: found for topic, found in asked if found is not None}

    def _ends(self, topic: str, number: int) -> tuple[int, int]:
        place = self._kafka.TopicPartition(topic, number)
        low, high = self._asked(
            f"asking for the ends of partition {number} of topic {topic}",
            self._consumer.get_watermark_offsets,
            place,
            timeout=self._seconds,
        )
        return low, high

    def topic_id(self, topic: str) -> str:
        """Return the id of a topic as a data directory writes it, nothing if the broker gives none."""
        from confluent_kafka.admin import AdminClient

        try:
            if self._admin is None:
                self._admin = AdminClient(
                    {n: v for n, v in self._settings.items() if n not in _CONSUMER_ONLY}
                )
            wanted = self._kafka.TopicCollection([topic])
            asked = self._admin.describe_topics(wanted, request_timeout=self._seconds)
            found = asked[topic].result().topic_id
        except self._kafka.KafkaException:
            return UNKNOWN_ID
        high = found.get_most_significant_bits() % (1 << 64)
        low = found.get_least_significant_bits() % (1 << 64)
        return str(uuid.UUID(int=high << 64 | low)) if high or low else UNKNOWN_ID

    def offset_at(self, topic: str, partition: int, timestamp: int) -> int | None:
        """Return the offset of the first record at or after *timestamp*, as the broker says."""
        (found,) = self._asked(
            f"asking for a time in partition {partition} of topic {topic}",
            self._consumer.offsets_for_times,
            [self._kafka.TopicPartition(topic, partition, timestamp)],
            timeout=self._seconds,
        )
        if found.error is not None:
            raise CordwoodError(f"asking for a time at {self._address} failed: {found.error.str()}")
        return None if found.offset < 0 else int(found.offset)

    def cuts(self, topic: str, partition: int, start: int, end: int) -> list[int]:
        """Return nothing: a broker does not say how large its records are."""
        return []

    def gather(
        self, pieces: Sequence[Piece], *, fail_on_data_loss: bool
    ) -> tuple[list[Piece], Gathering | None]:
        """Return all of *pieces*: how a broker keeps its topics is not to be seen."""
        return list(pieces), None

    def read(
        self, piece: Piece | Gathered, schema: pa.Schema, *, fail_on_data_loss: bool
    ) -> Iterator[pa.RecordBatch]:
        """Yield the records of *piece*, which ends where the consumer's position does.

        Offsets may have no records: those of transactions, and what compaction removed. So the range is over
        when a record beyond it comes, or the end of the partition.
        """
        assert isinstance(piece, Piece)
        constant = place_columns(piece.topic, piece.partition, schema)
        position = self._begin(piece, fail_on_data_loss)
        self._assign(piece, position)
        waited = 0.0
        while position < piece.end:
            messages = self._consumer.consume(min(CHUNK_ROWS, piece.end - position), _POLL_SECONDS)
            if not messages:
                waited += _POLL_SECONDS
                if waited >= self._seconds:
                    raise CordwoodError(f"{self._address} sends nothing of {_place(piece)} after {position}")
                continue
            waited = 0.0
            records, stopped = self._sorted(messages)
            inside = [message for message in records if message.offset() < piece.end]
            if records:
                position = max(position, records[-1].offset() + 1)
            if inside:
                yield from in_batches(_rows(inside, schema), schema, constant)
            if stopped is not None and position < piece.end:
                position = self._after(stopped, piece, position, fail_on_data_loss)

    def _sorted(self, messages: Sequence[Any]) -> tuple[list[Any], Any]:
        """Return the records among *messages*, and what else came after them."""
        if messages[-1].error() is None and all(message.error() is None for message in messages):
            return list(messages), None
        records = [message for message in messages if message.error() is None]
        return records, next(message for message in messages if message.error() is not None)

    def _after(self, stopped: Any, piece: Piece, position: int, fail_on_data_loss: bool) -> int:
        """Return where to go on after something else than a record came."""
        error = stopped.error()
        if error.code() == self._kafka.KafkaError._PARTITION_EOF:
            if stopped.offset() >= piece.end:
                return piece.end
            lost = RecordsLost(
                piece.topic,
                piece.partition,
                stopped.offset(),
                piece.end,
                f"the partition ends at {stopped.offset()} now",
            )
            if fail_on_data_loss:
                raise lost
            return piece.end
        if error.code() in (
            self._kafka.KafkaError._AUTO_OFFSET_RESET,
            self._kafka.KafkaError.OFFSET_OUT_OF_RANGE,
        ):
            begin = self._begin(piece._replace(start=position), fail_on_data_loss)
            self._assign(piece, begin)
            return begin
        if error.fatal() or not error.retriable():
            raise CordwoodError(f"reading {_place(piece)} at {self._address} failed: {error.str()}")
        return position

    def _begin(self, piece: Piece, fail_on_data_loss: bool) -> int:
        start, end = self._ends(piece.topic, piece.partition)
        topic_id = self.topic_id(piece.topic) if piece.topic_id != UNKNOWN_ID else UNKNOWN_ID
        loss = find_loss(piece, topic_id, start, end)
        if loss is not None and fail_on_data_loss:
            raise loss
        if UNKNOWN_ID not in (topic_id, piece.topic_id) and topic_id != piece.topic_id:
            return piece.end
        return max(piece.start, start) if end > piece.start else piece.end

    def _assign(self, piece: Piece, position: int) -> None:
        self._consumer.assign([self._kafka.TopicPartition(piece.topic, piece.partition, position)])

    def commit(self, group_id: str, offsets: Mapping[tuple[str, int], int]) -> None:
        """Commit *offsets* for a group, those that are further than what it has."""
        consumer = self._connect({**self._settings, "group.id": group_id})
        try:
            places = [self._kafka.TopicPartition(topic, number) for topic, number in offsets]
            before = self._asked(
                f"asking for the offsets of group {group_id}",
                consumer.committed,
                places,
                timeout=self._seconds,
            )
            further = [
                self._kafka.TopicPartition(
                    place.topic, place.partition, offsets[place.topic, place.partition]
                )
                for place in before
                if offsets[place.topic, place.partition] > place.offset
            ]
            if further:
                self._asked(
                    f"committing offsets of group {group_id}",
                    consumer.commit,
                    offsets=further,
                    asynchronous=False,
                )
        finally:
            consumer.close()

    def close(self) -> None:
        """Let go."""
        self._consumer.close()


def _said(error: Any) -> str:
    return str(error.args[0].str() if error.args and hasattr(error.args[0], "str") else error)


def _place(piece: Piece) -> str:
    return f"partition {piece.partition} of topic {piece.topic}"


def _rows(messages: Sequence[Any], schema: pa.Schema) -> pa.RecordBatch:
    """Return *messages* as columns, those of *schema* and the offset, one column after the other."""
    import pyarrow as pa

    wanted = set(schema.names)
    # One call gives both, as (kind, milliseconds).
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
                # Kafka's client counts from 1, as 0 is no timestamp at all, which is -1 here.
                kinds = [kind - 1 for kind, _ in stamps]
                columns["timestampType"] = pa.array(kinds, field.type)
            case "headers":
                columns["headers"] = pa.array([_headers(message) for message in messages], field.type)
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def _headers(message: Any) -> list[dict[str, Any]]:
    return [{"key": key, "value": value} for key, value in message.headers() or ()]
