"""Read by address as a Kafka client, from Cordwood's server or Apache Kafka's."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cordwood.errors import NotAllowed, RecordsLost, UnknownTopic
from cordwood.kafka_client import KafkaClient
from cordwood.spark.access.access import UNKNOWN_ID, Ends, Measure, Piece, TopicState
from cordwood.spark.access.broker_reading import RangeReader
from cordwood.spark.access.broker_sizes import RecordSizes
from cordwood.spark.access.planning import PIECE_BYTES_MAX, Partition, even_cuts
from cordwood.spark.access.positions import find_loss
from cordwood.spark.options import COMMITTED, UNCOMMITTED

if TYPE_CHECKING:
    import pyarrow as pa

    from cordwood.spark.access.gathering import Gathered, Gathering

#: Time limits in seconds for an answer of a broker and for progress in a range, before it counts as
#: unreachable.
SECONDS_MAX = 60.0


class BrokerAccess:
    """Access to a broker for driver and tasks; see `Access`.

    Every request is for all topics at once. Connections stay open until `close`.
    """

    def __init__(
        self,
        client: Mapping[str, str],
        *,
        verify: bool,
        committed: bool = True,
        seconds: float = SECONDS_MAX,
    ) -> None:
        settings: dict[str, Any] = {
            "group.id": "cordwood-source",
            # By default the client pauses for a second each time its queue is full; a task must read at full
            # speed.
            "fetch.queue.backoff.ms": 5,
            "fetch.message.max.bytes": 8 << 20,
            "queued.min.messages": 1_000_000,
            **client,
            "auto.offset.reset": "error",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            "check.crcs": verify,
            # The client drops the records of aborted transactions, which a broker names in its answers.
            "isolation.level": COMMITTED if committed else UNCOMMITTED,
        }
        self._client = KafkaClient(client, seconds, consumer_settings=settings, only_committed=committed)
        self._sizes = RecordSizes(self._client)
        self._consumers: dict[str, Any] = {}

    def _consumer(self, group_id: str | None = None) -> Any:
        """Return the consumer of a group, or the one without a group; created once."""
        if (group_id or "") not in self._consumers:
            settings = None if group_id is None else {"group.id": group_id}
            self._consumers[group_id or ""] = self._client.consumer(settings)
        return self._consumers[group_id or ""]

    def topics(self, names: Collection[str] | None = None) -> Mapping[str, int]:
        """Return all topics, or those of *names* that exist, with their numbers of partitions."""
        if names is None:
            return self._client.topics()
        return {name: found.partitions for name, found in self._client.describe(names).items()}

    def topic_ids(self, names: Collection[str]) -> dict[str, str]:
        """Return the ids of those of *names* that exist, as a data directory writes them."""
        described = self._client.describe(names)
        return {name: found.topic_id or UNKNOWN_ID for name, found in described.items()}

    def standing(self, topic: str, partitions: tuple[int, ...] | None) -> TopicState | None:
        """Return the state of a topic; a broker does not report leader epochs."""
        return self.standings({topic: partitions}).get(topic)

    def standings(self, wanted: Mapping[str, tuple[int, ...] | None]) -> dict[str, TopicState]:
        """Return the states of topics; the number of requests does not depend on the number of topics."""
        described = self._client.describe(wanted, rights=True)
        for topic, there in described.items():
            # Now, because a task that is not allowed to read would be tried again and again.
            if not there.may("READ"):
                raise NotAllowed("READ", topic, self._client.address)
        places: dict[str, list[Partition]] = {}
        for topic, there in described.items():
            numbers = wanted[topic]
            for number in range(there.partitions) if numbers is None else numbers:
                if number >= there.partitions:
                    raise UnknownTopic(
                        f"topic {topic} has {there.partitions} partitions, and no partition {number}"
                    )
                places.setdefault(topic, []).append((topic, number))
        ends = self._ends([place for each in places.values() for place in each])
        return {
            topic: TopicState(
                described[topic].topic_id or UNKNOWN_ID, {place[1]: ends[place] for place in each}
            )
            for topic, each in places.items()
            # A topic deleted in between does not exist.
            if all(place in ends for place in each)
        }

    def offsets_at(self, times: Mapping[Partition, int]) -> dict[Partition, int | None]:
        """Return the offset of the first record at or after the time given, from the broker."""
        return self._client.offsets_at(times)

    def measure(self, pieces: Sequence[Piece]) -> list[Measure]:
        """Return estimated sizes of *pieces*, and offsets that split them into 64 to 128 MiB."""
        sizes = self._sizes.sizes(pieces)
        return [
            Measure(size, even_cuts(piece, -(-size // PIECE_BYTES_MAX)))
            for piece, size in zip(pieces, sizes, strict=True)
        ]

    def gather(
        self, pieces: Sequence[Piece], *, fail_on_data_loss: bool
    ) -> tuple[list[Piece], Gathering | None]:
        """Return all of *pieces*: a broker does not report how it stores topics."""
        return list(pieces), None

    def with_aborted(self, pieces: Sequence[Piece | Gathered]) -> list[Piece | Gathered]:
        """Return *pieces* unchanged: the client learns of aborted transactions with each answer."""
        return list(pieces)

    def read(
        self, pieces: Sequence[Piece | Gathered], schema: pa.Schema, *, fail_on_data_loss: bool
    ) -> Iterator[pa.RecordBatch]:
        """Yield the records of *pieces*, fetched concurrently."""
        planned = [piece for piece in pieces if isinstance(piece, Piece)]
        assert len(planned) == len(pieces)

        def begin(some: Sequence[Piece]) -> list[int]:
            return self._begin(some, fail_on_data_loss)

        reader = RangeReader(
            self._client, self._consumer(), schema, begin, fail_on_data_loss=fail_on_data_loss
        )
        yield from reader.read(planned)

    def _ends(self, partitions: Collection[Partition]) -> dict[Partition, Ends]:
        """Return the ends of those of *partitions* that exist; a broker does not report their epochs."""
        return {place: Ends(*ends) for place, ends in self._client.ends(partitions).items()}

    def _begin(self, pieces: Sequence[Piece], fail_on_data_loss: bool) -> list[int]:
        """Return the offset at which each of *pieces* begins: its start, or its first remaining record."""
        ids = self.topic_ids({piece.topic for piece in pieces})
        ends = self._ends([piece[:2] for piece in pieces if piece.topic in ids])
        found = []
        for piece in pieces:
            there, topic_id = ends.get(piece[:2]), ids.get(piece.topic, UNKNOWN_ID)
            if there is None:
                loss: RecordsLost | None = RecordsLost(*piece[:4], "the topic was deleted")
            else:
                loss = find_loss(piece, topic_id, there.start, there.end)
            if loss is not None and fail_on_data_loss:
                raise loss
            another = UNKNOWN_ID not in (piece.topic_id, topic_id) and piece.topic_id != topic_id
            if there is None or another or there.end <= piece.start:
                # Nothing is left; the records of the new topic are read by a later batch.
                found.append(piece.end)
            else:
                found.append(max(piece.start, there.start))
        return found

    def commit(self, group_id: str, offsets: Mapping[Partition, int]) -> None:
        """Commit those *offsets* of a group that are above its committed ones."""
        place_of, consumer = self._client.kafka.TopicPartition, self._consumer(group_id)
        before = self._client.asked(
            f"asking for the offsets of group {group_id}",
            consumer.committed,
            [place_of(*place) for place in offsets],
            timeout=self._client.seconds,
        )
        further = [
            place_of(place.topic, place.partition, offsets[place.topic, place.partition])
            for place in before
            if offsets[place.topic, place.partition] > place.offset
        ]
        if further:
            self._client.asked(
                f"committing offsets of group {group_id}",
                consumer.commit,
                offsets=further,
                asynchronous=False,
            )

    def close(self) -> None:
        """Close all connections."""
        while self._consumers:
            self._consumers.popitem()[1].close()
        self._client.close()
