"""What consumers of confluent-kafka are given with each isolation, noted in a history."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import confluent_kafka

from support.history.operations import READ_COMMITTED, READ_UNCOMMITTED, Read, Scanned
from support.history.recorder import ClientRecord
from support.patience import SECONDS_MAX, Limit, until
from support.transaction_clients import confluent_settings


def consumer_settings(bootstrap: str, isolation: str, group: str = "unused") -> dict[str, Any]:
    """Return the settings of a consumer that is assigned its partitions and commits nothing by itself."""
    return {
        **confluent_settings(bootstrap),
        "group.id": group,
        "isolation.level": isolation,
        "enable.auto.commit": False,
        "auto.offset.reset": "error",
        "fetch.wait.max.ms": 50,
        "fetch.error.backoff.ms": 10,
    }


def poll(consumer: Any, record: ClientRecord, isolation: str, count: int) -> tuple[Read, ...]:
    """Poll once and note what was given. Errors of a server that is gone are no news."""
    polling = record.poll(isolation)
    messages = [message for message in consumer.consume(count, 0.1) if message.error() is None]
    given = tuple(_read(message) for message in messages)
    polling.ok(given)
    return given


def _read(message: Any) -> Read:
    value = message.value().decode()
    return Read(message.topic(), message.partition(), message.offset(), value, message.timestamp()[1])


def fetch_committed(
    consumer: Any, record: ClientRecord, group: str, places: Sequence[tuple[str, int]]
) -> dict[tuple[str, int], int]:
    """Return the offsets of a group, pending ones waited for, by a read_committed consumer."""
    limit = Limit()
    asked = [confluent_kafka.TopicPartition(*place) for place in places]
    while True:
        fetching = record.fetch_offsets(group, READ_COMMITTED)
        try:
            found = consumer.committed(asked, SECONDS_MAX)
        except confluent_kafka.KafkaException as error:
            fetching.unknown(error)
            if limit.passed():
                raise
            continue
        assert not any(place.error for place in found)
        offsets = {(place.topic, place.partition): max(place.offset, -1) for place in found}
        fetching.ok(offsets)
        return offsets


def scan(bootstrap: str, record: ClientRecord, isolation: str, places: Sequence[tuple[str, int]]) -> int:
    """Read partitions from their start to their end, and note it; return how many records they have."""
    settings = {**consumer_settings(bootstrap, isolation), "enable.partition.eof": True}
    consumer = confluent_kafka.Consumer(settings)
    limit = Limit()
    found: dict[tuple[str, int], list[Read]] = {place: [] for place in places}
    scans = {place: record.scan(*place, isolation, final=True) for place in places}
    consumer.assign([confluent_kafka.TopicPartition(*place, 0) for place in places])
    try:
        while scans:
            assert not limit.passed(), "the scan has no end"
            for message in consumer.consume(1000, 0.05):
                place = (message.topic() or "", message.partition() or 0)
                error = message.error()
                if error is None:
                    found[place].append(_read(message))
                elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF and place in scans:
                    scans.pop(place).ok(Scanned(0, message.offset() or 0, tuple(found[place])))
    finally:
        consumer.close()
    return sum(map(len, found.values()))


def wait_until_nothing_is_open(bootstrap: str, places: Sequence[tuple[str, int]]) -> None:
    """Wait until no partition has an open transaction: both isolations see the same end."""
    both = [
        confluent_kafka.Consumer(consumer_settings(bootstrap, isolation))
        for isolation in (READ_COMMITTED, READ_UNCOMMITTED)
    ]
    try:
        for topic, index in places:
            place = confluent_kafka.TopicPartition(topic, index)

            def same_end(place: confluent_kafka.TopicPartition = place) -> bool:
                ends = {one.get_watermark_offsets(place, SECONDS_MAX) for one in both}
                return len(ends) == 1

            until(same_end, f"no transaction is open in {topic}-{index}")
    finally:
        for one in both:
            one.close()
