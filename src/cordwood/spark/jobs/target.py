"""The topic that a job writes to: found, or made as the job needs it, wherever the log is."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping

import cordwood.embedded
from cordwood.embedded import Log, open_when_free
from cordwood.errors import CordwoodError, DirectoryLocked, DirectoryRefused, TopicMismatch, UnknownTopic
from cordwood.spark.carriers import LOCKED_SECONDS, Carrier, open_carrier
from cordwood.spark.encoding import Destination
from cordwood.spark.jobs.log_place import LogPlace
from cordwood.spark.options import Place

#: How long a broker may take to create a topic.
SECONDS_MAX = 60.0


def ensure_topic(
    place: LogPlace, topic: str, partitions: int | None, config: Mapping[str, str] | None = None
) -> Destination:
    """Return the topic, created if it is missing: with as many partitions as the log gives unless told.

    Raises:
        TopicMismatch: If it is there with another number of partitions.
        CordwoodError: If it cannot be created.
    """
    found = find_topic(place, topic)
    if found is None:
        create_topic(place, topic, partitions, config or {})
        found = find_topic(place, topic)
        assert found is not None
    if partitions is not None and found.partitions != partitions:
        raise TopicMismatch(topic, "partitions", found.partitions, partitions)
    return found


def find_topic(place: LogPlace, topic: str) -> Destination | None:
    """Return what must be known of a topic to write to it, None if there is none."""
    with contextlib.closing(carrier_to(place)) as carrier:
        try:
            return carrier.destination(topic)
        except UnknownTopic:
            return None
        except DirectoryRefused:
            # A directory that is not there yet is made with its first topic; any other is not ours to make.
            if place.path is None or os.path.exists(place.path):
                raise
            return None


def create_topic(place: LogPlace, topic: str, partitions: int | None, config: Mapping[str, str]) -> None:
    """Create a topic, through the server that holds the directory if one does."""
    if place.path is None:
        assert place.bootstrap is not None
        _create_by_address({"bootstrap.servers": place.bootstrap, **place.client}, topic, partitions, config)
        return
    path = place.path
    try:
        log: Log = open_when_free(lambda: cordwood.embedded.open(path), LOCKED_SECONDS)
    except DirectoryLocked as error:
        if error.address is None:
            raise
        _create_by_address({"bootstrap.servers": error.address}, topic, partitions, config)
        return
    with log:
        log.create_topic(topic, partitions, config)


def carrier_to(place: LogPlace) -> Carrier:
    """Return the way by which a sink reaches the log; closed by the caller."""
    path = None if place.path is None else os.path.abspath(place.path)
    return open_carrier(Place(path, {"bootstrap.servers": place.bootstrap or "", **place.client}, None))


def _create_by_address(
    client: Mapping[str, str], topic: str, partitions: int | None, config: Mapping[str, str]
) -> None:
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

    admin = AdminClient({"log_level": 0, **client})
    wanted = NewTopic(topic, partitions or -1, -1, config=dict(config))
    (made,) = admin.create_topics([wanted], request_timeout=SECONDS_MAX).values()
    try:
        made.result()
    except KafkaException as error:
        address = client["bootstrap.servers"]
        raise CordwoodError(f"creating topic {topic} at {address} failed: {error.args[0].str()}") from None
