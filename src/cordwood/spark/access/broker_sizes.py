"""Estimate the record sizes of a broker's topics from a few records.

A broker reports offsets, not sizes, but ranges are split into tasks by size. So one consumer reads a few
records from the middle of the ranges, all in the same requests. The result affects only the balance of tasks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from typing import Any

from cordwood.kafka_client import KafkaClient
from cordwood.spark.access.access import Piece
from cordwood.spark.access.broker_reading import by_partition
from cordwood.spark.access.planning import PIECE_BYTES_MAX

#: The number of topics sampled for one plan, those with most offsets first; others get the average.
SAMPLES_MAX = 32
#: The bytes requested of each; a larger batch is returned completely.
SAMPLE_BYTES = 64 << 10
#: The number of records taken from the client at a time.
SAMPLE_RECORDS = 64
#: The assumed size of a record if none could be sampled.
ASSUMED_BYTES = 1 << 10
#: Kafka's default limit for a batch: ranges of few offsets are small without sampling.
RECORD_BYTES_MAX = 1 << 20
_POLL_SECONDS = 0.1
_POLLS_MAX = 100


class RecordSizes:
    """Bytes per offset, by topic. Each topic is sampled once. One thread."""

    def __init__(self, client: KafkaClient) -> None:
        self._client = client
        self._known: dict[str, float] = {}

    def sizes(self, pieces: Sequence[Piece]) -> list[int]:
        """Return the estimated size of each of *pieces*."""
        offsets = sum(piece.end - piece.start for piece in pieces)
        if offsets * RECORD_BYTES_MAX > PIECE_BYTES_MAX:
            self._look_at(_largest(piece for piece in pieces if piece.topic not in self._known))
        known = self._known.values()
        otherwise = sum(known) / len(known) if known else ASSUMED_BYTES
        return [
            round(self._known.get(piece.topic, otherwise) * (piece.end - piece.start)) for piece in pieces
        ]

    def _look_at(self, pieces: Sequence[Piece]) -> None:
        """Read a few records from the middle of each of *pieces* and store their size."""
        if not pieces:
            return
        kafka = self._client.kafka
        middle = {piece[:2]: (piece.start + piece.end) // 2 for piece in pieces}
        # A partition is paused once it has returned a record.
        consumer = self._client.consumer({"fetch.message.max.bytes": SAMPLE_BYTES, "queued.min.messages": 1})
        with contextlib.closing(consumer):
            consumer.assign([kafka.TopicPartition(*place, offset) for place, offset in middle.items()])
            waiting = set(middle)
            for _ in range(_POLLS_MAX):
                if not waiting:
                    break
                found = by_partition(consumer.consume(SAMPLE_RECORDS, _POLL_SECONDS))
                answered = waiting & found.keys()
                for place in answered:
                    self._note(place[0], middle[place], found[place])
                # Other fetched records are discarded.
                consumer.incremental_unassign([kafka.TopicPartition(*place) for place in answered])
                waiting -= answered

    def _note(self, topic: str, first: int, messages: Sequence[Any]) -> None:
        """Store the record size of a topic from *messages*; other messages are ignored."""
        records = [message for message in messages if message.error() is None]
        if records and topic not in self._known:
            size = sum(len(message.value() or b"") + len(message.key() or b"") for message in records)
            # Per offset, not per record: compaction leaves offsets without one.
            self._known[topic] = max(size / (records[-1].offset() + 1 - first), 1.0)


def _largest(pieces: Iterable[Piece]) -> list[Piece]:
    """Return the largest of *pieces* of each topic, for the topics with the largest ones."""
    found: dict[str, Piece] = {}
    for piece in pieces:
        other = found.get(piece.topic)
        if other is None or other.end - other.start < piece.end - piece.start:
            found[piece.topic] = piece
    return sorted(found.values(), key=lambda piece: piece.start - piece.end)[:SAMPLES_MAX]
